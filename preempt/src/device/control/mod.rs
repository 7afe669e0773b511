//! Orders become grids, posts become reports.
//!
//! Everything that host and device share about a launch passes through this module: control blocks, posts, tickets,
//! requeue lists, and the parameter that a preemptible entry has beside the kernel's own. All kinds of devices share it; they
//! only say where that memory is ([`ControlSource`]) and put grids into queues.
//!
//! Why a post means the end of its cohort: a ticket is used again only after more than half a million other cohorts of
//! the same slot, each of which was launched after the one before it had posted.

use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use preempt_device::abi::{
    Begun, COHORT_SLOTS, Cohort, CohortFlags, ControlBlock, Divisor, MAX_PROGRESS, Post, Posted,
    Progress, RequeueList, Signal, StopLimit, Stops, share_bits,
};
use preempt_device::host::{Amortize, Kernel};
use rustc_hash::FxHashMap;
use slotmap::SecondaryMap;

use super::backend::{DeviceReport, Gate, KernelLaunch, KernelPanic, Loss, OwnedCopy, Owner};
use super::program::{ProgramLaunch, Step};
use super::{Device, DeviceInner};
use crate::engine::Hint;
use crate::error::Error;
use crate::vocabulary::{After, CohortOrder, ControlIndex, Costs, OpKey, QueueIndex};

mod host_words;
mod overdue;
mod stop_limits;

pub(super) use host_words::HostWords;
pub(crate) use overdue::Overdue;
use stop_limits::{StopLimits, limited};

/// Block-tasks: bounds a chunk whose length follows the clock.
const MAX_CHUNK: u32 = 1024;

/// Gives out the words that host and device share.
pub(crate) trait ControlSource {
    /// A zeroed control block and its posts; they stay until the device is loaded for its next scheduler.
    fn new_control(&self) -> Result<ControlMemory, Error>;

    /// An empty requeue list; if the launch `saves` block-tasks at checkpoints, one with a place for these, if there is one
    /// left. Waits for no kernel that runs.
    fn take_requeue_list(&self, saves: bool) -> Result<LentList, Error>;

    /// The words in which the blocks of a queue's cohorts tell how far they are, at the same address for the host and for
    /// blocks: [`MAX_PROGRESS`], for as long as posts.
    fn progress(&self, queue: QueueIndex) -> *const Progress;

    /// Takes a list back that no cohort uses any more, perhaps with chunks on it.
    fn give_back_requeue_list(&self, list: LentList, is_empty: bool);
}

/// The words of one launch after another, on host and device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ControlMemory {
    /// The address that blocks use.
    pub control: *const ControlBlock,
    /// One post for each cohort slot, at the same address for the host and for blocks.
    pub posts: *const [Post; COHORT_SLOTS],
}

// SAFETY: the memory is shared between threads through atomics only.
unsafe impl Send for ControlMemory {}

/// A list for requeued chunks, on loan from its device.
#[derive(Debug)]
pub(crate) struct LentList(pub *const RequeueList);

// SAFETY: the memory is shared between threads through atomics only.
unsafe impl Send for LentList {}

/// The grids that a back end puts into a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Grid {
    /// Blocks that pull block-tasks and look at signals. The back end fills in what it alone knows: [`Cohort::queue`],
    /// and [`Cohort::barrier`] where the kernel does without.
    Cohort(Cohort),
    /// The launch's own blocks, each of which runs one block-task.
    Plain(PlainGrid),
}

/// A whole launch as a plain grid. When its last block has left, the back end posts that all block-tasks are done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainGrid {
    /// Block-tasks in x, y and z, and in all.
    pub extents: [u32; 3],
    pub tasks: u32,
    pub post: *const Post,
    pub ticket: u32,
}

// SAFETY: the post is an atomic that all threads share.
unsafe impl Send for PlainGrid {}
// SAFETY: as above.
unsafe impl Sync for PlainGrid {}

impl PlainGrid {
    /// The word of its post when all block-tasks are done.
    pub fn last_word(&self) -> u64 {
        Post::word(self.ticket, Posted { done: self.tasks, amortize: 0 })
    }
}

