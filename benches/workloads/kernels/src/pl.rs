//! A particle filter that follows an object through a video (Rodinia, `particlefilter`, single precision):
//! the kernels of one frame. The video, and what is computed for
//! one particle, is in [`model`].

use preempt_device::prelude::*;
use preempt_device::warp::{FULL_MASK, warp_shuffle_idx, warp_shuffle_up};

pub mod model;

use model::{Frame, Point, cut, moved, weight};

/// Threads of a block.
pub const BLOCK: usize = 128;

/// Threads of the block of [`cumulative_sums`].
pub const SCAN_BLOCK: usize = 1024;
/// Neighbours that a thread of [`cumulative_sums`] adds up.
pub const SCAN_RUN: usize = 4;
/// Weights that [`cumulative_sums`] adds up at a time; its output's length is a multiple of it.
pub const SCAN: usize = SCAN_BLOCK * SCAN_RUN;

/// Cumulative sums that [`find_index`] searches between two yield points.
const SEARCH: usize = 256;

/// Moves each particle by chance, and weighs it by how much the frame looks like the object there. `sums` has
/// the sum of the weights of each block-task.
///
/// `from` and `to` are positions: x of all particles, and then y of all of them.
#[preemptible(block = 128)]
pub fn likelihood_kernel(
    frame: Frame,
    video: &[u8],
    disc: &[Point],
    from: &[f32],
    to: SliceMut<f32>,
    weights: SliceMut<f32>,
    sums: SliceMut<f32>,
) {
    let partial = shared_array![f32; BLOCK];
    let (i, t) = (thread::index_1d() as usize, thread::thread_idx_x() as usize);
    let particles = weights.len();
    let mut mine = 0.0;
    if i < particles {
        let (x, y) = moved(frame, i as u32, from[i], from[particles + i]);
        mine = weight(video, frame, disc, (x, y), particles);
        // SAFETY: each thread writes its own elements.
        unsafe {
            to.write(i, x);
            to.write(particles + i, y);
            weights.write(i, mine);
        }
    }
    // SAFETY: all threads of the block come here, and one writes each element of `sums`.
    unsafe {
        add_up(partial, t, mine);
        if t == 0 {
            sums.write(thread::block_idx_x() as usize, partial.read());
        }
    }
}

/// Thread 0 finds the sum of what the threads of a block give, `mine` of thread `t`, in `partial[0]`.
///
/// # Safety
///
/// Every thread of the block calls this, with [`BLOCK`] elements of shared memory that no other call uses meanwhile.
#[inline(always)]
unsafe fn add_up(partial: *mut f32, t: usize, mine: f32) {
    // SAFETY: `t` is below `BLOCK`, and so is `t + stride` where it is read. Barriers lie between writes and
    // reads of different threads.
    unsafe {
        partial.add(t).write(mine);
        let mut stride = BLOCK / 2;
        while stride > 0 {
            thread::sync_threads();
            if t < stride {
                partial.add(t).write(partial.add(t).read() + partial.add(t + stride).read());
            }
            stride /= 2;
        }
    }
}

/// `sum[0]` is the sum of all of `sums`. One block.
#[preemptible(block = 128)]
pub fn sum_kernel(sums: &[f32], sum: SliceMut<f32>) {
    let partial = shared_array![f32; BLOCK];
    let t = thread::thread_idx_x() as usize;
    let mut mine = 0.0;
    let mut i = t;
    while i < sums.len() {
        mine += sums[i];
        i += BLOCK;
    }
    // SAFETY: as in `likelihood_kernel`.
    unsafe {
        add_up(partial, t, mine);
        if t == 0 {
            sum.write(0, partial.read());
        }
    }
}

/// `normalized[i] = weights[i] / sum[0]` and `cuts[i]` is where [`find_index`] looks for new particle `i`. The
/// grid may be larger.
#[preemptible(block = 128)]
pub fn normalize_weights(
    frame: Frame,
    weights: &[f32],
    sum: &[f32],
    normalized: SliceMut<f32>,
    cuts: SliceMut<f32>,
) {
    let i = thread::index_1d() as usize;
    if i < normalized.len() {
        // SAFETY: each thread writes its own elements.
        unsafe {
            normalized.write(i, weights[i] / sum[0]);
            cuts.write(i, cut(frame, i as u32, weights.len() as u32));
        }
    }
}

