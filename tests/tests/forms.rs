//! Plain grids and preemptible launches beside one another: who makes room for whom, and which form a launch gets.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use preempt::error::LaunchError;
use preempt::policy::{Arrival, DeviceView, Ffs, Hpf, Plan, Policy, SmRange, StaticPriority};
use preempt::predict::{Features, Predictor};
use preempt::{
    Buffer, Call, CpuLayout, Device, Error, Handle, LaunchId, LaunchReport, NoGrid, Opaque,
    Preemption, Scheduler, Stream,
};
use preempt_device::atomic::{AtomicU32, Ordering::SeqCst};
use preempt_device::prelude::*;
use preempt_test_kernels as kernels;
use preempt_test_kit::{Gate, KERNELS, Random, carried_out, gated};

/// Time: what has to end although a gate is closed ends within this.
const SOON: Duration = Duration::from_secs(20);

/// Time: longer than any launch may be that is to be plain here.
const ENDLESS: Duration = Duration::from_secs(3600);

fn scheduler(sms: u32, policy: impl Policy + 'static, longest_plain: Duration) -> Scheduler {
    let device = Device::cpu_with(CpuLayout::sms(sms)).expect("a device");
    let builder = Scheduler::builder().device(device).policy(policy).longest_plain(longest_plain);
    builder.preemption(Preemption::Auto).build().expect("a scheduler")
}

fn log_of(stream: &Stream, log: &Buffer<u32>) -> Vec<u32> {
    let log = stream.download(log).and_then(|copy| copy.wait()).expect("copied");
    log[1..=log[0] as usize].to_vec()
}

/// Each has its own log, because launches with one log would wait for one another; what ran before is what has ended.
fn plain(stream: &Stream, gate: &Gate, log: &mut Buffer<u32>, tasks: u32) -> Handle<LaunchReport> {
    let call = gated(&gate.0, log, 1).grid(tasks).preemption(Preemption::Plain);
    stream.launch(call).expect("accepted")
}

#[test]
fn a_plain_grid_makes_room_between_its_blocks() {
    let scheduler = scheduler(1, StaticPriority::new(), ENDLESS);
    let (low, high) = (scheduler.stream(0), scheduler.stream(1));
    let (gate, urgent_gate) = (Gate::new(&scheduler), Gate::new(&scheduler));
    let [mut log, mut urgent_log] = [(); 2].map(|()| scheduler.zeroed(64).expect("memory"));
    let batch = plain(&low, &gate, &mut log, 20);
    gate.wait_for(1);
    let call = gated(&urgent_gate.0, &mut urgent_log, 2).grid(1);
    let urgent = carried_out(&scheduler, || high.launch(call).expect("accepted"));
    // The block that runs goes on to its end, and the next block is the urgent launch's.
    gate.open();
    urgent_gate.wait_for(1);
    assert!(!batch.is_done());
    urgent_gate.open();
    urgent.wait().expect("runs");
    let report = batch.wait().expect("runs");
    assert_eq!((report.plain, report.tasks, report.yields), (true, 20, 0));
    assert_eq!(log_of(&low, &log), [1; 20], "each block-task once");
}

#[test]
fn plain_grids_make_room_for_more_urgent_ones_level_by_level() {
    const LEVELS: usize = 5;
    let scheduler = scheduler(1, StaticPriority::new(), ENDLESS);
    let gates = [(); LEVELS].map(|()| Gate::new(&scheduler));
    let mut logs = [(); LEVELS].map(|()| scheduler.zeroed(64).expect("memory"));
    let mut handles = Vec::new();
    for (level, (gate, log)) in gates.iter().zip(&mut logs).enumerate() {
        if let Some(below) = level.checked_sub(1) {
            // Its running block ends when the next launch is there.
            let stream = scheduler.stream(level as i32);
            handles.push(carried_out(&scheduler, || plain(&stream, gate, log, 3)));
            gates[below].open();
        } else {
            handles.push(plain(&scheduler.stream(0), gate, log, 3));
        }
        gate.wait_for(1);
    }
    assert!(handles.iter().all(|handle| !handle.is_done()), "all are interrupted, or at a gate");
    gates[LEVELS - 1].open();
    for (handle, log) in handles.iter().zip(&logs) {
        assert_eq!(handle.wait().expect("runs").tasks, 3);
        assert_eq!(log_of(&scheduler.stream(0), log), [1; 3]);
    }
}

