use preempt_device::prelude::*;

#[preemptible(idempotent)]
fn kernel() {
    yield_point!();
    thread::sync_threads();
}

fn main() {}
