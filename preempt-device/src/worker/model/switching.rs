//! Tasks that blocks leave at checkpoints, and go on with.

use super::*;
use crate::worker::{Body, save};

/// A launch whose tasks have some rounds, with a checkpoint between two of them. A round adds 1 to the task's cell, which would be
/// wrong to do twice.
struct Switching {
    launch: Arc<Launch>,
    rounds: u32,
    used: [loom::sync::atomic::AtomicU32; 1],
    /// What each slot holds: the task, and the number of its rounds.
    slots: Memory,
    /// How often tasks were left, and not left because no slot was free.
    outcomes: [AtomicU32; 2],
}

struct SwitchingBody<'a> {
    launch: &'a Switching,
    queue: usize,
    granted: Signal,
    sm: u32,
    task: u32,
    slot: Option<u32>,
}

impl Body for SwitchingBody<'_> {
    const YIELDS: bool = true;
    const SWITCHES: bool = true;
    fn seek(&mut self, index: u32) {
        self.task = index;
    }
    fn index(&self) -> u32 {
        self.task
    }
    fn resume(&mut self, slot: Option<u32>) {
        self.slot = slot;
    }
    fn slot(&self) -> u32 {
        self.slot.unwrap()
    }
    fn run(&mut self, _: u32) -> bool {
        let Switching { launch, rounds, used, slots, outcomes } = self.launch;
        let mut first = 0;
        if let Some(slot) = self.slot.take() {
            slots.update(slot, |cell| {
                assert_eq!(*cell / 4, 1 + self.task, "the slot of another task");
                first = *cell % 4;
                // As the next owner must not find it.
                *cell = u32::MAX;
            });
            save::give_back(used, slot);
        }
        for round in first..*rounds {
            if round > first && !launch.queues[self.queue].grants(self.granted, self.sm) {
                self.slot = save::take(used, 1, 0);
                outcomes[usize::from(self.slot.is_none())].fetch_add(1, Relaxed);
                if let Some(slot) = self.slot {
                    slots.update(slot, |cell| *cell = 4 * (1 + self.task) + round);
                    return true;
                }
            }
            launch.memory.update(self.task, |cell| *cell += 1);
        }
        false
    }
}

impl Switching {
    fn new(tasks: u32, rounds: u32) -> Arc<Switching> {
        Arc::new(Switching {
            launch: Launch::new(tasks),
            rounds,
            used: Default::default(),
            slots: Memory::new(1),
            outcomes: Default::default(),
        })
    }

    /// Checks that each round ran once and the slot came back, and says whether tasks were left, and whether one was not.
    fn check(&self, happened: impl Fn(usize)) {
        self.launch.memory.expect_all(self.rounds);
        assert_eq!(self.used[0].load(Relaxed), 0, "the slot came back");
        let outcomes = self.outcomes.iter().enumerate();
        outcomes.filter(|(_, n)| n.load(Relaxed) > 0).for_each(|(which, _)| happened(2 + which));
    }

    fn run_block(&self, sm: u32, spec: Spec) {
        let cohort = self.launch.cohort(spec);
        let granted = cohort.signal;
        let mut body =
            SwitchingBody { launch: self, queue: spec.queue, granted, sm, task: 0, slot: None };
        // SAFETY: the launch is alive, and each block runs once.
        unsafe { run(&mut OneThread::on(sm), &cohort, &mut body) }
    }
}

/// Two blocks leave their tasks at checkpoints while there is one slot, and another cohort goes on with them. Each round runs
/// once.
#[test]
fn a_task_goes_on_where_its_block_left_it() {
    Outcomes::<4>::new().of_model(2, |happened| {
        let switching = Switching::new(2, 2);
        for sm in 0..2 {
            let switching = switching.clone();
            thread::spawn(move || switching.run_block(sm, Spec { blocks: 2, ..FIRST }));
        }
        let launch = &switching.launch;
        launch.signal(0, 2, SmRange::EMPTY);
        let mut done = launch.wait(0, 1);
        happened((done < 2).into());
        if done < 2 {
            let left = departures(2, done);
            switching.run_block(0, Spec { ticket: 2, epoch: 3, left, ..FIRST });
            done += launch.wait(0, 2);
        }
        assert_eq!(done, 2);
        switching.check(happened);
    });
}

/// A task is left, goes on, and is left again.
#[test]
fn a_task_is_left_twice() {
    Outcomes::<3>::new().of_model(2, |happened| {
        let switching = Switching::new(1, 3);
        let launch = &switching.launch;
        let mut done = 0;
        for ticket in 1..3 {
            let (switching, left) = (switching.clone(), departures(ticket - 1, 0));
            let epoch = 2 * u64::from(ticket) - 1;
            let spec = Spec { ticket, epoch, left, ..FIRST };
            thread::spawn(move || switching.run_block(0, spec));
            launch.signal(0, epoch + 1, SmRange::EMPTY);
            done = launch.wait(0, ticket);
            if done > 0 {
                break;
            }
        }
        happened((done == 0).into());
        if done == 0 {
            switching.run_block(0, Spec { ticket: 3, epoch: 5, left: departures(2, 0), ..FIRST });
            assert_eq!(launch.wait(0, 3), 1);
        }
        switching.check(|_| ());
        if switching.outcomes[0].load(Relaxed) == 2 {
            happened(2);
        }
    });
}

/// A block goes on with a task, and gives its slot back, while another block needs one.
#[test]
fn a_slot_goes_from_one_task_to_another() {
    Outcomes::<4>::new().of_model(2, |happened| {
        let switching = Switching::new(2, 2);
        let launch = &switching.launch;
        // Task 0 was left before its second round, and task 1 is the first unclaimed one.
        switching.used[0].store(1, Relaxed);
        switching.slots.update(0, |cell| *cell = 5);
        launch.memory.update(0, |cell| *cell = 1);
        launch.control.claims[0].next.store(1, Relaxed);
        requeue::put_saved(&launch.requeue_list, Chunk::saved(0, 0));
        let leaving = switching.clone();
        thread::spawn(move || leaving.run_block(0, Spec { queue: 1, ticket: 2, ..FIRST }));
        let ending = switching.clone();
        thread::spawn(move || ending.run_block(0, FIRST));
        launch.signal(1, 2, SmRange::EMPTY);
        let mut done = launch.wait(0, 1) + launch.wait(1, 2);
        happened((done == 2).into());
        if done < 2 {
            let left = launch.control.left[0].load(Relaxed);
            switching.run_block(0, Spec { ticket: 3, epoch: 3, left, ..FIRST });
            done += launch.wait(0, 3);
        }
        assert_eq!(done, 2);
        switching.check(happened);
    });
}
