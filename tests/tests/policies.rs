//! Priorities that change, and deadlines: the calls of streams and handles to a policy, on the CPU device.

use std::time::Duration;

use preempt::error::LaunchError;
use preempt::policy::{
    DynamicPriority, EarliestDeadline, FairShare, Ffs, Fifo, Hpf, Policy, ShortestRemaining,
    StaticPriority,
};
use preempt::{Buffer, Call, CpuLayout, Device, Error, Handle, LaunchReport, Scheduler, Stream};
use preempt_test_kit::{Gate, gated};

fn scheduler(sms: u32, policy: impl Policy + 'static) -> Scheduler {
    let device = Device::cpu_with(CpuLayout::sms(sms)).expect("a device");
    Scheduler::builder().device(device).policy(policy).build().expect("a scheduler")
}

fn launch(stream: &Stream, call: Call<'static>) -> Handle<LaunchReport> {
    stream.launch(call).expect("accepted")
}

/// A log of 63 entries.
fn log(scheduler: &Scheduler) -> Buffer<u32> {
    scheduler.zeroed(64).expect("memory")
}

fn entries(scheduler: &Scheduler, log: &Buffer<u32>) -> Vec<u32> {
    let copy = scheduler.stream(0).download(log).and_then(|copy| copy.wait()).expect("copied");
    copy[1..=copy[0] as usize].to_vec()
}

/// One launch stands before its gate, and two wait for the SM: the older before the newer, if nothing changes. `change`
/// makes the newer one more urgent.
fn the_newer_one_runs_first(change: impl FnOnce(&Stream, &Handle<LaunchReport>)) {
    let scheduler = scheduler(1, StaticPriority::new());
    let (gate, old_gate, new_gate) =
        (Gate::new(&scheduler), Gate::new(&scheduler), Gate::new(&scheduler));
    let (mut first_log, mut old_log, mut new_log) =
        (log(&scheduler), log(&scheduler), log(&scheduler));
    let first = launch(&scheduler.stream(9), gated(&gate.0, &mut first_log, 1).grid(1));
    gate.wait_for(1);
    let stream = scheduler.stream(0);
    let old = launch(&scheduler.stream(0), gated(&old_gate.0, &mut old_log, 2).grid(1));
    let new = launch(&stream, gated(&new_gate.0, &mut new_log, 3).grid(1));
    change(&stream, &new);
    gate.open();
    // The older one's gate stays closed until the newer one has run.
    new_gate.open();
    new.wait().expect("runs");
    assert!(!old.is_done());
    old_gate.open();
    for handle in [first, old] {
        handle.wait().expect("runs");
    }
}

#[test]
fn a_stream_that_becomes_more_urgent_overtakes_while_it_waits() {
    the_newer_one_runs_first(|stream, _| stream.set_priority(1));
}

#[test]
fn a_launch_that_becomes_more_urgent_overtakes_while_it_waits() {
    the_newer_one_runs_first(|_, handle| handle.set_priority(1));
}

#[test]
fn a_running_launch_that_becomes_less_urgent_yields() {
    let scheduler = scheduler(1, StaticPriority::new());
    let (gate, other_gate) = (Gate::new(&scheduler), Gate::new(&scheduler));
    let (mut long_log, mut other_log) = (log(&scheduler), log(&scheduler));
    let stream = scheduler.stream(1);
    let long = launch(&stream, gated(&gate.0, &mut long_log, 1).grid(20).amortize(1));
    gate.wait_for(1);
    let other = launch(&scheduler.stream(0), gated(&other_gate.0, &mut other_log, 2).grid(1));
    stream.set_priority(-1);
    other_gate.open();
    gate.open();
    // Otherwise it would have to wait for 20 block-tasks, and for the end of a launch that had never yielded.
    other.wait().expect("runs");
    let report = long.wait().expect("runs");
    assert_eq!((report.tasks, report.yields), (20, 1));
    assert_eq!(stream.priority(), (-1).into());
}

#[test]
fn a_running_launch_keeps_the_device_if_it_becomes_more_urgent_than_new_ones() {
    let scheduler = scheduler(1, StaticPriority::new());
    let (gate, other_gate) = (Gate::new(&scheduler), Gate::new(&scheduler));
    let (mut long_log, mut other_log) = (log(&scheduler), log(&scheduler));
    let stream = scheduler.stream(0);
    let long = launch(&stream, gated(&gate.0, &mut long_log, 1).grid(20));
    gate.wait_for(1);
    stream.set_priority(5);
    let other = launch(&scheduler.stream(3), gated(&other_gate.0, &mut other_log, 2).grid(1));
    other_gate.open();
    gate.open();
    assert_eq!(long.wait().expect("runs").yields, 0);
    other.wait().expect("runs");
}

