//! Things in order, of which mostly the first few are asked for.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::Hash;

use rustc_hash::FxHashMap;

/// What stands in line, the least key first: a binary heap that knows where everybody is.
///
/// Everything costs at most the logarithm of the length, and allocates only where the line becomes longer than it
/// ever was. Keys must differ.
#[derive(Debug)]
pub(super) struct Line<I, K> {
    /// Nobody comes before the one at half of its place.
    heap: Vec<(K, I)>,
    places: FxHashMap<I, usize>,
    /// The places of those that can be next in an iteration; kept for its capacity.
    frontier: BinaryHeap<Reverse<(K, usize)>>,
}

impl<I, K: Ord> Default for Line<I, K> {
    fn default() -> Line<I, K> {
        Line { heap: Vec::new(), places: FxHashMap::default(), frontier: BinaryHeap::new() }
    }
}

impl<I: Copy + Eq + Hash, K: Copy + Ord> Line<I, K> {
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    pub fn first(&self) -> Option<(K, I)> {
        self.heap.first().copied()
    }

    pub fn key(&self, id: I) -> Option<K> {
        self.places.get(&id).map(|&place| self.heap[place].0)
    }

    /// Puts somebody in, or elsewhere.
    pub fn put(&mut self, id: I, key: K) {
        let place = match self.places.get(&id) {
            Some(&place) => {
                if self.heap[place].0 == key {
                    return;
                }
                self.heap[place].0 = key;
                place
            }
            None => {
                self.heap.push((key, id));
                self.heap.len() - 1
            }
        };
        self.restore(place);
    }

    /// Takes somebody out; the key.
    pub fn remove(&mut self, id: I) -> Option<K> {
        let place = self.places.remove(&id)?;
        let (key, _) = self.heap.swap_remove(place);
        if place < self.heap.len() {
            self.restore(place);
        }
        Some(key)
    }

    /// Everybody in order, one after the other as they are asked for, and how to find the key of each meanwhile.
    pub fn in_order(&mut self) -> (InOrder<'_, I, K>, Keys<'_, I, K>) {
        self.frontier.clear();
        self.frontier.extend(self.heap.first().map(|&(key, _)| Reverse((key, 0))));
        let Line { heap, places, frontier } = self;
        (InOrder { heap, frontier }, Keys { heap, places })
    }

    /// Moves the one at `place` to where it belongs.
    fn restore(&mut self, mut place: usize) {
        while place > 0 && self.heap[place].0 < self.heap[(place - 1) / 2].0 {
            place = self.swap(place, (place - 1) / 2);
        }
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child].0) else { break };
            if self.heap[place].0 <= self.heap[least].0 {
                break;
            }
            place = self.swap(place, least);
        }
        self.places.insert(self.heap[place].1, place);
    }

    /// Moves the one at `place` to another place, whose occupant takes that one; the new place.
    fn swap(&mut self, place: usize, other: usize) -> usize {
        self.heap.swap(place, other);
        self.places.insert(self.heap[place].1, place);
        other
    }
}

/// See [`Line::in_order`].
#[derive(Debug)]
pub(super) struct InOrder<'a, I, K> {
    heap: &'a [(K, I)],
    frontier: &'a mut BinaryHeap<Reverse<(K, usize)>>,
}

impl<I: Copy, K: Copy + Ord> Iterator for InOrder<'_, I, K> {
    type Item = (K, I);

    fn next(&mut self) -> Option<(K, I)> {
        let Reverse((_, place)) = self.frontier.pop()?;
        let children = 2 * place + 1..(2 * place + 3).min(self.heap.len());
        self.frontier.extend(children.map(|child| Reverse((self.heap[child].0, child))));
        Some(self.heap[place])
    }
}

/// See [`Line::in_order`].
#[derive(Debug)]
pub(super) struct Keys<'a, I, K> {
    heap: &'a [(K, I)],
    places: &'a FxHashMap<I, usize>,
}

impl<I: Eq + Hash, K: Copy> Keys<'_, I, K> {
    pub fn get(&self, id: I) -> Option<K> {
        self.places.get(&id).map(|&place| self.heap[place].0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn everybody_is_where_a_sorted_map_has_them(
            steps in prop::collection::vec((0u8..20, prop::option::weighted(0.7, 0u32..50)), 0..200),
        ) {
            let mut line = Line::default();
            let mut model = BTreeMap::new();
            for (id, key) in steps {
                match key {
                    Some(key) => {
                        line.put(id, (key, id));
                        model.insert(id, (key, id));
                    }
                    None => assert_eq!(line.remove(id), model.remove(&id)),
                }
                let mut sorted: Vec<_> = model.values().copied().collect();
                sorted.sort_unstable();
                prop_assert_eq!(line.first().map(|(key, _)| key), sorted.first().copied());
                let (order, keys) = line.in_order();
                prop_assert_eq!(order.map(|(key, _)| key).collect::<Vec<_>>(), sorted);
                prop_assert!((0..20).all(|id| keys.get(id) == model.get(&id).copied()));
            }
        }
    }
}
