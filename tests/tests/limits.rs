//! Latency limits: how blocks leave the SMs that a stream with a limit takes, and what `stats` says of it. Whatever they choose,
//! each block-task has its effects once.

use std::time::Duration;

use preempt::policy::StaticPriority;
use preempt::stats::Stops;
use preempt::{Buffer, CpuLayout, Device, Preemption, Scheduler, Stream};
use preempt_device::prelude::*;
use preempt_test_kit::Random;

const THREADS: u32 = 8;
const TASKS: u32 = 12;
const ELEMENTS: usize = (TASKS * THREADS) as usize;

/// Rounds of a block-task, each with a yield point, and nanoseconds of each.
const ROUNDS: u32 = 40;
const PAUSE: u32 = 50_000;

/// Shorter than most of a block-task, and longer than a few of its rounds.
const LIMIT: Duration = Duration::from_micros(400);

#[preemptible(block = THREADS)]
fn mixes(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    let mut value = x[i];
    for _ in 0..ROUNDS {
        yield_point!();
        if thread::thread_idx_x() == 0 {
            thread::nanosleep(PAUSE);
        }
        value = value.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    }
    // SAFETY: each thread writes its own element.
    unsafe { y.write(i, value) }
}

/// Not to be done twice, and not possible to drop: it goes on at its checkpoint.
#[preemptible(block = THREADS)]
fn accumulates(sums: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    checkpoint!(sum: u32 = 0 => for round in 0..ROUNDS {
        if thread::thread_idx_x() == 0 {
            thread::nanosleep(PAUSE);
        }
        sum = sum.wrapping_add(round);
    });
    // SAFETY: each thread accesses its own element.
    unsafe { sums.write(i, sums.read(i).wrapping_add(sum)) }
}

/// Stops between its block-tasks alone.
#[preemptible(block = THREADS)]
fn ends_late(ends: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    if thread::thread_idx_x() == 0 {
        for _ in 0..ROUNDS {
            thread::nanosleep(PAUSE);
        }
    }
    // SAFETY: each thread accesses its own element.
    unsafe { ends.write(i, ends.read(i) + 1) }
}

#[preemptible(block = 1)]
fn nothing(_out: SliceMut<u32>) {}

fn scheduler() -> Scheduler {
    Scheduler::builder()
        .device(Device::cpu_with(CpuLayout::sms(2)).expect("a device"))
        .policy(StaticPriority::whole_device())
        .preemption(Preemption::Preemptible)
        .build()
        .expect("a scheduler")
}

fn read(scheduler: &Scheduler, buffer: &Buffer<u32>) -> Vec<u32> {
    let copy = scheduler.stream(0).download(buffer).expect("accepted");
    copy.wait().expect("copied")
}

/// Takes the device for a moment, `times` times, with a pause in between.
fn takes(scheduler: &Scheduler, urgent: &Stream, times: u32, pause: Duration) {
    let mut out = scheduler.zeroed::<u32>(1).expect("memory");
    for _ in 0..times {
        std::thread::sleep(pause);
        urgent.launch(nothing(&mut out).grid(2)).expect("accepted").wait().expect("done");
    }
}

/// What the limits of an urgent stream do to a launch with yield points.
fn stops(limit: Option<Duration>) -> Stops {
    let scheduler = scheduler();
    let (batch, urgent) = (scheduler.stream(0), scheduler.stream(1));
    urgent.set_latency_limit(limit);
    assert_eq!(urgent.latency_limit(), limit);
    let inputs: Vec<u32> = (0..ELEMENTS as u32).collect();
    let x = scheduler.buffer(&inputs).expect("memory");
    let mut y = scheduler.buffer(&vec![u32::MAX; ELEMENTS]).expect("memory");
    let handle = batch.launch(mixes(&x, &mut y).grid(TASKS)).expect("accepted");
    takes(&scheduler, &urgent, 5, Duration::from_micros(700));
    handle.wait().expect("done");
    let expected = inputs.iter().map(|&value| {
        (0..ROUNDS)
            .fold(value, |value, _| value.wrapping_mul(1_664_525).wrapping_add(1_013_904_223))
    });
    assert_eq!(read(&scheduler, &y), expected.collect::<Vec<_>>());
    scheduler.stats().stops
}

