//! A driver without a GPU: streams are threads, device memory is the host's, and blocks run the real worker loop one
//! after the other. It has enough of the driver for the device layer, and is stricter than a GPU: it notes every use of
//! freed memory, and accesses by two streams that nothing orders.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use cudarc::driver::sys;
use preempt::faults;

mod application;
mod entries;
mod graphs;
mod kernels;
mod memory;
mod panics;
mod parts;
mod peers;
mod saves;
mod shares;
mod transfers;

pub use application::{TheirEvent, TheirStream, their_context};
pub use entries::proxies;
use entries::{Entry, launch};
use graphs::{FakeExecutable, FakeGraph};
pub use kernels::hold_spinning;
use kernels::{SLOTS, SMS};
use memory::{FakePool, Kind, State, allocate, lent, release, state};
pub use memory::{Lent, live, live_after, violations};
use panics::{FakeFunction, FakeModule, failed};
pub use panics::{Trace, held, hold_panics, launched, let_panic};
use parts::context;
pub use peers::{PeerKind, peer_copies, set_peers};
pub use transfers::host_sides;

type Code = u32;

const INVALID_VALUE: Code = 1;
const OUT_OF_MEMORY: Code = 2;
const INVALID_CONTEXT: Code = 201;
const NOT_FOUND: Code = 500;
const NOT_READY: Code = 600;

/// Devices of this driver. All memory that is lent is of the first one.
pub const DEVICES: c_int = 3;

/// The stream of calls that name none.
const LEGACY_STREAM: usize = 1;

/// Bytes of device memory.
const MEMORY: usize = 1 << 33;

/// Bytes of device memory that no process has.
pub const FREE: usize = MEMORY / 2;

/// Bytes that the pool has from the system and no buffer has.
pub const RESERVED: usize = 1 << 20;

/// Grids of each device that are launched and not over.
static GRIDS: [AtomicUsize; DEVICES as usize] = [const { AtomicUsize::new(0) }; DEVICES as usize];

/// What a query says: a kernel that failed since the call began has not completed.
fn completed(is_done: bool) -> Code {
    match (is_done, failed()) {
        (_, Some(code)) => code,
        (true, None) => 0,
        (false, None) => NOT_READY,
    }
}

fn grids(context: usize) -> &'static AtomicUsize {
    &GRIDS[parts::device(context)]
}

thread_local! {
    static CURRENT: Cell<sys::CUcontext> = const { Cell::new(ptr::null_mut()) };
    static RANDOM: Cell<u64> = const { Cell::new(0) };
}

/// Whether this thread has a current context.
pub fn has_context() -> bool {
    !CURRENT.get().is_null()
}

/// Waits for all running grids of the current context's device, like a driver that pins or frees memory.
fn await_grids() {
    await_grids_of(CURRENT.get().addr());
}

fn await_grids_of(context: usize) {
    while grids(context).load(Ordering::Acquire) > 0 && failed().is_none() {
        thread::sleep(Duration::from_micros(50));
    }
}

fn random(below: u64) -> u64 {
    RANDOM.with(|state| {
        let mut random = preempt_test_kit::Random(state.get());
        let bits = random.bits();
        state.set(random.0);
        bits % below
    })
}

type Job = Box<dyn FnOnce() + Send>;

struct FakeStream {
    jobs: Mutex<Option<Sender<Job>>>,
    queued: AtomicU64,
    done: &'static AtomicU64,
    /// The context that it was created in.
    context: usize,
}

impl FakeStream {
    fn start() -> *mut FakeStream {
        static STREAMS: AtomicU64 = AtomicU64::new(1);
        let (sender, receiver) = channel::<Job>();
        let done: &'static AtomicU64 = Box::leak(Box::default());
        let number = STREAMS.fetch_add(1, Ordering::Relaxed);
        thread::spawn(move || {
            RANDOM.set(number);
            for job in receiver {
                if failed().is_none() {
                    job();
                }
                done.fetch_add(1, Ordering::Release);
            }
        });
        let jobs = Mutex::new(Some(sender));
        Box::into_raw(Box::new(FakeStream {
            jobs,
            queued: AtomicU64::new(0),
            done,
            context: CURRENT.get().addr(),
        }))
    }

