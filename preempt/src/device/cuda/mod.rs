//! A CUDA GPU.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `driver` | the driver library: its functions, what its codes mean |
//! | `context` | the primary context: who has it current, whether it still works |
//! | `line` | streams, and streams whose progress the host reads from a word |
//! | `memory` | pinned memory, and the pool that buffers come from |
//! | `foreign` | memory that others have allocated |
//! | `queues` | the streams that cohorts run in, their signal words |
//! | `controls`, `drops` | control blocks, posts, lists of dropped chunks |
//! | `code`, `kernels`, `registers` | modules, which function a kernel is, how many blocks an SM holds |
//! | `copies`, `ring`, `staged` | small and large copies |
//! | `opaque` | streams for work of others |
//! | `proxy` | the second way of signals |
//! | `watch` | waiting for cohorts |
//! | `probe` | what is tried out before anything runs |
//! | `faults` | driver calls that fail on purpose, for tests |
//!
//! `README.md` beside this file says which stream carries what, who takes which lock, and what may
//! never be called while kernels run.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{
    CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig,
};
use preempt_device::abi::{Cohort, MAX_SMS, Post, Posted, Signal};
use preempt_device::host::{Args, Dim3, Kernel};

use super::{
    Backend, ControlMemory, Copy, Device, DeviceInner, Drops, ForeignMemory, KernelLaunch,
    Occupancy, OpaqueWork, PlainLaunch, Report, SignalPath,
};
use crate::error::{ConfigurationError, DeviceError, Error, MemoryError};
use crate::module::DeviceCode;
use crate::vocabulary::{OpKey, QueueCount};

mod code;
mod context;
mod controls;
mod copies;
mod driver;
mod drops;
#[cfg(feature = "fault-injection")]
pub mod faults;
mod foreign;
mod kernels;
mod line;
mod memory;
mod opaque;
mod probe;
mod proxy;
mod queues;
mod registers;
mod ring;
mod staged;
mod watch;

use context::{Context, call};
use controls::Controls;
use copies::{Copies, Lines, Shared};
use driver::DeviceAttribute;
use drops::DropLists;
use foreign::Foreign;
use kernels::{Kernels, Launchable};
use line::{BlockPriority, LAST_WAIT, Line, Stream};
use memory::{Pinned, Pool};
use opaque::OpaqueStreams;
use probe::probe;
use proxy::Proxy;
use queues::{DeviceQueues, LANES, Streams};
use watch::Watch;

/// Where allocations of no bytes are, and what the driver aligns others to.
const ALIGNMENT: u64 = 256;

/// Parameters of a launch that need no allocation.
const FEW_PARAMETERS: usize = 64;

/// The least compute capability: memory operations and barriers that the worker loop uses.
const LEAST_CAPABILITY: u32 = 8;

/// What a panic leaves locked is whole: no code of others runs under a lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The GPUs in use. Two schedulers on one GPU would not know of each other, so there is one device for
/// each.
static DEVICES: Mutex<Vec<(u32, Weak<DeviceInner>)>> = Mutex::new(Vec::new());

/// The device of the `ordinal`th GPU.
pub(super) fn open(ordinal: u32) -> Result<Device, Error> {
    let mut devices = lock(&DEVICES);
    devices.retain(|(_, device)| device.strong_count() > 0);
    let same = devices.iter().find(|(number, _)| *number == ordinal);
    if let Some(inner) = same.and_then(|(_, device)| device.upgrade()) {
        return Ok(Device { inner });
    }
    let (backend, properties) = CudaDevice::new(ordinal)?;
    let device = Device::new(Arc::new(backend), properties);
    devices.push((ordinal, Arc::downgrade(&device.inner)));
    Ok(device)
}

pub(super) struct CudaDevice {
    queues: DeviceQueues,
    controls: Controls,
    drops: DropLists,
    copies: Copies,
    opaque: OpaqueStreams,
    kernels: Kernels,
    pool: Arc<Pool>,
    foreign: Foreign,
    proxy: Proxy,
    shared: Arc<Shared>,
    /// Cycles of an SM's clock in a millisecond.
    kilohertz: u32,
    /// Whether the loss of the context was reported.
    lost_reported: AtomicBool,
}

