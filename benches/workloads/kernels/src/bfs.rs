//! Breadth-first search, level by level (SHOC and Rodinia, `BFS`).

use preempt_device::atomic::{AtomicU32, Ordering::Relaxed};
use preempt_device::prelude::*;

use crate::input::hash;
use crate::lists::Lists;

/// Threads of a block.
pub const BLOCK: u32 = 256;

/// The level of a vertex that was not found yet.
pub const UNSEEN: u32 = u32::MAX;

/// The vertex whose level is 0.
pub const SOURCE: u32 = 0;

/// How many neighbours each vertex has in a tree with its root at the source, while there are vertices left.
/// They come first; the others are random.
pub const CHILDREN: u32 = 4;

/// Neighbours of a vertex between two yield points. They lie anywhere, so four at once take about 1 µs.
const CHUNK: u32 = 32;

/// Level 0 for the source, and none for other vertices; the grid may be larger than their number.
#[preemptible(block = BLOCK)]
pub fn bfs_reset(levels: SliceMut<u32>) {
    let vertex = thread::index_1d();
    if (vertex as usize) < levels.len() {
        // SAFETY: each thread writes its own element.
        unsafe { levels.write(vertex as usize, if vertex == SOURCE { 0 } else { UNSEEN }) }
    }
}

/// Gives all neighbours of vertices at `level` that have no level yet the next one. The neighbours of vertex
/// `v` are in `targets` from `starts[v]` up to `starts[v + 1]`. One thread for each vertex; the grid may be
/// larger.
///
/// The originals also set a flag, from which the host sees that a level was not the last. Here the number of
/// levels is known, see [`depth`].
///
/// Vertices with many neighbours take their thread some 100 µs, which is why there are yield points. A
/// block-task that runs again finds what it has found before at the next level, and leaves it there, so the
/// result is the same. So it is whichever of two threads finds a vertex first.
#[preemptible(block = BLOCK, idempotent)]
pub fn bfs_expand(level: u32, starts: &[u32], targets: &[u32], levels: SliceMut<u32>) {
    let (vertex, vertices) = (thread::index_1d(), levels.len() as u32);
    // SAFETY: it is called with vertices, each of which has a level, and all accesses to those are atomic.
    let level_of = |v: u32| unsafe { AtomicU32::from_ptr(levels.as_mut_ptr().add(v as usize)) };
    let visit = |v: u32, seen: u32| {
        if seen == UNSEEN {
            level_of(v).store(level + 1, Relaxed);
        }
    };
    if vertex < vertices && level_of(vertex).load(Relaxed) == level {
        let (mut j, end) = (starts[vertex as usize], starts[vertex as usize + 1]);
        assert!(end as usize <= targets.len() && end <= 1 << 31);
        while j < end {
            let stop = end.min(j + CHUNK);
            // Four at once, so that their loads are under way together.
            while j + 3 < stop {
                // SAFETY: `stop` is at most `end`, which is within the array.
                let [a, b, c, d] = unsafe {
                    let target = targets.as_ptr().add(j as usize);
                    [
                        target.read(),
                        target.add(1).read(),
                        target.add(2).read(),
                        target.add(3).read(),
                    ]
                };
                assert!(a < vertices && b < vertices && c < vertices && d < vertices);
                let (seen_a, seen_b) = (level_of(a).load(Relaxed), level_of(b).load(Relaxed));
                let (seen_c, seen_d) = (level_of(c).load(Relaxed), level_of(d).load(Relaxed));
                // One comparison of all comes first, since the code generator has a load wait for the
                // comparison of another one otherwise.
                if seen_a.max(seen_b).max(seen_c).max(seen_d) == UNSEEN {
                    visit(a, seen_a);
                    visit(b, seen_b);
                    visit(c, seen_c);
                    visit(d, seen_d);
                }
                j += 4;
            }
            while j < stop {
                let v = targets[j as usize];
                assert!(v < vertices);
                visit(v, level_of(v).load(Relaxed));
                j += 1;
            }
            if j < end {
                yield_point!();
            }
        }
    }
}

/// Writes the neighbours of all vertices, as [`target`] says. One thread for each vertex; the grid may be
/// larger.
#[preemptible(block = BLOCK)]
pub fn bfs_targets(seed: u32, starts: &[u32], targets: SliceMut<u32>) {
    let (vertex, vertices) = (thread::index_1d(), starts.len() as u32 - 1);
    if vertex < vertices {
        let (start, end) = (starts[vertex as usize], starts[vertex as usize + 1]);
        let mut j = start;
        while j < end {
            // SAFETY: each element is in one vertex's list.
            unsafe { targets.write(j as usize, target(seed, vertex, start, j, vertices)) };
            j += 1;
        }
    }
}

/// Element `j` of the neighbours, in the list of `vertex`, which starts at `start`.
#[inline(always)]
pub const fn target(seed: u32, vertex: u32, start: u32, j: u32, vertices: u32) -> u32 {
    let child = CHILDREN * vertex + 1 + (j - start);
    if j - start < CHILDREN && child < vertices { child } else { hash(seed, j) % vertices }
}

/// How many neighbours the vertices have. Those of the source are as many as those of a vertex in the mean,
/// so that seeds make little difference to the number of vertices at each level.
pub const DEGREES: Lists = Lists { least: CHILDREN, spread: 10, long: 256, group: 1024 };

/// The levels that vertices can be at in a graph of this size, less level 0: the depth of the tree.
pub const fn depth(vertices: u32) -> u32 {
    let (mut depth, mut layer, mut reached) = (0, 1, 1);
    while reached < vertices {
        layer *= CHILDREN;
        reached += layer;
        depth += 1;
    }
    depth
}
