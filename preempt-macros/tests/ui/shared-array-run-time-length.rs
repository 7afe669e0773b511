use preempt_device::prelude::*;

#[preemptible(block = 32)]
fn of_a_parameter(n: usize, out: SliceMut<f32>) {
    let tile = shared_array![f32; n];
}

#[preemptible(block = 32)]
fn of_a_slice(x: &[f32]) {
    let tile = shared_array![f32; x.len() + 2];
}

#[preemptible(block = 32)]
fn of_a_variable(x: &[f32]) {
    let half = x.len() / 2;
    let tile = shared_array![f32; half];
}

fn main() {}
