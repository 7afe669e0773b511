use preempt_device::prelude::*;

use core::sync::atomic::AtomicU32;

static COUNT: AtomicU32 = AtomicU32::new(0);
static mut LAST: u32 = 0;

#[preemptible(block = 32)]
fn counts(out: SliceMut<u32>) {
    yield_point!();
    let count = COUNT;
    unsafe { out.write(0, 1) };
}

#[preemptible(block = 32)]
fn remembers(out: SliceMut<u32>) {
    yield_point!();
    unsafe { out.write(0, LAST) };
}

fn main() {}
