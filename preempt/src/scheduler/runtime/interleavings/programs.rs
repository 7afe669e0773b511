//! Programs beside other operations.

use std::sync::Arc;

use preempt_device::host::Preemption;

use super::testbed::Testbed;
use super::{explore, faulty, join, short, writes, yielding};
use crate::engine::LaunchReport;
use crate::error::{Error, LaunchError};
use crate::scheduler::{Handle, Program, Stream};
use crate::sync::thread;

/// Block-tasks of all calls of the program.
const TASKS: u32 = 4;

fn program(stream: &Stream) -> Program {
    let program = stream.program("program", |program| {
        program.preemption(Preemption::Plain);
        program.launch(short().grid(2))?;
        program.launch(short().grid(1))?;
        program.launch(yielding().grid(1)).map(drop)
    });
    program.expect("recorded")
}

/// All of its block-tasks ran, once and in their order, or none.
fn end(testbed: &Testbed, handle: &Handle<LaunchReport>) {
    match testbed.end(handle, TASKS) {
        Ok(_) => {}
        Err(Error::Launch(
            LaunchError::Cancelled { done: 0, .. } | LaunchError::SchedulerDropped { done: 0, .. },
        )) => {}
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_program_runs_whole_or_not_at_all() {
    explore(|| {
        let testbed = Testbed::new(2);
        let scheduler = testbed.scheduler();
        let program = Arc::new(program(&scheduler.stream(0)));
        let launches = [0, 1].map(|priority| {
            let (testbed, program) = (testbed.clone(), program.clone());
            let stream = scheduler.stream(priority);
            thread::spawn(move || {
                let [first, second] =
                    [(); 2].map(|()| stream.launch_program(&program).expect("accepted"));
                if priority == 0 {
                    second.cancel();
                }
                [first, second].iter().for_each(|handle| end(&testbed, handle));
            })
        });
        join(launches);
    });
}

#[test]
fn a_scheduler_is_dropped_while_programs_are_launched() {
    explore(|| {
        let testbed = Testbed::new(1);
        let scheduler = testbed.scheduler();
        let program = program(&scheduler.stream(0));
        let ends = testbed.clone();
        let launches = thread::spawn(move || {
            while let Ok(handle) = program.launch() {
                end(&ends, &handle);
            }
        });
        thread::yield_now();
        drop(scheduler);
        join([launches]);
    });
}

#[test]
fn a_fault_of_a_call_is_that_of_its_program() {
    explore(|| a_fault_of_a_call(Preemption::Plain));
    explore(|| a_fault_of_a_call(Preemption::Preemptible));
}

fn a_fault_of_a_call(form: Preemption) {
    let testbed = Testbed::new(2);
    let scheduler = testbed.scheduler();
    let (stream, other) = (scheduler.stream(0), scheduler.stream(1));
    let [mut x, mut y] = [(); 2].map(|()| scheduler.zeroed::<u32>(1).expect("memory"));
    let program = stream.program("program", |program| {
        program.preemption(form);
        program.launch(writes(&mut y).grid(1))?;
        program.launch(faulty(&mut x).grid(2))?;
        program.launch(short().grid(1)).map(drop)
    });
    let program = program.expect("recorded");
    let reads = thread::spawn(move || {
        let handle = program.launch().expect("accepted");
        let error = handle.wait().expect_err("it is faulty");
        let place = if form == Preemption::Plain { "" } else { "call 1, kernel `faulty`: " };
        let message = format!("{place}as intended").into();
        let failed = LaunchError::KernelFailed { kernel: "program", message };
        assert_eq!(error.to_string(), Error::Launch(failed).to_string());
        let lost = other.launch(writes(&mut y).grid(1)).expect("accepted").wait();
        let expected = LaunchError::InputLost { kernel: "program" };
        let lost = lost.expect_err("the program wrote it");
        assert_eq!(lost.to_string(), Error::Launch(expected).to_string());
    });
    join([reads]);
}

#[test]
fn calls_of_preemptible_programs_run_once() {
    explore(|| {
        let testbed = Testbed::new(2);
        let scheduler = testbed.scheduler();
        let mut x = scheduler.zeroed::<u32>(1).expect("memory");
        let program = scheduler.stream(0).program("program", |program| {
            program.launch(yielding().grid(2))?;
            program.launch(writes(&mut x).grid(1))?;
            program.launch(yielding().grid(1)).map(drop)
        });
        let program = Arc::new(program.expect("recorded"));
        let launches = [0, 1].map(|priority| {
            let program = program.clone();
            let stream = scheduler.stream(priority);
            thread::spawn(move || {
                let handle = stream.launch_program(&program).expect("accepted");
                let other = stream.launch(yielding().grid(1)).expect("accepted");
                if priority == 0 {
                    handle.cancel();
                }
                let done = match handle.wait() {
                    Ok(report) => report.tasks,
                    Err(Error::Launch(LaunchError::Cancelled { done, tasks: TASKS })) => done,
                    Err(error) => panic!("{error:?}"),
                };
                done + other.wait().expect("done").tasks
            })
        });
        let done: u32 = launches.into_iter().map(|thread| thread.join().expect("no panic")).sum();
        let ran = testbed.model.all_ran();
        let all = ran.iter().flat_map(|ran| &ran.tasks);
        assert!(all.clone().all(|&times| times <= 1), "{ran:?}");
        assert_eq!(all.sum::<u32>(), done, "{ran:?}");
    });
}
