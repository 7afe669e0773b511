//! Sets of SMs.

use std::ops::Range;

/// A set of SMs of a device, with a bit for each. Each operation costs a step for every 64 SMs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct SmSet {
    words: Vec<u64>,
}

impl SmSet {
    /// An empty set, for a device with `sms` SMs.
    pub fn new(sms: usize) -> SmSet {
        SmSet { words: vec![0; sms.div_ceil(64)] }
    }

    /// Empties the set, for a device with `sms` SMs.
    pub fn clear(&mut self, sms: usize) {
        self.words.clear();
        self.words.resize(sms.div_ceil(64), 0);
    }

    pub fn insert(&mut self, sms: Range<usize>) {
        words(sms).for_each(|(word, mask)| self.words[word] |= mask);
    }

    pub fn remove(&mut self, sms: Range<usize>) {
        words(sms).for_each(|(word, mask)| self.words[word] &= !mask);
    }

    /// The number of SMs of a range in the set.
    pub fn count(&self, sms: Range<usize>) -> u32 {
        words(sms).map(|(word, mask)| (self.words[word] & mask).count_ones()).sum()
    }

    /// The first SM of a range in the set.
    pub fn first(&self, sms: Range<usize>) -> Option<usize> {
        first(words(sms).map(|(word, mask)| (word, self.words[word] & mask)))
    }

    /// The runs of SMs of a range that are not in the set.
    pub fn gaps(&self, sms: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let Range { mut start, end } = sms;
        std::iter::from_fn(move || {
            let missing = words(start..end).map(|(word, mask)| (word, !self.words[word] & mask));
            let gap = first(missing)?;
            start = self.first(gap..end).unwrap_or(end);
            Some(gap..start)
        })
    }
}

/// A range of bits, by the words of 64 in which they are.
fn words(bits: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let Range { mut start, end } = bits;
    std::iter::from_fn(move || {
        let (from, word) = (start % 64, start / 64);
        let to = (end - word * 64).min(64);
        start = word * 64 + to;
        (from < to).then(|| (word, u64::MAX << from & u64::MAX >> (64 - to)))
    })
}

/// The first bit of some words.
fn first(mut words: impl Iterator<Item = (usize, u64)>) -> Option<usize> {
    words
        .find(|&(_, bits)| bits != 0)
        .map(|(word, bits)| word * 64 + bits.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// SMs of a device of 300.
    fn range() -> impl Strategy<Value = Range<usize>> {
        (0usize..300, 0usize..300).prop_map(|(a, b)| a.min(b)..a.max(b))
    }

    proptest! {
        #[test]
        fn it_has_what_a_list_has(
            steps in prop::collection::vec((range(), any::<bool>()), 0..8), asked in range(),
        ) {
            let mut set = SmSet::new(300);
            let mut list = [false; 300];
            for (range, is_in) in steps {
                if is_in { set.insert(range.clone()) } else { set.remove(range.clone()) }
                list[range].fill(is_in);
            }
            let has = |is_in: bool| asked.clone().filter(move |&sm| list[sm] == is_in);
            prop_assert_eq!(set.count(asked.clone()) as usize, has(true).count());
            prop_assert_eq!(set.first(asked.clone()), has(true).next());
            let gaps: Vec<_> = set.gaps(asked.clone()).collect();
            prop_assert!(gaps.iter().cloned().flatten().eq(has(false)), "{:?}", gaps);
            prop_assert!(gaps.windows(2).all(|two| two[0].end < two[1].start), "{:?}", gaps);
            set.clear(300);
            prop_assert_eq!(set, SmSet::new(300));
        }
    }
}
