use preempt_device::prelude::*;

#[preemptible(block)]
fn kernel() {}

fn main() {}
