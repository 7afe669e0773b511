//! A device whose kernels are fluids: the work done is the time on SMs.

use std::cmp::Reverse;
use std::collections::VecDeque;

use preempt_device::abi::{COHORT_SLOTS, Signal, SmRange, StopLimit, departures};
use slotmap::{SecondaryMap, SlotMap, new_key_type};

use super::agenda::{Agenda, Happening, nanos};
use super::machine::Machine;
use crate::vocabulary::{CohortOrder, Costs, LaunchId, OpKey, QueueCount, QueueIndex};

new_key_type! {
    /// A cohort on the device.
    pub(super) struct CohortKey;
}

/// A kernel of a launch; times are in nanoseconds of one SM.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel {
    pub tasks: u32,
    pub blocks_per_sm: u32,
    /// The SMs that it can fill with blocks; on more of them, where each has fewer, it is no faster.
    pub fills: u32,
    /// All its work.
    pub work: u64,
    /// The time of a block of its plain grid.
    pub block: u64,
}

impl Kernel {
    /// One that takes `alone` on all SMs that it can fill.
    pub fn new(tasks: u32, blocks_per_sm: u32, alone: u64, machine: &Machine) -> Kernel {
        let fills = tasks.div_ceil(blocks_per_sm).clamp(1, machine.sms);
        Kernel {
            tasks,
            blocks_per_sm,
            fills,
            work: alone.max(1) * u64::from(fills),
            block: alone * u64::from(blocks_per_sm.saturating_mul(machine.sms).min(tasks))
                / u64::from(tasks.max(1)),
        }
    }

    /// The blocks of a plain grid that wait for room in the hardware's queue, as far as they fill the device at a time.
    fn blocks(&self) -> u32 {
        self.fills.saturating_mul(self.blocks_per_sm)
    }

    /// The block-tasks in a part of the work.
    fn tasks_of(&self, work: u64) -> u32 {
        (u128::from(work) * u128::from(self.tasks) / u128::from(self.work)) as u32
    }
}

/// A launch on the device; times are in nanoseconds of one SM.
#[derive(Debug)]
pub(super) struct Running {
    /// The kernel that runs, and those behind it, if it is a plain program.
    kernel: Kernel,
    behind: VecDeque<Kernel>,
    /// Block-tasks of the kernels before it.
    before: u32,
    /// The work that is left of the kernel.
    left: u64,
    /// Block-tasks that no cohort has reported. The engine counts those of the widest kernel of a plain program.
    tasks_left: u32,
    /// The time from a signal until the last block has left, and the work that each SM has to do again.
    stop: u64,
    redo: u64,
    /// What it is instead, if it is launched as a plain grid.
    plain: Option<Kernel>,
    /// When its first block ran.
    pub started: Option<u64>,
    /// Its cohorts on the device, in the order in which they were launched.
    cohorts: Vec<CohortKey>,
    /// Until when its progress is counted.
    counted: u64,
    /// How often its SMs have changed.
    version: u32,
}

impl Running {
    /// A launch of a kernel, whose blocks leave in the time `stop`, and have `redo` of their work to do again.
    pub fn launch(kernel: Kernel, stop: u64, redo: u64) -> Running {
        Running {
            kernel,
            behind: VecDeque::new(),
            before: 0,
            left: kernel.work,
            tasks_left: kernel.tasks,
            stop,
            redo,
            plain: None,
            started: None,
            cohorts: Vec::new(),
            counted: 0,
            version: 0,
        }
    }

    /// With another kernel for a plain grid, of as many block-tasks.
    pub fn or_plain(self, kernel: Kernel) -> Running {
        Running { plain: Some(kernel), ..self }
    }

    /// A plain program, which reports `tasks` block-tasks to the engine. `None` without kernels.
    pub fn graph(mut kernels: VecDeque<Kernel>, tasks: u32) -> Option<Running> {
        let first = kernels.pop_front()?;
        Some(Running { behind: kernels, tasks_left: tasks, ..Running::launch(first, 0, 0) })
    }
}