/// What a device tells a scheduler.
#[derive(Debug)]
pub(crate) enum Report {
    /// Every block of a cohort has left.
    CohortOut(CohortEnd),
    /// A copy or opaque work is over.
    CopyDone(OpKey),
    /// A launch, a copy or opaque work went wrong; it still ends.
    Fault(OpKey, Arc<str>),
    /// The device is lost to this process: nothing given to it ends, or is reported, from now on.
    Lost {
        /// For everything that is lost with it.
        message: Arc<str>,
        /// The launch whose kernel panicked, and where, if that ended the device.
        panicked: Option<(OpKey, Arc<str>)>,
    },
}

/// A cohort that is out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CohortEnd {
    pub order: CohortOrder,
    pub posted: Posted,
    pub launched: Duration,
    /// The time of the signal that took all its SMs, if there was one.
    pub stopped: Option<Duration>,
    /// The limit of that signal, if it had one.
    pub stopped_within: Option<StopLimit>,
    /// How its blocks left, or those of the launch's other cohorts, with times in ticks of the device's clock.
    pub stops: Stops,
    /// The limit of the stop whose time these tell, if they tell one.
    pub limit: Option<StopLimit>,
}

/// Cohorts of a chain, at most, whose ends are looked for together.
const TOGETHER: usize = 8;

/// For each cohort of a chain, the one by whose post its end is found: itself, or a later one.
///
/// A host that looks at a word all the time slows the device's write of it, and the grid that waits for the write: with each
/// post looked for by itself, a chain of kernels of 2 µs takes a third longer (H200). But the SMs of a launch are another's
/// only when its end is known. So ends are found together where the host may be elsewhere for as long, `absence`, anyway;
/// of unknown duration, each is found by itself. `predicted` are the durations of the cohorts' launches.
pub(crate) fn shown_by(
    predicted: impl IntoIterator<Item = Option<Duration>>,
    absence: Duration,
) -> Vec<usize> {
    let mut shown: Vec<usize> = Vec::new();
    let (mut first, mut since) = (0, Duration::ZERO);
    for (index, predicted) in predicted.into_iter().enumerate() {
        let took = predicted.unwrap_or(Duration::MAX);
        // From the end of the first one of a group on.
        let waits = since.saturating_add(took);
        if index == first || waits > absence || index - first >= TOGETHER {
            (first, since) = (index, Duration::ZERO);
        } else {
            since = waits;
        }
        shown.push(index);
        shown[first..].fill(index);
    }
    shown
}

/// A cohort on the device.
#[derive(Debug)]
struct OutCohort {
    order: CohortOrder,
    runs: Runs,
    /// What its blocks mark their progress with, if they tell it.
    mark: u8,
    /// The post that shows the order's ticket when the cohort is out.
    post: *const Post,
    /// The post and the ticket of the cohort by which the end is found: itself, or a later one of its chain.
    shown_by: (*const Post, u32),
    launched: Duration,
    stopped: Option<Duration>,
    stopped_within: Option<StopLimit>,
}

impl OutCohort {
    fn new(order: &CohortOrder, runs: Runs, post: *const Post, launched: Duration) -> OutCohort {
        let shown_by = (post, order.ticket);
        OutCohort {
            order: *order,
            runs,
            mark: 0,
            post,
            shown_by,
            launched,
            stopped: None,
            stopped_within: None,
        }
    }

    /// What it did, once it is out; without the limit of a stop.
    ///
    /// # Safety
    ///
    /// The device has its posts.
    unsafe fn end(&self) -> Option<CohortEnd> {
        let (shown_by, ticket) = self.shown_by;
        // SAFETY: the caller's promise.
        let (post, last) = unsafe { (&*self.post, &*shown_by) };
        // The acquire of a later cohort's post is enough to see this one: that grid began after this one had ended.
        if !last.has_passed(ticket) {
            return None;
        }
        let posted = post.read(self.order.ticket)?;
        let &OutCohort { order, launched, stopped, stopped_within, .. } = self;
        let stops = if order.plain { Stops::default() } else { post.take_stops() };
        Some(CohortEnd { order, posted, launched, stopped, stopped_within, stops, limit: None })
    }
}

