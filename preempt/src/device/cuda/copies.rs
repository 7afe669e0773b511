//! Copies between buffers and the host's ordinary memory.
//!
//! The driver's own copies of ordinary memory may wait for everything on the device, so all copies go through pinned
//! memory, unless they are of the application's [pinned memory](super::host_pool). The scheduler puts small copies into a
//! stream itself, without another thread; large ones are carried by a thread for each direction, in pieces. A fill is a
//! copy of one element again and again. While nothing runs, the driver sets large memory by a kernel of its own.

use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use super::context::Context;
use super::driver::RawStream;
use super::host_pool::HostPool;
use super::lock;
use super::memory::Pinned;
use super::ring::{Ring, RingSlot};
use super::staged::Staged;
use super::streams::{Stream, TrackedStream};
use super::transfer::{self, Memset};
use super::watch::Watch;
use crate::device::rows::copy_rows;
use crate::device::{Copy, CopyKind, DeviceReport};
use crate::error::{DeviceError, Error};
use crate::vocabulary::OpKey;

/// Bytes: a larger copy is carried by a thread; the scheduler copies this much in less than 10 µs.
const SMALL: usize = 64 << 10;

/// Bytes of pinned memory for small copies under way in one direction.
const STAGING: usize = 1 << 20;

/// The state that all copies share with the device.
#[derive(Debug)]
pub(super) struct Shared {
    pub context: Arc<Context>,
    pub watch: Watch,
    reports: Mutex<Vec<DeviceReport>>,
    has_reports: AtomicBool,
}

impl Shared {
    pub fn new(context: &Arc<Context>, watch: Watch) -> Shared {
        let (reports, has_reports) = (Mutex::default(), AtomicBool::new(false));
        Shared { context: context.clone(), watch, reports, has_reports }
    }

    /// Reports how a copy or opaque work ended. Reports nothing if the context is lost, because that is reported once
    /// for all operations.
    pub fn end(&self, op: OpKey, result: Result<(), Error>) {
        let fault = match result {
            Ok(()) => None,
            Err(Error::Device(DeviceError::ContextLost { .. })) => return,
            Err(error) => Some(DeviceReport::Fault(op, error.to_string().into())),
        };
        let mut reports = lock(&self.reports);
        reports.extend(fault);
        reports.push(DeviceReport::CopyDone(op));
        // Relaxed: a thread that sees the flag takes the lock.
        self.has_reports.store(true, Ordering::Relaxed);
        drop(reports);
        self.watch.announce();
    }

    fn take_reports(&self, reports: &mut Vec<DeviceReport>) {
        if self.has_reports.load(Ordering::Relaxed) {
            let mut own = lock(&self.reports);
            self.has_reports.store(false, Ordering::Relaxed);
            reports.append(&mut own);
        }
    }
}

/// The tracked streams that copies run on.
#[derive(Debug)]
pub(super) struct CopyStreams {
    pub small_up: Arc<TrackedStream>,
    pub small_down: TrackedStream,
    pub across: TrackedStream,
    pub large_up: Arc<TrackedStream>,
    pub large_down: Arc<TrackedStream>,
    pub from_peers: TrackedStream,
}

#[derive(Debug)]
pub(super) struct Copies {
    shared: Arc<Shared>,
    up: Direction,
    down: Direction,
    across: Direction,
    from_peers: Direction,
    /// Large copies from and to pinned memory of the application, in the streams of the carriers.
    direct_up: Direction,
    direct_down: Direction,
    large_up: Carrier,
    large_down: Carrier,
    host: Arc<HostPool>,
}

impl Copies {
    /// The context is entered.
    pub fn new(
        shared: &Arc<Shared>,
        host: &Arc<HostPool>,
        lines: CopyStreams,
    ) -> Result<Copies, Error> {
        let CopyStreams { small_up, small_down, across, large_up, large_down, from_peers } = lines;
        let context = &shared.context;
        let staging = || Pinned::new(context, STAGING).map(Some);
        Ok(Copies {
            shared: shared.clone(),
            up: Direction::new(context, small_up, staging()?),
            down: Direction::new(context, Arc::new(small_down), staging()?),
            across: Direction::new(context, Arc::new(across), None),
            from_peers: Direction::new(context, Arc::new(from_peers), None),
            direct_up: Direction::new(context, large_up.clone(), None),
            direct_down: Direction::new(context, large_down.clone(), None),
            host: host.clone(),
            large_up: Carrier::start("preempt-upload", shared, large_up)?,
            large_down: Carrier::start("preempt-download", shared, large_down)?,
        })
    }

