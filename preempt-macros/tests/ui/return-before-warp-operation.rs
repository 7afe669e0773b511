use preempt_device::prelude::*;

#[preemptible]
fn kernel(n: u32) {
    if thread::index_1d() >= n {
        return;
    }
    // SAFETY: wrong, since some threads may have returned.
    unsafe { warp::warp_shuffle_down(warp::FULL_MASK, n, 1, 32) };
}

fn main() {}