    fn put(&self, job: impl FnOnce() + Send + 'static) -> Code {
        parts::check(self.context, "work for a stream");
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(jobs) = &*jobs else {
            state().violation("work for a stream that was destroyed".into());
            return 400;
        };
        self.queued.fetch_add(1, Ordering::Relaxed);
        jobs.send(Box::new(job)).map_or(999, |()| 0)
    }

    /// Queues work that uses memory: `(range, kind of memory, whether it is written)`. Every third piece is slow.
    fn put_access(
        &self,
        what: &'static str,
        uses: Vec<(Range<usize>, Option<Kind>, bool)>,
        access: impl FnOnce(&mut State) + Send + 'static,
    ) -> Code {
        let ranges: Vec<_> =
            uses.iter().map(|(range, _, writes)| (range.clone(), *writes)).collect();
        let context = self.context;
        let id = state().queue((ptr::from_ref(self).addr(), context), &ranges, what);
        let is_before_failure = faults::failures() == 0;
        self.put(move || {
            if is_before_failure && faults::failures() > 0 {
                // After the call that failed, so that memory that was freed too early is found.
                thread::sleep(Duration::from_millis(3));
            }
            if random(3) == 0 {
                thread::sleep(Duration::from_micros(50 + random(400)));
            }
            let mut state = state();
            // Freed meanwhile, as it may be. Otherwise it takes place: perhaps nothing was made of what the call told.
            let is_over = uses.iter().any(|(range, ..)| {
                state.holds(range).is_none() && state.is_over(context, range.start)
            });
            if !is_over && uses.iter().all(|(range, kind, _)| state.check(range, *kind, what)) {
                access(&mut state);
            }
            state.accesses.retain(|access| access.id != id);
        })
    }

    fn launch(&self, grid: impl FnOnce() + Send + 'static) -> Code {
        if CURRENT.get().addr() != self.context {
            state().violation("a launch in a stream of a context that is not current".into());
        }
        let grids = grids(self.context);
        grids.fetch_add(1, Ordering::Relaxed);
        self.put(|| {
            grid();
            grids.fetch_sub(1, Ordering::Release);
        })
    }
}

