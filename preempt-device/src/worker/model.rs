//! loom explores the interleavings of a few blocks and a host that signals, resumes, and uses a control block
//! again. Tasks write plain memory that later tasks and the host read; loom reports a race wherever no
//! ordering lies between.

use std::sync::atomic::AtomicU32;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::one_thread::{OneThread, Tasks};
use super::{Chunk, requeue, run};
use crate::abi::{
    Cohort, CohortFlags, ControlBlock, DeviceQueue, Divisor, Post, Posted, RequeueList, Signal,
    SmRange, StopLimit, departures, share_bits,
};
use crate::atomic_shim::Ordering::Relaxed;
use crate::yields::Decision;

mod switching;

/// The memory that tasks write, one cell each, without atomics: loom checks every access.
struct Memory(Vec<UnsafeCell<u32>>);

// SAFETY: loom reports accesses that race.
unsafe impl Sync for Memory {}
// SAFETY: as above.
unsafe impl Send for Memory {}

impl Memory {
    fn new(cells: u32) -> Memory {
        Memory((0..cells).map(|_| UnsafeCell::new(0)).collect())
    }

    fn update(&self, cell: u32, change: impl FnOnce(&mut u32)) {
        // SAFETY: as above.
        self.0[cell as usize].with_mut(|cell| change(unsafe { &mut *cell }));
    }

    fn expect_all(&self, value: u32) {
        for cell in &self.0 {
            // SAFETY: as above.
            cell.with(|cell| assert_eq!(unsafe { *cell }, value));
        }
    }
}

/// The words of one launch, and two queues with a post each.
struct Launch {
    control: ControlBlock,
    queues: [DeviceQueue; 2],
    posts: [Post; 2],
    requeue_list: RequeueList,
    /// The tasks that the blocks of the cohort with ticket 1 start with.
    handed: u32,
    memory: Memory,
}

/// The fields in which the cohorts of a model differ.
#[derive(Clone, Copy)]
struct Spec {
    queue: usize,
    parity: usize,
    ticket: u32,
    epoch: u64,
    blocks: u32,
    /// The value that earlier cohorts of the slot left in its word.
    left: u64,
}

const FIRST: Spec = Spec { queue: 0, parity: 0, ticket: 1, epoch: 1, blocks: 1, left: 0 };

impl Launch {
    /// A launch with this many tasks, all of which are claimed.
    fn new(tasks: u32) -> Arc<Launch> {
        Launch::handing(0, tasks)
    }

    /// A launch with this many tasks, of which the blocks of the first cohort start with `handed`.
    fn handing(handed: u32, tasks: u32) -> Arc<Launch> {
        Arc::new(Launch {
            handed,
            control: ControlBlock::default(),
            queues: Default::default(),
            posts: Default::default(),
            requeue_list: RequeueList::default(),
            memory: Memory::new(tasks),
        })
    }

    fn cohort(&self, Spec { queue, parity, ticket, epoch, blocks, left }: Spec) -> Cohort {
        let tasks = self.memory.0.len() as u32;
        Cohort {
            control: &self.control,
            claims: &self.control.claims[parity],
            queue: &self.queues[queue],
            post: &self.posts[queue],
            requeue_list: &self.requeue_list,
            progress: std::ptr::null(),
            signal: Signal::new(epoch, SmRange::ALL),
            after: std::ptr::null(),
            after_word: 0,
            left,
            tasks,
            grid: [tasks, 1, 1],
            row: Divisor::new(1),
            layer: Divisor::new(1),
            ticket,
            blocks,
            amortize: 1,
            pace: 0,
            share_bits: share_bits(blocks),
            crowd: 0,
            longest: 0,
            clock: 0,
            handed: self.handed,
            flags: CohortFlags::new(queue as u8, 0).first(self.handed > 0 && ticket == 1),
            more_rows: 0,
            barrier: 0,
        }
    }

    /// Runs a block of a cohort whose tasks cannot be requeued.
    fn run_block(&self, sm: u32, cohort: &Cohort, task: impl Fn(u32)) {
        let task = |index, _| {
            task(index);
            false
        };
        // SAFETY: the callers keep the launch, and run each block once.
        unsafe { run(&mut OneThread::on(sm), cohort, &mut Tasks::<_, false>(0, task)) }
    }