#[test]
fn a_deadline_that_is_past_is_refused() {
    let policy = EarliestDeadline::new();
    let missed = policy.missed();
    let scheduler = scheduler(1, policy);
    let gate = Gate::new(&scheduler);
    let (mut running_log, mut late_log) = (log(&scheduler), log(&scheduler));
    let stream = scheduler.stream(0);
    stream.set_deadline(Some(Duration::from_secs(3600)));
    let running = launch(&stream, gated(&gate.0, &mut running_log, 1).grid(1));
    gate.wait_for(1);
    let late = scheduler.stream(0);
    late.set_deadline(Some(Duration::ZERO));
    let refused = launch(&late, gated(&gate.0, &mut late_log, 2).grid(1));
    let error = refused.wait().expect_err("there is no time");
    assert!(
        matches!(error, Error::Launch(LaunchError::NotAdmitted { kernel: "gated", .. })),
        "{error}"
    );
    assert!(error.to_string().contains("earliest deadline"), "{error}");
    // The running launch is past its deadline, too, from now on.
    running.set_deadline(Some(Duration::ZERO));
    gate.open();
    running.wait().expect("runs");
    scheduler.synchronize().expect("the policy is still there");
    assert_eq!(missed.count(), 1);
    // Without a deadline no launch is refused, nor with a deadline that is years away.
    for due in [None, Some(Duration::MAX)] {
        late.set_deadline(due);
        let mut log = log(&scheduler);
        launch(&late, gated(&gate.0, &mut log, 3).grid(1)).wait().expect("runs");
        assert_eq!(entries(&scheduler, &log), [3]);
    }
}

#[test]
fn launches_run_in_the_order_of_their_deadlines() {
    let scheduler = scheduler(1, EarliestDeadline::new());
    let gate = Gate::new(&scheduler);
    let mut first_log = log(&scheduler);
    let first = scheduler.stream(0);
    first.set_deadline(Some(Duration::from_secs(100)));
    let running = launch(&first, gated(&gate.0, &mut first_log, 0).grid(1));
    gate.wait_for(1);
    let gates: Vec<Gate> = (0..3).map(|_| Gate::new(&scheduler)).collect();
    let mut logs: Vec<_> = (0..3).map(|_| log(&scheduler)).collect();
    let due = [None, Some(300), Some(200)];
    let mut handles = Vec::new();
    for ((gate, log), due) in gates.iter().zip(&mut logs).zip(due) {
        let stream = scheduler.stream(0);
        stream.set_deadline(due.map(Duration::from_secs));
        handles.push(launch(&stream, gated(&gate.0, log, 1).grid(1)));
    }
    gate.open();
    for next in [2, 1, 0] {
        // No other launch can get past this gate.
        gates[next].open();
        handles[next].wait().expect("runs");
        assert!(handles[..next].iter().all(|handle| !handle.is_done()));
    }
    running.wait().expect("runs");
}

#[test]
fn everything_runs_once_under_every_policy() {
    fn runs(policy: impl Policy + 'static) {
        let scheduler = scheduler(3, policy);
        let mut handles = Vec::new();
        let streams: Vec<Stream> = (0..4).map(|priority| scheduler.stream(priority)).collect();
        let mut counts: Vec<_> =
            (0..4).map(|_| scheduler.zeroed::<u32>(64).expect("memory")).collect();
        let mut writes: Vec<_> =
            (0..4).map(|_| scheduler.zeroed::<u32>(64 * 32).expect("memory")).collect();
        for round in 0..25 {
            for (which, stream) in streams.iter().enumerate() {
                stream.set_weight(1 + round % 3);
                let call = preempt_test_kernels::count_1d(&mut counts[which], &mut writes[which]);
                handles.push(launch(stream, call.grid(64).block(32)));
            }
        }
        for handle in handles {
            assert_eq!(handle.wait().expect("runs").tasks, 64);
        }
        scheduler.synchronize().expect("the policy is still there");
        for counts in &counts {
            let counts = streams[0].download(counts).and_then(|copy| copy.wait());
            assert_eq!(counts.expect("copied"), [25; 64]);
        }
    }
    runs(Fifo::new());
    runs(StaticPriority::new());
    runs(StaticPriority::whole_device());
    runs(DynamicPriority::new());
    runs(DynamicPriority::whole_device());
    runs(EarliestDeadline::new());
    runs(FairShare::new());
    runs(Ffs::new());
    runs(Hpf::new());
    runs(ShortestRemaining::new());
}
