//! The addresses that a loop reads and writes: whether they move on from round to round, and what they are based on.

use std::collections::{BTreeSet, HashSet};

use super::Loop;
use super::progress::DEPTH;
use crate::code::{Budget, Id, Space, Step, TooLarge};
use crate::tree::Operand;

/// Steps from a stride to the sizes that it is made of.
pub(super) const SIZE_DEPTH: usize = 5;

impl Loop<'_, '_> {
    /// Whether an address is made of a register that moves on, and of nothing else that changes in the loop; or of what an
    /// ordinary load by such an address gave.
    pub(super) fn is_carried(
        &self,
        load: usize,
        address: Id,
        budget: &mut Budget,
    ) -> Result<bool, TooLarge> {
        let (mut reader, mut id) = (load, address);
        for _ in 0..2 * DEPTH {
            if self.direction(id, budget)?.is_some() {
                return Ok(true);
            }
            budget.spend(1 + self.code.defs[id].len())?;
            let Some(at) = self.written(id, reader) else { return Ok(false) };
            let step = &self.code.steps[at];
            let mut changing = Vec::new();
            for &id in &step.uses {
                if !self.is_same(id, at, DEPTH, budget)? {
                    changing.push(id);
                }
            }
            match changing[..] {
                [next] if self.is_linear(step) || is_plain_load(step) => (reader, id) = (at, next),
                _ => return Ok(false),
            }
        }
        Ok(false)
    }

    /// The instruction of the loop whose result another one reads: the last one in its block, or the loop's only one.
    fn written(&self, id: Id, reader: usize) -> Option<usize> {
        let block = self.flow.block_of[reader];
        let before =
            self.defs(id).filter(|&at| at < reader && self.flow.block_of[at] == block).max();
        match before {
            Some(at) => self.code.steps[at].guard.is_none().then_some(at),
            None => self.only(id),
        }
    }