    /// Starts a copy. The driver fills memory by a kernel, which might wait for SMs while `something_runs`.
    ///
    /// # Safety
    ///
    /// Both places are valid for the copy until it is reported as over, or the context as lost.
    pub unsafe fn start(&self, op: OpKey, copy: Copy, something_runs: impl FnOnce() -> bool) {
        // SAFETY: the caller's promise.
        if let Err(error) = unsafe { self.try_start(op, copy, something_runs) } {
            self.shared.end(op, Err(error));
        }
    }

    /// # Safety
    ///
    /// As [`start`](Copies::start).
    unsafe fn try_start(
        &self,
        op: OpKey,
        copy: Copy,
        something_runs: impl FnOnce() -> bool,
    ) -> Result<(), Error> {
        let bytes = copy.rows.total();
        if bytes == 0 {
            self.shared.end(op, Ok(()));
            return Ok(());
        }
        self.shared.watch.stir();
        let is_small = bytes <= SMALL;
        if self.is_direct(copy) {
            let direction = match (copy.kind, is_small) {
                (CopyKind::OnDevice, _) => &self.across,
                (CopyKind::FromPeer, _) => &self.from_peers,
                (CopyKind::ToDevice, true) => &self.up,
                (CopyKind::ToDevice, false) => &self.direct_up,
                (CopyKind::ToHost, true) => &self.down,
                (CopyKind::ToHost, false) => &self.direct_down,
            };
            // SAFETY: the caller's promise.
            return direction.put(op, copy, |context, stream| unsafe {
                let Copy { kind, from, to, rows } = copy;
                transfer::enqueue(context, stream, kind, from, to, rows)
            });
        }
        if copy.rows.is_repeated() && !is_small && !something_runs() {
            // SAFETY: the caller's promise.
            let memset = unsafe { Memset::of(&self.shared.context, copy)? };
            if let Some(memset) = memset {
                // SAFETY: as above.
                return self
                    .across
                    .put(op, copy, |context, stream| unsafe { memset.enqueue(context, stream) });
            }
        }
        let (direction, carrier) = match copy.kind {
            CopyKind::ToHost => (&self.down, &self.large_down),
            _ => (&self.up, &self.large_up),
        };
        if !is_small {
            carrier.send(op, copy);
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { direction.start(op, copy) }
    }

    fn directions(&self) -> impl Iterator<Item = &Direction> {
        let direct = [&self.direct_up, &self.direct_down];
        [&self.up, &self.down, &self.across, &self.from_peers].into_iter().chain(direct)
    }

    /// Whether the host's side of a copy is pinned memory of the application, so that no other memory is needed.
    fn is_direct(&self, Copy { kind, from, to, rows }: Copy) -> bool {
        match kind {
            CopyKind::ToDevice => {
                !rows.is_repeated() && self.host.contains(from, rows.source_span())
            }
            CopyKind::ToHost => self.host.contains(to, rows.target_span()),
            CopyKind::OnDevice | CopyKind::FromPeer => true,
        }
    }

    /// Whether there is something to report.
    pub fn has_news(&self) -> bool {
        self.directions().any(Direction::has_news)
    }

    /// Ends copies that are done, and appends their reports.
    pub fn take_reports(&self, reports: &mut Vec<DeviceReport>) {
        for direction in self.directions() {
            direction.take_done(&self.shared, reports);
        }
        self.shared.take_reports(reports);
    }

    /// Forgets every copy: the context is lost, and the memory of the copies may be freed after this.
    pub fn forget(&self) {
        for direction in self.directions() {
            direction.forget();
        }
        self.shared.context.wait_until_untouched();
    }

    /// The streams that copies are in.
    pub fn streams(&self) -> impl Iterator<Item = &Stream> {
        self.directions().map(|direction| direction.line.stream())
    }

    /// Finds out whether the context is lost, while copies are under way.
    pub fn check(&self) -> Result<(), Error> {
        self.streams().try_for_each(|stream| stream.is_idle().map(drop))
    }
}

/// Copies of one kind, in order.
#[derive(Debug)]
struct Direction {
    line: Arc<TrackedStream>,
    /// Pinned memory that the host's side of copies passes through, where that is not pinned itself.
    staging: Option<Pinned>,
    queue: Mutex<Queue>,
    /// The number of the last work done when reports were last taken.
    seen: AtomicU64,
    context: Arc<Context>,
}

#[derive(Debug)]
struct Queue {
    ring: Ring,
    under_way: VecDeque<UnderWay>,
    /// Copies that found no room in the ring.
    waiting: VecDeque<(OpKey, Copy)>,
}

#[derive(Debug)]
struct UnderWay {
    op: OpKey,
    copy: Copy,
    /// The copy is done when the line has done the work of this number.
    number: u64,
    place: Option<RingSlot>,
}

impl Direction {
    fn new(context: &Arc<Context>, line: Arc<TrackedStream>, staging: Option<Pinned>) -> Direction {
        let ring = Ring::new(STAGING);
        let queue = Queue { ring, under_way: VecDeque::new(), waiting: VecDeque::new() };
        let seen = AtomicU64::new(line.done());
        Direction { line, staging, queue: Mutex::new(queue), seen, context: context.clone() }
    }

