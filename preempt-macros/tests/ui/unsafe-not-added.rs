use preempt_device::prelude::*;

#[preemptible]
fn kernel(out: SliceMut<u32>) {
    out.write(0, 1);
}

fn main() {}
