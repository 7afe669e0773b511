use preempt_device::prelude::*;

#[preemptible(idempotent)]
fn kernel(n: u32, out: SliceMut<u32>) {
    let mut sum = n;
    for _ in 0..n {
        // SAFETY: all lanes take part.
        sum += unsafe { warp::warp_shuffle_xor(u32::MAX, sum, 1, 32) }.0;
        if sum > 100 {
            break;
        }
        preempt_device::yield_point!();
    }
    // SAFETY: one element for each thread.
    unsafe { out.write(thread::index() as usize, sum) }
}

fn main() {}
