use preempt_device::prelude::*;

#[preemptible]
extern "C" fn kernel() {}

fn main() {}
