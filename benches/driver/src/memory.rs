//! Arrays on the device, and on the host where the device reads and writes them.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::Arc;
use std::{fmt, ptr};

use cudarc::driver::sys;
use preempt_device::host::{BufferArg, ReadArg, WriteArg};
use preempt_device::kernel::KernelArg;

use crate::gpu::{Error, check};

/// An array in device memory, which is freed when nothing uses it: it must not be dropped while
/// kernels run.
pub struct Array<T> {
    memory: Arc<Memory>,
    len: usize,
    element: PhantomData<T>,
}

struct Memory {
    address: u64,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated by `cuMemAlloc`. Nothing can be done about an error.
        unsafe { sys::cuMemFree_v2(self.address) };
    }
}

impl<T: KernelArg> Array<T> {
    /// An array of `len` elements, all bytes 0.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn zeroed(len: usize) -> Result<Array<T>, Error> {
        let bytes = (len * size_of::<T>()).max(1);
        let mut address = 0;
        // SAFETY: the place is valid.
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, bytes) })?;
        let array = Array { memory: Arc::new(Memory { address }), len, element: PhantomData };
        // SAFETY: just allocated with this size.
        check("cuMemsetD8", unsafe { sys::cuMemsetD8_v2(address, 0, bytes) })?;
        // SAFETY: waits; other streams do not wait for the fill.
        check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })?;
        Ok(array)
    }

    /// A copy of `data`.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn new(data: &[T]) -> Result<Array<T>, Error> {
        let array = Array::zeroed(data.len())?;
        let from = data.as_ptr().cast();
        // SAFETY: both places hold this many bytes.
        let copied = unsafe { sys::cuMemcpyHtoD_v2(array.address(), from, size_of_val(data)) };
        check("cuMemcpyHtoD", copied)?;
        Ok(array)
    }

    /// The elements, when nothing writes them.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn read(&self) -> Result<Vec<T>, Error> {
        let mut data: Vec<T> = Vec::with_capacity(self.len);
        let (to, bytes) = (data.as_mut_ptr().cast(), self.len * size_of::<T>());
        // SAFETY: both places hold this many bytes.
        check("cuMemcpyDtoH", unsafe { sys::cuMemcpyDtoH_v2(to, self.address(), bytes) })?;
        // SAFETY: the copy has filled them, and device memory holds valid values of `T`.
        unsafe { data.set_len(self.len) };
        Ok(data)
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device address of the first element.
    pub fn address(&self) -> u64 {
        self.memory.address
    }

    /// The number of bytes.
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// The array as a kernel's output, for launches that share it and order themselves.
    pub fn target(&self) -> impl WriteArg<'static, T> + use<T> {
        Target(self.argument())
    }

    fn argument(&self) -> BufferArg {
        let owner = Some(self.memory.clone() as _);
        BufferArg { address: self.address(), len: self.len, bytes: self.bytes(), owner }
    }
}

impl<T> fmt::Debug for Array<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array<{}>[{}]", std::any::type_name::<T>(), self.len)
    }
}

// SAFETY: the owner is the memory that the address is in.
unsafe impl<T: KernelArg> ReadArg<'_, T> for &Array<T> {
    fn read_arg(self) -> BufferArg {
        self.argument()
    }
}

// SAFETY: as above.
unsafe impl<T: KernelArg> WriteArg<'_, T> for &mut Array<T> {
    fn write_arg(self) -> BufferArg {
        self.argument()
    }
}

struct Target(BufferArg);

// SAFETY: made of an array of `T`s.
unsafe impl<T: KernelArg> WriteArg<'_, T> for Target {
    fn write_arg(self) -> BufferArg {
        self.0
    }
}

/// An array in pinned host memory, which the device reads and writes over the bus. It must not be dropped while kernels
/// run.
pub struct Pinned<T> {
    memory: Arc<HostMemory>,
    len: usize,
    element: PhantomData<T>,
}

struct HostMemory {
    host: *mut c_void,
    address: u64,
}

// SAFETY: an address; what is there is only read and written whole, by volatile accesses.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: allocated by `cuMemHostAlloc`. Nothing can be done about an error.
        unsafe { sys::cuMemFreeHost(self.host) };
    }
}

impl<T: KernelArg> Pinned<T> {
    /// An array of `len` elements of this `value`.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn filled(value: T, len: usize) -> Result<Pinned<T>, Error> {
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        let (mut host, mut address) = (ptr::null_mut(), 0);
        let bytes = (len * size_of::<T>()).max(1);
        // SAFETY: the places are valid, and the host's memory is.
        unsafe {
            check("cuMemHostAlloc", sys::cuMemHostAlloc(&mut host, bytes, flags))?;
            let found = sys::cuMemHostGetDevicePointer_v2(&mut address, host, 0);
            check("cuMemHostGetDevicePointer", found)?;
        }
        let memory = Arc::new(HostMemory { host, address });
        let pinned = Pinned { memory, len, element: PhantomData };
        (0..len).for_each(|index| pinned.set(index, value));
        Ok(pinned)
    }

    fn element(&self, index: usize) -> *mut T {
        assert!(index < self.len, "element {index} of {}", self.len);
        // SAFETY: in bounds.
        unsafe { self.memory.host.cast::<T>().add(index) }
    }

    /// The element as it is now.
    #[inline]
    pub fn get(&self, index: usize) -> T {
        // SAFETY: in bounds and initialised; what a kernel writes are values of `T`.
        unsafe { self.element(index).read_volatile() }
    }

    /// Sets an element.
    pub fn set(&self, index: usize, value: T) {
        // SAFETY: in bounds.
        unsafe { self.element(index).write_volatile(value) }
    }

    /// The host address of the first element.
    pub fn host(&self) -> *mut T {
        self.memory.host.cast()
    }

    /// The device address of the first element.
    pub fn address(&self) -> u64 {
        self.memory.address
    }

    /// The number of bytes.
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }
}

impl<T> fmt::Debug for Pinned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned<{}>[{}]", std::any::type_name::<T>(), self.len)
    }
}

// SAFETY: the owner is the memory that the address is in.
unsafe impl<T: KernelArg> WriteArg<'_, T> for &mut Pinned<T> {
    fn write_arg(self) -> BufferArg {
        let owner = Some(self.memory.clone() as _);
        let bytes = self.len * size_of::<T>();
        BufferArg { address: self.memory.address, len: self.len, bytes, owner }
    }
}