    /// Starts the blocks of a cohort, as a launch does: everything before it is visible to them. Each
    /// task adds `value` to its cell.
    fn start(this: &Arc<Self>, spec: Spec, value: u32) {
        for sm in 0..spec.blocks {
            let launch = this.clone();
            thread::spawn(move || {
                launch.run_block(sm, &launch.cohort(spec), |task| {
                    launch.memory.update(task, |cell| *cell += value);
                });
            });
        }
    }

    fn signal(&self, queue: usize, epoch: u64, range: SmRange) {
        self.queues[queue].signal.store(Signal::new(epoch, range).to_bits(), Relaxed);
    }

    /// Polls a post, as the host does. Nothing else orders the host after the blocks.
    fn wait(&self, queue: usize, ticket: u32) -> u32 {
        loop {
            if let Some(Posted { done, .. }) = self.posts[queue].read(ticket) {
                return done;
            }
            thread::yield_now();
        }
    }
}

/// Explores the executions with up to `preemptions` involuntary switches between threads.
fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(f);
}

/// Counts of several outcomes over all executions of a model, to see that each of them happens.
struct Outcomes<const N: usize>(std::sync::Arc<[AtomicU32; N]>);

impl<const N: usize> Outcomes<N> {
    fn new() -> Self {
        Outcomes(std::sync::Arc::new(std::array::from_fn(|_| AtomicU32::new(0))))
    }

    fn of_model(self, preemptions: usize, f: impl Fn(&dyn Fn(usize)) + Sync + Send + 'static) {
        let counts = self.0.clone();
        model(preemptions, move || f(&|which| _ = counts[which].fetch_add(1, Relaxed)));
        let counts = self.0.each_ref().map(|count| count.load(Relaxed));
        assert!(!counts.contains(&0), "one of these never happened: {counts:?}");
    }
}

/// A stop somewhere in the run of two blocks; the rest resumes as a second cohort.
#[test]
fn stop_and_resume() {
    stop_and_resume_of(|| Launch::new(2));
}

/// A stop where each block starts with a task, and a block that has to leave before it starts gives its task
/// back.
#[test]
fn stop_and_resume_of_handed_tasks() {
    stop_and_resume_of(|| Launch::handing(2, 2));
}

fn stop_and_resume_of(launch: impl Fn() -> Arc<Launch> + Sync + Send + 'static) {
    Outcomes::<3>::new().of_model(3, move |happened| {
        let launch = launch();
        Launch::start(&launch, Spec { blocks: 2, ..FIRST }, 1);
        launch.signal(0, 2, SmRange::EMPTY);
        let mut done = launch.wait(0, 1);
        happened(done as usize);
        if done < 2 {
            let left = departures(2, done);
            Launch::start(&launch, Spec { ticket: 2, epoch: 3, left, ..FIRST }, 1);
            done += launch.wait(0, 2);
        }
        assert_eq!(done, 2);
        launch.memory.expect_all(1);
    });
}

/// Half of the device is taken away. The block on the other half finishes alone. If it has left when the
/// first one gives back its claim, a later cohort finishes.
#[test]
fn a_spatial_stop_leaves_the_granted_half_running() {
    Outcomes::<2>::new().of_model(3, |happened| {
        let launch = Launch::handing(2, 3);
        Launch::start(&launch, Spec { blocks: 2, ..FIRST }, 1);
        launch.signal(0, 2, SmRange::new(1, 2));
        let mut done = launch.wait(0, 1);
        happened((done < 3).into());
        if done < 3 {
            let left = departures(2, done);
            Launch::start(&launch, Spec { ticket: 2, epoch: 3, left, ..FIRST }, 1);
            done += launch.wait(0, 2);
        }
        assert_eq!(done, 3);
        launch.memory.expect_all(1);
    });
}

