use preempt_device::prelude::*;

#[preemptible(block = 32)]
fn kernel(x: SliceMut<u32>) {
    for i in 0..8 {
        unsafe { x.write(i, x.read(i) + 1) };
        yield_point!();
    }
}

fn main() {}
