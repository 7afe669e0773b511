use preempt_device::prelude::*;

#[preemptible]
fn kernel(#[cfg(debug_assertions)] n: u32) {}

fn main() {}
