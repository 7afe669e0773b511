//! Armed programs beside other operations, on a device whose gates may leave at any moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use preempt_device::host::Preemption;

use super::testbed::Testbed;
use super::{explore, join, short, writes, yielding};
use crate::device::model::Ran;
use crate::engine::LaunchReport;
use crate::error::{DeviceError, Error, LaunchError};
use crate::scheduler::{Buffer, Handle, Program, ProgramCall, Scheduler, Stream};
use crate::sync::thread;

/// Block-tasks of the program's calls. No other launch here has as many as one of them.
const CALLS: [u32; 2] = [2, 1];

/// Block-tasks of another launch.
const OTHER: u32 = 3;

/// A preemptible program that writes a buffer, and its first call.
fn program(stream: &Stream, x: &mut Buffer<u32>) -> (Program, ProgramCall) {
    let mut first = None;
    let program = stream.program("program", |program| {
        program.preemption(Preemption::Preemptible);
        first = Some(program.launch(writes(x).grid(CALLS[0]))?);
        program.launch(yielding().grid(CALLS[1])).map(drop)
    });
    (program.expect("recorded"), first.expect("recorded"))
}

fn buffer(scheduler: &Scheduler) -> Buffer<u32> {
    scheduler.zeroed(1).expect("memory")
}

/// What ran of the launches that have as many block-tasks. Some may have begun none.
fn ran(testbed: &Testbed, tasks: u32) -> Vec<Ran> {
    let mut ran = testbed.model.all_ran();
    ran.retain(|ran| ran.tasks.len() == tasks as usize);
    ran
}

/// The steps of the one launch that has as many block-tasks, each of which ran once.
fn ran_once(testbed: &Testbed, tasks: u32) -> [u64; 2] {
    let ran = ran(testbed, tasks);
    let [Ran { tasks, steps: Some(steps) }] = &ran[..] else { panic!("{ran:?}") };
    assert!(tasks.iter().all(|&times| times == 1), "{tasks:?}");
    *steps
}

/// Waits for the program's only launch; whether it began behind its gate.
fn end(handle: &Handle<LaunchReport>) -> bool {
    let report = handle.wait().expect("done");
    assert_eq!(report.tasks, CALLS.iter().sum::<u32>());
    report.armed
}

/// The steps of the program's calls, which ran once and in their order. All launches are over.
fn calls_ran_once(testbed: &Testbed) -> [[u64; 2]; 2] {
    let calls = CALLS.map(|tasks| ran_once(testbed, tasks));
    assert!(calls[0][1] < calls[1][0], "{calls:?}");
    calls
}

#[test]
fn an_armed_program_runs_once_whenever_its_gate_leaves() {
    static BEGAN_ARMED: AtomicBool = AtomicBool::new(false);
    static BEGAN_OTHERWISE: AtomicBool = AtomicBool::new(false);
    explore(|| {
        let testbed = Testbed::new(2);
        let scheduler = testbed.scheduler();
        let (program, _) = program(&scheduler.stream(1), &mut buffer(&scheduler));
        let (stream, ends) = (scheduler.stream(0), testbed.clone());
        let less_urgent = thread::spawn(move || {
            let handle = stream.launch(yielding().grid(OTHER)).expect("accepted");
            ends.end(&handle, OTHER).expect("done");
        });
        program.arm().expect("accepted");
        let handle = program.launch().expect("accepted");
        let seen = if end(&handle) { &BEGAN_ARMED } else { &BEGAN_OTHERWISE };
        seen.store(true, Ordering::Relaxed);
        join([less_urgent]);
        calls_ran_once(&testbed);
        ran_once(&testbed, OTHER);
    });
    let seen = [&BEGAN_ARMED, &BEGAN_OTHERWISE].map(|seen| seen.load(Ordering::Relaxed));
    assert_eq!(seen, [true; 2], "behind its gate, and otherwise");
}

