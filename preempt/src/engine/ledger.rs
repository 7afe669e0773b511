//! Which launch has which SM.

use std::ops::Range;

use preempt_device::abi::{COHORT_SLOTS, SmRange};

use crate::vocabulary::{LaunchId, SmSet};

/// The owner of each SM, and whether blocks were launched for it.
#[derive(Debug)]
pub(super) struct Ledger {
    owners: Vec<Option<LaunchId>>,
    /// The SMs with another owner than the SM before.
    borders: SmSet,
    /// The SMs for which blocks were launched since their owners got them.
    covered: SmSet,
    /// The slot, of its owner's, in which the cohort is that was launched for each of these, if that is known.
    slots: Vec<Option<u8>>,
    /// Of the other SMs, those that the owner took from a launch that has yet to leave.
    taken: SmSet,
    /// The SMs that are granted in the plan that is being checked.
    granted: SmSet,
}

impl Ledger {
    pub fn new(sms: u32) -> Ledger {
        let owners = vec![None; sms as usize];
        let none = SmSet::new(owners.len());
        Ledger {
            owners,
            borders: none.clone(),
            covered: none.clone(),
            slots: vec![None; sms as usize],
            taken: none.clone(),
            granted: none,
        }
    }

    pub fn sms(&self) -> u32 {
        self.owners.len() as u32
    }

    /// The owner of each SM.
    pub fn owners(&self) -> &[Option<LaunchId>] {
        &self.owners
    }

    /// Starts to check a plan.
    pub fn begin_plan(&mut self) {
        self.granted.clear(self.owners.len());
    }

    /// Enters a grant into the plan. Fails with the first SM that it shares with another grant.
    pub fn plan(&mut self, range: SmRange) -> Result<(), u32> {
        for part in parts(range, self.sms()) {
            if let Some(sm) = self.granted.first(part.clone()) {
                return Err(sm as u32);
            }
            self.granted.insert(part);
        }
        Ok(())
    }

    /// Makes a grant of the plan true. Calls `lost` with each run of SMs that changes hands: its first SM, and its
    /// owner before.
    pub fn commit(&mut self, owner: LaunchId, range: SmRange, mut lost: impl FnMut(u32, LaunchId)) {
        for part in parts(range, self.sms()) {
            self.pass(part, Some(owner), &mut lost);
        }
    }

    /// Frees the SMs that the plan does not grant; calls `lost` as [`commit`](Ledger::commit) does.
    pub fn commit_rest(&mut self, mut lost: impl FnMut(u32, LaunchId)) {
        let granted = std::mem::take(&mut self.granted);
        for gap in granted.gaps(0..self.owners.len()) {
            self.pass(gap, None, &mut lost);
        }
        self.granted = granted;
    }

    /// Gives SMs to another owner, or frees them.
    fn pass(
        &mut self,
        sms: Range<usize>,
        owner: Option<LaunchId>,
        mut lost: impl FnMut(u32, LaunchId),
    ) {
        let mut start = sms.start;
        while start < sms.end {
            let end = self.borders.first(start + 1..sms.end).unwrap_or(sms.end);
            let before = self.owners[start];
            if before != owner {
                self.covered.remove(start..end);
                match before {
                    Some(loser) => {
                        self.taken.insert(start..end);
                        lost(start as u32, loser);
                    }
                    None => self.taken.remove(start..end),
                }
                self.hand(start..end, owner);
            }
            start = end;
        }
    }

    /// Writes down the owner of some SMs.
    fn hand(&mut self, sms: Range<usize>, owner: Option<LaunchId>) {
        let Range { start, end } = sms;
        self.owners[start..end].fill(owner);
        let count = self.owners.len();
        self.borders.remove(start..count.min(end + 1));
        for sm in [start, end] {
            if (1..count).contains(&sm) && self.owners[sm - 1] != self.owners[sm] {
                self.borders.insert(sm..sm + 1);
            }
        }
    }

    /// Hands over free SMs, with blocks for them on the device.
    pub fn hand_over(&mut self, owner: LaunchId, range: SmRange) {
        for part in parts(range, self.sms()) {
            debug_assert!(
                self.owners[part.clone()].iter().all(Option::is_none),
                "they have owners"
            );
            self.hand(part, Some(owner));
        }
        self.cover(range);
    }

