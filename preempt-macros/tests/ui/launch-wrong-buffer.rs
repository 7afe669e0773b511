use preempt_device::prelude::*;

#[preemptible]
fn kernel(_a: &[f32], _out: SliceMut<f32>) {}

fn launch(vec: &Vec<f32>, out: &mut Vec<f32>) {
    let _ = kernel(vec, out);
}

fn main() {}