#[test]
fn a_program_is_armed_again_while_it_runs() {
    explore(|| {
        let testbed = Testbed::new(1);
        let scheduler = testbed.scheduler();
        let (program, _) = program(&scheduler.stream(1), &mut buffer(&scheduler));
        let clone = scheduler.clone();
        let synchronizes = thread::spawn(move || clone.synchronize().expect("no errors"));
        let handles = [(); 2].map(|()| {
            program.arm().expect("accepted");
            program.launch().expect("accepted")
        });
        let tasks = CALLS.iter().sum::<u32>();
        handles.iter().for_each(|handle| {
            assert_eq!(handle.wait().expect("done").tasks, tasks);
        });
        join([synchronizes]);
        let mut all: Vec<_> = CALLS.iter().flat_map(|&tasks| ran(&testbed, tasks)).collect();
        assert_eq!(all.len(), 4);
        assert!(all.iter().all(|ran| ran.tasks.iter().all(|&times| times == 1)), "{all:?}");
        all.sort_by_key(|ran| ran.steps);
        let in_order = all.is_sorted_by_key(|ran| ran.steps.map(|[_, last]| last));
        let order: Vec<_> = all.iter().map(|ran| ran.tasks.len() as u32).collect();
        assert!(in_order && order == CALLS.repeat(2), "{all:?}");
    });
}

/// A program is armed, another operation that it has to wait for is submitted, and it is launched, beside another thread,
/// which holds the core now and then.
fn comes_first(submit: fn(&Scheduler, &Stream, &mut Buffer<u32>) -> Handle<LaunchReport>) {
    let testbed = Testbed::new(2);
    let scheduler = testbed.scheduler();
    let (stream, mut x) = (scheduler.stream(1), buffer(&scheduler));
    let (program, _) = program(&stream, &mut x);
    let clone = scheduler.clone();
    let holds_the_core = thread::spawn(move || {
        (0..3).for_each(|_| assert!(clone.stats().total.done <= 2));
    });
    program.arm().expect("accepted");
    let before = submit(&scheduler, &stream, &mut x);
    let handle = program.launch().expect("accepted");
    assert!(!end(&handle), "it was disarmed");
    testbed.end(&before, OTHER).expect("done");
    let ([_, last], [[first, _], _]) = (ran_once(&testbed, OTHER), calls_ran_once(&testbed));
    assert!(last < first, "out of order");
    join([holds_the_core]);
}

#[test]
fn what_is_submitted_to_its_stream_before_the_launch_comes_first() {
    explore(|| {
        comes_first(|_, stream, _| stream.launch(short().grid(OTHER)).expect("accepted"));
    });
}

#[test]
fn what_uses_its_buffer_before_the_launch_comes_first() {
    explore(|| {
        comes_first(|scheduler, _, x| {
            scheduler.stream(0).launch(writes(x).grid(OTHER)).expect("accepted")
        });
    });
}

/// What takes back that the program was armed, while another thread waits for all that there is. It ran as often then.
fn is_taken_back(take_back: fn(Program, ProgramCall, &mut Buffer<u32>), times: usize) {
    let testbed = Testbed::new(2);
    let scheduler = testbed.scheduler();
    let mut x = buffer(&scheduler);
    let (program, first) = program(&scheduler.stream(1), &mut x);
    let clone = scheduler.clone();
    let synchronizes = thread::spawn(move || clone.synchronize().expect("no errors"));
    program.arm().expect("accepted");
    take_back(program, first, &mut x);
    join([synchronizes]);
    scheduler.synchronize().expect("no errors");
    assert_eq!(testbed.model.all_ran().len(), times, "{:?}", testbed.model.all_ran());
    let stats = scheduler.stats().total;
    assert_eq!((stats.done, stats.cancelled), (times as u64 / 2, 0), "as far as it was launched");
}

#[test]
fn nothing_of_a_dropped_program_runs() {
    explore(|| is_taken_back(|program, _, _| drop(program), 0));
}

#[test]
fn nothing_of_a_program_runs_that_is_never_launched() {
    explore(|| {
        let testbed = Testbed::new(2);
        let scheduler = testbed.scheduler();
        let (program, _) = program(&scheduler.stream(1), &mut buffer(&scheduler));
        program.arm().expect("accepted");
        // It ends although the program stays armed for as long as it may.
        scheduler.synchronize().expect("no errors");
        assert!(testbed.model.all_ran().is_empty());
    });
}

#[test]
fn nothing_runs_of_a_program_that_is_set() {
    explore(|| {
        let set = |mut program: Program, first, x: &mut Buffer<u32>| {
            program.set(first, writes(x).grid(OTHER)).expect("it fits");
        };
        is_taken_back(set, 0);
    });
}

#[test]
fn a_program_that_was_set_runs_as_it_is() {
    explore(|| {
        let set = |mut program: Program, first, x: &mut Buffer<u32>| {
            program.set(first, writes(x).grid(OTHER)).expect("it fits");
            let handle = program.launch().expect("accepted");
            assert_eq!(handle.wait().expect("done").tasks, OTHER + CALLS[1]);
        };
        is_taken_back(set, 2);
    });
}

