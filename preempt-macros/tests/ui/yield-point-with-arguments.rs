use preempt_device::prelude::*;

#[preemptible(idempotent)]
fn kernel() {
    yield_point!("often");
}

fn main() {}
