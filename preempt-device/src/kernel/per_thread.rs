//! A slice of which each thread has its own element.

use core::marker::PhantomData;

use crate::thread;

/// A slice in device memory in which each thread has an element of its own: that at its index in the grid.
///
/// A kernel with such a parameter needs no `unsafe`, and no comparison with the length:
///
/// ```
/// use preempt_device::prelude::*;
///
/// /// `out[i] = a[i] + b[i]`
/// #[preemptible(block = 256)]
/// pub fn add(a: &[f32], b: &[f32], out: PerThread<f32>) {
///     if let Some(own) = out.own() {
///         own.set(a[own.index()] + b[own.index()]);
///     }
/// }
/// ```
///
/// The grid and the block of a launch have one dimension, and at most 2³² threads together, or the launch is refused:
/// an index would be that of several threads otherwise.
///
/// # Why no two threads have the same element
///
/// - The index is [`thread::index_1d`]: `block_idx_x() * block_dim_x() + thread_idx_x()`. It does not wrap around,
///   because a launch has at most 2³² threads. Grid and block are one-dimensional, so `block_idx_x()` tells the
///   block-tasks of a launch apart, `thread_idx_x()` the threads of each, and the index all threads of the launch.
/// - The index is that of the calling thread, whichever copy of this value it asks, and however often. [`Own`] is tied
///   to its thread: it is not `Send`. It reads and writes by value and never lends a reference, so a thread may hold
///   several without two references to one place.
/// - No other value reaches the elements in safe code. This type has no other access to them, and cannot be made of
///   another slice. A launch borrows its buffers, a written one exclusively, so no other argument is the same memory.
///   Other operations on the buffer run before the launch or after it.
/// - A block-task runs once at a time. If it is requeued at a yield point, its threads are done before it starts again,
///   and what they wrote is visible to it: it finds its own elements as it left them.
/// - Neither type outlives the kernel's call: a kernel names no lifetime for it, so none can be chosen.
#[derive(Debug)]
#[repr(C)]
pub struct PerThread<'a, T> {
    ptr: *mut T,
    len: usize,
    launch: PhantomData<&'a ()>,
}

impl<T> Clone for PerThread<'_, T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for PerThread<'_, T> {}

impl<'a, T: Copy> PerThread<'a, T> {
    /// The slice of `len` elements at `ptr`.
    ///
    /// # Safety
    ///
    /// During `'a`, `ptr` is valid for reads and writes of `len` elements, and only threads of one launch access them,
    /// through copies of this value. Grid and block of that launch have one dimension, and it has at most 2³² threads.
    #[inline(always)]
    pub const unsafe fn from_raw_parts(ptr: *mut T, len: usize) -> Self {
        PerThread { ptr, len, launch: PhantomData }
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

    /// The calling thread's element; `None` for threads past the end of the slice.
    #[inline(always)]
    pub fn own(self) -> Option<Own<'a, T>> {
        let index = thread::index_1d() as usize;
        (index < self.len).then_some(Own { ptr: self.ptr, index, launch: PhantomData })
    }
}

/// The calling thread's element of a [`PerThread`].
///
/// It stays with its thread, and ends with the kernel's call:
///
/// ```compile_fail,E0277
/// fn to_another_thread(_: impl Send) {}
/// fn kernel(out: preempt_device::kernel::PerThread<f32>) {
///     to_another_thread(out.own()); // error: it cannot be sent between threads
/// }
/// ```
///
/// ```compile_fail
/// use preempt_device::kernel::{Own, PerThread};
/// fn kept(out: PerThread<f32>) -> Option<Own<'static, f32>> {
///     out.own() // error: lifetime may not live long enough
/// }
/// ```
#[derive(Debug)]
pub struct Own<'a, T> {
    /// The first element of the slice.
    ptr: *mut T,
    /// Below the number of elements.
    index: usize,
    launch: PhantomData<&'a ()>,
}

impl<T: Copy> Own<'_, T> {
    /// The index of the element, which is the thread's in the grid.
    #[inline(always)]
    pub const fn index(&self) -> usize {
        self.index
    }

    /// Reads the element.
    #[inline(always)]
    pub fn get(&self) -> T {
        // SAFETY: the element is in bounds, and this thread's alone ("Why no two threads have the same element").
        unsafe { self.ptr.add(self.index).read() }
    }

    /// Sets the element.
    #[inline(always)]
    pub fn set(&self, value: T) {
        // SAFETY: as for `get`.
        unsafe { self.ptr.add(self.index).write(value) }
    }
}
