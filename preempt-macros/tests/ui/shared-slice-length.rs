use preempt_device::prelude::*;

#[preemptible]
fn of_a_variable(x: &[f32]) {
    let half = x.len() / 2;
    let tile = shared_slice![f32; half];
}

#[preemptible]
fn of_a_pointer(x: *const f32) {
    let tile = shared_slice![f32; x];
}

#[preemptible]
fn of_the_block() {
    let tile = shared_slice![f32; thread::block_dim_x()];
}

#[preemptible]
fn of_an_element(x: &[u32]) {
    let tile = shared_slice![f32; x[0]];
}

#[preemptible]
fn of_a_float(n: f32) {
    let tile = shared_slice![f32; 2.0 * n];
}

fn main() {}
