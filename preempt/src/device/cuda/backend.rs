//! The contract of `device`, on a GPU.

use std::hint;
#[cfg(target_os = "linux")]
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use preempt_device::abi::{Cohort, Progress, Signal, SmRange};
use preempt_device::host::{Dim3, Kernel};

use super::kernels::Launchable;
use super::memory::{Sizes, Zeroing, copies_take};
use super::proxy::{PATIENCE, START};
use super::{CudaDevice, DEVICES, context::Context, lock};
use crate::device::control::{ControlMemory, ControlSource, Grid, LentList, PlainGrid};
use crate::device::{
    Backend, Chains, Contents, Copy, DeviceMemory, DeviceReport, Footprint, ForeignMemory,
    ForeignStreams, Gate, KernelLaunch, Mark, MemoryInfo, Occupancy, OpaqueWork, Owner, Piece,
    Place, ProgramLaunch, Properties, SignalPath, Step, spares_a_place,
};
use crate::error::{ConfigurationError, DeviceError, Error, MemoryError};
use crate::foreign::ForeignModule;
use crate::module::DeviceCode;
use crate::vocabulary::{OpKey, QueueIndex, Vicinity};

impl Backend for CudaDevice {
    fn load(&self, code: &[DeviceCode], path: SignalPath, save_bytes: usize) -> Result<(), Error> {
        let context = self.context();
        let _entered = context.enter()?;
        // The previous scheduler is gone, and the next one counts epochs and tickets from the start. The proxy comes
        // first, because the driver waits for running kernels before it loads a module.
        self.proxy.reset()?;
        self.meet(&lock(&DEVICES));
        let saves = self.kernels.load(code)?;
        self.requeue_lists.reserve(if saves { save_bytes } else { 0 })?;
        self.shared.watch.clear();
        let zeroing = self.pool.line().stream().raw();
        self.queues.reset(zeroing)?;
        self.gates.reset(zeroing)?;
        self.control_blocks.reset()?;
        self.proxy.set_path(match path {
            // The driver's calls that wait for a GPU wait for its proxies, and those of other parts follow each other.
            SignalPath::Auto if context.part().is_some() => SignalPath::StreamWrite,
            path => path,
        });
        Ok(())
    }

    fn keep(&self, whole: Owner) {
        // It has none yet.
        let _ = self.whole.set(whole);
    }

    fn split(&self, _properties: &Properties, parts: u32) -> Result<Vec<Piece>, Error> {
        super::split(self, parts)
    }

    fn load_foreign(&self, module: &ForeignModule) -> Result<(), Error> {
        let context = self.context();
        let _entered = context.enter()?;
        // The driver waits for what is resident before it loads a module.
        let _held = self.proxy.hold();
        self.end_proxy();
        self.kernels.load_foreign(module)
    }

    fn occupancy(
        &self,
        kernel: &'static Kernel,
        block: Dim3,
        shared: u32,
        tasks: u32,
    ) -> Result<Occupancy, Error> {
        self.context().alive()?;
        let Launchable { blocks_per_sm, beside_proxy, .. } =
            self.kernels.get(kernel, block, shared)?;
        if kernel.state_bytes > 0 && blocks_per_sm > 0 {
            self.requeue_lists.check(kernel, block, shared)?;
        }
        let leaves_place = match self.proxy.path() {
            SignalPath::StreamWrite if !self.gates.are_expected() => false,
            SignalPath::StreamWrite | SignalPath::Auto => {
                let is_free = beside_proxy == blocks_per_sm;
                let places = self.proxy.sms().saturating_mul(blocks_per_sm);
                beside_proxy > 0 && (is_free || spares_a_place(tasks, places))
            }
            SignalPath::Proxy if blocks_per_sm > 0 && beside_proxy == 0 => {
                let kernel = kernel.name;
                return Err(Error::Configuration(ConfigurationError::NoRoomForProxy { kernel }));
            }
            SignalPath::Proxy => true,
        };
        let on_last_sm = if leaves_place { beside_proxy } else { blocks_per_sm };
        Ok(Occupancy { blocks_per_sm, on_last_sm, leaves_place })
    }

    fn footprint(
        &self,
        kernel: &'static Kernel,
        block: Dim3,
        shared: u32,
        _blocks_per_sm: u32,
    ) -> Result<Footprint, Error> {
        self.kernels.footprint(kernel, block, shared)
    }

