//! Memory by its address, in launches and buffers.

use std::fmt;
use std::marker::PhantomData;

use preempt_device::host::{BufferArg, ReadArg, WriteArg};
use preempt_device::kernel::KernelArg;

use crate::error::{ArgumentError, Error};
use crate::scheduler::{Buffer, Scheduler, Stream};

/// Memory on the device that is lent to launches for `'a`, to read and write.
///
/// `&Lent` is passed where a kernel reads, and `&mut Lent` where it writes, to any number of launches. Launches that use the
/// same memory run in the order in which they are submitted, on whatever streams.
///
/// Order goes by range, as for [buffers](Buffer#ranges): launches that write disjoint parts of one allocation can run at
/// the same time. Parts that overlap are known as such if one call of `cuMemAlloc` or `cuMemAllocAsync` gave them.
pub struct Lent<'a, T> {
    address: u64,
    len: usize,
    borrows: PhantomData<&'a mut [T]>,
}

/// Memory on the device that is lent to launches for `'a`, to read; see [`Lent`].
pub struct LentRead<'a, T> {
    address: u64,
    len: usize,
    borrows: PhantomData<&'a [T]>,
}

impl<T> Lent<'_, T> {
    /// The `len` elements at a `CUdeviceptr`.
    ///
    /// # Safety
    ///
    /// During `'a` the memory is not freed, and every use outside the scheduler is ordered with the launches. It is not
    /// that of a [`Buffer`], which is passed as itself.
    pub unsafe fn new(address: u64, len: usize) -> Self {
        Lent { address, len, borrows: PhantomData }
    }
}

impl<T> LentRead<'_, T> {
    /// The `len` elements at a `CUdeviceptr`.
    ///
    /// # Safety
    ///
    /// As for [`Lent::new`]; other code may read the memory at any time.
    pub unsafe fn new(address: u64, len: usize) -> Self {
        LentRead { address, len, borrows: PhantomData }
    }
}

fn argument<T>(address: u64, len: usize) -> BufferArg {
    BufferArg { address, len, bytes: len.saturating_mul(size_of::<T>()), owner: None }
}

// SAFETY: the memory is there during `'a`.
unsafe impl<'a, T: KernelArg> ReadArg<'a, T> for &Lent<'a, T> {
    fn read_arg(self) -> BufferArg {
        argument::<T>(self.address, self.len)
    }
}

// SAFETY: as above.
unsafe impl<'a, T: KernelArg> WriteArg<'a, T> for &mut Lent<'a, T> {
    fn write_arg(self) -> BufferArg {
        argument::<T>(self.address, self.len)
    }
}

// SAFETY: as above.
unsafe impl<'a, T: KernelArg> ReadArg<'a, T> for &LentRead<'a, T> {
    fn read_arg(self) -> BufferArg {
        argument::<T>(self.address, self.len)
    }
}

impl<T> fmt::Debug for Lent<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lent<{}>[{}]", std::any::type_name::<T>(), self.len)
    }
}

impl<T> fmt::Debug for LentRead<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LentRead<{}>[{}]", std::any::type_name::<T>(), self.len)
    }
}

/// The name of adoptions in errors.
const ADOPTION: &str = "an adoption";

impl Scheduler {
    /// Takes over an allocation, by its `CUdeviceptr`, without copying. [`Stream::to_raw`] gives it back.
    ///
    /// It stays bound to this device: schedulers of other devices refuse it with [`ArgumentError::ForeignBuffer`].
    ///
    /// When the result is dropped and the last operation that uses it is done, it is freed in stream
    /// order, which waits for nothing. `cuMemFree` would wait until nothing runs on the device, and hold up every
    /// launch of the process meanwhile.
    ///
    /// # Errors
    ///
    /// [`ArgumentError::NotAllocated`] if no allocation of the device's context starts there and is that long, or
    /// [`DeviceError::ContextLost`](crate::error::DeviceError::ContextLost). The memory is left as it is then, and
    /// not freed.
    ///
    /// # Safety
    ///
    /// `cuMemAlloc`, `cuMemAllocAsync` or their like gave the address, and only the result uses and frees the memory
    /// from now on. What was put into streams for it before is done. The elements are of this type.
    pub unsafe fn adopt_raw<T: KernelArg>(
        &self,
        address: u64,
        len: usize,
    ) -> Result<Buffer<T>, Error> {
        let bytes = len.saturating_mul(size_of::<T>());
        let device = &self.device().inner;
        if bytes > 0 && device.allocation(address, bytes)? != Some(address) {
            let name = ADOPTION;
            return Err(Error::Argument(ArgumentError::NotAllocated { name, address, bytes }));
        }
        device.await_unseen()?;
        if let Some(foreign) = device.backend.memory().foreign() {
            foreign.take_back(address);
        }
        // SAFETY: this context's, and the caller promises that it is the buffer's alone.
        Ok(unsafe { Buffer::from_parts(self.device(), address, len) })
    }
}

impl Stream {
    /// Gives the memory of a buffer that was made on this device to the application: its `CUdeviceptr`, which is to be freed
    /// by `cuMemFreeAsync`, or by `cuMemFree`, which waits for all that runs. Waits until every use of it is done.
    /// Newer contents on another device are moved back. A buffer without elements has no memory, and gives 0.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoContext`](crate::error::DeviceError::NoContext) on a device that is no GPU,
    /// [`ArgumentError::ForeignBuffer`], [`ArgumentError::NotGivenAway`],
    /// [`LaunchError::InputLost`](crate::error::LaunchError::InputLost),
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped), or
    /// [`DeviceError::ContextLost`](crate::error::DeviceError::ContextLost); the buffer is dropped then.
    pub fn to_raw<T: KernelArg>(&self, buffer: Buffer<T>) -> Result<u64, Error> {
        // Memory that the driver did not give it cannot free.
        let device = &self.shared().device.inner;
        device.backend.streams()?;
        #[cfg(target_os = "linux")]
        if device.backend.memory().shared(buffer.address()).is_some() {
            return Err(Error::Argument(ArgumentError::NotGivenAway));
        }
        self.after_all_uses(&buffer)?.wait()?;
        if buffer.len() * size_of::<T>() == 0 {
            return Ok(0);
        }
        if let Some(foreign) = self.shared().device.inner.backend.memory().foreign() {
            foreign.give_away(buffer.address());
        }
        Ok(buffer.into_address())
    }
}
