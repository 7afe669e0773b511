//! Shared memory: arrays and slices that all threads of one block-task access.

use crate::kernel::SliceMut;

/// Allocates an array of `N` elements of `T` in the block's shared memory, and returns a raw pointer to it,
/// `*mut T`.
///
/// Write `shared_array![f32; 256]` directly in the body of a `#[preemptible]` kernel; helper functions take
/// the pointer. The contents are uninitialised at the start, and lost when the block-task ends. Other threads
/// write the array, so this is a pointer and not a reference: call
/// [`sync_threads`](crate::thread::sync_threads) between writing and reading.
///
/// ```
/// use preempt_device::prelude::*;
///
/// /// Reverses `x` within each run of 256 elements; its length is a multiple of 256.
/// #[preemptible(block = 256)]
/// pub fn reverse(x: &[u32], out: SliceMut<u32>) {
///     let run = shared_array![u32; 256];
///     let (i, t) = (thread::index_1d() as usize, thread::thread_idx_x() as usize);
///     if i < x.len() {
///         // SAFETY: `t` is below 256, and each thread writes its own element.
///         unsafe { run.add(t).write(x[i]) }
///     }
///     // All threads of the block, also those past the end.
///     thread::sync_threads();
///     if i < out.len() {
///         // SAFETY: the other thread has written before the barrier; each writes its own element of `out`.
///         unsafe { out.write(i, run.add(255 - t).read()) }
///     }
/// }
/// ```
#[macro_export]
macro_rules! shared_array {
    ($($tokens:tt)*) => {
        ::core::compile_error!(
            "`shared_array!` works directly in the body of a `#[preemptible]` kernel, where its \
             place in shared memory is laid out; pass the pointer to helper functions"
        )
    };
}

/// Allocates a slice of `n` elements of `T` in the block's shared memory, where `n` is known only at the launch, and
/// returns a [`SliceMut<T>`](crate::kernel::SliceMut): CUDA's dynamic shared memory.
///
/// Write `shared_slice![f32; n]` directly in the body of a `#[preemptible]` kernel; helper functions take the slice. The
/// launch computes `n`, an integer of any type, from constants, from parameters that are passed by value, and from the
/// lengths of slices, `x.len()`. The contents are those of a [`shared_array!`].
#[macro_export]
macro_rules! shared_slice {
    ($($tokens:tt)*) => {
        ::core::compile_error!(
            "`shared_slice!` works directly in the body of a `#[preemptible]` kernel, where its \
             place in shared memory is laid out; pass the slice to helper functions"
        )
    };
}

/// A number of elements: an integer.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a number of elements",
    label = "not an integer",
    note = "the length of a `shared_slice![T; n]` is an integer of any type"
)]
pub trait Length {
    /// The number; `u64::MAX` if it is negative.
    fn elements(self) -> u64;
}

macro_rules! lengths {
    ($($ty:ty)*) => {
        $(impl Length for $ty {
            #[inline(always)]
            fn elements(self) -> u64 {
                u64::try_from(self).unwrap_or(u64::MAX)
            }
        })*
    };
}
lengths!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize);

/// A slice among the parameters, for expressions of lengths.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Elements(usize);

impl Elements {
    /// Stands for a slice of `len` elements.
    #[inline(always)]
    pub const fn new(len: usize) -> Elements {
        Elements(len)
    }

    /// The number of elements.
    #[inline(always)]
    pub const fn len(self) -> usize {
        self.0
    }

    /// Whether there are no elements.
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Where a slice is in shared memory. Only the expansion makes one, and compares its end with what the launch gives.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Place {
    start: u32,
    len: u32,
}

impl Place {
    /// Of a slice that a `#[cfg]` removes.
    pub const NOWHERE: Place = Place { start: 0, len: 0 };
}

/// The place of a slice of `len` elements of `T` after `used` bytes, and the bytes up to its end; `u64::MAX` if they are
/// more.
#[doc(hidden)]
#[inline(always)]
pub fn place<T>(used: u64, len: impl Length) -> (Place, u64) {
    const { assert!(size_of::<T>() > 0, "the elements of a shared slice have bytes") };
    let (len, align) = (len.elements(), const { offset::<T>(1) } as u64);
    let start = used.checked_next_multiple_of(align).unwrap_or(u64::MAX);
    let end = start.saturating_add(len.saturating_mul(size_of::<T>() as u64));
    // Nothing is lost if the end is within what a block can have.
    (Place { start: start as u32, len: len as u32 }, end)
}

/// Size and alignment of `T`.
#[doc(hidden)]
pub const fn layout<T>() -> [usize; 2] {
    [size_of::<T>(), align_of::<T>()]
}

/// Whether `T` has this layout.
#[doc(hidden)]
pub const fn has_layout<T>([size, align]: [usize; 2]) -> bool {
    size_of::<T>() == size && align_of::<T>() == align
}

/// The slice at a place that was computed for elements of the layout of `T`.
#[doc(hidden)]
#[inline(always)]
pub fn slice<T: Copy>(place: Place) -> SliceMut<T> {
    // SAFETY: the entry found that the launch gives the block so much shared memory, which lasts as long as the task.
    unsafe { SliceMut::from_raw_parts(at(place.start as usize), place.len as usize) }
}

/// The offset of an array of elements of `T` that is placed after `used` bytes.
#[doc(hidden)]
pub const fn offset<T>(used: usize) -> usize {
    assert!(align_of::<T>() <= 16, "shared arrays are aligned to at most 16 bytes");
    used.next_multiple_of(align_of::<T>())
}

/// The end of an array of `N` elements of `T` that is placed after `used` bytes.
#[doc(hidden)]
pub const fn end<T, const N: usize>(used: usize) -> usize {
    offset::<T>(used) + size_of::<T>() * N
}

/// Whether an array of `N` elements of `T` can occupy `start..end`.
#[doc(hidden)]
pub const fn fits<T, const N: usize>(start: usize, end: usize) -> bool {
    start.is_multiple_of(align_of::<T>()) && end - start == size_of::<T>() * N
}

/// The bytes of a kernel's shared memory, as a launch passes them.
#[doc(hidden)]
pub const fn total(used: usize) -> u32 {
    assert!(used <= u32::MAX as usize, "the shared arrays of a kernel take 4 GiB or more");
    used as u32
}

/// The address of the block's shared memory plus `offset`.
#[doc(hidden)]
#[inline(always)]
pub fn at<T>(offset: usize) -> *mut T {
    // Wrapping, because it needs no promise here: the kernel's launch provides the memory.
    target_base().wrapping_add(offset).cast()
}

#[inline(always)]
fn target_base() -> *mut u8 {
    crate::target::shared_base()
}