/// Launches of all forms and priorities, on streams that share nothing, count each of their block-tasks once.
fn storm(policy: impl Policy + 'static, seed: u64) {
    const TASKS: u32 = 60;
    let mut random = Random(seed);
    let device = preempt_test_kit::device(CpuLayout::sms(3).blocks_per_sm(2));
    let builder = Scheduler::builder().device(device).kernels(KERNELS).policy(policy);
    let scheduler = builder.longest_plain(ENDLESS).build().expect("a scheduler");
    let streams: Vec<Stream> = (0..8).map(|priority| scheduler.stream(priority % 6)).collect();
    let zeroed = |len| scheduler.zeroed::<u32>(len as usize).expect("memory");
    let mut counts: Vec<_> = streams.iter().map(|_| (zeroed(TASKS), zeroed(TASKS * 32))).collect();
    let mut expected = vec![vec![0; TASKS as usize]; streams.len()];
    // After these, the kernel is known.
    for _ in 0..4 {
        let (counts, writes) = &mut counts[0];
        let call = kernels::paced_1d(100, counts, writes).grid(1).block(32);
        let call = call.preemption(Preemption::Auto);
        streams[0].launch(call).and_then(|handle| handle.wait()).expect("runs");
        expected[0][0] += 1;
    }
    let mut handles = Vec::new();
    for _ in 0..400 {
        if random.below(10) == 0 {
            let at = random.below(streams.len() as u32) as usize;
            streams[at].set_priority(random.below(6) as i32);
        }
        let at = random.below(streams.len() as u32) as usize;
        let (counts, writes) = &mut counts[at];
        let tasks = 1 + random.below(TASKS);
        let form = [Preemption::Plain, Preemption::Preemptible, Preemption::Auto, Preemption::Auto];
        let call = kernels::paced_1d(u64::from(random.below(3000)), counts, writes);
        let form = form[random.below(4) as usize];
        let call = call.grid(tasks).block(32).preemption(form);
        handles.push((streams[at].launch(call).expect("accepted"), tasks, form));
        expected[at][..tasks as usize].iter_mut().for_each(|count| *count += 1);
    }
    let mut chosen = 0;
    for (handle, tasks, form) in handles {
        let report = handle.wait().expect("runs");
        assert_eq!(report.tasks, tasks);
        chosen += u32::from(form == Preemption::Auto && report.plain);
    }
    assert!(chosen > 0, "no launch of unknown form was plain");
    for (at, stream) in streams.iter().enumerate() {
        let found = stream.download(&counts[at].0).and_then(|copy| copy.wait()).expect("copied");
        assert_eq!(found, expected[at], "stream {at}");
    }
}

#[test]
fn launches_of_all_forms_run_once() {
    for seed in 0..6 {
        storm(StaticPriority::new(), seed);
        storm(Hpf::new(), seed);
    }
}

#[test]
fn a_cancelled_plain_grid_runs_to_its_end_and_says_so() {
    let scheduler = scheduler(1, StaticPriority::new(), ENDLESS);
    let stream = scheduler.stream(0);
    let (gate, mut log) = (Gate::new(&scheduler), scheduler.zeroed(64).expect("memory"));
    let first = plain(&stream, &gate, &mut log, 3);
    gate.wait_for(1);
    let second = plain(&stream, &gate, &mut log, 3);
    first.cancel();
    second.cancel();
    assert!(!first.is_done(), "its blocks are on the device");
    gate.open();
    assert_eq!(first.wait().expect("runs").tasks, 3);
    match second.wait() {
        Ok(report) => assert_eq!(report.tasks, 3),
        Err(Error::Launch(LaunchError::Cancelled { done: 0, tasks: 3 })) => {}
        Err(other) => panic!("{other}"),
    }
}

/// A millisecond for each block-task, however fast this machine is.
struct ByTasks;

impl Predictor for ByTasks {
    fn predict(&self, launch: &Features<'_>) -> Option<Duration> {
        Some(Duration::from_millis(launch.grid.into()))
    }

