use preempt_device::prelude::*;

#[preemptible(idempotent)]
fn kernel(out: SliceMut<u32>) {
    let t = thread::thread_idx_x();
    let mut left = t;
    while left > 0 {
        yield_point!();
        left -= 1;
    }
    thread::sync_threads();
    // SAFETY: one element for each thread.
    unsafe { out.write(t as usize, left) }
}

fn main() {}
