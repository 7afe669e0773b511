use preempt_device::prelude::*;

#[preemptible(block = 32)]
fn keeps_a_reference(n: u32, x: &[u32], out: SliceMut<u32>) {
    checkpoint!(first: &'static u32 = &3 => for i in 0..n {});
    unsafe { out.write(0, *first + x[0]) };
}

fn main() {}
