//! The kernels of `counting`, with block-tasks that take a while even on a GPU: each thread first spins
//! for `ticks` of its SM's clock.

use preempt_device::prelude::*;
use preempt_device::time::clock64;
use preempt_test_helpers::task_number;

use crate::counting::reverse_and_sum;
use crate::{add, count};

#[inline(always)]
fn spin(ticks: u64) {
    let start = clock64();
    while clock64().wrapping_sub(start) < ticks {}
}

/// `count_1d`
#[preemptible]
pub fn paced_1d(ticks: u64, counts: SliceMut<u32>, writes: SliceMut<u32>) {
    spin(ticks);
    count(counts, writes);
}

/// `count_2d`
#[preemptible]
pub fn paced_2d(ticks: u64, counts: SliceMut<u32>, writes: SliceMut<u32>) {
    spin(ticks);
    let at = thread::index_2d();
    let width = thread::grid_dim_x() * thread::block_dim_x();
    let height = thread::grid_dim_y() * thread::block_dim_y();
    assert!(at.x < width && at.y < height);
    count(counts, writes);
}

/// `count_3d`
#[preemptible]
pub fn paced_3d(ticks: u64, counts: SliceMut<u32>, writes: SliceMut<u32>) {
    spin(ticks);
    let at = thread::index_3d();
    assert!(at.z < thread::grid_dim_z() * thread::block_dim_z());
    count(counts, writes);
}

/// `count_shared`
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

/// `count_early_return`
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

/// Counts as `count_1d` does, after a time that is `rounds[task]` times as long; each thread
/// leaves in `ends[thread]` what `rounds[task]` rounds of a generator make of its number (see
/// `count_irregular`).
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
