//! Yield points: kernels that give their SM up within a block-task.

use std::time::Duration;

use preempt::error::LaunchError;
use preempt::{Buffer, CpuLayout, Device, Error, Handle, LaunchReport, Preemption, Scheduler};
use preempt_device::atomic::{AtomicU32, Ordering::SeqCst};
use preempt_device::prelude::*;
use preempt_test_kernels as kernels;
use preempt_test_kit::Gate;

/// In each block-task, adds 1 to element 1 of `gate` and waits until element 0 is not 0, with a yield point in each
/// round. Then adds 1 to `ends[task]`.
#[preemptible(block = 1, idempotent)]
fn stand(gate: *const u32, ends: SliceMut<u32>) {
    // SAFETY: a gate has two elements, which host and kernels access atomically.
    let (open, arrived) = unsafe {
        (AtomicU32::from_ptr(gate.cast_mut()), AtomicU32::from_ptr(gate.add(1).cast_mut()))
    };
    arrived.fetch_add(1, SeqCst);
    while open.load(SeqCst) == 0 {
        yield_point!();
        std::thread::yield_now();
    }
    let task = thread::block_idx_x() as usize;
    // SAFETY: each block-task has its own element, and comes here once.
    unsafe { ends.write(task, ends.read(task) + 1) };
}

fn one_sm() -> Scheduler {
    let device = Device::cpu_with(CpuLayout::sms(1)).expect("a device");
    let builder = Scheduler::builder().device(device).preemption(Preemption::Preemptible);
    builder.build().expect("a scheduler")
}

/// The result of a launch that needs an SM from a block-task which does not end by itself.
fn in_time(handle: &Handle<LaunchReport>) -> Result<LaunchReport, Error> {
    handle.wait_timeout(Duration::from_secs(20)).expect("the block-task gives its SM up")
}

fn download(scheduler: &Scheduler, buffer: &Buffer<u32>) -> Vec<u32> {
    scheduler.stream(0).download(buffer).and_then(|copy| copy.wait()).expect("copied")
}

#[test]
fn an_urgent_launch_gets_the_sm_of_a_block_task_that_runs_twice_and_then_no_more() {
    let scheduler = one_sm();
    let gate = Gate::new(&scheduler);
    let mut ends = scheduler.zeroed(1).expect("memory");
    let (mut ticks, mut writes) =
        (scheduler.zeroed(1).expect("memory"), scheduler.zeroed(1).expect("memory"));
    let mut tick = || kernels::count_1d(&mut ticks, &mut writes).grid(1).block(1);
    let urgent = scheduler.stream(1);

    // With more block-tasks, others could come before the requeued one.
    let batch = scheduler.stream(0).launch(stand(&gate.0, &mut ends).grid(1)).expect("accepted");
    gate.wait_for(1);
    for drops in 1..=2 {
        let handle = urgent.launch(tick()).expect("accepted");
        in_time(&handle).expect("runs before a closed gate");
        gate.wait_for(1 + drops);
    }
    let third = urgent.launch(tick()).expect("accepted");
    assert!(third.wait_timeout(Duration::from_millis(20)).is_none(), "it was requeued twice");
    gate.open();
    third.wait().expect("runs");
    let report = batch.wait().expect("runs");
    assert_eq!((report.tasks, report.yields), (1, 3));
    assert_eq!(download(&scheduler, &ends), [1]);
    assert_eq!(download(&scheduler, &ticks), [3]);
    gate.wait_for(1 + 2);
}

#[test]
fn a_cancelled_block_task_stops_at_its_yield_point_and_leaves_nothing_to_the_next_launch() {
    let scheduler = one_sm();
    let stream = scheduler.stream(0);
    for round in 0..20 {
        let gate = Gate::new(&scheduler);
        let mut ends = scheduler.zeroed(4).expect("memory");
        let handle = stream.launch(stand(&gate.0, &mut ends).grid(4)).expect("accepted");
        gate.wait_for(1);
        handle.cancel();
        match in_time(&handle) {
            Err(Error::Launch(LaunchError::Cancelled { done: 0, tasks: 4 })) => {}
            other => panic!("{other:?} in round {round}"),
        }
        assert_eq!(download(&scheduler, &ends), [0; 4]);

        // With the requeue list of the first launch, on which its first block-task was.
        gate.open();
        let handle = stream.launch(stand(&gate.0, &mut ends).grid(4)).expect("accepted");
        assert_eq!(handle.wait().expect("runs").tasks, 4);
        assert_eq!(download(&scheduler, &ends), [1; 4]);
        gate.wait_for(1 + 4);
    }
}

#[test]
fn threads_that_disagree_about_a_yield_point_and_a_barrier_are_told_apart() {
    /// The attribute does not see the barrier in the helper.
    #[preemptible(block = 2, idempotent)]
    fn split() {
        preempt_test_helpers::sync_if(thread::thread_idx_x() == 0);
        yield_point!();
        thread::sync_threads();
    }
    let scheduler = one_sm();
    let handle = scheduler.stream(0).launch(split().grid(1)).expect("accepted");
    let error = handle.wait().expect_err("one waits at a barrier, the other one votes");
    assert!(error.to_string().contains("1 wait at a barrier, 1 at a yield point"), "{error}");
}
