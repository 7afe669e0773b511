//! Armed programs: a launch that is announced, and starts without the driver.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use preempt::predict::{Features, Predictor};

use super::*;

/// An urgent program of two kernels, which adds to what `x` holds.
fn answer(stream: &Stream, x: &mut Buffer<u32>) -> (Program, ProgramCall) {
    let mut first = None;
    let program = stream.program("answer", |program| {
        program.preemption(Preemption::Preemptible);
        first = Some(program.launch(kernels::scale(3, &mut *x).threads(LEN))?);
        program.launch(kernels::scale(5, &mut *x).threads(LEN)).map(drop)
    });
    (program.expect("recorded"), first.expect("recorded"))
}

fn answered(factor: u32, x: &[u32]) -> Vec<u32> {
    scaled(5, &scaled(factor, x))
}

/// Until a program that was armed has its gate, or is disarmed.
pub fn settle() {
    thread::sleep(Duration::from_millis(5));
}

fn patient() -> Scheduler {
    let builder = Scheduler::builder().device(preempt_test_kit::device(LAYOUT)).kernels(KERNELS);
    builder.armed_for(Duration::from_millis(100)).build().expect("a scheduler")
}

#[test]
fn an_armed_program_does_what_a_launch_does() {
    let scheduler = patient();
    let stream = scheduler.stream(1);
    let mut x = scheduler.zeroed::<u32>(LEN).expect("memory");
    let (program, _) = answer(&stream, &mut x);
    let mut model = vec![0; LEN];
    let mut armed = 0;
    for round in 0..50 {
        program.arm().expect("accepted");
        if round % 2 == 0 {
            settle();
        }
        let report = run(&program).expect("done");
        armed += u32::from(report.armed);
        model = answered(3, &model);
        assert_eq!(report.tasks, 2 * u32::try_from(LEN.div_ceil(32)).expect("few"));
        assert!(report.queued <= report.ready && report.ready <= report.started);
        assert!(report.started <= report.done);
    }
    assert_eq!(contents(&stream, &x), model);
    assert!(armed >= 25, "{armed} of 50 began behind their gates");
    let total = scheduler.stats().total;
    assert_eq!((total.done, total.cancelled), (50, 0), "nothing else counts as launched");
}

#[test]
fn a_program_that_is_not_launched_in_time_is_disarmed_and_launched_all_the_same() {
    let builder = Scheduler::builder().device(preempt_test_kit::device(LAYOUT)).kernels(KERNELS);
    let scheduler = builder.build().expect("a scheduler");
    let stream = scheduler.stream(1);
    let mut x = scheduler.buffer(&[1; LEN]).expect("memory");
    let (program, _) = answer(&stream, &mut x);
    for _ in 0..5 {
        program.arm().expect("accepted");
        // Not before the limit.
        scheduler.synchronize().expect("idle");
    }
    assert_eq!(contents(&stream, &x), [1; LEN], "an armed program does nothing");
    program.arm().expect("accepted");
    scheduler.synchronize().expect("idle");
    assert!(!run(&program).expect("done").armed);
    assert_eq!(contents(&stream, &x), answered(3, &[1; LEN]));
}

#[test]
fn whatever_uses_its_stream_or_its_buffers_comes_first() {
    let scheduler = patient();
    let (stream, other) = (scheduler.stream(1), scheduler.stream(0));
    let mut x = scheduler.buffer(&[1; LEN]).expect("memory");
    let (program, _) = answer(&stream, &mut x);
    let mut model = vec![1; LEN];
    for with in [&stream, &other] {
        program.arm().expect("accepted");
        settle();
        in_time(&with.launch(kernels::scale(2, &mut x).threads(LEN)).expect("accepted"))
            .expect("done");
        let report = run(&program).expect("done");
        assert!(!report.armed, "it was disarmed");
        model = answered(3, &scaled(2, &model));
        assert_eq!(contents(&stream, &x), model);
    }
    program.arm().expect("accepted");
    settle();
    let on_other = in_time(&other.launch_program(&program).expect("accepted")).expect("done");
    assert!(!on_other.armed);
    assert_eq!(contents(&stream, &x), answered(3, &model));
}

