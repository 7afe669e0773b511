//! Exactly once, under all yields: kernels that count their block-tasks, under storms of yields and resumes that are
//! random in time and range.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use preempt::policy::{Arrival, DeviceView, Plan, Policy, StaticPriority};
use preempt::{CpuLayout, Device, LaunchId, Preemption, Scheduler};
use preempt_test_kernels as kernels;
use preempt_test_kit::Random;
use preempt_test_kit::storm::{self, Chaos, Kind, Strength, Tally, Victim};

/// The number of yields, and of resumes, that a storm has to see.
const ENOUGH: u64 = 10_000;

fn storm(scheduler: &Scheduler, urgent_priority: i32, seed: u64) {
    let kinds = &Kind::ALL;
    let strength = Strength {
        enough: ENOUGH,
        load: 2400.into(),
        kinds,
        urgent_priority,
        has_limits: false,
        seed,
    };
    let tally = storm::yields(scheduler, strength, |_| ()).expect("kernels run to their end");
    assert_exactly_once(&tally);
    assert!(tally.yields >= ENOUGH && tally.resumes >= ENOUGH, "{tally:?}");
    assert!(tally.requeued > 0 && tally.switches > 0, "{tally:?}");
    println!("{tally:?}");
}

fn assert_exactly_once(tally: &Tally) {
    assert_eq!(tally.mistake, None, "{tally:?}");
    assert_eq!((tally.lost, tally.repeated), (0, 0), "{tally:?}");
}

fn scheduler(policy: impl Policy + 'static) -> Scheduler {
    let device = Device::cpu_with(CpuLayout::sms(5).blocks_per_sm(2)).expect("a device");
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
    storm(&scheduler(Chaos::new(3)), 0, 3);
}

/// A policy that notes whether SMs differ in what it costs to take them.
struct Costs(StaticPriority, Arc<AtomicBool>);

impl Policy for Costs {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn arrived(&mut self, now: Duration, launch: Arrival) {
        self.0.arrived(now, launch);
    }

    fn departed(&mut self, now: Duration, launch: LaunchId) {
        self.0.departed(now, launch);
    }

    fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        let is_known = (0..device.sms()).any(|sm| !device.sm_yield_overhead(sm).is_zero());
        self.1.fetch_or(is_known, Ordering::Relaxed);
        self.0.assign(now, device, plan);
    }
}

/// Blocks of block-tasks as long as these tell when each begins, and policies choose SMs by that.
#[test]
fn every_task_runs_once_when_blocks_tell_how_far_they_are() {
    let have_told = Arc::new(AtomicBool::new(false));
    let scheduler = scheduler(Costs(StaticPriority::new(), have_told.clone()));
    let load = storm::Load { tasks: 64, ticks: 400_000 };
    // It takes some kernels until their times are known, by which blocks are asked to tell.
    for seed in 0..20 {
        let strength = Strength {
            enough: 100,
            load,
            kinds: &Kind::ALL,
            urgent_priority: 1,
            has_limits: false,
            seed,
        };
        let tally = storm::yields(&scheduler, strength, |_| ()).expect("kernels run to their end");
        assert_exactly_once(&tally);
        if have_told.load(Ordering::Relaxed) {
            return;
        }
    }
    panic!("no SM was seen to cost anything");
}

#[test]
fn cancelled_kernels_report_exactly_what_they_did() {
    let scheduler = scheduler(StaticPriority::new());
    let tally = storm::cancellations(&scheduler, 200, 2000, 4, |_| ()).expect("kernels run");
    assert_exactly_once(&tally);
    assert!(tally.cancelled_midway > 0, "some were cancelled in mid-kernel: {tally:?}");
}

/// A check that finds no mistake must be able to find one.
#[test]
fn a_tally_tells_lost_from_repeated() {
    let mut tally = Tally::default();
    tally.count("counts", &[1, 1], &[1, 1]);
    assert_exactly_once(&tally);
    tally.count("counts", &[0, 3, 1], &[1, 1, 1]);
    assert_eq!((tally.lost, tally.repeated), (1, 2));
    assert_eq!(tally.mistake.as_deref(), Some("counts: element 0 is 0, not 1"));
}

#[test]
fn many_threads_share_streams_and_buffers() {
    let scheduler = scheduler(StaticPriority::new());
    let stop = AtomicBool::new(false);
    let shared = scheduler.stream(1);
    std::thread::scope(|scope| {
        let batch = scope.spawn(|| {
            let own = scheduler.stream(0);
            let mut yields = 0;
            while yields < 200 {
                let victim = Victim::launch(Kind::SharedMemory, &scheduler, &own, 2400);
                let mut tally = Tally::default();
                let report = victim.and_then(|victim| victim.check(&own, &mut tally));
                yields += report.expect("the kernel runs to its end").yields;
                assert_exactly_once(&tally);
            }
            stop.store(true, Ordering::Relaxed);
        });
        for thread in 0..4 {
            let (scheduler, stop, shared) = (&scheduler, &stop, &shared);
            scope.spawn(move || {
                let own = scheduler.stream(1 + thread);
                let mut random = Random(thread as u64);
                while !stop.load(Ordering::Relaxed) {
                    // A chain across two streams, ordered by the buffer alone.
                    let len = 1 + random.below(200);
                    let mut data = scheduler.zeroed::<u32>(len as usize).expect("memory");
                    let mut spare = scheduler.zeroed::<u32>(len as usize).expect("memory");
                    for step in 0..6 {
                        let stream = if step % 2 == 0 { &own } else { shared };
                        let call = kernels::count_1d(&mut data, &mut spare).grid(len).block(1);
                        // Plain grids, which wait for blocks to end, and cohorts, for which they leave.
                        let form = [Preemption::Auto, Preemption::Preemptible][step / 2 % 2];
                        let _detached =
                            stream.launch(call.preemption(form)).expect("a valid launch");
                    }
                    let found = own.download(&data).and_then(|copy| copy.wait()).expect("a copy");
                    assert_eq!(found, vec![6; len as usize]);
                }
            });
        }
        batch.join().expect("no panic");
    });
}
