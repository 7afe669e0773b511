//! Kernels with yield points.

use preempt_device::prelude::*;
use preempt_test_helpers::task_number;

use crate::add;

/// Each thread leaves in `out[thread]` what `rounds` rounds of a generator make of its number:
/// `rounds` times `x * 1664525 + 1013904223` (wrapping), with a yield point in each.
///
/// Thread 0 of the block adds 1 to `starts[task]`, which tells how often the block-task was started
/// and is no result.
#[preemptible(idempotent)]
pub fn spin_yielding(starts: SliceMut<u32>, rounds: u32, out: SliceMut<u32>) {
    if thread::thread_number() == 0 {
        add(starts, task_number(), 1);
    }
    let mut x = thread::index();
    for _ in 0..rounds {
        yield_point!();
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    }
    // SAFETY: each thread writes its own element.
    unsafe { out.write(thread::index() as usize, x) };
}