impl CudaDevice {
    fn new(ordinal: u32) -> Result<(CudaDevice, super::Properties), Error> {
        let context = Arc::new(Context::new(ordinal)?);
        check_requirements(&context)?;
        let properties = context.properties()?;
        if properties.sms > MAX_SMS {
            let reason = format!("it has {} SMs, and a signal can name {MAX_SMS}", properties.sms);
            return Err(Error::Device(DeviceError::Unsupported { reason: reason.into() }));
        }
        let kilohertz = context.attribute(DeviceAttribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?;

        let _entered = context.enter()?;
        let streams = Streams::new(&context)?;
        let words = Arc::new(Pinned::new(&context, (6 + opaque::STREAMS) * Line::WORD_SPACE)?);
        let line = |index| Line::new(&context, &words, index);
        let small_up = Arc::new(line(0)?);
        let lines = Lines {
            small_up: small_up.clone(),
            small_down: line(1)?,
            across: line(2)?,
            large_up: line(3)?,
            large_down: line(4)?,
        };
        let pool = Arc::new(Pool::new(&context, line(5)?)?);
        // Blocks of others wait with those of normal queues.
        let opaque = |index: usize| {
            Line::on(Stream::new(&context, BlockPriority::Least)?, &words, 6 + index)
        };
        let opaque = [opaque(0)?, opaque(1)?];
        let queues = DeviceQueues::new(&context, streams, pool.line().stream().raw())?;
        let zeroed = pool.line().issue(|_| Ok(()))?;
        pool.line().wait(zeroed)?;
        probe(&context, &properties, &queues, &pool, &lines)?;

        let shape = (properties.sms, properties.blocks_per_sm);
        let proxy = Proxy::new(&context, &queues, shape, pool.line().stream().raw())?;
        let watch = Watch::new(queues.streams().len());
        let shared = Arc::new(Shared::new(&context, watch));
        let device = CudaDevice {
            queues,
            proxy,
            controls: Controls::new(&context, &pool)?,
            drops: DropLists::new(&context, &pool, &small_up)?,
            copies: Copies::new(&shared, lines)?,
            opaque: OpaqueStreams::new(&shared, opaque),
            kernels: Kernels::new(
                &context,
                (properties.shared_per_block, properties.shared_per_sm),
            )?,
            foreign: Foreign::new(&context, pool.raw()),
            pool,
            shared,
            kilohertz,
            lost_reported: AtomicBool::new(false),
        };
        Ok((device, properties))
    }

    fn context(&self) -> &Context {
        &self.shared.context
    }

    /// How much happened that a scheduler has to look at.
    fn news(&self) -> u64 {
        self.shared.watch.news() + u64::from(self.context().lost().is_some())
    }

    /// Asks the driver about everything that is out. It tells of a fault when it is asked, and takes
    /// note of it here.
    fn check_for_faults(&self) {
        let Ok(_entered) = self.context().enter() else { return };
        for queue in self.shared.watch.busy_queues() {
            if self.queues.stream(queue).is_idle().is_err() {
                return;
            }
        }
        // Errors that are not of the context are those of what was put into the stream.
        let _ = self.copies.check().and_then(|()| self.opaque.check());
    }
}

/// Refuses a device that lacks what is used here.
fn check_requirements(context: &Context) -> Result<(), Error> {
    use DeviceAttribute::*;
    let (major, minor) = (
        context.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        context.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    if major < LEAST_CAPABILITY {
        let reason = format!(
            "it has compute capability {major}.{minor}; {LEAST_CAPABILITY}.0 or more is needed"
        );
        return Err(Error::Device(DeviceError::Unsupported { reason: reason.into() }));
    }
    for (attribute, what) in [
        (
            CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING,
            "one address space with the host, through which the device reports",
        ),
        (
            CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY,
            "access to the host's memory, through which it reports",
        ),
        (
            CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
            "64-bit stream memory operations, which carry the signals to stop",
        ),
        (
            CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
            "memory pools, without which memory is not freed while kernels run",
        ),
    ] {
        if context.attribute(attribute)? == 0 {
            let reason = format!("it, or its driver, lacks {what}");
            return Err(Error::Device(DeviceError::Unsupported { reason: reason.into() }));
        }
    }
    Ok(())
}

/// Lets a grid start while the last blocks of the one before it in its stream end, and wait there: that
/// hides most of the time between two grids.
fn early_start() -> CUlaunchAttribute {
    CUlaunchAttribute {
        id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
    }
}

/// Calls `launch` with pointers to the parameters: the cohort, if it is for a preemptible entry, and then the
/// arguments.
#[inline]
fn with_parameters<R>(
    cohort: Option<&Cohort>,
    args: &Args,
    launch: impl FnOnce(*mut *mut c_void) -> R,
) -> R {
    let cohort = cohort.map(|cohort| ptr::from_ref(cohort).cast());
    let pointers = cohort.into_iter().chain(args.pointers());
    let mut pointers = pointers.map(|pointer| pointer.cast_mut().cast::<c_void>());
    let mut few = [ptr::null_mut(); FEW_PARAMETERS];
    for place in &mut few {
        match pointers.next() {
            Some(pointer) => *place = pointer,
            None => return launch(few.as_mut_ptr()),
        }
    }
    let mut many: Vec<_> = few.into_iter().chain(pointers).collect();
    launch(many.as_mut_ptr())
}

impl Backend for CudaDevice {
    fn load(&self, code: &[DeviceCode]) -> Result<(), Error> {
        let context = self.context();
        let _entered = context.enter()?;
        // The last scheduler is gone, and the next one counts epochs and tickets from the start. The proxy first: to load
        // a module the driver waits for what runs.
        self.proxy.reset()?;
        self.kernels.load(code)?;
        self.shared.watch.clear();
        self.queues.reset(self.pool.line().stream().raw())?;
        self.controls.reset()
    }

    fn queues(&self) -> QueueCount {
        LANES
    }

    fn ticks(&self, time: Duration) -> u32 {
        let cycles = time.as_nanos() * u128::from(self.kilohertz.max(1)) / 1_000_000;
        cycles.try_into().unwrap_or(u32::MAX)
    }

    fn set_signal_path(&self, path: SignalPath) {
        self.proxy.set_wanted(path == SignalPath::Proxy);
    }

    fn rest(&self) {
        self.proxy.rest();
    }

    fn occupancy(&self, kernel: &'static Kernel, block: Dim3) -> Result<Occupancy, Error> {
        self.context().alive()?;
        let Launchable { blocks_per_sm, beside_proxy, .. } = self.kernels.get(kernel, block)?;
        if !self.proxy.is_wanted() {
            return Ok(Occupancy { blocks_per_sm, on_last_sm: blocks_per_sm });
        }
        match (blocks_per_sm, beside_proxy) {
            (1.., 0) => Err(Error::Configuration(ConfigurationError::NoRoomForProxy {
                kernel: kernel.name,
            })),
            _ => Ok(Occupancy { blocks_per_sm, on_last_sm: beside_proxy }),
        }
    }

    fn new_control(&self) -> Result<ControlMemory, Error> {
        // The proxy would be among what the driver may wait for, and end never. Signals go the other way meanwhile.
        self.controls.take(|| self.end_proxy())
    }

    fn take_drops(&self) -> Result<Drops, Error> {
        self.drops.take()
    }

    fn give_back_drops(&self, drops: Drops, is_empty: bool) {
        // A list that cannot be zeroed is used no more.
        let _ = self.drops.give_back(drops, is_empty);
    }

    fn launch(
        &self,
        _op: OpKey,
        queue: u32,
        grid: &Arc<KernelLaunch>,
        cohort: Cohort,
    ) -> Result<(), Error> {
        let context = self.context();
        let _entered = context.enter()?;
        let Launchable { function, cooperates, waits, .. } =
            self.kernels.get(grid.kernel, grid.block)?;
        self.proxy.await_place()?;
        let cohort = Cohort { queue: self.queues.word(queue), barrier: cooperates, ..cohort };
        let mut attribute = early_start();
        let config = CUlaunchConfig {
            gridDimX: cohort.blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: grid.block.x,
            blockDimY: grid.block.y,
            blockDimZ: grid.block.z,
            sharedMemBytes: grid.kernel.shared_bytes,
            hStream: self.queues.stream(queue).raw(),
            attrs: &raw mut attribute,
            // Where nothing is in the queue, too: the driver takes less time for it.
            numAttrs: u32::from(waits),
        };
        with_parameters(Some(&cohort), &grid.args, |parameters| {
            let (config, function) = (&raw const config, function.0);
            // SAFETY: these are the parameters of the entry, whose first one has a cohort's size, and
            // of which a `Call` promises the others; the driver copies them.
            unsafe {
                call!(context, cuLaunchKernelEx(config, function, parameters, ptr::null_mut()))
            }
        })?;
        // SAFETY: the controls keep posts as long as the device lives.
        unsafe { self.shared.watch.add(queue, cohort.post, cohort.ticket) };
        Ok(())
    }

    fn launch_plain(
        &self,
        _op: OpKey,
        queue: u32,
        grid: &Arc<KernelLaunch>,
        plain: PlainLaunch,
    ) -> Result<(), Error> {
        let context = self.context();
        let _entered = context.enter()?;
        let Launchable { plain: entry, .. } = self.kernels.get(grid.kernel, grid.block)?;
        let (PlainLaunch { extents: [x, y, z], tasks, post, ticket }, block) = (plain, grid.block);
        let stream = self.queues.stream(queue);
        with_parameters(None, &grid.args, |parameters| {
            let (function, raw, shared) = (entry.0, stream.raw(), grid.kernel.shared_bytes);
            // SAFETY: these are the parameters of the entry, as a `Call` promises; the driver copies them.
            unsafe {
                call!(
                    context,
                    cuLaunchKernel(
                        function,
                        x,
                        y,
                        z,
                        block.x,
                        block.y,
                        block.z,
                        shared,
                        raw,
                        parameters,
                        ptr::null_mut()
                    )
                )
            }
        })?;
        let word = Post::word(ticket, Posted { done: tasks, amortize: 0 });
        // Without the word nothing would tell that the grid is over. The loss of the context is reported for all.
        // SAFETY: the controls keep posts as long as the device lives, at the same address for it.
        let _ = context.must(|| unsafe { stream.write(post as u64, word) });
        // SAFETY: as above.
        unsafe { self.shared.watch.add(queue, post, ticket) };
        Ok(())
    }

    fn signal(&self, queue: u32, signal: Signal) {
        let context = self.context();
        if !self.proxy.signal(queue, signal) {
            // Without it the launch that the SMs are for would wait for ever. The loss of the context is reported for
            // all.
            let _ = context
                .must(|| context.enter().and_then(|_entered| self.queues.signal(queue, signal)));
        }
        self.shared.watch.stir();
    }

    unsafe fn copy(&self, op: OpKey, copy: Copy) {
        // SAFETY: the caller's promise.
        unsafe { self.copies.start(op, copy) }
    }

    fn opaque(&self, op: OpKey, work: OpaqueWork) {
        self.opaque.run(op, work);
    }

    fn poll(&self, reports: &mut Vec<Report>) {
        let Some(message) = self.context().lost() else {
            self.opaque.take_reports(reports);
            return self.copies.take_reports(reports);
        };
        // Relaxed: the scheduler's own lock orders its turns.
        if !self.lost_reported.swap(true, Ordering::Relaxed) {
            self.opaque.forget();
            self.copies.forget();
            reports.push(Report::Lost(message.clone()));
        }
    }

    fn is_polled(&self) -> bool {
        true
    }

    fn check(&self) {
        self.check_for_faults();
    }

    fn mark(&self) -> u64 {
        self.news()
    }

    fn wait(&self, mark: u64, timeout: Duration) {
        let is_over = || self.news() != mark || self.copies.has_news() || self.opaque.has_news();
        self.shared.watch.wait(timeout, is_over, || self.check_for_faults());
    }

    fn announce(&self) {
        self.shared.watch.announce();
    }

    fn foreign(&self) -> Option<&dyn ForeignMemory> {
        Some(&self.foreign)
    }

    fn memory_within_reach(&self, live: usize) -> Option<usize> {
        // Buffers may have been taken over, whose memory is not in the pool.
        let (total, reach) = self.pool.sizes().ok()?;
        Some(total.min(reach.saturating_add(live)))
    }

    fn allocate(&self, bytes: usize) -> Result<u64, Error> {
        let something_runs =
            self.shared.watch.has_out() || self.proxy.is_live() || self.opaque.has_under_way();
        let address = match self.pool.allocate(bytes, something_runs) {
            Err(Error::Memory(MemoryError::OutOfMemory { .. })) if !something_runs => {
                // What was freed may be in pieces that are too small.
                self.pool.trim()?;
                self.pool.allocate(bytes, something_runs)?
            }
            result => result?,
        };
        self.foreign.forget(address);
        Ok(address)
    }

    unsafe fn free(&self, address: u64, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.pool.free(address, bytes) }
    }

    unsafe fn fill(&self, address: u64, data: *const u8, bytes: usize) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.pool.fill(address, data, bytes) }
    }
}

