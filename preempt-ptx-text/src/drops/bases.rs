//! What addresses are made of.
//!
//! Each register has the parameters, variables and unknown values that anything in it may come from, whatever the operations
//! between. *Directly* means: not by a product or a quotient, or by a number of 32 bits that was made longer, which make no address
//! of an address. So `p + 4 * n` is made of `p` directly, and of `n`.

use std::collections::{BTreeMap, BTreeSet};

use super::address;
use crate::code::{Budget, Code, Id, Space, Step, TooLarge};
use crate::tree::{FunctionItem, Module, Operand, OperandKind, StatementKind};

use super::ParameterUse;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Base<'a> {
    /// The position of a parameter of the entry.
    Parameter(usize),
    Variable(&'a str),
    /// What was loaded, or was never written.
    Unknown,
    /// What was put together of parts, whatever is done to it.
    Mixed,
}

/// The bases of a register, and of each whether it is one directly.
type Of<'a> = BTreeMap<Base<'a>, bool>;

/// The bases of all registers.
pub(super) struct Bases<'a> {
    of: Vec<Of<'a>>,
    /// The state spaces of variables.
    spaces: BTreeMap<&'a str, &'a str>,
    ids: BTreeMap<&'a str, Vec<Id>>,
}

/// What an access to global memory is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Access<'a> {
    is_unknown: bool,
    /// Parameters, directly or not.
    direct: BTreeSet<usize>,
    other: BTreeSet<usize>,
    variables: BTreeSet<&'a str>,
}