    fn expect_signals(&self, leaves_place: bool, is_long: bool) -> Result<(), Error> {
        match self.proxy.path() {
            SignalPath::StreamWrite => Ok(()),
            // Blocks of plain grids may have its place.
            SignalPath::Proxy if self.shared.watch.has_plain() => Ok(()),
            SignalPath::Proxy if self.proxy.is_live() => Ok(()),
            // Beside what runs, it may find no room.
            SignalPath::Proxy if self.something_runs() => self.start_proxy(START),
            SignalPath::Proxy => self.start_proxy(PATIENCE),
            SignalPath::Auto if !leaves_place => {
                if self.proxy.is_live() {
                    let _entered = self.context().enter()?;
                    self.end_proxy();
                }
                Ok(())
            }
            // Blocks of anything that runs may have its place.
            SignalPath::Auto if is_long && !self.proxy.is_live() && !self.something_runs() => {
                match self.start_proxy(START) {
                    Err(error @ Error::Device(DeviceError::ContextLost { .. })) => Err(error),
                    // Signals can do without.
                    _ => Ok(()),
                }
            }
            SignalPath::Auto => Ok(()),
        }
    }

    fn rest(&self) {
        self.proxy.rest();
        // Copies and opaque work may run on; to free memory the driver may wait for these.
        if !self.gpu_runs() {
            self.unused_graphs.destroy();
        }
    }

    fn control(&self) -> &dyn ControlSource {
        self
    }

    fn memory(&self) -> &dyn DeviceMemory {
        self
    }

    unsafe fn launch(
        &self,
        _op: OpKey,
        queue: u32,
        launch: &Arc<KernelLaunch>,
        grid: Grid,
        vicinity: Vicinity,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe {
            match grid {
                Grid::Cohort(cohort) => self.launch_cohort(queue, launch, cohort, vicinity),
                Grid::Plain(plain) => self.launch_plain(queue, launch, plain, vicinity),
            }
        }
    }

    unsafe fn prepare(&self, programs: &[&[Step]]) -> Result<Vec<Owner>, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.prepare_graphs(programs) }
    }

    unsafe fn launch_program(
        &self,
        _op: OpKey,
        queue: u32,
        program: &ProgramLaunch,
        grid: PlainGrid,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_graph(queue, program, grid) }
    }

    unsafe fn prepare_chains(&self, steps: &[Step]) -> Result<Option<Chains>, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.chains_of(steps) }
    }

    unsafe fn launch_chain(
        &self,
        queue: u32,
        program: &ProgramLaunch,
        calls: (usize, &[usize]),
        cohorts: &[Cohort],
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_cohorts(queue, program, calls, cohorts) }
    }

    fn expect_gates(&self) {
        self.gates.expect();
    }

    fn gate(&self, gate: Gate, limit: Duration) -> Result<*const AtomicU64, Error> {
        let _entered = self.context().enter()?;
        let stream = self.queues.stream(gate.queue).raw();
        let busy = self.shared.watch.busy_queues().into_iter();
        self.gates.put(gate, limit, (stream, busy))
    }

    fn open_gate(&self, gate: Gate) {
        self.gates.open(gate);
    }

    fn close_gate(&self, gate: Gate) {
        self.gates.close(gate);
    }

    fn hint(&self, gate: u32, words: &[(u32, Signal)]) {
        self.gates.hint(gate, words);
    }

    fn signal(&self, queue: u32, signal: Signal) {
        let context = self.context();
        let are_written = || {
            let _entered = context.enter();
            matches!(self.queues.control().is_idle(), Ok(true))
        };
        if !self.proxy.signal(queue, signal, are_written) {
            // Without the word, the launch that the SMs are for would wait for ever. The loss of the context is
            // reported for all operations together.
            let _ = context.must(|| {
                let _entered = context.enter()?;
                self.proxy.await_end();
                self.queues.signal(queue, signal)
            });
        }
        self.shared.watch.signalled(queue, signal.range() == SmRange::EMPTY);
        self.shared.watch.stir();
    }

    unsafe fn copy(&self, op: OpKey, copy: Copy) {
        // SAFETY: the caller's promise.
        unsafe { self.copies.start(op, copy, || self.something_runs()) }
    }

    fn opaque(&self, op: OpKey, work: OpaqueWork) {
        // The work may call what waits for all that runs, and would wait for each proxy.
        let _held = self.proxy.hold();
        if let Ok(_entered) = self.context().enter() {
            self.end_proxy();
        }
        self.opaque.run(op, work);
    }

    fn find_ends(&self) {
        self.shared.watch.find_ends();
    }

    fn poll(&self, reports: &mut Vec<DeviceReport>) {
        let Some(loss) = self.context().lost() else {
            self.opaque.take_reports(reports);
            return self.copies.take_reports(reports);
        };
        // Relaxed: the scheduler's own lock orders its turns.
        if !self.lost_reported.swap(true, Ordering::Relaxed) {
            self.opaque.forget();
            self.copies.forget();
            reports.push(DeviceReport::Lost(loss.clone()));
        }
    }

    fn maintain(&self) {
        if self.context().lost().is_none() {
            self.renew_proxy();
        }
    }

    fn wait(&self, since: Mark, timeout: Duration) {
        // Relaxed: the next turn of the waiting thread comes after its last one.
        let is_lost =
            || self.context().lost().is_some() && !self.lost_reported.load(Ordering::Relaxed);
        let has_news = || {
            self.renew_proxy();
            is_lost() || self.copies.has_news() || self.opaque.has_news()
        };
        self.shared.watch.wait(since, timeout, has_news, || self.check_for_faults());
    }

    fn streams(&self) -> Result<&dyn ForeignStreams, Error> {
        if self.context().part().is_some() {
            let reason = "a part of a GPU has a context of its own, and streams, events and memory of other code belong to \
                          the GPU's; use `Device::whole`, unsplit, for those"
                .into();
            return Err(Error::Device(DeviceError::Unsupported { reason }));
        }
        Ok(&self.interop)
    }
}

