use preempt_device::prelude::*;

#[preemptible]
fn kernel(n: u32) -> u32 {
    n
}

fn main() {}
