//! Kernels that are wrong.

use preempt_device::prelude::*;
use preempt_test_helpers::{sync_if, task_number};

use crate::{add, count};

/// Half of the threads of each block wait at a barrier that the other half never reaches: hangs
/// on the GPU, and is an error on the CPU device.
#[preemptible]
pub fn disagree(counts: SliceMut<u32>, writes: SliceMut<u32>) {
    sync_if(thread::thread_idx_x() < thread::block_dim_x() / 2);
    count(counts, writes);
}

/// `counts[task] += 1`, but the block-task `bad` panics before that.
#[preemptible]
pub fn panics(bad: u32, counts: SliceMut<u32>) {
    let task = task_number();
    if task == bad {
        panic!("block-task {task} panics, as it was asked to");
    }
    if thread::thread_number() == 0 {
        add(counts, task, 1);
    }
}