impl CudaDevice {
    /// Has the proxy end while something is in flight, so that signals go by stream writes until it is launched again. The
    /// context is entered.
    fn end_proxy(&self) {
        for (queue, word) in self.proxy.leave() {
            // The same word twice is one signal. As for any other one, no operation could be told of an error.
            let _ = self.context().must(|| self.queues.signal(queue, word));
        }
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        self.proxy.rest();
        let context = self.context();
        // The scheduler waited for what it could. Freeing would wait for the rest.
        let is_idle = context.enter().and_then(|_entered| {
            let queues = self.queues.streams().iter().chain([self.queues.control()]);
            let streams = queues.chain(self.copies.streams()).chain(self.opaque.streams());
            // Signals may be on their way, and drop lists be zeroed yet. The proxy writes to the queues' words.
            let mut streams = streams.chain([self.proxy.stream()]);
            let start = Instant::now();
            streams.try_fold(true, |all, stream| {
                let left = LAST_WAIT.saturating_sub(start.elapsed());
                Ok::<_, Error>(all & stream.settle(left)?)
            })
        });
        if !matches!(is_idle, Ok(true)) {
            context.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use preempt_device::abi::Divisor;

    use super::*;

    #[test]
    fn a_gpu_that_is_not_there_is_an_error_that_can_be_printed() {
        // Without a driver this one; with one, there are fewer GPUs.
        let error = open(u32::MAX).expect_err("nobody has so many GPUs");
        let message = format!("{error} {error:?}");
        match error {
            Error::Device(DeviceError::NoDriver { library }) => {
                assert!(message.contains(library), "{message}")
            }
            Error::Device(DeviceError::NoGpu { .. }) => {
                assert!(message.contains("4294967295"), "{message}")
            }
            _ => assert!(!message.is_empty()),
        }
    }

    fn parameters(values: u32) -> Vec<usize> {
        let mut args = Args::default();
        (0..values).for_each(|value| args.push_value(value));
        let cohort = COHORT;
        let expected = args.pointers().map(|pointer| pointer.addr());
        let expected: Vec<_> =
            [ptr::from_ref(&cohort).addr()].into_iter().chain(expected).collect();
        let given = with_parameters(Some(&cohort), &args, |parameters| {
            // SAFETY: there is one for the cohort and one for each value.
            let given = |index| unsafe { *parameters.add(index) }.addr();
            (0..=values as usize).map(given).collect::<Vec<_>>()
        });
        assert_eq!(given, expected);
        given
    }

    const COHORT: Cohort = Cohort {
        control: ptr::null(),
        claims: ptr::null(),
        queue: ptr::null(),
        post: ptr::null(),
        requeue_list: ptr::null(),
        signal: Signal::from_bits(0),
        after: ptr::null(),
        after_word: 0,
        left: 0,
        tasks: 0,
        grid: [0; 3],
        row: Divisor::new(1),
        layer: Divisor::new(1),
        ticket: 1,
        blocks: 0,
        amortize: 0,
        pace: 0,
        share_bits: 0,
        crowd: 0,
        handed: 0,
        is_first: false,
        slot: 0,
        barrier: true,
    };

    #[test]
    fn parameters_come_after_the_cohort_however_many_there_are() {
        for values in [0, 1, 62, 63, 64, 200] {
            assert_eq!(parameters(values).len(), values as usize + 1);
        }
    }
}
