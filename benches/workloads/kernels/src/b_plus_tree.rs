//! Search in a B+ tree (Rodinia, `b+tree`).
//!
//! A node has [`ORDER`] keys in ascending order, and a child for each of them. A child of an inner node is a node, whose
//! keys are not below the child's key; one of a leaf is the number of a record. Keys past the last one are
//! [`NO_KEY`]. The root is node 0.

use preempt_device::prelude::*;

use crate::input::hash;

/// Keys of a node, and threads of a block.
pub const ORDER: usize = 256;

/// The key of children that there are not.
pub const NO_KEY: u32 = u32::MAX;

/// The answer to a key that there is not.
pub const NO_RECORD: u32 = u32::MAX;

/// Keys are this far apart in the mean.
pub const SPACING: u32 = 16;

/// The key of record `i`.
#[inline(always)]
pub const fn key(seed: u32, i: u32) -> u32 {
    i * SPACING + hash(seed, i) % SPACING
}

/// A level of the tree: where its nodes are, and what is below them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, KernelArg)]
#[repr(C)]
pub struct Level {
    /// The first node.
    pub first: u32,
    /// Children of all nodes.
    pub children: u32,
    /// The first child.
    pub first_child: u32,
    /// Records below each child but the last one, which may have fewer.
    pub records: u32,
}

/// The keys and children of all nodes of a level. One thread for each; the grid covers the nodes.
#[preemptible(block = 256)]
pub fn tree_level(seed: u32, of: Level, keys: SliceMut<u32>, children: SliceMut<u32>) {
    let i = thread::index_1d();
    let is_there = i < of.children;
    let at = of.first as usize * ORDER + i as usize;
    // SAFETY: each thread writes its own elements.
    unsafe {
        keys.write(at, if is_there { key(seed, i * of.records) } else { NO_KEY });
        children.write(at, if is_there { of.first_child + i } else { NO_RECORD });
    }
}

/// The record of `wanted` for all threads, or [`NO_RECORD`].
///
/// # Safety
///
/// All threads of a block of [`ORDER`] threads call this, with two elements of shared memory that no other call uses.
/// Children of inner nodes are nodes.
#[inline(always)]
unsafe fn find(levels: u32, keys: &[u32], children: &[u32], wanted: u32, found: *mut u32) -> u32 {
    let t = thread::thread_idx_x() as usize;
    let (mut node, mut level) = (0, 0);
    // SAFETY: the caller vouches for the children. Barriers lie between writes and reads by other threads: of the keys of
    // a node, `wanted` is between one and the next, and that thread alone writes.
    unsafe {
        if t == 0 {
            found.add(1).write(NO_RECORD);
        }
        while level < levels {
            let at = node as usize * ORDER + t;
            let own = *keys.get_unchecked(at);
            let next = if t + 1 < ORDER { *keys.get_unchecked(at + 1) } else { NO_KEY };
            if (t == 0 || own <= wanted) && wanted < next {
                let child = *children.get_unchecked(at);
                found.write(child);
                if level + 1 == levels && own == wanted {
                    found.add(1).write(child);
                }
            }
            thread::sync_threads();
            node = found.read();
            thread::sync_threads();
            level += 1;
        }
        found.add(1).read()
    }
}

/// `records[i]` is the record of key `wanted[i]`, or [`NO_RECORD`]. One block-task for each of them.
///
/// # Safety
///
/// Children of the nodes of all levels but the last are nodes, each with [`ORDER`] keys and children.
#[preemptible(block = 256)]
pub unsafe fn find_k(
    levels: u32,
    keys: &[u32],
    children: &[u32],
    wanted: &[u32],
    records: SliceMut<u32>,
) {
    let found = shared_array![u32; 2];
    let i = thread::block_idx_x() as usize;
    // SAFETY: the caller's promise; all threads of the block come here, and one writes each element.
    unsafe {
        let record = find(levels, keys, children, wanted[i], found);
        if thread::thread_idx_x() == 0 {
            records.write(i, record);
        }
    }
}

/// For the keys from `first[i]` to `last[i]`, both of which are there: the record of the first one, and how many records
/// there are. One block-task for each range.
///
/// # Safety
///
/// As that of [`find_k`].
#[preemptible(block = 256)]
pub unsafe fn find_range_k(
    levels: u32,
    keys: &[u32],
    children: &[u32],
    first: &[u32],
    last: &[u32],
    starts: SliceMut<u32>,
    lengths: SliceMut<u32>,
) {
    let at_first = shared_array![u32; 2];
    let at_last = shared_array![u32; 2];
    let i = thread::block_idx_x() as usize;
    // SAFETY: the caller's promise; all threads of the block come here, and one writes each element.
    unsafe {
        let start = find(levels, keys, children, first[i], at_first);
        let end = find(levels, keys, children, last[i], at_last);
        if thread::thread_idx_x() == 0 {
            starts.write(i, start);
            lengths.write(i, end - start + 1);
        }
    }
}
