//! Shared memory: arrays that the threads of one block-task use together.

/// An array of `N` elements of `T` in the block's shared memory, as a raw pointer: `*mut T`.
///
/// `shared_array![f32; 256]` directly in the body of a `#[preemptible]` kernel; helper
/// functions take the pointer. The contents are not initialised, and are gone when the
/// block-task ends. It is a pointer and not a reference because other threads write it: wait
/// with [`sync_threads`](crate::thread::sync_threads) between writing and reading.
#[macro_export]
macro_rules! shared_array {
    ($($tokens:tt)*) => {
        ::core::compile_error!(
            "`shared_array!` works directly in the body of a `#[preemptible]` kernel, where its \
             place in shared memory is laid out; pass the pointer to helper functions"
        )
    };
}

/// Where an array of `N` elements of `T` can start in shared memory that is used up to `used`.
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

/// Whether `start..end` is a place for an array of `N` elements of `T`.
#[doc(hidden)]
pub const fn fits<T, const N: usize>(start: usize, end: usize) -> bool {
    start.is_multiple_of(align_of::<T>()) && end - start == size_of::<T>() * N
}

/// The size of a kernel's shared memory, as a launch passes it.
#[doc(hidden)]
pub const fn total(used: usize) -> u32 {
    assert!(used <= u32::MAX as usize, "the shared arrays of a kernel take 4 GiB or more");
    used as u32
}

/// The address of the block's shared memory plus `offset`.
#[doc(hidden)]
#[inline(always)]
pub fn at<T>(offset: usize) -> *mut T {
    // Wrapping, so that no promise is needed here: the kernel's launch provides the memory.
    target_base().wrapping_add(offset).cast()
}

#[inline(always)]
fn target_base() -> *mut u8 {
    crate::target::shared_base()
}
