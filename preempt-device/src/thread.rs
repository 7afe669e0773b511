//! Where a thread is in its block and grid, barriers and fences; the names are `cuda_std`'s.
//!
//! In a preemptible kernel, block indices and grid dimensions are the *block-task's*: what the
//! kernel would see in an ordinary grid, whichever resident block runs it. Helper functions
//! see the same.

use crate::target;

pub use crate::time::nanosleep;

/// Extents or an index in x, y and z.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UVec3 {
    /// In x.
    pub x: u32,
    /// In y.
    pub y: u32,
    /// In z.
    pub z: u32,
}

/// An index in x and y.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UVec2 {
    /// In x.
    pub x: u32,
    /// In y.
    pub y: u32,
}

macro_rules! registers {
    ($($(#[$doc:meta])* $x:ident $y:ident $z:ident $all:ident)*) => {
        $(
            $(#[$doc])*
            #[inline(always)]
            pub fn $x() -> u32 {
                target::$x()
            }

            /// The same in y.
            #[inline(always)]
            pub fn $y() -> u32 {
                target::$y()
            }

            /// The same in z.
            #[inline(always)]
            pub fn $z() -> u32 {
                target::$z()
            }

            /// The same in all three dimensions.
            #[inline(always)]
            pub fn $all() -> UVec3 {
                UVec3 { x: $x(), y: $y(), z: $z() }
            }
        )*
    };
}
registers! {
    /// The thread's index in its block, in x.
    thread_idx_x thread_idx_y thread_idx_z thread_idx
    /// The index of the block-task in its grid, in x.
    block_idx_x block_idx_y block_idx_z block_idx
    /// Threads in a block, in x.
    block_dim_x block_dim_y block_dim_z block_dim
    /// Block-tasks in the grid, in x.
    grid_dim_x grid_dim_y grid_dim_z grid_dim
}

/// The thread's index in a one-dimensional grid of one-dimensional blocks.
#[inline(always)]
pub fn index_1d() -> u32 {
    block_idx_x() * block_dim_x() + thread_idx_x()
}

/// The thread's index in a two-dimensional grid of two-dimensional blocks.
#[inline(always)]
pub fn index_2d() -> UVec2 {
    UVec2 { x: index_1d(), y: block_idx_y() * block_dim_y() + thread_idx_y() }
}

/// The thread's index in a three-dimensional grid of three-dimensional blocks.
#[inline(always)]
pub fn index_3d() -> UVec3 {
    let UVec2 { x, y } = index_2d();
    UVec3 { x, y, z: block_idx_z() * block_dim_z() + thread_idx_z() }
}

/// The thread's number in the whole grid, block after block, whatever the dimensions.
#[inline(always)]
pub fn index() -> u32 {
    let (block, grid, dim) = (block_idx(), grid_dim(), block_dim());
    let block_number = (block.z * grid.y + block.y) * grid.x + block.x;
    block_number * (dim.x * dim.y * dim.z) + thread_number()
}

/// The thread's number in its block: x runs fastest, then y, then z.
#[inline(always)]
pub fn thread_number() -> u32 {
    let (thread, dim) = (thread_idx(), block_dim());
    (thread.z * dim.y + thread.y) * dim.x + thread.x
}

/// Whether this is thread 0 of block-task 0.
#[inline(always)]
pub fn first() -> bool {
    block_idx() == UVec3::default() && thread_idx() == UVec3::default()
}

/// Threads in a warp: 32.
#[inline(always)]
pub fn warp_size() -> u32 {
    32
}

/// The SM that the thread runs on.
#[inline(always)]
pub fn sm_id() -> u32 {
    target::sm_id()
}

/// Waits until every thread of the block has called; what they wrote before is visible after.
///
/// Every thread of the block must call the same one, at the same place in the source. Threads that
/// disagree hang on the GPU, or pair up with those at another one; on the CPU device the launch fails
/// with an error that names the places.
///
/// # References and barriers
///
/// A `&mut` promises that nothing else writes there while it lives, and a `&` that nothing does at all. So neither may
/// live across a barrier if another thread writes there in between: the compiler may read before the barrier what is
/// used after it. To make such a reference takes `unsafe`, and this is part of the promise. Pass the raw pointers on:
///
/// ```
/// use preempt_device::thread;
///
/// /// # Safety
/// ///
/// /// Both are the block's own shared memory. Each thread has a place of its own, and writes to one other.
/// unsafe fn exchange(own: *mut u32, other: *mut u32, value: u32) -> u32 {
///     unsafe {
///         other.write(value);
///         thread::sync_threads();
///         own.read() // with `own: &mut u32` the compiler could read this first
///     }
/// }
/// ```
///
/// `preempt::build` takes from the compiler what it would conclude of `&mut` parameters in code for the GPU, so there
/// they are read again. It leaves `&`, and the CPU device is compiled as the host is.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn sync_threads() {
    target::sync_threads()
}

/// [`sync_threads`], and the number of threads whose `predicate` is not 0.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn sync_threads_count(predicate: u32) -> u32 {
    target::sync_threads_count(predicate)
}

/// [`sync_threads`], and 1 if every thread's `predicate` is not 0, else 0.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn sync_threads_and(predicate: u32) -> u32 {
    target::sync_threads_and(predicate)
}

/// [`sync_threads`], and 1 if some thread's `predicate` is not 0, else 0.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
pub fn sync_threads_or(predicate: u32) -> u32 {
    target::sync_threads_or(predicate)
}

/// Orders this thread's memory accesses for all threads of the grid.
#[inline(always)]
pub fn grid_fence() {
    target::device_fence()
}

/// Orders this thread's memory accesses for all threads of the device.
#[inline(always)]
pub fn device_fence() {
    target::device_fence()
}

/// Orders this thread's memory accesses for the device and the host.
#[inline(always)]
pub fn system_fence() {
    target::system_fence()
}