    /// Whether what an instruction reads is the same in each round: not written in the loop, or made of such by arithmetic.
    fn is_same(
        &self,
        id: Id,
        reader: usize,
        depth: usize,
        budget: &mut Budget,
    ) -> Result<bool, TooLarge> {
        budget.spend(1 + self.code.defs[id].len())?;
        if self.stays(id) {
            return Ok(true);
        }
        let (Some(at), Some(depth)) = (self.written(id, reader), depth.checked_sub(1)) else {
            return Ok(false);
        };
        let step = &self.code.steps[at];
        let arithmetic = ["mov", "add", "sub", "mul", "mad", "shl", "shr", "cvt", "cvta"];
        if !arithmetic.contains(&step.root()) {
            return Ok(false);
        }
        for &id in &step.uses {
            let is_clock = |of: &str| of.starts_with("%clock") || of.starts_with("%globaltimer");
            if self.code.special(id).is_some_and(is_clock)
                || !self.is_same(id, at, depth, budget)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a result moves where the one operand does that changes in the loop: nothing takes that to 0.
    fn is_linear(&self, step: &Step<'_>) -> bool {
        const FACTOR: i64 = 1 << 20;
        const SHIFT: i64 = 16;
        let factor = |at: usize| {
            let Some(operand) = step.of.operand(at) else { return false };
            match operand.integer() {
                Some(number) => number != 0 && number.abs() <= FACTOR,
                None => step.uses.iter().any(|&id| {
                    operand.name() == Some(self.code.names[id])
                        && (!self.stays(id) || self.is_nonzero(id, SIZE_DEPTH))
                }),
            }
        };
        match step.root() {
            "add" | "sub" | "mov" | "not" | "cvta" => true,
            "cvt" => is_cast(step),
            "mul" | "mad" => !step.of.has("hi") && factor(1) && factor(2),
            "shl" => step
                .of
                .operand(2)
                .and_then(Operand::integer)
                .is_some_and(|by| (0..=SHIFT).contains(&by)),
            "and" => [1, 2].iter().filter_map(|&at| step.of.operand(at)?.integer()).any(is_wide),
            _ => false,
        }
    }

    /// Whether a register that stays in the loop cannot be 0: made of the sizes of block and grid, and of numbers.
    pub(super) fn is_nonzero(&self, id: Id, depth: usize) -> bool {
        let (&[at], Some(depth)) = (&self.code.defs[id][..], depth.checked_sub(1)) else {
            return false;
        };
        let step = &self.code.steps[at];
        let is_nonzero = |operand: Option<&Operand<'_>>| {
            let Some(operand) = operand else { return false };
            if let Some(number) = operand.integer() {
                return number != 0;
            }
            let Some(name) = operand.name() else { return false };
            let is_size = ["%ntid.", "%nctaid."].iter().any(|size| name.starts_with(size));
            let mut own = step.uses.iter().copied().filter(|&id| self.code.names[id] == name);
            is_size || name == "WARP_SZ" || own.next().is_some_and(|id| self.is_nonzero(id, depth))
        };
        let operands = || (is_nonzero(step.of.operand(1)), is_nonzero(step.of.operand(2)));
        step.guard.is_none()
            && match step.root() {
                "mov" => step.of.operands.len() == 2 && operands().0,
                "cvt" => is_cast(step) && operands().0,
                "mul" => !step.of.has("hi") && operands() == (true, true),
                "shl" => {
                    let by = step.of.operand(2).and_then(Operand::integer);
                    by.is_some_and(|by| (0..16).contains(&by)) && operands().0
                }
                _ => false,
            }
    }

    /// Whether what a load reads, of memory that the whole grid only reads, leads on to other addresses: its address moves on, or
    /// depends on what such a load gave.
    pub(super) fn searches(&self, load: usize, budget: &mut Budget) -> Result<bool, TooLarge> {
        let mut seen = HashSet::new();
        let mut waiting = self.code.steps[load].uses.clone();
        while let Some(id) = waiting.pop() {
            budget.spend(1)?;
            if self.stays(id) || !seen.insert(id) {
                continue;
            }
            if self.direction(id, budget)?.is_some() {
                return Ok(true);
            }
            for at in self.defs(id) {
                let step = &self.code.steps[at];
                if step.root() == "ld" {
                    return Ok(true);
                }
                waiting.extend(&step.uses);
            }
        }
        Ok(false)
    }

    /// What an address is based on: the parameters and variables that it may be made of; `None` if it may be of anything.
    pub(super) fn bases(
        &self,
        address: Id,
        budget: &mut Budget,
    ) -> Result<Option<BTreeSet<&str>>, TooLarge> {
        let mut bases = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut waiting = vec![address];
        while let Some(id) = waiting.pop() {
            budget.spend(1 + self.code.defs[id].len())?;
            if !seen.insert(id) {
                continue;
            }
            let name = self.code.names[id];
            if self.code.defs[id].is_empty() {
                // A variable. A register that is never written is anything.
                if name.starts_with('%') {
                    return Ok(None);
                }
                bases.insert(name);
            }
            for &at in &self.code.defs[id] {
                let step = &self.code.steps[at];
                match step.root() {
                    "ld" if step.space() == Space::Fixed => {
                        let parameter = step.of.operand(1).and_then(|place| place.names.first());
                        let Some(parameter) = parameter else { return Ok(None) };
                        bases.insert(parameter);
                    }
                    // An offset is none: nothing comes to another variable by it.
                    "add" if step.of.has_any(&["s64", "u64", "b64"]) => {
                        waiting.extend(step.uses.iter().filter(|id| !self.is_offset(**id, DEPTH)));
                    }
                    "mov" | "cvta" => waiting.extend(&step.uses),
                    _ => return Ok(None),
                }
            }
        }
        Ok(Some(bases))
    }

    /// Whether a register of 64 bits is made of one of 32 by a product or by an extension.
    fn is_offset(&self, id: Id, depth: usize) -> bool {
        let (&[at], Some(depth)) = (&self.code.defs[id][..], depth.checked_sub(1)) else {
            return false;
        };
        let step = &self.code.steps[at];
        match step.root() {
            "mul" => step.of.has("wide"),
            "cvt" => step.of.has_any(&["u32", "s32", "u16", "s16"]),
            "shl" => step.uses.iter().all(|&id| self.is_offset(id, depth)),
            _ => false,
        }
    }
}

/// An ordinary load of global memory.
fn is_plain_load(step: &Step<'_>) -> bool {
    step.root() == "ld"
        && step.guard.is_none()
        && step.space() == Space::Global
        && !step.of.has_any(&["volatile", "relaxed", "acquire", "mmio", "cv"])
}

/// A conversion between integers of 32 and 64 bits.
pub(super) fn is_cast(step: &Step<'_>) -> bool {
    let mut types = step.of.opcode.split('.').skip(1);
    step.uses.len() == 1 && types.all(|ty| matches!(ty, "u32" | "s32" | "u64" | "s64"))
}

/// Whether a mask leaves the bits of an address that small steps change.
fn is_wide(mask: i64) -> bool {
    const LOWEST: u32 = 4;
    const WIDTH: u32 = 24;
    let bits = mask as u64;
    bits.trailing_zeros() <= LOWEST && (bits >> bits.trailing_zeros()).trailing_ones() >= WIDTH
}
