//! The worker loop on host threads: one thread a block, a host that signals at random.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use super::one_thread::{OneThread, Tasks};
use super::{Chunk, MAX_REQUEUES, MAX_REQUEUES_FOR_LIMITS, requeue, run};
use crate::abi::{
    Cohort, CohortFlags, ControlBlock, DeviceQueue, Divisor, MAX_TASKS, Post, Progress, REQUEUED,
    RequeueList, Signal, SmRange, StopLimit, Stops, departures, share_bits,
};

/// A body without yield points.
fn plain(mut task: impl FnMut(u32)) -> Tasks<impl FnMut(u32, bool) -> bool, false> {
    let run = move |index, _droppable: bool| {
        task(index);
        false
    };
    Tasks(0, run)
}

/// A body with yield points: `task(index, requeueable)` returns whether it requeued the task.
fn yielding<F: FnMut(u32, bool) -> bool>(task: F) -> Tasks<F, true> {
    Tasks(0, task)
}

#[derive(Default)]
struct Launch {
    control: ControlBlock,
    queue: DeviceQueue,
    post: Post,
    requeue_list: Box<RequeueList>,
}

impl Launch {
    fn cohort(&self, tasks: u32, generation: u32, ticket: u32, epoch: u64, blocks: u32) -> Cohort {
        Cohort {
            control: &self.control,
            claims: &self.control.claims[generation as usize % 2],
            queue: &self.queue,
            post: &self.post,
            requeue_list: &*self.requeue_list,
            progress: std::ptr::null(),
            signal: Signal::new(epoch, SmRange::ALL),
            after: std::ptr::null(),
            after_word: 0,
            left: self.control.left[0].load(Ordering::Relaxed),
            grid: [tasks, 1, 1],
            row: Divisor::new(1),
            layer: Divisor::new(1),
            tasks,
            ticket,
            blocks,
            amortize: 4,
            pace: 0,
            share_bits: share_bits(blocks),
            crowd: 0,
            longest: 0,
            clock: 0,
            handed: 0,
            flags: CohortFlags::new(0, 0),
            more_rows: 0,
            barrier: 1,
        }
    }

    fn signal(&self, epoch: u64, range: SmRange) {
        let word = Signal::new(epoch, range).to_bits();
        self.queue.signal.store(word, Ordering::Relaxed);
    }
}

#[test]
fn a_launch_without_stops_runs_each_task_once() {
    let launch = Launch::default();
    let mut counts = Vec::new();
    // SAFETY: the launch outlives the call; its one block runs once.
    unsafe {
        run(
            &mut OneThread::on(0),
            &launch.cohort(100, 1, 1, 1, 1),
            &mut plain(|task| counts.push(task)),
        );
    }
    assert_eq!(counts, (0..100).collect::<Vec<_>>());
    assert_eq!(launch.post.read(1).map(|posted| posted.done), Some(100));
}

#[test]
fn a_chunk_comes_back_from_its_word() {
    for requeues in 0..=MAX_REQUEUES_FOR_LIMITS {
        for len in [1, 4096, MAX_TASKS >> 2] {
            let chunk = Chunk { start: MAX_TASKS - 1, len, requeues };
            assert_eq!(Chunk::unpack(chunk.pack()), chunk);
            assert_eq!(chunk.with_slot(), (chunk, None));
        }
    }
    let saved = Chunk::unpack(Chunk::saved(7, 4095).pack());
    assert_eq!(saved.with_slot(), (Chunk { start: 7, len: 1, requeues: 0 }, Some(4095)));
}

