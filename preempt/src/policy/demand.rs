//! The work that is due by each deadline: is there time for one more launch?

use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::vocabulary::LaunchId;

/// Launches with deadlines, in a tree by deadline (a treap). Each node knows the work in its part of the tree, and
/// how little time that part leaves. Each operation costs about the logarithm of the number of launches.
#[derive(Debug, Default)]
pub(super) struct Demand {
    nodes: Vec<Node>,
    free: Vec<u32>,
    root: Link,
    places: FxHashMap<LaunchId, u32>,
    seed: u32,
}

type Link = Option<u32>;
/// The deadline and a number that makes it unique.
pub(super) type Due = (Duration, u64);

#[derive(Debug)]
struct Node {
    due: Due,
    work: i128,
    children: [Link; 2],
    /// Random, and not less than those of its children.
    rank: u32,
    /// Over it and all below: the work, and the least of each deadline less the work that is due by then.
    total: i128,
    slack: i128,
}

impl Demand {
    /// Enters a launch, or another estimate of its work.
    pub fn put(&mut self, launch: LaunchId, due: Due, work: Duration) {
        let work = nanos(work);
        if let Some(&place) = self.places.get(&launch) {
            let node = &self.nodes[place as usize];
            if (node.due, node.work) == (due, work) {
                return;
            }
            self.remove(launch);
        }
        // Xorshift (Marsaglia 2003); the shape need not be unpredictable.
        let mut rank = self.seed.wrapping_add(0x9E37_79B9);
        rank ^= rank << 13;
        rank ^= rank >> 17;
        rank ^= rank << 5;
        self.seed = rank;
        let slack = nanos(due.0) - work;
        let node = Node { due, work, children: [None; 2], rank, total: work, slack };
        let place = match self.free.pop() {
            Some(place) => {
                self.nodes[place as usize] = node;
                place
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        self.places.insert(launch, place);
        let (before, after) = self.split(self.root, due);
        let before = self.merge(before, Some(place));
        self.root = self.merge(before, after);
    }

    /// Takes a launch out.
    pub fn remove(&mut self, launch: LaunchId) {
        let Some(place) = self.places.remove(&launch) else { return };
        let (time, number) = self.nodes[place as usize].due;
        let (before, rest) = self.split(self.root, (time, number));
        let (_, after) = self.split(rest, (time, number + 1));
        self.root = self.merge(before, after);
        self.free.push(place);
    }

    /// Whether all launches are in time with another one among them, one after the other on the device from `now` on.
    /// Launches that are due before it are not looked at.
    pub fn has_time(&mut self, now: Duration, due: Duration, work: Duration) -> bool {
        let (before, after) = self.split(self.root, (due, u64::MAX));
        let earlier = before.map_or(0, |node| self.nodes[node as usize].total);
        let later = after.map_or(i128::MAX, |node| self.nodes[node as usize].slack);
        self.root = self.merge(before, after);
        let (now, due, work) = (nanos(now), nanos(due), nanos(work));
        now + earlier + work <= due && later.saturating_sub(now + earlier) >= work
    }

    /// The launches that are due before `due`, and the others.
    fn split(&mut self, root: Link, due: Due) -> (Link, Link) {
        let Some(place) = root else { return (None, None) };
        let Node { due: own, children: [left, right], .. } = self.nodes[place as usize];
        if own < due {
            let (middle, after) = self.split(right, due);
            self.nodes[place as usize].children[1] = middle;
            self.sum_up(place);
            (root, after)
        } else {
            let (before, middle) = self.split(left, due);
            self.nodes[place as usize].children[0] = middle;
            self.sum_up(place);
            (before, root)
        }
    }

    /// Joins two trees; all launches of the first are due before those of the other.
    fn merge(&mut self, before: Link, after: Link) -> Link {
        let (Some(first), Some(last)) = (before, after) else { return before.or(after) };
        if self.nodes[first as usize].rank > self.nodes[last as usize].rank {
            let right = self.nodes[first as usize].children[1];
            self.nodes[first as usize].children[1] = self.merge(right, after);
            self.sum_up(first);
            before
        } else {
            let left = self.nodes[last as usize].children[0];
            self.nodes[last as usize].children[0] = self.merge(before, left);
            self.sum_up(last);
            after
        }
    }

    fn sum_up(&mut self, place: u32) {
        let Node { due, work, children, .. } = self.nodes[place as usize];
        let [left, right] = children.map(|child| {
            child.map_or((0, i128::MAX), |child| {
                let Node { total, slack, .. } = self.nodes[child as usize];
                (total, slack)
            })
        });
        let by_then = left.0 + work;
        let node = &mut self.nodes[place as usize];
        node.total = by_then + right.0;
        let own = nanos(due.0) - by_then;
        node.slack = left.1.min(own).min(right.1.saturating_sub(by_then));
    }
}

fn nanos(time: Duration) -> i128 {
    time.as_nanos() as i128
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slotmap::SlotMap;

    use super::*;

    proptest! {
        #[test]
        fn it_says_what_adding_up_says(
            steps in prop::collection::vec((0usize..12, 0u64..100, 0u64..20, any::<bool>()), 1..100),
            now in 0u64..40, due in 0u64..120, work in 0u64..30,
        ) {
            let mut ids = SlotMap::with_key();
            let ids: Vec<LaunchId> = (0..12).map(|_| LaunchId(ids.insert(()))).collect();
            let mut demand = Demand::default();
            let mut model: Vec<Option<(u64, u64)>> = vec![None; 12];
            for (which, due, work, stays) in steps {
                if stays {
                    let key = (Duration::from_nanos(due), which as u64);
                    demand.put(ids[which], key, Duration::from_nanos(work));
                    model[which] = Some((due, work));
                } else {
                    demand.remove(ids[which]);
                    model[which] = None;
                }
            }
            let known = || model.iter().flatten().copied();
            let by = |due| known().filter(|other| other.0 <= due).map(|other| other.1).sum::<u64>();
            let later = known().filter(|other| other.0 > due);
            let expected = now + by(due) + work <= due
                && later.into_iter().all(|other| now + by(other.0) + work <= other.0);
            let nanos = Duration::from_nanos;
            prop_assert_eq!(demand.has_time(nanos(now), nanos(due), nanos(work)), expected);
            prop_assert!(demand.nodes.len() <= 12);
        }
    }
}
