//! Radix sort of 32-bit keys with 32-bit values (SHOC, Sort): from the lowest digit on, a pass of three
//! kernels for each digit of 4 bits. Passes are stable, so after the last one the keys are in order.

use preempt_device::atomic::{AtomicU32, Ordering::Relaxed};
use preempt_device::prelude::*;
use preempt_device::warp::{
    FULL_MASK, lane_id, warp_shuffle_down, warp_shuffle_idx, warp_vote_ballot,
};

use crate::prefix::{TOP_WARPS, exclusive_from, inclusive_in_warp, scan_in_one_block};

/// Threads of the blocks of [`sort_reduce`] and [`sort_bottom_scan`].
pub const BLOCK: u32 = 256;
/// Bits that one pass sorts by.
pub const DIGIT_BITS: u32 = 4;
/// Values of a digit.
pub const DIGITS: usize = 1 << DIGIT_BITS;
/// Keys that a block sorts at once, in shared memory: 4 for each thread.
pub const WINDOW: usize = 4 * BLOCK as usize;

const WARPS: usize = BLOCK as usize / 32;
/// Of each digit, for each warp of a block.
const COUNTERS: usize = WARPS * DIGITS;

/// `key`'s digit at bit `shift`.
#[inline(always)]
const fn digit(key: u32, shift: u32) -> usize {
    (key >> shift) as usize % DIGITS
}

/// `out[i] = i`; the grid may be larger than `out`.
#[preemptible(block = 256)]
pub fn sort_number(out: SliceMut<u32>) {
    let i = thread::index_1d();
    if (i as usize) < out.len() {
        // SAFETY: each thread writes its own element.
        unsafe { out.write(i as usize, i) }
    }
}

/// Counts the digits at bit `shift` in each run of `windows` times [`WINDOW`] keys, one block-task for each
/// run. `counts` has a row of all runs for each digit.
#[preemptible(block = 256)]
pub fn sort_reduce(keys: &[u32], shift: u32, windows: u32, counts: SliceMut<u32>) {
    let counters = shared_array![u32; COUNTERS];
    let t = thread::thread_idx_x() as usize;
    let (task, tasks) = (thread::block_idx_x() as usize, thread::grid_dim_x() as usize);
    let mut i = task * windows as usize * WINDOW + t;
    let all = (task + 1) * windows as usize * WINDOW;
    let end = if all < keys.len() { all } else { keys.len() };
    if t < COUNTERS {
        // SAFETY: one thread for each counter.
        unsafe { counters.add(t).write(0) };
    }
    thread::sync_threads();
    // SAFETY: there is a counter for each digit of the thread's warp, and all use it atomically; keys are
    // read below their length.
    unsafe {
        let counters = counters.add(t / 32 * DIGITS);
        let add = |key: u32| {
            AtomicU32::from_ptr(counters.add(digit(key, shift))).fetch_add(1, Relaxed);
        };
        let stride = BLOCK as usize;
        // Four at once, so that the loads do not wait for each other.
        while i + 3 * stride < end {
            let a = *keys.get_unchecked(i);
            let b = *keys.get_unchecked(i + stride);
            let c = *keys.get_unchecked(i + 2 * stride);
            let d = *keys.get_unchecked(i + 3 * stride);
            add(a);
            add(b);
            add(c);
            add(d);
            i += 4 * stride;
        }
        while i < end {
            add(*keys.get_unchecked(i));
            i += stride;
        }
    }
    thread::sync_threads();
    if t < DIGITS {
        let (mut sum, mut warp) = (0, 0);
        while warp < WARPS {
            // SAFETY: in bounds, and no thread counts after the barrier.
            sum += unsafe { counters.add(warp * DIGITS + t).read() };
            warp += 1;
        }
        // SAFETY: each digit of a block-task has its own element.
        unsafe { counts.write(t * tasks + task, sum) };
    }
}

/// `bases[i] = counts[0] + ... + counts[i - 1]`: where the keys of a digit and a run go. A grid of 1.
#[preemptible(block = 1024)]
pub fn sort_top_scan(counts: &[u32], bases: SliceMut<u32>) {
    let totals = shared_array![u32; TOP_WARPS];
    // SAFETY: all threads of the only block call, with shared memory for nothing else.
    unsafe { scan_in_one_block(counts, bases, totals) };
}