/// The launch grows by a second cohort while the first still runs; the tasks of both count.
#[test]
fn two_cohorts_at_once() {
    model(3, || {
        let launch = Launch::handing(1, 2);
        Launch::start(&launch, FIRST, 1);
        Launch::start(&launch, Spec { queue: 1, ticket: 2, epoch: 2, ..FIRST }, 1);
        let done = launch.wait(0, 1) + launch.wait(1, 2);
        assert_eq!(done, 2);
        launch.memory.expect_all(1);
    });
}

/// The control block is used again, for a launch whose tasks read what those of the first one wrote.
#[test]
fn reuse_of_the_control_block() {
    model(3, || {
        let launch = Launch::new(1);
        Launch::start(&launch, Spec { blocks: 2, ..FIRST }, 1);
        launch.signal(0, 2, SmRange::ALL);
        assert_eq!(launch.wait(0, 1), 1);
        let left = departures(2, 1);
        Launch::start(&launch, Spec { parity: 1, ticket: 2, epoch: 3, left, ..FIRST }, 2);
        assert_eq!(launch.wait(0, 2), 1);
        launch.memory.expect_all(3);
        // The third use finds the first one's claims clean.
        assert_eq!(launch.control.claims[0].next.load(Relaxed), 0);
    });
}

/// A launch is queued behind another one in queue 0, which has a second cohort in queue 1. It runs no task,
/// or sees the writes of all tasks of the other one.
#[test]
fn a_launch_behind_another_one_does_nothing_or_sees_all_of_it() {
    Outcomes::<2>::new().of_model(2, |happened| {
        let (first, second) = (Launch::new(2), Launch::new(1));
        let behind = |spec, is_over| {
            let (first, second) = (first.clone(), second.clone());
            move || {
                let left: *const _ = &first.control.left[0];
                let after = if is_over { std::ptr::null() } else { left };
                let after_word = departures(1, 2);
                let cohort = Cohort { after, after_word, ..second.cohort(spec) };
                second.run_block(0, &cohort, |task| {
                    first.memory.expect_all(1);
                    second.memory.update(task, |cell| *cell += 1);
                });
            }
        };
        let (in_lane, next) = (first.clone(), behind(FIRST, false));
        thread::spawn(move || {
            in_lane.run_block(0, &in_lane.cohort(FIRST), |task| {
                in_lane.memory.update(task, |cell| *cell += 1);
            });
            next();
        });
        Launch::start(&first, Spec { queue: 1, ticket: 2, blocks: 2, ..FIRST }, 1);

        // The host looks at the second launch alone, until that reports that it ran no task.
        let done = second.wait(0, 1);
        happened(done as usize);
        if done == 0 {
            assert_eq!(first.wait(0, 1) + first.wait(1, 2), 2);
            let left = departures(1, 0);
            thread::spawn(behind(Spec { ticket: 2, epoch: 2, left, ..FIRST }, true));
            assert_eq!(second.wait(0, 2), 1);
        }
        second.memory.expect_all(1);
    });
}

impl Launch {
    /// Starts a block of a cohort whose tasks leave 11 in their cells, and can be requeued before they add
    /// the 1. `starts` counts the starts of all tasks.
    fn start_yielding(this: &Arc<Self>, sm: u32, spec: Spec, starts: &std::sync::Arc<AtomicU32>) {
        let (launch, starts) = (this.clone(), starts.clone());
        thread::spawn(move || {
            let cohort = launch.cohort(spec);
            let task = |task, requeueable: bool| {
                starts.fetch_add(1, Relaxed);
                launch.memory.update(task, |cell| *cell = 10);
                if requeueable && !launch.queues[spec.queue].grants(cohort.signal, sm) {
                    return true;
                }
                launch.memory.update(task, |cell| *cell += 1);
                false
            };
            // SAFETY: `launch` is alive, and each block runs once.
            unsafe { run(&mut OneThread::on(sm), &cohort, &mut Tasks::<_, true>(0, task)) }
        });
    }
}