    fn finished(&mut self, _launch: &Features<'_>, _took: Duration) {}
}

/// As [`gated`]; a block-task that waits at the gate can be dropped there, before it has done anything but come.
#[preemptible(block = 1, idempotent)]
fn held(gate: *const u32, log: *mut u32, name: u32) {
    // SAFETY: a gate has two elements, which host and kernels access atomically.
    let (open, arrived) = unsafe {
        (AtomicU32::from_ptr(gate.cast_mut()), AtomicU32::from_ptr(gate.add(1).cast_mut()))
    };
    arrived.fetch_add(1, SeqCst);
    while open.load(SeqCst) == 0 {
        yield_point!();
        std::thread::yield_now();
    }
    // SAFETY: all entries are appended atomically, and the test allocates enough of them.
    unsafe {
        let entry = AtomicU32::from_ptr(log).fetch_add(1, SeqCst) + 1;
        log.add(entry as usize).write(name);
    }
}

/// A scheduler with one stream and the settings that it has by default, which knows [`held`] from earlier launches.
struct Known {
    scheduler: Scheduler,
    stream: Stream,
    gate: Gate,
    log: Buffer<u32>,
}

impl Known {
    fn new() -> Known {
        let device = Device::cpu_with(CpuLayout::sms(1)).expect("a device");
        let builder = Scheduler::builder().device(device).policy(StaticPriority::new());
        let scheduler = builder.predictor(ByTasks).build().expect("a scheduler");
        let stream = scheduler.stream(0);
        let [open, gate] = [(); 2].map(|()| Gate::new(&scheduler));
        open.open();
        for _ in 0..3 {
            let mut log = scheduler.zeroed(64).expect("memory");
            let call = held(&open.0, &mut log, 0).grid(1);
            let report = stream.launch(call).and_then(|handle| handle.wait()).expect("runs");
            assert!(!report.plain, "the kernel is not known");
        }
        let log = scheduler.zeroed(64).expect("memory");
        Known { scheduler, stream, gate, log }
    }