/// What a cohort, or a plain grid, runs.
#[derive(Debug)]
enum Runs {
    Kernel(&'static Kernel),
    Program(Arc<ProgramLaunch>),
}

impl Runs {
    /// What a panic of this kernel says of its place in addition, if the kernel is among these.
    fn place_of(&self, entry: &str) -> Option<String> {
        match self {
            Runs::Kernel(kernel) => (kernel.entry == entry).then(String::new),
            Runs::Program(program) => program.place_of(entry),
        }
    }
}

/// The longest chunk of each kernel with yield points that was seen, in ticks of the device's clock.
#[derive(Debug, Default)]
struct Longest(FxHashMap<usize, u32>);

/// Cohorts after which a longest chunk counts for little, if none of them had one as long: what a kernel takes depends on its
/// arguments, and on what ran beside it.
const FORGETS: u32 = 8;

impl Longest {
    /// 0 if none was seen.
    fn of(&self, kernel: &'static Kernel) -> u32 {
        self.0.get(&ptr::from_ref(kernel).addr()).copied().unwrap_or(0)
    }

    /// Learns from the longest chunk of a cohort.
    fn learn(&mut self, kernel: &'static Kernel, longest: u32) {
        if longest > 0 {
            let known = self.0.entry(ptr::from_ref(kernel).addr()).or_default();
            *known = longest.max(*known - known.saturating_sub(longest) / FORGETS);
        }
    }
}

/// A scheduler's work on a device. One thread at a time uses it.
pub(crate) struct Session {
    device: Arc<DeviceInner>,
    /// The time of a chunk, and that between two claims, on the clock that blocks read.
    pace: u32,
    claim_time: u32,
    /// Ticks of that clock in 2²⁰ ns.
    clock: u32,
    longest: Longest,
    /// The mark of the last cohort whose blocks tell how far they are.
    mark: u8,
    /// How long a gate waits.
    gates_wait: Duration,
    controls: Vec<ControlMemory>,
    /// Cohorts on the device, in the order in which they were launched.
    out: Vec<OutCohort>,
    /// Lists of launches that have had a cohort.
    requeue_lists: SecondaryMap<OpKey, LentList>,
    stop_limits: StopLimits,
    /// Owners of the memory that copies under way use.
    owners: SecondaryMap<OpKey, [Owner; 2]>,
    /// Empty between calls; kept for its capacity.
    ends: Vec<CohortEnd>,
    /// Of each queue, whether a cohort that a poll has come to is not out. Only that poll uses it.
    waits: Vec<bool>,
    reports: Vec<DeviceReport>,
}

// SAFETY: posts are atomics that the device keeps until it is loaded for its next scheduler.
unsafe impl Send for Session {}

/// The launch that a panic was in, among those that are `out`, and its place there. Two plain grids of one kernel cannot be
/// told apart.
fn panicked(out: &[OutCohort], panic: &KernelPanic) -> Option<(OpKey, Arc<str>)> {
    if let Some((post, ticket)) = panic.cohort {
        let is_it = |out: &&OutCohort| out.post.addr() as u64 == post && out.order.ticket == ticket;
        return out.iter().find(is_it).map(|out| (out.order.op, panic.place.clone()));
    }
    let entry = panic.entry.as_deref()?;
    // Also those behind others in their queues: that a grid is over may not have been seen before the context was lost.
    let mut runs = out.iter().filter_map(|OutCohort { order, runs, .. }| {
        let place = runs.place_of(entry).filter(|_| order.plain)?;
        Some((order.op, (place + &panic.place).into()))
    });
    match (runs.next(), runs.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    }
}

impl Session {
    /// A session of the scheduler that the device was loaded for.
    pub fn new(device: &Device, costs: &Costs, gates_wait: Duration) -> Session {
        let device = device.inner.clone();
        Session {
            gates_wait,
            pace: device.capabilities.ticks(costs.chunk()),
            claim_time: device.capabilities.ticks(costs.claim),
            clock: device.capabilities.ticks(Duration::from_nanos(1 << 20)),
            longest: Longest::default(),
            mark: 0,
            device,
            controls: Vec::new(),
            out: Vec::new(),
            requeue_lists: SecondaryMap::new(),
            stop_limits: StopLimits::default(),
            owners: SecondaryMap::new(),
            ends: Vec::new(),
            waits: Vec::new(),
            reports: Vec::new(),
        }
    }

