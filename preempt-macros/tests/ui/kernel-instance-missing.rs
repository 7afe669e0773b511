use preempt_device::prelude::*;

#[preemptible(block = 32, instances(8, 16))]
fn filter<const N: usize>(weights: [f32; N]) {}

#[preemptible(block = 32, instances((8, true), (16, false)))]
fn sort<const N: usize, const DOWN: bool>() {}

fn of_any_size<const N: usize>(weights: [f32; N]) {
    let _ = filter(weights);
}

fn main() {
    let _ = filter([0.0; 8]);
    let _ = filter([0.0; 24]);
    let _ = sort::<8, false>();
    of_any_size([0.0; 8]);
}
