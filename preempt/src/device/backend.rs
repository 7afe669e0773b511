//! What a kind of device implements. The contract is at the top of `device`.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
#[cfg(target_os = "linux")]
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use preempt_device::abi::{Cohort, Signal, slot_bytes};
use preempt_device::host::{Amortize, Args, Dim3, Kernel};

use super::control::{ControlSource, Grid, PlainGrid};
use super::news::Mark;
use super::program::{Chains, ProgramLaunch, Step};
use super::rows::Rows;
use super::{Footprint, FormFootprint, MemoryInfo, News, Properties};
use crate::error::{CodeError, DeviceError, Error};
use crate::foreign::ForeignModule;
use crate::module::DeviceCode;
use crate::vocabulary::{CohortOrder, Costs, OpKey, QueueCount, Vicinity};

/// A kind of device. Any thread may call any method; calls for one operation come in the engine's order.
pub(crate) trait Backend: Send + Sync {
    /// Makes the device ready for a scheduler, whose signals take this path. Kernels are known afterwards, and the
    /// queues hold no word of the previous scheduler. Reserves so many bytes for block-tasks that blocks leave at
    /// checkpoints, if a kernel has one and the device keeps them in its memory. Nothing is in flight. May block.
    fn load(&self, code: &[DeviceCode], path: SignalPath, save_bytes: usize) -> Result<(), Error>;

    /// Makes this number of equal parts, with an equal share of the memory each. What is put on one stays there. No scheduler
    /// has the device, and none has it while a part lives. May block.
    fn split(&self, properties: &Properties, parts: u32) -> Result<Vec<Piece>, Error> {
        let reason = format!("{} has no parts", properties.name).into();
        Err(Error::Device(DeviceError::NotSplit { parts, reason }))
    }

    /// Keeps what it is a part of until it is dropped itself. Called once, for parts.
    fn keep(&self, _whole: Owner) {}

    /// Loads a module of another compiler, and makes its kernels launchable until the next [`load`](Backend::load). Nothing is
    /// in flight. May block.
    fn load_foreign(&self, module: &ForeignModule) -> Result<(), Error> {
        let entry = module.kernels.first().map_or("", |of| of.kernel.name);
        let (entry, module) = (entry.into(), module.name.into());
        Err(Error::Code(CodeError::NoHostCode { entry, module }))
    }

    /// Blocks of a kernel that one SM holds in a launch of `tasks` block-tasks, if each takes `shared` bytes of shared
    /// memory. 0 if a block cannot have so much.
    fn occupancy(
        &self,
        kernel: &'static Kernel,
        block: Dim3,
        shared: u32,
        tasks: u32,
    ) -> Result<Occupancy, Error>;

    /// What blocks of a kernel take in each form, if an SM holds so many of the preemptible one. It is
    /// [loaded](Backend::occupancy).
    fn footprint(
        &self,
        kernel: &'static Kernel,
        block: Dim3,
        shared: u32,
        blocks_per_sm: u32,
    ) -> Result<Footprint, Error> {
        let _ = (kernel, block, shared);
        let form = FormFootprint { blocks_per_sm, ..FormFootprint::default() };
        Ok(Footprint { plain: form, preemptible: form })
    }

    /// Says that cohorts are put into a queue next, and may be signalled: whether they leave the device's own block [a
    /// place](KernelLaunch::leaves_place), and whether they run so long that a faster path of signals is worth its start.
    fn expect_signals(&self, leaves_place: bool, is_long: bool) -> Result<(), Error> {
        let _ = (leaves_place, is_long);
        Ok(())
    }

    /// Says that nothing is in flight, so the device may put down what it keeps resident.
    fn rest(&self);

    /// Where control blocks, posts and requeue lists come from.
    fn control(&self) -> &dyn ControlSource;

    /// Where the memory of buffers comes from.
    fn memory(&self) -> &dyn DeviceMemory;

