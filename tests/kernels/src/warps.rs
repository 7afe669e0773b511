//! Shuffles, votes, matches and reductions.

use preempt_device::prelude::*;
use preempt_device::warp::{FULL_MASK, WarpReductionOp};

/// Leaves six numbers for each warp `w` of the grid, from the warp's 32 elements of `input`, at
/// `out[6 * w]`: their sum by shuffles down, their sum by shuffles with XOR, the ballot of the
/// odd ones, whether all are odd, whether any is odd, and the sum of lanes 8 to 15 (a group of
/// `width` 8).
///
/// The grid has as many threads as `input` has elements.
#[preemptible(block = 64)]
pub fn warp_sums(input: &[u32], out: SliceMut<u32>) {
    let at = thread::index() as usize;
    let value = input[at];
    let odd = value % 2 == 1;
    // SAFETY: every lane takes part in every operation; lane 0 alone writes its warp's numbers.
    unsafe {
        let (mut down, mut xor, mut group) = (value, value, value);
        let mut delta = 16;
        while delta > 0 {
            down += warp::warp_shuffle_down(FULL_MASK, down, delta, 32).0;
            xor += warp::warp_shuffle_xor(FULL_MASK, xor, delta, 32).0;
            delta /= 2;
        }
        let mut delta = 4;
        while delta > 0 {
            group += warp::warp_shuffle_down(FULL_MASK, group, delta, 8).0;
            delta /= 2;
        }
        let group = warp::warp_shuffle_idx(FULL_MASK, group, 8, 32).0;
        let ballot = warp::warp_vote_ballot(FULL_MASK, odd);
        let all = warp::warp_vote_all(FULL_MASK, odd);
        let any = warp::warp_vote_any(FULL_MASK, odd);
        if warp::lane_id() == 0 {
            let numbers = [down, xor, ballot, u32::from(all), u32::from(any), group];
            let first = at / 32 * numbers.len();
            let mut i = 0;
            while i < numbers.len() {
                out.write(first + i, numbers[i]);
                i += 1;
            }
        }
    }
}

/// Numbers that [`warp_matches`] leaves for each thread.
pub const MATCHES: usize = 13;

/// Leaves for each thread `i` at `out[MATCHES * i]`, from its element of `input` and those of its warp: the lanes with
/// the same value, as 32 and as 64 bits; all lanes if the values are all the same, else 0, as 32 and as 64 bits; the
/// sum, the smallest, the largest, AND, OR and XOR of the values; the smallest and the largest of them as `i32`; and
/// whether the thread is among the active ones.
#[preemptible(block = 40)]
pub fn warp_matches(input: &[u32], out: SliceMut<u32>) {
    let at = thread::index() as usize;
    let value = input[at];
    let wide = u64::from(value) << 32;
    // SAFETY: every lane takes part in every operation; each thread writes its own elements.
    unsafe {
        let reduce = |op| warp::warp_reduce(FULL_MASK, value, op);
        let signed = |op| warp::warp_reduce(FULL_MASK, value as i32, op) as u32;
        let found = [
            warp::warp_match_any(FULL_MASK, value),
            warp::warp_match_any(FULL_MASK, wide),
            warp::warp_match_all(FULL_MASK, value).unwrap_or(0),
            warp::warp_match_all(FULL_MASK, wide).unwrap_or(0),
            reduce(WarpReductionOp::Add),
            reduce(WarpReductionOp::Min),
            reduce(WarpReductionOp::Max),
            reduce(WarpReductionOp::And),
            reduce(WarpReductionOp::Or),
            reduce(WarpReductionOp::Xor),
            signed(WarpReductionOp::Min),
            signed(WarpReductionOp::Max),
            warp::activemask() >> warp::lane_id() & 1,
        ];
        let mut i = 0;
        while i < MATCHES {
            out.write(MATCHES * at + i, found[i]);
            i += 1;
        }
    }
}