    /// Puts work into the stream that needs no staging. It goes before copies that wait for room there.
    fn put(
        &self,
        op: OpKey,
        copy: Copy,
        work: impl FnOnce(&Context, RawStream) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let _entered = self.context.enter()?;
        let mut queue = lock(&self.queue);
        let number = self.line.issue(|stream| work(&self.context, stream))?;
        queue.under_way.push_back(UnderWay { op, copy, number, place: None });
        Ok(())
    }

    /// # Safety
    ///
    /// As [`Copies::start`].
    unsafe fn start(&self, op: OpKey, copy: Copy) -> Result<(), Error> {
        let _entered = self.context.enter()?;
        let mut queue = lock(&self.queue);
        // SAFETY: the caller's promise.
        if !queue.waiting.is_empty() || !unsafe { self.issue(&mut queue, op, copy)? } {
            queue.waiting.push_back((op, copy));
        }
        Ok(())
    }

    /// Puts a copy into the stream, if there is room. The context is entered.
    ///
    /// # Safety
    ///
    /// As [`Copies::start`].
    unsafe fn issue(&self, queue: &mut Queue, op: OpKey, copy: Copy) -> Result<bool, Error> {
        let Some(staging) = &self.staging else { return Ok(false) };
        let before = queue.ring;
        let Some(place) = queue.ring.take(copy.rows.total()) else { return Ok(false) };
        // SAFETY: the caller's promise, and the place is this copy's.
        let number = unsafe { self.enqueue(copy, staging.at(place.offset)) }
            .inspect_err(|_| queue.ring = before)?;
        queue.under_way.push_back(UnderWay { op, copy, number, place: Some(place) });
        Ok(true)
    }

    /// Puts a copy into the stream; its host side passes through `staged`. The context is entered.
    ///
    /// # Safety
    ///
    /// As [`Copies::start`], and no other copy uses `staged` before the copy is taken out of the queue.
    unsafe fn enqueue(&self, copy: Copy, staged: *mut u8) -> Result<u64, Error> {
        let Copy { from, to, rows, kind } = copy;
        let staging = staged as u64;
        let (from, to, rows) = match kind {
            CopyKind::ToDevice => {
                let from = ptr::with_exposed_provenance::<u8>(from as usize);
                // SAFETY: the caller's promise.
                let stage = || unsafe { copy_rows(from, staged, rows.with_packed_target()) };
                self.context.touching(stage)?;
                (staging, to, rows.with_packed_source())
            }
            CopyKind::ToHost => (from, staging, rows.with_packed_target()),
            CopyKind::OnDevice | CopyKind::FromPeer => (from, to, rows),
        };
        // SAFETY: the caller's promise.
        self.line.issue(|stream| unsafe {
            transfer::enqueue(&self.context, stream, kind, from, to, rows)
        })
    }

