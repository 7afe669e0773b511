//! Prefix sums in a warp and in a block, for the kernels that need them.

use core::ops::Add;

use preempt_device::prelude::*;
use preempt_device::warp::{
    FULL_MASK, WarpShuffleValue, lane_id, warp_shuffle_idx, warp_shuffle_up,
};

/// Threads of the blocks of [`scan_in_one_block`].
pub const TOP_BLOCK: usize = 1024;
/// Warps of these blocks.
pub const TOP_WARPS: usize = TOP_BLOCK / 32;

/// Elements that a warp scans in one round.
const ROUND: usize = 128;

/// What can be added up and passed between lanes. The default is the zero.
pub trait Summand: WarpShuffleValue + Add<Output = Self> + Default {}

impl Summand for u32 {}
impl Summand for f32 {}

/// The sum of the values of this lane and of the lanes below.
///
/// # Safety
///
/// All lanes of the warp call together.
#[inline(always)]
pub unsafe fn inclusive_in_warp<T: Summand>(value: T) -> T {
    let mut sum = value;
    let mut distance = 1;
    while distance < 32 {
        // SAFETY: the caller's promise.
        let (below, is_lane) = unsafe { warp_shuffle_up(FULL_MASK, sum, distance, 32) };
        if is_lane {
            sum = below + sum;
        }
        distance *= 2;
    }
    sum
}

/// The sum of the values of the lanes below this one, out of what [`inclusive_in_warp`] gave.
///
/// # Safety
///
/// All lanes of the warp call together.
#[inline(always)]
pub unsafe fn exclusive_from<T: Summand>(inclusive: T) -> T {
    // SAFETY: the caller's promise.
    let (below, is_lane) = unsafe { warp_shuffle_up(FULL_MASK, inclusive, 1, 32) };
    if is_lane { below } else { T::default() }
}

/// `out[i] = input[0] + ... + input[i - 1]`, by one block of [`TOP_BLOCK`] threads. Each warp has a run of
/// the elements of its own: it sums them up, and scans them when it knows what lies before.
///
/// # Safety
///
/// All threads of a block of [`TOP_BLOCK`] threads call together, `totals` are [`TOP_WARPS`] elements of
/// its shared memory that are not used otherwise, and no other code touches `out`.
#[inline(always)]
pub unsafe fn scan_in_one_block<T: Summand>(input: &[T], out: SliceMut<T>, totals: *mut T) {
    let length = input.len();
    assert!(out.len() >= length);
    let (input, out) = (input.as_ptr(), out.as_mut_ptr());
    let (warp, lane) = (thread::thread_idx_x() as usize / 32, lane_id() as usize);
    let run = length.div_ceil(TOP_WARPS * ROUND) * ROUND;
    let first = warp * run;
    let end = if first + run < length { first + run } else { length };
    // SAFETY: elements of the slices have numbers below `end`, hence below the length, and each is written
    // by one lane. There are as many totals as warps, with a barrier between writing and reading. The end
    // of its run is the same for all lanes of a warp, so they execute all shuffles together.
    unsafe {
        let mut sum = T::default();
        let mut i = first + lane;
        while i < end {
            sum = sum + *input.add(i);
            i += 32;
        }
        sum = inclusive_in_warp(sum);
        if lane == 31 {
            totals.add(warp).write(sum);
        }
        thread::sync_threads();
        let before = exclusive_from(inclusive_in_warp(totals.add(lane).read()));
        let mut carry = warp_shuffle_idx(FULL_MASK, before, warp as u32, 32).0;
        let mut round = first;
        while round < end {
            let at = round + lane * 4;
            let zero = T::default();
            let a = if at < end { *input.add(at) } else { zero };
            let b = if at + 1 < end { *input.add(at + 1) } else { zero };
            let c = if at + 2 < end { *input.add(at + 2) } else { zero };
            let d = if at + 3 < end { *input.add(at + 3) } else { zero };
            let inclusive = inclusive_in_warp(a + b + c + d);
            let mut sum = carry + exclusive_from(inclusive);
            if at < end {
                out.add(at).write(sum);
            }
            sum = sum + a;
            if at + 1 < end {
                out.add(at + 1).write(sum);
            }
            sum = sum + b;
            if at + 2 < end {
                out.add(at + 2).write(sum);
            }
            sum = sum + c;
            if at + 3 < end {
                out.add(at + 3).write(sum);
            }
            carry = carry + warp_shuffle_idx(FULL_MASK, inclusive, 31, 32).0;
            round += ROUND;
        }
    }
}
