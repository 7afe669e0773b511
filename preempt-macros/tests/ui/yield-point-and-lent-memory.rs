use preempt_device::prelude::*;

#[preemptible(block = 32)]
fn kernel(out: SliceMut<u32>) {
    let first = unsafe { &mut *out.as_mut_ptr() };
    yield_point!();
    *first += 1;
}

fn main() {}
