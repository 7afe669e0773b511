//! Programs: calls that are recorded once, and run in their order as one launch.

use std::fmt;
use std::sync::Arc;

use super::backend::{KernelLaunch, OwnedCopy, Owner};

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
}

impl Step {
    /// What keeps its memory, each owner as often as it is used.
    pub fn owners(&self) -> impl Iterator<Item = &Owner> {
        let (args, copy) = match self {
            Step::Launch { launch, .. } => (Some(launch.args.buffers()), None),
            Step::Copy(copy) => (None, Some(&copy.owners)),
        };
        let of_args = args.into_iter().flatten().filter_map(|(buffer, _)| buffer.owner.as_ref());
        of_args.chain(copy.into_iter().flatten())
    }

    /// Its place in its program, counted from 0, and what it is called in errors.
    pub fn describe(&self, index: usize) -> String {
        format!("call {index}, {}", self.name())
    }

    fn name(&self) -> String {
        match self {
            Step::Launch { launch, .. } => format!("kernel `{}`", launch.kernel.name),
            Step::Copy(_) => "a copy".to_owned(),
        }
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
            Step::Copy(_) => 0,
        });
        tasks.fold(0, u32::saturating_add)
    }
}

impl fmt::Debug for ProgramLaunch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgramLaunch").field("steps", &self.steps.len()).finish_non_exhaustive()
    }
}