/// The place in a stream where it was recorded last.
#[derive(Default)]
struct FakeEvent(Mutex<Option<(&'static AtomicU64, u64)>>, AtomicBool);

impl FakeEvent {
    fn record(&self, stream: &FakeStream) {
        self.look();
        let place = (stream.done, stream.queued.load(Ordering::Relaxed));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
    }

    fn has_completed(&self) -> bool {
        self.look();
        let place = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        place.is_none_or(|(done, queued)| done.load(Ordering::Acquire) >= queued)
    }

    /// It stays where it is, so that a later use is found.
    fn destroy(&self) {
        self.look();
        self.1.store(true, Ordering::Relaxed);
    }

    fn look(&self) {
        if self.1.load(Ordering::Relaxed) {
            state().violation("an event that was destroyed is used".into());
        }
    }
}

/// How functions begin that need no current context.
const ANYWHERE: [&str; 5] = ["cuInit", "cuDriver", "cuDev", "cuCtx", "cuGreenCtx"];

macro_rules! driver {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(const _: unsafe fn($($type),*) -> sys::CUresult = sys::$name;)*

        /// A function of this driver.
        pub fn find(name: &'static str) -> Option<*const c_void> {
            $(
                #[allow(non_snake_case, unused_variables, unused_unsafe, reason = "the driver's")]
                unsafe extern "C" fn $name($($argument: $type),*) -> Code {
                    if let Some(code) = failed().filter(|_| !stringify!($name).starts_with("cuCtx")) {
                        return code;
                    }
                    if !ANYWHERE.iter().any(|start| stringify!($name).starts_with(start)) {
                        if CURRENT.get().is_null() {
                            let what = concat!("no context is current: ", stringify!($name));
                            state().violation(what.into());
                            return INVALID_CONTEXT;
                        }
                        parts::check(CURRENT.get().addr(), stringify!($name));
                    }
                    // SAFETY: the device layer calls each as the driver's manual says.
                    unsafe { $body }
                }
            )*
            match name {
                $(stringify!($name) => Some($name as *const c_void),)*
                _ => None,
            }
        }
    };
}

driver! {
    fn cuInit(flags: c_uint) { 0 }
    fn cuDriverGetVersion(version: *mut c_int) { *version = 12_080; 0 }
    fn cuDeviceGetCount(count: *mut c_int) { *count = DEVICES; 0 }
    fn cuDeviceGet(device: *mut sys::CUdevice, ordinal: c_int) { *device = ordinal; 0 }
    fn cuDeviceGetName(name: *mut c_char, bytes: c_int, device: sys::CUdevice) {
        ptr::copy_nonoverlapping(c"fake".as_ptr(), name, 5);
        0
    }
    fn cuDeviceGetAttribute(
        value: *mut c_int, attribute: sys::CUdevice_attribute, device: sys::CUdevice
    ) {
        use sys::CUdevice_attribute_enum::*;
        *value = match attribute {
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => 9,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => 0,
            CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => SMS as c_int,
            CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR => SLOTS as c_int,
            CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR => 2048,
            CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR => 65_536,
            CU_DEVICE_ATTRIBUTE_WARP_SIZE => 32,
            // Clocks tick in nanoseconds.
            CU_DEVICE_ATTRIBUTE_CLOCK_RATE => 1_000_000,
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => 228 << 10,
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => 227 << 10,
            _ => 1,
        };
        0
    }
    fn cuDevicePrimaryCtxRetain(context: *mut sys::CUcontext, device: sys::CUdevice) {
        parts::retain(device);
        *context = self::context(device).cast();
        0
    }
    fn cuDeviceCanAccessPeer(
        can: *mut c_int, device: sys::CUdevice, peer: sys::CUdevice
    ) {
        *can = c_int::from(peers::are_there());
        0
    }
    fn cuMemPoolSetAccess(
        pool: sys::CUmemoryPool, access: *const sys::CUmemAccessDesc, count: usize
    ) {
        let owner = context((*pool.cast::<FakePool>()).device).addr();
        let user = context((*access).location.id).addr();
        [owner, user].into_iter().for_each(await_grids_of);
        peers::open(owner, user);
        0
    }
    fn cuDevicePrimaryCtxRelease_v2(device: sys::CUdevice) {
        parts::release_primary(device);
        0
    }
    fn cuDeviceGetDevResource(
        device: sys::CUdevice, resource: *mut sys::CUdevResource, kind: sys::CUdevResourceType
    ) {
        let Some(whole) = parts::whole(kind) else { return INVALID_VALUE };
        *resource = whole;
        0
    }
    fn cuDevSmResourceSplitByCount(
        groups: *mut sys::CUdevResource, count: *mut c_uint, all: *const sys::CUdevResource,
        rest: *mut sys::CUdevResource, flags: c_uint, size: c_uint
    ) { parts::split(groups, count, all, rest, size) }
    fn cuDevResourceGenerateDesc(
        description: *mut sys::CUdevResourceDesc, resources: *mut sys::CUdevResource, count: c_uint
    ) {
        let resources = std::slice::from_raw_parts(resources, count as usize);
        let Some(of_sms) = parts::description(resources) else { return INVALID_VALUE };
        *description = of_sms;
        0
    }
    fn cuGreenCtxCreate(
        part: *mut sys::CUgreenCtx, description: sys::CUdevResourceDesc, device: sys::CUdevice,
        flags: c_uint
    ) {
        match parts::create(description, device, flags) {
            Ok(made) => {
                *part = made;
                0
            }
            Err(code) => code,
        }
    }
    fn cuGreenCtxDestroy(part: sys::CUgreenCtx) { parts::destroy(part) }
    fn cuCtxFromGreenCtx(context: *mut sys::CUcontext, part: sys::CUgreenCtx) {
        let Some(own) = parts::context_of(part) else { return INVALID_CONTEXT };
        *context = own;
        0
    }
    fn cuCtxGetCurrent(context: *mut sys::CUcontext) { *context = CURRENT.get(); 0 }
    fn cuCtxSetCurrent(context: sys::CUcontext) {
        if !parts::check(context.addr(), "cuCtxSetCurrent") {
            return INVALID_CONTEXT;
        }
        CURRENT.set(context);
        0
    }
    fn cuCtxGetDevice(device: *mut sys::CUdevice) {
        match CURRENT.get().addr() {
            0 => INVALID_CONTEXT,
            context => {
                *device = parts::device(context) as sys::CUdevice;
                0
            }
        }
    }
    fn cuCtxGetLimit(value: *mut usize, limit: sys::CUlimit) { *value = 1 << 20; 0 }
    fn cuCtxSetLimit(limit: sys::CUlimit, value: usize) { 0 }
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        (*least, *greatest) = (0, -5);
        0
    }
    fn cuStreamCreateWithPriority(stream: *mut sys::CUstream, flags: c_uint, priority: c_int) {
        *stream = FakeStream::start().cast();
        0
    }
    fn cuStreamDestroy_v2(stream: sys::CUstream) {
        let stream = &*stream.cast::<FakeStream>();
        parts::check(stream.context, "cuStreamDestroy");
        *stream.jobs.lock().unwrap_or_else(PoisonError::into_inner) = None;
        0
    }
    fn cuStreamQuery(stream: sys::CUstream) {
        if stream.addr() == LEGACY_STREAM {
            return 0;
        }
        let stream = &*stream.cast::<FakeStream>();
        let queued = stream.queued.load(Ordering::Relaxed);
        completed(stream.done.load(Ordering::Acquire) >= queued)
    }
    fn cuStreamIsCapturing(stream: sys::CUstream, status: *mut sys::CUstreamCaptureStatus) {
        let is_captured = application::is_captured(stream.cast());
        status.cast::<c_uint>().write(is_captured.into());
        0
    }
    fn cuLaunchHostFunc(stream: sys::CUstream, function: sys::CUhostFn, data: *mut c_void) {
        let data = data.addr();
        (*stream.cast::<FakeStream>()).put(move || {
            if let Some(function) = function {
                function(ptr::without_provenance_mut(data));
            }
        })
    }
    fn cuStreamWriteValue64_v2(
        stream: sys::CUstream, address: sys::CUdeviceptr, value: u64, flags: c_uint
    ) {
        let word = address as usize;
        if state().holds(&(word..word + 8)) == Some(Kind::Device) {
            // Only signals are written like this. Kernels may be over before a signal arrives.
            (*stream.cast::<FakeStream>())
                .put(|| thread::sleep(Duration::from_millis(2 * random(3))));
        }
        (*stream.cast::<FakeStream>()).put_access(
            "a stream's write",
            vec![(word..word + 8, None, true)],
            move |_| {
                // SAFETY: it was looked at, and every user of it takes it as an atomic.
                unsafe { &*(word as *const AtomicU64) }.store(value, Ordering::Release);
            },
        )
    }
    fn cuEventCreate(event: *mut sys::CUevent, flags: c_uint) {
        *event = Box::into_raw(Box::new(FakeEvent::default())).cast();
        0
    }
    fn cuEventRecord(event: sys::CUevent, stream: sys::CUstream) {
        (*event.cast::<FakeEvent>()).record(&*stream.cast::<FakeStream>());
        0
    }
    fn cuEventQuery(event: sys::CUevent) {
        completed((*event.cast::<FakeEvent>()).has_completed())
    }
    fn cuEventDestroy_v2(event: sys::CUevent) {
        (*event.cast::<FakeEvent>()).destroy();
        0
    }
    fn cuModuleLoadDataEx(
        module: *mut sys::CUmodule, image: *const c_void, options: c_uint,
        names: *mut sys::CUjit_option, values: *mut *mut c_void
    ) {
        await_grids();
        *module = Box::into_raw(Box::new(FakeModule::load(image))).cast();
        0
    }
    fn cuModuleUnload(module: sys::CUmodule) {
        await_grids();
        let module = &*module.cast::<FakeModule>();
        module.check(CURRENT.get().addr(), "cuModuleUnload");
        module.unload();
        0
    }
    fn cuModuleGetGlobal_v2(
        address: *mut sys::CUdeviceptr, bytes: *mut usize, module: sys::CUmodule,
        name: *const c_char
    ) {
        match (*module.cast::<FakeModule>()).variable(CStr::from_ptr(name)) {
            Some(range) => {
                (*address, *bytes) = (range.start as u64, range.len());
                0
            }
            None => NOT_FOUND,
        }
    }
    fn cuModuleGetFunction(
        function: *mut sys::CUfunction, module: sys::CUmodule, name: *const c_char
    ) {
        let name = CStr::from_ptr(name).to_string_lossy().into_owned();
        *function = Box::into_raw(Box::new(FakeFunction::new(name, module.cast()))).cast();
        0
    }
    fn cuFuncGetAttribute(
        value: *mut c_int, attribute: sys::CUfunction_attribute, function: sys::CUfunction
    ) {
        use sys::CUfunction_attribute_enum::*;
        *value = match attribute {
            CU_FUNC_ATTRIBUTE_NUM_REGS => 32,
            CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => 1024,
            _ => 0,
        };
        0
    }
    fn cuFuncSetAttribute(
        function: sys::CUfunction, attribute: sys::CUfunction_attribute, value: c_int
    ) { 0 }
    fn cuFuncLoad(function: sys::CUfunction) { 0 }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int, function: sys::CUfunction, threads: c_int, shared: usize
    ) {
        *blocks = SLOTS as c_int;
        0
    }
    fn cuLaunchKernel(
        function: sys::CUfunction, x: c_uint, y: c_uint, z: c_uint, threads: c_uint,
        threads_y: c_uint, threads_z: c_uint, shared: c_uint, stream: sys::CUstream,
        parameters: *mut *mut c_void, extra: *mut *mut c_void
    ) {
        launch(function, [x, y, z], threads, stream, parameters)
    }
    fn cuLaunchKernelEx(
        config: *const sys::CUlaunchConfig, function: sys::CUfunction,
        parameters: *mut *mut c_void, extra: *mut *mut c_void
    ) {
        let config = &*config;
        if !are_known(config) {
            return INVALID_VALUE;
        }
        let grid = [config.gridDimX, config.gridDimY, config.gridDimZ];
        launch(function, grid, config.blockDimX, config.hStream, parameters)
    }
    fn cuMemAlloc_v2(address: *mut sys::CUdeviceptr, bytes: usize) {
        await_grids();
        *address = allocate(bytes, Kind::Device) as u64;
        0
    }
    fn cuMemFree_v2(address: sys::CUdeviceptr) {
        await_grids();
        release(address as usize, "cuMemFree");
        0
    }
    fn cuMemGetAllocationGranularity(
        bytes: *mut usize, properties: *const sys::CUmemAllocationProp,
        option: sys::CUmemAllocationGranularity_flags
    ) {
        *bytes = shares::GRANULARITY;
        0
    }
    fn cuMemCreate(
        handle: *mut sys::CUmemGenericAllocationHandle, bytes: usize,
        properties: *const sys::CUmemAllocationProp, flags: c_ulonglong
    ) {
        match shares::create(bytes) {
            Ok(created) => { *handle = created; 0 }
            Err(code) => code,
        }
    }
    fn cuMemRelease(handle: sys::CUmemGenericAllocationHandle) {
        shares::release_handle(handle);
        0
    }
    fn cuMemExportToShareableHandle(
        shared: *mut c_void, handle: sys::CUmemGenericAllocationHandle,
        kind: sys::CUmemAllocationHandleType, flags: c_ulonglong
    ) {
        match shares::export(handle, kind) {
            Ok(descriptor) => { *shared.cast::<c_int>() = descriptor; 0 }
            Err(code) => code,
        }
    }
    fn cuMemImportFromShareableHandle(
        handle: *mut sys::CUmemGenericAllocationHandle, shared: *mut c_void,
        kind: sys::CUmemAllocationHandleType
    ) {
        match shares::import(shared) {
            Ok(imported) => { *handle = imported; 0 }
            Err(code) => code,
        }
    }
    fn cuMemAddressReserve(
        address: *mut sys::CUdeviceptr, bytes: usize, alignment: usize, at: sys::CUdeviceptr,
        flags: c_ulonglong
    ) {
        *address = shares::reserve(bytes);
        0
    }
    fn cuMemAddressFree(address: sys::CUdeviceptr, bytes: usize) {
        shares::free_address(address, bytes);
        0
    }
    fn cuMemMap(
        address: sys::CUdeviceptr, bytes: usize, offset: usize,
        handle: sys::CUmemGenericAllocationHandle, flags: c_ulonglong
    ) { shares::map(address, bytes, handle) }
    fn cuMemUnmap(address: sys::CUdeviceptr, bytes: usize) {
        await_grids();
        shares::unmap(address, bytes)
    }
    fn cuMemSetAccess(
        address: sys::CUdeviceptr, bytes: usize, access: *const sys::CUmemAccessDesc, count: usize
    ) { shares::set_access(address, bytes) }
    fn cuMemHostAlloc(start: *mut *mut c_void, bytes: usize, flags: c_uint) {
        await_grids();
        *start = allocate(bytes, Kind::Pinned) as *mut c_void;
        0
    }
    fn cuMemFreeHost(start: *mut c_void) {
        await_grids();
        release(start as usize, "cuMemFreeHost");
        0
    }
    fn cuMemGetAddressRange_v2(
        start: *mut sys::CUdeviceptr, bytes: *mut usize, address: sys::CUdeviceptr
    ) {
        match lent(address as usize) {
            Some(range) => {
                (*start, *bytes) = (range.start as u64, range.len());
                0
            }
            None => NOT_FOUND,
        }
    }
    fn cuPointerGetAttribute(
        value: *mut c_void, attribute: sys::CUpointer_attribute, address: sys::CUdeviceptr
    ) {
        use sys::CUpointer_attribute_enum::*;
        match attribute {
            _ if lent(address as usize).is_none() => return NOT_FOUND,
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => *value.cast::<c_int>() = 0,
            CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => *value.cast() = ptr::null_mut::<c_void>(),
            CU_POINTER_ATTRIBUTE_CONTEXT => *value.cast() = context(0),
            _ => return NOT_FOUND,
        }
        0
    }
    fn cuMemPoolCreate(pool: *mut sys::CUmemoryPool, properties: *const sys::CUmemPoolProps) {
        *pool = FakePool::create(&*properties).cast();
        0
    }
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        (*free, *total) = (FREE, MEMORY);
        0
    }
    fn cuMemPoolSetAttribute(
        pool: sys::CUmemoryPool, attribute: sys::CUmemPool_attribute, value: *mut c_void
    ) { 0 }
    fn cuMemPoolGetAttribute(
        pool: sys::CUmemoryPool, attribute: sys::CUmemPool_attribute, value: *mut c_void
    ) {
        use sys::CUmemPool_attribute_enum::*;
        *value.cast::<u64>() = match attribute {
            CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => RESERVED + memory::bytes_of(pool.addr()),
            CU_MEMPOOL_ATTR_USED_MEM_CURRENT => memory::bytes_of(pool.addr()),
            _ => 0,
        } as u64;
        0
    }
    fn cuMemPoolTrimTo(pool: sys::CUmemoryPool, keep: usize) { 0 }
    fn cuMemPoolDestroy(pool: sys::CUmemoryPool) { 0 }
    fn cuMemAllocFromPoolAsync(
        address: *mut sys::CUdeviceptr, bytes: usize, pool: sys::CUmemoryPool,
        stream: sys::CUstream
    ) {
        match (*pool.cast::<FakePool>()).allocate(bytes) {
            Some(start) => {
                *address = start as u64;
                0
            }
            None => OUT_OF_MEMORY,
        }
    }
    fn cuMemFreeAsync(address: sys::CUdeviceptr, stream: sys::CUstream) {
        let start = address as usize;
        let bytes = state().memory.get(&start).map_or(1, |memory| memory.bytes);
        let uses = vec![(start..start + bytes, Some(Kind::Device), true)];
        let stream = &*stream.cast::<FakeStream>();
        match stream.put_access("cuMemFreeAsync", uses, |_| ()) {
            0 => stream.put(move || release(start, "cuMemFreeAsync")),
            code => code,
        }
    }
    fn cuMemsetD8Async(
        address: sys::CUdeviceptr, value: u8, bytes: usize, stream: sys::CUstream
    ) { (*stream.cast::<FakeStream>()).set("cuMemsetD8Async", address, value, bytes) }
    fn cuMemsetD16Async(
        address: sys::CUdeviceptr, value: u16, times: usize, stream: sys::CUstream
    ) { (*stream.cast::<FakeStream>()).set("cuMemsetD16Async", address, value, times) }
    fn cuMemsetD32Async(
        address: sys::CUdeviceptr, value: u32, times: usize, stream: sys::CUstream
    ) {
        match graphs::capture_fill(stream.cast(), address as usize, value, times) {
            true => 0,
            false => (*stream.cast::<FakeStream>()).set("cuMemsetD32Async", address, value, times),
        }
    }
    fn cuStreamBeginCapture_v2(stream: sys::CUstream, mode: sys::CUstreamCaptureMode) {
        graphs::begin_capture(stream.cast())
    }
    fn cuStreamEndCapture(stream: sys::CUstream, graph: *mut sys::CUgraph) {
        let Some(captured) = graphs::end_capture(stream.cast()) else {
            return graphs::ILLEGAL_STATE;
        };
        *graph = captured.cast();
        0
    }
    fn cuGraphGetNodes(graph: sys::CUgraph, nodes: *mut sys::CUgraphNode, count: *mut usize) {
        *count = (*graph.cast::<FakeGraph>()).len();
        0
    }
    fn cuGraphAddChildGraphNode(
        node: *mut sys::CUgraphNode, graph: sys::CUgraph, before: *const sys::CUgraphNode,
        count: usize, child: sys::CUgraph
    ) { (*graph.cast::<FakeGraph>()).add_child(node, (before, count), &*child.cast()) }
    fn cuMemcpyHtoD_v2(to: sys::CUdeviceptr, from: *const c_void, bytes: usize) {
        await_grids();
        let to = to as usize;
        if state().check(&(to..to + bytes), Some(Kind::Device), "cuMemcpyHtoD") {
            ptr::copy_nonoverlapping(from.cast::<u8>(), to as *mut u8, bytes);
        }
        0
    }
    fn cuMemcpyHtoDAsync_v2(
        to: sys::CUdeviceptr, from: *const c_void, bytes: usize, stream: sys::CUstream
    ) {
        let (to, from) = ((to as usize, Kind::Device), (from as usize, Kind::Pinned));
        (*stream.cast::<FakeStream>()).copy("cuMemcpyHtoDAsync", to, from, bytes)
    }
    fn cuMemcpyDtoHAsync_v2(
        to: *mut c_void, from: sys::CUdeviceptr, bytes: usize, stream: sys::CUstream
    ) {
        let (to, from) = ((to as usize, Kind::Pinned), (from as usize, Kind::Device));
        (*stream.cast::<FakeStream>()).copy("cuMemcpyDtoHAsync", to, from, bytes)
    }
    fn cuMemcpyDtoDAsync_v2(
        to: sys::CUdeviceptr, from: sys::CUdeviceptr, bytes: usize, stream: sys::CUstream
    ) {
        let (to, from) = ((to as usize, Kind::Device), (from as usize, Kind::Device));
        (*stream.cast::<FakeStream>()).copy_between(to, from, bytes)
    }
    fn cuMemcpy2DAsync_v2(copy: *const sys::CUDA_MEMCPY2D, stream: sys::CUstream) {
        use sys::CUmemorytype::CU_MEMORYTYPE_HOST;
        let copy = &*copy;
        let to = match copy.dstMemoryType {
            CU_MEMORYTYPE_HOST => (copy.dstHost as usize, Kind::Pinned),
            _ => (copy.dstDevice as usize, Kind::Device),
        };
        let from = match copy.srcMemoryType {
            CU_MEMORYTYPE_HOST => (copy.srcHost as usize, Kind::Pinned),
            _ => (copy.srcDevice as usize, Kind::Device),
        };
        let (width, height) = (copy.WidthInBytes, copy.Height);
        let pitches = [copy.dstPitch, copy.srcPitch];
        if pitches.into_iter().any(|pitch| pitch < width || pitch > i32::MAX as usize) {
            return INVALID_VALUE;
        }
        (*stream.cast::<FakeStream>()).copy_rows(to, from, pitches, (width, height))
    }
    fn cuGraphCreate(graph: *mut sys::CUgraph, flags: c_uint) {
        *graph = FakeGraph::create().cast();
        0
    }
    fn cuGraphAddKernelNode_v2(
        node: *mut sys::CUgraphNode, graph: sys::CUgraph, before: *const sys::CUgraphNode,
        count: usize, kernel: *const sys::CUDA_KERNEL_NODE_PARAMS
    ) { (*graph.cast::<FakeGraph>()).add_kernel(node, (before, count), &*kernel) }
    fn cuGraphAddMemcpyNode(
        node: *mut sys::CUgraphNode, graph: sys::CUgraph, before: *const sys::CUgraphNode,
        count: usize, copy: *const sys::CUDA_MEMCPY3D, context: sys::CUcontext
    ) { (*graph.cast::<FakeGraph>()).add_copy(node, (before, count), &*copy) }
    fn cuGraphAddMemsetNode(
        node: *mut sys::CUgraphNode, graph: sys::CUgraph, before: *const sys::CUgraphNode,
        count: usize, fill: *const sys::CUDA_MEMSET_NODE_PARAMS, context: sys::CUcontext
    ) { (*graph.cast::<FakeGraph>()).add_fill(node, (before, count), &*fill) }
    fn cuGraphInstantiateWithFlags(
        executable: *mut sys::CUgraphExec, graph: sys::CUgraph, flags: c_ulonglong
    ) {
        // It may allocate memory of the device.
        await_grids();
        *executable = (*graph.cast::<FakeGraph>()).instantiate().cast();
        0
    }
    fn cuGraphUpload(executable: sys::CUgraphExec, stream: sys::CUstream) {
        (*executable.cast::<FakeExecutable>()).upload(&*stream.cast::<FakeStream>())
    }
    fn cuGraphLaunch(executable: sys::CUgraphExec, stream: sys::CUstream) {
        (*executable.cast::<FakeExecutable>()).launch(&*stream.cast::<FakeStream>())
    }
    fn cuGraphExecKernelNodeSetParams_v2(
        executable: sys::CUgraphExec, node: sys::CUgraphNode,
        kernel: *const sys::CUDA_KERNEL_NODE_PARAMS
    ) { (*executable.cast::<FakeExecutable>()).set(node.addr(), &*kernel) }
    fn cuGraphExecDestroy(executable: sys::CUgraphExec) {
        await_grids();
        (*executable.cast::<FakeExecutable>()).destroy();
        0
    }
    fn cuGraphDestroy(graph: sys::CUgraph) {
        (*graph.cast::<FakeGraph>()).destroy();
        0
    }
}

/// Whether a launch asks for what the driver knows: an early start, and a division of an SM's memory in percent.
///
/// # Safety
///
/// The attributes are there.
unsafe fn are_known(config: &sys::CUlaunchConfig) -> bool {
    use sys::CUlaunchAttributeID::*;
    let attributes = match config.numAttrs {
        0 => &[],
        // SAFETY: the caller's promise.
        count => unsafe { std::slice::from_raw_parts(config.attrs, count as usize) },
    };
    attributes.iter().all(|attribute| match attribute.id {
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION => true,
        // SAFETY: an attribute of this kind has this value.
        CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => unsafe {
            attribute.value.sharedMemCarveout <= 100
        },
        _ => false,
    })
}