#[test]
fn a_block_tells_when_tasks_begin_if_the_host_wants_to_know() {
    for (mark, is_alone) in [(0, false), (9, false), (9, true)] {
        let launch = Launch::default();
        let progress: [Progress; 4] = std::array::from_fn(|_| Progress::default());
        let tasks = if is_alone { 1 } else { 3 };
        let cohort = launch.cohort(tasks, 1, 1, 1, 1);
        let cohort = Cohort {
            progress: &raw const progress[0],
            flags: CohortFlags::new(0, mark),
            amortize: 1,
            ..cohort
        };
        let mut told = Vec::new();
        // SAFETY: the launch and the words outlive the call; its one block, number 2, runs once.
        unsafe {
            run(
                &mut OneThread::ticking(2, 10),
                &cohort,
                &mut plain(|_| told.push(progress[2].read(9))),
            );
        }
        assert_eq!(told.len(), tasks as usize);
        assert!(told.iter().all(|told| told.is_some_and(|begun| begun.sm == 2) == (mark > 0)));
        assert!(
            told.is_sorted_by(|one, next| mark == 0 || one.map(|of| of.at) < next.map(|of| of.at))
        );
        assert!([0, 1, 3].iter().all(|&other| progress[other].read(9).is_none()));
    }
}

#[test]
fn a_block_tells_that_its_task_was_requeued_as_often_as_it_may_be() {
    let (launch, word) = (Launch::default(), Progress::default());
    let mut told = Vec::new();
    for start in 0..=MAX_REQUEUES {
        // Each cohort loses its SM in the task, which it requeues if it may.
        let ticket = start + 1;
        let cohort = launch.cohort(1, 1, ticket, u64::from(start), 1);
        let cohort =
            Cohort { progress: &word, flags: CohortFlags::new(0, 9), amortize: 1, ..cohort };
        let task = |_, droppable| {
            launch.signal(u64::from(ticket), SmRange::EMPTY);
            told.push((droppable, word.read(9).map(|begun| begun.is_spent)));
            droppable
        };
        // SAFETY: the launch and the word outlive the call; its one block runs once.
        unsafe { run(&mut OneThread::on(0), &cohort, &mut yielding(task)) };
    }
    assert_eq!(told, [(true, Some(false)), (true, Some(false)), (false, Some(true))]);
}

#[test]
fn a_block_on_an_excluded_sm_claims_nothing() {
    let launch = Launch::default();
    launch.signal(2, SmRange::new(1, 4));
    // SAFETY: as above.
    unsafe {
        run(&mut OneThread::on(0), &launch.cohort(100, 1, 1, 1, 1), &mut plain(|_| unreachable!()))
    };
    assert_eq!(launch.post.read(1).map(|posted| posted.done), Some(0));
}

#[test]
fn a_post_says_how_blocks_left_and_for_how_long_a_chunk_may_run() {
    let launch = Launch::default();
    let stop = |index: u32, requeues: bool| {
        let signal = Signal::within(u64::from(index) * 2, SmRange::EMPTY, StopLimit::within(9000));
        let cohort = launch.cohort(100, 1, index, signal.epoch() - 1, 1);
        let cohort = Cohort { amortize: 1, ..cohort };
        let task = |_, _| {
            let arrived = DeviceQueue::arrival(signal, 1);
            launch.queue.arrived.store(arrived, Ordering::Relaxed);
            launch.queue.signal.store(signal.to_bits(), Ordering::Relaxed);
            requeues
        };
        // SAFETY: the launch outlives the call; its one block runs once.
        unsafe { run(&mut OneThread::ticking(0, 10), &cohort, &mut yielding(task)) };
        assert!(launch.post.read(index).is_some());
        launch.post.take_stops()
    };
    let Stops { longest, latest, drained, requeued, switched, lost } = stop(1, false);
    assert!(longest > 0 && latest > 0);
    assert_eq!((drained, requeued, switched, lost), (1, 0, 0, 0));
    let Stops { latest, drained, requeued, switched, lost, .. } = stop(2, true);
    assert!(latest > 0 && lost > 0);
    assert_eq!((drained, requeued, switched), (0, 1, 0));
    assert_eq!(launch.post.take_stops(), Stops::default());
}

