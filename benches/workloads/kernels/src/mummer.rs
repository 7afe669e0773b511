//! Matches of short queries in a long text (Rodinia, `mummergpu`).
//!
//! The original goes down a suffix tree. Here it is a suffix array: the positions of all suffixes of the text, in the
//! order of the suffixes. A thread looks for the longest match of each part of its query that goes on to the end.

use preempt_device::prelude::*;

/// Threads of a block.
pub const BLOCK: u32 = 256;

/// Letters of a query.
pub const QUERY: usize = 25;

/// The shortest match that counts.
pub const SHORTEST: usize = 10;

/// Parts of a query: one from each letter on, up to the last one that is not too short.
pub const STARTS: usize = QUERY - SHORTEST + 1;

/// For part `start` of query `i`, the longest match in the text: its length in `lengths[i * STARTS + start]`, and the
/// position in the text in `positions`. The match is one of the two suffixes that the part lies between, the lower one
/// if both are as long. If it is shorter than [`SHORTEST`], both are 0. Queries follow each other; one thread for
/// each, and the grid may be larger.
///
/// # Safety
///
/// All elements of `suffixes` are below `text.len()`.
#[preemptible(block = BLOCK)]
pub unsafe fn mummergpu(
    text: &[u8],
    suffixes: &[u32],
    queries: &[u8],
    lengths: SliceMut<u32>,
    positions: SliceMut<u32>,
) {
    let i = thread::index_1d() as usize;
    // Once, so that nothing below has to be checked.
    let number = queries.len() / QUERY;
    assert!(number * STARTS <= lengths.len() && number * STARTS <= positions.len());
    if i < number {
        // SAFETY: suffixes start in the text, and the query's letters are `QUERY` from its first one on.
        let (query, text_at) = unsafe { (queries.as_ptr().add(i * QUERY), text.as_ptr()) };
        let mut start = 0;
        while start < STARTS {
            // The first suffix that is not below the part, and the lengths of the matches before and from there on.
            let (mut low, mut high) = (0, suffixes.len());
            let (mut best, mut best_at) = (0, 0);
            let (mut lower, mut lower_at) = (0, 0);
            while low < high {
                yield_point!();
                let middle = low + (high - low) / 2;
                // SAFETY: `middle` is below the number of suffixes; letters are compared up to the ends of both.
                let (at, matched, is_below) = unsafe {
                    let at = *suffixes.get_unchecked(middle) as usize;
                    let most = (QUERY - start).min(text.len() - at);
                    let (of_text, of_query) = (text_at.add(at), query.add(start));
                    let mut matched = 0;
                    while matched < most
                        && of_text.add(matched).read() == of_query.add(matched).read()
                    {
                        matched += 1;
                    }
                    // A suffix that ends is below what goes on.
                    let is_below = if matched < most {
                        of_text.add(matched).read() < of_query.add(matched).read()
                    } else {
                        matched < QUERY - start
                    };
                    (at, matched, is_below)
                };
                // The last one on each side is the nearest, and no other has a longer match.
                if is_below {
                    (low, lower, lower_at) = (middle + 1, matched, at);
                } else {
                    (high, best, best_at) = (middle, matched, at);
                }
            }
            if lower >= best {
                (best, best_at) = (lower, lower_at);
            }
            let is_long = best >= SHORTEST;
            let (length, position) = if is_long { (best, best_at) } else { (0, 0) };
            // SAFETY: each thread writes its own elements.
            unsafe {
                lengths.as_mut_ptr().add(i * STARTS + start).write(length as u32);
                positions.as_mut_ptr().add(i * STARTS + start).write(position as u32);
            }
            start += 1;
        }
    }
}

/// How many letters of a suffix and of a part of a query are the same from their first ones on, and whether the suffix is
/// below the part: where that goes on and the suffix ends, it is.
///
/// # Safety
///
/// The text goes on for `left` letters from the suffix on, and the part has `length`.
#[inline(always)]
unsafe fn compare(suffix: *const u8, left: usize, part: *const u8, length: usize) -> (usize, bool) {
    let most = length.min(left);
    let mut matched = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while matched < most && suffix.add(matched).read() == part.add(matched).read() {
            matched += 1;
        }
        let is_below = if matched < most {
            suffix.add(matched).read() < part.add(matched).read()
        } else {
            matched < length
        };
        (matched, is_below)
    }
}

/// What [`mummergpu`] computes, with a checkpoint in the place of its yield points. The threads of a block meet there, so each
/// has as many rounds as the longest search takes.
///
/// # Safety
///
/// All elements of `suffixes` are below `text.len()`.
#[preemptible(block = BLOCK, idempotent)]
pub unsafe fn mummergpu_saving(
    text: &[u8],
    suffixes: &[u32],
    queries: &[u8],
    lengths: SliceMut<u32>,
    positions: SliceMut<u32>,
) {
    let i = thread::index_1d() as usize;
    // Once, so that nothing below has to be checked.
    let number = queries.len() / QUERY;
    assert!(number * STARTS <= lengths.len() && number * STARTS <= positions.len());
    // No search takes more steps than the number of suffixes has bits.
    let mut rounds = 0u32;
    let mut bits = suffixes.len();
    while bits > 0 {
        bits /= 2;
        rounds += 1;
    }
    // Where the search is, then the lengths of the matches from there on and before, and where these are.
    let start: (u32, u32, [u32; 2], [u32; 2]) = (0, suffixes.len() as u32, [0, 0], [0, 0]);
    checkpoint!(state: (u32, u32, [u32; 2], [u32; 2]) = start => for round in 0..STARTS as u32 * rounds {
        let (mut low, mut high, [mut best, mut lower], [mut best_at, mut lower_at]) = state;
        let part = (round / rounds) as usize;
        let is_last = (round + 1) % rounds == 0;
        if i < number {
            if low < high {
                let middle = low + (high - low) / 2;
                // SAFETY: suffixes start in the text, and the query's letters are `QUERY` from its first one on. `middle` is
                // below the number of suffixes.
                let (at, matched, is_below) = unsafe {
                    let at = *suffixes.get_unchecked(middle as usize);
                    let (suffix, query) =
                        (text.as_ptr().add(at as usize), queries.as_ptr().add(i * QUERY + part));
                    let left = text.len() - at as usize;
                    let (matched, is_below) = compare(suffix, left, query, QUERY - part);
                    (at, matched as u32, is_below)
                };
                if is_below {
                    (low, lower, lower_at) = (middle + 1, matched, at);
                } else {
                    (high, best, best_at) = (middle, matched, at);
                }
            }
            if is_last {
                if lower >= best {
                    (best, best_at) = (lower, lower_at);
                }
                let is_long = best >= SHORTEST as u32;
                let (length, position) = if is_long { (best, best_at) } else { (0, 0) };
                // SAFETY: each thread writes its own elements.
                unsafe {
                    lengths.as_mut_ptr().add(i * STARTS + part).write(length);
                    positions.as_mut_ptr().add(i * STARTS + part).write(position);
                }
            }
        }
        state = if is_last { start } else { (low, high, [best, lower], [best_at, lower_at]) };
    });
}
