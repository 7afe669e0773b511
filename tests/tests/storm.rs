//! Exactly once, whatever yields: kernels that count their block-tasks, under storms of yields and
//! resumes that are random in time and range.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use preempt::policy::{Arrival, DeviceView, Plan, Policy, StaticPriority};
use preempt::{Buffer, Device, Handle, LaunchId, LaunchReport, Scheduler, Stream};
use preempt_device::abi::SmRange;
use preempt_test_kernels as kernels;
use preempt_tests::Random;

/// The number of yields, and of resumes, that a storm has to see.
const ENOUGH: u32 = 10_000;

/// Deals the SMs anew at every occasion: a random range for each launch, none for some. The
/// newest launch always gets something, so that the storm goes on.
struct Chaos {
    random: Random,
    launches: Vec<LaunchId>,
}

impl Policy for Chaos {
    fn name(&self) -> &str {
        "chaos"
    }

    fn arrived(&mut self, _now: Duration, launch: Arrival) {
        self.launches.push(launch.id);
    }

    fn departed(&mut self, _now: Duration, launch: LaunchId) {
        self.launches.retain(|&other| other != launch);
    }

    fn assign(&mut self, _now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        let sms = device.sms();
        let mut start = 0;
        for (index, &launch) in self.launches.iter().rev().enumerate() {
            let skipped =
                self.random.below(sms - start + 1).min(if index == 0 { sms - 1 } else { sms });
            let lo = start + skipped.min(sms - start);
            let hi = lo + self.random.below(sms - lo + 1).max(u32::from(index == 0));
            plan.grant(launch, SmRange::new(lo, hi));
            start = hi;
            if start == sms {
                break;
            }
        }
    }
}

/// A kernel that runs, with the counters that it writes and what they must hold then.
struct Victim {
    handle: Handle<LaunchReport>,
    expected: Vec<(Buffer<u32>, Vec<u32>)>,
}

impl Victim {
    /// Kernel `which`, on a grid of about `tasks` block-tasks.
    fn launch(which: u32, scheduler: &Scheduler, stream: &Stream, tasks: u32) -> Victim {
        let zeroed = |len: u32| scheduler.zeroed::<u32>(len as usize).expect("memory");
        let ones = |len: u32| vec![1; len as usize];
        let plain = |tasks: u32, threads: u32| {
            (zeroed(tasks), zeroed(tasks * threads), ones(tasks), ones(tasks * threads))
        };
        let launch = |call| stream.launch(call).expect("a valid launch");
        match which {
            0 => {
                let (mut counts, mut writes, tasks_once, threads_once) = plain(tasks, 32);
                let call = kernels::count_1d(&mut counts, &mut writes);
                let handle = launch(call.grid(tasks).block(32).amortize(7));
                Victim { handle, expected: vec![(counts, tasks_once), (writes, threads_once)] }
            }
            1 => {
                let grid = (tasks / 40, 40);
                let (mut counts, mut writes, tasks_once, threads_once) = plain(grid.0 * grid.1, 24);
                let call = kernels::count_2d(&mut counts, &mut writes);
                let handle = launch(call.grid(grid).block((8, 3)));
                Victim { handle, expected: vec![(counts, tasks_once), (writes, threads_once)] }
            }
            2 => {
                let grid = (tasks / 60, 10, 6);
                let (mut counts, mut writes, tasks_once, threads_once) =
                    plain(grid.0 * grid.1 * grid.2, 16);
                let call = kernels::count_3d(&mut counts, &mut writes);
                let handle = launch(call.grid(grid).block((4, 2, 2)).amortize(3));
                Victim { handle, expected: vec![(counts, tasks_once), (writes, threads_once)] }
            }
            3 => {
                let tasks = tasks / 8;
                let (mut counts, mut writes, tasks_once, threads_once) = plain(tasks, 256);
                let (mut reversed, mut sums) = (zeroed(tasks * 256), zeroed(tasks));
                let call =
                    kernels::count_shared(&mut counts, &mut writes, &mut reversed, &mut sums);
                let handle = launch(call.grid(tasks));
                let reversal = (0..tasks * 256).map(|i| i / 256 + 255 - i % 256).collect();
                let totals = (0..tasks).map(|task| 256 * task + 32640).collect();
                let expected = vec![
                    (counts, tasks_once),
                    (writes, threads_once),
                    (reversed, reversal),
                    (sums, totals),
                ];
                Victim { handle, expected }
            }
            4 => {
                let (mut counts, mut writes, tasks_once, _) = plain(tasks, 32);
                let call = kernels::count_early_return(&mut counts, &mut writes);
                let handle = launch(call.grid(tasks).block(32).amortize(5));
                let stays = |i: u32| u32::from(!(i / 32).is_multiple_of(3) && i.is_multiple_of(2));
                let remaining = (0..tasks * 32).map(stays).collect();
                Victim { handle, expected: vec![(counts, tasks_once), (writes, remaining)] }
            }
            _ => {
                let (mut counts, mut writes, tasks_once, threads_once) = plain(tasks, 32);
                let mut random = Random(u64::from(tasks));
                let rounds: Vec<u32> = (0..tasks).map(|_| 1 << random.below(10)).collect();
                let step = |x: u32| x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let end = |i| (0..rounds[i as usize / 32]).fold(i, |x, _| step(x));
                let ends_at = (0..tasks * 32).map(end).collect();
                let mut ends = zeroed(tasks * 32);
                let rounds = scheduler.buffer(&rounds).expect("memory");
                let call = kernels::count_irregular(&mut counts, &mut writes, &rounds, &mut ends);
                let handle = launch(call.grid(tasks).block(32));
                let expected = vec![(counts, tasks_once), (writes, threads_once), (ends, ends_at)];
                Victim { handle, expected }
            }
        }
    }

