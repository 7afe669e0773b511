//! Loops that come to an end whatever other blocks write.

use super::addresses::{SIZE_DEPTH, is_cast};
use super::{Loop, Reads};
use crate::code::{Budget, Id, Space, Step, TooLarge};
use crate::tree::Operand;

/// Rounds that a loop which looks at other blocks' writes may take: a bound above this is no bound.
const MOST_ROUNDS: i64 = 1 << 24;
/// Steps from a condition to what decides it.
pub(super) const DEPTH: usize = 8;

/// Where a register of the loop goes from round to round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Up,
    Down,
    /// By a number that is not known here and stays the same in the loop.
    Either,
}

/// How a loop is known to end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum End {
    /// After a number of rounds that is not known here, and may be as good as none.
    AtBound,
    /// After a number of looks at what other blocks write.
    Looked,
    /// Soon, or as soon as what is read says.
    Certain,
}

impl Loop<'_, '_> {
    /// How an exit that is looked at in each round is taken at some time, whatever is read; `None` if none is.
    pub(super) fn end(
        &self,
        exits: &[usize],
        reads: Reads,
        budget: &mut Budget,
    ) -> Result<Option<End>, TooLarge> {
        let mut end = None;
        for &exit in exits {
            if self.goes_round_past(&[exit], budget)? {
                continue;
            }
            let (last, _) = self.decides(exit);
            let step = &self.code.steps[last];
            let (Some(guard), Some(of)) = (step.guard, step.of.guard) else { continue };
            // The way that leaves is taken where the guard holds, unless that is the way back.
            let goes_on = match step.targets.as_deref() {
                Some(&[target]) => self.inside[self.flow.block_of[target]],
                _ => false,
            };
            let next = self.flow.block_of[self.flow.blocks[exit].end];
            if goes_on == self.inside[next] {
                continue;
            }
            let leaves_if = goes_on == of.is_negated;
            end = end.max(self.comes_true(guard, leaves_if, reads, DEPTH, budget)?);
        }
        Ok(end)
    }

