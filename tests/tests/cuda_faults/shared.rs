//! Memory that other processes can have, where the driver refuses a call: the task that wants it fails, or nothing does.

use preempt::error::{ArgumentError, DeviceError, MemoryError};
use preempt::pool::{Class, Pool, Run, Task, TaskHandle};
use preempt::{Device, Error, Scheduler};
use preempt_test_kernels as kernels;

use crate::device_code;
use crate::workloads::{Found, THREADS};
use crate::{Case, FAKE, INVALID_VALUE, OUT_OF_MEMORY, Outcome, start};

const TASKS: u32 = 6;

/// Tasks that count in such memory.
pub fn run(device: &Device, found: &mut Found) {
    let scheduler = Scheduler::builder().device(device.clone()).kernels(device_code::module());
    let Some(scheduler) = found.take(scheduler.build()) else { return };
    let Some(pool) = found.take(Pool::builder().scheduler(scheduler).build()) else { return };
    let nightly = pool.application(Class::Batch);
    for tasks in 1..=TASKS {
        let task = Task::new("counts", move |run| counts(tasks, run));
        match nightly.submit(&task).and_then(TaskHandle::wait) {
            Ok(counts) => {
                found.expect(counts == vec![1; tasks as usize], || format!("{counts:?}"));
            }
            Err(
                error @ (Error::Device(DeviceError::Driver { .. })
                | Error::Memory(MemoryError::OutOfMemory { .. })),
            ) => drop(found.take::<()>(Err(error))),
            Err(error) => found.expect(false, || format!("task {tasks}: {error}")),
        }
    }
}

/// The driver's `cuMemFree` does not free it.
pub fn give_away(device: &Device, found: &mut Found) {
    let Some(scheduler) = found.take(Scheduler::builder().device(device.clone()).build()) else {
        return;
    };
    let pool = Pool::builder().scheduler(scheduler.clone()).build();
    let Some(pool) = found.take(pool) else { return };
    let keeps = Task::new("keeps", |run| run.shared::<u32>(4));
    let kept = pool.application(Class::Batch).submit(&keeps).and_then(TaskHandle::wait);
    let given = kept.and_then(|kept| scheduler.stream(0).to_raw(kept));
    let is_refused = matches!(given, Err(Error::Argument(ArgumentError::NotGivenAway)));
    found.expect(is_refused, || format!("{given:?}"));
}

#[test]
fn memory_for_other_processes_is_not_given_away() {
    let outcomes = start(FAKE, &[Case::clean("shared-given")]);
    assert!(outcomes.len() == 1 && outcomes.iter().all(Outcome::is_right), "{outcomes:#?}");
}

fn counts(tasks: u32, run: &Run) -> Result<Vec<u32>, Error> {
    // Larger than what it comes in, and not.
    let mut counts = run.shared::<u32>(tasks as usize)?;
    let mut writes = run.shared::<u32>((tasks * THREADS) as usize + 20_000)?;
    run.launch(kernels::count_1d(&mut counts, &mut writes).grid(tasks).block(THREADS))?;
    run.download(&counts)
}

#[test]
fn memory_for_other_processes_fails_its_task_alone() {
    // What may fail when memory is made, and when it is freed, which no task is told of.
    let making = [
        "cuMemGetAllocationGranularity",
        "cuMemCreate",
        "cuMemExportToShareableHandle",
        "cuMemAddressReserve",
        "cuMemMap",
        "cuMemSetAccess",
    ];
    let freeing = ["cuMemRelease", "cuMemUnmap", "cuMemAddressFree"];
    let clean = start(FAKE, &[Case::clean("shared")]);
    assert!(clean.len() == 1 && clean.iter().all(Outcome::is_right), "{clean:#?}");
    for (functions, errors) in [(&making[..], 1), (&freeing[..], 0)] {
        for &function in functions {
            let calls = clean[0].calls.get(function).copied().unwrap_or_default();
            assert!(calls >= u64::from(2 * TASKS), "{function}: {calls}");
            let case = |nth, code| {
                let (workload, function) = ("shared".into(), function.to_owned());
                Case { workload, function, nth, code }
            };
            let outcomes = start(FAKE, &[case(1, INVALID_VALUE), case(4, OUT_OF_MEMORY)]);
            // Where there is no memory, the pool tries once more.
            let again = if function == "cuMemCreate" { 0 } else { errors };
            let is_right = |of: &Outcome, errors| {
                of.is_over && of.wrong.is_empty() && (of.failures, of.errors) == (1, errors)
            };
            let [first, second] = &outcomes[..] else { panic!("{function}: {outcomes:#?}") };
            let are_right = is_right(first, errors) && is_right(second, again);
            assert!(are_right, "{function}: {outcomes:#?}");
        }
    }
}
