//! The engine alone, under an endless load.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use preempt_device::abi::Posted;
use slotmap::SecondaryMap;

use super::machine::{Machine, refused};
use super::random::Random;
use crate::engine::{Action, Engine, Event, LaunchSpec, Leaving, Submission};
use crate::error::Error;
use crate::policy::{Policy, Priority, Urgency};
use crate::vocabulary::{OpKey, QueueIndex};

/// Blocks of the load's kernels that an SM holds.
const BLOCKS_PER_SM: u32 = 8;

/// Block-tasks for each block.
const WAVES: u32 = 64;

/// Priorities of launches.
const PRIORITIES: f64 = 8.0;

/// The engine alone, under an endless load, to measure the cost of a decision.
///
/// A fixed number of launches is there at any time, each in a stream of its own. They differ in the SMs that they can
/// fill, and have eight priorities, so that now and then one is preempted. When one is over, another one arrives.
/// There is no device and no time: cohorts are out in the order in which they were launched, those that were told to
/// leave first.
///
/// ```
/// use preempt::policy::StaticPriority;
/// use preempt::sim::{EngineLoad, Machine};
///
/// let mut load = EngineLoad::new(Machine::h200(), Box::new(StaticPriority::new()), 1000, &[4, 132], 1)?;
/// for _ in 0..10_000 {
///     load.tell(); // a launch is submitted, or a cohort is out
///     load.decide(); // the policy makes a plan, and the engine makes it true
/// }
/// assert!(load.done() > 1000 && load.yields() > 10);
/// # Ok::<(), preempt::Error>(())
/// ```
pub struct EngineLoad {
    engine: Engine,
    /// How many SMs launches can fill.
    needs: Vec<u32>,
    launches: usize,
    random: Random,
    now: Duration,
    actions: Vec<Action>,
    /// For each launch, the block-tasks that no cohort has reported, and how many fill its SMs.
    left: SecondaryMap<OpKey, (u32, u32)>,
    /// Streams without a launch.
    streams: Vec<u32>,
    /// The stream of each launch.
    stream_of: SecondaryMap<OpKey, u32>,
    cohorts: VecDeque<PendingCohort>,
    /// Cohorts that were told to leave.
    leaving: VecDeque<PendingCohort>,
    done: u64,
    yields: u64,
}

/// A cohort that is on the device.
#[derive(Clone, Copy)]
struct PendingCohort {
    op: OpKey,
    slot: u8,
    queue: QueueIndex,
}

impl EngineLoad {
    /// A load of `launches` launches at any time, each of which can fill one of the numbers of SMs in `needs`.
    ///
    /// # Errors
    ///
    /// [`SimulationError::GivenUp`](crate::error::SimulationError::GivenUp) if the machine cannot be, or there is to
    /// be no launch.
    pub fn new(
        machine: Machine,
        policy: Box<dyn Policy>,
        launches: usize,
        needs: &[u32],
        seed: u64,
    ) -> Result<EngineLoad, Error> {
        machine.check()?;
        let Some(streams) = u32::try_from(launches).ok().filter(|&launches| launches > 0) else {
            return Err(refused(format!("a load of {launches} launches; 1 to {}", u32::MAX)));
        };
        if needs.is_empty() || !needs.iter().all(|need| (1..=machine.sms).contains(need)) {
            let sms = machine.sms;
            return Err(refused(format!(
                "launches that can fill {needs:?} SMs; at least one, and each 1 to {sms}"
            )));
        }
        let engine = Engine::new(machine.sms, machine.queue_count(), machine.costs, policy);
        let mut load = EngineLoad {
            engine,
            needs: needs.to_vec(),
            launches,
            random: Random::of(seed, 0),
            now: Duration::ZERO,
            actions: Vec::new(),
            left: SecondaryMap::new(),
            streams: (0..streams).collect(),
            stream_of: SecondaryMap::new(),
            cohorts: VecDeque::new(),
            leaving: VecDeque::new(),
            done: 0,
            yields: 0,
        };
        while load.left.len() < launches {
            load.tell();
            load.decide();
        }
        Ok(load)
    }

    /// Tells the engine what happens next: a launch is submitted, or a cohort is out.
    pub fn tell(&mut self) {
        self.act();
        self.now += Duration::from_micros(1);
        if self.left.len() < self.launches
            && let Some(stream) = self.streams.pop()
        {
            self.submit(stream);
        } else if let Some(out) = self.leaving.pop_front().or_else(|| self.cohorts.pop_front()) {
            self.out(out);
        }
    }

    /// Lets the engine decide.
    pub fn decide(&mut self) {
        self.engine.settle(self.now, &mut self.actions);
    }

    /// Launches that are over.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// The number of times that a launch had to leave SMs.
    pub fn yields(&self) -> u64 {
        self.yields
    }

    fn submit(&mut self, stream: u32) {
        let need = self.needs[(self.random.part() * self.needs.len() as f64) as usize];
        let tasks = need * BLOCKS_PER_SM * WAVES;
        let priority = Priority((self.random.part() * PRIORITIES) as i32);
        let spec = LaunchSpec {
            tasks,
            predicted: Some(Duration::from_micros(tasks.into())),
            yield_overhead: Duration::from_micros(12),
            requeued: Duration::ZERO,
            blocks_per_sm: BLOCKS_PER_SM,
            on_last_sm: BLOCKS_PER_SM,
            plain: false,
            hardware_stop: None,
            leaving: Leaving::AtEnd,
        };
        let submission = Submission {
            stream,
            name: "load",
            uses: &[],
            after: None,
            urgency: Urgency { priority, ..Urgency::default() },
            launch: Some(spec),
            opaque: None,
            calls: &[],
            armed: false,
        };
        let op = self.engine.submit(self.now, submission, &mut self.actions);
        self.left.insert(op, (tasks, need * BLOCKS_PER_SM));
        self.stream_of.insert(op, stream);
    }

    fn out(&mut self, PendingCohort { op, slot, queue }: PendingCohort) {
        let Some((left, fill)) = self.left.get_mut(op) else { return };
        let leaves = self.engine.queue_range(queue).is_empty();
        // The rest of an interrupted launch fills as many SMs as before, or nothing is left.
        let done = if leaves && *left >= 2 * *fill { *left / 2 } else { *left };
        *left -= done;
        let posted = Posted { done, amortize: 1 };
        let event = Event::CohortOut { op, slot, posted };
        self.engine.handle(self.now, event, &mut self.actions);
    }

    /// Carries out the engine's actions, as far as there is a device.
    fn act(&mut self) {
        for action in self.actions.drain(..) {
            match action {
                Action::Launch(order) => {
                    let (op, slot, queue) = (order.op, order.slot, order.queue);
                    self.cohorts.push_back(PendingCohort { op, slot, queue });
                }
                Action::Signal { queue, signal } => {
                    self.yields += 1;
                    if signal.range().is_empty() {
                        let leaves = self.cohorts.iter().position(|cohort| cohort.queue == queue);
                        self.leaving.extend(leaves.and_then(|at| self.cohorts.remove(at)));
                    }
                }
                Action::Finish { .. } => self.done += 1,
                Action::Retire { op } => {
                    self.left.remove(op);
                    self.streams.extend(self.stream_of.remove(op));
                }
                Action::Copy { .. } | Action::Disarm { .. } => {}
            }
        }
    }
}

impl fmt::Debug for EngineLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineLoad").field("launches", &self.launches).finish_non_exhaustive()
    }
}
