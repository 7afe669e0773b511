use preempt_device::prelude::*;

#[preemptible(block = 32)]
fn changes_a_number(n: u32, x: &[u32], out: SliceMut<u32>) {
    let mut sum = 0;
    checkpoint!(last: u32 = 0 => for i in 0..n {
        sum += x[i as usize];
        last = i;
    });
    unsafe { out.write(0, sum + last) };
}

#[preemptible(block = 32)]
fn changes_an_array(n: u32, x: &[u32], out: SliceMut<u32>) {
    let mut last = [0u32; 4];
    checkpoint!(sum: u32 = 0 => for i in 0..n {
        last.swap(0, 1);
        sum += x[i as usize];
    });
    unsafe { out.write(0, sum + last[0]) };
}

fn main() {}
