use preempt_device::prelude::*;

#[preemptible(block = 32)]
fn kernel(n: u32, out: SliceMut<u32>) {
    let shared = shared_array![u32; 32];
    if n > 3 {
        unsafe { shared.write(n) };
    }
    thread::sync_threads();
    unsafe { out.write(0, shared.read()) };
    thread::sync_threads();
    yield_point!();
}

fn main() {}