    /// Puts a grid into a queue, without waiting for the device. A refused launch leaves nothing behind. `vicinity`
    /// says where its blocks go, and whose they may meet there.
    ///
    /// # Safety
    ///
    /// What the grid points to came from [`control`](Backend::control), and is not given back before the grid has
    /// posted. The arguments are the kernel's.
    unsafe fn launch(
        &self,
        op: OpKey,
        queue: u32,
        launch: &Arc<KernelLaunch>,
        grid: Grid,
        vicinity: Vicinity,
    ) -> Result<(), Error>;

    /// Makes what launches of programs need, whatever the arguments of their kernels: an owner for each. What is captured is
    /// so once, also if several of the programs have it. May wait for kernels that run, and is called by threads of the
    /// application alone. It launches nothing.
    ///
    /// # Safety
    ///
    /// The arguments of each launch are its kernel's. Both places of each copy are valid as long as its owners live.
    unsafe fn prepare(&self, programs: &[&[Step]]) -> Result<Vec<Owner>, Error>;

    /// Puts the calls of a program into a queue, and behind them the post of all of them, without waiting for the device.
    /// A refused launch leaves nothing behind. The grid's extents have no meaning.
    ///
    /// # Safety
    ///
    /// As for [`launch`](Backend::launch) and [`copy`](Backend::copy), for each call. The program's calls differ from those
    /// that it was prepared with in the launches of the same kernels alone.
    unsafe fn launch_program(
        &self,
        op: OpKey,
        queue: u32,
        program: &ProgramLaunch,
        grid: PlainGrid,
    ) -> Result<(), Error>;

    /// Makes what it needs to take launches of a preemptible program together. May wait for kernels that run, and is called
    /// by threads of the application alone.
    ///
    /// # Safety
    ///
    /// The arguments of each launch are its kernel's.
    unsafe fn prepare_chains(&self, _steps: &[Step]) -> Result<Option<Chains>, Error> {
        Ok(None)
    }

    /// Puts cohorts into a queue, one behind the other: those of the program's calls from the first of `calls` on, which are
    /// one of its [chains](ProgramLaunch::chains). With it, by whose post the end of each is
    /// [found](super::control::shown_by). Does not wait for the device. A refused launch leaves nothing behind.
    ///
    /// # Safety
    ///
    /// As for [`launch`](Backend::launch), for each call.
    unsafe fn launch_chain(
        &self,
        _queue: u32,
        _program: &ProgramLaunch,
        _calls: (usize, &[usize]),
        _cohorts: &[Cohort],
    ) -> Result<(), Error> {
        let reason = "it has prepared no chain".into();
        Err(Error::Device(DeviceError::Unsupported { reason }))
    }

    /// Says that gates are used from now on: kernels may leave room for them.
    fn expect_gates(&self) {}

    /// Puts a gate into an empty queue, without waiting for the device: what is put there next waits until the gate is
    /// opened or closed, or has been there for `limit`. The word that has the gate's ticket once it was opened. The device
    /// keeps the limit by itself, however long the host takes, and whatever its threads wait for.
    fn gate(&self, gate: Gate, limit: Duration) -> Result<*const AtomicU64, Error>;

    /// Opens a gate that was not closed, which tells the cohorts of other queues what it was to [tell](Backend::hint) them. A
    /// gate that is gone stays so. Calls nothing that may wait.
    fn open_gate(&self, gate: Gate);

    /// Closes a gate that was not opened. Calls nothing that may wait.
    fn close_gate(&self, gate: Gate);

    /// Sets what the gate of a queue tells others when it is opened: a signal for each of these queues, in the place of an
    /// older one.
    fn hint(&self, gate: u32, words: &[(u32, Signal)]);

    /// Writes a queue's signal word, without waiting for the device. Words of one queue arrive in the order of the
    /// calls.
    fn signal(&self, queue: u32, signal: Signal);

    /// Starts a copy, without waiting for it.
    ///
    /// # Safety
    ///
    /// Both places are valid for the copy until its end, or the loss of the device, is reported.
    unsafe fn copy(&self, op: OpKey, copy: Copy);

    /// Calls `work` on this thread, and may block. The operation ends with everything that `work` put into the stream.
    /// One thread at a time calls this, for operations of the scheduler that has the device.
    fn opaque(&self, op: OpKey, work: OpaqueWork);

