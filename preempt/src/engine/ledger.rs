//! Which launch has which SM.

use preempt_device::abi::SmRange;

use super::OpKey;

/// One entry for each SM.
#[derive(Debug)]
pub(super) struct Ledger {
    entries: Vec<Entry>,
    /// The owners in the plan that is being looked at.
    planned: Vec<Option<OpKey>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    owner: Option<OpKey>,
    /// Whether blocks were launched for this SM since the owner got it.
    covered: bool,
}

impl Ledger {
    pub fn new(sms: u32) -> Ledger {
        let sms = sms as usize;
        Ledger { entries: vec![Entry::default(); sms], planned: vec![None; sms] }
    }

    pub fn sms(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Who has an SM.
    pub fn owner(&self, sm: u32) -> Option<OpKey> {
        self.entries.get(sm as usize)?.owner
    }

    /// Starts to look at a plan.
    pub fn begin_plan(&mut self) {
        self.planned.fill(None);
    }

    /// Enters a grant into the plan; the first SM that it shares with another grant if there is one.
    pub fn plan(&mut self, owner: OpKey, range: SmRange) -> Result<(), u32> {
        for sm in sms_of(range, self.sms()) {
            if self.planned[sm as usize].replace(owner).is_some() {
                return Err(sm);
            }
        }
        Ok(())
    }

    /// Makes the plan true; calls `lost` with the owner of each SM that changes hands.
    pub fn commit_plan(&mut self, mut lost: impl FnMut(OpKey)) {
        for (entry, &planned) in self.entries.iter_mut().zip(&self.planned) {
            if entry.owner != planned {
                entry.owner.into_iter().for_each(&mut lost);
                *entry = Entry { owner: planned, covered: false };
            }
        }
    }

    /// Takes back what a launch has.
    pub fn release(&mut self, range: SmRange) {
        for sm in sms_of(range, self.sms()) {
            self.entries[sm as usize] = Entry::default();
        }
    }

    /// How many of a launch's SMs have no blocks launched for them.
    pub fn uncovered(&self, range: SmRange) -> u32 {
        sms_of(range, self.sms()).filter(|&sm| !self.entries[sm as usize].covered).count() as u32
    }

    /// Says whether blocks were launched for a launch's SMs.
    pub fn set_covered(&mut self, range: SmRange, covered: bool) {
        for sm in sms_of(range, self.sms()) {
            self.entries[sm as usize].covered = covered;
        }
    }
}

/// The SMs in a range that a device of `sms` SMs has.
fn sms_of(range: SmRange, sms: u32) -> impl Iterator<Item = u32> {
    let (lo, hi) = (range.lo(), range.hi());
    let (first, wrapped) = if lo <= hi { (lo..hi.min(sms), 0..0) } else { (lo..sms, 0..hi) };
    first.chain(wrapped)
}

/// The SMs of a device of `sms` SMs that lie in both ranges; if these are in two pieces, the
/// larger one: a signal word has one range.
pub(super) fn intersection(a: SmRange, b: SmRange, sms: u32) -> SmRange {
    let in_both = |sm: u32| a.contains(sm % sms) && b.contains(sm % sms);
    let mut best = SmRange::EMPTY;
    let (mut best_length, mut length) = (0, 0);
    // Twice around, for pieces that wrap.
    for sm in 0..2 * sms {
        length = if in_both(sm) { (length + 1).min(sms) } else { 0 };
        if length > best_length {
            best_length = length;
            let (lo, hi) = ((sm + 1 - length) % sms, sm % sms + 1);
            best = if length == sms { SmRange::new(0, sms) } else { SmRange::new(lo, hi) };
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_intersection_is_in_both_and_as_long_as_any_piece(
            sms in 1u32..12, a in (0u32..12, 0u32..12), b in (0u32..12, 0u32..12),
        ) {
            let range = |(lo, hi): (u32, u32)| SmRange::new(lo % sms, hi % (sms + 1));
            let (a, b) = (range(a), range(b));
            let both = |sm: u32| a.contains(sm % sms) && b.contains(sm % sms);
            let result = intersection(a, b, sms);
            let length = (0..sms).filter(|&sm| result.contains(sm)).count() as u32;
            for sm in 0..sms {
                prop_assert!(!result.contains(sm) || both(sm));
            }
            for start in 0..sms {
                let run = (start..start + sms).take_while(|&sm| both(sm)).count() as u32;
                prop_assert!(run <= length, "a piece of {run}, but {result:?}");
            }
        }
    }
}
