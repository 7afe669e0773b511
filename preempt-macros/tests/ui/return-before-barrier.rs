use preempt_device::prelude::*;

#[preemptible]
fn kernel(n: u32) {
    if thread::index_1d() >= n {
        return;
    }
    thread::sync_threads();
}

fn main() {}