#[test]
fn what_a_block_tells_is_posted_by_the_block_that_ends_the_launch() {
    let launch = Launch::default();
    let signal = Signal::within(2, SmRange::new(1, 2), StopLimit::within(9000));
    let cohort = Cohort { longest: 1 << 30, amortize: 1, ..launch.cohort(20, 1, 1, 1, 2) };
    let mut on_lost = yielding(|_, requeueable: bool| {
        launch.queue.arrived.store(DeviceQueue::arrival(signal, 1), Ordering::Relaxed);
        launch.queue.signal.store(signal.to_bits(), Ordering::Relaxed);
        requeueable
    });
    // SAFETY: the launch outlives the calls; each block runs once.
    unsafe { run(&mut OneThread::ticking(0, 10), &cohort, &mut on_lost) };
    // SAFETY: as above.
    unsafe { run(&mut OneThread::ticking(1, 10), &cohort, &mut yielding(|_, _| false)) };
    assert_eq!(launch.post.read(1).map(|posted| posted.done), Some(20));
    let Stops { requeued, latest, lost, .. } = launch.post.take_stops();
    assert!(requeued == 1 && latest > 0 && lost > 0);
}

#[test]
fn a_block_with_one_task_notes_that_it_has_drained() {
    let launch = Launch::default();
    let signal = Signal::within(2, SmRange::EMPTY, StopLimit::NEVER);
    let cohort = Cohort { longest: 1 << 30, ..launch.cohort(1, 1, 1, 1, 1) };
    let cohort = Cohort { handed: 1, flags: cohort.flags.first(true), ..cohort };
    let mut task = yielding(|_, _| {
        launch.queue.signal.store(signal.to_bits(), Ordering::Relaxed);
        false
    });
    // SAFETY: as above.
    unsafe { run(&mut OneThread::ticking(0, 10), &cohort, &mut task) };
    assert_eq!(launch.post.read(1).map(|posted| posted.done), Some(1));
    assert_eq!(launch.post.take_stops().drained, 1);
}

#[test]
fn a_block_without_yield_points_notes_that_it_has_drained() {
    let launch = Launch::default();
    let signal = Signal::within(2, SmRange::EMPTY, StopLimit::within(9000));
    let cohort = Cohort { amortize: 1, ..launch.cohort(20, 1, 1, 1, 1) };
    let mut tasks = plain(|_| {
        launch.queue.arrived.store(DeviceQueue::arrival(signal, 1), Ordering::Relaxed);
        launch.queue.signal.store(signal.to_bits(), Ordering::Relaxed);
    });
    // SAFETY: as above.
    unsafe { run(&mut OneThread::ticking(0, 10), &cohort, &mut tasks) };
    assert!(launch.post.read(1).is_some_and(|posted| posted.done < 20));
    let Stops { drained, latest, longest, .. } = launch.post.take_stops();
    assert!(drained == 1 && latest > 0 && longest == 0);
    // With a block for each task, too.
    let launch = Launch::default();
    let cohort = launch.cohort(1, 1, 1, 1, 1);
    let cohort = Cohort { handed: 1, flags: cohort.flags.first(true), ..cohort };
    let mut task = plain(|_| {
        launch.queue.arrived.store(DeviceQueue::arrival(signal, 1), Ordering::Relaxed);
        launch.queue.signal.store(signal.to_bits(), Ordering::Relaxed);
    });
    // SAFETY: as above.
    unsafe { run(&mut OneThread::ticking(0, 10), &cohort, &mut task) };
    let Stops { drained, latest, .. } = launch.post.take_stops();
    assert!(drained == 1 && latest > 0);
}

#[test]
fn a_block_that_begins_on_a_taken_sm_tells_of_no_stop() {
    let launch = Launch::default();
    let signal = Signal::within(2, SmRange::EMPTY, StopLimit::within(9000));
    launch.queue.arrived.store(DeviceQueue::arrival(signal, 1), Ordering::Relaxed);
    launch.queue.signal.store(signal.to_bits(), Ordering::Relaxed);
    let cohort = launch.cohort(20, 1, 1, 1, 1);
    // SAFETY: as above.
    unsafe { run(&mut OneThread::ticking(0, 10), &cohort, &mut yielding(|_, _| false)) };
    assert_eq!(launch.post.read(1).map(|posted| posted.done), Some(0));
    assert_eq!(launch.post.take_stops(), Stops::default());
}

