use preempt_device::prelude::*;

#[preemptible(block = 32)]
fn kernel(out: SliceMut<u32>) {
    yield_point!();
    unsafe { out.write(thread::sm_id() as usize, 1) };
}

fn main() {}
