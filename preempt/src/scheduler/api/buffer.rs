//! Arrays on devices.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use preempt_device::host::{BufferArg, ReadArg, WriteArg};
use preempt_device::kernel::KernelArg;

use crate::device::{Device, Patience, Sleep};
use crate::error::{Error, MemoryError};
use crate::scheduler::runtime::memory::Memory;

/// An array of `T` in device memory.
///
/// Kernels take `&Buffer<T>` where they read and `&mut Buffer<T>` where they write. Operations
/// that use the same buffer run in the order of their submission, on any streams:
/// readers at the same time, a writer alone. The buffer counts as a whole: launches that write
/// different parts of one buffer run one after the other. The memory is freed when the buffer is
/// dropped and the last operation that uses it is done.
///
/// # Several devices
///
/// A buffer can be used through the schedulers of several devices, and the order of submission holds across them. Each
/// scheduler copies the contents, through the host, when an operation needs them and a copy elsewhere is newer. The
/// submission does not wait for that. Readers on several devices share the contents; after a writer they are valid on
/// its device alone.
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
    /// A buffer of `len` elements, all bytes 0; waits for memory if there is none.
    pub(crate) fn zeroed(
        device: &Device,
        len: usize,
        patience: Patience,
        poll: Option<Sleep<'_>>,
    ) -> Result<Buffer<T>, Error> {
        const { assert!(align_of::<T>() <= 256, "device memory is aligned to 256 bytes") };
        let bytes = len.checked_mul(size_of::<T>());
        let bytes = bytes.ok_or(Error::Memory(MemoryError::OutOfMemory { bytes: usize::MAX }))?;
        let inner = &device.inner;
        let address = inner.allocations.allocate(inner, bytes, patience, poll)?;
        let memory = Memory::new(device, address, bytes, false);
        Ok(Buffer { memory: Arc::new(memory), len, element: PhantomData })
    }

    /// A buffer that holds a copy of `data`; waits for memory if there is none.
    pub(crate) fn from_slice(
        device: &Device,
        data: &[T],
        patience: Patience,
        poll: Option<Sleep<'_>>,
    ) -> Result<Buffer<T>, Error> {
        let buffer = Buffer::zeroed(device, data.len(), patience, poll)?;
        // SAFETY: just allocated for these elements, and not yet used.
        unsafe { buffer.memory.fill(data.as_ptr().cast()) }?;
        Ok(buffer)
    }
}

#[cfg(feature = "cust")]
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

    fn argument(&self) -> BufferArg {
        let owner = Some(self.memory.clone() as Arc<dyn Any + Send + Sync>);
        let (address, bytes) = (self.memory.address(), self.memory.bytes);
        BufferArg { address, len: self.len, bytes, owner }
    }
}

impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer<{}>[{}]", std::any::type_name::<T>(), self.len)
    }
}

// SAFETY: the owner is the memory that the address is in.
unsafe impl<T: KernelArg> ReadArg<'_, T> for &Buffer<T> {
    fn read_arg(self) -> BufferArg {
        self.argument()
    }
}

// SAFETY: as above.
unsafe impl<T: KernelArg> WriteArg<'_, T> for &mut Buffer<T> {
    fn write_arg(self) -> BufferArg {
        self.argument()
    }
}
