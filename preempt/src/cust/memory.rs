//! `cust`'s memory in launches and buffers.

use std::mem::ManuallyDrop;

use cust::memory::{DeviceBuffer, DeviceCopy, DevicePointer, DeviceSlice};
use preempt_device::kernel::KernelArg;

#[cfg(doc)]
use crate::error::ArgumentError;
use crate::error::Error;
use crate::raw::Lent;
use crate::scheduler::{Buffer, Scheduler, Stream};

/// Lends a buffer to the launches of a [`scope`](Scheduler::scope).
///
/// `&Lent` is passed where a kernel reads, and `&mut Lent` where it writes, to any number of launches.
/// `&mut DeviceBuffer` itself can be passed once only. Launches that use the same memory run
/// in the order in which they are submitted, on whatever streams.
///
/// The buffer can be neither freed nor copied before the scope has ended:
///
/// ```compile_fail,E0505
/// # use cust::memory::DeviceBuffer;
/// # use preempt_device::prelude::*;
/// # #[preemptible(block = 1)]
/// # fn double(x: SliceMut<f32>) {}
/// # fn launch(scheduler: preempt::Scheduler, stream: preempt::Stream, mut x: DeviceBuffer<f32>) {
/// let mut lent = preempt::cust::lend(&mut x);
/// scheduler.scope(|scope| {
///     let _ = scope.launch(&stream, double(&mut lent));
///     drop(x); // error: it is lent
/// });
/// # }
/// ```
pub fn lend<T: DeviceCopy>(buffer: &mut DeviceBuffer<T>) -> Lent<'_, T> {
    // SAFETY: the buffer is borrowed.
    unsafe { Lent::slice(*buffer.as_slice()) }
}

impl<T: DeviceCopy> Lent<'_, T> {
    /// A part of a buffer of `cust`'s (feature `cust`), such as `buffer.index(10..20)`.
    ///
    /// # Safety
    ///
    /// As for [`Lent::new`].
    pub unsafe fn slice(slice: DeviceSlice<T>) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Lent::new(slice.as_device_ptr().as_raw(), slice.len()) }
    }

    /// The `len` elements at a pointer of `cust`'s (feature `cust`).
    ///
    /// # Safety
    ///
    /// As for [`Lent::new`].
    pub unsafe fn pointer(pointer: DevicePointer<T>, len: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Lent::new(pointer.as_raw(), len) }
    }
}

impl Scheduler {
    /// Takes over a buffer of `cust`'s without copying (feature `cust`). [`Stream::to_cust`] gives it back.
    ///
    /// It stays bound to this device: schedulers of other devices refuse it with [`ArgumentError::ForeignBuffer`].
    ///
    /// When the result is dropped and the last operation that uses it is done, it is freed in stream
    /// order, which waits for nothing.
    ///
    /// # Errors
    ///
    /// [`ArgumentError::NotAllocated`] if it lies in another context or on another device, or
    /// [`DeviceError::ContextLost`](crate::error::DeviceError::ContextLost). The buffer is left as it is then, and
    /// not freed.
    pub fn adopt<T: KernelArg + DeviceCopy>(
        &self,
        buffer: DeviceBuffer<T>,
    ) -> Result<Buffer<T>, Error> {
        // Dropping it would wait for the device.
        let buffer = ManuallyDrop::new(buffer);
        // SAFETY: the buffer was handed over, and has nothing in streams that the application has not ordered.
        unsafe { self.adopt_raw(buffer.as_device_ptr().as_raw(), buffer.len()) }
    }

    /// Frees a buffer in stream order (feature `cust`). Its own `Drop` waits until nothing runs on the
    /// device, and holds up every launch of the process meanwhile.
    ///
    /// # Errors
    ///
    /// As for [`adopt`](Scheduler::adopt).
    pub fn release<T: KernelArg + DeviceCopy>(&self, buffer: DeviceBuffer<T>) -> Result<(), Error> {
        self.adopt(buffer).map(drop)
    }
}

impl Stream {
    /// Converts a buffer that was made on this device to a `DeviceBuffer` (feature `cust`). Waits until every use of it
    /// is done. Newer contents on another device are moved back.
    ///
    /// # Errors
    ///
    /// [`ArgumentError::ForeignBuffer`], [`LaunchError::InputLost`](crate::error::LaunchError::InputLost),
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped), or
    /// [`DeviceError::ContextLost`](crate::error::DeviceError::ContextLost); the buffer is dropped then.
    pub fn to_cust<T: KernelArg + DeviceCopy>(
        &self,
        buffer: Buffer<T>,
    ) -> Result<DeviceBuffer<T>, Error> {
        let len = buffer.len();
        let pointer = match self.to_raw(buffer)? {
            // An empty buffer has an address that `cust` must not free.
            0 => DevicePointer::null(),
            address => DevicePointer::from_raw(address),
        };
        // SAFETY: memory of this many elements, which only the result uses and frees.
        Ok(unsafe { DeviceBuffer::from_raw_parts(pointer, len) })
    }
}
