//! Which launch has which SM.

use std::ops::Range;

use preempt_device::abi::SmRange;

use super::LaunchId;

/// For each SM: who has it, and what was done about it.
#[derive(Debug)]
pub(super) struct Ledger {
    owners: Vec<Option<LaunchId>>,
    states: Vec<State>,
    /// A bit for each SM that is granted in the plan that is being looked at.
    granted: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Nobody has it, or there are no blocks for it yet.
    Open,
    /// As above, and the owner took it from another launch, which has yet to leave.
    Taken,
    /// Blocks were launched for it since the owner got it.
    Covered,
}

impl Ledger {
    pub fn new(sms: u32) -> Ledger {
        let sms = sms as usize;
        let granted = vec![0; sms.div_ceil(64)];
        Ledger { owners: vec![None; sms], states: vec![State::Open; sms], granted }
    }

    pub fn sms(&self) -> u32 {
        self.owners.len() as u32
    }

    /// Who has each SM.
    pub fn owners(&self) -> &[Option<LaunchId>] {
        &self.owners
    }

    /// Starts to look at a plan.
    pub fn begin_plan(&mut self) {
        self.granted.fill(0);
    }

    /// Enters a grant into the plan; the first SM that it shares with another grant if there is one.
    pub fn plan(&mut self, range: SmRange) -> Result<(), u32> {
        for part in parts(range, self.sms()) {
            for (word, mask) in words(part) {
                let granted = &mut self.granted[word];
                if *granted & mask != 0 {
                    return Err(word as u32 * 64 + (*granted & mask).trailing_zeros());
                }
                *granted |= mask;
            }
        }
        Ok(())
    }

    /// Makes a grant of the plan true; calls `lost` with each run of SMs that changes hands: its first one, and whose
    /// it was.
    pub fn commit(&mut self, owner: LaunchId, range: SmRange, mut lost: impl FnMut(u32, LaunchId)) {
        for part in parts(range, self.sms()) {
            let mut sm = part.start;
            for run in self.owners[part].chunk_by_mut(|a, b| a == b) {
                let end = sm + run.len();
                let before = run[0];
                if before != Some(owner) {
                    let state = if before.is_some() { State::Taken } else { State::Open };
                    self.states[sm..end].fill(state);
                    before.into_iter().for_each(|loser| lost(sm as u32, loser));
                    run.fill(Some(owner));
                }
                sm = end;
            }
        }
    }

    /// Takes back what the plan grants to nobody; calls `lost` as [`commit`](Ledger::commit) does, with each SM.
    pub fn commit_rest(&mut self, mut lost: impl FnMut(u32, LaunchId)) {
        for (word, mask) in words(0..self.owners.len()) {
            let mut rest = !self.granted[word] & mask;
            while rest != 0 {
                let sm = word * 64 + rest.trailing_zeros() as usize;
                rest &= rest - 1;
                if let Some(loser) = self.owners[sm].take() {
                    self.states[sm] = State::Taken;
                    lost(sm as u32, loser);
                }
            }
        }
    }

    /// Hands over SMs that nobody has, with blocks for them on the device.
    pub fn inherit(&mut self, owner: LaunchId, range: SmRange) {
        for part in parts(range, self.sms()) {
            debug_assert!(
                self.owners[part.clone()].iter().all(Option::is_none),
                "they have owners"
            );
            self.owners[part].fill(Some(owner));
        }
        self.set(range, State::Covered);
    }

    /// Whether nobody has any SM.
    pub fn is_free(&self) -> bool {
        self.owners.iter().all(Option::is_none)
    }

    /// Takes back what a launch has.
    pub fn release(&mut self, range: SmRange) {
        for part in parts(range, self.sms()) {
            self.owners[part].fill(None);
        }
        self.set(range, State::Open);
    }

    /// How many of a launch's SMs have no blocks launched for them.
    pub fn uncovered(&self, range: SmRange) -> u32 {
        let open = |part| {
            let states: &[State] = &self.states[part];
            states.iter().filter(|state| **state != State::Covered).count() as u32
        };
        parts(range, self.sms()).map(open).iter().sum()
    }

    /// Whether one of them is the last SM of the device.
    pub fn is_last_uncovered(&self, range: SmRange) -> bool {
        let last = self.states.len() - 1;
        range.contains(last as u32) && self.states[last] != State::Covered
    }

    /// Whether a launch took any of its SMs without blocks from another one.
    pub fn has_taken(&self, range: SmRange) -> bool {
        parts(range, self.sms()).into_iter().any(|part| self.states[part].contains(&State::Taken))
    }

    /// Blocks were launched for a launch's SMs.
    pub fn cover(&mut self, range: SmRange) {
        self.set(range, State::Covered);
    }

    /// A launch's blocks have left its SMs.
    pub fn uncover(&mut self, range: SmRange) {
        self.set(range, State::Open);
    }

    fn set(&mut self, range: SmRange, state: State) {
        for part in parts(range, self.sms()) {
            self.states[part].fill(state);
        }
    }
}

/// How many SMs of a device of `sms` SMs are in a range.
pub(crate) fn count(range: SmRange, sms: u32) -> u32 {
    parts(range, sms).iter().map(|part| part.len() as u32).sum()
}

/// The first `count` SMs of a range.
pub(super) fn first(range: SmRange, count: u32, sms: u32) -> SmRange {
    match count {
        0 => SmRange::EMPTY,
        _ if count >= self::count(range, sms) => range,
        _ => SmRange::new(range.lo(), (range.lo() + count - 1) % sms + 1),
    }
}

/// The SMs in a range that a device of `sms` SMs has; the second part is what wraps around.
fn parts(range: SmRange, sms: u32) -> [Range<usize>; 2] {
    let (lo, hi, sms) = (range.lo() as usize, range.hi() as usize, sms as usize);
    if lo <= hi { [lo.min(sms)..hi.min(sms), 0..0] } else { [lo.min(sms)..sms, 0..hi.min(sms)] }
}

/// A range of bits, by the words of 64 in which they are.
fn words(bits: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let Range { start, end } = bits;
    (start / 64..end.div_ceil(64)).map(move |word| {
        let from = start.max(word * 64) - word * 64;
        let to = end.min(word * 64 + 64) - word * 64;
        (word, if to > from { u64::MAX >> (64 - (to - from)) << from } else { 0 })
    })
}

/// The SMs of a device of `sms` SMs that lie in both ranges; if these are in two pieces, the
/// larger one: a signal word has one range.
pub(super) fn intersection(a: SmRange, b: SmRange, sms: u32) -> SmRange {
    if a.lo() <= a.hi() && b.lo() <= b.hi() {
        let (lo, hi) = (a.lo().max(b.lo()), a.hi().min(b.hi()).min(sms));
        return if lo < hi { SmRange::new(lo, hi) } else { SmRange::EMPTY };
    }
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
        fn words_have_the_bits_of_the_range_and_no_others(start in 0usize..300, length in 0usize..300) {
            let range = start..start + length;
            let mut found = Vec::new();
            for (word, mask) in words(range.clone()) {
                found.extend((0..64).filter(|bit| mask >> bit & 1 == 1).map(|bit| word * 64 + bit));
            }
            prop_assert_eq!(found, range.collect::<Vec<_>>());
        }

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
