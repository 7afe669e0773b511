//! Programs: calls that are recorded once, and launched as one operation.

use std::time::Duration;

use preempt::error::{ArgumentError, ConfigurationError, LaunchError, ProgramError};
use preempt::policy::StaticPriority;
use preempt::sim::{Costs, Machine, Simulation, Workload};
use preempt::{
    Buffer, CpuLayout, Device, Error, Handle, KernelArg, LaunchReport, Preemption, Program,
    ProgramCall, Scheduler, Stream,
};
use preempt_device::atomic::{AtomicU32, Ordering::SeqCst};
use preempt_test_kernels as kernels;
use preempt_test_kit::{Gate, KERNELS, gated};

mod armed;
mod inputs;
mod interrupted;
mod storm;

/// Time: longer than any operation of these tests takes.
const LONG: Duration = Duration::from_secs(60);
/// Time in which an operation ends that nothing holds back.
const WHILE: Duration = Duration::from_millis(30);
/// Elements of most buffers: several blocks, the last of which is not full.
const LEN: usize = 100;
const LAYOUT: CpuLayout = CpuLayout::sms(2).blocks_per_sm(2);

/// Tests of both forms of programs.
macro_rules! in_both_forms {
    ($($name:ident)*) => {
        mod plain {
            $(#[test] fn $name() { super::$name(preempt::Preemption::Plain) })*
        }
        mod preemptible {
            $(#[test] fn $name() { super::$name(preempt::Preemption::Preemptible) })*
        }
    };
}

// Behind the macro, which it uses.
mod captured;
mod fills;

in_both_forms! {
    calls_run_in_their_order_as_often_as_the_program_is_launched
    a_program_is_one_launch_in_stats_and_timeline
    a_recording_with_programs_is_decided_again_and_simulated
    arguments_are_those_of_the_submission
    arguments_that_change_leave_launches_that_wait_as_they_are
    operations_on_its_ranges_are_ordered_and_others_are_not
    what_is_wrong_with_a_program_is_said
    a_call_that_fails_is_named_and_what_the_program_writes_is_lost
    buffers_stay_with_the_program
    programs_wait_for_no_kernel_that_runs
}

fn scheduler(form: Preemption) -> Scheduler {
    scheduler_on(LAYOUT, form)
}

fn scheduler_on(layout: CpuLayout, form: Preemption) -> Scheduler {
    let builder = Scheduler::builder().device(preempt_test_kit::device(layout));
    builder.kernels(KERNELS).preemption(form).build().expect("a scheduler")
}

fn emulated(form: Preemption) -> Scheduler {
    let builder = Scheduler::builder().device(Device::cpu_with(LAYOUT).expect("a device"));
    builder.preemption(form).build().expect("a scheduler")
}

fn in_time<T>(handle: &Handle<T>) -> Result<T, Error> {
    handle.wait_timeout(LONG).expect("it ends")
}

fn run(program: &Program) -> Result<LaunchReport, Error> {
    in_time(&program.launch().expect("accepted"))
}

fn contents<T: KernelArg>(stream: &Stream, buffer: &Buffer<T>) -> Vec<T> {
    in_time(&stream.download(buffer).expect("accepted")).expect("copied")
}

/// The result of `scale` for these elements.
fn scaled(factor: u32, x: &[u32]) -> Vec<u32> {
    (0..).zip(x).map(|(i, x)| x.wrapping_mul(factor).wrapping_add(i)).collect()
}

/// A program that scales a buffer, and the place of that launch.
fn scales(stream: &Stream, factor: u32, x: &mut Buffer<u32>) -> (Program, ProgramCall) {
    let mut place = None;
    let program = stream.program("scales", |program| {
        place = Some(program.launch(kernels::scale(factor, &mut *x).threads(x.len()))?);
        Ok(())
    });
    (program.expect("recorded"), place.expect("recorded"))
}

fn calls_run_in_their_order_as_often_as_the_program_is_launched(form: Preemption) {
    let scheduler = scheduler(form);
    let (stream, other) = (scheduler.stream(0), scheduler.stream(1));
    let [mut x, mut y, mut z] = [0; 3].map(|_| scheduler.zeroed::<u32>(LEN).expect("memory"));
    let program = stream.program("all", |program| {
        program.launch(kernels::scale(2, &mut x).threads(LEN))?;
        program.copy_buffer(&x, &mut y)?;
        program.fill(&mut z.slice_mut(50..)?, 7)?;
        program.launch(kernels::sum(&x, &y, &mut z).threads(LEN))?;
        program.launch(kernels::scale(3, &mut x).threads(LEN))?;
        let (low, mut high) = y.split_at_mut(50)?;
        program.copy_buffer(&low, &mut high)
    });
    let program = program.expect("recorded");
    assert_eq!(program.name(), "all");
    let (mut expected_x, mut expected_y) = (vec![0; LEN], Vec::new());
    for turn in 0..20 {
        let on = if turn % 3 == 0 { &other } else { &stream };
        let handle = on.launch_program(&program).expect("accepted");
        expected_x = scaled(2, &expected_x);
        expected_y.clone_from(&expected_x);
        expected_x = scaled(3, &expected_x);
        if turn % 4 == 0 {
            let report = in_time(&handle).expect("runs");
            assert_eq!((report.tasks, report.plain), (3 * 4, form == Preemption::Plain));
        }
    }
    let sums: Vec<u32> = expected_y.iter().map(|y| y.wrapping_add(*y)).collect();
    let (low, high) = expected_y.split_at_mut(50);
    high.copy_from_slice(low);
    assert_eq!(contents(&other, &x), expected_x);
    assert_eq!(contents(&stream, &y), expected_y);
    assert_eq!(contents(&stream, &z), sums);
}

fn a_program_is_one_launch_in_stats_and_timeline(form: Preemption) {
    let builder = Scheduler::builder()
        .device(preempt_test_kit::device(LAYOUT))
        .kernels(KERNELS)
        .preemption(form);
    let scheduler = builder.trace(1000).build().expect("a scheduler");
    let stream = scheduler.stream(0);
    let mut x = scheduler.zeroed::<u32>(LEN).expect("memory");
    let program = stream.program("a step of a test", |program| {
        (0..5).try_for_each(|factor| {
            program.launch(kernels::scale(factor, &mut x).threads(LEN)).map(drop)
        })
    });
    let program = program.expect("recorded");
    for _ in 0..3 {
        run(&program).expect("runs");
    }
    scheduler.synchronize().expect("no policy fails");
    assert_eq!(scheduler.stats().total.done, 3);
    let name = format!("preempt-programs-{}.json", std::process::id());
    let path = std::env::temp_dir().join(name);
    scheduler.write_trace(&path).expect("written");
    let text = std::fs::read_to_string(&path).expect("it is there");
    let _ = std::fs::remove_file(path);
    assert!(text.contains("a step of a test") && !text.contains("scale"), "{text}");
    // On the track of its stream, each launch begins and ends once, and has a slice, or one for each kernel that was seen to
    // end.
    let of_stream = |line: &&str| line.starts_with("{\"pid\":1") && line.contains("\"launch\"");
    let count = |what| text.lines().filter(of_stream).filter(|line| line.contains(what)).count();
    for what in ["\"queued\"", "\"start\"", "\"done\""] {
        assert_eq!(count(what), 3, "{what}: {text}");
    }
    let most = if form == Preemption::Plain { 3 } else { 3 * 5 };
    assert!((3..=most).contains(&count("\"ph\":\"X\"")), "{text}");
    assert!(!text.contains("\"yield\"") && !text.contains("\"resume\""), "{text}");
}

fn a_recording_with_programs_is_decided_again_and_simulated(form: Preemption) {
    let builder = Scheduler::builder()
        .device(preempt_test_kit::device(LAYOUT))
        .kernels(KERNELS)
        .preemption(form);
    let scheduler = builder.recording(true).build().expect("a scheduler");
    let stream = scheduler.stream(0);
    let mut x = scheduler.zeroed::<u32>(LEN).expect("memory");
    let (program, _) = scales(&stream, 2, &mut x);
    let other = scheduler.stream(1).launch(kernels::scale(3, &mut x).threads(LEN));
    let handles = [(); 3].map(|()| program.launch().expect("accepted"));
    for handle in handles.iter().chain([&other.expect("accepted")]) {
        in_time(handle).expect("runs");
    }
    scheduler.synchronize().expect("no policy fails");
    let recording = scheduler.recording().expect("asked for");
    let replay = recording.replay(StaticPriority::new().anticipating()).expect("it is whole");
    assert!(replay.is_identical(), "{replay:?}");
    let workload = Workload::from_recording(&recording).expect("it is whole");
    let machine = Machine::new(recording.sms(), Costs::free());
    let results =
        Simulation::new(machine, StaticPriority::new()).run(&workload).expect("simulated");
    let names: Vec<&str> = results.launches.iter().map(|launch| &*launch.kernel).collect();
    assert_eq!(names, ["scale", "scales", "scales", "scales"]);
}

/// Launches of the program have the arguments that it had when they were submitted, whether they have started or not.
fn arguments_are_those_of_the_submission(form: Preemption) {
    let scheduler = scheduler(form);
    let stream = scheduler.stream(0);
    let mut x = scheduler.buffer(&[1u32; LEN]).expect("memory");
    let (mut program, place) = scales(&stream, 2, &mut x);
    let mut expected = vec![1; LEN];
    let mut handles = Vec::new();
    for factor in 2..60 {
        if factor % 3 > 0 {
            program.set(place, kernels::scale(factor, &mut x).threads(LEN)).expect("the kernel");
        }
        handles.push(program.launch().expect("accepted"));
        expected = scaled(if factor % 3 > 0 { factor } else { factor.max(3) - 1 }, &expected);
    }
    for handle in handles {
        in_time(&handle).expect("runs");
    }
    assert_eq!(contents(&stream, &x), expected);
    // Another buffer, and another grid.
    let mut y = scheduler.buffer(&[1u32; 33]).expect("memory");
    program.set(place, kernels::scale(5, &mut y).threads(33)).expect("the kernel");
    assert_eq!(run(&program).expect("runs").tasks, 2);
    assert_eq!(contents(&stream, &y), scaled(5, &[1; 33]));
    assert_eq!(contents(&stream, &x), expected);
}

fn arguments_that_change_leave_launches_that_wait_as_they_are(form: Preemption) {
    let scheduler = emulated(form);
    let (stream, other) = (scheduler.stream(0), scheduler.stream(0));
    let gate = Gate::new(&scheduler);
    let mut x = scheduler.zeroed::<u32>(LEN).expect("memory");
    let (mut program, place) = scales(&stream, 2, &mut x);
    let writes = other.launch(gated(&gate.0, &mut x, 7).grid(1)).expect("accepted");
    gate.wait_for(1);
    let first = program.launch().expect("accepted");
    program.set(place, kernels::scale(3, &mut x).threads(LEN)).expect("the kernel");
    let second = program.launch().expect("accepted");
    // The program keeps what it was recorded with, too.
    drop((program, stream));
    assert!(second.wait_timeout(WHILE).is_none() && !first.is_done());
    gate.open();
    in_time(&writes).expect("runs");
    in_time(&second).expect("runs");
    let mut expected = vec![0; LEN];
    expected[..2].copy_from_slice(&[1, 7]);
    assert_eq!(contents(&other, &x), scaled(3, &scaled(2, &expected)));
}

fn operations_on_its_ranges_are_ordered_and_others_are_not(form: Preemption) {
    let scheduler = emulated(form);
    let (stream, other) = (scheduler.stream(0), scheduler.stream(0));
    let (before, within) = (Gate::new(&scheduler), Gate::new(&scheduler));
    let mut log = scheduler.zeroed::<u32>(LEN).expect("memory");
    let mut copy = scheduler.zeroed::<u32>(4).expect("memory");
    let program = stream.program("step", |program| {
        program.copy_buffer(&log.slice(..4)?, &mut copy)?;
        program.launch(gated(&within.0, log.slice_mut(50..54)?, 8).grid(1))?;
        program.fill(&mut log.slice_mut(52..54)?, 9)
    });
    let program = program.expect("recorded");
    let range = log.slice_mut(..4).expect("in range");
    let writes = other.launch(gated(&before.0, range, 7).grid(1)).expect("accepted");
    before.wait_for(1);
    let step = program.launch().expect("accepted");
    let reads = other.download(&log.slice(52..53).expect("in range")).expect("accepted");
    let again = program.launch().expect("accepted");
    // Beside it: bytes that no call uses.
    let third = scheduler.stream(0);
    let range = &mut log.slice_mut(4..50).expect("in range");
    in_time(&third.fill(range, 3).expect("accepted")).expect("runs");
    assert!(reads.wait_timeout(WHILE).is_none() && !step.is_done());
    before.open();
    in_time(&writes).expect("runs");
    within.wait_for(1);
    // Its copy is done, and its fill is not.
    assert!(reads.wait_timeout(WHILE).is_none() && !step.is_done());
    within.open();
    in_time(&step).expect("runs");
    assert_eq!(in_time(&reads).expect("copied"), [9]);
    in_time(&again).expect("runs");
    assert_eq!(contents(&other, &copy), [1, 7, 0, 0]);
    assert_eq!(contents(&other, &log)[48..54], [3, 3, 2, 8, 9, 9]);
}

fn what_is_wrong_with_a_program_is_said(form: Preemption) {
    let (scheduler, another) = (scheduler(form), emulated(form));
    let (stream, foreign) = (scheduler.stream(0), another.stream(0));
    let mut x = scheduler.zeroed::<u32>(LEN).expect("memory");
    let error = stream.program("nothing", |_| Ok(())).expect_err("empty");
    assert!(matches!(error, Error::Program(ProgramError::Empty { program: "nothing" })), "{error}");

    let calls = std::cell::Cell::new(0);
    let error = stream.program("long", |program| {
        loop {
            program.fill(&mut x, 1)?;
            calls.set(calls.get() + 1);
        }
    });
    let error = error.expect_err("it does not end");
    assert!(
        matches!(error, Error::Program(ProgramError::TooManyCalls { limit, .. }) if limit == calls.get()),
        "{error}"
    );

    let mut long = scheduler.zeroed::<[u64; 129]>(3).expect("memory");
    let error = stream.program("value", |program| program.fill(&mut long, [1; 129]));
    let error = error.expect_err("it is too long");
    assert!(
        matches!(
            error,
            Error::Program(ProgramError::LongValue { program: "value", bytes: 1032, limit: 1024 })
        ),
        "{error}"
    );

    let mut y = another.zeroed::<u32>(LEN).expect("memory");
    let error = stream.program("elsewhere", |program| {
        program.launch(kernels::scale(1, &mut y).threads(LEN)).map(drop)
    });
    let error = error.expect_err("another device's buffer");
    assert!(
        matches!(error, Error::Argument(ArgumentError::ForeignBuffer { name: "scale" })),
        "{error}"
    );
    let error = stream.program("elsewhere", |program| program.copy_buffer(&y, &mut x));
    error.expect_err("another device's buffer");

    let error = stream
        .program("short", |program| program.copy_buffer(&x.slice(..3)?, &mut scheduler.zeroed(4)?));
    let error = error.expect_err("two lengths");
    assert!(matches!(error, Error::Argument(ArgumentError::LengthMismatch { .. })), "{error}");
    let error = stream
        .program("no grid", |program| program.launch(kernels::scale(1, &mut x).grid(0)).map(drop));
    let error = error.expect_err("no grid");
    assert!(matches!(error, Error::Configuration(ConfigurationError::EmptyGrid { .. })), "{error}");

    let (mut program, place) = scales(&stream, 1, &mut x);
    let error = foreign.launch_program(&program).expect_err("another scheduler");
    assert!(
        matches!(error, Error::Program(ProgramError::OtherScheduler { program: "scales" })),
        "{error}"
    );
    let (_, other_place) = scales(&stream, 1, &mut x);
    let error = program.set(other_place, kernels::scale(2, &mut x).threads(LEN));
    let error = error.expect_err("another program");
    assert!(matches!(error, Error::Program(ProgramError::OtherProgram { .. })), "{error}");
    let a = scheduler.zeroed(1).expect("memory");
    let error = program.set(place, kernels::sum(&a, &a, &mut x).threads(LEN));
    let error = error.expect_err("another kernel");
    assert!(
        matches!(
            error,
            Error::Program(ProgramError::OtherKernel { recorded: "scale", given: "sum", .. })
        ),
        "{error}"
    );
    program.set(place, kernels::scale(2, &mut y).threads(LEN)).expect_err("elsewhere");
    program.set(place, kernels::scale(2, &mut x).grid(0)).expect_err("no grid");
    // It is as it was.
    run(&program).expect("runs");
    assert_eq!(contents(&stream, &x), scaled(1, &[0; LEN]));
}

fn a_call_that_fails_is_named_and_what_the_program_writes_is_lost(form: Preemption) {
    let scheduler = emulated(form);
    let (stream, other) = (scheduler.stream(0), scheduler.stream(0));
    let [mut x, y, mut z] = [0; 3].map(|_| scheduler.buffer(&[5u32; LEN]).expect("memory"));
    let mut bad = None;
    let program = stream.program("step", |program| {
        program.fill(&mut x, 1)?;
        program.copy_buffer(&y, &mut x)?;
        bad = Some(program.launch(kernels::panics(2, &mut x).grid(3).block(1))?);
        program.launch(kernels::scale(0, z.slice_mut(50..)?).threads(50))?;
        program.fill(&mut z.slice_mut(90..)?, 3)
    });
    let mut program = program.expect("recorded");
    let error = run(&program).expect_err("it panics");
    let Error::Launch(LaunchError::KernelFailed { kernel: "step", message }) = &error else {
        panic!("{error}");
    };
    let named = message.starts_with("call 2, kernel `panics`: block-task (2, 0, 0): ");
    assert!(named, "{message}");
    // No later call of a plain program had an effect. No operation uses the buffer now.
    // SAFETY: on the CPU device an address is one of this process.
    let late = unsafe { AtomicU32::from_ptr((z.address() as *mut u32).add(95)) }.load(SeqCst);
    // The device may have gone on to later calls of a preemptible program. They write what is lost.
    assert!(late == 5 || form == Preemption::Preemptible);
    let lost = LaunchError::InputLost { kernel: "step" };
    let lost = Error::Launch(lost).to_string();
    for range in [x.slice(..1), x.slice(..), z.slice(60..61), z.slice(..)] {
        let read = other.download(&range.expect("in range")).expect("accepted");
        assert_eq!(in_time(&read).expect_err("lost").to_string(), lost);
    }
    assert_eq!(contents(&other, &y), [5; LEN]);
    let kept = other.download(&z.slice(..50).expect("in range")).expect("accepted");
    assert_eq!(in_time(&kept).expect("copied"), [5; 50]);

    // `z` is read before it is written, and lost.
    let bad = bad.expect("recorded");
    program.set(bad, kernels::panics(7, &mut x).grid(3).block(1)).expect("the kernel");
    let error = run(&program).expect_err("it would use what is lost");
    assert_eq!(error.to_string(), lost);
    in_time(&stream.upload(vec![5; LEN], &mut z).expect("accepted")).expect("copied");
    // `x` is replaced by the program itself.
    run(&program).expect("runs");
    assert_eq!(contents(&other, &x)[..4], [6, 6, 6, 5]);
    assert_eq!(contents(&other, &z)[48..53], [5, 5, 0, 1, 2]);
    assert_eq!(contents(&other, &z)[90..], [3; 10]);
}

#[test]
fn a_plain_program_that_waits_is_cancelled_and_one_that_runs_is_not() {
    let scheduler = emulated(Preemption::Preemptible);
    let stream = scheduler.stream(0);
    let [before, within] = [0; 2].map(|_| Gate::new(&scheduler));
    let mut log = scheduler.zeroed::<u32>(LEN).expect("memory");
    let mut x = scheduler.buffer(&[5u32; LEN]).expect("memory");
    let program = stream.program("step", |program| {
        program.preemption(Preemption::Plain);
        program.launch(gated(&within.0, &mut log, 8).grid(1))?;
        program.launch(kernels::scale(2, &mut x).threads(LEN)).map(drop)
    });
    let program = program.expect("recorded");
    let mut other_log = scheduler.zeroed::<u32>(LEN).expect("memory");
    let holds = stream.launch(gated(&before.0, &mut other_log, 7).grid(1)).expect("accepted");
    before.wait_for(1);
    let waits = program.launch().expect("accepted");
    waits.cancel();
    let error = in_time(&waits).expect_err("cancelled");
    assert!(
        matches!(error, Error::Launch(LaunchError::Cancelled { done: 0, tasks: 5 })),
        "{error}"
    );
    before.open();
    in_time(&holds).expect("runs");
    assert_eq!(contents(&stream, &x), [5; LEN]);
    let runs = program.launch().expect("accepted");
    within.wait_for(1);
    runs.cancel();
    assert!(runs.wait_timeout(WHILE).is_none());
    within.open();
    assert_eq!(in_time(&runs).expect("it was running").tasks, 5);
    assert_eq!(contents(&stream, &x), scaled(2, &[5; LEN]));
    assert_eq!(contents(&stream, &log)[..3], [1, 8, 0]);
}

#[test]
fn a_dropped_scheduler_ends_programs_that_wait_and_takes_no_more() {
    let scheduler = emulated(Preemption::Preemptible);
    let device = scheduler.device().clone();
    let stream = scheduler.stream(0);
    let gate = Gate::new(&scheduler);
    let mut log = scheduler.zeroed::<u32>(LEN).expect("memory");
    let mut x = scheduler.buffer(&[5u32; LEN]).expect("memory");
    let (mut program, place) = scales(&stream, 2, &mut x);
    let holds = stream.program("holds", |program| {
        program.preemption(Preemption::Plain);
        program.launch(gated(&gate.0, &mut log, 7).grid(1))?;
        program.fill(&mut x, 5)
    });
    let holds = holds.expect("recorded");
    // On another stream, because a program behind it in its stream would be on the device already.
    let holding = scheduler.stream(0).launch_program(&holds).expect("accepted");
    gate.wait_for(1);
    let waits = program.launch().expect("accepted");
    std::thread::scope(|scope| {
        scope.spawn(|| drop(scheduler));
        let error = in_time(&waits).expect_err("its scheduler is dropped");
        assert!(
            matches!(error, Error::Launch(LaunchError::SchedulerDropped { done: 0, tasks: 4 })),
            "{error}"
        );
        gate.open();
    });
    in_time(&holding).expect("it was running");
    let dropped = |error: Error| {
        assert!(matches!(error, Error::Launch(LaunchError::SchedulerDropped { .. })), "{error}");
    };
    dropped(program.launch().expect_err("no scheduler"));
    // Another scheduler on the device changes nothing for them.
    let next = Scheduler::builder().device(device).build().expect("a scheduler");
    program.set(place, kernels::scale(3, &mut x).threads(LEN)).expect("the kernel");
    dropped(program.launch().expect_err("another scheduler"));
    assert_eq!(contents(&next.stream(0), &x), [5; LEN]);
}

/// A program keeps its buffers, and their contents come to its device.
fn buffers_stay_with_the_program(form: Preemption) {
    let (scheduler, another) = (scheduler(form), emulated(form));
    let stream = scheduler.stream(0);
    let mut x = scheduler.buffer(&[1u32; LEN]).expect("memory");
    let mut out = scheduler.zeroed::<u32>(LEN).expect("memory");
    let program = stream.program("keeps", |program| {
        let mut own = scheduler.zeroed::<u32>(LEN)?;
        program.copy_buffer(&x, &mut own)?;
        program.launch(kernels::scale(2, &mut own).threads(LEN))?;
        program.copy_buffer(&own, &mut out)
    });
    let program = program.expect("recorded");
    let mut expected = vec![1; LEN];
    for factor in 2..5 {
        let elsewhere = another.stream(0).launch(kernels::scale(factor, &mut x).threads(LEN));
        expected = scaled(factor, &expected);
        drop(elsewhere.expect("accepted"));
        run(&program).expect("runs");
        assert_eq!(contents(&another.stream(0), &out), scaled(2, &expected));
    }
    drop(x);
    run(&program).expect("runs");
    assert_eq!(contents(&stream, &out), scaled(2, &expected));
}

/// A kernel that holds the device until it is cancelled, and yields in between.
fn long(scheduler: &Scheduler) -> Handle<LaunchReport> {
    let zeroed = |len: u32| scheduler.zeroed::<u32>(len as usize).expect("memory");
    let stream = scheduler.stream(0);
    if preempt_test_kit::on_gpu() {
        // No yield points: a block-task that was dropped twice would keep its SM for ever. This takes longer than the rest of
        // a test under a sanitizer, and each block-task some 10 ms.
        let tasks = 400_000;
        let (mut counts, mut writes) = (zeroed(tasks), zeroed(tasks * 1024));
        let call = kernels::paced_1d(20_000_000, &mut counts, &mut writes).grid(tasks).block(1024);
        return stream.launch(call.preemption(Preemption::Preemptible)).expect("accepted");
    }
    let tasks = 4 * scheduler.device().properties().sms;
    let (mut starts, mut out) = (zeroed(tasks), zeroed(tasks));
    let call = kernels::spin_yielding(&mut starts, u32::MAX, &mut out).grid(tasks).block(1);
    stream.launch(call.preemption(Preemption::Preemptible)).expect("accepted")
}

/// Recording, launching, changing and dropping programs: nothing of it waits for a kernel that runs.
fn programs_wait_for_no_kernel_that_runs(form: Preemption) {
    // Few blocks, because those of an emulated device that spin take the processors from all other threads.
    let scheduler = scheduler_on(CpuLayout::sms(1), form);
    let urgent = scheduler.stream(1);
    let mut x = scheduler.buffer(&[1u32; LEN]).expect("memory");
    let mut out = scheduler.zeroed::<u32>(LEN).expect("memory");
    let zeros = scheduler.zeroed::<u32>(LEN).expect("memory");
    let mut expected = vec![1; LEN];
    // Of the driver, on a GPU: what a first program sets up.
    let (first, _) = scales(&urgent, 1, &mut x);
    run(&first).expect("runs");
    expected = scaled(1, &expected);
    let long = long(&scheduler);
    // A copy between buffers is a kernel of the driver, which no policy knows, unless it is part of a plain program.
    let waits_for_room = preempt_test_kit::on_gpu() && form == Preemption::Preemptible;
    let turns = if preempt_test_kit::on_gpu() { 20 } else { 2 };
    for turn in 0..turns {
        let mut place = None;
        let program = urgent.program("urgent", |program| {
            place = Some(program.launch(kernels::scale(2, &mut x).threads(LEN))?);
            program.fill(&mut out, 0)?;
            match waits_for_room {
                true => program.launch(kernels::sum(&x, &zeros, &mut out).threads(LEN)).map(drop),
                false => program.copy_buffer(&x, &mut out),
            }
        });
        let mut program = program.expect("recorded");
        for factor in [2, turn] {
            let call = kernels::scale(factor, &mut x).threads(LEN);
            program.set(place.expect("recorded"), call).expect("the kernel");
            run(&program).expect("runs");
            expected = scaled(factor, &expected);
            assert_eq!(contents(&urgent, &out), expected);
        }
        // Its launch may be under way.
        drop(program.launch().expect("accepted"));
        expected = scaled(turn, &expected);
        drop(program);
    }
    assert_eq!(contents(&urgent, &x), expected);
    assert!(!long.is_done(), "it is not over by itself");
    long.cancel();
    in_time(&long).expect_err("cancelled");
}