    fn has_news(&self) -> bool {
        // Relaxed: a thread that sees a difference looks under the lock.
        self.line.done() != self.seen.load(Ordering::Relaxed)
    }

    fn take_done(&self, shared: &Shared, reports: &mut Vec<DeviceReport>) {
        let done = self.line.done();
        if done == self.seen.load(Ordering::Relaxed) {
            return;
        }
        let mut queue = lock(&self.queue);
        while let Some(UnderWay { op, copy, number, place }) = queue.under_way.pop_front() {
            if number > done {
                queue.under_way.push_front(UnderWay { op, copy, number, place });
                break;
            }
            if let (Some(staging), Some(place)) = (&self.staging, place) {
                if copy.kind == CopyKind::ToHost {
                    let to = ptr::with_exposed_provenance_mut::<u8>(copy.to as usize);
                    let from = staging.at(place.offset).cast_const();
                    // SAFETY: the copy's owners keep its place valid until the report below, and
                    // the device has written ours.
                    unsafe { copy_rows(from, to, copy.rows.with_packed_source()) };
                }
                queue.ring.give_back(place);
            }
            reports.push(DeviceReport::CopyDone(op));
        }
        self.start_waiting(&mut queue, shared);
        self.seen.store(done, Ordering::Relaxed);
    }

    /// Starts the waiting copies for which there is room now.
    fn start_waiting(&self, queue: &mut Queue, shared: &Shared) {
        while let Some((op, copy)) = queue.waiting.pop_front() {
            let entered = self.context.enter();
            // SAFETY: the caller of `start` promised it.
            match entered.and_then(|_entered| unsafe { self.issue(queue, op, copy) }) {
                Ok(true) => {}
                Ok(false) => {
                    queue.waiting.push_front((op, copy));
                    break;
                }
                Err(error) => shared.end(op, Err(error)),
            }
        }
    }

    fn forget(&self) {
        let mut queue = lock(&self.queue);
        queue.under_way.clear();
        queue.waiting.clear();
    }
}

/// A thread for large copies in one direction.
#[derive(Debug)]
struct Carrier {
    /// The thread ends when this is dropped; `None` only then.
    jobs: Option<Mutex<Sender<(OpKey, Copy)>>>,
    thread: Option<JoinHandle<()>>,
}

impl Carrier {
    fn start(
        name: &'static str,
        shared: &Arc<Shared>,
        line: Arc<TrackedStream>,
    ) -> Result<Carrier, Error> {
        let staged = Staged::new(&shared.context)?;
        let shared = shared.clone();
        let (jobs, receiver) = channel::<(OpKey, Copy)>();
        let carry = move || {
            for (op, copy) in receiver {
                // SAFETY: the copy's owners keep both places valid until it is reported.
                let result = unsafe { carry(&shared.context, &staged, &line, copy) };
                shared.end(op, result);
            }
        };
        match thread::Builder::new().name(name.into()).spawn(carry) {
            Ok(thread) => Ok(Carrier { jobs: Some(Mutex::new(jobs)), thread: Some(thread) }),
            Err(source) => Err(Error::Thread { what: "copies", source: Arc::new(source) }),
        }
    }

    fn send(&self, op: OpKey, copy: Copy) {
        if let Some(jobs) = &self.jobs {
            // The thread lives as long as this.
            let _ = lock(jobs).send((op, copy));
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.jobs = None;
        // The thread has nothing to do: the scheduler has waited for its copies, or they end because the context is
        // lost. Without the join, the process could end while the thread frees memory.
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// # Safety
///
/// As [`Copies::start`].
unsafe fn carry(
    context: &Context,
    staged: &Staged,
    line: &TrackedStream,
    copy: Copy,
) -> Result<(), Error> {
    let Copy { from, to, rows, kind } = copy;
    let _entered = context.enter()?;
    match kind {
        CopyKind::ToHost => {
            let to = ptr::with_exposed_provenance_mut(to as usize);
            // SAFETY: the caller's promise.
            unsafe { staged.download(line, to, from, rows) }
        }
        _ => {
            let from = ptr::with_exposed_provenance(from as usize);
            // SAFETY: the caller's promise.
            unsafe { staged.upload(line, to, from, rows) }
        }
    }
}
