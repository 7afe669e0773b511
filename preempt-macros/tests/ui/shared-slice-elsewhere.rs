use preempt_device::prelude::*;

#[preemptible]
fn in_a_function_inside(n: u32) {
    fn helper(n: u32) {
        let tile = shared_slice![f32; n];
    }
}

fn outside(n: u32) {
    let tile = shared_slice![f32; n];
}

fn main() {}