    /// Whether no SM has an owner.
    pub fn is_free(&self) -> bool {
        self.owners.iter().all(Option::is_none)
    }

    /// Frees the SMs of a launch.
    pub fn release(&mut self, range: SmRange) {
        for part in parts(range, self.sms()) {
            self.hand(part, None);
        }
        self.uncover(range);
    }

    /// How many of a launch's SMs have no blocks launched for them.
    pub fn uncovered(&self, range: SmRange) -> u32 {
        let open = |part: Range<usize>| part.len() as u32 - self.covered.count(part);
        parts(range, self.sms()).map(open).iter().sum()
    }

    /// Whether one of them is the last SM of the device.
    pub fn is_last_uncovered(&self, range: SmRange) -> bool {
        let last = self.owners.len() - 1;
        range.contains(last as u32) && self.covered.count(last..last + 1) == 0
    }

    /// Whether a launch took any of its SMs without blocks from another one.
    pub fn has_taken(&self, range: SmRange) -> bool {
        parts(range, self.sms()).into_iter().any(|part| self.taken.first(part).is_some())
    }

    /// Whether an SM outside of this range has an owner.
    pub fn has_others(&self, range: SmRange) -> bool {
        let outside = |&(sm, _): &(u32, _)| !range.contains(sm);
        (0..).zip(&self.owners).filter(outside).any(|(_, owner)| owner.is_some())
    }

    /// Notes that no further blocks are needed for SMs of a launch.
    pub fn cover(&mut self, range: SmRange) {
        self.cover_by(range, None);
    }

    /// Notes that blocks were launched for the SMs of a launch that had none, as the cohort in this slot.
    pub fn cover_by(&mut self, range: SmRange, slot: Option<u8>) {
        for part in parts(range, self.sms()) {
            for gap in self.covered.gaps(part.clone()) {
                self.slots[gap].fill(slot);
            }
            self.covered.insert(part.clone());
            self.taken.remove(part);
        }
    }

    /// The number of a launch's SMs for which the cohort in each slot was launched.
    pub fn covered_by_slot(&self, range: SmRange) -> [u32; COHORT_SLOTS] {
        let mut counts = [0; COHORT_SLOTS];
        for part in parts(range, self.sms()) {
            for sm in part.filter(|&sm| self.covered.first(sm..sm + 1).is_some()) {
                if let Some(slot) = self.slots[sm] {
                    counts[usize::from(slot)] += 1;
                }
            }
        }
        counts
    }

    /// The slot of the cohort that was launched for an SM, if one was and that is known.
    pub fn slot(&self, sm: u32) -> Option<u8> {
        let at = sm as usize;
        self.slots[at].filter(|_| self.covered.first(at..at + 1).is_some())
    }

    /// Whether an SM's blocks can be of the cohort in this slot.
    pub fn may_be_of(&self, sm: u32, slot: usize) -> bool {
        self.slot(sm).is_none_or(|of| usize::from(of) == slot)
    }

    /// Notes that the cohort in this slot leaves the SMs that it was launched for.
    pub fn uncover_slot(&mut self, range: SmRange, slot: u8) {
        for part in parts(range, self.sms()) {
            for sm in part.filter(|&sm| self.slots[sm] == Some(slot)) {
                self.covered.remove(sm..sm + 1);
            }
        }
    }

