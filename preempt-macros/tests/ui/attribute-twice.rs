use preempt_device::prelude::*;

#[preemptible(block = 32)]
#[preemptible(idempotent)]
fn k(x: &[f32]) {}

#[preempt_device::preemptible(block = 32)]
#[preempt_device::preemptible(block = 32)]
fn with_paths(x: &[f32]) {}

fn main() {}
