//! The calls of the CUDA driver that the row without preempt needs: memory, streams and launches in the device's
//! primary context, where the scheduler has its buffers, too.
//!
//! Allocating, freeing and loading may wait for running kernels, so everything is allocated before the first launch
//! and freed after the last.

use std::ffi::{CStr, CString, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use cudarc::driver::sys::{self, CUresult};
use preempt::Call;
use preempt_device::host::{Args, BufferArg, Dim3, Kernel, ReadArg, WriteArg};
use preempt_device::kernel::KernelArg;

/// Turns the result of the driver's function `call` into an error that names it.
fn check(call: &'static str, result: CUresult) -> Result<()> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut name = ptr::null();
    // SAFETY: the function takes any code, and the place for the pointer is valid.
    let found = unsafe { sys::cuGetErrorName(result, &mut name) } == CUresult::CUDA_SUCCESS;
    ensure!(found && !name.is_null(), "{call}: error {}", result as u32);
    // SAFETY: the driver returns a string that it keeps.
    bail!("{call}: {}", unsafe { CStr::from_ptr(name) }.to_string_lossy())
}

/// A device with its primary context, which is kept until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Gpu(sys::CUcontext);

// SAFETY: a handle of the driver, which every thread may use.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Opens the device with this number, and makes its context the calling thread's.
    pub fn open(ordinal: i32) -> Result<Gpu> {
        // SAFETY: this loads the driver's library, which has no requirements.
        let is_present = unsafe { sys::is_culib_present() };
        ensure!(is_present, "there is no CUDA driver (libcuda.so.1) on this machine");
        let (mut device, mut context) = (0, ptr::null_mut());
        // SAFETY: the library is loaded, and the places are valid.
        unsafe {
            check("cuInit", sys::cuInit(0))?;
            check("cuDeviceGet", sys::cuDeviceGet(&mut device, ordinal))?;
            let retained = sys::cuDevicePrimaryCtxRetain(&mut context, device);
            check("cuDevicePrimaryCtxRetain", retained)?;
        }
        let gpu = Gpu(context);
        gpu.make_current()?;
        Ok(gpu)
    }

    /// Makes the context the calling thread's, which each thread needs once before any other call.
    pub fn make_current(self) -> Result<()> {
        // SAFETY: the context is never released.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.0) })
    }
}

/// A loaded module, which stays loaded until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Module(sys::CUmodule);

impl Module {
    /// Loads PTX; no kernel may be running.
    pub fn load(ptx: &str) -> Result<Module> {
        let text = CString::new(ptx)?;
        let mut module = ptr::null_mut();
        // SAFETY: the text ends with a zero, and the place is valid.
        let loaded = unsafe { sys::cuModuleLoadData(&mut module, text.as_ptr().cast()) };
        check("cuModuleLoadData", loaded)?;
        Ok(Module(module))
    }

    /// The plain entry of a kernel.
    pub fn plain(self, kernel: &'static Kernel) -> Result<KernelEntry> {
        let name = CString::new(kernel.plain)?;
        let (mut function, mut registers) = (ptr::null_mut(), 0);
        // SAFETY: the module is never unloaded, the name ends with a zero, and the places are valid. Functions may be
        // loaded at their first use, which is the query of the attribute.
        unsafe {
            let found = sys::cuModuleGetFunction(&mut function, self.0, name.as_ptr());
            check("cuModuleGetFunction", found)?;
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS;
            let found = sys::cuFuncGetAttribute(&mut registers, attribute, function);
            check("cuFuncGetAttribute", found)?;
        }
        Ok(KernelEntry { function, shared_bytes: kernel.shared_bytes })
    }
}

/// A function that can be launched.
#[derive(Clone, Copy, Debug)]
pub struct KernelEntry {
    function: sys::CUfunction,
    shared_bytes: u32,
}

// SAFETY: a handle of the driver, which every thread may use; modules are never unloaded.
unsafe impl Send for KernelEntry {}
// SAFETY: as above.
unsafe impl Sync for KernelEntry {}

/// A launch of a kernel's plain entry.
#[derive(Debug)]
pub struct Launch {
    entry: KernelEntry,
    grid: Dim3,
    block: Dim3,
    /// The address of each parameter, all of them in `_args`.
    parameters: Vec<*mut c_void>,
    _args: Args,
}

