//! Items in order of their keys, for iterations that mostly end after the first few.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::Hash;
use std::ops::Range;

use rustc_hash::FxHashMap;
use slotmap::{SlotMap, new_key_type};

new_key_type! {
    /// A handle of an item, which finds its place.
    struct Mark;
}

/// An indexed binary heap: the item with the least key is first, and each item can be found and moved.
///
/// Each operation costs at most the logarithm of the length, and allocates only if the heap becomes longer than ever
/// before. Keys must differ.
#[derive(Debug)]
pub(super) struct IndexedHeap<I, K> {
    /// No item has a lesser key than the one at half of its place.
    heap: Vec<(K, I, Mark)>,
    /// The place of each item, by its handle: items that move need not be looked up by id.
    places: SlotMap<Mark, usize>,
    marks: FxHashMap<I, Mark>,
    /// The places that can be next in an iteration; kept for its capacity.
    frontier: BinaryHeap<Reverse<(K, usize)>>,
}

impl<I, K: Ord> Default for IndexedHeap<I, K> {
    fn default() -> IndexedHeap<I, K> {
        let (places, marks) = (SlotMap::with_key(), FxHashMap::default());
        IndexedHeap { heap: Vec::new(), places, marks, frontier: BinaryHeap::new() }
    }
}

impl<I: Copy + Eq + Hash, K: Copy + Ord> IndexedHeap<I, K> {
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    pub fn first(&self) -> Option<(K, I)> {
        self.heap.first().map(|&(key, id, _)| (key, id))
    }

    pub fn key(&self, id: I) -> Option<K> {
        self.marks.get(&id).map(|&mark| self.heap[self.places[mark]].0)
    }

    /// Inserts an item, or changes its key.
    pub fn put(&mut self, id: I, key: K) {
        let end = self.heap.len();
        let mark = *self.marks.entry(id).or_insert_with(|| self.places.insert(end));
        let place = self.places[mark];
        if place == end {
            self.heap.push((key, id, mark));
        } else if self.heap[place].0 == key {
            return;
        }
        self.restore(place, (key, id, mark));
    }

    /// Removes an item; its key.
    pub fn remove(&mut self, id: I) -> Option<K> {
        let place = self.places.remove(self.marks.remove(&id)?)?;
        let (key, ..) = self.heap[place];
        if let Some(last) = self.heap.pop().filter(|_| place < self.heap.len()) {
            self.restore(place, last);
        }
        Some(key)
    }

    /// The items in order, found one after the other, and a view of all keys meanwhile.
    pub fn in_order(&mut self) -> (InOrder<'_, I, K>, Keys<'_, I, K>) {
        let IndexedHeap { heap, places, marks, frontier } = self;
        frontier.clear();
        let fresh = 0..heap.len().min(1);
        (InOrder { heap, frontier, fresh }, Keys { heap, places, marks })
    }

    /// Moves an item from a free place to where it belongs.
    fn restore(&mut self, mut place: usize, (key, id, mark): (K, I, Mark)) {
        while place > 0 && key < self.heap[(place - 1) / 2].0 {
            place = self.fill(place, (place - 1) / 2);
        }
        loop {
            let children = children(place, &self.heap);
            let Some(least) = children.min_by_key(|&child| self.heap[child].0) else { break };
            if key <= self.heap[least].0 {
                break;
            }
            place = self.fill(place, least);
        }
        self.heap[place] = (key, id, mark);
        self.places[mark] = place;
    }

    /// Moves an item to a free place; the place that is free now.
    fn fill(&mut self, place: usize, from: usize) -> usize {
        self.heap[place] = self.heap[from];
        self.places[self.heap[place].2] = place;
        from
    }
}

/// The places of the children of a place.
fn children<T>(place: usize, heap: &[T]) -> Range<usize> {
    2 * place + 1..(2 * place + 3).min(heap.len())
}

/// See [`IndexedHeap::in_order`].
#[derive(Debug)]
pub(super) struct InOrder<'a, I, K> {
    heap: &'a [(K, I, Mark)],
    frontier: &'a mut BinaryHeap<Reverse<(K, usize)>>,
    /// The children of the last item, which are not in the frontier yet.
    fresh: Range<usize>,
}

impl<I: Copy, K: Copy + Ord> Iterator for InOrder<'_, I, K> {
    type Item = (K, I);

    fn next(&mut self) -> Option<(K, I)> {
        for place in self.fresh.clone() {
            self.frontier.push(Reverse((self.heap[place].0, place)));
        }
        let Reverse((key, place)) = self.frontier.pop()?;
        self.fresh = children(place, self.heap);
        Some((key, self.heap[place].1))
    }
}

/// See [`IndexedHeap::in_order`].
#[derive(Debug)]
pub(super) struct Keys<'a, I, K> {
    heap: &'a [(K, I, Mark)],
    places: &'a SlotMap<Mark, usize>,
    marks: &'a FxHashMap<I, Mark>,
}

impl<I: Eq + Hash, K: Copy> Keys<'_, I, K> {
    pub fn get(&self, id: I) -> Option<K> {
        self.marks.get(&id).map(|&mark| self.heap[self.places[mark]].0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn items_are_in_the_order_of_a_sorted_map(
            steps in prop::collection::vec((0u8..20, prop::option::weighted(0.7, 0u32..50)), 0..200),
        ) {
            let mut heap = IndexedHeap::default();
            let mut model = BTreeMap::new();
            for (id, key) in steps {
                match key {
                    Some(key) => {
                        heap.put(id, (key, id));
                        model.insert(id, (key, id));
                    }
                    None => assert_eq!(heap.remove(id), model.remove(&id)),
                }
                let mut sorted: Vec<_> = model.values().copied().collect();
                sorted.sort_unstable();
                prop_assert_eq!(heap.first().map(|(key, _)| key), sorted.first().copied());
                let (order, keys) = heap.in_order();
                prop_assert_eq!(order.map(|(key, _)| key).collect::<Vec<_>>(), sorted);
                prop_assert!((0..20).all(|id| keys.get(id) == model.get(&id).copied()));
                prop_assert_eq!(heap.places.len(), model.len(), "nothing is kept of removed items");
            }
        }
    }
}