/// A task is requeued while it runs, and runs again on the other block or in a later cohort.
#[test]
fn a_requeued_task_runs_again_as_if_for_the_first_time() {
    Outcomes::<3>::new().of_model(3, |happened| {
        let launch = Launch::new(1);
        let starts = std::sync::Arc::new(AtomicU32::new(0));
        for sm in 0..2 {
            Launch::start_yielding(&launch, sm, Spec { blocks: 2, ..FIRST }, &starts);
        }
        launch.signal(0, 2, SmRange::new(1, 2));
        let done = launch.wait(0, 1);
        if done == 0 {
            let spec = Spec { ticket: 2, epoch: 3, left: departures(2, 0), ..FIRST };
            Launch::start_yielding(&launch, 0, spec, &starts);
            assert_eq!(launch.wait(0, 2), 1);
        }
        launch.memory.expect_all(11);
        match (starts.load(Relaxed), done) {
            (1, 1) => happened(0),
            (2, 1) => happened(1),
            (2, 0) => happened(2),
            other => panic!("{other:?}"),
        }
    });
}

/// A requeued task goes to a cohort in another queue, which runs concurrently.
#[test]
fn a_requeued_task_goes_to_another_cohort() {
    Outcomes::<2>::new().of_model(2, |happened| {
        let launch = Launch::new(2);
        let starts = std::sync::Arc::new(AtomicU32::new(0));
        Launch::start_yielding(&launch, 0, FIRST, &starts);
        Launch::start_yielding(&launch, 1, Spec { queue: 1, ticket: 2, ..FIRST }, &starts);
        launch.signal(0, 2, SmRange::EMPTY);
        let first = launch.wait(0, 1);
        let mut done = first + launch.wait(1, 2);
        if done < 2 {
            let spec = Spec { ticket: 3, epoch: 3, left: departures(1, first), ..FIRST };
            Launch::start_yielding(&launch, 0, spec, &starts);
            done += launch.wait(0, 3);
        }
        assert_eq!(done, 2);
        launch.memory.expect_all(11);
        happened((starts.load(Relaxed) > 2).into());
    });
}

/// A launch is revoked, and a block leaves a task behind its marker. A block in another queue has not seen that, and takes what
/// is on the list: not that task, which must not be done twice.
#[test]
fn a_task_that_a_revocation_has_stopped_does_not_run_again() {
    Outcomes::<2>::new().of_model(2, |happened| {
        let launch = Launch::new(2);
        for (queue, ticket) in [(0, 1), (1, 2)] {
            let launch = launch.clone();
            thread::spawn(move || {
                let cohort = launch.cohort(Spec { queue, ticket, ..FIRST });
                let task = |index, _| {
                    launch.memory.update(index, |cell| *cell += 1);
                    let word = launch.queues[queue].signal.load(Relaxed);
                    Signal::from_bits(word).limit() == StopLimit::REVOKED
                };
                // SAFETY: the launch outlives the call; the block runs once.
                unsafe { run(&mut OneThread::on(0), &cohort, &mut Tasks::<_, true>(0, task)) };
            });
        }
        let signal = Signal::within(2, SmRange::EMPTY, StopLimit::REVOKED);
        launch.queues[0].signal.store(signal.to_bits(), Relaxed);
        let done = launch.wait(0, 1) + launch.wait(1, 2);
        for cell in &launch.memory.0 {
            // SAFETY: loom reports a race.
            cell.with(|cell| assert!(unsafe { *cell } <= 1, "done twice"));
        }
        happened((done < 2).into());
    });
}

/// A task that a block of two threads runs, with a cell for each of them.
struct Marking {
    launch: Arc<Launch>,
    cells: Memory,
    /// How often threads dropped the task, came to the marker of a dropped task, and saw the signal behind their marker.
    outcomes: [AtomicU32; 3],
}

impl Marking {
    /// Thread `number` looks at the signal, passes a marker, and adds 1 to its cell, which would be wrong to do twice.
    /// Returns whether it requeued the task.
    fn run_thread(
        &self,
        number: u32,
        decision: &Decision,
        granted: Signal,
        requeueable: bool,
    ) -> bool {
        let is_taken = || requeueable && !self.launch.queues[0].grants(granted, 0);
        let happened = |which: usize| _ = self.outcomes[which].fetch_add(1, Relaxed);
        if is_taken() && decision.decide(0, true) {
            happened(0);
            return true;
        }
        if requeueable && decision.decide(0, false) {
            happened(1);
            return true;
        }
        self.cells.update(number, |cell| *cell += 1);
        if is_taken() {
            assert!(!decision.decide(0, true), "dropped behind a marker");
            happened(2);
        }
        false
    }

