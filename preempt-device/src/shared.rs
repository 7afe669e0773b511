//! Shared memory: arrays that all threads of one block-task access.

/// Allocates an array of `N` elements of `T` in the block's shared memory, and returns a raw pointer to it,
/// `*mut T`.
///
/// Write `shared_array![f32; 256]` directly in the body of a `#[preemptible]` kernel; helper functions take
/// the pointer. The contents are uninitialised at the start, and lost when the block-task ends. Other threads
/// write the array, so this is a pointer and not a reference: call
/// [`sync_threads`](crate::thread::sync_threads) between writing and reading.
#[macro_export]
macro_rules! shared_array {
    ($($tokens:tt)*) => {
        ::core::compile_error!(
            "`shared_array!` works directly in the body of a `#[preemptible]` kernel, where its \
             place in shared memory is laid out; pass the pointer to helper functions"
        )
    };
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
