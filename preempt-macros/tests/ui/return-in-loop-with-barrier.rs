use preempt_device::prelude::*;

#[preemptible]
fn kernel(n: u32) {
    for i in 0..n {
        thread::sync_threads();
        if i == thread::thread_idx_x() {
            return;
        }
    }
}

fn main() {}