    /// Waits for the kernel, and compares.
    fn check(self, stream: &Stream) -> LaunchReport {
        let report = self.handle.wait().expect("the kernel runs to its end");
        for (number, (buffer, expected)) in self.expected.into_iter().enumerate() {
            let found = stream.download(&buffer).and_then(|copy| copy.wait()).expect("a copy");
            let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
            assert_eq!(wrong.map(|at| (at, found[at], expected[at])), None, "counter {number}");
        }
        report
    }
}

/// Runs rounds of all kernels at once, while small kernels come in between, until the storm has
/// seen enough.
fn storm(scheduler: &Scheduler, urgent_priority: i32, seed: u64) {
    let mut random = Random(seed);
    let urgent = scheduler.stream(urgent_priority);
    let sms = scheduler.device().properties().sms;
    let (mut yields, mut resumes, mut rounds) = (0, 0, 0);
    let most = 3 * sms;
    let zeroed = || scheduler.zeroed::<u32>(most as usize).expect("memory");
    let (mut ticks, mut tick_writes, mut expected) = (zeroed(), zeroed(), vec![0; most as usize]);
    while yields < ENOUGH || resumes < ENOUGH {
        rounds += 1;
        let streams: Vec<Stream> = (0..6).map(|_| scheduler.stream(0)).collect();
        let victims: Vec<Victim> = (0..6)
            .map(|which| Victim::launch(which, scheduler, &streams[which as usize], 2400))
            .collect();
        while victims.iter().any(|victim| !victim.handle.is_done()) {
            // From one SM to the whole device, and then a moment for the others.
            let tasks = 1 + random.below(most);
            let call = kernels::count_1d(&mut ticks, &mut tick_writes).grid(tasks).block(1);
            urgent.launch(call).and_then(|tick| tick.wait()).expect("an urgent kernel runs");
            expected[..tasks as usize].iter_mut().for_each(|count| *count += 1);
            (0..random.below(2000)).for_each(|_| std::hint::spin_loop());
        }
        for (victim, stream) in victims.into_iter().zip(&streams) {
            let report = victim.check(stream);
            yields += report.yields;
            resumes += report.resumes;
        }
    }
    for counter in [&ticks, &tick_writes] {
        let found = urgent.download(counter).and_then(|copy| copy.wait()).expect("a copy");
        assert_eq!(found, expected, "urgent kernels");
    }
    println!("{rounds} rounds of 6 kernels: {yields} yields, {resumes} resumes in mid-kernel");
    scheduler.synchronize().expect("the policy was in charge to the end");
}

