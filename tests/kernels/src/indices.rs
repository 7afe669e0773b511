//! Do helper functions see the block-task's indices? And where does each task run?

use preempt_device::prelude::*;
use preempt_test_helpers::task_number;

/// `sms[task]` is the SM that the task ran on.
#[preemptible]
pub fn sm_of_task(sms: SliceMut<u32>) {
    if thread::thread_number() == 0 {
        // SAFETY: one thread of each task writes its element.
        unsafe { sms.write(task_number() as usize, thread::sm_id()) };
    }
}

#[inline(always)]
fn task_number_here() -> u32 {
    let (block, grid) = (thread::block_idx(), thread::grid_dim());
    (block.z * grid.y + block.y) * grid.x + block.x
}

#[inline(always)]
fn apply<T>(function: impl Fn() -> T) -> T {
    function()
}

#[inline(always)]
fn widened<T: From<u32>>() -> T {
    T::from(task_number_here())
}

/// The task's number as three helpers compute it: `here[thread]` by a function of this crate,
/// `there[thread]` by one of another crate, `generic[thread]` by generic functions.
#[preemptible]
pub fn helper_indices(here: SliceMut<u32>, there: SliceMut<u32>, generic: SliceMut<u64>) {
    let at = thread::index() as usize;
    // SAFETY: each thread writes its own elements.
    unsafe {
        here.write(at, task_number_here());
        there.write(at, apply(task_number));
        generic.write(at, apply(widened::<u64>));
    }
}

/// Each thread adds its element of `input`, or 1 if that is null, to its element of `out`, if that is not null;
/// `seen[thread]` is 1 if there is an input, and 2 more if there is an output. Both have an element for
/// each thread or none.
#[preemptible]
pub fn optional(input: *const u32, out: *mut u32, seen: SliceMut<u32>) {
    let i = thread::index() as usize;
    // SAFETY: an element of each that is there belongs to this thread.
    unsafe {
        let value = if input.is_null() { 1 } else { input.add(i).read() };
        if !out.is_null() {
            *out.add(i) += value;
        }
        seen.write(i, u32::from(!input.is_null()) + 2 * u32::from(!out.is_null()));
    }
}
