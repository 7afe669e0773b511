//! Arrays on devices.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::{Arc, Weak};

use preempt_device::kernel::KernelArg;

use super::slice::{BufferSlice, BufferSliceMut, DeviceSlice, DeviceSliceMut};
use crate::device::{Contents, Device, Patience, Sleep};
use crate::error::{Error, MemoryError};
use crate::scheduler::runtime::memory::Memory;
use crate::vocabulary::BufferId;

/// An array of `T` in device memory.
///
/// Kernels take `&Buffer<T>` where they read and `&mut Buffer<T>` where they write. Operations
/// that use the same elements run in the order of their submission, on any streams:
/// readers at the same time, a writer alone. The memory is freed when the buffer is
/// dropped and the last operation that uses it is done.
///
/// # Ranges
///
/// Kernels and copies take ranges of a buffer, too: [`slice`](Buffer::slice) gives one to read, and
/// [`slice_mut`](Buffer::slice_mut) one to write. [`split_at_mut`](Buffer::split_at_mut) gives two that are written at the
/// same time. The kernel sees the range as a slice of its own, whose index 0 is the range's first element.
///
/// Order goes by range: operations wait for each other only if their ranges overlap and one of them writes. So launches
/// that write disjoint ranges of one buffer can run at the same time.
///
/// ```
/// # use preempt_device::prelude::*;
/// # #[preemptible(block = 32)]
/// # fn double(x: &[u32], out: SliceMut<u32>) {
/// #     let i = thread::index_1d() as usize;
/// #     if i < out.len() {
/// #         // SAFETY: each thread writes its own element.
/// #         unsafe { out.write(i, 2 * x[i]) }
/// #     }
/// # }
/// # let scheduler = preempt::Scheduler::builder().build()?;
/// # let (one, other) = (scheduler.stream(0), scheduler.stream(0));
/// let x = scheduler.buffer(&[1u32, 2, 3, 4, 5, 6])?;
/// let mut out = scheduler.zeroed::<u32>(6)?;
///
/// // On two streams, and neither waits for the other.
/// let (low, high) = out.split_at_mut(2)?;
/// one.launch(double(x.slice(..2)?, low).threads(2))?;
/// other.launch(double(x.slice(2..)?, high).threads(4))?;
/// // Waits for both.
/// assert_eq!(one.download(&out.slice(1..4)?)?.wait()?, [4, 6, 8]);
///
/// one.upload(vec![0, 0], &mut out.slice_mut(..2)?)?;
/// assert_eq!(one.download(&out)?.wait()?, [0, 0, 6, 8, 10, 12]);
/// # Ok::<(), preempt::Error>(())
/// ```
///
/// A kernel that takes a pointer stays within the range that it is passed: other operations may write what is beside it.
/// In one launch, a range that is written overlaps no other argument
/// ([`ArgumentError::BufferConflict`](crate::error::ArgumentError::BufferConflict)). If a kernel fails, the ranges that it
/// writes are lost, and the rest of the buffer is not.
///
/// # Several devices
///
/// A buffer can be used through the schedulers of several devices, and the order of submission holds across them. Each
/// scheduler copies the contents when an operation needs them and a copy elsewhere is newer. The submission does not wait
/// for that. Readers on several devices share the contents; after a writer they are valid on its device alone. The
/// contents move as a whole: an operation on a range waits for all earlier writes on the other device. It fails if any
/// range is lost there, and then all contents are lost if it was to write.
///
/// Contents go from device to device where [`Device::can_access_peer`](crate::Device::can_access_peer) says so, and through
/// the host's memory elsewhere. A direct copy waits until the memory that it fills is not used any more, and then reads the
/// other device's. Until it is over, later writers there wait, and so does a thread that drops their scheduler (for at most
/// ten seconds). Through the host they do not wait for the device that gets the contents.
///
/// Memory on a device is allocated at the first use there and kept until the buffer is dropped. If there is no room for
/// it, the submission fails with [`MemoryError::OutOfMemory`], and the contents stay valid where they were.
///
/// ```
/// use preempt::{Device, Scheduler};
/// # use preempt_device::prelude::*;
/// # #[preemptible(block = 32)]
/// # fn double(x: SliceMut<u32>) {
/// #     let i = thread::index_1d() as usize;
/// #     // SAFETY: each thread writes its own element.
/// #     unsafe { x.write(i, 2 * x.read(i)) }
/// # }
///
/// let one = Scheduler::builder().device(Device::cpu()?).build()?;
/// let other = Scheduler::builder().device(Device::cpu()?).build()?;
/// let mut x = one.buffer(&[1u32; 64])?;
/// one.stream(0).launch(double(&mut x).grid(2))?;
/// other.stream(0).launch(double(&mut x).grid(2))?;
/// assert_eq!(one.stream(0).download(&x)?.wait()?, [4; 64]);
/// # Ok::<(), preempt::Error>(())
/// ```
///
/// # One writer
///
/// A kernel that writes a buffer has it alone, so one buffer cannot be passed both ways:
///
/// ```compile_fail,E0502
/// # use preempt_device::prelude::*;
/// # #[preemptible(block = 1)]
/// # fn add(a: &[f32], b: &[f32], out: SliceMut<f32>) {}
/// # fn launch(a: preempt::Buffer<f32>, mut out: preempt::Buffer<f32>) {
/// add(&a, &out, &mut out);
/// # }
/// ```
pub struct Buffer<T> {
    pub(crate) memory: Arc<Memory>,
    len: usize,
    element: PhantomData<T>,
}

