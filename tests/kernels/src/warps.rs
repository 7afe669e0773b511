//! Shuffles and votes.

use preempt_device::prelude::*;
use preempt_device::warp::FULL_MASK;

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
