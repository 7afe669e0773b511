//! Prefix sums of floating-point numbers (SHOC, Scan): sums of runs, a scan of these by one block, and a
//! scan of each run.

use preempt_device::prelude::*;
use preempt_device::warp::{FULL_MASK, lane_id, warp_shuffle_xor};

use crate::input::hash;
use crate::prefix::{TOP_WARPS, exclusive_from, inclusive_in_warp, scan_in_one_block};

/// Threads of the blocks of [`scan_reduce`] and [`scan_bottom`].
pub const BLOCK: u32 = 256;
/// Elements that a block reads at once: 4 for each thread.
pub const WINDOW: usize = 4 * BLOCK as usize;

const WARPS: usize = BLOCK as usize / 32;

/// Element `i` of the input: an integer from -8 to 8.
#[inline(always)]
pub const fn element(seed: u32, i: u32) -> f32 {
    (hash(seed, i) % 17) as f32 - 8.0
}

/// `out[i] = element(seed, i)`; the grid may be larger than `out`.
#[preemptible(block = 256)]
pub fn scan_fill(seed: u32, out: SliceMut<f32>) {
    let i = thread::index_1d();
    if (i as usize) < out.len() {
        // SAFETY: each thread writes its own element.
        unsafe { out.write(i as usize, element(seed, i)) }
    }
}

/// Four elements, which the GPU reads and writes at once.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Four([f32; 4]);

/// Elements `i` to `i + 3` of `input`, and 0 for those past its end.
///
/// # Safety
///
/// `i` is a multiple of 4, and `input` is aligned to 16 bytes.
#[inline(always)]
unsafe fn four(input: &[f32], i: usize) -> Four {
    let (length, input) = (input.len(), input.as_ptr());
    let mut four = Four([0.0; 4]);
    // SAFETY: below the length, and aligned by the caller's promise.
    unsafe {
        if i + 4 <= length {
            four = input.add(i).cast::<Four>().read();
        } else if i < length {
            four.0[0] = *input.add(i);
            if i + 1 < length {
                four.0[1] = *input.add(i + 1);
            }
            if i + 2 < length {
                four.0[2] = *input.add(i + 2);
            }
        }
    }
    four
}

/// Sums each run of `windows` times [`WINDOW`] elements into `sums`, one block-task for each run. `input`
/// is aligned to 16 bytes.
#[preemptible(block = 256)]
pub fn scan_reduce(input: &[f32], windows: u32, sums: SliceMut<f32>) {
    let totals = shared_array![f32; WARPS];
    let (t, lane) = (thread::thread_idx_x() as usize, lane_id());
    assert!(input.as_ptr().cast::<Four>().is_aligned());
    let mut i = thread::block_idx_x() as usize * windows as usize * WINDOW + t * 4;
    let mut sum = 0.0;
    let mut window = 0;
    while window < windows {
        // SAFETY: a multiple of 4, and aligned.
        let Four([a, b, c, d]) = unsafe { four(input, i) };
        sum += (a + b) + (c + d);
        i += WINDOW;
        window += 1;
    }
    let mut distance = 16;
    while distance > 0 {
        // SAFETY: all lanes come here.
        sum += unsafe { warp_shuffle_xor(FULL_MASK, sum, distance, 32).0 };
        distance /= 2;
    }
    if lane == 0 {
        // SAFETY: one thread for each warp.
        unsafe { totals.add(t / 32).write(sum) };
    }
    thread::sync_threads();
    if t == 0 {
        let (mut sum, mut warp) = (0.0, 0);
        while warp < WARPS {
            // SAFETY: in bounds, and written before the barrier.
            sum += unsafe { totals.add(warp).read() };
            warp += 1;
        }
        // SAFETY: each block-task has its own element.
        unsafe { sums.write(thread::block_idx_x() as usize, sum) };
    }
}

/// `carries[i] = sums[0] + ... + sums[i - 1]`: what comes before each run. A grid of 1.
#[preemptible(block = 1024)]
pub fn scan_top(sums: &[f32], carries: SliceMut<f32>) {
    let totals = shared_array![f32; TOP_WARPS];
    // SAFETY: all threads of the only block call, with shared memory for nothing else.
    unsafe { scan_in_one_block(sums, carries, totals) };
}

/// `out[i] = input[0] + ... + input[i]`, one block-task for each run as in [`scan_reduce`]; `carries[task]`
/// is what comes before. `input` and `out` are aligned to 16 bytes.
#[preemptible(block = 256)]
pub fn scan_bottom(input: &[f32], carries: &[f32], windows: u32, out: SliceMut<f32>) {
    // For even windows and for odd ones, so that one barrier for each is enough.
    let totals = shared_array![f32; 2 * WARPS];
    let (t, lane) = (thread::thread_idx_x() as usize, lane_id());
    let warp = t / 32;
    let (length, out) = (out.len(), out.as_mut_ptr());
    assert!(input.len() == length && out.cast::<Four>().is_aligned());
    assert!(input.as_ptr().cast::<Four>().is_aligned());
    let mut carry = carries[thread::block_idx_x() as usize];
    let mut i = thread::block_idx_x() as usize * windows as usize * WINDOW + t * 4;
    let mut window = 0;
    while window < windows {
        // SAFETY: `i` is a multiple of 4, and everything is aligned. Each warp writes its own total, and
        // others read it after the barrier; it writes it again after the next window's barrier. All lanes
        // execute all shuffles. Each thread writes its own elements, below the length.
        unsafe {
            let Four([a, b, c, d]) = four(input, i);
            let (ab, abc) = (a + b, a + b + c);
            let inclusive = inclusive_in_warp(abc + d);
            let mut before = carry + exclusive_from(inclusive);
            let totals = totals.add(window as usize % 2 * WARPS);
            if lane == 31 {
                totals.add(warp).write(inclusive);
            }
            thread::sync_threads();
            let mut other = 0;
            while other < WARPS {
                let total = totals.add(other).read();
                carry += total;
                if other < warp {
                    before += total;
                }
                other += 1;
            }
            let sums = Four([before + a, before + ab, before + abc, before + (abc + d)]);
            if i + 4 <= length {
                out.add(i).cast::<Four>().write(sums);
            } else if i < length {
                out.add(i).write(sums.0[0]);
                if i + 1 < length {
                    out.add(i + 1).write(sums.0[1]);
                }
                if i + 2 < length {
                    out.add(i + 2).write(sums.0[2]);
                }
            }
        }
        i += WINDOW;
        window += 1;
    }
}