    /// A launch that is predicted to take a millisecond for each block-task.
    fn launch(&mut self, name: u32, tasks: u32) -> Handle<LaunchReport> {
        let call = held(&self.gate.0, &mut self.log, name).grid(tasks);
        self.stream.launch(call).expect("accepted")
    }
}

#[test]
fn a_scheduler_and_a_launch_that_choose_no_form_get_that_which_costs_less() {
    let forms = |preemption: Option<Preemption>| {
        let device = Device::cpu_with(CpuLayout::sms(1)).expect("a device");
        let builder = Scheduler::builder().device(device).predictor(ByTasks);
        let scheduler = match preemption {
            Some(preemption) => builder.preemption(preemption).build(),
            None => builder.build(),
        };
        let scheduler = scheduler.expect("a scheduler");
        let (gate, mut log) = (Gate::new(&scheduler), scheduler.zeroed(64).expect("memory"));
        gate.open();
        let stream = scheduler.stream(0);
        [(); 5].map(|()| {
            let call = gated(&gate.0, &mut log, 1).grid(1);
            stream.launch(call).and_then(|handle| handle.wait()).expect("runs").plain
        })
    };
    assert_eq!(forms(None), [false, false, false, true, true]);
    assert_eq!(forms(Some(Preemption::Plain)), [true; 5], "the call has that of its scheduler");
    assert_eq!(forms(Some(Preemption::Preemptible)), [false; 5]);
}

#[test]
fn a_cancelled_launch_that_was_chosen_plain_ends_with_its_grid_and_nothing_else_is_started() {
    let mut of = Known::new();
    let (running, waiting, behind) = (of.launch(1, 10), of.launch(2, 4), of.launch(3, 2));
    of.gate.wait_for(1);
    running.cancel();
    waiting.cancel();
    let cancelled = waiting.wait_timeout(SOON).expect("in time").expect_err("it is not started");
    let expected = LaunchError::Cancelled { done: 0, tasks: 4 };
    assert_eq!(cancelled.to_string(), Error::Launch(expected).to_string());
    assert!(!running.is_done(), "its blocks look at no signal");
    of.gate.open();
    let report = running.wait().expect("runs");
    assert_eq!((report.plain, report.tasks), (true, 10));
    assert_eq!(behind.wait().expect("runs").tasks, 2);
    assert_eq!(log_of(&of.stream, &of.log), [[1; 10].as_slice(), &[3; 2]].concat());
}

#[test]
fn a_launch_that_takes_longer_than_a_plain_one_may_is_cancelled_at_a_yield_point() {
    let mut of = Known::new();
    let running = of.launch(1, 11);
    of.gate.wait_for(1);
    running.cancel();
    // The gate is closed, so no block-task ends.
    let cancelled = running.wait_timeout(SOON).expect("it leaves");
    let expected = LaunchError::Cancelled { done: 0, tasks: 11 };
    let cancelled = cancelled.expect_err("it does not run").to_string();
    assert_eq!(cancelled, Error::Launch(expected).to_string());
    of.gate.open();
    assert_eq!(of.launch(2, 1).wait().expect("runs").tasks, 1);
    assert_eq!(log_of(&of.stream, &of.log), [2]);
}

#[test]
fn a_dropped_scheduler_ends_with_the_launch_that_was_chosen_plain() {
    let mut of = Known::new();
    let (running, waiting) = (of.launch(1, 10), of.launch(2, 4));
    of.gate.wait_for(1);
    let Known { scheduler, gate, log, .. } = of;
    let device = scheduler.device().clone();
    std::thread::scope(|scope| {
        let drops = scope.spawn(|| drop(scheduler));
        let dropped = waiting.wait_timeout(SOON).expect("in time").expect_err("it is not started");
        let expected = LaunchError::SchedulerDropped { done: 0, tasks: 4 };
        assert_eq!(dropped.to_string(), Error::Launch(expected).to_string());
        assert!(!running.is_done() && !drops.is_finished(), "the grid runs");
        gate.open();
    });
    let report = running.wait().expect("runs");
    assert_eq!((report.plain, report.tasks), (true, 10));
    let next = Scheduler::builder().device(device).build().expect("the device is free");
    assert_eq!(log_of(&next.stream(0), &log), [1; 10]);
}

#[test]
fn opaque_work_that_has_the_device_alone_waits_for_the_plain_grid_and_for_nothing_behind_it() {
    for opaque in [Opaque::new("alone").exclusive(), Opaque::new("the first run")] {
        let mut of = Known::new();
        let (running, behind) = (of.launch(1, 10), of.launch(2, 4));
        of.gate.wait_for(1);
        let seen = Arc::new(AtomicU32::new(0));
        let (sees, log) = (seen.clone(), of.log.address());
        let alone = carried_out(&of.scheduler, || {
            // A stream that comes to be later changes no form.
            let work = of.scheduler.stream(9).opaque(opaque, move |_| {
                // What was launched beside it would run meanwhile.
                std::thread::sleep(Duration::from_millis(20));
                // SAFETY: the log is there until the end, and kernels access it atomically.
                let logged = unsafe { AtomicU32::from_ptr(log as *mut u32) };
                sees.store(logged.load(SeqCst), SeqCst);
                Ok(())
            });
            work.expect("accepted")
        });
        assert!(!alone.is_done() && !running.is_done());
        of.gate.open();
        alone.wait().expect("runs");
        assert_eq!(seen.load(SeqCst), 10, "block-tasks that were done");
        for (launch, tasks) in [(running, 10), (behind, 4)] {
            let report = launch.wait().expect("runs");
            assert_eq!((report.plain, report.tasks), (true, tasks));
        }
        assert_eq!(log_of(&of.stream, &of.log), [[1; 10].as_slice(), &[2; 4]].concat());
    }
}

#[test]
fn a_known_kernel_is_plain_where_the_policy_and_the_limit_allow_it() {
    // The number of launches before the first plain one, if there is one.
    let first_plain = |policy: Box<dyn FnOnce() -> Scheduler>| {
        let scheduler = policy();
        let stream = scheduler.stream(0);
        let (gate, mut log) = (Gate::new(&scheduler), scheduler.zeroed(1024).expect("memory"));
        gate.open();
        let mut launch = || {
            let call = gated(&gate.0, &mut log, 1).grid(4);
            stream.launch(call).and_then(|handle| handle.wait()).expect("runs").plain
        };
        (0..100).position(|_| launch())
    };
    let by_order = first_plain(Box::new(|| scheduler(2, StaticPriority::new(), ENDLESS)));
    assert!(by_order.is_some_and(|before| before >= 3), "{by_order:?}");
    let none = first_plain(Box::new(|| scheduler(2, StaticPriority::new(), Duration::ZERO)));
    assert_eq!(none, None, "none is that short");
    let slices = first_plain(Box::new(|| scheduler(2, Ffs::new(), ENDLESS)));
    assert_eq!(slices, None, "the policy takes SMs away at certain times");
    let whole = first_plain(Box::new(|| scheduler(2, StaticPriority::whole_device(), ENDLESS)));
    assert_eq!(whole, None, "the policy grants SMs that no block fills");
}

#[test]
fn a_launch_that_no_stream_can_preempt_is_plain_however_long_its_blocks_take() {
    let first_plain = |other: Option<i32>| {
        let scheduler = scheduler(2, StaticPriority::new(), ENDLESS);
        let (stream, other) =
            (scheduler.stream(1), other.map(|priority| scheduler.stream(priority)));
        let mut starts = scheduler.zeroed::<u32>(4).expect("memory");
        let mut out = scheduler.zeroed::<u32>(4 * 32).expect("memory");
        let mut launch = || {
            // Blocks that take longer than to stop at a yield point.
            let call = kernels::spin_yielding(&mut starts, 3000, &mut out).grid(4).block(32);
            stream.launch(call).and_then(|handle| handle.wait()).expect("runs").plain
        };
        let first = (0..20).position(|_| launch());
        drop(other);
        first
    };
    assert!(first_plain(None).is_some() && first_plain(Some(0)).is_some());
    assert_eq!(first_plain(Some(1)), None, "the other one may come first");
    assert_eq!(first_plain(Some(2)), None);
}

/// Can be dropped at a yield point, and loses what it did then.
#[preemptible(block = 32)]
fn drops(y: SliceMut<u32>) {
    for _ in 0..64 {
        yield_point!();
        thread::nanosleep(2_000);
    }
    // SAFETY: each thread has its own element.
    unsafe { y.write(thread::index_1d() as usize, 1) };
}

/// Can be left at a checkpoint, and loses nothing.
#[preemptible(block = 32)]
fn leaves(y: SliceMut<u32>) {
    checkpoint!(rounds: u32 = 0 => for _ in 0..64 {
        thread::nanosleep(2_000);
        rounds += 1;
    });
    // SAFETY: each thread has its own element.
    unsafe { y.write(thread::index_1d() as usize, rounds) };
}

/// Submission order, one launch at a time; what launches were expected to lose where they yield when they were planned.
#[derive(Default)]
struct OneByOne {
    waiting: Vec<LaunchId>,
    losses: Arc<Mutex<Vec<Duration>>>,
}

impl Policy for OneByOne {
    fn name(&self) -> &str {
        "one by one"
    }

