use preempt_device::prelude::*;

#[preemptible(block = 256, block = 128)]
fn kernel() {}

fn main() {}
