use preempt_device::prelude::*;

use preempt_device::atomic::{AtomicU32, Ordering::Relaxed};

#[preemptible(block = 32)]
fn kernel(total: SliceMut<u32>) {
    unsafe { AtomicU32::from_ptr(total.as_mut_ptr()) }.fetch_add(1, Relaxed);
    yield_point!();
}

fn main() {}