    /// Writes the posts of grids that are over, where the device does not do so itself. If another thread is doing that,
    /// returns at once.
    fn find_ends(&self) {}

    /// Appends what has not been reported yet, without waiting. A fault is reported no later than the post of its
    /// cohort can be read.
    fn poll(&self, reports: &mut Vec<DeviceReport>);

    /// Does what keeps the device ready, and may take calls of the driver. Asked at the end of a turn that has found no message
    /// and no report, so that none that was there waits for it. Who [waits](Backend::wait) need not ask.
    fn maintain(&self) {}

    /// Waits until something may have happened since the mark, or for `timeout`. Even a timeout of zero includes one
    /// look for faults that the device does not announce.
    fn wait(&self, since: Mark, timeout: Duration);

    /// Streams of other libraries, on a device that has such streams.
    fn streams(&self) -> Result<&dyn ForeignStreams, Error> {
        Err(Error::Device(DeviceError::NoContext))
    }
}

/// What a device is made of.
pub(crate) struct Piece {
    pub backend: Arc<dyn Backend>,
    pub properties: Properties,
    pub capabilities: Capabilities,
    /// To which the back end announces.
    pub news: Arc<News>,
}

/// A gate in a queue, told from those before it there by its ticket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gate {
    pub queue: u32,
    /// Not 0, and below 2⁶³.
    pub ticket: u64,
}

impl Gate {
    /// The gate before a cohort.
    pub fn of(order: &CohortOrder) -> Gate {
        // Each cohort that is put into an empty queue gets a new epoch, which has 36 bits.
        Gate { queue: order.queue, ticket: 1 << 40 | order.signal.epoch() }
    }
}

/// The memory of a device, which buffers are in.
pub(crate) trait DeviceMemory {
    /// Memory with these contents. Waits for no kernel that runs.
    fn allocate(&self, bytes: usize, contents: Contents) -> Result<u64, Error>;

    /// Frees memory that no operation uses. Waits for no kernel that runs.
    ///
    /// # Safety
    ///
    /// `address` came from `allocate` with the same `bytes`, or starts an
    /// [`allocation`](ForeignMemory::allocation) of `bytes`; it is freed once.
    unsafe fn free(&self, address: u64, bytes: usize);

    /// Copies to memory that no operation uses, and waits for the copy.
    ///
    /// # Safety
    ///
    /// Both places are valid for `bytes`, and no other thread uses `address`.
    unsafe fn fill(&self, address: u64, data: *const u8, bytes: usize) -> Result<(), Error>;

    /// Zeroed memory of the host, aligned as device memory is, which copies read and write where it lies. May wait for
    /// kernels that run, and is called by threads of the application alone.
    fn allocate_host(&self, bytes: usize) -> Result<NonNull<u8>, Error>;

    /// Takes back memory of the host that no operation uses. Waits for nothing.
    ///
    /// # Safety
    ///
    /// `start` came from `allocate_host` with the same `bytes`, and is given back once.
    unsafe fn free_host(&self, start: NonNull<u8>, bytes: usize);

    /// Bytes that an allocation could have if this process freed all its memory, of which buffers have `live`. A lower
    /// bound; `None` where it is not known.
    fn within_reach(&self, live: usize) -> Option<usize>;

    /// The device's memory. Waits for no kernel that runs.
    fn info(&self) -> Result<MemoryInfo, Error>;

    /// Where its allocations lie.
    fn place(&self) -> Place;

    /// Whether copies [from a peer](CopyKind::FromPeer) read what another device allocates there, from now on. Waits for
    /// nothing.
    fn reads(&self, place: Place) -> bool;

    /// Memory that other libraries have allocated, if kernels can use it.
    fn foreign(&self) -> Option<&dyn ForeignMemory> {
        None
    }

    /// What other processes [open](DeviceMemory::open) the allocation by that starts at this address; `None` if it is not
    /// [shared](Contents::Shared).
    #[cfg(target_os = "linux")]
    fn shared(&self, address: u64) -> Option<Arc<OwnedFd>>;

