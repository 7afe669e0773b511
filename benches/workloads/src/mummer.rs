//! Matches of short queries in a long text.

use preempt::Error;
use preempt_workload_kernels::input::hash;
use preempt_workload_kernels::mummer::{
    BLOCK, QUERY, SHORTEST, STARTS, mummergpu, mummergpu_saving,
};

use crate::{Definition, Memory, Output, Program, Size, blocks};

pub const DEFINITION: Definition =
    Definition { name: "MUM", source: "Rodinia, mummergpu", flep_amortize: 1, build };

/// The same with a checkpoint.
pub const CHECKPOINTED: Definition = Definition { build: build_saving, ..DEFINITION };

/// One of how many letters of a query is another one than in the text.
const MISTAKES: u32 = 16;

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    with(memory, size, seed, false)
}

fn build_saving(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    with(memory, size, seed, true)
}

fn with(memory: Memory<'_>, size: Size, seed: u32, saving: bool) -> Result<Program, Error> {
    // Letters of the text, and queries.
    let (letters, queries): (u32, u32) = match size {
        Size::Reduced => (20_000, 4100),
        Size::Trivial => (20_000, 2048),
        Size::Small => (1 << 20, 20_000),
        // Four times the paper's queries, and a text of the length of a bacterium's genome.
        Size::Large => (4 << 20, 200_000),
    };
    let text = text(seed, letters);
    let suffixes = memory.buffer(&suffixes(&text))?;
    let questions = memory.buffer(&self::queries(seed, &text, queries))?;
    let text = memory.buffer(&text)?;
    let results = queries as usize * STARTS;
    let (mut lengths, mut positions) = (memory.zeroed(results)?, memory.zeroed(results)?);
    let grid = blocks(queries as usize, BLOCK);
    // SAFETY: suffixes start in the text.
    let call = unsafe {
        match saving {
            false => mummergpu(&text, &suffixes, &questions, &mut lengths, &mut positions),
            true => mummergpu_saving(&text, &suffixes, &questions, &mut lengths, &mut positions),
        }
    };
    let steps = vec![call.grid(grid)];
    let long = move || reference(seed, letters, queries).into_iter().map(|(n, _)| n).collect();
    let at = move || reference(seed, letters, queries).into_iter().map(|(_, at)| at).collect();
    let outputs = vec![
        Output::integers(memory, "lengths", lengths, long)?,
        Output::integers(memory, "positions", positions, at)?,
    ];
    Ok(Program { setup: Vec::new(), steps, dominant: 0, outputs })
}

/// The text: letters 0 to 3.
fn text(seed: u32, letters: u32) -> Vec<u8> {
    (0..letters).map(|i| (hash(seed, i) % 4) as u8).collect()
}

/// Parts of the text with mistakes, one after the other.
fn queries(seed: u32, text: &[u8], queries: u32) -> Vec<u8> {
    let letter = |i: u32| {
        let (query, at) = (i / QUERY as u32, i % QUERY as u32);
        let start = hash(seed + 1, query) % (text.len() - QUERY) as u32;
        let random = hash(seed + 2, i);
        match random.is_multiple_of(MISTAKES) {
            true => (random / MISTAKES % 4) as u8,
            false => text[(start + at) as usize],
        }
    };
    (0..queries * QUERY as u32).map(letter).collect()
}

/// The positions of all suffixes, in the order of the suffixes.
fn suffixes(text: &[u8]) -> Vec<u32> {
    // Sorted by the first 32 letters, of which a suffix that ends has the lowest after its end, and then by all of them.
    let mut keys = vec![(0u64, 0u32); text.len()];
    let mut key = 0;
    for (at, &letter) in text.iter().enumerate().rev() {
        key = key >> 2 | u64::from(letter) << 62;
        keys[at] = (key, at as u32);
    }
    keys.sort_unstable();
    for equal in keys.chunk_by_mut(|a, b| a.0 == b.0).filter(|equal| equal.len() > 1) {
        equal.sort_unstable_by_key(|&(_, at)| &text[at as usize..]);
    }
    keys.into_iter().map(|(_, at)| at).collect()
}

/// The length and the position of the longest match of each part of each query.
fn reference(seed: u32, letters: u32, number: u32) -> Vec<(u32, u32)> {
    let text = text(seed, letters);
    let mut sorted: Vec<&[u8]> = (0..text.len()).map(|at| &text[at..]).collect();
    sorted.sort_unstable();
    let queries = queries(seed, &text, number);
    let parts = queries.chunks(QUERY).flat_map(|query| (0..STARTS).map(move |at| &query[at..]));
    let longest = |part: &[u8]| {
        let first = sorted.partition_point(|suffix| *suffix < part);
        let matched = |suffix: &&[u8]| {
            let length = suffix.iter().zip(part).take_while(|(a, b)| a == b).count();
            (length, text.len() - suffix.len())
        };
        let lower = first.checked_sub(1).map(|before| matched(&sorted[before]));
        let higher = sorted.get(first).map(matched);
        let longest = match (lower, higher) {
            (Some(lower), Some(higher)) if higher.0 > lower.0 => higher,
            (lower, higher) => lower.or(higher).unwrap_or_default(),
        };
        if longest.0 >= SHORTEST { (longest.0 as u32, longest.1 as u32) } else { (0, 0) }
    };
    parts.map(longest).collect()
}