    /// Whether no cohort is on the device.
    pub fn has_no_cohorts(&self) -> bool {
        self.out.is_empty()
    }

    /// Says that cohorts are queued next. The device may make ready for signals to them, which takes it microseconds.
    pub fn expect_signals(&self, leaves_place: bool, is_long: bool) -> Result<(), Error> {
        self.device.backend.expect_signals(leaves_place, is_long)
    }

    /// Queues a cohort, or a launch as a plain grid, in the order's queue. Does not wait for the device.
    pub fn launch(
        &mut self,
        now: Duration,
        order: &CohortOrder,
        launch: &Arc<KernelLaunch>,
    ) -> Result<(), Error> {
        let ControlMemory { control, posts } = self.control(order.control.control)?;
        // SAFETY: the device keeps posts until its next scheduler.
        let post = unsafe { &raw const (*posts)[usize::from(order.slot)] };
        let mut mark = 0;
        let grid = match order.plain {
            true => {
                let (extents, tasks, ticket) = (launch.grid, launch.tasks(), order.ticket);
                Grid::Plain(PlainGrid { extents, tasks, post, ticket })
            }
            false => {
                let cohort = self.cohort(order, launch, control, post)?;
                mark = cohort.flags.mark();
                Grid::Cohort(if order.gated { self.gated(order, cohort)? } else { cohort })
            }
        };
        let &CohortOrder { op, queue, vicinity, .. } = order;
        // SAFETY: the words are this device's, which keeps control blocks and posts until its next scheduler; a list is
        // given back when the launch has retired. The caller's launch has the arguments of a checked call.
        let launched = unsafe { self.device.backend.launch(op, queue, launch, grid, vicinity) };
        if launched.is_err() && order.gated {
            // The caller knows of no gate then, and what comes next there would wait for its limit.
            self.device.backend.close_gate(Gate::of(order));
        }
        launched?;
        let out = OutCohort::new(order, Runs::Kernel(launch.kernel), post, now);
        self.out.push(OutCohort { mark, ..out });
        Ok(())
    }

    /// Queues a program in the order's queue. It posts `tasks` block-tasks. Does not wait for the device.
    pub fn launch_program(
        &mut self,
        now: Duration,
        order: &CohortOrder,
        program: &Arc<ProgramLaunch>,
        tasks: u32,
    ) -> Result<(), Error> {
        let ControlMemory { posts, .. } = self.control(order.control.control)?;
        // SAFETY: the device keeps posts until its next scheduler.
        let post = unsafe { &raw const (*posts)[usize::from(order.slot)] };
        let grid = PlainGrid { extents: [tasks, 1, 1], tasks, post, ticket: order.ticket };
        // SAFETY: as for a launch; the caller's program has checked calls, and owns their memory until it has retired.
        unsafe { self.device.backend.launch_program(order.op, order.queue, program, grid) }?;
        self.out.push(OutCohort::new(order, Runs::Program(program.clone()), post, now));
        Ok(())
    }