/// The cancel may reach the core before the release does, and the program is armed anew while its cancelled launch ends.
#[test]
fn an_armed_program_is_cancelled_whenever_it_is_launched() {
    static ENDED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];
    explore(|| {
        let testbed = Testbed::new(2);
        let scheduler = testbed.scheduler();
        let (program, _) = program(&scheduler.stream(1), &mut buffer(&scheduler));
        let clone = scheduler.clone();
        let synchronizes = thread::spawn(move || clone.synchronize().expect("no errors"));
        program.arm().expect("accepted");
        let first = Arc::new(program.launch().expect("accepted"));
        let cancelled = first.clone();
        let cancels = thread::spawn(move || cancelled.cancel());
        program.arm().expect("accepted");
        let second = program.launch().expect("accepted");
        let tasks = CALLS.iter().sum();
        let (seen, done) = match first.wait() {
            Ok(report) => (2, report.tasks),
            Err(Error::Launch(LaunchError::Cancelled { done, tasks: all })) => {
                assert!(all == tasks && done <= tasks, "{done} of {all}");
                (usize::from(done > 0), done)
            }
            Err(error) => panic!("{error:?}"),
        };
        ENDED[seen].store(true, Ordering::Relaxed);
        assert_eq!(second.wait().expect("it is not cancelled").tasks, tasks);
        join([synchronizes, cancels]);
        let ran = CALLS.map(|tasks| ran(&testbed, tasks));
        let each = ran.iter().flatten().flat_map(|ran| &ran.tasks);
        assert!(each.clone().all(|&times| times <= 1), "{ran:?}");
        assert_eq!(each.sum::<u32>(), done + tasks, "what ran is what was reported: {ran:?}");
    });
    let seen = ENDED.each_ref().map(|seen| seen.load(Ordering::Relaxed));
    assert_eq!(seen, [true; 3], "before it ran, midway, and too late");
}

/// Arms and launches a few times, or until the scheduler or its device is gone, and leaves the program armed.
fn launch_until_the_end(testbed: &Testbed, program: &Program) {
    let mut tasks_done = 0;
    let gone = |error: &Error| {
        matches!(
            error,
            Error::Launch(LaunchError::SchedulerDropped { .. })
                | Error::Device(DeviceError::ContextLost { .. })
        )
    };
    for _ in 0..2 {
        let launched = program.arm().and_then(|()| program.launch());
        let handle = match launched {
            Ok(handle) => handle,
            Err(error) => return assert!(gone(&error), "{error:?}"),
        };
        match handle.wait() {
            Ok(report) => tasks_done += report.tasks,
            Err(error) => {
                assert!(gone(&error), "{error:?}");
                if let Error::Launch(LaunchError::SchedulerDropped { done, .. }) = error {
                    tasks_done += done;
                    let ran = testbed.model.all_ran();
                    let ran = ran.iter().flat_map(|ran| &ran.tasks);
                    assert_eq!(ran.sum::<u32>(), tasks_done, "what ran is what was reported");
                }
            }
        }
    }
    let armed = program.arm();
    assert!(armed.as_ref().err().is_none_or(gone), "{armed:?}");
}

/// Ends the scheduler, or its device, while a program is armed and launched.
fn ends_armed(end: impl FnOnce(&Testbed, Scheduler)) {
    let testbed = Testbed::new(2);
    let scheduler = testbed.scheduler();
    let (program, _) = program(&scheduler.stream(1), &mut buffer(&scheduler));
    let program = Arc::new(program);
    let (launched, launches) = (program.clone(), testbed.clone());
    let launches = thread::spawn(move || launch_until_the_end(&launches, &launched));
    thread::yield_now();
    end(&testbed, scheduler);
    join([launches]);
    // Nothing of what stays armed, or is armed too late, runs.
    let before = testbed.model.all_ran().len();
    let _ = program.arm();
    drop(program);
    assert_eq!(testbed.model.all_ran().len(), before);
}

#[test]
fn an_armed_program_ends_with_its_scheduler() {
    explore(|| ends_armed(|_, scheduler| drop(scheduler)));
}

#[test]
fn an_armed_program_ends_with_its_device() {
    explore(|| {
        ends_armed(|testbed, scheduler| {
            testbed.model.lose();
            scheduler.synchronize().expect("the policy did nothing wrong");
        });
    });
}
