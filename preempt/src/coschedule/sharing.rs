//! Ways in which two jobs share a GPU.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How the two jobs of a pair share the GPU. The first job of a pair is the one with the smaller number.
///
/// ```
/// use preempt::coschedule::Sharing;
///
/// assert_eq!(Sharing::split(1, 4).to_string(), "SMs 1/4 : 3/4");
/// assert_eq!(Sharing::AllSms.to_string(), "all SMs");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Sharing {
    /// Both jobs have all SMs, each with half of the room on every SM: shared memory, registers, threads.
    AllSms,
    /// Each job has SMs of its own.
    Split {
        /// The parts that the first job has.
        first: u32,
        /// The equal parts of the GPU; the second job has the rest of them.
        of: u32,
    },
}

impl Sharing {
    /// Ways worth measuring: all SMs for both, and a quarter, a half and three quarters of them for the first job.
    pub const COMMON: [Sharing; 4] =
        [Sharing::AllSms, Sharing::split(1, 4), Sharing::split(1, 2), Sharing::split(3, 4)];

    /// The first job has `first` of `of` equal parts of the SMs, and the second job the others. Both have a part if
    /// `first` is more than 0 and less than `of`; [`Speeds`](super::Speeds) refuse anything else.
    pub const fn split(first: u32, of: u32) -> Sharing {
        Sharing::Split { first, of }
    }

    /// Whether both jobs have a part.
    pub(super) fn is_shared(&self) -> bool {
        match *self {
            Sharing::AllSms => true,
            Sharing::Split { first, of } => (1..of).contains(&first),
        }
    }
}

impl fmt::Display for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Sharing::AllSms => f.write_str("all SMs"),
            Sharing::Split { first, of } => {
                write!(f, "SMs {first}/{of} : {}/{of}", of.saturating_sub(first))
            }
        }
    }
}
