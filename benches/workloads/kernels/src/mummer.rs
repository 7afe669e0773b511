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