#[derive(Debug)]
struct Cohort {
    order: CohortOrder,
    /// Where its blocks are.
    sms: Vec<u32>,
    /// Blocks that wait for room, and how many of them an SM holds.
    waiting: u32,
    blocks_per_sm: u32,
    /// Whether its blocks run, where they have room.
    is_ready: bool,
    /// When the host's part of the launch is over.
    launched: u64,
    /// What it has done, and when its first block began.
    work: u64,
    begun: Option<u64>,
    /// The most work that an SM that was taken has to do again, as the last signal has it.
    redo: u64,
    /// The launch that waits for ends of its blocks, and when they come, if it is a plain grid.
    makes_room: Option<(OpKey, u64)>,
}

#[derive(Debug)]
struct DeviceQueue {
    /// The word in memory: what was told last.
    word: Signal,
    cohorts: VecDeque<CohortKey>,
}

impl DeviceQueue {
    /// The SMs that the newer one of a cohort's word and the queue's grants.
    fn granted(&self, order: &CohortOrder) -> SmRange {
        let newer = if self.word.is_newer(order.signal) { self.word } else { order.signal };
        newer.range()
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Device {
    costs: Costs,
    count: QueueCount,
    pub launches: SecondaryMap<OpKey, Running>,
    cohorts: SlotMap<CohortKey, Cohort>,
    queues: Vec<DeviceQueue>,
    /// The owner of the blocks on each SM.
    occupants: Vec<Option<CohortKey>>,
    /// The words of each control block's slots.
    left: Vec<[u64; COHORT_SLOTS]>,
    /// Cohorts that want more SMs, in the order in which they became ready.
    waiting: Vec<CohortKey>,
    /// Kept for its capacity.
    spare: Vec<Vec<u32>>,
}

/// How long an SM's last block waits for its block-task where a signal has this limit, and the most work that the SM then
/// has to do again, if that is `redo` in the mean without a limit: half of a block-task.
///
/// The rests of block-tasks are anything up to a whole one. Those that fit the limit are done, and the others have come less
/// far.
fn leaving(limit: StopLimit, redo: u64) -> (u64, u64) {
    let task = 2 * redo;
    let within = match limit {
        StopLimit::SOONEST | StopLimit::REVOKED => return (0, u64::MAX),
        StopLimit::ZERO => task,
        limit => limit.nanos().min(task),
    };
    let dropped = (task - within) as f64 / task.max(1) as f64;
    (within, (redo as f64 * dropped * dropped) as u64)
}

impl Device {
    pub fn new(machine: &Machine) -> Device {
        let queue = |_| DeviceQueue { word: Signal::default(), cohorts: VecDeque::new() };
        Device {
            costs: machine.costs,
            count: machine.queue_count(),
            launches: SecondaryMap::new(),
            cohorts: SlotMap::with_key(),
            queues: (0..machine.queue_count().total()).map(queue).collect(),
            occupants: vec![None; machine.sms as usize],
            left: Vec::new(),
            waiting: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Takes in a cohort, whose call begins at `at`.
    pub fn launch(&mut self, at: u64, order: CohortOrder, agenda: &mut Agenda) {
        let Some(launch) = self.launches.get_mut(order.op) else { return };
        let control = order.control.control as usize;
        if self.left.len() <= control {
            self.left.resize(control + 1, [0; COHORT_SLOTS]);
        }
        if let Some(plain) = launch.plain.take().filter(|_| order.plain) {
            (launch.kernel, launch.left) = (plain, plain.work);
        }
        let blocks_per_sm = launch.kernel.blocks_per_sm;
        // Of a plain grid all wait in the hardware's queue, whatever number the engine counts.
        let waiting = if order.plain { launch.kernel.blocks() } else { order.blocks };
        let launched = at + nanos(self.costs.launch);
        let sms = self.spare.pop().unwrap_or_default();
        let cohort = Cohort {
            order,
            sms,
            waiting,
            blocks_per_sm,
            is_ready: false,
            launched,
            work: 0,
            begun: None,
            redo: u64::MAX,
            makes_room: None,
        };
        let cohort = self.cohorts.insert(cohort);
        launch.cohorts.push(cohort);
        let queue = &mut self.queues[order.queue as usize];
        queue.cohorts.push_back(cohort);
        if queue.cohorts.len() == 1 {
            agenda.enter(launched, Happening::Ready(cohort));
        }
    }

    /// Takes in a word for a queue, which is told at `at`. Later heads of the queue see it, too.
    pub fn signal(&mut self, at: u64, queue: QueueIndex, signal: Signal, agenda: &mut Agenda) {
        let range = signal.range();
        let queue = &mut self.queues[queue as usize];
        queue.word = signal;
        let Some(&key) = queue.cohorts.front() else { return };
        let Some(cohort) = self.cohorts.get_mut(key) else { return };
        if !cohort.is_ready || cohort.order.plain {
            return;
        }
        cohort.trim(range, self.occupants.len());
        let launch = self.launches.get(cohort.order.op);
        let (stop, redo) = launch.map_or((0, 0), |launch| (launch.stop, launch.redo));
        let (drains, redo) = leaving(signal.limit(), redo);
        cohort.redo = redo;
        let out = at + stop + drains;
        agenda.enter(out, Happening::Leave(key, range.lo(), range.hi()));
    }

    /// A cohort's launch is over for the host: its blocks look around.
    pub fn ready(&mut self, now: u64, key: CohortKey, agenda: &mut Agenda) {
        self.advance(now, key);
        let Some(cohort) = self.cohorts.get_mut(key) else { return };
        let CohortOrder { op, queue, plain, .. } = cohort.order;
        let may_work = plain
            || cohort.order.after.is_none_or(|after| {
                self.left[after.control as usize][usize::from(after.slot)] == after.left
            });
        let Some(launch) = self.launches.get_mut(op) else { return };
        if !may_work || launch.left == 0 {
            return self.leave_all(now, key, 0, agenda);
        }
        cohort.is_ready = true;
        let word = self.queues[queue as usize].granted(&cohort.order);
        if !plain {
            // Tasks that were handed to it, and taken away again.
            let occupants = &mut self.occupants;
            cohort.sms.retain(|&sm| {
                let stays = word.contains(sm);
                if !stays {
                    occupants[sm as usize] = None;
                }
                stays
            });
            cohort.trim(word, self.occupants.len());
            if cohort.waiting == 0 && cohort.sms.is_empty() {
                return self.leave_all(now, key, 0, agenda);
            }
        }
        if !cohort.sms.is_empty() {
            cohort.begun.get_or_insert(now);
            launch.started.get_or_insert(now);
        }
        if cohort.waiting > 0 {
            self.waiting.push(key);
        }
        self.foresee(now, op, agenda);
    }

    /// A launch is over, unless its SMs have changed.
    pub fn complete(&mut self, now: u64, op: OpKey, version: u32, agenda: &mut Agenda) {
        if self.launches.get(op).is_some_and(|launch| launch.version == version) {
            self.advance_launch(now, op);
            self.end(now, op, agenda);
        }
    }

    /// Frees the SMs outside of `range` that a cohort's blocks have left.
    pub fn leave(&mut self, now: u64, key: CohortKey, range: SmRange, agenda: &mut Agenda) {
        self.advance(now, key);
        let Some(cohort) = self.cohorts.get_mut(key) else { return };
        let op = cohort.order.op;
        let Some(launch) = self.launches.get_mut(op) else { return };
        if launch.left == 0 {
            return self.end(now, op, agenda);
        }
        let before = cohort.sms.len();
        let occupants = &mut self.occupants;
        cohort.sms.retain(|&sm| {
            let stays = range.contains(sm);
            if !stays {
                occupants[sm as usize] = None;
            }
            stays
        });
        // Where it has more SMs than it can fill, each has a part of the work of a full one.
        let gone = (before - cohort.sms.len()).min(launch.kernel.fills as usize) as u64;
        // Less than a block-task, of which nothing is done; later, blocks are anywhere in theirs.
        let ran = now - cohort.begun.unwrap_or(now);
        let dropped = if ran < 2 * launch.redo { ran } else { launch.redo };
        let dropped = dropped.min(cohort.redo);
        let again = (dropped * gone).min(cohort.work);
        cohort.work -= again;
        launch.left += again;
        if cohort.sms.is_empty() && cohort.waiting == 0 {
            let done = cohort.tasks(launch);
            self.leave_all(now, key, done, agenda);
        }
        self.foresee(now, op, agenda);
    }

    /// Gives free SMs to the cohorts that wait for them.
    pub fn place(&mut self, now: u64, owners: &[Option<LaunchId>], agenda: &mut Agenda) {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.sort_by_key(|&key| {
            let level = |cohort: &Cohort| self.count.level(cohort.order.queue);
            Reverse(self.cohorts.get(key).map_or(0, level))
        });
        // First the cohorts that own an SM for the policy; then plain grids, whose blocks go where there is room.
        for only_own in [true, false] {
            waiting.retain(|&key| {
                let wants = |device: &Device| {
                    let cohort = device.cohorts.get(key).filter(|cohort| cohort.waiting > 0)?;
                    Some(cohort.order.plain)
                };
                if wants(self).is_some_and(|plain| only_own || plain) {
                    self.place_cohort(now, key, owners, only_own, agenda);
                }
                wants(self).is_some()
            });
        }
        debug_assert!(
            self.waiting.is_empty(),
            "no cohort becomes ready because another one got room"
        );
        self.waiting = waiting;
    }

    fn place_cohort(
        &mut self,
        now: u64,
        key: CohortKey,
        owners: &[Option<LaunchId>],
        only_own: bool,
        agenda: &mut Agenda,
    ) {
        let Some(cohort) = self.cohorts.get(key) else { return };
        let CohortOrder { op, queue, plain, after, .. } = cohort.order;
        let word = match plain {
            true => SmRange::ALL,
            false => self.queues[queue as usize].granted(&cohort.order),
        };
        let is_for_it = |sm: usize, owner: Option<LaunchId>| {
            word.contains(sm as u32)
                && match owner {
                    _ if !only_own => true,
                    Some(LaunchId(owner)) => owner == op,
                    // The host does not know yet that it runs.
                    None => after.is_some(),
                }
        };
        let is_free = |&(sm, &owner): &(usize, &Option<LaunchId>)| {
            self.occupants[sm].is_none() && is_for_it(sm, owner)
        };
        let most = cohort.most_sms();
        let found: Vec<u32> =
            owners.iter().enumerate().filter(is_free).map(|(sm, _)| sm as u32).take(most).collect();
        if !found.is_empty() {
            self.advance(now, key);
            self.occupy(key, &found);
            if let Some(cohort) = self.cohorts.get_mut(key).filter(|cohort| cohort.is_ready) {
                cohort.begun.get_or_insert(now);
            }
            if let Some(launch) = self.launches.get_mut(op) {
                launch.started.get_or_insert(now);
            }
            self.foresee(now, op, agenda);
        }
        if only_own {
            self.await_ends(now, key, owners, agenda);
        }
    }

    /// Lets the hardware give a cohort the SMs that it has for the policy, at the ends of blocks of plain grids.
    fn await_ends(
        &mut self,
        now: u64,
        key: CohortKey,
        owners: &[Option<LaunchId>],
        agenda: &mut Agenda,
    ) {
        let Some(cohort) = self.cohorts.get(key).filter(|cohort| cohort.waiting > 0) else {
            return;
        };
        let (op, level) = (cohort.order.op, self.count.level(cohort.order.queue));
        let mut above = None;
        for (owner, occupant) in owners.iter().zip(&self.occupants) {
            let Some(occupant) = occupant.filter(|_| *owner == Some(LaunchId(op))) else {
                continue;
            };
            if above == Some(occupant) {
                continue;
            }
            above = Some(occupant);
            let Some(plain) = self.cohorts.get_mut(occupant) else { continue };
            let gives_way = plain.order.plain && self.count.level(plain.order.queue) < level;
            if gives_way && plain.makes_room.is_none() {
                let kernel = self.launches.get(plain.order.op).map(|launch| launch.kernel);
                let ends = now + kernel.map_or(0, |kernel| kernel.block);
                plain.makes_room = Some((op, ends));
                agenda.enter(ends, Happening::MakeRoom(occupant, op));
            }
        }
    }

    /// Frees the SMs of a plain cohort that `to` has for the policy. Its other blocks wait for room.
    pub fn make_room(
        &mut self,
        now: u64,
        key: CohortKey,
        to: OpKey,
        owners: &[Option<LaunchId>],
        agenda: &mut Agenda,
    ) {
        self.advance(now, key);
        let Some(cohort) = self.cohorts.get_mut(key) else { return };
        if cohort.makes_room != Some((to, now)) {
            // The blocks were those of an earlier kernel of a plain program.
            return;
        }
        cohort.makes_room = None;
        let before = cohort.sms.len();
        let occupants = &mut self.occupants;
        cohort.sms.retain(|&sm| {
            let stays = owners[sm as usize] != Some(LaunchId(to));
            if !stays {
                occupants[sm as usize] = None;
            }
            stays
        });
        let gone = (before - cohort.sms.len()) as u32;
        let is_waiting = cohort.waiting > 0;
        cohort.waiting += gone.saturating_mul(cohort.blocks_per_sm);
        if !is_waiting && cohort.waiting > 0 {
            self.waiting.push(key);
        }
        let op = cohort.order.op;
        self.foresee(now, op, agenda);
    }

    /// Puts blocks of a cohort on SMs, as far as there is room.
    fn occupy(&mut self, key: CohortKey, sms: &[u32]) {
        let cohort = &mut self.cohorts[key];
        cohort.sms.extend_from_slice(sms);
        let room = (sms.len() as u32).saturating_mul(cohort.blocks_per_sm);
        cohort.waiting = cohort.waiting.saturating_sub(room);
        sms.iter().for_each(|&sm| self.occupants[sm as usize] = Some(key));
    }

    /// Block-tasks that a launch has done until now.
    pub fn tasks_done(&mut self, now: u64, op: OpKey) -> u32 {
        self.advance_launch(now, op);
        let Some(launch) = self.launches.get(op) else { return 0 };
        launch.before.saturating_add(launch.kernel.tasks_of(launch.kernel.work - launch.left))
    }

    fn advance(&mut self, now: u64, key: CohortKey) {
        if let Some(cohort) = self.cohorts.get(key) {
            self.advance_launch(now, cohort.order.op);
        }
    }

    /// Counts what a launch has done until now.
    fn advance_launch(&mut self, now: u64, op: OpKey) {
        let Some(launch) = self.launches.get_mut(op) else { return };
        let time = now - std::mem::replace(&mut launch.counted, now);
        let mut counts = u64::from(launch.kernel.fills);
        for &key in &launch.cohorts {
            let cohort = &mut self.cohorts[key];
            if cohort.is_ready {
                let sms = counts.min(cohort.sms.len() as u64);
                counts -= sms;
                let done = (sms * time).min(launch.left);
                cohort.work += done;
                launch.left -= done;
            }
        }
    }

    /// Enters when a launch will be over if nothing happens to it. Its progress is counted.
    fn foresee(&mut self, now: u64, op: OpKey, agenda: &mut Agenda) {
        let Some(launch) = self.launches.get_mut(op) else { return };
        launch.version = launch.version.wrapping_add(1);
        let at_work = |key: &&CohortKey| self.cohorts[**key].is_ready;
        let sms = launch.cohorts.iter().filter(at_work).map(|&key| self.cohorts[key].sms.len());
        let sms = sms.sum::<usize>().min(launch.kernel.fills as usize) as u64;
        if sms > 0 {
            let over = now + launch.left.div_ceil(sms);
            agenda.enter(over, Happening::Complete(op, launch.version));
        }
    }

    /// Goes on with the next kernel of a plain program, if there is one. Meanwhile, the SMs are free for others.
    fn go_on(&mut self, now: u64, op: OpKey, agenda: &mut Agenda) -> bool {
        let Some(launch) = self.launches.get_mut(op) else { return false };
        let Some(next) = launch.behind.pop_front() else { return false };
        launch.before = launch.before.saturating_add(launch.kernel.tasks);
        (launch.kernel, launch.left) = (next, next.work);
        for &key in &launch.cohorts {
            let cohort = &mut self.cohorts[key];
            cohort.sms.drain(..).for_each(|sm| self.occupants[sm as usize] = None);
            (cohort.waiting, cohort.blocks_per_sm) = (next.blocks(), next.blocks_per_sm);
            (cohort.is_ready, cohort.makes_room) = (false, None);
            self.waiting.retain(|&waiting| waiting != key);
            agenda.enter(now + nanos(self.costs.graph), Happening::Ready(key));
        }
        true
    }

    /// All work of a kernel is done: if it is the launch's last, the blocks leave, and say what they have done.
    fn end(&mut self, now: u64, op: OpKey, agenda: &mut Agenda) {
        if self.go_on(now, op, agenda) {
            return;
        }
        let Some(launch) = self.launches.get(op) else { return };
        let ready: Vec<CohortKey> =
            launch.cohorts.iter().copied().filter(|&key| self.cohorts[key].is_ready).collect();
        // Work that several cohorts did is reported by the last one that worked.
        let last = ready.iter().rposition(|&key| self.cohorts[key].work > 0);
        for (index, key) in ready.into_iter().enumerate() {
            let Some(launch) = self.launches.get(op) else { return };
            let done = match last {
                Some(last) if index == last => launch.tasks_left,
                _ => self.cohorts[key].tasks(launch),
            };
            self.leave_all(now, key, done, agenda);
        }
    }

    /// A cohort is out; the next one in its queue gets its turn, and SMs if it may have some.
    fn leave_all(&mut self, now: u64, key: CohortKey, done: u32, agenda: &mut Agenda) {
        let Some(mut cohort) = self.cohorts.remove(key) else { return };
        let CohortOrder { op, queue, slot, control, plain, blocks, .. } = cohort.order;
        if let Some(launch) = self.launches.get_mut(op) {
            launch.cohorts.retain(|&other| other != key);
            launch.tasks_left -= done;
        }
        for &sm in &cohort.sms {
            self.occupants[sm as usize] = None;
        }
        if !plain {
            let left = &mut self.left[control.control as usize][usize::from(slot)];
            *left = left.wrapping_add(departures(blocks, done));
        }
        let reported = now + nanos(self.costs.report);
        agenda.enter(reported, Happening::Report { op, slot, done, plain });
        let queue = &mut self.queues[queue as usize];
        queue.cohorts.retain(|&other| other != key);
        if let Some(&next) = queue.cohorts.front()
            && let Some(follower) = self.cohorts.get(next)
        {
            let word = queue.granted(&follower.order);
            let turn = (now + nanos(self.costs.follow)).max(follower.launched);
            agenda.enter(turn, Happening::Ready(next));
            if done > 0 {
                // In the order of SMs, as the engine leaves them to it.
                cohort.sms.retain(|&sm| word.contains(sm));
                cohort.sms.sort_unstable();
                cohort.sms.truncate(follower.most_sms());
                self.occupy(next, &cohort.sms);
            }
        }
        cohort.sms.clear();
        self.spare.push(cohort.sms);
    }
}

impl Cohort {
    /// The SMs over which waiting blocks are spread where there is room, as the hardware does it. Blocks of a plain
    /// grid fill SMs instead, so that the room that a device has beside them is left to others.
    fn most_sms(&self) -> usize {
        match self.order.plain {
            true => self.waiting.div_ceil(self.blocks_per_sm) as usize,
            false => self.waiting as usize,
        }
    }

    /// Drops the blocks that wait for SMs which its word excludes.
    fn trim(&mut self, word: SmRange, sms: usize) {
        let count = allowed(word, sms);
        let inside = self.sms.iter().filter(|&&sm| word.contains(sm)).count() as u32;
        let room = (count - inside.min(count)).saturating_mul(self.blocks_per_sm);
        self.waiting = self.waiting.min(room);
    }

    /// Block-tasks that it has done.
    fn tasks(&self, launch: &Running) -> u32 {
        launch.kernel.tasks_of(self.work).min(launch.tasks_left)
    }
}

/// The SMs that a word allows. One that wraps around excludes what lies between.
fn allowed(word: SmRange, sms: usize) -> u32 {
    let (lo, hi) = (word.lo(), word.hi());
    if lo <= hi { hi - lo } else { (sms as u32).saturating_sub(lo) + hi }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_wraps_around_allows_no_more_than_it_has() {
        assert_eq!(allowed(SmRange::new(2, 6), 8), 4);
        assert_eq!(allowed(SmRange::new(6, 3), 8), 5);
        assert_eq!(allowed(SmRange::EMPTY, 8), 0);
    }

    #[test]
    fn a_limit_trades_waiting_for_work_that_is_lost() {
        let within = StopLimit::within;
        let cases = [
            (within(1000), (960, 270)),
            (within(1 << 20), (2000, 0)),
            (StopLimit::NEVER, (2000, 0)),
            (StopLimit::ZERO, (2000, 0)),
        ];
        for (limit, expected) in cases {
            assert_eq!(leaving(limit, 1000), expected, "{limit:?}");
            assert_eq!(leaving(limit, 0), (0, 0), "a kernel without yield points");
        }
        assert_eq!(
            leaving(StopLimit::SOONEST, 1000),
            (0, u64::MAX),
            "what it would do again anyway"
        );
    }
}