impl ControlSource for CudaDevice {
    fn new_control(&self) -> Result<ControlMemory, Error> {
        // The driver may wait for running kernels, and would for the proxy. Signals take the other path
        // meanwhile.
        self.control_blocks.take(|| self.end_proxy())
    }

    fn progress(&self, queue: QueueIndex) -> *const Progress {
        self.control_blocks.progress(queue)
    }

    fn take_requeue_list(&self, saves: bool) -> Result<LentList, Error> {
        self.requeue_lists.take(saves)
    }

    fn give_back_requeue_list(&self, list: LentList, is_empty: bool) {
        // A list that cannot be zeroed is not used again.
        let _ = self.requeue_lists.give_back(list, is_empty);
    }
}

impl DeviceMemory for CudaDevice {
    fn allocate(&self, bytes: usize, contents: Contents) -> Result<u64, Error> {
        let zeroing = match contents {
            Contents::Any => Zeroing::None,
            _ if self.something_stays(copies_take(bytes)) => Zeroing::ByCopies,
            _ => Zeroing::ByKernel,
        };
        #[cfg(target_os = "linux")]
        if contents == Contents::Shared && bytes > 0 {
            return self.allocate_shared(bytes, zeroing);
        }
        let address = match self.pool.allocate(bytes, zeroing) {
            Err(Error::Memory(MemoryError::OutOfMemory { .. })) if !self.gpu_runs() => {
                // Freed memory may be in pieces that are too small.
                self.pool.trim()?;
                self.pool.allocate(bytes, zeroing)?
            }
            result => result?,
        };
        self.foreign.forget(address);
        Ok(address)
    }

    unsafe fn free(&self, address: u64, bytes: usize) {
        #[cfg(target_os = "linux")]
        // SAFETY: the caller's promise.
        if unsafe { self.shareable.free(address) } {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { self.pool.free(address, bytes) }
    }

    unsafe fn fill(&self, address: u64, data: *const u8, bytes: usize) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.pool.fill(address, data, bytes) }
    }

    fn allocate_host(&self, bytes: usize) -> Result<NonNull<u8>, Error> {
        // The driver may wait for kernels that run, and would for each proxy.
        let _held = self.proxy.hold();
        self.host.take(bytes, || self.end_proxy())
    }

    unsafe fn free_host(&self, start: NonNull<u8>, _bytes: usize) {
        self.host.give_back(start);
    }

    fn within_reach(&self, live: usize) -> Option<usize> {
        // Buffers may use adopted memory, which is not in the pool.
        let Sizes { total, free, reserved, .. } = self.pool.sizes().ok()?;
        Some(total.min(free.saturating_add(reserved).saturating_add(live)))
    }

    fn info(&self) -> Result<MemoryInfo, Error> {
        let Sizes { total, free, reserved, used } = self.pool.sizes()?;
        let free = free.saturating_add(reserved.saturating_sub(used)).min(total);
        Ok(MemoryInfo { free, total })
    }

    fn place(&self) -> Place {
        self.peers.place()
    }

    fn reads(&self, place: Place) -> bool {
        self.peers.reads(place)
    }

    fn foreign(&self) -> Option<&dyn ForeignMemory> {
        Some(&self.foreign)
    }

    #[cfg(target_os = "linux")]
    fn shared(&self, address: u64) -> Option<Arc<OwnedFd>> {
        self.shareable.descriptor(address)
    }

    #[cfg(target_os = "linux")]
    fn open(&self, descriptor: BorrowedFd<'_>, bytes: usize) -> Result<u64, Error> {
        self.without_proxy(|| self.shareable.open(descriptor, bytes))
    }
}

