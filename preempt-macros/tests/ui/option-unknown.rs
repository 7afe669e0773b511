use preempt_device::prelude::*;

#[preemptible(blocks = 256, amortise = 4)]
fn kernel() {}

fn main() {}
