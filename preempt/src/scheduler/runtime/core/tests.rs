//! When a turn asks the policy, and about which launches. When it asks the predictor. What it learns from launches that end.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use preempt_device::host::Preemption;
use preempt_device::prelude::*;

use crate::device::model::{Model, Settings as OfModel};
use crate::policy::{Arrival, DeviceView, Fifo, Plan, Policy, StaticPriority};
use crate::predict::{Features, Predictor};
use crate::{Call, Costs, CpuLayout, Device, LaunchId, Priority, Scheduler, Stream};

#[preemptible(block = 32)]
fn nothing(_x: &[u32]) {}

#[preemptible(block = 32)]
fn writes(_x: SliceMut<u32>) {}

type Log = Arc<Mutex<Vec<String>>>;

/// Logs when it is asked, and about how many launches.
struct LogsPlans(Fifo, Log, usize);

impl Policy for LogsPlans {
    fn name(&self) -> &str {
        "logs plans"
    }
    fn arrived(&mut self, now: Duration, launch: Arrival) {
        self.2 += 1;
        self.0.arrived(now, launch);
    }
    fn departed(&mut self, now: Duration, launch: LaunchId) {
        self.2 -= 1;
        self.0.departed(now, launch);
    }
    fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        self.1.lock().expect("no panic").push(format!("plan for {}", self.2));
        self.0.assign(now, device, plan);
    }
}

