//! Programs: calls that are recorded once, and run in their order as one launch.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::backend::{KernelLaunch, OwnedCopy, Owner, RawStream};
use crate::foreign::is_plain_alone;

/// A call of a program.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Launch {
        launch: Arc<KernelLaunch>,
        /// Another number for each launch that has had this place in the program.
        version: u64,
    },
    /// A copy on the device, or a fill: a [repeated](super::Rows::is_repeated) element of the host's memory, which its
    /// owner keeps as it is.
    Copy(Arc<OwnedCopy>),
    Captured(Arc<Captured>),
}

/// Work of another library, which it puts into a stream.
pub(crate) struct Captured {
    pub program: &'static str,
    /// For errors.
    pub name: &'static str,
    /// The memory that it uses.
    pub owners: Vec<Owner>,
    pub work: CapturedWork,
}

/// Code of the application or of a library that puts the same work into each stream that it is given. It returns its
/// error as text, and does not panic.
pub(crate) type CapturedWork = Box<dyn Fn(RawStream) -> Result<(), String> + Send + Sync>;

impl Captured {
    /// As [`Step::describe`], of work with this name.
    pub fn describe(name: &str, index: usize) -> String {
        format!("call {index}, `{name}`")
    }
}

impl fmt::Debug for Captured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Captured").field(&self.name).finish()
    }
}

impl Step {
    /// What keeps its memory, each owner as often as it is used.
    pub fn owners(&self) -> impl Iterator<Item = &Owner> {
        let (args, copy): (_, &[Owner]) = match self {
            Step::Launch { launch, .. } => (Some(launch.args.buffers()), &[]),
            Step::Copy(copy) => (None, &copy.owners),
            Step::Captured(captured) => (None, &captured.owners),
        };
        let of_args = args.into_iter().flatten().filter_map(|(buffer, _)| buffer.owner.as_ref());
        of_args.chain(copy)
    }

    /// Its place in its program, counted from 0, and what it is called in errors.
    pub fn describe(&self, index: usize) -> String {
        format!("call {index}, {}", self.name())
    }

    /// Whether it runs as cohorts in a preemptible program.
    pub fn has_cohorts(&self) -> bool {
        matches!(self, Step::Launch { launch, .. } if !is_plain_alone(launch.kernel))
    }

    /// Whether dropping it may run application code.
    pub fn is_of_others(&self) -> bool {
        matches!(self, Step::Captured(_))
    }

    fn name(&self) -> String {
        match self {
            Step::Launch { launch, .. } => format!("kernel `{}`", launch.kernel.name),
            Step::Copy(_) => "a copy".to_owned(),
            Step::Captured(captured) => format!("`{}`", captured.name),
        }
    }
}

/// Launches of a preemptible program that a back end takes at once where they are queued behind another launch.
#[derive(Clone)]
pub(crate) struct Chains {
    /// The calls of each chain.
    pub calls: Vec<Range<usize>>,
    /// What the back end has prepared for them.
    pub prepared: Owner,
}

impl Chains {
    /// The chain that starts with a call.
    pub fn from(&self, call: usize) -> Option<&Range<usize>> {
        let at = self.calls.binary_search_by_key(&call, |chain| chain.start).ok()?;
        Some(&self.calls[at])
    }
}

/// The calls of a program as they are when it is launched.
#[derive(Clone)]
pub(crate) struct ProgramLaunch {
    /// The version of its last step.
    pub version: u64,
    pub steps: Vec<Step>,
    /// What the back end has prepared for the program as one plain launch, whatever the versions of its launches. `None`
    /// if it is never launched so.
    pub prepared: Option<Owner>,
    /// What the back end takes at once of it as a preemptible program; `None` if it takes each launch by itself.
    pub chains: Option<Chains>,
    /// Whether it is a single call of a preemptible program, which says where it is in faults.
    pub is_call: bool,
}

impl ProgramLaunch {
    /// Where in the program a kernel with this entry is, if it is there: the call, if it is a single one, or the kernel.
    pub fn place_of(&self, entry: &str) -> Option<String> {
        let is_it = |(_, step): &(usize, &Step)| matches!(step, Step::Launch { launch, .. } if launch.kernel.entry == entry);
        let mut calls = self.steps.iter().enumerate().filter(is_it);
        let (index, step) = calls.next()?;
        Some(match calls.next() {
            None => step.describe(index) + ": ",
            Some(_) => format!("{}: ", step.name()),
        })
    }

    /// Block-tasks of all kernels.
    pub fn tasks(&self) -> u32 {
        let tasks = self.steps.iter().map(|step| match step {
            Step::Launch { launch, .. } => launch.tasks(),
            Step::Copy(_) | Step::Captured(_) => 0,
        });
        tasks.fold(0, u32::saturating_add)
    }
}

impl fmt::Debug for ProgramLaunch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgramLaunch").field("steps", &self.steps.len()).finish_non_exhaustive()
    }
}