    /// Queues launches of a program together, one behind the other in the queue of the first order: those of the calls
    /// from `first` on, which are one of its [chains](ProgramLaunch::chains). The end of each is found by the post of the
    /// one that `shown_by` has in its place. Does not wait for the device.
    pub fn launch_chain(
        &mut self,
        now: Duration,
        orders: &[CohortOrder],
        program: &ProgramLaunch,
        (first, shown_by): (usize, &[usize]),
    ) -> Result<(), Error> {
        let Some(queue) = orders.first().map(|order| order.queue) else { return Ok(()) };
        let mut cohorts = Vec::with_capacity(orders.len());
        let mut out = Vec::with_capacity(orders.len());
        for (order, step) in orders.iter().zip(program.steps.iter().skip(first)) {
            let Step::Launch { launch, .. } = step else { break };
            let ControlMemory { control, posts } = self.control(order.control.control)?;
            // SAFETY: the device keeps posts until its next scheduler.
            let post = unsafe { &raw const (*posts)[usize::from(order.slot)] };
            let cohort = self.cohort(order, launch, control, post)?;
            let end = OutCohort::new(order, Runs::Kernel(launch.kernel), post, now);
            out.push(OutCohort { mark: cohort.flags.mark(), ..end });
            cohorts.push(cohort);
        }
        for (index, &shown_by) in shown_by.iter().enumerate() {
            out[index].shown_by = out[shown_by].shown_by;
        }
        // SAFETY: as for a launch, each; the caller's program has checked calls, and owns their memory until it has
        // retired.
        unsafe { self.device.backend.launch_chain(queue, program, (first, shown_by), &cohorts) }?;
        self.out.append(&mut out);
        Ok(())
    }

    /// The parameter that a preemptible entry has beside the kernel's own.
    fn cohort(
        &mut self,
        order: &CohortOrder,
        launch: &KernelLaunch,
        control: *const ControlBlock,
        post: *const Post,
    ) -> Result<Cohort, Error> {
        let saves = launch.kernel.state_bytes > 0;
        let requeue_list = self.requeue_list(order.op, saves)?;
        let (after, after_word) = match order.after {
            None => (ptr::null(), 0),
            Some(After { control, slot, left }) => {
                let before = self.controls[control as usize].control;
                // SAFETY: the device keeps control blocks until its next scheduler.
                (unsafe { &raw const (*before).left[usize::from(slot)] }, left)
            }
        };
        let (amortize, pace, crowd) = match launch.amortize {
            Amortize::Auto => (MAX_CHUNK, self.pace, order.workers.saturating_mul(self.claim_time)),
            Amortize::Tasks(tasks) => (tasks, 0, 0),
        };
        let (mut progress, mut mark) = (ptr::null(), 0);
        if order.tells_progress && order.blocks as usize <= MAX_PROGRESS {
            progress = self.device.backend.control().progress(order.queue);
            // What blocks of an earlier cohort have left there has another mark.
            self.mark = self.mark.checked_add(1).unwrap_or(1);
            mark = self.mark;
        }
        Ok(Cohort {
            control,
            // SAFETY: as above.
            claims: unsafe { &raw const (*control).claims[usize::from(order.control.parity)] },
            // The back end fills it in.
            queue: ptr::null(),
            post,
            requeue_list,
            progress,
            signal: order.signal,
            after,
            after_word,
            left: order.left,
            grid: launch.grid,
            row: Divisor::new(launch.grid[0]),
            layer: Divisor::new(launch.grid[1]),
            tasks: launch.tasks(),
            ticket: order.ticket,
            blocks: order.blocks,
            amortize,
            pace,
            share_bits: share_bits(order.workers),
            crowd,
            longest: self.longest.of(launch.kernel),
            clock: self.clock,
            handed: order.handed,
            flags: CohortFlags::new(order.slot, mark).first(order.is_first),
            more_rows: launch.grid[1].saturating_mul(launch.grid[2]).saturating_sub(1),
            barrier: 1,
        })
    }

    /// What the blocks of the first cohort in a queue have told of the block-tasks that they run. Nothing waits for it.
    pub fn told(&self, queue: QueueIndex) -> Vec<Begun> {
        let first = self.out.iter().find(|out| out.order.queue == queue);
        let Some(first) = first.filter(|first| first.mark > 0) else { return Vec::new() };
        let words = self.device.backend.control().progress(queue);
        // SAFETY: the device keeps `MAX_PROGRESS` words for each queue until its next scheduler.
        let words = unsafe { std::slice::from_raw_parts(words, MAX_PROGRESS) };
        let blocks = &words[..first.order.blocks as usize];
        blocks.iter().filter_map(|word| word.read(first.mark)).collect()
    }

