use preempt_device::prelude::*;

#[preemptible(explain)]
fn kernel() {}

fn main() {}