fn scheduler(policy: impl Policy + 'static) -> Scheduler {
    let device = Device::cpu(5, 2).expect("a device");
    Scheduler::builder().device(device).policy(policy).build().expect("a scheduler")
}

#[test]
fn every_task_runs_once_when_urgent_kernels_take_what_they_need() {
    storm(&scheduler(StaticPriority::new()), 1, 1);
}

#[test]
fn every_task_runs_once_when_urgent_kernels_take_the_whole_device() {
    storm(&scheduler(StaticPriority::whole_device()), 1, 2);
}

#[test]
fn every_task_runs_once_when_ranges_are_random() {
    storm(&scheduler(Chaos { random: Random(3), launches: Vec::new() }), 0, 3);
}

#[test]
fn cancelled_kernels_report_exactly_what_they_did() {
    let scheduler = scheduler(StaticPriority::new());
    let urgent = scheduler.stream(1);
    let mut random = Random(4);
    let mut seen = HashSet::new();
    for _ in 0..200 {
        let stream = scheduler.stream(0);
        let tasks = 2000;
        let mut counts = scheduler.zeroed::<u32>(tasks as usize).expect("memory");
        let mut writes = scheduler.zeroed::<u32>(tasks as usize * 32).expect("memory");
        let call = kernels::count_1d(&mut counts, &mut writes).grid(tasks).block(32);
        let handle = stream.launch(call).expect("a valid launch");
        let mut tick = scheduler.zeroed::<u32>(1).expect("memory");
        let mut tick_writes = scheduler.zeroed::<u32>(1).expect("memory");
        let call = kernels::count_1d(&mut tick, &mut tick_writes).grid(1).block(1);
        let tick = urgent.launch(call).expect("a valid launch");
        (0..random.below(100_000)).for_each(|_| std::hint::spin_loop());
        handle.cancel();
        let done = match handle.wait() {
            Ok(report) => report.tasks,
            Err(preempt::Error::Cancelled { done, tasks: 2000 }) => done,
            Err(other) => panic!("{other}"),
        };
        tick.wait().expect("the urgent kernel runs");
        let counts = stream.download(&counts).and_then(|copy| copy.wait()).expect("a copy");
        assert!(counts.iter().all(|&count| count <= 1));
        assert_eq!(counts.iter().sum::<u32>(), done);
        seen.insert((done > 0, done < tasks));
    }
    assert!(seen.contains(&(true, true)), "some were cancelled in mid-kernel");
}

#[test]
fn many_threads_share_streams_and_buffers() {
    let scheduler = scheduler(StaticPriority::new());
    let stop = AtomicBool::new(false);
    let shared = scheduler.stream(0);
    std::thread::scope(|scope| {
        let batch = scope.spawn(|| {
            let mut yields = 0;
            while yields < 100 {
                yields += Victim::launch(3, &scheduler, &shared, 2400).check(&shared).yields;
            }
            stop.store(true, Ordering::Relaxed);
        });
        for thread in 0..4 {
            let (scheduler, stop, shared) = (&scheduler, &stop, &shared);
            scope.spawn(move || {
                let own = scheduler.stream(thread);
                let mut random = Random(thread as u64);
                while !stop.load(Ordering::Relaxed) {
                    // A chain across two streams, ordered by the buffer alone.
                    let len = 1 + random.below(200);
                    let mut data = scheduler.zeroed::<u32>(len as usize).expect("memory");
                    let mut spare = scheduler.zeroed::<u32>(len as usize).expect("memory");
                    for step in 0..6 {
                        let stream = if step % 2 == 0 { &own } else { shared };
                        let call = kernels::count_1d(&mut data, &mut spare).grid(len).block(1);
                        let _detached = stream.launch(call).expect("a valid launch");
                    }
                    let found = own.download(&data).and_then(|copy| copy.wait()).expect("a copy");
                    assert_eq!(found, vec![6; len as usize]);
                }
            });
        }
        batch.join().expect("no panic");
    });
}