impl<'a> Bases<'a> {
    pub fn of(
        module: &Module<'a>,
        entry: &FunctionItem<'a>,
        code: &Code<'a>,
        budget: &mut Budget,
    ) -> Result<Bases<'a>, TooLarge> {
        let mut spaces = BTreeMap::new();
        let statements = entry.body.iter().flat_map(|body| &body.statements);
        let inside = statements.filter_map(|statement| match &statement.kind {
            StatementKind::Declaration(of) if of.space != ".reg" => Some(of),
            _ => None,
        });
        // A name that is declared twice, in scopes, is of the space of all its declarations, or of an unknown one.
        for declaration in module.variables().chain(inside) {
            for name in &declaration.names {
                let space = spaces.entry(name.name).or_insert(declaration.space);
                if *space != declaration.space {
                    *space = "";
                }
            }
        }
        let mut parameters = BTreeMap::new();
        for (position, parameter) in entry.parameters.iter().enumerate() {
            parameters.extend(parameter.names.iter().map(|name| (name.name, position)));
        }
        let mut ids: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (id, name) in code.names.iter().enumerate() {
            ids.entry(*name).or_default().push(id);
        }
        let mut of = vec![Of::new(); code.names.len()];
        for (id, name) in code.names.iter().enumerate() {
            if code.special(id).is_some() || !code.defs[id].is_empty() {
                continue;
            }
            let base = match parameters.get(name) {
                // Its address; `ld.param` gives what it holds.
                Some(_) => Base::Mixed,
                None if name.starts_with('%') => Base::Unknown,
                None => Base::Variable(name),
            };
            of[id].insert(base, true);
        }
        let mut users = vec![Vec::new(); code.names.len()];
        for (at, step) in code.steps.iter().enumerate() {
            for &id in &step.uses {
                users[id].push(at);
            }
        }
        let mut bases = Bases { of, spaces, ids };
        let mut waiting: Vec<usize> = (0..code.steps.len()).rev().collect();
        let mut is_waiting = vec![true; code.steps.len()];
        while let Some(at) = waiting.pop() {
            is_waiting[at] = false;
            let step = &code.steps[at];
            let result = bases.result(step, &parameters);
            budget.spend(1 + result.len())?;
            for &id in &step.defs {
                let before = bases.of[id].clone();
                for (&base, &is_direct) in &result {
                    *bases.of[id].entry(base).or_insert(false) |= is_direct;
                }
                if bases.of[id] != before {
                    budget.spend(users[id].len())?;
                    for &user in &users[id] {
                        if !std::mem::replace(&mut is_waiting[user], true) {
                            waiting.push(user);
                        }
                    }
                }
            }
        }
        Ok(bases)
    }

    /// What the results of an instruction may be made of.
    fn result(&self, step: &Step<'a>, parameters: &BTreeMap<&str, usize>) -> Of<'a> {
        let of = step.of;
        let unknown = || Of::from([(Base::Unknown, true)]);
        let is_long = of.has_any(&["b64", "u64", "s64"]);
        match step.root() {
            "setp" | "testp" | "isspacep" | "vote" | "match" | "redux" | "activemask" | "elect"
            | "popc" | "clz" | "bfind" | "fns" | "bar" | "barrier" => Of::new(),
            "ld" if of.has("param") => {
                let place = address(step, 1);
                match place {
                    Some([name]) => match parameters.get(name) {
                        Some(&position) => Of::from([(Base::Parameter(position), true)]),
                        None => Of::from([(Base::Mixed, true)]),
                    },
                    _ => Of::from([(Base::Mixed, true)]),
                }
            }
            "ld" | "ldu" | "atom" | "tex" | "tld4" | "suld" | "ldmatrix" | "wmma" | "mma"
            | "call" => unknown(),
            // The same is true of quotients and remainders.
            "mul" | "mul24" | "div" | "rem" => self.scaled(step.uses.iter().copied(), step),
            "mad" | "mad24" | "fma" => {
                let sum = of.operand(3).map(|operand| self.ids_of(operand)).unwrap_or_default();
                let product = step.uses.iter().copied().filter(|id| !sum.contains(id));
                let mut result = self.scaled(product, step);
                // What is a factor and added, too.
                let both =
                    [1, 2].iter().filter_map(|&at| of.operand(at)).flat_map(|of| self.ids_of(of));
                join(&mut result, self.scaled(both, step));
                for id in sum {
                    join(&mut result, self.of[id].clone());
                }
                result
            }
            "shl" => match of.operand(2).and_then(Operand::integer) {
                Some(1..=31) => self.scaled(step.uses.iter().copied(), step),
                _ if is_long => self.mixed(step),
                _ => self.union(step),
            },
            "shr" if is_long => {
                // What a later shift or product might take for a number.
                let mut result = self.union(step);
                if result.get(&Base::Unknown) == Some(&true) {
                    result.insert(Base::Mixed, true);
                }
                result
            }
            "mov" if of.operands.iter().any(|of| of.kind == OperandKind::Vector) => {
                let is_pack = of.operand(0).is_some_and(|first| first.kind != OperandKind::Vector);
                if is_pack && is_long { self.mixed(step) } else { self.union(step) }
            }
            "cvt" => {
                let types: Vec<_> = of.opcode.split('.').collect();
                let is_longer =
                    matches!(types.last(), Some(&("u32" | "s32" | "u16" | "s16" | "u8" | "s8")))
                        && is_long;
                match is_longer {
                    true => self.scaled(step.uses.iter().copied(), step),
                    false => self.union(step),
                }
            }
            "add" | "sub" | "mov" | "cvta" | "selp" | "min" | "max" | "and" | "or" | "xor"
            | "not" | "neg" | "abs" | "shfl" | "slct" | "sad" | "lop3" | "set" => self.union(step),
            _ if is_long => self.mixed(step),
            _ => self.union(step),
        }
    }

    /// Registers that an operand names.
    fn ids_of(&self, operand: &Operand<'a>) -> BTreeSet<Id> {
        operand
            .names
            .iter()
            .flat_map(|name| self.ids.get(name).into_iter().flatten().copied())
            .collect()
    }

    fn union(&self, step: &Step<'a>) -> Of<'a> {
        let mut result = Of::new();
        for &id in step.uses.iter().filter(|id| Some(**id) != step.guard) {
            join(&mut result, self.of[id].clone());
        }
        result
    }

    /// Of what may be put together of halves.
    fn mixed(&self, step: &Step<'a>) -> Of<'a> {
        let mut result = self.union(step);
        if !result.is_empty() {
            result.insert(Base::Mixed, true);
        }
        result
    }

    /// Of a product, by no factor that moves one half of an address into the other.
    fn scaled(&self, ids: impl Iterator<Item = Id>, step: &Step<'a>) -> Of<'a> {
        let is_large = |of: &Operand<'_>| of.integer().is_some_and(|n| n.unsigned_abs() >= 1 << 32);
        if step.of.operands.iter().any(is_large) {
            return self.mixed(step);
        }
        let mut result = Of::new();
        for id in ids {
            let of = self.of[id]
                .iter()
                .map(|(&base, &is_direct)| (base, is_direct && base == Base::Mixed));
            join(&mut result, of.collect());
        }
        result
    }

    /// The access by an address that is an operand; it is taken for one to global memory.
    pub fn access(&self, step: &Step<'a>, operand: usize) -> Access<'a> {
        let mut access = Access { is_unknown: false, ..Access::unknown() };
        let names = address(step, operand).unwrap_or_default();
        let mut has_direct = false;
        for id in names.iter().flat_map(|name| self.ids.get(name).into_iter().flatten()) {
            for (&base, &is_direct) in &self.of[*id] {
                has_direct |= is_direct;
                match base {
                    Base::Parameter(position) if is_direct => drop(access.direct.insert(position)),
                    Base::Parameter(position) => drop(access.other.insert(position)),
                    Base::Variable(name) => drop(access.variables.insert(name)),
                    Base::Unknown => access.is_unknown |= is_direct,
                    Base::Mixed => access.is_unknown = true,
                }
            }
        }
        access.is_unknown |= !has_direct;
        access
    }

    /// The access by an address that is an operand, unless it is to shared or local memory.
    pub fn global(&self, step: &Step<'a>, operand: usize) -> Option<Access<'a>> {
        let access = match step.space() {
            Space::Shared | Space::Local | Space::Fixed => return None,
            Space::Global | Space::Generic => self.access(step, operand),
        };
        let of_block =
            |name: &&str| matches!(self.spaces.get(*name), Some(&(".shared" | ".local")));
        let is_of_block = step.space() == Space::Generic
            && !access.is_unknown
            && access.direct.is_empty()
            && !access.variables.is_empty()
            && access.variables.iter().all(of_block);
        (!is_of_block).then_some(access)
    }
}

fn join<'a>(into: &mut Of<'a>, from: Of<'a>) {
    for (base, is_direct) in from {
        *into.entry(base).or_insert(false) |= is_direct;
    }
}

impl<'a> Access<'a> {
    /// To any memory.
    pub fn unknown() -> Access<'a> {
        Access {
            is_unknown: true,
            direct: BTreeSet::new(),
            other: BTreeSet::new(),
            variables: BTreeSet::new(),
        }
    }

    pub fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// A variable that it may be to.
    pub fn variable(&self) -> Option<&'a str> {
        self.variables.first().copied()
    }

    /// Whether it may be to the same memory as another one, where different parameters are of different memory.
    pub fn may_be_of(&self, other: &Access<'_>) -> bool {
        let is_one = |own: &Access<'_>, other: &Access<'_>| {
            own.direct.iter().any(|of| other.direct.contains(of) || other.other.contains(of))
        };
        is_one(self, other)
            || is_one(other, self)
            || self.variables.iter().any(|of| other.variables.contains(of))
    }

    /// What a call has to pass, if this is a store.
    pub fn written(&self) -> impl Iterator<Item = (usize, ParameterUse)> {
        self.direct.iter().map(|&position| (position, ParameterUse::Written))
    }

    /// What a call has to pass, if this is a load.
    pub fn read(&self) -> impl Iterator<Item = (usize, ParameterUse)> {
        self.direct.iter().map(|&position| (position, ParameterUse::Read))
    }

    /// What a call has to pass for what both are made of.
    pub fn numbers_with(&self, other: &Access<'_>) -> impl Iterator<Item = (usize, ParameterUse)> {
        let both = self.other.iter().filter(|of| other.other.contains(of));
        both.map(|&position| (position, ParameterUse::Number))
    }
}
