//! Yield points: where threads end, and where the block decides together.

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering::Relaxed;

use preempt_device::abi::{Cohort, DeviceQueue, Signal, SmRange};
use preempt_device::host::{Call, Operation, Rendezvous};
use preempt_device::prelude::*;
use preempt_device::yields::Yields;

use crate::emulator::{Buffer, run, run_on_a_taken_sm, run_waiting};

/// Counts the yield points that each thread passes.
#[preemptible(block = 2, idempotent)]
fn yielding(rounds: u32, out: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    let reached = |round| {
        // SAFETY: each thread writes its own element.
        unsafe { out.write(i, round) }
    };
    reached(1);
    for round in 0..rounds {
        if i < 2 && round == 0 {
            continue;
        }
        match round {
            1 => preempt_device::yield_point!(),
            // As a statement of a block.
            2 => {
                yield_point! {}
                reached(7);
            }
            _ => yield_point!(),
        }
        reached(10 + round);
    }
    #[cfg(any())]
    yield_point!();
    reached(100);
    yield_point!()
}

#[test]
fn yield_points_end_threads_whose_sm_was_taken() {
    let mut out = Buffer::new([0; 4]);
    let call = yielding(3, &mut out).grid(2);
    assert!(call.kernel().yields);
    run(call.clone());
    assert_eq!(out.to_vec(), [100; 4]);
    assert_eq!(run_on_a_taken_sm(call), 4);
    assert_eq!(out.to_vec(), [1; 4]);

    assert_eq!(run_on_a_taken_sm(yielding(1, &mut out).grid(2)), 4);
    assert_eq!(out.to_vec(), [100, 100, 1, 1], "the first two reach the last yield point only");
}

#[test]
fn a_thread_that_reaches_no_yield_point_requeues_nothing() {
    #[preemptible(block = 2, idempotent)]
    fn sometimes(out: SliceMut<u32>) {
        let i = thread::index_1d();
        if i == 1 {
            yield_point!();
        }
        // SAFETY: each thread writes its own element.
        unsafe { out.write(i as usize, i) }
    }

    let mut out = Buffer::new([9; 4]);
    assert_eq!(run_on_a_taken_sm(sometimes(&mut out).grid(2)), 1);
    assert_eq!(out.to_vec(), [0, 9, 2, 3]);
}

/// The barriers (`b`) and votes (`v`) that a kernel's only thread reaches: in the plain entry, and in the
/// preemptible one on a granted SM.
fn waits(call: Call<'static>) -> [String; 2] {
    thread_local!(static WAITS: RefCell<String> = const { RefCell::new(String::new()) });
    fn wait(rendezvous: Rendezvous) -> u64 {
        WAITS.with_borrow_mut(|waits| match rendezvous.operation {
            Operation::Barrier { .. } => waits.push('b'),
            Operation::YieldVote { .. } => waits.push('v'),
            other => panic!("{other:?}"),
        });
        0
    }
    let queue = DeviceQueue::default();
    queue.signal.store(Signal::new(1, SmRange::ALL).to_bits(), Relaxed);
    // SAFETY: all zeros are a cohort; nothing follows its pointers.
    let cohort: Cohort = unsafe { std::mem::zeroed() };
    let cohort = Cohort { queue: &queue, signal: Signal::new(1, SmRange::ALL), ..cohort };
    // SAFETY: the queue is alive until all threads have ended.
    [Yields::OFF, unsafe { Yields::new(&cohort, 0) }].map(|yields| {
        assert_eq!(run_waiting(call.clone(), yields, wait), 0);
        WAITS.take()
    })
}

mod own {
    use super::*;

    thread_local!(pub static CALLS: Cell<u32> = const { Cell::new(0) });

    pub fn sync_threads() {
        CALLS.set(CALLS.get() + 1);
    }

    pub struct Block;

    impl Block {
        pub fn sync_threads() {
            CALLS.set(CALLS.get() + 10);
        }
    }
}

#[test]
fn a_function_with_only_the_name_of_a_barrier_is_called() {
    #[preemptible(block = 1, idempotent)]
    fn kernel(out: SliceMut<u32>) {
        own::sync_threads();
        yield_point!();
        own::Block::sync_threads();
        yield_point!();
        {
            let mut calls = 0;
            let mut sync_threads = || calls += 100;
            sync_threads();
            yield_point!();
            own::CALLS.set(own::CALLS.get() + calls);
        }
        let text = String::new();
        let sync_threads = || drop(text);
        sync_threads();
        yield_point!();
        // SAFETY: one thread.
        unsafe { out.write(0, own::CALLS.take()) }
    }

    let mut out = Buffer::new([0]);
    assert_eq!(waits(kernel(&mut out).grid(1)), ["", "vvvv"]);
    assert_eq!(out.to_vec(), [111]);
}

#[test]
fn a_barrier_and_a_yield_point_are_one_barrier_whatever_the_barrier_is_called() {
    use preempt_device as cuda_std;
    use preempt_device::thread::sync_threads as wait;

    #[preemptible(block = 1, idempotent)]
    fn kernel() {
        thread::sync_threads();
        yield_point!();
        cuda_std::thread::sync_threads();
        yield_point!();
        wait();
        yield_point!();
        let wait = cuda_std::thread::sync_threads;
        wait();
        yield_point!();
        thread::sync_threads();
    }

    assert_eq!(waits(kernel().grid(1)), ["bbbbb", "vvvvb"]);
}

#[test]
fn functions_of_the_block_may_be_called_under_any_path() {
    #[preemptible(block = 1, idempotent)]
    fn kernel() {
        for _ in 0..preempt_device::thread::block_dim().x {
            use preempt_device::thread as own;
            #[cfg(any())]
            let rounds = missing::grid_dim_x();
            let rounds = own::grid_dim_x() as usize * core::mem::size_of::<u16>();
            for _ in 0..rounds {
                thread::sync_threads();
                yield_point!();
            }
        }
    }

    assert_eq!(waits(kernel().grid(1)), ["bb", "vv"]);
}

#[preemptible(block = 1, idempotent)]
fn only_idempotent(out: *mut u32) {
    // SAFETY: one thread.
    unsafe { *out = 5 }
}

#[test]
fn a_kernel_without_yield_points_requeues_nothing() {
    let mut out = Buffer::new([0]);
    let call = only_idempotent(&mut out);
    assert!(!call.kernel().yields);
    assert_eq!(run_on_a_taken_sm(call.grid(1)), 0);
    assert_eq!(out.to_vec(), [5]);
}
