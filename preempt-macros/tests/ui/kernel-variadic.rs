use preempt_device::prelude::*;

#[preemptible]
unsafe fn kernel(n: u32, _: ...) {}

fn main() {}
