use preempt_device::prelude::*;

#[preemptible(idempotent)]
fn kernel(n: u32) {
    (0..n).for_each(|_| {
        yield_point!();
    });
}

fn main() {}
