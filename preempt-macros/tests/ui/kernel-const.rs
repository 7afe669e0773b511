use preempt_device::prelude::*;

#[preemptible]
const fn kernel() {}

fn main() {}
