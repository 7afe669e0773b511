// The warnings, as errors.
#![deny(deprecated)]

use preempt_device::prelude::*;

#[preemptible(explain)]
fn doubles(n: u32, x: &[f32], out: SliceMut<f32>) {
    for i in 0..n as usize {
        yield_point!();
        unsafe { out.write(i, 2.0 * x[i]) };
    }
}

#[preemptible(explain)]
fn doubles_in_place(n: u32, x: SliceMut<f32>) {
    let mut sum = 0.0;
    for i in 0..n as usize {
        yield_point!();
        sum += unsafe { x.read(i) };
    }
    unsafe { x.write(0, sum) };
}

#[preemptible(explain)]
fn counts(n: u32, out: SliceMut<u32>) {
    checkpoint!(sum: u32 = 0 => for _ in 0..n {
        sum += 1;
    });
    unsafe { out.write(thread::index_1d() as usize, sum) };
}

#[preemptible(explain, idempotent)]
fn counts_on(n: u32, out: SliceMut<u32>) {
    let first = unsafe { out.read(0) };
    checkpoint!(sum: u32 = first => for _ in 0..n {
        sum += 1;
    });
    unsafe { out.write(thread::index_1d() as usize, sum) };
}

fn main() {}