    /// Notes that the blocks of a launch have left its SMs.
    pub fn uncover(&mut self, range: SmRange) {
        for part in parts(range, self.sms()) {
            self.covered.remove(part.clone());
            self.taken.remove(part);
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

/// The SMs in a range that a device of `sms` SMs has. The second part is the one that wraps around.
fn parts(range: SmRange, sms: u32) -> [Range<usize>; 2] {
    let (lo, hi, sms) = (range.lo() as usize, range.hi() as usize, sms as usize);
    if lo <= hi { [lo.min(sms)..hi.min(sms), 0..0] } else { [lo.min(sms)..sms, 0..hi.min(sms)] }
}

/// What blocks are told to keep to whose word grants `granted`, of a launch that has this range now.
///
/// That is what lies in both. Of two pieces, a word can grant one alone, and all blocks on the other would leave SMs that the launch
/// has. Then the SMs between the pieces are some that it has lost before and has again; other blocks come for them. To grant these
/// costs nothing: blocks that have left stay away.
pub(super) fn kept(granted: SmRange, range: SmRange, sms: u32) -> SmRange {
    match pieces(granted, range, sms) {
        [_, second] if !second.is_empty() => range,
        [first, _] => range_of(first, sms),
    }
}

/// The SMs of a device of `sms` SMs that lie in both ranges. Of two pieces, the larger one, because a signal word has
/// one range; the first one if they are as large.
pub(super) fn intersection(a: SmRange, b: SmRange, sms: u32) -> SmRange {
    let [first, second] = pieces(a, b, sms);
    range_of(if second.len() > first.len() { second } else { first }, sms)
}

/// The one or two runs of SMs that lie in both ranges, by their first SMs. One of them may go on beyond the last SM of the device,
/// with the first one.
fn pieces(a: SmRange, b: SmRange, sms: u32) -> [Range<usize>; 2] {
    let overlap = |one: &Range<usize>, other: &Range<usize>| {
        one.start.max(other.start)..one.end.min(other.end)
    };
    if a.lo() <= a.hi() && b.lo() <= b.hi() {
        let run = |of: SmRange| of.lo() as usize..of.hi().min(sms) as usize;
        return [overlap(&run(a), &run(b)), 0..0];
    }
    let [first, second] = parts(a, sms);
    let [third, fourth] = parts(b, sms);
    let mut pieces = [
        overlap(&first, &third),
        overlap(&first, &fourth),
        overlap(&second, &third),
        overlap(&second, &fourth),
    ];
    pieces.sort_unstable_by_key(|piece| (piece.is_empty(), piece.start));
    let count = pieces.iter().take_while(|piece| !piece.is_empty()).count();
    let pieces = &mut pieces[..count];
    // The first SM is beside the last one.
    if let [head, .., tail] = pieces
        && head.start == 0
        && tail.end == sms as usize
    {
        tail.end += head.end;
        *head = 0..0;
    }
    let mut runs = pieces.iter().filter(|piece| !piece.is_empty()).cloned();
    let mut next = || runs.next().unwrap_or(0..0);
    [next(), next()]
}

/// A run of SMs, which may go on beyond the last SM of the device.
fn range_of(run: Range<usize>, sms: u32) -> SmRange {
    if run.is_empty() {
        return SmRange::EMPTY;
    }
    let (lo, hi) = (run.start as u32, run.end as u32);
    if hi - lo >= sms { SmRange::new(0, sms) } else { SmRange::new(lo, (hi - 1) % sms + 1) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slotmap::SlotMap;

    use super::*;

    /// The state of an SM: its owner, and whether blocks were launched for it or it was taken from another launch.
    #[derive(Clone, Copy, PartialEq, Debug, Default)]
    struct Sm {
        owner: Option<LaunchId>,
        covered: bool,
        taken: bool,
    }

    impl Sm {
        /// Gives it to another owner, or frees it; the owner before.
        fn pass(&mut self, owner: Option<LaunchId>) -> Option<LaunchId> {
            let before = self.owner.filter(|_| self.owner != owner);
            if self.owner != owner {
                *self = Sm { owner, covered: false, taken: before.is_some() };
            }
            before
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum LedgerStep {
        Commit(usize),
        Rest,
        HandOver(usize),
        Release,
        Cover,
        Uncover,
    }

    fn entry() -> impl Strategy<Value = LedgerStep> {
        prop_oneof![
            4 => (0usize..3).prop_map(LedgerStep::Commit),
            1 => Just(LedgerStep::Rest),
            1 => (0usize..3).prop_map(LedgerStep::HandOver),
            1 => Just(LedgerStep::Release),
            2 => Just(LedgerStep::Cover),
            1 => Just(LedgerStep::Uncover),
        ]
    }

    proptest! {
        #[test]
        fn the_books_say_what_books_of_each_sm_say(
            sms in prop::sample::select(vec![1u32, 5, 64, 70]),
            entries in prop::collection::vec((entry(), any::<u16>(), any::<u16>()), 0..40),
        ) {
            let mut ids = SlotMap::with_key();
            let ids = [0; 3].map(|_| LaunchId(ids.insert(())));
            let mut ledger = Ledger::new(sms);
            let mut model = vec![Sm::default(); sms as usize];
            for (entry, lo, hi) in entries {
                let range = SmRange::new(u32::from(lo) % sms, u32::from(hi) % sms + 1);
                let is_in = |sm: usize| range.contains(sm as u32);
                let (mut lost, mut expected) = (Vec::new(), Vec::new());
                let mut note = |sm, loser| lost.push((sm, loser));
                let before = model.clone();
                match entry {
                    LedgerStep::Commit(id) => ledger.commit(ids[id], range, &mut note),
                    LedgerStep::Rest => {
                        ledger.begin_plan();
                        prop_assert_eq!(ledger.plan(range), Ok(()));
                        ledger.commit_rest(&mut note);
                    }
                    LedgerStep::HandOver(id) => {
                        ledger.release(range);
                        ledger.hand_over(ids[id], range);
                    }
                    LedgerStep::Release => ledger.release(range),
                    LedgerStep::Cover => ledger.cover(range),
                    LedgerStep::Uncover => ledger.uncover(range),
                }
                for (at, sm) in model.iter_mut().enumerate() {
                    let loser = match entry {
                        LedgerStep::Commit(id) if is_in(at) => sm.pass(Some(ids[id])),
                        LedgerStep::Rest if !is_in(at) => sm.pass(None),
                        LedgerStep::HandOver(id) if is_in(at) => {
                            *sm = Sm { owner: Some(ids[id]), covered: true, taken: false };
                            None
                        }
                        LedgerStep::Release if is_in(at) => {
                            *sm = Sm::default();
                            None
                        }
                        LedgerStep::Cover | LedgerStep::Uncover if is_in(at) => {
                            let covered = matches!(entry, LedgerStep::Cover);
                            *sm = Sm { owner: sm.owner, covered, taken: false };
                            None
                        }
                        _ => None,
                    };
                    expected.extend(loser.map(|loser| (at as u32, loser)));
                }
                // Each run is told by its first SM.
                let is_first = |&(sm, loser): &(u32, LaunchId)| {
                    let at = sm as usize;
                    at == 0 || is_in(at) != is_in(at - 1) || before[at - 1].owner != Some(loser)
                };
                expected.retain(is_first);
                lost.sort_unstable();
                prop_assert_eq!(lost, expected, "{:?} of {:?}", entry, range);
                let owners = model.iter().map(|sm| sm.owner);
                prop_assert!(ledger.owners().iter().copied().eq(owners));
                prop_assert_eq!(ledger.is_free(), model.iter().all(|sm| sm.owner.is_none()));
                let sms = || (0..).zip(&model).filter(|(sm, _)| is_in(*sm)).map(|(_, sm)| sm);
                let uncovered = sms().filter(|sm| !sm.covered).count();
                prop_assert_eq!(ledger.uncovered(range) as usize, uncovered);
                prop_assert_eq!(ledger.has_taken(range), sms().any(|sm| sm.taken));
                let last = is_in(model.len() - 1) && !model[model.len() - 1].covered;
                prop_assert_eq!(ledger.is_last_uncovered(range), last);
            }
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

        #[test]
        fn blocks_keep_all_sms_that_their_launch_has(
            sms in 1u32..12, a in (0u32..12, 0u32..12), b in (0u32..12, 0u32..12),
        ) {
            let range = |(lo, hi): (u32, u32)| SmRange::new(lo % sms, hi % (sms + 1));
            let (granted, has) = (range(a), range(b));
            let kept = kept(granted, has, sms);
            let both = |sm: u32| granted.contains(sm) && has.contains(sm);
            for sm in 0..sms {
                prop_assert!(!kept.contains(sm) || has.contains(sm), "{sm} in {kept:?}");
                prop_assert!(kept.contains(sm) || !both(sm), "{sm} not in {kept:?}");
            }
            let one = intersection(granted, has, sms);
            if count(one, sms) == (0..sms).filter(|&sm| both(sm)).count() as u32 {
                prop_assert_eq!(kept, one, "no more than that where it is one piece");
            }
        }
    }
}