#[test]
fn without_a_limit_blocks_leave_at_once_and_nothing_is_counted_as_late() {
    let Stops { count, violations, requeued, switched, lost, .. } = stops(None);
    assert_eq!((count, violations, switched), (0, 0, 0));
    assert!(requeued > 0 && lost > Duration::ZERO);
}

#[test]
fn a_limit_of_zero_is_kept_by_nothing() {
    let Stops { count, violations, requeued, limits, .. } = stops(Some(Duration::ZERO));
    assert!(count > 0);
    assert_eq!((violations, requeued), (count, 0));
    assert_eq!(limits.len(), 1);
    assert_eq!((limits[0].limit, limits[0].violations), (Duration::ZERO, count));
}

/// Launches without a stop that are enough to give up.
const MOST_LAUNCHES: u32 = 100;

#[test]
fn a_limit_of_zero_is_kept_by_no_kernel_without_yield_points_either() {
    let scheduler = scheduler();
    let (batch, urgent) = (scheduler.stream(0), scheduler.stream(1));
    urgent.set_latency_limit(Some(Duration::ZERO));
    let mut sums = scheduler.zeroed::<u32>(ELEMENTS).expect("memory");
    let mut ends = scheduler.zeroed::<u32>(ELEMENTS).expect("memory");
    let calls = [accumulates(&mut sums).grid(TASKS), ends_late(&mut ends).grid(TASKS)];
    let launches = calls.map(|call| {
        let before = scheduler.stats().stops.count;
        // On a busy machine a launch may end before an urgent one comes.
        let stopped = (1..=MOST_LAUNCHES).find(|_| {
            let handle = batch.launch(call.clone()).expect("accepted");
            takes(&scheduler, &urgent, 5, Duration::from_micros(700));
            handle.wait().expect("done");
            scheduler.stats().stops.count > before
        });
        let Stops { count, violations, requeued, switched, .. } = scheduler.stats().stops;
        assert_eq!((violations, requeued, switched), (count, 0, 0));
        stopped.expect("a stop")
    });
    let sum = launches[0] * (0..ROUNDS).sum::<u32>();
    assert_eq!(read(&scheduler, &sums), vec![sum; ELEMENTS]);
    assert_eq!(read(&scheduler, &ends), vec![launches[1]; ELEMENTS]);
}

/// A scheduler whose urgent launches take as many of two SMs as they need.
fn of_parts() -> Scheduler {
    Scheduler::builder()
        .device(Device::cpu_with(CpuLayout::sms(2).blocks_per_sm(2)).expect("a device"))
        .policy(StaticPriority::new())
        .preemption(Preemption::Preemptible)
        .build()
        .expect("a scheduler")
}

/// What is counted when a launch of [`ends_late`] with this number of block-tasks loses one of two SMs within [`LIMIT`].
fn stops_of_a_part(tasks: u32) -> Stops {
    let scheduler = of_parts();
    let (batch, urgent) = (scheduler.stream(0), scheduler.stream(1));
    urgent.set_latency_limit(Some(LIMIT));
    let mut ends = scheduler.zeroed::<u32>((tasks * THREADS) as usize).expect("memory");
    let mut out = scheduler.zeroed::<u32>(1).expect("memory");
    // On a busy machine a launch may end before an urgent one comes.
    for _ in 0..MOST_LAUNCHES {
        let handle = batch.launch(ends_late(&mut ends).grid(tasks)).expect("accepted");
        std::thread::sleep(Duration::from_micros(700));
        urgent.launch(nothing(&mut out).grid(1)).expect("accepted").wait().expect("done");
        handle.wait().expect("done");
        let stops = scheduler.stats().stops;
        if stops.violations > 0 {
            return stops;
        }
    }
    panic!("no stop was counted: {:?}", scheduler.stats().stops);
}

#[test]
fn blocks_without_yield_points_tell_when_they_leave_some_sms_late() {
    let Stops { drained, requeued, longest, .. } = stops_of_a_part(TASKS);
    assert!(drained > 0 && longest > LIMIT);
    assert_eq!(requeued, 0);
}

