//! Which launch has which SM.

use std::ops::Range;

use preempt_device::abi::SmRange;

use super::LaunchId;

/// For each SM: who has it, and what was done about it.
#[derive(Debug)]
pub(super) struct Ledger {
    owners: Vec<Option<LaunchId>>,
    states: Vec<State>,
    /// The owners in the plan that is being looked at.
    planned: Vec<Option<LaunchId>>,
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
        Ledger { owners: vec![None; sms], states: vec![State::Open; sms], planned: vec![None; sms] }
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
        self.planned.fill(None);
    }

    /// Enters a grant into the plan; the first SM that it shares with another grant if there is one.
    pub fn plan(&mut self, owner: LaunchId, range: SmRange) -> Result<(), u32> {
        for part in parts(range, self.sms()) {
            let planned = &mut self.planned[part.clone()];
            if let Some(twice) = planned.iter().position(Option::is_some) {
                return Err((part.start + twice) as u32);
            }
            planned.fill(Some(owner));
        }
        Ok(())
    }

    /// Makes the plan true; calls `lost` with the owner of each SM that changes hands.
    pub fn commit_plan(&mut self, mut lost: impl FnMut(LaunchId)) {
        let entries = self.owners.iter_mut().zip(&mut self.states);
        for ((owner, state), &planned) in entries.zip(&self.planned) {
            if *owner != planned {
                *state = if owner.is_some() { State::Taken } else { State::Open };
                owner.iter().copied().for_each(&mut lost);
                *owner = planned;
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