impl CudaDevice {
    /// Maps memory, where the driver may wait for kernels that run, and would for each proxy.
    #[cfg(target_os = "linux")]
    fn without_proxy<R>(&self, map: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
        let _entered = self.context().enter()?;
        let _held = self.proxy.hold();
        self.end_proxy();
        map()
    }

    #[cfg(target_os = "linux")]
    fn allocate_shared(&self, bytes: usize, zeroing: Zeroing) -> Result<u64, Error> {
        let _entered = self.context().enter()?;
        let address = self.without_proxy(|| self.shareable.allocate(bytes))?;
        // After an error the device may still write it, so it stays until the device is dropped.
        // SAFETY: just allocated, and no other thread knows of it.
        unsafe { self.pool.zero_now(address, bytes, zeroing) }?;
        Ok(address)
    }

    pub(super) fn context(&self) -> &Context {
        &self.shared.context
    }

    /// Whether kernels may hold the SMs, so that a kernel of the driver's might wait for them.
    pub(super) fn something_runs(&self) -> bool {
        self.shared.watch.has_pending() || self.opaque.has_under_way()
    }

    /// Whether cohorts hold SMs that were not told to leave, or that do not leave within `limit`, which is what the caller takes
    /// without an SM. So a wait in vain doubles the caller's time at most.
    fn something_stays(&self, limit: Duration) -> bool {
        let start = Instant::now();
        while self.something_runs() {
            let may_leave = !self.opaque.has_under_way() && self.shared.watch.all_leave();
            if !may_leave || start.elapsed() > limit {
                return true;
            }
            // The watch has a lock, which the poller takes as well.
            (0..64).for_each(|_| hint::spin_loop());
        }
        false
    }

    /// As [`something_runs`](CudaDevice::something_runs), on any part of the GPU that this is a part of: some calls of the
    /// driver wait for all of it.
    pub(super) fn gpu_runs(&self) -> bool {
        let parts = self.parts.get().into_iter().flat_map(|parts| parts.iter());
        let others = parts.filter_map(Weak::upgrade).any(|part| part.something_runs());
        others || self.something_runs()
    }

    /// Asks the driver about everything that is in flight. The driver reports a fault when it is asked, and the context
    /// notes it.
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

    /// Ends the proxy while something is in flight, so that signals go by stream writes until it is launched again. The
    /// context is entered.
    pub(super) fn end_proxy(&self) {
        self.proxy.leave(|queue, word| {
            // The same word twice is one signal. As for any signal, no operation could be told of an error.
            let _ = self.context().must(|| self.queues.signal(queue, word));
        });
    }

    /// Starts the proxy again if its time is over. Blocks of plain grids and of opaque work may have its place.
    fn renew_proxy(&self) {
        if self.proxy.is_to_follow()
            && !self.shared.watch.has_plain()
            && !self.opaque.has_under_way()
        {
            // Signals can do without.
            let are_large =
                || self.gates.are_beside_large(self.shared.watch.busy_queues().into_iter());
            let _ = self.proxy.renew(|| self.context().enter(), are_large);
        }
    }

    /// Starts the proxy, unless words are on their way to the queues, which would arrive behind its own: signals are stream
    /// writes then.
    fn start_proxy(&self, patience: Duration) -> Result<(), Error> {
        if self.proxy.is_live() {
            return Ok(());
        }
        let _entered = self.context().enter()?;
        match self.queues.control().settle(START)? {
            true => self.proxy.await_place(patience),
            false => Ok(()),
        }
    }
}
