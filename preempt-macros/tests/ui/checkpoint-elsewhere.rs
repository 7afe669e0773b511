use preempt_device::prelude::*;

fn helper(n: u32) {
    checkpoint!(sum: u32 = 0 => for i in 0..n { sum += i; });
}

#[preemptible(block = 32)]
fn in_a_closure(n: u32) {
    let count = || {
        checkpoint!(sum: u32 = 0 => for i in 0..n { sum += i; });
    };
    count();
}

#[preemptible(block = 32)]
fn in_a_loop(n: u32) {
    for _ in 0..n {
        checkpoint!(sum: u32 = 0 => for i in 0..n { sum += i; });
    }
}

fn main() {}