    /// Maps memory of at least one byte that another process has allocated as [shared](Contents::Shared), with as many bytes, on a
    /// device of the same kind. It is [freed](DeviceMemory::free) as what is allocated here. May block.
    #[cfg(target_os = "linux")]
    fn open(&self, descriptor: BorrowedFd<'_>, bytes: usize) -> Result<u64, Error>;
}

/// Where allocations of a device lie, for devices that may read them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place(u64);

impl Place {
    /// The host's memory.
    pub(super) const HOST: Place = Place(0);

    /// A place of its own.
    pub(super) fn new() -> Place {
        // Relaxed below: only the number counts.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Place(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The contents of memory that was just allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Contents {
    Zeros,
    /// Whatever bytes, for memory that is written before it is read.
    Any,
    /// Zeros, in memory that other processes can [open](DeviceMemory::open). To allocate and free it may wait for kernels that
    /// run.
    #[cfg(target_os = "linux")]
    Shared,
}

/// Memory that other libraries have allocated on a device, and what they do there.
pub(crate) trait ForeignMemory {
    /// The allocation of another library that contains an address, if kernels can use it.
    fn allocation(&self, address: u64) -> Result<Option<Range<u64>>, Error>;

    /// Waits for work of other libraries that still runs although their calls have returned, because no launch would
    /// wait for it.
    fn await_unseen(&self) -> Result<(), Error>;

    /// Hands the memory that `allocate` gave at this address over to another library.
    fn give_away(&self, address: u64);

    /// Takes back memory that was [given](ForeignMemory::give_away) to another library.
    fn take_back(&self, address: u64);
}

/// Streams and events that other libraries have made in the device's context. They are handles of its driver.
pub(crate) trait ForeignStreams {
    /// An error unless this is the device's context.
    fn check_context(&self, context: *mut c_void) -> Result<(), Error>;

    /// Runs `call` with the device's context current on this thread.
    fn enter(&self, call: &mut dyn FnMut()) -> Result<(), Error>;

    /// Has a thread of the driver call `then` when what is in the stream now is done; never, if the context is lost
    /// before. `then` calls nothing of the driver, and is brief. Waits for nothing.
    ///
    /// # Safety
    ///
    /// The stream is not destroyed.
    unsafe fn call_after(
        &self,
        stream: *mut c_void,
        then: Box<dyn FnOnce() + Send>,
    ) -> Result<(), Error>;

    /// Whether an event has happened, or was never recorded.
    ///
    /// # Safety
    ///
    /// The event is not destroyed.
    unsafe fn has_happened(&self, event: *mut c_void) -> Result<bool, Error>;

    /// Calls `put` with an empty stream of the device's, into which it puts waits for events of other libraries, and waits
    /// until these have happened. The context is current in `put`.
    #[cfg_attr(
        not(feature = "cudarc"),
        allow(dead_code, reason = "cudarc's slices have events that only streams can wait for")
    )]
    fn await_events(
        &self,
        put: &mut dyn FnMut(*mut c_void) -> Result<(), Error>,
    ) -> Result<(), Error>;
}

/// What a kind of device can do; it never changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capabilities {
    pub queues: QueueCount,
    /// Kilohertz of the clock that blocks read.
    pub clock: u32,
    /// Whether the host must poll to see what happens on the device.
    pub is_polled: bool,
    /// What the device and its host take, as far as it was measured.
    pub costs: Costs,
    /// How long it took to measure them; `None` if nothing was measured.
    pub measuring: Option<Duration>,
}

impl Capabilities {
    /// The time of so many units of the clock that blocks read.
    pub fn time(&self, ticks: u64) -> Duration {
        let nanos = u128::from(ticks) * 1_000_000 / u128::from(self.clock.max(1));
        Duration::from_nanos(nanos.try_into().unwrap_or(u64::MAX))
    }

    /// A time in units of the clock that blocks read.
    pub fn ticks(&self, time: Duration) -> u32 {
        let ticks = time.as_nanos() * u128::from(self.clock) / 1_000_000;
        ticks.try_into().unwrap_or(u32::MAX)
    }
}