    fn run_block(this: &Arc<Marking>, spec: Spec) {
        let cohort = this.launch.cohort(spec);
        let granted = cohort.signal;
        let decision = Arc::new(Decision::default());
        // The block has dropped another task before, as far as its word says.
        assert!(decision.decide(1, true));
        let task = |_, requeueable| {
            let (marking, words) = (this.clone(), decision.clone());
            // Start and end of the thread are the barriers around a task.
            let other = thread::spawn(move || marking.run_thread(1, &words, granted, requeueable));
            let requeued = this.run_thread(0, &decision, granted, requeueable);
            other.join().unwrap() | requeued
        };
        // SAFETY: the launch is alive, and each block runs once.
        unsafe { run(&mut OneThread::on(0), &cohort, &mut Tasks::<_, true>(0, task)) }
    }
}

/// The threads of a block come to their markers while the signal takes the SM. The first marker or drop decides for both:
/// no thread runs behind its marker in a task that runs again.
#[test]
fn a_marker_and_a_drop_exclude_each_other() {
    Outcomes::<5>::new().of_model(3, |happened| {
        let marking = Arc::new(Marking {
            launch: Launch::new(1),
            cells: Memory::new(2),
            outcomes: Default::default(),
        });
        let block = marking.clone();
        thread::spawn(move || Marking::run_block(&block, FIRST));
        let launch = &marking.launch;
        launch.signal(0, 2, SmRange::EMPTY);
        let done = launch.wait(0, 1);
        happened(done as usize);
        if done == 0 {
            let spec = Spec { ticket: 2, epoch: 3, left: departures(1, 0), ..FIRST };
            Marking::run_block(&marking, spec);
            assert_eq!(launch.wait(0, 2), 1);
        }
        marking.cells.expect_all(1);
        let outcomes = marking.outcomes.iter().enumerate();
        outcomes.filter(|(_, n)| n.load(Relaxed) > 0).for_each(|(which, _)| happened(2 + which));
    });
}

/// Both entries of the list are full. Two threads take three chunks, the second of them one from the next
/// lap, while a third thread puts one more.
#[test]
fn the_list_goes_round_while_others_take() {
    fn put(list: &RequeueList, start: u32) -> bool {
        requeue::put(list, Chunk { start, len: 1, requeues: 1 }, Chunk::NONE)
    }
    /// Tries `times` times to take a chunk and add 1 to its cell; returns the number of chunks.
    fn take_some(list: &RequeueList, memory: &Memory, times: u32) -> u32 {
        let mut taken = 0;
        for _ in 0..times {
            let chunk = requeue::take(list, list.available.load(Relaxed));
            if chunk.len > 0 {
                assert_eq!((chunk.len, chunk.requeues), (1, 1));
                memory.update(chunk.start, |cell| *cell += 1);
                taken += 1;
            }
        }
        taken
    }
    Outcomes::<2>::new().of_model(3, |happened| {
        let list = Arc::new((RequeueList::default(), Memory::new(3)));
        assert!(put(&list.0, 0) && put(&list.0, 1) && !put(&list.0, 2), "there is room for two");
        let takers = [1, 2].map(|times| {
            let list = list.clone();
            thread::spawn(move || take_some(&list.0, &list.1, times))
        });
        let lists = list.clone();
        // Last, and on a thread of its own: loom would not explore that a load ahead of others' exchanges may
        // come after them.
        let putter = thread::spawn(move || {
            lists.1.update(2, |cell| *cell = 10);
            let fits = put(&lists.0, 2);
            if !fits {
                lists.1.update(2, |cell| *cell += 1);
            }
            fits
        });
        let mut taken: u32 = takers.map(|thread| thread.join().unwrap()).into_iter().sum();
        let fits = putter.join().unwrap();
        happened(fits.into());
        taken += take_some(&list.0, &list.1, 3);
        assert_eq!(taken, 2 + u32::from(fits));
        list.1.update(2, |cell| *cell -= 10);
        list.1.expect_all(1);
    });
}
