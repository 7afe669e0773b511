//! The worker loop on host threads: one thread a block, a host that signals at random.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use super::{Block, Chunk, run};
use crate::abi::{Cohort, ControlBlock, Post, Signal, SmRange};

/// A block of one thread on a given SM.
struct OneThread(u32);

impl Block for OneThread {
    fn sm(&self) -> u32 {
        self.0
    }
    fn elect(&mut self, decide: impl FnOnce() -> Chunk) -> Chunk {
        decide()
    }
    fn elect_last(&mut self, last: impl FnOnce()) {
        last()
    }
    fn barrier(&mut self) {}
}

#[derive(Default)]
struct Launch {
    control: ControlBlock,
    post: Post,
}

impl Launch {
    fn cohort(&self, tasks: u32, generation: u32, ticket: u32, epoch: u64, blocks: u32) -> Cohort {
        Cohort {
            control: &self.control,
            post: &self.post,
            signal: Signal::new(epoch, SmRange::ALL),
            grid: [tasks, 1, 1],
            tasks,
            generation,
            ticket,
            slot: 0,
            blocks,
            workers: blocks,
            amortize: 4,
        }
    }

    fn signal(&self, epoch: u64, range: SmRange) {
        let word = Signal::new(epoch, range).to_bits();
        self.control.slots[0].signal.store(word, Ordering::Relaxed);
    }
}

#[test]
fn a_launch_that_nobody_stops_runs_each_task_once() {
    let launch = Launch::default();
    let mut counts = Vec::new();
    // SAFETY: the launch outlives the call; its one block runs once.
    unsafe {
        run(&mut OneThread(0), &launch.cohort(100, 1, 1, 1, 1), |task| counts.push(task));
    }
    assert_eq!(counts, (0..100).collect::<Vec<_>>());
    assert_eq!(launch.post.read(1), Some(100));
}

#[test]
fn a_block_on_an_excluded_sm_claims_nothing() {
    let launch = Launch::default();
    launch.signal(2, SmRange::new(1, 4));
    // SAFETY: as above.
    unsafe { run(&mut OneThread(0), &launch.cohort(100, 1, 1, 1, 1), |_| unreachable!()) };
    assert_eq!(launch.post.read(1), Some(0));
}

#[test]
fn a_word_older_than_the_cohort_is_ignored() {
    let launch = Launch::default();
    launch.signal(6, SmRange::EMPTY);
    let mut tasks = 0;
    // SAFETY: as above.
    unsafe { run(&mut OneThread(0), &launch.cohort(10, 1, 1, 7, 1), |_| tasks += 1) };
    assert_eq!(tasks, 10);
}

#[test]
fn chunks_shrink_as_the_work_runs_out() {
    assert_eq!(super::chunk_size(10_000, 8, 16), 16);
    assert_eq!(super::chunk_size(64, 8, 16), 4);
    assert_eq!(super::chunk_size(1, 8, 16), 1);
}

/// Two blocks, a stop at every few tasks, the next cohort resumes; then the block is used again.
#[test]
fn a_storm_of_stops_loses_and_repeats_nothing() {
    const TASKS: u32 = 400;
    const BLOCKS: u32 = 3;
    let launch = Launch::default();
    let (mut epoch, mut ticket, mut stops_in_mid_kernel) = (0, 0, 0);
    for generation in 1..=20 {
        let counts: Vec<AtomicU32> = (0..TASKS).map(|_| AtomicU32::new(0)).collect();
        let mut done = 0;
        while done < TASKS {
            epoch += 1;
            ticket += 1;
            let cohort = launch.cohort(TASKS, generation, ticket, epoch, BLOCKS);
            let started = AtomicU32::new(0);
            thread::scope(|scope| {
                for sm in 0..BLOCKS {
                    let (counts, started) = (&counts, &started);
                    // The raw pointers in a cohort are shared on purpose.
                    let cohort = SendCohort(cohort);
                    scope.spawn(move || {
                        let SendCohort(cohort) = { cohort };
                        // SAFETY: the scope ends before the launch; each block runs once.
                        unsafe {
                            run(&mut OneThread(sm), &cohort, |task| {
                                counts[task as usize].fetch_add(1, Ordering::Relaxed);
                                started.fetch_add(1, Ordering::Relaxed);
                                thread::yield_now();
                            });
                        }
                    });
                }
                let stop_after = (generation * 7 + ticket) % 40;
                while started.load(Ordering::Relaxed) < stop_after
                    && launch.post.read(ticket).is_none()
                {
                    thread::yield_now();
                }
                epoch += 1;
                launch.signal(epoch, SmRange::EMPTY);
            });
            let cohort_done = launch.post.read(ticket).expect("every block has left");
            done += cohort_done;
            stops_in_mid_kernel += u32::from(done > 0 && done < TASKS);
        }
        assert_eq!(done, TASKS);
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    }
    assert!(stops_in_mid_kernel > 20, "only {stops_in_mid_kernel} stops met a running kernel");
}

struct SendCohort(Cohort);
// SAFETY: the pointers name atomics that outlive the threads.
unsafe impl Send for SendCohort {}