/// What all cohorts of a launch have in common.
#[derive(Clone, Debug)]
pub(crate) struct KernelLaunch {
    pub kernel: &'static Kernel,
    pub args: Args,
    pub block: Dim3,
    /// Block-tasks in x, y and z.
    pub grid: [u32; 3],
    pub amortize: Amortize,
    /// Whether its cohorts leave the device's own block a place on the last SM.
    pub leaves_place: bool,
}

impl KernelLaunch {
    /// Block-tasks in all.
    pub fn tasks(&self) -> u32 {
        // Checked before: at most `MAX_TASKS`.
        self.grid.iter().product()
    }

    /// Bytes of shared memory that each block takes.
    pub fn shared_bytes(&self) -> u32 {
        // Checked before: within what a block can have.
        self.args.shared_bytes(self.kernel).try_into().unwrap_or(u32::MAX)
    }

    /// Bytes of a slot of the save area for a block of this launch.
    pub fn slot_bytes(&self) -> u32 {
        slot_bytes(self.block.count() as u32, self.kernel.state_bytes, self.shared_bytes())
    }
}

/// How many blocks of a kernel an SM holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Occupancy {
    /// 0 if not even one fits.
    pub blocks_per_sm: u32,
    /// Blocks on the last SM of the device, which may also hold a block of the device's own.
    pub on_last_sm: u32,
    /// Whether the device's own block has room there beside them.
    pub leaves_place: bool,
}

impl Occupancy {
    /// Of a device without blocks of its own.
    pub fn even(blocks_per_sm: u32) -> Occupancy {
        Occupancy { blocks_per_sm, on_last_sm: blocks_per_sm, leaves_place: false }
    }
}

/// Whether a launch of `tasks` block-tasks can do with a block less than `places`: without it, at most a fiftieth more
/// block-tasks follow each other on each place. That is what a launch loses at most for signals that arrive sooner.
pub(super) fn spares_a_place(tasks: u32, places: u32) -> bool {
    let rounds = |places| u64::from(tasks.div_ceil(places));
    places > 1 && 50 * (rounds(places - 1) - rounds(places)) <= rounds(places)
}

/// How a running kernel is told that SMs were taken from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum SignalPath {
    /// A write by a stream of the GPU: about 5 µs, and nothing is resident.
    StreamWrite,
    /// The proxy where it is worth its start, and stream writes elsewhere; on a [part](crate::Device::split) of a GPU, stream
    /// writes. No kernel is refused.
    ///
    /// The proxy is started on an idle device, before a launch whose duration is unknown, or a hundred times as long as
    /// the start; ten times where another stream has had a latency limit, or the policy has one, because such a limit
    /// counts from the arrival of a signal, which the proxy alone tells. The launch waits for the start: 10 µs, and 100
    /// µs if other code's blocks fill the GPU. The proxy ends before a launch that would last more than a fiftieth longer
    /// with a block less on the GPU, and when nothing is in flight. Until then it is as with [`Proxy`](SignalPath::Proxy).
    #[default]
    Auto,
    /// A resident warp, the proxy, reads the host's memory and carries each word over (EffiSha section 4.1): about 2
    /// µs. It takes the place of a block on one SM while anything is in flight, and reads over the bus all the time.
    /// The first launch after a pause waits 10 µs for it. Kernels of which an SM holds a single block are refused. The
    /// CPU device needs neither path.
    ///
    /// Driver calls of the application that wait for all kernels wait for the proxy, too (`cuMemFree`, `cuCtxSynchronize`,
    /// lazy loading): 4 ms at most, because it leaves by itself then. As long as something is in flight, the next one
    /// follows, where it finds room. Between two of them signals are stream writes.
    Proxy,
}

/// A stream of the device's own API, for [opaque work](crate::Stream::opaque).
#[derive(Clone, Copy, Debug)]
pub struct RawStream(*mut c_void);

impl RawStream {
    /// The stream of a device whose API has no streams.
    pub(super) const NONE: RawStream = RawStream(ptr::null_mut());

    pub(super) fn new(stream: *mut c_void) -> RawStream {
        RawStream(stream)
    }

