use preempt_device::prelude::*;

#[preemptible]
fn kernel(one: &f32, four: &[f32; 4], text: &str, inside: Option<&f32>) {}

fn main() {}
