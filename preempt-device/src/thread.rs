//! Indices of threads and blocks, barriers and fences; the names are `cuda_std`'s.
//!
//! In a preemptible kernel, block indices and grid dimensions are those of the *block-task*. These are the
//! values of a plain grid, whichever resident block runs the task. Helper functions see the same values.

use crate::target;

pub use crate::time::nanosleep;

/// Extents, or an index, in x, y and z.
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
    ($($what:literal: $x:ident $y:ident $z:ident $all:ident)*) => {
        $(
            #[doc = concat!($what, ", in x.")]
            #[inline(always)]
            pub fn $x() -> u32 {
                target::$x()
            }

            #[doc = concat!($what, ", in y.")]
            #[inline(always)]
            pub fn $y() -> u32 {
                target::$y()
            }

            #[doc = concat!($what, ", in z.")]
            #[inline(always)]
            pub fn $z() -> u32 {
                target::$z()
            }

            #[doc = concat!($what, ", in x, y and z.")]
            #[inline(always)]
            pub fn $all() -> UVec3 {
                UVec3 { x: $x(), y: $y(), z: $z() }
            }
        )*
    };
}
registers! {
    "The thread's index in its block": thread_idx_x thread_idx_y thread_idx_z thread_idx
    "The index of the block-task in its grid": block_idx_x block_idx_y block_idx_z block_idx
    "Threads in a block": block_dim_x block_dim_y block_dim_z block_dim
    "Block-tasks in the grid": grid_dim_x grid_dim_y grid_dim_z grid_dim
}

/// The thread's index in a one-dimensional grid of one-dimensional blocks.
#[inline(always)]
pub fn index_1d() -> u32 {
    block_idx_x() * block_dim_x() + thread_idx_x()
}

/// The thread's index in a two-dimensional grid of two-dimensional blocks.
///
/// ```
/// use preempt_device::prelude::*;
///
/// /// `out` becomes the transpose of `x`, which has `rows` rows of `columns` elements, row by row.
/// #[preemptible(block = (16, 16))]
/// pub fn transpose(x: &[f32], rows: u32, columns: u32, out: SliceMut<f32>) {
///     let at = thread::index_2d();
///     if at.x < columns && at.y < rows {
///         let (from, to) = (at.y * columns + at.x, at.x * rows + at.y);
///         // SAFETY: each thread writes its own element.
///         unsafe { out.write(to as usize, x[from as usize]) }
///     }
/// }
///
/// # fn example<'a>(x: impl preempt_device::host::ReadArg<'a, f32>, out: impl preempt_device::host::WriteArg<'a, f32>) {
/// let (rows, columns) = (100, 40);
/// let call = transpose(x, rows, columns, out).threads((columns, rows));
/// assert_eq!((call.grid_dim().x, call.grid_dim().y), (3, 7));
/// # }
/// ```
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

/// Whether the calling thread is thread 0 of block-task 0.
#[inline(always)]
pub fn first() -> bool {
    block_idx() == UVec3::default() && thread_idx() == UVec3::default()
}

/// The number of threads in a warp: 32.
#[inline(always)]
pub fn warp_size() -> u32 {
    32
}

/// The number of the SM that the thread runs on.
#[inline(always)]
pub fn sm_id() -> u32 {
    target::sm_id()
}

/// Waits until every thread of the block has called this. What they wrote before is visible to all of them
/// after.
///
/// Every thread of the block must make the same call, at the same place in the source. On the GPU, threads at
/// different calls hang, or meet each other. On the CPU device the launch fails with an error that names both
/// calls.
///
/// # References and barriers
///
/// A `&mut` promises that no other thread accesses its target while it lives, and a `&` that no thread writes
/// it. So neither may live across a barrier if another thread writes there in between. The compiler may read
/// before the barrier what is used after it. Making such a reference takes `unsafe`, and this is part of that
/// promise. Pass raw pointers instead:
///
/// ```
/// use preempt_device::thread;
///
/// /// # Safety
/// ///
/// /// Both are in the block's shared memory. Each thread owns one element, and writes that of one other thread.
/// unsafe fn exchange(own: *mut u32, other: *mut u32, value: u32) -> u32 {
///     unsafe {
///         other.write(value);
///         thread::sync_threads();
///         own.read() // with `own: &mut u32` the compiler could read this first
///     }
/// }
/// ```
///
/// In code for the GPU, `preempt-build` keeps the compiler from relying on `&mut` parameters, so their
/// targets are read again after a barrier. It does not for `&`, nor for the CPU device, whose code is
/// compiled as the host's.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
#[doc(alias = "__syncthreads")]
pub fn sync_threads() {
    target::sync_threads()
}

/// Waits as [`sync_threads`] does, and returns the number of threads whose `predicate` is not 0.
///
/// All threads of the block get the same number, so they leave a loop together:
///
/// ```
/// use preempt_device::prelude::*;
///
/// /// Sorts each run of 64 elements of `x`, by exchanges of neighbours.
/// #[preemptible(block = 32)]
/// pub fn sort(x: SliceMut<u32>) {
///     let start = 64 * thread::block_idx_x() as usize;
///     let end = x.len().min(start + 64);
///     loop {
///         let mut swapped = 0;
///         let mut odd = 0;
///         while odd < 2 {
///             let i = start + 2 * thread::thread_idx_x() as usize + odd;
///             if i + 1 < end {
///                 // SAFETY: between two barriers no other thread has these two elements.
///                 unsafe {
///                     let (left, right) = (x.read(i), x.read(i + 1));
///                     if left > right {
///                         x.write(i, right);
///                         x.write(i + 1, left);
///                         swapped = 1;
///                     }
///                 }
///             }
///             thread::sync_threads();
///             odd += 1;
///         }
///         if thread::sync_threads_count(swapped) == 0 {
///             break;
///         }
///     }
/// }
/// ```
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
#[doc(alias = "__syncthreads_count")]
pub fn sync_threads_count(predicate: u32) -> u32 {
    target::sync_threads_count(predicate)
}

/// Waits as [`sync_threads`] does, and returns 1 if every thread's `predicate` is not 0, else 0.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
#[doc(alias = "__syncthreads_and")]
pub fn sync_threads_and(predicate: u32) -> u32 {
    target::sync_threads_and(predicate)
}

/// Waits as [`sync_threads`] does, and returns 1 if some thread's `predicate` is not 0, else 0.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
#[doc(alias = "__syncthreads_or")]
pub fn sync_threads_or(predicate: u32) -> u32 {
    target::sync_threads_or(predicate)
}

/// Orders this thread's memory accesses for all threads of its block, without waiting for them.
#[doc(alias = "__threadfence_block")]
#[inline(always)]
pub fn block_fence() {
    target::block_fence()
}

/// Orders this thread's memory accesses for all threads of the grid.
#[inline(always)]
pub fn grid_fence() {
    target::device_fence()
}

/// Orders this thread's memory accesses for all threads of the device.
#[doc(alias = "__threadfence")]
#[inline(always)]
pub fn device_fence() {
    target::device_fence()
}

/// Orders this thread's memory accesses for the device and the host.
#[doc(alias = "__threadfence_system")]
#[inline(always)]
pub fn system_fence() {
    target::system_fence()
}
