use preempt_device::prelude::*;

#[preemptible]
fn kernel() {
    let _tile = shared_array![f32];
}

fn main() {}
