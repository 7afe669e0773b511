//! Lists of very different lengths, one after another in an array: rows of sparse matrices, neighbours in
//! graphs. Where a list starts is a closed formula, so that no lengths have to be added up.

use preempt_device::prelude::*;

use crate::input::hash;

/// How long the lists are.
///
/// Lists `2 k` and `2 k + 1` have `2 * (least + spread)` elements together, in shares from the seed, neither
/// of them below `least`. One list of each `group` in a row has `long` elements more; which one is from the
/// seed. List 0 has `least + spread` elements whatever the seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, KernelArg)]
#[repr(C)]
pub struct Lists {
    /// The fewest elements of a list.
    pub least: u32,
    /// What a list has more than that in the mean; at most, it is twice this.
    pub spread: u32,
    /// What a long list has more than others.
    pub long: u32,
    /// One of how many lists in a row is long: 2 or more.
    pub group: u32,
}

impl Lists {
    /// Where list `list` starts: how many elements are in those before it.
    #[inline(always)]
    pub const fn start(self, seed: u32, list: u32) -> u32 {
        let mean = self.least + self.spread;
        let (group, within) = (list / self.group, list % self.group);
        let place = 1 + hash(!seed, group) % (self.group - 1);
        let long = self.long * (group + (within > place) as u32);
        let pair = list / 2;
        if list.is_multiple_of(2) {
            return pair * 2 * mean + long;
        }
        let share = if pair == 0 { self.spread } else { hash(seed, pair) % (2 * self.spread + 1) };
        pair * 2 * mean + self.least + share + long
    }
}

/// `starts[i] = lists.start(seed, i)`; the grid may be larger than `starts`.
#[preemptible(block = 256)]
pub fn list_starts(lists: Lists, seed: u32, starts: SliceMut<u32>) {
    let i = thread::index_1d();
    if (i as usize) < starts.len() {
        // SAFETY: each thread writes its own element.
        unsafe { starts.write(i as usize, lists.start(seed, i)) }
    }
}

#[cfg(test)]
mod tests {
    use super::Lists;

    #[test]
    fn lengths_are_as_said() {
        let lists = Lists { least: 3, spread: 5, long: 1000, group: 64 };
        for seed in [0, 1, 77] {
            let length = |list| lists.start(seed, list + 1) - lists.start(seed, list);
            assert_eq!(lists.start(seed, 0), 0);
            assert_eq!(length(0), 8);
            assert_eq!(lists.start(seed, 640), 640 * 8 + 10 * 1000);
            let (short, long): (Vec<u32>, _) = (0..640).map(length).partition(|&n| n < 1000);
            assert_eq!(long.len(), 10);
            assert!(short.iter().all(|n| (3..=13).contains(n)));
            assert!((3..=13).all(|n| short.contains(&n)), "all lengths are there");
        }
    }
}
