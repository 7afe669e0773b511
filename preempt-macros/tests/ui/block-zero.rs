use preempt_device::prelude::*;

#[preemptible(block = (16, 0))]
fn kernel() {}

fn main() {}