#[test]
fn arguments_that_are_set_are_those_of_the_next_launch() {
    let scheduler = patient();
    let stream = scheduler.stream(1);
    let mut x = scheduler.buffer(&[1; LEN]).expect("memory");
    let (mut program, first) = answer(&stream, &mut x);
    program.arm().expect("accepted");
    settle();
    program.set(first, kernels::scale(7, &mut x).threads(LEN)).expect("the kernel");
    assert!(!run(&program).expect("done").armed);
    assert_eq!(contents(&stream, &x), answered(7, &[1; LEN]));
    program.arm().expect("accepted");
    drop(program);
    scheduler.synchronize().expect("nothing waits for a program that is gone");
}

#[test]
fn an_armed_program_takes_the_device_from_a_less_urgent_launch() {
    let scheduler = patient();
    let (batch, urgent) = (scheduler.stream(0), scheduler.stream(1));
    let mut x = scheduler.zeroed::<u32>(LEN).expect("memory");
    let (program, _) = answer(&urgent, &mut x);
    program.arm().expect("accepted");
    // The first call has kernels leave room for the gate.
    in_time(&program.launch().expect("accepted")).expect("done");
    let is_emulated = scheduler.device().properties().compute_capability.is_none();
    // Longer than the launches below.
    let (tasks, ticks) = if is_emulated { (40_000, 0) } else { (400_000, 2_000_000) };
    let mut counts = scheduler.zeroed::<u32>(tasks).expect("memory");
    let mut writes = scheduler.zeroed::<u32>(tasks * 32).expect("memory");
    let mut model = answered(3, &[0; LEN]);
    let long = kernels::paced_1d(ticks, &mut counts, &mut writes).grid(tasks as u32).block(32);
    let long = long.preemption(Preemption::Preemptible);
    let long = batch.launch(long).expect("accepted");
    let mut armed = 0;
    for _ in 0..10 {
        program.arm().expect("accepted");
        settle();
        armed += u32::from(run(&program).expect("done").armed);
        model = answered(3, &model);
    }
    let report = in_time(&long).expect("done");
    println!("{armed} of 10 began armed, {} yields", report.yields);
    assert!(armed > 0 && report.yields > 0, "{armed} began armed, {report:?}");
    assert_eq!(report.tasks as usize, tasks);
    assert_eq!(contents(&urgent, &x), model);
    assert_eq!(contents(&batch, &counts), vec![1; tasks]);
    drop(writes);
}

/// Holds the core when it predicts a launch of one block-task: until the first flag is set, after it has set the second, and for
/// ten milliseconds more.
struct Slow(Arc<[AtomicBool; 2]>);

impl Predictor for Slow {
    fn predict(&self, launch: &Features<'_>) -> Option<Duration> {
        if launch.grid == 1 {
            let [launches, holds] = &*self.0;
            holds.store(true, SeqCst);
            while !launches.load(SeqCst) {
                thread::yield_now();
            }
            // The other thread is in `launch` then, where nothing shows that it waits.
            thread::sleep(Duration::from_millis(10));
        }
        None
    }
    fn finished(&mut self, _launch: &Features<'_>, _took: Duration) {}
}

#[test]
fn a_program_stays_armed_while_the_scheduler_takes_in_another_launch() {
    let flags = Arc::<[AtomicBool; 2]>::default();
    let [launches, holds] = &*flags;
    let builder = Scheduler::builder().device(preempt_test_kit::device(LAYOUT)).kernels(KERNELS);
    let builder = builder.armed_for(Duration::from_millis(100)).predictor(Slow(flags.clone()));
    let scheduler = builder.build().expect("a scheduler");
    let (other, urgent) = (scheduler.stream(0), scheduler.stream(1));
    let mut x = scheduler.zeroed::<u32>(LEN).expect("memory");
    let mut y = scheduler.buffer(&[1; 1]).expect("memory");
    let (program, _) = answer(&urgent, &mut x);
    program.arm().expect("accepted");
    settle();
    let call = kernels::scale(2, &mut y).threads(1);
    let thread = thread::spawn(move || other.launch(call).map(|handle| (other, handle)));
    while !holds.load(SeqCst) {
        thread::yield_now();
    }
    launches.store(true, SeqCst);
    assert!(run(&program).expect("done").armed);
    assert_eq!(contents(&urgent, &x), answered(3, &[0; LEN]));
    let (other, handle) = thread.join().expect("no panic").expect("accepted");
    in_time(&handle).expect("done");
    assert_eq!(contents(&other, &y), [2]);
}