/// Submits calls when the core asks about the first launch.
struct Submits(Log, Arc<OnceLock<Vec<(Stream, Call<'static>)>>>);

impl Predictor for Submits {
    fn predict(&self, launch: &Features<'_>) -> Option<Duration> {
        self.0.lock().expect("no panic").push(format!("{} tasks", launch.grid));
        if launch.grid == 1 {
            for (stream, call) in self.1.get().expect("set") {
                drop(stream.launch(call.clone()).expect("accepted"));
            }
        }
        None
    }
    fn finished(&mut self, _launch: &Features<'_>, _took: Duration) {}
}

/// Decisions that are overturned in no time, so that messages put none off; and in longer than the test takes, in turns
/// that look for messages for as long, even where the thread has to wait for a core.
const NONE: Costs = Costs { stop: Duration::ZERO, launch: Duration::ZERO, ..Costs::h200() };
const LONG: Costs = Costs {
    launch: Duration::from_secs(1000),
    absence: Duration::from_secs(1000),
    ..Costs::h200()
};

/// The log when launches arrive during the turn of another launch: on these streams, with 2, 3, ... block-tasks.
fn asked(streams: &[usize], costs: Costs) -> Vec<String> {
    let (log, others) = (Log::default(), Arc::new(OnceLock::new()));
    let scheduler = Scheduler::builder()
        .device(Device::cpu_with(CpuLayout::sms(2)).expect("a device"))
        .policy(LogsPlans(Fifo::new(), log.clone(), 0))
        .predictor(Submits(log.clone(), others.clone()))
        .costs(costs)
        .build()
        .expect("a scheduler");
    let x = scheduler.zeroed::<u32>(1).expect("memory");
    let call = |grid: u32| nothing(&x).grid(grid);
    let of = [scheduler.stream(0), scheduler.stream(0)];
    let later = streams.iter().zip(2..).map(|(&stream, grid)| (of[stream].clone(), call(grid)));
    assert!(others.set(later.collect()).is_ok());
    scheduler.stream(0).launch(call(1)).expect("accepted").wait().expect("done");
    scheduler.synchronize().expect("done");
    let log = log.lock().expect("no panic");
    log[..streams.len() + 2].to_vec()
}

#[test]
fn launches_that_arrive_during_a_turn_share_its_decision() {
    assert_eq!(asked(&[], LONG), ["1 tasks", "plan for 1"], "nothing else is waited for");
    assert_eq!(asked(&[0], LONG), ["1 tasks", "2 tasks", "plan for 2"]);
    // The third launch waits for the second.
    let all = ["1 tasks", "2 tasks", "3 tasks", "4 tasks", "plan for 3"];
    assert_eq!(asked(&[0, 0, 1], LONG), all);
}

#[test]
fn no_launch_waits_until_all_others_are_taken_in() {
    for streams in [&[0][..], &[0, 0], &[0, 1, 0, 1]] {
        assert_eq!(asked(streams, NONE)[..2], ["1 tasks", "plan for 1"], "{streams:?}");
    }
}

#[test]
fn an_urgent_launch_is_taken_in_before_those_that_came_earlier_and_share_nothing_with_it() {
    let (log, others) = (Log::default(), Arc::new(OnceLock::new()));
    let scheduler = Scheduler::builder()
        .device(Device::cpu_with(CpuLayout::sms(2)).expect("a device"))
        .policy(StaticPriority::new())
        .predictor(Submits(log.clone(), others.clone()))
        .build()
        .expect("a scheduler");
    let (long, urgent) = (scheduler.stream(0), scheduler.stream(5));
    let (mut x, y) =
        (scheduler.zeroed::<u32>(1).expect("memory"), scheduler.zeroed(1).expect("memory"));
    // While the first one is taken in, these come, with 2, 3, .. block-tasks.
    let calls = [
        (long.clone(), nothing(&y).grid(2)),
        (long.clone(), writes(&mut x).grid(3)),
        (urgent.clone(), nothing(&y).grid(4)),
        (urgent.clone(), nothing(&x).grid(5)),
        (urgent.clone(), nothing(&y).grid(6)),
    ];
    assert!(others.set(calls.into()).is_ok());
    long.launch(nothing(&y).grid(1)).expect("accepted").wait().expect("done");
    scheduler.synchronize().expect("done");
    let taken_in: Vec<String> = log.lock().expect("no panic").clone();
    // The fifth reads what the third writes, and the sixth is behind it in its stream.
    assert_eq!(taken_in, [1, 4, 2, 3, 5, 6].map(|grid| format!("{grid} tasks")));
}

/// Counts how often it is asked.
struct Counts(Arc<AtomicU32>);

impl Predictor for Counts {
    fn predict(&self, _launch: &Features<'_>) -> Option<Duration> {
        self.0.fetch_add(1, SeqCst);
        None
    }
    fn finished(&mut self, _launch: &Features<'_>, _took: Duration) {}
}

#[test]
fn the_predictor_is_asked_once_about_a_program_and_about_each_of_its_calls() {
    let asked = Arc::new(AtomicU32::new(0));
    let scheduler = Scheduler::builder()
        .device(Device::cpu_with(CpuLayout::sms(1)).expect("a device"))
        .predictor(Counts(asked.clone()))
        .build()
        .expect("a scheduler");
    let x = scheduler.zeroed::<u32>(1).expect("memory");
    let program = scheduler.stream(0).program("program", |program| {
        program.preemption(Preemption::Preemptible);
        program.launch(nothing(&x).grid(1))?;
        program.launch(nothing(&x).grid(2)).map(drop)
    });
    program.expect("recorded").launch().expect("accepted").wait().expect("done");
    assert_eq!(asked.load(SeqCst), 1 + 2);
}

/// How many launches of [`counted`] have begun.
static COUNTED: AtomicU32 = AtomicU32::new(0);

#[preemptible(block = 1)]
fn counted(_x: &[u32]) {
    COUNTED.fetch_add(1, SeqCst);
}

/// Submits three calls when the core asks about the first launch. When asked about the last, records whether the second
/// has begun.
struct Watches(Arc<OnceLock<[(Stream, Call<'static>); 3]>>, Arc<OnceLock<bool>>);

impl Predictor for Watches {
    fn predict(&self, launch: &Features<'_>) -> Option<Duration> {
        match launch.grid {
            1 => {
                for (stream, call) in self.0.get().expect("set") {
                    drop(stream.launch(call.clone()).expect("accepted"));
                }
            }
            4 => {
                let start = Instant::now();
                while COUNTED.load(SeqCst) < 1 + 2 && start.elapsed() < Duration::from_secs(10) {
                    std::thread::yield_now();
                }
                let _ = self.1.set(COUNTED.load(SeqCst) >= 3);
            }
            _ => {}
        }
        None
    }
    fn finished(&mut self, _launch: &Features<'_>, _took: Duration) {}
}

#[test]
fn launches_of_a_burst_are_queued_on_the_device_while_the_others_are_taken_in() {
    let (others, has_begun) = (Arc::<OnceLock<_>>::default(), Arc::<OnceLock<_>>::default());
    let scheduler = Scheduler::builder()
        .device(Device::cpu_with(CpuLayout::sms(4)).expect("a device"))
        .predictor(Watches(others.clone(), has_begun.clone()))
        // What the device has lasts for no time, so no message puts off to queue a launch ahead.
        .costs(Costs { absence: Duration::ZERO, ..NONE })
        .build()
        .expect("a scheduler");
    let x = scheduler.zeroed::<u32>(1).expect("memory");
    let stream = scheduler.stream(0);
    let later = [2, 3, 4].map(|grid| (stream.clone(), counted(&x).grid(grid)));
    assert!(others.set(later).is_ok());
    stream.launch(counted(&x).grid(1)).expect("accepted").wait().expect("done");
    scheduler.synchronize().expect("done");
    assert_eq!((has_begun.get(), COUNTED.load(SeqCst)), (Some(&true), 1 + 2 + 3 + 4));
}

/// Launches of [`gated`] that were taken in, block-tasks that have begun, and the open gate.
static TAKEN_IN: AtomicU32 = AtomicU32::new(0);
static BEGUN: AtomicU32 = AtomicU32::new(0);
static GATE: AtomicU32 = AtomicU32::new(0);

#[preemptible(block = 1)]
fn gated(_x: &[u32], gate: u32) {
    BEGUN.fetch_add(1, SeqCst);
    while GATE.load(SeqCst) < gate {
        std::thread::yield_now();
    }
}

/// Waits until the third launch runs.
fn await_third() {
    while BEGUN.load(SeqCst) < 3 + 1 + 3 {
        std::thread::yield_now();
    }
}

/// Opens the first gate while no thread looks at the device, until the third launch runs.
struct Opens;

impl Predictor for Opens {
    fn predict(&self, launch: &Features<'_>) -> Option<Duration> {
        TAKEN_IN.fetch_add(1, SeqCst);
        if launch.grid == 100 {
            GATE.store(1, SeqCst);
            await_third();
        }
        None
    }
    fn finished(&mut self, _launch: &Features<'_>, _took: Duration) {}
}

#[test]
fn a_small_launch_in_a_chain_leaves_the_next_one_what_it_cannot_use() {
    let scheduler = Scheduler::builder()
        .device(Device::cpu_with(CpuLayout::sms(4)).expect("a device"))
        .predictor(Opens)
        // However slow this machine is, a turn queues all launches.
        .costs(Costs { absence: Duration::from_secs(1000), ..Costs::h200() })
        .build()
        .expect("a scheduler");
    let x = scheduler.zeroed::<u32>(1).expect("memory");
    let (urgent, other) = (scheduler.stream(1), scheduler.stream(0));
    let chain = [(3, 1), (1, 1), (3, 2)]
        .map(|(grid, gate)| urgent.launch(gated(&x, gate).grid(grid)).expect("accepted"));
    while TAKEN_IN.load(SeqCst) < 3 {
        std::thread::yield_now();
    }
    // No thread looks at the core in the midst of a turn, so all of them are queued on the device by then.
    scheduler.stats();
    let rest = other.launch(gated(&x, 0).grid(100)).expect("accepted");
    await_third();
    // And until that turn is over.
    scheduler.stats();
    GATE.store(2, SeqCst);
    let [first, second, third] = chain.map(|handle| handle.wait().expect("done"));
    assert_eq!(first.done, second.done, "seen together");
    assert_eq!((third.tasks, third.yields), (3, 0));
    assert_eq!(rest.wait().expect("done").tasks, 100);
}

/// Static priorities. Notes something of the latest launch of priority 0, whenever it is asked.
struct Notes {
    policy: StaticPriority,
    noted: Arc<Mutex<Vec<Duration>>>,
    latest: Option<LaunchId>,
    what: fn(&dyn DeviceView, LaunchId) -> Duration,
}

impl Notes {
    fn new(
        noted: &Arc<Mutex<Vec<Duration>>>,
        what: fn(&dyn DeviceView, LaunchId) -> Duration,
    ) -> Notes {
        Notes { policy: StaticPriority::new(), noted: noted.clone(), latest: None, what }
    }
}

impl Policy for Notes {
    fn name(&self) -> &str {
        "notes"
    }
    fn arrived(&mut self, now: Duration, launch: Arrival) {
        if launch.priority == Priority(0) {
            self.latest = Some(launch.id);
        }
        self.policy.arrived(now, launch);
    }
    fn departed(&mut self, now: Duration, launch: LaunchId) {
        self.policy.departed(now, launch);
    }
    fn goes_by_order(&self) -> bool {
        self.policy.goes_by_order()
    }
    fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        let of = self.latest.map(|launch| (self.what)(device, launch));
        self.noted.lock().expect("no panic").extend(of);
        self.policy.assign(now, device, plan);
    }
}

/// The time of launches of one block-task, and of all others.
struct Predicts(Duration, Duration);

impl Predictor for Predicts {
    fn predict(&self, launch: &Features<'_>) -> Option<Duration> {
        Some(if launch.grid == 1 { self.0 } else { self.1 })
    }
    fn finished(&mut self, _launch: &Features<'_>, _took: Duration) {}
}

/// Block-tasks of [`holds`] that have begun, and those that go on.
static HOLDING: AtomicU32 = AtomicU32::new(0);
static LET_GO: AtomicU32 = AtomicU32::new(0);

#[preemptible(block = 1)]
fn holds(_x: &[u32]) {
    let number = HOLDING.fetch_add(1, SeqCst);
    while LET_GO.load(SeqCst) <= number {
        std::thread::yield_now();
    }
}

#[test]
fn short_launches_tell_how_long_the_hardware_takes_to_make_room_and_longer_ones_do_not() {
    const HELD: Duration = Duration::from_millis(20);
    const TASKS: u32 = 2;
    // Of a launch of two block-tasks on one SM, one is expected to take half of the time.
    let (took, block) = (Duration::from_millis(1), Duration::from_micros(500));
    // What a plain grid is expected to take to stop when urgent launches come that are predicted to take this long.
    let stops = |urgent: Duration| {
        let noted = Arc::<Mutex<Vec<Duration>>>::default();
        let scheduler = Scheduler::builder()
            .device(Device::cpu_with(CpuLayout::sms(1).blocks_per_sm(1)).expect("a device"))
            .policy(Notes::new(&noted, |device, launch| device.yield_overhead(launch)))
            .predictor(Predicts(urgent, took))
            .costs(Costs::h200())
            .build()
            .expect("a scheduler");
        let x = scheduler.zeroed::<u32>(1).expect("memory");
        let [low, high] = [0, 1].map(|priority| scheduler.stream(priority));
        // After these, the kernel is known.
        LET_GO.store(u32::MAX, SeqCst);
        for _ in 0..3 {
            low.launch(holds(&x).grid(4)).expect("accepted").wait().expect("done");
        }
        [(); 4].map(|()| {
            let begun = HOLDING.load(SeqCst);
            LET_GO.store(begun, SeqCst);
            let below = low.launch(holds(&x).grid(TASKS)).expect("accepted");
            while HOLDING.load(SeqCst) == begun {
                std::thread::yield_now();
            }
            noted.lock().expect("no panic").clear();
            let above = nothing(&x).grid(1).preemption(Preemption::Preemptible);
            let above = high.launch(above).expect("accepted");
            while noted.lock().expect("no panic").is_empty() {
                std::thread::yield_now();
            }
            // No thread looks at the core in the midst of a turn, so it is on the device by then, even if that was another
            // decision.
            (0..2).for_each(|_| _ = scheduler.stats());
            let stop = noted.lock().expect("no panic")[0];
            std::thread::sleep(HELD);
            LET_GO.store(u32::MAX, SeqCst);
            above.wait().expect("done");
            assert!(below.wait().expect("done").plain);
            stop
        })
    };
    let longest = super::TELLING * Costs::h200().whole_stop();
    let [first, second, third, fourth] = stops(longest);
    assert_eq!([first, second, third], [block; 3], "too few were seen");
    assert!(fourth >= HELD - longest, "{fourth:?}");
    assert_eq!(stops(longest + Duration::from_nanos(1)), [block; 4]);
}

#[test]
fn sms_go_from_one_launch_to_the_next_without_a_gap() {
    let scheduler = Scheduler::builder()
        .device(Device::cpu_with(CpuLayout::sms(1)).expect("a device"))
        .policy(Fifo::new())
        .build()
        .expect("a scheduler");
    let x = scheduler.zeroed::<u32>(1).expect("memory");
    let streams = [scheduler.stream(0), scheduler.stream(0)];
    let launch = |stream: &Stream| stream.launch(nothing(&x).grid(100)).expect("accepted");
    // The second one waits, since there is one SM.
    let handles: Vec<_> = (0..20).map(|at| launch(&streams[at % 2])).collect();
    let reports: Vec<_> = handles.into_iter().map(|handle| handle.wait().expect("done")).collect();
    let mut waited = 0;
    for (before, after) in reports.iter().zip(&reports[1..]) {
        if after.ready < before.done {
            assert!(after.started <= before.done, "{before:?} {after:?}");
            waited += 1;
        }
    }
    assert!(waited > 0, "{reports:?}");
}

#[test]
fn what_the_device_does_for_itself_keeps_no_launch_waiting() {
    let (device, model) = Model::device(OfModel { sms: 1, is_polled: false, memory: None });
    let scheduler = Scheduler::builder().device(device).build().expect("a scheduler");
    let x = scheduler.zeroed::<u32>(1).expect("memory");
    for _ in 0..10 {
        scheduler.stream(0).launch(nothing(&x).grid(1)).expect("accepted").wait().expect("done");
    }
    scheduler.synchronize().expect("done");
    let calls = model.calls();
    // Each turn begins with a poll.
    let turns = calls.split(|&call| call == "poll");
    let with = |turn: &[&str], call| turn.contains(&call);
    assert!(turns.clone().any(|turn| with(turn, "maintain")), "{calls:?}");
    assert!(turns.clone().any(|turn| with(turn, "launch")), "{calls:?}");
    assert!(!turns.clone().any(|turn| with(turn, "launch") && with(turn, "maintain")), "{calls:?}");
}

/// Block-tasks of [`yields`] that have begun, and whether those that run end.
static YIELDING: AtomicU32 = AtomicU32::new(0);
static ENDS: AtomicU32 = AtomicU32::new(0);

#[preemptible(block = 1, idempotent)]
fn yields(_x: &[u32]) {
    YIELDING.fetch_add(1, SeqCst);
    while ENDS.load(SeqCst) == 0 {
        yield_point!();
        std::thread::yield_now();
    }
}

#[test]
fn what_stops_have_dropped_is_expected_of_the_next_one() {
    // Ten block-tasks on one SM, each of which is expected to take longer than this test.
    let (urgent, took, block_task) = (Duration::ZERO, 10 * LONG, LONG);
    const LONG: Duration = Duration::from_secs(1000);
    let noted = Arc::<Mutex<Vec<Duration>>>::default();
    let scheduler = Scheduler::builder()
        .device(Device::cpu_with(CpuLayout::sms(1).blocks_per_sm(1)).expect("a device"))
        .policy(Notes::new(&noted, |device, launch| device.requeued(launch)))
        .predictor(Predicts(urgent, took))
        .preemption(Preemption::Preemptible)
        .build()
        .expect("a scheduler");
    let x = scheduler.zeroed::<u32>(1).expect("memory");
    let [low, high] = [0, 1].map(|priority| scheduler.stream(priority));
    let dropped = [(); 3].map(|()| {
        ENDS.store(0, SeqCst);
        let begun = YIELDING.load(SeqCst);
        let below = low.launch(yields(&x).grid(10)).expect("accepted");
        while YIELDING.load(SeqCst) == begun {
            std::thread::yield_now();
        }
        noted.lock().expect("no panic").clear();
        high.launch(nothing(&x).grid(1)).expect("accepted").wait().expect("done");
        ENDS.store(1, SeqCst);
        assert_eq!(below.wait().expect("done").yields, 1);
        noted.lock().expect("no panic")[0].div_duration_f64(block_task)
    });
    // Half of a block-task, and then nothing of it each time.
    for (dropped, expected) in dropped.into_iter().zip([0.5, 0.25, 0.5 / 3.0]) {
        assert!((dropped - expected).abs() < 0.01, "{dropped}, not {expected}");
    }
}
