use preempt_device::prelude::*;

struct Scale(f32);

impl Scale {
    #[preemptible]
    fn kernel(&self, out: SliceMut<f32>) {}
}

fn main() {}
