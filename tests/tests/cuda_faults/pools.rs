//! Pools whose devices fail: tasks run again on the devices that are left.

use std::time::Duration;

use preempt::error::{DeviceError, PoolError};
use preempt::pool::{Class, Pool, Run, Stop, Task, TaskHandle};
use preempt::{Device, Error, Scheduler, faults};
use preempt_test_kernels as kernels;

use crate::device_code;
use crate::workloads::{Found, THREADS};
use crate::{Case, FAKE, LAUNCH_FAILED, Outcome, start};

const TASKS: u32 = 40;

/// Tasks on two devices, or on one, of which one fails if the case says so.
pub fn run(case: &Case, device: &Device, found: &mut Found) {
    let is_alone = case.workload == "lone-pools";
    let devices = (0..2).take(if is_alone { 1 } else { 2 });
    let mut builder = Pool::builder().stop(Stop::Revoke(Duration::ZERO));
    for ordinal in devices {
        let opened = if ordinal == 0 { Ok(device.clone()) } else { Device::cuda(ordinal) };
        let Some(opened) = found.take(opened) else { return };
        let scheduler = Scheduler::builder().device(opened).kernels(device_code::module());
        let Some(scheduler) = found.take(scheduler.build()) else { return };
        builder = builder.scheduler(scheduler);
    }
    let Some(pool) = found.take(builder.build()) else { return };
    // The devices are open.
    faults::reset();
    if case.nth > 0 {
        faults::fail(case.function.clone().leak(), case.nth, case.code);
    }
    let applications = [Class::UserFacing, Class::Batch, Class::Batch];
    let applications = applications.map(|class| pool.application(class));
    let mut handles = Vec::new();
    for number in 0..TASKS {
        let task = Task::new("counts", move |run| counts(1 + number % 8, run));
        match applications[number as usize % 3].submit(&task) {
            Ok(handle) => handles.push((number, Some(handle))),
            Err(error) => check(Err(error), number, is_alone, found),
        }
        if number % 10 == 9
            && let Some(at) = handles.iter().position(|(_, handle)| handle.is_some())
            && let Some(handle) = handles[at].1.take()
        {
            check(handle.wait(), handles[at].0, is_alone, found);
        }
    }
    for (number, handle) in handles {
        if let Some(result) = handle.map(TaskHandle::wait) {
            check(result, number, is_alone, found);
        }
    }
    // The rest of the checks is for a device that is there.
    found.is_lost = faults::failures() > 0;
}

/// Each block-task counts itself twice.
fn counts(tasks: u32, run: &Run) -> Result<Vec<u32>, Error> {
    let mut counts = run.zeroed::<u32>(tasks as usize)?;
    let mut writes = run.zeroed::<u32>((tasks * THREADS) as usize)?;
    for _ in 0..2 {
        run.launch(kernels::count_1d(&mut counts, &mut writes).grid(tasks).block(THREADS))?;
    }
    run.download(&counts)
}

fn check(result: Result<Vec<u32>, Error>, number: u32, is_alone: bool, found: &mut Found) {
    match result {
        Ok(counts) => {
            let is_right =
                counts.len() == 1 + number as usize % 8 && counts.iter().all(|&n| n == 2);
            found.expect(is_right, || format!("task {number}: {counts:?}"));
        }
        Err(
            Error::Pool(PoolError::NoDeviceLeft { .. })
            | Error::Device(DeviceError::ContextLost { .. }),
        ) if is_alone => {}
        Err(error) => found.expect(false, || format!("task {number}: {error}")),
    }
}

#[test]
fn tasks_run_again_where_a_device_is_left() {
    let mut failures = 0;
    const WORKLOADS: [&str; 2] = ["pools", "lone-pools"];
    let clean = start(FAKE, &WORKLOADS.map(Case::clean));
    assert!(clean.len() == 2 && clean.iter().all(Outcome::is_right), "{clean:#?}");
    let functions =
        ["cuLaunchKernelEx", "cuMemAllocFromPoolAsync", "cuMemcpyDtoHAsync_v2", "cuStreamQuery"];
    for (workload, of) in WORKLOADS.iter().zip(&clean) {
        for function in functions {
            let calls = of.calls.get(function).copied().unwrap_or_default();
            assert!(calls > 8, "{workload}, {function}: {calls}");
            for nth in [1, calls / 2] {
                let (workload, function) = (workload.to_string(), function.to_owned());
                let case = Case { workload, function, nth, code: LAUNCH_FAILED };
                let outcomes = start(FAKE, std::slice::from_ref(&case));
                let is_right = |outcome: &Outcome| {
                    outcome.is_over && outcome.wrong.is_empty() && outcome.failures <= 1
                };
                assert!(
                    outcomes.len() == 1 && outcomes.iter().all(is_right),
                    "{case:?}: {outcomes:#?}"
                );
                failures += outcomes[0].failures;
            }
        }
    }
    // Of queries there may be fewer than in the run without failures.
    assert!(failures >= 12, "{failures}");
}
