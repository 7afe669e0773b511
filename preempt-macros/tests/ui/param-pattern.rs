use preempt_device::prelude::*;

#[preemptible]
fn kernel([a, b]: [u32; 2], _: u32) {}

fn main() {}
