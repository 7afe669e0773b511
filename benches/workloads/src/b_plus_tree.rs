//! Search in a B+ tree.

use preempt::Error;
use preempt_workload_kernels::b_plus_tree::{
    Level, NO_RECORD, ORDER, SPACING, find_k, find_range_k, key, tree_level,
};
use preempt_workload_kernels::input::hash;

use crate::{Definition, Memory, Output, Program, Size};

pub const DEFINITION: Definition =
    Definition { name: "BT", source: "Rodinia, b+tree", flep_amortize: 64, build };

/// Records of a range, at most.
const LONGEST: u32 = 1000;

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    // Records, and keys to look for. There are half as many ranges.
    let (records, number): (u32, u32) = match size {
        Size::Reduced => (20_000, 600),
        Size::Trivial => (20_000, 64),
        // The paper's records, and five times its keys.
        Size::Small => (1_000_000, 50_000),
        // As many records as three levels hold, with 3 KB to read for each key.
        Size::Large => (16 << 20, 500_000),
    };
    let levels = levels(records);
    let nodes: u32 = levels.iter().map(|level| nodes(level.children)).sum();
    let entries = nodes as usize * ORDER;
    let (mut keys, mut children) = (memory.zeroed(entries)?, memory.zeroed(entries)?);
    let mut setup = Vec::new();
    for &level in &levels {
        let call = tree_level(seed, level, &mut keys, &mut children);
        setup.push(call.grid(self::nodes(level.children)));
    }
    // Each second one is there.
    let question = |i: u32| {
        let random = hash(seed + 1, i);
        if i.is_multiple_of(2) { key(seed, random % records) } else { random % (records * SPACING) }
    };
    let wanted: Vec<u32> = (0..number).map(question).collect();
    let range = move |i: u32| {
        let first = hash(seed + 2, i) % records;
        (first, (first + hash(seed + 3, i) % LONGEST).min(records - 1))
    };
    let ranges = number / 2;
    let first: Vec<u32> = (0..ranges).map(|i| key(seed, range(i).0)).collect();
    let last: Vec<u32> = (0..ranges).map(|i| key(seed, range(i).1)).collect();
    let questions = memory.buffer(&wanted)?;
    let (first, last) = (memory.buffer(&first)?, memory.buffer(&last)?);
    let of_ranges = || memory.zeroed(ranges as usize);
    let (mut starts, mut lengths) = (of_ranges()?, of_ranges()?);
    let mut found = memory.zeroed(number as usize)?;
    let deep = levels.len() as u32;
    // SAFETY: `levels` numbers the nodes from the root on, and the children of each level are the nodes of the next.
    let steps = unsafe {
        vec![
            find_k(deep, &keys, &children, &questions, &mut found).grid(number),
            find_range_k(deep, &keys, &children, &first, &last, &mut starts, &mut lengths)
                .grid(ranges),
        ]
    };
    let answers = move || {
        let keys: Vec<u32> = (0..records).map(|i| key(seed, i)).collect();
        let record = |wanted| keys.binary_search(wanted).map_or(NO_RECORD, |record| record as u32);
        wanted.iter().map(record).collect()
    };
    let from = move || (0..ranges).map(|i| range(i).0).collect();
    let count = move || (0..ranges).map(|i| range(i).1 - range(i).0 + 1).collect();
    let outputs = vec![
        Output::integers(memory, "records", found, answers)?,
        Output::integers(memory, "starts of ranges", starts, from)?,
        Output::integers(memory, "lengths of ranges", lengths, count)?,
    ];
    Ok(Program { setup, steps, dominant: 0, outputs })
}

/// Nodes with this number of children.
fn nodes(children: u32) -> u32 {
    children.div_ceil(ORDER as u32)
}

/// The levels of a tree, from the root on.
fn levels(records: u32) -> Vec<Level> {
    // From the leaves on.
    let mut levels = vec![Level { first: 0, children: records, first_child: 0, records: 1 }];
    while let Some(&Level { children, records, .. }) = levels.last()
        && children > ORDER as u32
    {
        let above =
            Level { children: nodes(children), records: records * ORDER as u32, ..levels[0] };
        levels.push(above);
    }
    levels.reverse();
    for i in 1..levels.len() {
        levels[i].first = levels[i - 1].first + nodes(levels[i - 1].children);
        levels[i - 1].first_child = levels[i].first;
    }
    levels
}