// SAFETY: a buffer is an address; elements are plain data (`KernelArg: Send`), and are only
// touched by operations that the scheduler orders.
unsafe impl<T> Send for Buffer<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Buffer<T> {}

impl<T: KernelArg> Buffer<T> {
    /// A buffer of `len` elements with these contents; waits for memory if there is none.
    pub(crate) fn new(
        device: &Device,
        len: usize,
        contents: Contents,
        patience: Patience,
        poll: Option<Sleep<'_>>,
    ) -> Result<Buffer<T>, Error> {
        const { assert!(align_of::<T>() <= 256, "device memory is aligned to 256 bytes") };
        let bytes = len.checked_mul(size_of::<T>());
        let bytes = bytes.ok_or(Error::Memory(MemoryError::OutOfMemory { bytes: usize::MAX }))?;
        let inner = &device.inner;
        let address = inner.allocations.allocate(inner, (bytes, contents), patience, poll)?;
        #[cfg(target_os = "linux")]
        // Other devices could not read it.
        let is_bound = contents == Contents::Shared;
        #[cfg(not(target_os = "linux"))]
        let is_bound = false;
        let memory = Memory::new(device, address, bytes, is_bound);
        Ok(Buffer { memory: Arc::new(memory), len, element: PhantomData })
    }

    /// A buffer that holds a copy of `data`; waits for memory if there is none.
    pub(crate) fn from_slice(
        device: &Device,
        data: &[T],
        patience: Patience,
        poll: Option<Sleep<'_>>,
    ) -> Result<Buffer<T>, Error> {
        let buffer = Buffer::new(device, data.len(), Contents::Any, patience, poll)?;
        // SAFETY: just allocated for these elements, and not yet used.
        unsafe { buffer.memory.fill(data.as_ptr().cast()) }?;
        Ok(buffer)
    }
}

impl<T> Buffer<T> {
    /// A buffer of `len` elements in memory that the application has allocated; it stays on this device.
    ///
    /// # Safety
    ///
    /// The allocation starts at `address` and is this device's, and only the buffer uses and frees it from now on.
    pub(crate) unsafe fn from_parts(device: &Device, address: u64, len: usize) -> Buffer<T> {
        let memory = Memory::new(device, address, len * size_of::<T>(), true);
        device.inner.allocations.take(memory.bytes);
        Buffer { memory: Arc::new(memory), len, element: PhantomData }
    }

    /// The address of the memory at home, which the caller must free from now on.
    pub(crate) fn into_address(self) -> u64 {
        self.memory.give_away();
        self.memory.address()
    }
}

impl<T> Buffer<T> {
    /// Its name in every engine, and what tells whether it is there.
    pub(crate) fn named(&self) -> (BufferId, Weak<dyn Any + Send + Sync>) {
        let memory = Arc::downgrade(&self.memory);
        (self.memory.id, memory)
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first element on the device that the buffer was made on; on the CPU device, an address of
    /// this process.
    ///
    /// Operations in flight may use the memory, and the scheduler does not see accesses by address. Newer contents may
    /// be on another device; opaque work that names the buffer finds them here.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// A range of the elements, to read.
    ///
    /// # Errors
    ///
    /// [`ArgumentError::OutOfRange`](crate::error::ArgumentError::OutOfRange).
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<BufferSlice<'_, T>, Error> {
        self.as_slice().slice(range)
    }

    /// A range of the elements, to write.
    ///
    /// # Errors
    ///
    /// [`ArgumentError::OutOfRange`](crate::error::ArgumentError::OutOfRange).
    pub fn slice_mut(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Result<BufferSliceMut<'_, T>, Error> {
        self.as_slice_mut().narrowed(range)
    }

    /// The elements before `mid` and those from `mid` on, for operations that write both at the same time.
    ///
    /// # Errors
    ///
    /// [`ArgumentError::OutOfRange`](crate::error::ArgumentError::OutOfRange) if there are fewer than `mid` elements.
    pub fn split_at_mut(
        &mut self,
        mid: usize,
    ) -> Result<(BufferSliceMut<'_, T>, BufferSliceMut<'_, T>), Error> {
        self.as_slice_mut().split_at_mut(mid)
    }
}

impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer<{}>[{}]", std::any::type_name::<T>(), self.len)
    }
}