    /// Whether all that the exits depend on are ordinary loads whose addresses move on by one direction: a walk along an array.
    pub(super) fn moves_on(
        &self,
        found: &[(usize, Reads)],
        budget: &mut Budget,
    ) -> Result<bool, TooLarge> {
        for &(at, reads) in found {
            let step = &self.code.steps[at];
            let address = step.uses.iter().copied().find(|&id| Some(id) != step.guard);
            let Some(address) = address.filter(|_| reads == Reads::Plain && step.root() == "ld")
            else {
                return Ok(false);
            };
            if !self.is_carried(at, address, budget)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The one instruction of the loop that writes a register, where no guard makes that depend.
    pub(super) fn only(&self, id: Id) -> Option<usize> {
        let mut defs = self.defs(id);
        let first = defs.next().filter(|_| defs.next().is_none())?;
        self.code.steps[first].guard.is_none().then_some(first)
    }

    pub(super) fn stays(&self, id: Id) -> bool {
        self.defs(id).next().is_none()
    }

    fn is_loaded(&self, id: Id) -> bool {
        self.only(id).is_some_and(|at| self.code.steps[at].root() == "ld")
    }

    /// Whether a condition is `wanted` at some time.
    fn comes_true(
        &self,
        id: Id,
        wanted: bool,
        reads: Reads,
        depth: usize,
        budget: &mut Budget,
    ) -> Result<Option<End>, TooLarge> {
        budget.spend(1)?;
        let (Some(at), Some(depth)) = (self.only(id), depth.checked_sub(1)) else {
            return Ok(None);
        };
        let step = &self.code.steps[at];
        let mut either = |wanted: bool| {
            let mut end = None;
            for &id in &step.uses {
                end = end.max(self.comes_true(id, wanted, reads, depth, budget)?);
            }
            Ok(end)
        };
        match step.root() {
            "not" if step.of.has("pred") => either(!wanted),
            "mov" if step.of.has("pred") => either(wanted),
            "and" if step.of.has("pred") && !wanted => either(wanted),
            "or" if step.of.has("pred") && wanted => either(wanted),
            // Two results, or joined with another condition.
            "setp" if step.defs.len() == 1 && !step.of.has_any(&["and", "or", "xor"]) => {
                self.compares(at, wanted, reads, budget)
            }
            _ => Ok(None),
        }
    }

    fn compares(
        &self,
        at: usize,
        wanted: bool,
        reads: Reads,
        budget: &mut Budget,
    ) -> Result<Option<End>, TooLarge> {
        let step = &self.code.steps[at];
        let comparison = step.of.opcode.split('.').nth(1).unwrap_or_default();
        let (Some(left), Some(right)) = (step.of.operand(1), step.of.operand(2)) else {
            return Ok(None);
        };
        let ids = |operand: &Operand<'_>| -> Option<Id> {
            step.uses.iter().copied().find(|&id| operand.name() == Some(self.code.names[id]))
        };
        if self.retries(comparison, wanted, (ids(left), ids(right)), budget)? {
            return Ok(Some(End::Certain));
        }
        let mut at_bound = None;
        for (own, other, is_left) in [(left, right, true), (right, left, false)] {
            let Some(id) = ids(own) else { continue };
            let bound = other.integer();
            let stays = bound.is_some() || ids(other).is_some_and(|id| self.stays(id));
            let claim = self.only(id).filter(|&at| is_counter_claim(&self.code.steps[at]));
            if let Some(at) = claim.filter(|_| stays)
                && self.writes_there_alone(at, budget)?
            {
                let is_reached = ends_by(comparison, wanted, is_left, Direction::Up);
                if is_reached && comparison != "eq" && comparison != "ne" {
                    return Ok(Some(End::Certain));
                }
            }
            let is_within = |limit: i64| bound.is_some_and(|bound| bound.abs() <= limit);
            let is_bound = match reads {
                // By a step of more than one, equality may be missed.
                Reads::Others => is_within(MOST_ROUNDS) && !matches!(comparison, "eq" | "ne"),
                // What an ordinary load gives may change from round to round, but does not run ahead of what is compared.
                _ if bound.is_none() => stays || ids(other).is_some_and(|id| self.is_loaded(id)),
                _ => is_within(i64::from(i32::MAX) - 1),
            };
            let is_short = step.of.has_any(&["u16", "s16", "b16"]);
            let is_below = matches!(comparison, "lt" | "le" | "lo" | "ls") == (is_left == wanted);
            // Nothing without a sign is less than 0, and -1 is the largest.
            let is_unsigned = step.of.has_any(&["u16", "u32", "u64"]);
            let is_never =
                is_unsigned && (is_within(0) && is_below || bound.is_some_and(|bound| bound < 0));
            if !is_bound || is_never || is_short && bound.is_some() && !is_within(1 << 14) {
                continue;
            }
            if let Some((direction, registers)) = self.direction(id, budget)?
                && (reads != Reads::Others
                    || direction != Direction::Either && self.starts_near(&registers))
                && ends_by(comparison, wanted, is_left, direction)
            {
                if reads == Reads::Others {
                    at_bound = Some(End::Looked);
                    continue;
                }
                if is_within(MOST_ROUNDS) || ids(other).is_some_and(|id| self.is_loaded(id)) {
                    return Ok(Some(End::Certain));
                }
                at_bound = at_bound.max(Some(End::AtBound));
            }
        }
        Ok(at_bound)
    }

    /// A compare-and-swap that is tried again with what it found: of all that try at once, one gets on.
    fn retries(
        &self,
        comparison: &str,
        wanted: bool,
        sides: (Option<Id>, Option<Id>),
        budget: &mut Budget,
    ) -> Result<bool, TooLarge> {
        let (Some(a), Some(b)) = sides else { return Ok(false) };
        if !(comparison == "eq" && wanted || comparison == "ne" && !wanted) {
            return Ok(false);
        }
        for (found, assumed) in [(a, b), (b, a)] {
            let Some(at) = self.only(found) else { continue };
            let swap = &self.code.steps[at];
            let compared = swap.of.operand(2).and_then(|operand| operand.name());
            // Nothing but what it found before, or a look at the same place, so that it holds if no other block writes.
            let is_found = |at: usize| {
                let step = &self.code.steps[at];
                step.guard.is_none()
                    && match step.root() {
                        "mov" => step.uses == [found],
                        "ld" => {
                            place_of(step) == place_of(swap)
                                && step.space() == swap.space()
                                && step.uses.iter().all(|&id| self.stays(id))
                        }
                        _ => false,
                    }
            };
            if swap.root() == "atom"
                && swap.of.has("cas")
                && compared == Some(self.code.names[assumed])
                && !self.stays(assumed)
                && self.defs(assumed).all(is_found)
                && self.writes_there_alone(at, budget)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether an atomic operation is the loop's only one, by an address that stays, and no store of the loop is by the same.
    fn writes_there_alone(&self, atomic: usize, budget: &mut Budget) -> Result<bool, TooLarge> {
        let own = &self.code.steps[atomic];
        let address = |step: &Step<'_>, operand| {
            let name = base_of(step, operand)?;
            step.uses.iter().copied().find(|&id| self.code.names[id] == name)
        };
        let Some(at) = address(own, 1).filter(|&id| self.stays(id)) else { return Ok(false) };
        let bases = self.bases(at, budget)?;
        for other in self.steps().filter(|&other| other != atomic) {
            budget.spend(1)?;
            let step = &self.code.steps[other];
            let is_elsewhere = match step.root() {
                "atom" | "red" => step.space() == Space::Shared,
                // Through another register, too, unless both are known to be of other parameters or variables.
                "st" if matches!(step.space(), Space::Global | Space::Generic) => {
                    let other = match address(step, 0) {
                        Some(id) => self.bases(id, budget)?,
                        None => None,
                    };
                    bases.as_ref().zip(other).is_some_and(|(own, other)| own.is_disjoint(&other))
                }
                // Asynchronously.
                "cp" | "call" | "multimem" => false,
                _ => true,
            };
            if !is_elsewhere {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a register that moves starts at a number near 0.
    fn starts_near(&self, registers: &[Id]) -> bool {
        registers.iter().flat_map(|&id| &self.code.defs[id]).filter(|&&at| !self.has(at)).all(
            |&at| {
                let step = &self.code.steps[at];
                let number = step.of.operand(1).and_then(Operand::integer);
                step.root() == "mov" && number.is_some_and(|number| number.abs() <= MOST_ROUNDS)
            },
        )
    }

    /// Where a register goes, if each round of the loop moves it by the same sign, and the registers that it goes through.
    pub(super) fn direction(
        &self,
        id: Id,
        budget: &mut Budget,
    ) -> Result<Option<(Direction, Vec<Id>)>, TooLarge> {
        let mut seen = vec![id];
        let mut at = 0;
        let mut moves: Vec<(usize, Direction)> = Vec::new();
        while let Some(&id) = seen.get(at) {
            at += 1;
            let mut blocks = Vec::new();
            for def in self.defs(id) {
                budget.spend(1 + seen.len())?;
                let step = &self.code.steps[def];
                if step.guard.is_some() || step.defs.len() != 1 {
                    return Ok(None);
                }
                blocks.push(self.flow.block_of[def]);
                let Some((from, by)) = self.moved(step) else { return Ok(None) };
                if let Some(direction) = by {
                    moves.push((def, direction));
                }
                if !seen.contains(&from) {
                    seen.push(from);
                }
            }
            // A round that leaves it as it was.
            if blocks.is_empty() || self.goes_round_past(&blocks, budget)? {
                return Ok(None);
            }
        }
        let Some(&(_, first)) = moves.first() else { return Ok(None) };
        let alike = moves.iter().all(|&(_, direction)| direction == first);
        if !alike || first == Direction::Either && moves.len() > 1 {
            return Ok(None);
        }
        // A round that copies the register in a circle without moving it.
        let blocks: Vec<_> = moves.iter().map(|&(def, _)| self.flow.block_of[def]).collect();
        Ok((!self.goes_round_past(&blocks, budget)?).then_some((first, seen)))
    }

    /// Of an instruction that adds to a register or copies it: that register, and the sign of what is added.
    fn moved(&self, step: &Step<'_>) -> Option<(Id, Option<Direction>)> {
        let sign = match step.root() {
            "mov" => return (step.uses.len() == 1).then(|| (step.uses[0], None)),
            // A bound above what the shorter of the two holds is none, which is for those who ask to know.
            "cvt" if is_cast(step) => return Some((*step.uses.first()?, None)),
            "add" => 1,
            "sub" => -1,
            _ => return None,
        };
        if step.of.opcode.split('.').any(|modifier| matches!(modifier, "cc" | "f32" | "f64")) {
            return None;
        }
        let (left, right) = (step.of.operand(1)?, step.of.operand(2)?);
        let id = |operand: &Operand<'_>| {
            step.uses.iter().copied().find(|&id| operand.name() == Some(self.code.names[id]))
        };
        let pairs = [(left, right), (right, left)];
        let pairs = if sign == 1 { &pairs[..] } else { &pairs[..1] };
        pairs.iter().find_map(|(own, other)| {
            let own = id(own)?;
            match (other.integer(), id(other)) {
                (Some(0), _) => None,
                (Some(by), _) if (by as i32 as i64 == by || by as u32 as i64 == by) => {
                    let by = by as i32;
                    let is_up = (by > 0) == (sign > 0);
                    Some((own, Some(if is_up { Direction::Up } else { Direction::Down })))
                }
                (None, Some(by))
                    if self.stays(by) && !self.stays(own) && self.is_nonzero(by, SIZE_DEPTH) =>
                {
                    Some((own, Some(Direction::Either)))
                }
                _ => None,
            }
        })
    }
}

/// The register that the address in an operand starts with.
fn base_of<'a>(step: &Step<'a>, operand: usize) -> Option<&'a str> {
    step.of.operand(operand)?.names.first().copied()
}

/// The address of a load or an atomic operation.
fn place_of<'a>(step: &Step<'a>) -> Option<&'a str> {
    step.of.operand(1).map(|place| place.text)
}

/// An atomic addition of a positive number, whose results grow with each round: blocks claim work by it.
fn is_counter_claim(step: &Step<'_>) -> bool {
    step.root() == "atom"
        && step.of.has("add")
        && matches!(step.space(), Space::Global | Space::Generic)
        && step.of.operand(2).and_then(Operand::integer).is_some_and(|by| by > 0)
}

/// Whether the comparison of what moves by `direction`, on its left or right side, is at last `wanted`.
fn ends_by(comparison: &str, wanted: bool, is_left: bool, direction: Direction) -> bool {
    let (is_greater, is_equal) = match comparison {
        "gt" | "ge" | "hi" | "hs" => (true, false),
        "lt" | "le" | "lo" | "ls" => (false, false),
        "eq" => (false, true),
        "ne" => (false, true),
        _ => return false,
    };
    if is_equal {
        return (comparison == "eq") == wanted;
    }
    let ends_above = (is_greater == is_left) == wanted;
    match direction {
        Direction::Up => ends_above,
        Direction::Down => !ends_above,
        Direction::Either => true,
    }
}
