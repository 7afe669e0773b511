use preempt_device::prelude::*;

#[preemptible(idempotent = true)]
fn kernel() {}

fn main() {}
