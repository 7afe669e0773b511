use preempt_device::prelude::*;

const ROUNDS: u32 = 30;

#[preemptible(block = 32)]
fn in_the_first_state(x: &[u32], out: SliceMut<u32>) {
    let mut k = 1;
    checkpoint!(sum: u32 = { k = 1000; x[0] } => for _ in 0..ROUNDS {
        sum = sum.wrapping_add(k);
    });
    unsafe { out.write(0, sum) };
}

#[preemptible(block = 32)]
fn in_the_first_bound(out: SliceMut<u32>) {
    let mut k = 1;
    checkpoint!(sum: u32 = 0 => for _ in { k = 1000; 0 }..ROUNDS {
        sum = sum.wrapping_add(k);
    });
    unsafe { out.write(0, sum) };
}

#[preemptible(block = 32)]
fn in_the_last_bound(mut k: u32, out: SliceMut<u32>) {
    checkpoint!(sum: u32 = 0 => for _ in 0..({ k += 1; ROUNDS }) {
        sum = sum.wrapping_add(k);
    });
    unsafe { out.write(0, sum) };
}

#[preemptible(block = 32)]
fn ahead_of_a_condition(mut k: u32, out: SliceMut<u32>) {
    checkpoint!(left: u32 = { k += 1; ROUNDS } => while left > k {
        left -= 1;
    });
    unsafe { out.write(0, left) };
}

fn main() {}
