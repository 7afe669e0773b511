//! Did every block-task, and every thread of it, run exactly once? Block-tasks of the *paced* kernels take
//! a while even on a GPU: each thread first spins for `ticks` of its SM's clock.

use preempt_device::prelude::*;
use preempt_device::time::clock64;
use preempt_test_helpers::task_number;

use crate::{add, count};

/// `counts[task] += 1` once for each block-task, `writes[thread] += 1` once for each thread.
#[preemptible]
pub fn count_1d(counts: SliceMut<u32>, writes: SliceMut<u32>) {
    count(counts, writes);
}

#[inline(always)]
fn spin(ticks: u64) {
    // On a CPU device a look at the clock takes longer than what else a thread does here.
    if ticks == 0 {
        return;
    }
    let start = clock64();
    while clock64().wrapping_sub(start) < ticks {}
}

/// [`count_1d`], paced.
#[preemptible]
pub fn paced_1d(ticks: u64, counts: SliceMut<u32>, writes: SliceMut<u32>) {
    spin(ticks);
    count(counts, writes);
}

/// [`paced_1d`] for grids and blocks of two dimensions.
#[preemptible]
pub fn paced_2d(ticks: u64, counts: SliceMut<u32>, writes: SliceMut<u32>) {
    spin(ticks);
    let at = thread::index_2d();
    let width = thread::grid_dim_x() * thread::block_dim_x();
    let height = thread::grid_dim_y() * thread::block_dim_y();
    assert!(at.x < width && at.y < height);
    count(counts, writes);
}

/// [`paced_1d`] for grids and blocks of three dimensions.
#[preemptible]
pub fn paced_3d(ticks: u64, counts: SliceMut<u32>, writes: SliceMut<u32>) {
    spin(ticks);
    let at = thread::index_3d();
    assert!(at.z < thread::grid_dim_z() * thread::block_dim_z());
    count(counts, writes);
}

/// Counts as [`paced_1d`] does, and reverses and sums through shared memory:
/// `reversed[thread] += task + 255 - t` and `sums[task] += 256 * task + 32640`, where `t` is the
/// thread's number in its block. A task that meets what another left in shared memory shows.
#[preemptible(block = 256)]
pub fn paced_shared(
    ticks: u64,
    counts: SliceMut<u32>,
    writes: SliceMut<u32>,
    reversed: SliceMut<u32>,
    sums: SliceMut<u32>,
) {
    spin(ticks);
    reverse_and_sum(shared_array![u32; 256], reversed, sums);
    count(counts, writes);
}

/// What [`paced_shared`] does beside counting, with 256 elements of shared memory.
#[inline(always)]
fn reverse_and_sum(values: *mut u32, reversed: SliceMut<u32>, sums: SliceMut<u32>) {
    let t = thread::thread_idx_x() as usize;
    let task = task_number();
    // SAFETY: `t` and what is computed from it is below 256, and barriers lie between an
    // element's write by one thread and its read by another.
    unsafe {
        values.add(t).write(task + t as u32);
        thread::sync_threads();
        add(reversed, thread::index(), values.add(255 - t).read());
        thread::sync_threads();
        let mut half = 128;
        while half > 0 {
            if t < half {
                let sum = values.add(t).read() + values.add(t + half).read();
                values.add(t).write(sum);
            }
            thread::sync_threads();
            half /= 2;
        }
        if t == 0 {
            add(sums, task, values.read());
        }
    }
}

/// Thread 0 counts every task. Tasks whose number is a multiple of 3 then return, and in the
/// others the threads with an odd number do; `writes[thread] += 1` for those that remain.
#[preemptible]
pub fn paced_early_return(ticks: u64, counts: SliceMut<u32>, writes: SliceMut<u32>) {
    if thread::thread_number() == 0 {
        add(counts, task_number(), 1);
    }
    spin(ticks);
    if task_number().is_multiple_of(3) {
        return;
    }
    if thread::thread_number() % 2 == 1 {
        return;
    }
    add(writes, thread::index(), 1);
}

/// Counts as [`paced_1d`] does, after a time that is `rounds[task]` times as long; each thread leaves
/// in `ends[thread]` what `rounds[task]` rounds of a generator make of its number: from `thread`,
/// `x * 1664525 + 1013904223` (wrapping).
#[preemptible]
pub fn paced_irregular(
    ticks: u64,
    counts: SliceMut<u32>,
    writes: SliceMut<u32>,
    rounds: &[u32],
    ends: SliceMut<u32>,
) {
    let mut x = thread::index();
    for _ in 0..rounds[task_number() as usize] {
        spin(ticks);
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    }
    // SAFETY: each thread writes its own element.
    unsafe { ends.write(thread::index() as usize, x) };
    count(counts, writes);
}