    /// The `CUstream` (a `cudaStream_t`, too), in the device's primary context; `None` on the CPU device. The scheduler
    /// owns it: do not destroy it, and use it only during the call of the work.
    pub fn as_raw(self) -> Option<*mut c_void> {
        (!self.0.is_null()).then_some(self.0)
    }
}

/// Code of the application or of a library that puts work into the stream that it is given. It returns its error as
/// text, and does not panic.
pub(crate) type OpaqueWork = Box<dyn FnOnce(RawStream) -> Result<(), String> + Send>;

/// A copy between the device and the host, on the device, or from another one. The addresses are those of the first rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub kind: CopyKind,
    pub from: u64,
    pub to: u64,
    /// [Repeated](Rows::is_repeated) only from the host to the device: that fills memory with an element.
    pub rows: Rows,
}

/// The sides that a copy reads and writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CopyKind {
    ToDevice,
    ToHost,
    OnDevice,
    /// From memory of a device that this one [reads](DeviceMemory::reads).
    FromPeer,
}

/// A copy and the owners of its memory.
pub(crate) struct OwnedCopy {
    pub(super) copy: Copy,
    pub(super) owners: [Owner; 2],
}

/// Keeps alive the memory that a copy uses.
pub(crate) type Owner = Arc<dyn Any + Send + Sync>;

impl OwnedCopy {
    /// # Safety
    ///
    /// Both places are valid for the copy while the owners live and it has its turn among the operations on them.
    pub unsafe fn new(copy: Copy, owners: [Owner; 2]) -> OwnedCopy {
        OwnedCopy { copy, owners }
    }

    /// The owners of the source and of the target.
    pub fn owners(&self) -> &[Owner; 2] {
        &self.owners
    }

    /// Moves the source and the target to what `address` gives for each owner and address, if anything.
    ///
    /// # Safety
    ///
    /// As for [`new`](OwnedCopy::new).
    pub unsafe fn relocate(&mut self, address: impl Fn(&Owner, u64) -> Option<u64>) {
        let OwnedCopy { copy: Copy { from, to, .. }, owners: [source, target] } = self;
        for (owner, place) in [(source, from), (target, to)] {
            *place = address(owner, *place).unwrap_or(*place);
        }
    }
}

impl fmt::Debug for OwnedCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.copy.fmt(f)
    }
}

/// What a device reports beside the posts of cohorts.
#[derive(Debug)]
pub(crate) enum DeviceReport {
    /// A copy or opaque work is over.
    CopyDone(OpKey),
    /// A launch, a copy or opaque work went wrong; it still ends.
    Fault(OpKey, Arc<str>),
    /// The device is lost to this process: nothing given to it ends, or is reported, from now on.
    Lost(Loss),
}

/// Why a device is lost.
#[derive(Clone, Debug)]
pub(crate) struct Loss {
    /// For everything that is lost with it.
    pub message: Arc<str>,
    /// The panic that ended it, if one did.
    pub panic: Option<KernelPanic>,
}

/// A panic in a kernel, which the device did not survive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KernelPanic {
    /// The kernel's [`entry`](Kernel::entry), if it is known.
    pub entry: Option<Arc<str>>,
    /// The address of its cohort's post, and the ticket; `None` in a plain grid.
    pub cohort: Option<(u64, u32)>,
    /// The block-task and the thread, as a fault names them.
    pub place: Arc<str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_spares_a_place_if_it_lasts_a_fiftieth_longer_at_most() {
        let spares = |tasks, places| spares_a_place(tasks, places);
        assert!(spares(0, 264) && spares(1, 264) && spares(263, 264), "a place is left over");
        assert!(!spares(264, 264), "twice as long");
        assert!(!spares(49 * 264, 264) && spares(50 * 264, 264), "49 rounds, or 50");
        assert!(spares(49 * 264 - 49, 264) && !spares(49 * 264 - 48, 264), "the last one has room");
        assert!(!spares(1, 1) && !spares(1_000, 1) && !spares(1_000, 0), "there is no other");
        assert!(!spares(u32::MAX, 2), "half as fast");
        assert!(spares(u32::MAX, 1 << 20));
    }
}