#[test]
fn nothing_is_told_of_a_launch_that_is_as_expected() {
    let launch = Launch::default();
    let cohort = Cohort { longest: 1000, ..launch.cohort(100, 1, 1, 1, 1) };
    // SAFETY: as above.
    unsafe { run(&mut OneThread::ticking(0, 10), &cohort, &mut yielding(|_, _| false)) };
    assert_eq!(launch.post.read(1).map(|posted| posted.done), Some(100));
    assert_eq!(launch.post.take_stops(), Stops::default());
}

#[test]
fn a_word_older_than_the_cohort_is_ignored() {
    let launch = Launch::default();
    launch.signal(6, SmRange::EMPTY);
    let mut tasks = 0;
    // SAFETY: as above.
    unsafe {
        run(&mut OneThread::on(0), &launch.cohort(10, 1, 1, 7, 1), &mut plain(|_| tasks += 1))
    };
    assert_eq!(tasks, 10);
}

#[test]
fn chunks_shrink_as_the_work_runs_out() {
    assert_eq!(super::chunk_size(10_000, share_bits(8), 1, 16), 16);
    assert_eq!(super::chunk_size(64, share_bits(8), 1, 16), 2);
    assert_eq!(super::chunk_size(64, share_bits(7), 1, 16), 4);
    assert_eq!(super::chunk_size(u32::MAX, share_bits(1 << 31), 1, 16), 1);
    assert_eq!(super::chunk_size(1, share_bits(8), 1, 16), 1);
    assert_eq!(super::chunk_size(1, share_bits(8), 4, 16), 4);
    assert_eq!(super::chunk_size(1, share_bits(8), 0, 0), 1);
}

