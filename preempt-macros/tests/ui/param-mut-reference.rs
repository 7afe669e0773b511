use preempt_device::prelude::*;

#[preemptible]
fn kernel(out: &mut [f32]) {}

fn main() {}
