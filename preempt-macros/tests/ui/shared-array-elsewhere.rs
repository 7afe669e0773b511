use preempt_device::prelude::*;

fn helper() -> *mut f32 {
    shared_array![f32; 16]
}

#[preemptible]
fn kernel() {
    fn inside() -> *mut f32 {
        shared_array![f32; 16]
    }
    let _ = (helper(), inside());
}

fn main() {}
