use preempt_device::prelude::*;

#[preemptible]
fn kernel(table: &'static [f32]) {}

fn main() {}