impl Launch {
    /// A launch with the grid, block and arguments of `call`, whose kernel `entry` belongs to.
    pub fn plain(entry: KernelEntry, call: Call<'static>) -> Launch {
        let grid = call.grid_dim();
        let block = call.kernel().block.or(call.block_dim()).unwrap_or(Dim3::from(1));
        // More than the driver accepts, if it is more than 32 bits can say.
        let shared_bytes = call.shared_bytes().try_into().unwrap_or(u32::MAX);
        let entry = KernelEntry { shared_bytes, ..entry };
        let args = call.into_args();
        let parameters = args.pointers().map(|parameter| parameter.cast_mut().cast()).collect();
        Launch { entry, grid, block, parameters, _args: args }
    }

    /// Launches the kernel in `stream`.
    ///
    /// # Safety
    ///
    /// Until the kernel has ended, the arguments stay valid, and no other work uses them in ways that the kernel
    /// excludes.
    pub unsafe fn on(&self, stream: &Stream) -> Result<()> {
        let Launch { entry, grid, block, .. } = self;
        let parameters = self.parameters.as_ptr().cast_mut();
        // SAFETY: the parameters are those of the entry, since the call was made for its kernel, and the driver
        // copies them; the rest is the caller's promise.
        let result = unsafe {
            sys::cuLaunchKernel(
                entry.function,
                grid.x,
                grid.y,
                grid.z,
                block.x,
                block.y,
                block.z,
                entry.shared_bytes,
                stream.0,
                parameters,
                ptr::null_mut(),
            )
        };
        check("cuLaunchKernel", result)
    }
}

/// The hardware's priority of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// The lowest priority, which is the default.
    Lowest,
    /// The highest priority.
    Highest,
}

/// A stream that does not synchronise with the default stream.
#[derive(Debug)]
pub struct Stream(sys::CUstream);

// SAFETY: a handle of the driver, which every thread may use.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Creates a stream of this priority.
    pub fn new(level: Level) -> Result<Stream> {
        let (mut lowest, mut highest) = (0, 0);
        let mut stream = ptr::null_mut();
        // SAFETY: the places are valid.
        unsafe {
            let range = sys::cuCtxGetStreamPriorityRange(&mut lowest, &mut highest);
            check("cuCtxGetStreamPriorityRange", range)?;
            let priority = if level == Level::Highest { highest } else { lowest };
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            let created = sys::cuStreamCreateWithPriority(&mut stream, flags, priority);
            check("cuStreamCreateWithPriority", created)?;
        }
        Ok(Stream(stream))
    }

    /// Blocks until all work in the stream is done.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is alive.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.0) })
    }

    /// Spins until all work in the stream is done.
    pub fn spin(&self) -> Result<()> {
        // SAFETY: the stream is alive.
        let query = || unsafe { sys::cuStreamQuery(self.0) };
        loop {
            match query() {
                CUresult::CUDA_ERROR_NOT_READY => std::hint::spin_loop(),
                result => return check("cuStreamQuery", result),
            }
        }
    }

    /// Copies the first elements of `from` to all of `to`.
    ///
    /// # Safety
    ///
    /// `from` is as long as `to`, and both live until the stream has done the copy.
    pub unsafe fn download<T: KernelArg>(&self, from: &Array<T>, to: &Pinned<T>) -> Result<()> {
        let bytes = to.len * size_of::<T>();
        // SAFETY: the caller's promise.
        let result = unsafe { sys::cuMemcpyDtoHAsync_v2(to.host, from.memory.0, bytes, self.0) };
        check("cuMemcpyDtoHAsync", result)
    }

    /// Records `event` when the stream reaches this point.
    pub fn record(&self, event: &Event) -> Result<()> {
        // SAFETY: the stream and the event are alive.
        check("cuEventRecord", unsafe { sys::cuEventRecord(event.0, self.0) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created by `cuStreamCreateWithPriority`. An error has no remedy here.
        unsafe { sys::cuStreamDestroy_v2(self.0) };
    }
}

/// A point in a stream whose time is taken.
#[derive(Debug)]
pub struct Event(sys::CUevent);

impl Event {
    /// An event that is not recorded yet.
    pub fn new() -> Result<Event> {
        let mut event = ptr::null_mut();
        // SAFETY: the place is valid.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, 0) })?;
        Ok(Event(event))
    }

    /// The time from `start` to this event, both of which have happened.
    pub fn since(&self, start: &Event) -> Result<Duration> {
        let mut milliseconds = 0.0;
        // SAFETY: both events are alive, and the place is valid.
        let result = unsafe { sys::cuEventElapsedTime(&mut milliseconds, start.0, self.0) };
        check("cuEventElapsedTime", result)?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by `cuEventCreate`. An error has no remedy here.
        unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}

/// An array in device memory.
#[derive(Debug)]
pub struct Array<T> {
    memory: Arc<Memory>,
    len: usize,
    element: PhantomData<T>,
}

/// The address of an allocation, which is freed with its last owner: an array, or the arguments of a launch.
#[derive(Debug)]
struct Memory(u64);

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated by `cuMemAlloc`. An error has no remedy here.
        unsafe { sys::cuMemFree_v2(self.0) };
    }
}

