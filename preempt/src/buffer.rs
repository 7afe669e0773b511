//! Memory on a device.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use preempt_device::host::{BufferArg, ReadArg, WriteArg};
use preempt_device::kernel::KernelArg;

use crate::device::{Allocations, Backend, Device, Patience, Sleep};
use crate::error::{Error, MemoryError};
use crate::vocabulary::BufferId;

/// An array of `T` in device memory.
///
/// Kernels take `&Buffer<T>` where they read and `&mut Buffer<T>` where they write. Operations
/// that use the same buffer run in the order in which they were submitted, on whatever streams:
/// readers at the same time, a writer alone. The buffer counts as a whole: launches that write
/// different parts of one buffer run one after the other. The memory is freed when the buffer is
/// dropped and the last operation that uses it is done.
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

/// What operations in flight keep alive.
pub(crate) struct Memory {
    pub address: u64,
    pub id: BufferId,
    pub device: u64,
    bytes: usize,
    backend: Arc<dyn Backend>,
    /// Counts it until it is freed.
    allocations: Arc<Allocations>,
    /// Whether somebody else has the memory now.
    is_gone: AtomicBool,
}

impl Memory {
    /// Memory that is freed with this, and counted until then.
    fn new(device: &Device, address: u64, bytes: usize) -> Memory {
        // Relaxed below: only the number counts.
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Memory {
            address,
            id: BufferId::Own(NEXT_ID.fetch_add(1, Ordering::Relaxed)),
            device: device.inner.id,
            bytes,
            backend: device.inner.backend.clone(),
            allocations: device.inner.allocations.clone(),
            is_gone: AtomicBool::new(false),
        }
    }
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
        let memory = Memory::new(device, address, bytes);
        Ok(Buffer { memory: Arc::new(memory), len, element: PhantomData })
    }

    /// A buffer that holds a copy of `data`.
    pub(crate) fn from_slice(
        device: &Device,
        data: &[T],
        patience: Patience,
        poll: Option<Sleep<'_>>,
    ) -> Result<Buffer<T>, Error> {
        let buffer = Buffer::zeroed(device, data.len(), patience, poll)?;
        let memory = buffer.memory.backend.memory();
        // SAFETY: just allocated with this size, and nobody else knows of it.
        unsafe { memory.fill(buffer.memory.address, data.as_ptr().cast(), size_of_val(data)) }?;
        Ok(buffer)
    }
}

#[cfg(feature = "cust")]
impl<T> Buffer<T> {
    /// Memory of `len` elements that somebody else has allocated; 0 of them if that is `len`.
    ///
    /// # Safety
    ///
    /// The allocation starts at `address`, is this device's, and nobody else uses or frees it.
    pub(crate) unsafe fn from_parts(device: &Device, address: u64, len: usize) -> Buffer<T> {
        let memory = Memory::new(device, address, len * size_of::<T>());
        memory.allocations.take(memory.bytes);
        Buffer { memory: Arc::new(memory), len, element: PhantomData }
    }

    /// Where the memory is, which is the caller's from now on: nobody frees it.
    pub(crate) fn into_address(self) -> u64 {
        // Relaxed: dropping the references orders it before the last one is dropped.
        self.memory.is_gone.store(true, Ordering::Relaxed);
        self.memory.address
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

    /// The device address of the first element; on the CPU device, an address of this process.
    ///
    /// Operations in flight may use the memory, and the scheduler does not know of those who go
    /// there by address.
    pub fn address(&self) -> u64 {
        self.memory.address
    }

    fn argument(&self) -> BufferArg {
        let owner = Some(self.memory.clone() as Arc<dyn Any + Send + Sync>);
        let Memory { address, bytes, .. } = *self.memory;
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

impl Drop for Memory {
    fn drop(&mut self) {
        if !*self.is_gone.get_mut() {
            // SAFETY: allocated with this size; operations hold the memory until they are done.
            unsafe { self.backend.memory().free(self.address, self.bytes) }
        }
        self.allocations.give_back(self.bytes, Some(self.id));
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x}", self.bytes, self.address)
    }
}