/// `cumulative[i]` is the sum of `weights` up to and with `i`; after the last weight comes infinity. The
/// length of `cumulative` is a multiple of [`SCAN`]. One block.
#[preemptible(block = 1024)]
pub fn cumulative_sums(weights: &[f32], cumulative: SliceMut<f32>) {
    let of_warps = shared_array![f32; SCAN_BLOCK / 32];
    let t = thread::thread_idx_x() as usize;
    let (lane, warp) = (t % 32, t / 32);
    let length = weights.len();
    assert!(length <= cumulative.len() && cumulative.len().is_multiple_of(SCAN));
    let mut before = 0.0;
    let mut first = 0;
    while first < cumulative.len() {
        let at = first + t * SCAN_RUN;
        // SAFETY: `at + SCAN_RUN` is at most the length of `cumulative`, `warp` is below the warps of a
        // block, and barriers lie around what other warps read. All lanes of all warps execute the shuffles.
        unsafe {
            let mut run = [0.0; SCAN_RUN];
            let mut sum = 0.0;
            let mut i = 0;
            while i < SCAN_RUN {
                sum += if at + i < length { *weights.get_unchecked(at + i) } else { 0.0 };
                run[i] = sum;
                i += 1;
            }
            let sum = scan_warp(sum, lane);
            if lane == 31 {
                of_warps.add(warp).write(sum);
            }
            thread::sync_threads();
            // Each warp adds up those of all warps, so that no other barrier is needed before they are read.
            let warps = scan_warp(of_warps.add(lane).read(), lane);
            let all = warp_shuffle_idx(FULL_MASK, warps, 31, 32).0;
            let last = (warp as u32).saturating_sub(1);
            let warps_before = warp_shuffle_idx(FULL_MASK, warps, last, 32).0;
            let lanes_before = warp_shuffle_up(FULL_MASK, sum, 1, 32).0;
            let mut start = before;
            start += if warp == 0 { 0.0 } else { warps_before };
            start += if lane == 0 { 0.0 } else { lanes_before };
            let mut i = 0;
            while i < SCAN_RUN {
                let sum = if at + i < length { start + run[i] } else { f32::INFINITY };
                cumulative.as_mut_ptr().add(at + i).write(sum);
                i += 1;
            }
            before += all;
            thread::sync_threads();
        }
        first += SCAN;
    }
}

/// The sum of `value` over the lanes up to this one.
///
/// # Safety
///
/// All lanes of the warp come here.
#[inline(always)]
unsafe fn scan_warp(value: f32, lane: usize) -> f32 {
    let mut sum = value;
    let mut distance = 1;
    while distance < 32 {
        // SAFETY: the caller's promise.
        let below = unsafe { warp_shuffle_up(FULL_MASK, sum, distance as u32, 32).0 };
        sum += if lane >= distance { below } else { 0.0 };
        distance *= 2;
    }
    sum
}

/// Cumulative sums that are read together.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Four([f32; 4]);

/// New particle `i` is where particle `j` is, with `j` the first one whose cumulative sum is not below
/// `cuts[i]`, or else the last particle. Each thread searches linearly, as in the original.
///
/// `from` and `to` are positions as in [`likelihood_kernel`], and `cumulative` is what [`cumulative_sums`]
/// writes.
#[preemptible(block = 128, idempotent)]
pub fn find_index(cumulative: &[f32], cuts: &[f32], from: &[f32], to: SliceMut<f32>) {
    let i = thread::index_1d() as usize;
    let particles = cuts.len();
    if i < particles {
        let cut = cuts[i];
        // Once, so that nothing below has to be checked.
        let length = cumulative.len();
        assert!(length.is_multiple_of(SEARCH));
        let (mut at, mut is_found) = (0, false);
        while at < length && !is_found {
            yield_point!();
            let end = at + SEARCH;
            while at < end && !is_found {
                // SAFETY: `end` is at most `length`, and `at` four or more below it, since both can be divided
                // by four. Buffers are aligned to more than 16 bytes.
                let Four([a, b, c, d]) =
                    unsafe { cumulative.as_ptr().add(at).cast::<Four>().read() };
                is_found = a >= cut || b >= cut || c >= cut || d >= cut;
                if is_found {
                    at += if a >= cut {
                        0
                    } else if b >= cut {
                        1
                    } else if c >= cut {
                        2
                    } else {
                        3
                    };
                } else {
                    at += 4;
                }
            }
        }
        let found = at.min(particles - 1);
        // SAFETY: each thread writes its own elements.
        unsafe {
            to.write(i, from[found]);
            to.write(particles + i, from[particles + found]);
        }
    }
}