    /// A cohort behind a gate, which is in its queue from now on.
    fn gated(&self, order: &CohortOrder, cohort: Cohort) -> Result<Cohort, Error> {
        let gate = Gate::of(order);
        let after = self.device.backend.gate(gate, self.gates_wait)?;
        Ok(Cohort { after, after_word: gate.ticket, ..cohort })
    }

    /// Sets what gates tell others when they are opened.
    pub fn hint(&self, hints: &[Hint]) {
        for of_gate in hints.chunk_by(|one, next| one.gate == next.gate) {
            let words: Vec<_> = of_gate.iter().map(|hint| (hint.queue, hint.signal)).collect();
            self.device.backend.hint(of_gate[0].gate, &words);
        }
    }

    fn control(&mut self, index: ControlIndex) -> Result<ControlMemory, Error> {
        while self.controls.len() <= index as usize {
            self.controls.push(self.device.backend.control().new_control()?);
        }
        Ok(self.controls[index as usize])
    }

    /// The list for a launch's requeued chunks, from its first cohort on.
    fn requeue_list(&mut self, op: OpKey, saves: bool) -> Result<*const RequeueList, Error> {
        if let Some(LentList(list)) = self.requeue_lists.get(op) {
            return Ok(*list);
        }
        let list = self.device.backend.control().take_requeue_list(saves)?;
        let address = list.0;
        self.requeue_lists.insert(op, list);
        Ok(address)
    }

    /// Writes a queue's signal word. If the word leaves the queue's current cohort no SM, the cohort has to stop.
    pub fn signal(&mut self, now: Duration, queue: QueueIndex, signal: Signal) {
        if let Some(out) = self.out.iter_mut().find(|out| out.order.queue == queue)
            && !out.order.plain
        {
            let limit = limited(signal);
            if signal.range().is_empty() && out.stopped.is_none() {
                out.stopped = Some(now);
                out.stopped_within = limit;
            }
            if let Some(limit) = limit {
                self.stop_limits.add(out.order.op, limit);
            }
        }
        self.device.backend.signal(queue, signal);
    }

    /// Starts a copy, whose owners stay until its end is reported.
    pub fn copy(&mut self, op: OpKey, OwnedCopy { copy, owners }: &OwnedCopy) {
        self.owners.insert(op, owners.clone());
        // SAFETY: the owners keep both places until the end of the copy is reported below.
        unsafe { self.device.backend.copy(op, *copy) }
    }

    /// Retires a launch, which has no cohort and gets no further one; `is_done` if all its block-tasks are done.
    pub fn retire(&mut self, op: OpKey, is_done: bool) {
        self.stop_limits.forget(op);
        if let Some(list) = self.requeue_lists.remove(op) {
            // No chunk is left on the list of a launch that is done.
            self.device.backend.control().give_back_requeue_list(list, is_done);
        }
    }

    /// Says that nothing is in flight.
    pub fn rest(&self) {
        self.device.backend.rest();
    }

    /// Appends what has happened. Faults come before the ends of cohorts. Of ends in one queue the last one comes first, and none
    /// before its predecessors have ended, in this call or an earlier one.
    pub fn poll(&mut self, now: Duration, reports: &mut Vec<Report>) {
        self.device.backend.find_ends();
        let (capabilities, longest) = (&self.device.capabilities, &mut self.longest);
        // Posts first: a fault is reported no later than the post of its cohort, so it is found below.
        let (ends, waits, stop_limits) = (&mut self.ends, &mut self.waits, &mut self.stop_limits);
        waits.clear();
        waits.resize(capabilities.queues.total() as usize, false);
        self.out.retain(|out| {
            // A queue's grids end in their order, but a post can be seen before an earlier one: those of plain grids are written by
            // the host, when it has asked about them.
            let waits = &mut waits[out.order.queue as usize];
            if *waits {
                return true;
            }
            // SAFETY: the device keeps posts until its next scheduler, and this is the present one's.
            let mut end = unsafe { out.end() };
            if let Some(end) = end.as_mut().filter(|end| end.stops.latest > 0) {
                end.limit = stop_limits.of_told(end.order.op);
            }
            let is_out = end.is_some();
            *waits = !is_out;
            if let (Some(end), Runs::Kernel(kernel)) = (&end, &out.runs) {
                let most = capabilities.ticks(now.saturating_sub(end.launched));
                longest.learn(kernel, end.stops.longest.min(most));
            }
            ends.extend(end);
            !is_out
        });
        self.device.backend.poll(&mut self.reports);
        for report in self.reports.drain(..) {
            reports.push(match report {
                DeviceReport::CopyDone(op) => {
                    // The operation itself still has what these keep.
                    self.owners.remove(op);
                    Report::CopyDone(op)
                }
                DeviceReport::Fault(op, message) => Report::Fault(op, message),
                DeviceReport::Lost(Loss { message, panic }) => {
                    let panicked = panic.and_then(|panic| panicked(&self.out, &panic));
                    // No post comes any more.
                    self.out.clear();
                    self.stop_limits.clear();
                    self.owners.clear();
                    Report::Lost { message, panicked }
                }
            });
        }
        reports.extend(self.ends.drain(..).rev().map(Report::CohortOut));
    }
}

#[cfg(test)]
mod tests {
    use preempt_device::prelude::*;

