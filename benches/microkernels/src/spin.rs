//! Kernels of known length for GPUs: their block-tasks spin on the SM's clock, which tells more than
//! `global_timer` and costs nothing.
//!
//! Blocks of 1024 threads leave no room on an SM for another one where two of them are resident.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use preempt_device::prelude::*;
use preempt_device::time::{clock64, global_timer, nanosleep};

use crate::count_task;

/// What [`spin`] and [`spin_yielding`] leave of a block-task; never 0.
#[inline(always)]
pub const fn mark(task: u32) -> u32 {
    task.wrapping_mul(0x9E37_79B9) | 1
}

/// The longest sleep of a warp that only keeps its place: it ends as much too late at most.
const NAP_NANOS: u32 = 200;

/// Waits for `ticks`, with every warp of the block, since others could have the place of one that has
/// ended. The first warp spins; the others sleep, for otherwise nothing else on the SM would get to
/// run its instructions.
#[inline(always)]
fn spin_for(ticks: u64) {
    let start = clock64();
    while clock64().wrapping_sub(start) < ticks {
        nap();
    }
}

#[inline(always)]
fn nap() {
    if thread::thread_number() >= 32 {
        nanosleep(NAP_NANOS);
    }
}

/// Writes the block-task's mark.
#[inline(always)]
fn write_mark(marks: SliceMut<u32>) {
    let task = thread::block_idx_x();
    assert!((task as usize) < marks.len());
    // SAFETY: in bounds, and the block-task's own element.
    unsafe { marks.write(task as usize, mark(task)) };
}

/// Spins for `ticks` of the clock. Then `runs[task] += 1` and `marks[task] = mark(task)`, in grids of
/// one dimension.
#[preemptible(block = 1024)]
pub fn spin(ticks: u64, runs: SliceMut<u32>, marks: SliceMut<u32>) {
    spin_for(ticks);
    if thread::thread_number() == 0 {
        count_task(runs);
        write_mark(marks);
    }
}

/// As [`spin`], with a yield point in the loop. It counts in `runs[task]` how often the block-task was
/// started, which is no result.
#[preemptible(block = 1024, idempotent)]
pub fn spin_yielding(ticks: u64, runs: SliceMut<u32>, marks: SliceMut<u32>) {
    let start = clock64();
    if thread::thread_number() == 0 {
        count_task(runs);
    }
    while clock64().wrapping_sub(start) < ticks {
        yield_point!();
        nap();
    }
    if thread::thread_number() == 0 {
        write_mark(marks);
    }
}

/// As [`spin`] without marks, and with any block.
#[preemptible]
pub fn busy(ticks: u64, runs: SliceMut<u32>) {
    spin_for(ticks);
    if thread::thread_number() == 0 {
        count_task(runs);
    }
}

/// `done[task] = ticket`, visible to the host at once where `done` is host memory.
#[preemptible(block = 1024)]
pub fn answer(ticket: u32, done: SliceMut<u32>) {
    if thread::thread_number() == 0 {
        let task = thread::block_idx_x() as usize;
        assert!(task < done.len());
        // SAFETY: in bounds, and accessed atomically.
        unsafe { AtomicU32::from_ptr(done.as_mut_ptr().add(task)) }.store(ticket, Relaxed);
    }
}

/// Where and when a block-task ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug, KernelArg)]
#[repr(C)]
pub struct Stamp {
    /// The SM.
    pub sm: u64,
    /// Nanoseconds of the clock that all SMs share.
    pub start: u64,
    /// The same at the end.
    pub end: u64,
}

/// Leaves a stamp of each block-task, which spins for `ticks`. The signal is looked at before each.
#[preemptible(block = 1024, amortize = 1)]
pub fn stamp(ticks: u64, stamps: SliceMut<Stamp>) {
    let start = global_timer();
    spin_for(ticks);
    if thread::thread_number() == 0 {
        let stamp = Stamp { sm: u64::from(thread::sm_id()), start, end: global_timer() };
        let task = thread::block_idx_x() as usize;
        assert!(task < stamps.len());
        // SAFETY: in bounds, and the block-task's own element.
        unsafe { stamps.write(task, stamp) };
    }
}
