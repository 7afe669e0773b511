use preempt_device::prelude::*;

fn store(out: SliceMut<u32>) {
    unsafe { out.write(0, 1) };
}

fn step(x: u32) -> u32 {
    x + 1
}

#[preemptible(block = 32)]
fn passes_memory(out: SliceMut<u32>) {
    store(out);
    yield_point!();
}

#[preemptible(block = 32)]
fn passes_numbers(x: &[u32], out: SliceMut<u32>) {
    yield_point!();
    unsafe { out.write(0, step(x[0])) };
}

fn main() {}