impl<T: KernelArg> Array<T> {
    /// Allocates `len` elements, all bytes 0.
    pub fn zeroed(len: usize) -> Result<Array<T>> {
        let bytes = (len * size_of::<T>()).max(1);
        let mut address = 0;
        // SAFETY: the place is valid.
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, bytes) })?;
        let array = Array { memory: Arc::new(Memory(address)), len, element: PhantomData };
        // SAFETY: the memory was just allocated with this size. Other streams do not wait for the fill by themselves.
        unsafe {
            check("cuMemsetD8", sys::cuMemsetD8_v2(address, 0, bytes))?;
            check("cuCtxSynchronize", sys::cuCtxSynchronize())?;
        }
        Ok(array)
    }

    /// Allocates a copy of `data`.
    pub fn new(data: &[T]) -> Result<Array<T>> {
        let array = Array::zeroed(data.len())?;
        let (to, from) = (array.memory.0, data.as_ptr().cast());
        // SAFETY: both places hold this many bytes.
        let copied = unsafe { sys::cuMemcpyHtoD_v2(to, from, size_of_val(data)) };
        check("cuMemcpyHtoD", copied)?;
        Ok(array)
    }

    /// The elements; no kernel may be writing them.
    pub fn read(&self) -> Result<Vec<T>> {
        let mut data: Vec<T> = Vec::with_capacity(self.len);
        let (to, bytes) = (data.as_mut_ptr().cast(), self.len * size_of::<T>());
        // SAFETY: both places hold this many bytes.
        check("cuMemcpyDtoH", unsafe { sys::cuMemcpyDtoH_v2(to, self.memory.0, bytes) })?;
        // SAFETY: the copy has filled the elements, and device memory holds valid values of `T`.
        unsafe { data.set_len(self.len) };
        Ok(data)
    }

    /// The array as a kernel's output, for launches that share it and are in one stream.
    pub fn shared(&self) -> impl WriteArg<'static, T> + use<T> {
        Shared(self.argument())
    }

    fn argument(&self) -> BufferArg {
        let owner = Some(self.memory.clone() as _);
        BufferArg { address: self.memory.0, len: self.len, bytes: self.len * size_of::<T>(), owner }
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

struct Shared(BufferArg);

// SAFETY: made of an array of `T`s.
unsafe impl<T: KernelArg> WriteArg<'_, T> for Shared {
    fn write_arg(self) -> BufferArg {
        self.0
    }
}

/// An array in pinned host memory, to which copies from the device are asynchronous.
#[derive(Debug)]
pub struct Pinned<T> {
    host: *mut c_void,
    len: usize,
    element: PhantomData<T>,
}

// SAFETY: an address; elements are read and written whole, by volatile accesses.
unsafe impl<T: KernelArg> Send for Pinned<T> {}
// SAFETY: as above.
unsafe impl<T: KernelArg> Sync for Pinned<T> {}

impl<T: KernelArg> Pinned<T> {
    /// Allocates `len` elements of this `value`.
    pub fn filled(value: T, len: usize) -> Result<Pinned<T>> {
        let mut host = ptr::null_mut();
        let bytes = (len * size_of::<T>()).max(1);
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: the place is valid.
        check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut host, bytes, flags) })?;
        for index in 0..len {
            // SAFETY: the index is in bounds of what was just allocated.
            unsafe { host.cast::<T>().add(index).write_volatile(value) };
        }
        Ok(Pinned { host, len, element: PhantomData })
    }

    /// The element as it is now.
    pub fn get(&self, index: usize) -> T {
        assert!(index < self.len, "element {index} of {}", self.len);
        // SAFETY: the index is in bounds, the element is initialised, and copies from the device are values of `T`.
        unsafe { self.host.cast::<T>().add(index).read_volatile() }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        // SAFETY: allocated by `cuMemHostAlloc`. An error has no remedy here.
        unsafe { sys::cuMemFreeHost(self.host) };
    }
}
