//! The kernels that `preempt-bench` measures with.
//!
//! Those that count leave a proof that each block-task ran once. In those for the CPU device, thread 0
//! does the work of its block, since that device plays the threads one after the other.

use preempt_device::atomic::{AtomicU32, Ordering::Relaxed};
use preempt_device::prelude::*;
use preempt_device::time::{global_timer, nanosleep};

mod hash;
mod spin;

pub use hash::{fails, hash_in_place, hash_whole, hash_yielding, hashed};
pub use spin::{Stamp, answer, busy, mark, spin, spin_yielding, stamp};

/// What [`occupy`] leaves to spinning: a host thread may sleep this much too long.
const SPIN_NANOS: u64 = 200_000;

/// Adds 1 to `counts[task]`, atomically: what runs twice shows.
#[inline(always)]
fn count_task(counts: SliceMut<u32>) {
    let task = thread::block_idx_x() as usize;
    assert!(task < counts.len());
    // SAFETY: in bounds, and all kernels here access counts atomically.
    unsafe { AtomicU32::from_ptr(counts.as_mut_ptr().add(task)) }.fetch_add(1, Relaxed);
}

/// Nothing.
#[preemptible]
pub fn empty() {}

/// `counts[task] += 1`, in grids of one dimension.
#[preemptible]
pub fn count(counts: SliceMut<u32>) {
    if thread::thread_number() == 0 {
        count_task(counts);
    }
}

/// `counts[task] += 1`, in grids of one dimension, `nanos` nanoseconds after the block-task
/// started: it sleeps for a part of what is left, and spins at the end.
///
/// The sleep is for the CPU device: its SMs are occupied, but the processors that they share with
/// the host's threads are not. A GPU's `nanosleep` takes up to twice what it is asked for.
#[preemptible]
pub fn occupy(counts: SliceMut<u32>, nanos: u64) {
    if thread::thread_number() == 0 {
        let start = global_timer();
        loop {
            let left = nanos.saturating_sub(global_timer() - start);
            if left == 0 {
                break;
            }
            if left > SPIN_NANOS {
                nanosleep((left / 4).min(1_000_000) as u32);
            }
        }
        count_task(counts);
    }
}

/// Nanoseconds that a block-task of [`uneven`] takes: from half of `mean` to one and a half times as long.
fn uneven_nanos(mean: u64, task: u32) -> u64 {
    // The upper bits of the hash are the better ones (Knuth 1998, section 6.4).
    let part = u64::from(task.wrapping_mul(0x9E37_79B9) >> 22);
    mean / 2 + mean * part / 1024
}

/// `counts[task] += 1`, in grids of one dimension, after a time that differs from block-task to block-task: `mean`
/// nanoseconds on average.
#[preemptible(amortize = 1)]
pub fn uneven(mean: u64, counts: SliceMut<u32>) {
    let (start, takes) = (global_timer(), uneven_nanos(mean, thread::block_idx_x()));
    while global_timer() - start < takes {
        nanosleep(HOLD_NAP_NANOS);
    }
    if thread::thread_number() == 0 {
        count_task(counts);
    }
}

/// As [`uneven`], with a yield point in the loop, and `done[task] = ticket` in the end: other threads may drop a
/// block-task whose first thread has done its part.
#[preemptible(amortize = 1, idempotent)]
pub fn uneven_yielding(mean: u64, ticket: u32, done: SliceMut<u32>) {
    let (start, takes) = (global_timer(), uneven_nanos(mean, thread::block_idx_x()));
    while global_timer() - start < takes {
        yield_point!();
        nanosleep(HOLD_NAP_NANOS);
    }
    let task = thread::block_idx_x() as usize;
    if thread::thread_number() == 0 && task < done.len() {
        // SAFETY: in bounds, and the block-task's own element.
        unsafe { done.write(task, ticket) };
    }
}

/// The longest sleep in [`uneven`] and [`hold`]: a block-task ends as much too late at most, and in `hold` writes to memory
/// no more often.
const HOLD_NAP_NANOS: u32 = 200;

/// Nanoseconds of a round of [`hold_in_rounds`]: a block leaves as much later at most. Shorter ones would have the barrier and
/// the checkpoint be a part of what a block-task takes.
pub const HOLD_ROUND_NANOS: u32 = 2000;

/// How long block-tasks of [`hold`] at one place held their SMs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, KernelArg)]
#[repr(C)]
pub struct Held {
    /// Nanoseconds, also of block-tasks that left at their yield point.
    pub nanos: u64,
    /// Block-tasks that began.
    pub begun: u64,
    /// Block-tasks that came to their end.
    pub ended: u64,
}

/// Holds its place on an SM for `nanos` nanoseconds, in grids of one dimension. Adds to `held[task]`, also if it leaves
/// earlier, at its yield point.
///
/// Two blocks of 1024 threads leave no room on an SM of a GPU. The CPU device plays threads one after the other, so a block
/// of one thread is for that.
#[preemptible(amortize = 1, idempotent)]
pub fn hold(nanos: u64, held: SliceMut<Held>) {
    let start = global_timer();
    let task = thread::block_idx_x() as usize;
    assert!(task < held.len());
    // A block has its place until its last thread ends. More threads would only keep others from the SM's instructions, and
    // from the timer, which all SMs share.
    if thread::thread_number() == 0 {
        // SAFETY: in bounds, and thread 0 alone accesses the block-task's own element.
        let mut own = unsafe { held.as_mut_ptr().add(task).read() };
        own.begun += 1;
        let before = own.nanos;
        while global_timer() - start < nanos {
            own.nanos = before + (global_timer() - start).min(nanos);
            // SAFETY: as above.
            unsafe { held.write(task, own) };
            yield_point!();
            nanosleep(HOLD_NAP_NANOS);
        }
        (own.nanos, own.ended) = (before + nanos, own.ended + 1);
        // SAFETY: as above.
        unsafe { held.write(task, own) };
    }
}

/// Holds its place on an SM for `rounds` rounds, then `counts[task] += 1`, in grids of one dimension. A block that leaves at
/// the checkpoint has lost nothing: its block-task goes on with the next round.
///
/// As with [`hold`], blocks of 1024 threads fill a GPU, and blocks of one thread the CPU device.
#[preemptible(amortize = 1)]
pub fn hold_in_rounds(rounds: u32, counts: SliceMut<u32>) {
    checkpoint!(nothing: () = () => for _round in 0..rounds {
        // The others wait at the barrier, where they take no instructions of the SM.
        if thread::thread_number() == 0 {
            let start = global_timer();
            while global_timer() - start < u64::from(HOLD_ROUND_NANOS) {
                nanosleep(HOLD_NAP_NANOS);
            }
        }
        thread::sync_threads();
    });
    if thread::thread_number() == 0 {
        count_task(counts);
    }
}
