use preempt_device::prelude::*;

#[preemptible(block = (32, 32, 2))]
fn kernel() {}

fn main() {}