/// Moves the keys of each run, and their values, to where their digits belong; block-tasks and `windows` as
/// in [`sort_reduce`], and `bases` has a row of all runs for each digit.
///
/// A window is put in order in shared memory, so that keys with the same digit are written to neighbouring
/// addresses by neighbouring threads.
#[preemptible(block = 256)]
pub fn sort_bottom_scan(
    keys: &[u32],
    values: &[u32],
    bases: &[u32],
    shift: u32,
    windows: u32,
    out_keys: SliceMut<u32>,
    out_values: SliceMut<u32>,
) {
    let counters = shared_array![u32; COUNTERS];
    let shifts = shared_array![u32; DIGITS];
    let window_keys = shared_array![u32; WINDOW];
    let window_values = shared_array![u32; WINDOW];
    let t = thread::thread_idx_x() as usize;
    let (warp, lane) = (t / 32, lane_id() as usize);
    let (task, tasks) = (thread::block_idx_x() as usize, thread::grid_dim_x() as usize);
    // Numbers of keys take half of the registers that addresses do.
    let length = keys.len() as u32;
    // Once, so that nothing below has to be checked. Where keys go is below the length if `bases` is the
    // scan of the counts.
    assert!(keys.len() < 1 << 31 && values.len() == keys.len());
    assert!(out_keys.len() == keys.len() && out_values.len() == keys.len());
    assert!(bases.len() == DIGITS * tasks);
    let (out_keys, out_values) = (out_keys.as_mut_ptr(), out_values.as_mut_ptr());
    let own_counters = counters.wrapping_add(warp * DIGITS);
    // Where the next keys of the digit go, on two lanes of each warp for each digit.
    let mut base = bases[lane / 2 * tasks + task];
    let mut first = task as u32 * windows * WINDOW as u32;
    let mut window = 0;
    // SAFETY: all indices into shared memory are below the arrays' lengths: digits are below `DIGITS`, and
    // positions in a window below `WINDOW`. Barriers lie between writes and reads. Whole warps execute all
    // shuffles and votes. Keys are read below their length, and each has a position of its own.
    unsafe {
        while window < windows && first < length {
            // Rank each key among those of its digit in its warp's quarter of 128 keys.
            let from = first + (warp * 128 + lane) as u32;
            // What is not there comes after all keys that are, since sorting is stable.
            let mut key = [u32::MAX; 4];
            let mut j = 0;
            while j < 4 {
                if from + j as u32 * 32 < length {
                    key[j] = *keys.get_unchecked((from + j as u32 * 32) as usize);
                }
                j += 1;
            }
            let mut rank = [0u32; 4];
            // Of the digit that is the lane's number.
            let mut counter = 0;
            j = 0;
            while j < 4 {
                let digit = digit(key[j], shift);
                let votes = vote(digit);
                // The ballots' order is the keys' order.
                let peers = with_digit(votes, digit);
                rank[j] = (peers & ((1 << lane) - 1)).count_ones()
                    + warp_shuffle_idx(FULL_MASK, counter, digit as u32, 32).0;
                counter += with_digit(votes, lane).count_ones();
                j += 1;
            }
            // Only now, to spare registers; they come while warp 0 scans.
            let mut value = [0u32; 4];
            j = 0;
            while j < 4 {
                if from + j as u32 * 32 < length {
                    value[j] = *values.get_unchecked((from + j as u32 * 32) as usize);
                }
                j += 1;
            }
            if lane < DIGITS {
                own_counters.add(lane).write(counter);
            }
            thread::sync_threads();
            if warp == 0 {
                // Scan the counters, all warps of a digit before the next digit: two lanes for each digit,
                // with half of the warps each.
                let counter = counters.add(lane % 2 * (COUNTERS / 2) + lane / 2);
                let a = counter.read();
                let b = counter.add(DIGITS).read();
                let c = counter.add(2 * DIGITS).read();
                let d = counter.add(3 * DIGITS).read();
                let inclusive = inclusive_in_warp(a + b + c + d);
                let start = exclusive_from(inclusive);
                counter.write(start);
                counter.add(DIGITS).write(start + a);
                counter.add(2 * DIGITS).write(start + a + b);
                counter.add(3 * DIGITS).write(start + a + b + c);
                let end = warp_shuffle_down(FULL_MASK, inclusive, 1, 32).0;
                if lane.is_multiple_of(2) {
                    shifts.add(lane / 2).write(base.wrapping_sub(start));
                    base += end - start;
                }
            }
            thread::sync_threads();
            j = 0;
            while j < 4 {
                let digit = digit(key[j], shift);
                let position = (own_counters.add(digit).read() + rank[j]) as usize;
                window_keys.add(position).write(key[j]);
                window_values.add(position).write(value[j]);
                j += 1;
            }
            thread::sync_threads();
            j = t;
            while j < WINDOW {
                if first + (j as u32) < length {
                    let key = window_keys.add(j).read();
                    let shift = shifts.add(digit(key, shift)).read();
                    let to = (j as u32).wrapping_add(shift) as usize;
                    out_keys.add(to).write(key);
                    out_values.add(to).write(window_values.add(j).read());
                }
                j += BLOCK as usize;
            }
            first += WINDOW as u32;
            window += 1;
        }
    }
}

/// For each bit of a digit, the lanes in which it is set.
///
/// # Safety
///
/// All lanes of the warp call together.
#[inline(always)]
unsafe fn vote(digit: usize) -> [u32; DIGIT_BITS as usize] {
    // SAFETY: the caller's promise.
    let bit = |bit: usize| unsafe { warp_vote_ballot(FULL_MASK, digit >> bit & 1 == 1) };
    [bit(0), bit(1), bit(2), bit(3)]
}

/// The lanes that voted with this digit.
#[inline(always)]
const fn with_digit(votes: [u32; DIGIT_BITS as usize], digit: usize) -> u32 {
    let mut lanes = FULL_MASK;
    let mut bit = 0;
    while bit < DIGIT_BITS as usize {
        lanes &= if digit >> bit & 1 == 1 { votes[bit] } else { !votes[bit] };
        bit += 1;
    }
    lanes
}
