//! The arguments of kernels, on host and device.

mod per_thread;

pub use per_thread::{Own, PerThread};

/// A value that can be passed to a kernel by value: plain data with the same layout in host
/// and device code.
///
/// Implemented for the numeric primitives, `bool`, with feature `half` that crate's `f16` and `bf16`, and arrays of
/// them; derive it for `repr(C)`
/// structs with `#[derive(KernelArg)]`.
///
/// # Safety
///
/// The type's layout does not depend on the compiler (`repr(C)` or primitive). The type holds no pointer into
/// host memory. Every field is `KernelArg`. All bytes 0 are a value.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be passed to a kernel by value",
    label = "not a kernel argument",
    note = "kernels take `&[T]`, `*const T`, `*mut T`, `SliceMut<T>`, `PerThread<T>`, numbers, and structs with `#[derive(Clone, Copy, KernelArg)] #[repr(C)]`; there are no pointers in buffers and structs"
)]
pub unsafe trait KernelArg: Copy + Send + Sync + 'static {}

macro_rules! primitive_args {
    ($($ty:ty)*) => {
        $(
            // SAFETY: a primitive with the same layout in host and device code.
            unsafe impl KernelArg for $ty {}
        )*
    };
}
primitive_args!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize f32 f64 bool);
// Numbers of 16 bits, which are `repr(transparent)`.
#[cfg(feature = "half")]
primitive_args!(half::f16 half::bf16);

// SAFETY: an array is its elements in order.
unsafe impl<T: KernelArg, const N: usize> KernelArg for [T; N] {}

/// Assertions of expansions about the types of parameters and fields.
#[doc(hidden)]
pub mod check {
    use super::KernelArg;
    use crate::abi::MAX_ARGUMENT_BYTES;

    /// Asserts that `T` can be an element of a buffer, or a field of an argument.
    pub const fn element<T: KernelArg>() {}

    /// Asserts that `T` can be passed by value.
    pub const fn value<T: KernelArg>() {
        // The compiler omits a parameter without bytes, and the driver would count it.
        assert!(size_of::<T>() > 0, "an argument without bytes cannot be passed to a kernel");
        assert!(align_of::<T>() <= 16, "kernel arguments are aligned to at most 16 bytes");
        assert!(
            size_of::<T>() <= MAX_ARGUMENT_BYTES,
            "all arguments of a kernel have room in 4096 bytes, and this one alone has not; pass it in a buffer, as \
             a slice `&[T]`"
        );
    }

    /// Bytes that a value takes among the arguments.
    pub const fn bytes<T>() -> usize {
        size_of::<T>().next_multiple_of(16)
    }

    /// Bytes that an address takes, or a length.
    pub const WORD: usize = bytes::<u64>();

    /// Asserts that a launch has room for arguments of `bytes` bytes.
    pub const fn arguments(bytes: usize) {
        assert!(
            bytes <= MAX_ARGUMENT_BYTES,
            "all arguments of a kernel have room in 4096 bytes, and these together have not; pass the larger ones \
             in buffers, as slices `&[T]`"
        );
    }
}

/// A slice in device memory that a kernel writes.
///
/// Every thread of the grid holds the same one, so it is `Copy` and promises nothing about aliasing. A kernel
/// takes this or `*mut T`, or [`PerThread`], which needs no `unsafe`; and never `&mut [T]`, which would allow the compiler to keep values in registers
/// across barriers.
#[derive(Debug)]
#[repr(C)]
pub struct SliceMut<T> {
    ptr: *mut T,
    len: usize,
}

impl<T> Clone for SliceMut<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SliceMut<T> {}

impl<T: Copy> SliceMut<T> {
    /// The slice of `len` elements at `ptr`.
    ///
    /// # Safety
    ///
    /// `ptr` is valid for reads and writes of `len` elements while the result or a copy of it
    /// is used.
    #[inline(always)]
    pub const unsafe fn from_raw_parts(ptr: *mut T, len: usize) -> Self {
        SliceMut { ptr, len }
    }

    /// The number of elements.
    #[inline(always)]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The first element's address.
    #[inline(always)]
    pub const fn as_mut_ptr(self) -> *mut T {
        self.ptr
    }

    /// Reads the element at `index`.
    ///
    /// # Panics
    ///
    /// If `index` is out of bounds.
    ///
    /// # Safety
    ///
    /// No other thread writes the element at the same time.
    #[inline(always)]
    pub unsafe fn read(self, index: usize) -> T {
        assert!(index < self.len, "index out of bounds of a SliceMut");
        // SAFETY: in bounds; the caller excludes a race.
        unsafe { self.ptr.add(index).read() }
    }

    /// Sets the element at `index`.
    ///
    /// # Panics
    ///
    /// If `index` is out of bounds.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes the element at the same time.
    #[inline(always)]
    pub unsafe fn write(self, index: usize, value: T) {
        assert!(index < self.len, "index out of bounds of a SliceMut");
        // SAFETY: in bounds; the caller excludes a race.
        unsafe { self.ptr.add(index).write(value) }
    }
}