#[test]
fn a_block_with_a_handed_task_claims_those_after_it() {
    let launch = Launch::default();
    let mut runs = Vec::new();
    let of_first = CohortFlags::new(0, 0).first(true);
    let cohort = Cohort { handed: 1, flags: of_first, ..launch.cohort(10, 1, 1, 1, 1) };
    // SAFETY: as above.
    unsafe { run(&mut OneThread::on(0), &cohort, &mut plain(|task| runs.push(task))) };
    assert_eq!(runs, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(launch.post.read(1).map(|posted| posted.done), Some(10));
    // A block for each task; and one more, which is not in the launch and has no task.
    let cohort = Cohort { handed: 1, flags: of_first, ..launch.cohort(1, 2, 2, 2, 1) };
    // SAFETY: as above.
    unsafe { run(&mut OneThread::on(0), &cohort, &mut plain(|task| runs.push(task))) };
    assert_eq!(runs.pop(), Some(0));
    assert_eq!(launch.post.read(2).map(|posted| posted.done), Some(1));
    // SAFETY: as above.
    unsafe { run(&mut OneThread::on(3), &cohort, &mut plain(|_| unreachable!())) };
}

#[test]
fn a_block_that_has_to_leave_before_it_starts_gives_back_its_task() {
    let launch = Launch::default();
    let mut runs = Vec::new();
    launch.signal(2, SmRange::EMPTY);
    for (ticket, done) in [(1, 0), (2, 10)] {
        let cohort = launch.cohort(10, 1, ticket, u64::from(2 * ticket - 1), 1);
        let cohort = Cohort { handed: 1, flags: cohort.flags.first(ticket == 1), ..cohort };
        // SAFETY: as above.
        unsafe { run(&mut OneThread::on(0), &cohort, &mut plain(|task| runs.push(task))) };
        assert_eq!(launch.post.read(ticket).map(|posted| posted.done), Some(done));
    }
    runs.sort_unstable();
    assert_eq!(runs, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn chunks_are_claimed_several_at_once_where_claims_would_come_too_often() {
    // The clock is read twice for each chunk, so it advances by 20 from one to the next.
    for (crowd, expected) in [(0, 1), (20, 1), (21, 2), (41, 2), (42, 4), (1000, 4)] {
        let launch = Launch::default();
        let cohort = Cohort { amortize: 1, pace: 1000, crowd, ..launch.cohort(1000, 1, 1, 1, 1) };
        let mut claims = Vec::new();
        let body = |_| claims.push(launch.control.claims[1].next.load(Ordering::Relaxed));
        // SAFETY: as above.
        unsafe { run(&mut OneThread::ticking(0, 10), &cohort, &mut plain(body)) };
        assert_eq!(claims.len(), 1000);
        // Without the first ones, which have none before them, and the last ones, which shrink.
        let steps = claims[10..900].windows(2).map(|two| two[1] - two[0]);
        assert!(steps.filter(|&step| step > 0).all(|step| step == expected), "crowd {crowd}");
    }
}

#[test]
fn after_a_long_task_a_block_keeps_one_of_its_claimed_tasks() {
    let launch = Launch::default();
    let cohort = Cohort { amortize: 1, pace: 10, crowd: 1000, ..launch.cohort(100, 1, 1, 1, 1) };
    let mut runs = Vec::new();
    // SAFETY: as above.
    unsafe { run(&mut OneThread::ticking(0, 40), &cohort, &mut plain(|task| runs.push(task))) };
    assert!(launch.requeue_list.put.load(Ordering::Relaxed) > 1, "nothing was given back");
    runs.sort_unstable();
    assert_eq!(runs, (0..100).collect::<Vec<_>>());
}

#[test]
fn a_requeued_task_leaves_claimed_tasks_with_their_block() {
    let launch = Launch::default();
    let claims = &launch.control.claims[1];
    let cohort = Cohort { amortize: 1, pace: 1000, crowd: 1000, ..launch.cohort(200, 1, 1, 1, 1) };
    let mut runs = Vec::new();
    let body = |task, _| {
        // Another block was faster, and took the task.
        requeue::announce(claims);
        runs.push(task);
        false
    };
    // SAFETY: as above.
    unsafe { run(&mut OneThread::ticking(0, 10), &cohort, &mut yielding(body)) };
    assert_eq!(runs, (0..200).collect::<Vec<_>>());
    assert_eq!(launch.requeue_list.put.load(Ordering::Relaxed), 0);
}

/// Three blocks, and stops for which some tasks are requeued; the next cohort resumes. Then the control block
/// is used again.
#[test]
fn a_storm_of_stops_loses_and_repeats_nothing() {
    const TASKS: u32 = 400;
    const BLOCKS: u32 = 3;
    let launch = Launch::default();
    let (mut epoch, mut ticket, mut stops_in_mid_kernel) = (0, 0, 0);
    let requeued = AtomicU32::new(0);
    for generation in 1..=20 {
        let counts: Vec<AtomicU32> = (0..TASKS).map(|_| AtomicU32::new(0)).collect();
        let (mut done, mut is_first_cohort) = (0, true);
        while done < TASKS {
            epoch += 1;
            ticket += 1;
            let cohort = launch.cohort(TASKS, generation, ticket, epoch, BLOCKS);
            let cohort =
                Cohort { handed: BLOCKS, flags: cohort.flags.first(is_first_cohort), ..cohort };
            is_first_cohort = false;
            let started = AtomicU32::new(0);
            thread::scope(|scope| {
                for sm in 0..BLOCKS {
                    let (launch, counts, started, requeued) =
                        (&launch, &counts, &started, &requeued);
                    // The threads share the words behind the cohort's raw pointers.
                    let cohort = SendCohort(cohort);
                    scope.spawn(move || {
                        let SendCohort(cohort) = { cohort };
                        // SAFETY: the scope ends before the launch; each block runs once.
                        unsafe {
                            run(
                                &mut OneThread::on(sm),
                                &cohort,
                                &mut yielding(|task, requeueable| {
                                    started.fetch_add(1, Ordering::Relaxed);
                                    thread::yield_now();
                                    let requeues = requeueable
                                        && task % 3 == 0
                                        && !launch.queue.grants(cohort.signal, sm);
                                    requeued.fetch_add(u32::from(requeues), Ordering::Relaxed);
                                    let done = u32::from(!requeues);
                                    counts[task as usize].fetch_add(done, Ordering::Relaxed);
                                    requeues
                                }),
                            );
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
            let cohort_done = launch.post.read(ticket).expect("every block has left").done;
            done += cohort_done;
            stops_in_mid_kernel += u32::from(done > 0 && done < TASKS);
        }
        assert_eq!(done, TASKS);
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    }
    assert!(stops_in_mid_kernel > 20, "only {stops_in_mid_kernel} stops met a running kernel");
    let requeued = requeued.into_inner();
    assert!(requeued > 20, "only {requeued} tasks were requeued");
}

#[test]
fn a_task_is_requeued_twice_at_most_with_the_rest_of_its_chunk() {
    let launch = Launch::default();
    let (mut runs, mut ticket) = (Vec::new(), 0);
    while runs.len() < 12 {
        ticket += 1;
        let cohort = launch.cohort(10, 1, ticket, u64::from(2 * ticket), 1);
        let body = |task, requeueable| {
            let requeues = requeueable && task == 1;
            if requeues {
                launch.signal(u64::from(2 * ticket) + 1, SmRange::EMPTY);
            }
            runs.push((task, requeueable));
            requeues
        };
        // SAFETY: as above.
        unsafe { run(&mut OneThread::on(0), &cohort, &mut yielding(body)) };
    }
    assert_eq!(runs[..3], [(0, true), (1, true), (1, true)]);
    let mut rest = runs.split_off(3);
    rest.sort_unstable();
    assert_eq!(rest[0], (1, false));
    assert_eq!(rest[1..], [2, 3, 4, 5, 6, 7, 8, 9].map(|task| (task, true)));
    assert_eq!(ticket, 3);
}

#[test]
fn a_block_that_has_to_leave_gives_back_what_it_claimed_ahead() {
    let launch = Launch::default();
    let (mut runs, mut done) = (Vec::new(), Vec::new());
    for ticket in [1, 2] {
        let body = |task| {
            runs.push(task);
            if task == 2 {
                launch.signal(2, SmRange::EMPTY);
            }
        };
        let cohort = launch.cohort(10, 1, ticket, u64::from(3 * ticket - 2), 1);
        // SAFETY: as above.
        unsafe { run(&mut OneThread::on(0), &cohort, &mut plain(body)) };
        done.extend(launch.post.read(ticket).map(|posted| posted.done));
    }
    assert!(done[0] < 10 && done.iter().sum::<u32>() == 10, "{done:?}");
    assert_eq!(runs, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(launch.requeue_list.taken.load(Ordering::Relaxed), 1, "it was on the list");
}

#[test]
fn a_block_without_room_on_the_list_runs_what_it_claimed_ahead() {
    let launch = Launch::default();
    let full = crate::abi::REQUEUE_CAPACITY as u32 - crate::abi::REQUEUE_MARGIN;
    launch.requeue_list.put.store(full, Ordering::Relaxed);
    launch.signal(2, SmRange::EMPTY);
    let mut runs = Vec::new();
    let body = |task| {
        runs.push(task);
        launch.signal(8, SmRange::EMPTY);
    };
    // SAFETY: as above.
    unsafe { run(&mut OneThread::on(0), &launch.cohort(10, 1, 1, 7, 1), &mut plain(body)) };
    assert_eq!(runs, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn requeued_tasks_of_other_blocks_run_before_fresh_ones() {
    // With a clock that stands still, the block looks at nothing but its claims.
    for pace in [0, 1000] {
        let launch = Launch::default();
        let claims = &launch.control.claims[1].next;
        let mut runs = Vec::new();
        let body = |task, _| {
            if task == 3 {
                let requeued = Chunk { start: 70, len: 1, requeues: 1 };
                assert!(requeue::put(&launch.requeue_list, requeued, Chunk::NONE));
                claims.fetch_or(REQUEUED, Ordering::Relaxed);
            }
            runs.push(task);
            false
        };
        let cohort = Cohort { amortize: 1, pace, ..launch.cohort(20, 1, 1, 1, 1) };
        // SAFETY: as above.
        unsafe { run(&mut OneThread::on(0), &cohort, &mut yielding(body)) };
        let at = runs.iter().position(|&task| task == 70).expect("it ran");
        assert!(at <= 6, "{runs:?}");
        runs.remove(at);
        assert_eq!(runs, (0..20).collect::<Vec<_>>());
        assert_eq!(claims.load(Ordering::Relaxed) & REQUEUED, 0, "nothing is on the list");
    }
}

#[test]
fn claims_announce_a_requeued_task() {
    let launch = Launch::default();
    let body = |_, requeueable| {
        launch.signal(2, SmRange::EMPTY);
        requeueable
    };
    // SAFETY: as above.
    unsafe { run(&mut OneThread::on(0), &launch.cohort(10, 1, 1, 1, 1), &mut yielding(body)) };
    assert_eq!(launch.post.read(1).map(|posted| posted.done), Some(0));
    assert!(launch.control.claims[1].next.load(Ordering::Relaxed) & REQUEUED > 0);
}

/// A claim with an announcement is a claim like others: when its block requeues its own task, has to leave,
/// and starts.
#[test]
fn the_announcement_of_a_requeued_task_takes_no_task_away() {
    for (requeues, leaves) in [(false, false), (false, true), (true, true)] {
        let launch = Launch::default();
        let mut runs = Vec::new();
        for ticket in 1..=8 {
            let epoch = u64::from(2 * ticket);
            let body = |task, requeueable| {
                launch.control.claims[1].next.fetch_or(REQUEUED, Ordering::Relaxed);
                if leaves && task % 4 == 2 {
                    launch.signal(epoch + 1, SmRange::EMPTY);
                }
                let requeued = requeues && requeueable && task % 4 == 2;
                if !requeued {
                    runs.push(task);
                }
                requeued
            };
            let cohort =
                Cohort { amortize: 1, pace: 1000, ..launch.cohort(10, 1, ticket, epoch, 1) };
            // SAFETY: as above.
            unsafe { run(&mut OneThread::on(0), &cohort, &mut yielding(body)) };
        }
        runs.sort_unstable();
        assert_eq!(runs, (0..10).collect::<Vec<_>>(), "requeues: {requeues}, leaves: {leaves}");
    }
}

#[test]
fn nothing_is_claimed_ahead_of_long_tasks_that_can_be_requeued() {
    for (step, is_ahead) in [(10, true), (2000, false)] {
        let launch = Launch::default();
        let mut claimed = Vec::new();
        let body = |task, _| {
            claimed.push(launch.control.claims[1].next.load(Ordering::Relaxed) - task);
            false
        };
        let cohort = Cohort { amortize: 1, pace: 1000, ..launch.cohort(30, 1, 1, 1, 1) };
        // SAFETY: as above.
        unsafe { run(&mut OneThread::ticking(0, step), &cohort, &mut yielding(body)) };
        assert_eq!(claimed.len(), 30);
        // The first task may be long.
        assert_eq!(claimed[0], 1);
        assert_eq!(claimed[5..20].iter().any(|&claimed| claimed > 1), is_ahead, "{claimed:?}");
    }
}

#[test]
fn a_block_that_starts_when_all_tasks_are_claimed_claims_nothing() {
    let launch = Launch::default();
    let claims = &launch.control.claims[1].next;
    claims.store(10, Ordering::Relaxed);
    for ticket in 1..=3 {
        for start in [2, 5] {
            assert!(requeue::put(
                &launch.requeue_list,
                Chunk { start, len: 1, requeues: 0 },
                Chunk::NONE
            ));
        }
        let cohort = launch.cohort(10, 1, ticket, u64::from(ticket), 1);
        let mut runs = Vec::new();
        // SAFETY: as above.
        unsafe { run(&mut OneThread::on(0), &cohort, &mut plain(|task| runs.push(task))) };
        assert_eq!(runs, [2, 5]);
    }
    assert_eq!(claims.load(Ordering::Relaxed), 10);
}

/// Each stop finds a running task, and a task that was claimed ahead.
#[test]
fn a_storm_of_stops_does_not_fill_the_list() {
    let launch = Launch::default();
    let (mut most, mut done) = (0, 0);
    for ticket in 1..=200 {
        let epoch = u64::from(2 * ticket);
        let mut runs = 0;
        let body = |_, requeueable| {
            runs += 1;
            if runs == 2 {
                launch.signal(epoch + 1, SmRange::EMPTY);
            }
            requeueable && runs == 2
        };
        let cohort = Cohort { amortize: 1, ..launch.cohort(10_000, 1, ticket, epoch, 1) };
        // SAFETY: as above.
        unsafe { run(&mut OneThread::on(0), &cohort, &mut yielding(body)) };
        let [put, taken] = [&launch.requeue_list.put, &launch.requeue_list.taken]
            .map(|word| word.load(Ordering::Relaxed));
        most = most.max(put - taken);
        done += launch.post.read(ticket).map_or(0, |posted| posted.done);
    }
    assert!((2..=3).contains(&most), "{most} chunks were on the list");
    assert_eq!(done, 200, "one in each");
}

#[test]
fn a_task_that_finds_no_room_on_the_list_runs_to_its_end() {
    let launch = Launch::default();
    let full = crate::abi::REQUEUE_CAPACITY as u32 - crate::abi::REQUEUE_MARGIN;
    launch.requeue_list.put.store(full, Ordering::Relaxed);
    let mut runs = Vec::new();
    let body = |task, requeueable| {
        runs.push((task, requeueable));
        requeueable && task == 0
    };
    // SAFETY: as above.
    unsafe { run(&mut OneThread::on(0), &launch.cohort(2, 1, 1, 1, 1), &mut yielding(body)) };
    assert_eq!(runs, [(0, true), (0, false), (1, true)]);
    assert_eq!(launch.post.read(1).map(|posted| posted.done), Some(2));
}

#[test]
fn a_launch_behind_an_unfinished_one_does_nothing() {
    let (first, second) = (Launch::default(), Launch::default());
    let mut order = Vec::new();
    for (epoch, ticket, limit) in [(1, 1, 5), (3, 2, 10)] {
        let behind = Cohort {
            after: &first.control.left[0],
            after_word: departures(2, 10),
            ..second.cohort(1, 1, ticket, epoch, 1)
        };
        let cohort = Cohort { amortize: 1, ..first.cohort(10, 1, ticket, epoch, 1) };
        let body = |task| {
            order.push(task);
            if task + 1 == limit {
                first.signal(epoch + 1, SmRange::EMPTY);
            }
        };
        // SAFETY: as above.
        unsafe {
            run(&mut OneThread::on(0), &cohort, &mut plain(body));
            run(&mut OneThread::on(0), &behind, &mut plain(|_| order.push(100)));
        }
    }
    assert_eq!(order, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 100]);
    assert_eq!(second.post.read(2).map(|posted| posted.done), Some(1));
}

#[test]
fn a_chunk_takes_about_its_pace() {
    let launch = Launch::default();
    let cohort = Cohort { amortize: 100, pace: 1000, ..launch.cohort(1000, 1, 1, 1, 1) };
    let limits = [100, 499, 500, 999, 1000, 9000].map(|took| super::limit(&cohort, took, 40));
    assert_eq!(limits, [80, 80, 40, 40, 20, 20]);
    let limits = [(1, 80), (5000, 1), (77, 0)].map(|(took, len)| super::limit(&cohort, took, len));
    assert_eq!(limits, [100, 1, 1]);
}

struct SendCohort(Cohort);
// SAFETY: the pointers name atomics that outlive the threads.
unsafe impl Send for SendCohort {}
