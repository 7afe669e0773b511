//! `cust`'s memory in launches and buffers.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use cust::memory::{DeviceBuffer, DeviceCopy, DevicePointer, DeviceSlice};
use preempt_device::host::{BufferArg, ReadArg, WriteArg};
use preempt_device::kernel::KernelArg;

use crate::error::{ArgumentError, Error};
use crate::scheduler::Buffer;
use crate::scheduler::{Scheduler, Stream};

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

/// Memory on the device that is lent for `'a`; made by [`lend`].
///
/// Order goes by range, as for [buffers](Buffer#ranges): launches that write disjoint parts of one allocation can run at
/// the same time. Parts that overlap are known as such if one call of `cuMemAlloc` gave them.
pub struct Lent<'a, T> {
    address: u64,
    len: usize,
    borrows: PhantomData<&'a mut [T]>,
}

impl<'a, T: DeviceCopy> Lent<'a, T> {
    /// A part of a buffer, such as `buffer.index(10..20)`.
    ///
    /// # Safety
    ///
    /// During `'a` the memory is not freed, and every use outside the scheduler is ordered with the
    /// launches. It is not that of a [`Buffer`], which is passed as itself.
    pub unsafe fn slice(slice: DeviceSlice<T>) -> Lent<'a, T> {
        let (address, len) = (slice.as_device_ptr().as_raw(), slice.len());
        Lent { address, len, borrows: PhantomData }
    }

    /// The `len` elements at a pointer.
    ///
    /// # Safety
    ///
    /// As [`slice`](Lent::slice), of `len` elements at `pointer`.
    pub unsafe fn pointer(pointer: DevicePointer<T>, len: usize) -> Lent<'a, T> {
        Lent { address: pointer.as_raw(), len, borrows: PhantomData }
    }

    fn argument(&self) -> BufferArg {
        let bytes = self.len.saturating_mul(size_of::<T>());
        BufferArg { address: self.address, len: self.len, bytes, owner: None }
    }
}

// SAFETY: the memory is there during `'a`.
unsafe impl<'a, T: KernelArg + DeviceCopy> ReadArg<'a, T> for &Lent<'a, T> {
    fn read_arg(self) -> BufferArg {
        self.argument()
    }
}

// SAFETY: as above.
unsafe impl<'a, T: KernelArg + DeviceCopy> WriteArg<'a, T> for &mut Lent<'a, T> {
    fn write_arg(self) -> BufferArg {
        self.argument()
    }
}

// SAFETY: an address; elements are plain data, and are touched by launches alone.
unsafe impl<T: DeviceCopy + Send> Send for Lent<'_, T> {}
// SAFETY: as above.
unsafe impl<T: DeviceCopy + Sync> Sync for Lent<'_, T> {}

impl<T> fmt::Debug for Lent<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lent<{}>[{}]", std::any::type_name::<T>(), self.len)
    }
}

/// The name of adoptions in errors.
const ADOPTION: &str = "`adopt`";

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
        let (address, len) = (buffer.as_device_ptr().as_raw(), buffer.len());
        let bytes = len * size_of::<T>();
        let device = &self.device().inner;
        if bytes > 0 && device.allocation(address, bytes)? != Some(address) {
            return Err(Error::Argument(ArgumentError::NotAllocated {
                name: ADOPTION,
                address,
                bytes,
            }));
        }
        device.await_unseen()?;
        if let Some(foreign) = device.backend.memory().foreign() {
            foreign.take_back(address);
        }
        // SAFETY: this context's, and the buffer's alone since it was handed over.
        Ok(unsafe { Buffer::from_parts(self.device(), address, len) })
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
        self.after_all_uses(&buffer)?.wait()?;
        let len = buffer.len();
        let pointer = match len * size_of::<T>() {
            // An empty buffer has an address that `cust` must not free.
            0 => DevicePointer::null(),
            _ => {
                if let Some(foreign) = self.shared().device.inner.backend.memory().foreign() {
                    foreign.give_away(buffer.address());
                }
                DevicePointer::from_raw(buffer.into_address())
            }
        };
        // SAFETY: memory of this many elements, which only the result uses and frees.
        Ok(unsafe { DeviceBuffer::from_raw_parts(pointer, len) })
    }
}