    fn arrived(&mut self, _now: Duration, launch: Arrival) {
        self.waiting.push(launch.id);
    }

    fn changed(&mut self, _now: Duration, _launch: Arrival) {}

    fn departed(&mut self, _now: Duration, launch: LaunchId) {
        self.waiting.retain(|waiting| *waiting != launch);
    }

    fn assign(&mut self, _now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        if let Some(&launch) = self.waiting.first() {
            self.losses.lock().expect("no panic").push(device.requeued(launch));
            plan.grant(launch, SmRange::new(0, device.sms()));
        }
    }
}

#[test]
fn what_is_left_at_a_checkpoint_is_not_expected_to_be_lost() {
    let policy = OneByOne::default();
    let losses = policy.losses.clone();
    let scheduler = scheduler(2, policy, ENDLESS);
    let stream = scheduler.stream(0);
    let mut y = scheduler.zeroed(64).expect("memory");
    let last_loss = |kernel: &mut dyn FnMut() -> Call<'static, NoGrid>| {
        // The first ones tell how long the others take.
        for _ in 0..5 {
            let call = kernel().grid(2).preemption(Preemption::Preemptible);
            stream.launch(call).expect("accepted").wait().expect("runs");
        }
        losses.lock().expect("no panic").last().copied().expect("it was planned")
    };
    assert!(last_loss(&mut || drops(&mut y)) > Duration::ZERO);
    assert_eq!(last_loss(&mut || leaves(&mut y)), Duration::ZERO);
}
