use preempt_device::prelude::*;

#[preemptible]
fn map(f: fn(f32) -> f32, x: &[f32]) {}

#[preemptible]
fn map_all(f: &[fn(f32) -> f32], x: &[f32]) {}

#[preemptible]
fn map_boxed(f: Box<dyn Fn(f32) -> f32>, x: &[f32]) {}

fn main() {}
