//! Kernels whose launches decide how much shared memory a block has.

use preempt_device::prelude::*;

/// Reverses each run of `run` elements, a block for each.
#[preemptible]
pub fn reversed_runs(run: u32, x: &[u32], out: SliceMut<u32>) {
    let tile = shared_slice![u32; run];
    let (t, threads) = (thread::thread_idx_x() as usize, thread::block_dim_x() as usize);
    let start = thread::block_idx_x() as usize * tile.len();
    for at in (t..tile.len()).step_by(threads) {
        // SAFETY: one thread for each element.
        unsafe { tile.write(at, x[start + at]) };
    }
    thread::sync_threads();
    for at in (t..tile.len()).step_by(threads) {
        // SAFETY: the tile is not written any more, and there is one thread for each element of `out`.
        unsafe { out.write(start + at, tile.read(tile.len() - 1 - at)) };
    }
}

/// `out[block]` is the sum of `x`, of twice `width` twos, and of three times 65535. Each of the three has memory of its own,
/// which thread 0 fills before it reads any.
#[preemptible(block = 32)]
pub fn apart(width: i16, x: &[u8], out: SliceMut<u64>) {
    let words = shared_slice![u64; 2 * i64::from(width)];
    let bytes = shared_slice![u8; x.len()];
    let array = shared_array![u16; 3];
    if thread::thread_idx_x() == 0 {
        // SAFETY: one thread of the block.
        unsafe {
            (0..words.len()).for_each(|at| words.write(at, 2));
            (0..bytes.len()).for_each(|at| bytes.write(at, x[at]));
            (0..3).for_each(|at| array.add(at).write(u16::MAX));
            let mut sum = 0;
            (0..words.len()).for_each(|at| sum += words.read(at));
            (0..bytes.len()).for_each(|at| sum += u64::from(bytes.read(at)));
            (0..3).for_each(|at| sum += u64::from(array.add(at).read()));
            out.write(thread::block_idx_x() as usize, sum);
        }
    }
}