    use super::*;
    use crate::vocabulary::{ControlUse, Vicinity};

    #[preemptible]
    fn nothing() {}

    #[test]
    fn the_longest_chunk_is_known_at_once_and_forgotten_slowly() {
        let mut longest = Longest::default();
        let kernel = nothing().kernel();
        assert_eq!(longest.of(kernel), 0);
        for (chunk, known) in [(800, 800), (0, 800), (1600, 1600), (800, 1500), (1499, 1500)] {
            longest.learn(kernel, chunk);
            assert_eq!(longest.of(kernel), known, "after {chunk}");
        }
        (0..99).for_each(|_| longest.learn(kernel, 10));
        assert!(longest.of(kernel) < 20);
    }

    #[test]
    fn the_ends_of_short_launches_are_found_together() {
        let us = Duration::from_micros;
        let cases: [(&[u64], &[usize]); 7] = [
            (&[], &[]),
            (&[5], &[0]),
            (&[2; 10], &[7, 7, 7, 7, 7, 7, 7, 7, 9, 9]),
            // The first one is over before the others begin.
            (&[500, 20, 20, 20], &[2, 2, 2, 3]),
            (&[20, 50, 20], &[0, 2, 2]),
            // Unknown.
            (&[2, 0, 2, 2], &[0, 3, 3, 3]),
            (&[0; 3], &[0, 1, 2]),
        ];
        for (took, expected) in cases {
            let known = took.iter().map(|&took| (took > 0).then(|| us(took)));
            assert_eq!(shown_by(known, us(40)), expected, "{took:?}");
        }
    }

    #[test]
    fn a_cohort_of_a_chain_is_out_once_the_one_that_shows_it_has_posted() {
        let posts = [Post::default(), Post::default()];
        let order = CohortOrder {
            op: OpKey::default(),
            queue: 0,
            control: ControlUse { control: 0, parity: 0 },
            slot: 0,
            ticket: 3,
            left: 0,
            signal: Signal::default(),
            plain: false,
            blocks: 1,
            workers: 1,
            handed: 0,
            is_first: false,
            after: None,
            gated: false,
            over: None,
            tells_progress: false,
            vicinity: Vicinity { on_sm: 1, meets: 0, others: 0, is_behind: false, may_ask: false },
        };
        let out = posts.each_ref().map(|post| {
            let mut out =
                OutCohort::new(&order, Runs::Kernel(nothing().kernel()), post, Duration::ZERO);
            out.shown_by = (&raw const posts[1], 3);
            out
        });
        let post = |index: usize, done| {
            let word = Post::word(3, Posted { done, amortize: 1 });
            posts[index].word.store(word, std::sync::atomic::Ordering::Release);
        };
        // SAFETY: the posts are here.
        let posted = || out.each_ref().map(|out| unsafe { out.end() }.map(|end| end.posted.done));
        post(0, 5);
        assert_eq!(posted(), [None, None]);
        post(1, 7);
        assert_eq!(posted(), [Some(5), Some(7)]);
    }
}