/// Of the blocks that run on and those that come for the SM afterwards, either may be the first to end, and tells of the stop.
#[test]
fn a_stop_is_counted_whichever_blocks_end_first() {
    let scheduler = of_parts();
    let (batch, urgent) = (scheduler.stream(0), scheduler.stream(1));
    urgent.set_latency_limit(Some(LIMIT));
    let mut ends = scheduler.zeroed::<u32>(ELEMENTS).expect("memory");
    let mut out = scheduler.zeroed::<u32>(1).expect("memory");
    let mut before = Stops::default();
    for _ in 0..20 {
        let handle = batch.launch(ends_late(&mut ends).grid(TASKS)).expect("accepted");
        std::thread::sleep(Duration::from_micros(700));
        urgent.launch(nothing(&mut out).grid(1)).expect("accepted").wait().expect("done");
        handle.wait().expect("done");
        let stops = scheduler.stats().stops;
        assert_eq!(stops.drained > before.drained, stops.count > before.count, "{stops:?}");
        before = stops;
    }
    assert!(before.count > 0, "{before:?}");
}

#[test]
fn so_do_blocks_with_one_block_task_each() {
    // As many as two SMs hold.
    let Stops { drained, longest, .. } = stops_of_a_part(4);
    assert!(drained > 0 && longest > LIMIT);
}

#[test]
fn with_time_enough_all_block_tasks_end() {
    let Stops { count, violations, requeued, drained, lost, .. } = stops(Some(Duration::MAX));
    assert!(count > 0 && drained > 0);
    assert_eq!((violations, requeued, lost), (0, 0, Duration::ZERO));
}

#[test]
fn a_block_task_that_is_not_known_to_fit_leaves() {
    let Stops { count, requeued, limits, .. } = stops(Some(LIMIT));
    assert!(count > 0 && requeued > 0);
    assert_eq!(limits.len(), 1);
    assert_eq!(limits[0].limit, LIMIT, "what was asked for, not what a signal has place for");
}

#[test]
fn every_technique_leaves_each_effect_once() {
    let scheduler = scheduler();
    let mut random = Random(23);
    let limits = [None, Some(LIMIT), Some(Duration::from_micros(20)), Some(Duration::MAX)];
    let urgent: Vec<_> = limits
        .iter()
        .map(|&limit| {
            let stream = scheduler.stream(1);
            stream.set_latency_limit(limit);
            stream
        })
        .collect();
    let inputs: Vec<u32> = (0..ELEMENTS as u32).map(|_| random.bits() as u32).collect();
    let x = scheduler.buffer(&inputs).expect("memory");
    let mut y = scheduler.zeroed::<u32>(ELEMENTS).expect("memory");
    let mut sums = scheduler.zeroed::<u32>(ELEMENTS).expect("memory");
    let batches = [0, 0].map(|priority| scheduler.stream(priority));
    const LAUNCHES: u32 = 4;
    for _ in 0..LAUNCHES {
        let handles = [
            batches[0].launch(mixes(&x, &mut y).grid(TASKS)).expect("accepted"),
            batches[1].launch(accumulates(&mut sums).grid(TASKS)).expect("accepted"),
        ];
        while handles.iter().any(|handle| handle.try_wait().is_none()) {
            let stream = &urgent[random.below(limits.len() as u32) as usize];
            takes(&scheduler, stream, 1, Duration::from_micros(random.below(1500).into()));
        }
    }
    let expected = inputs.iter().map(|&value| {
        (0..ROUNDS)
            .fold(value, |value, _| value.wrapping_mul(1_664_525).wrapping_add(1_013_904_223))
    });
    assert_eq!(read(&scheduler, &y), expected.collect::<Vec<_>>());
    let sum = LAUNCHES * (0..ROUNDS).sum::<u32>();
    assert_eq!(read(&scheduler, &sums), vec![sum; ELEMENTS]);
    let Stops { drained, requeued, switched, saved_bytes, .. } = scheduler.stats().stops;
    // 4 bytes of state and two numbers of rounds, in 32 bytes for each thread of a warp.
    assert_eq!(saved_bytes, switched * 32 * u64::from(THREADS.next_multiple_of(32)));
    assert!(drained > 0 && requeued > 0 && switched > 0, "{:?}", scheduler.stats().stops);
}
