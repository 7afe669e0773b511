use preempt_device::prelude::*;

#[preemptible(block = 32)]
fn kernel(n: u32) {
    for _ in 0..n {
        yield_point!();
    }
}

fn main() {}
