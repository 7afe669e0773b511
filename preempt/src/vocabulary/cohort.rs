//! What the engine asks of a device for one cohort, by numbers alone.

use preempt_device::abi::Signal;

use super::{OpKey, QueueIndex, QueueSet};

/// A control block of the device, by number.
pub(crate) type ControlIndex = u32;

/// A use of a control block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ControlUse {
    pub control: ControlIndex,
    /// Which of the control block's two claims the launch has.
    pub parity: u8,
}

/// A cohort to launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CohortOrder {
    pub op: OpKey,
    /// The device queue that it goes into.
    pub queue: QueueIndex,
    /// The control block of its launch.
    pub control: ControlUse,
    /// The place of its post and of its count of departures in the control block.
    pub slot: u8,
    /// The number of this use of the slot, which its post shows.
    pub ticket: u32,
    /// The slot's word before the cohort starts.
    pub left: u64,
    pub signal: Signal,
    /// Whether it is the launch's whole grid, as a plain one.
    pub plain: bool,
    /// Blocks of its grid.
    pub blocks: u32,
    /// Blocks of this launch that the whole device would hold, whatever this cohort has: claims are paced by it.
    pub workers: u32,
    /// How many of the launch's first tasks are never claimed, because the first cohort's blocks start with them.
    pub handed: u32,
    /// Whether it is that first cohort.
    pub is_first: bool,
    /// Set if the launch before in the stream may not have ended.
    pub after: Option<After>,
    /// Whether it is behind a gate of its own: it does nothing before the gate is opened, and nothing at all if the gate
    /// is closed.
    pub gated: bool,
    /// The plain launch whose SMs its blocks get from the hardware, if there is one.
    pub over: Option<OpKey>,
    /// Whether its blocks tell the host how far they are.
    pub tells_progress: bool,
    pub vicinity: Vicinity,
}

/// What a cohort is to an SM, and whose blocks may be there when it begins, as it looks when it is queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Vicinity {
    /// The blocks of it that an SM gets, without those that leave at once.
    pub on_sm: u32,
    /// The queues whose blocks its own may meet on an SM: those of launches beside it, where no word keeps the ones or the
    /// others to the SMs of their launch, and those that have time to leave its SMs.
    pub meets: QueueSet,
    /// The queues with cohorts of other streams, wherever these are.
    pub others: QueueSet,
    /// Whether there are others in its own queue.
    pub is_behind: bool,
    /// Whether it may ask for a division of SMs' memory. It may not where two launches share all SMs because both are fast
    /// together, with what their kernels ask for.
    pub may_ask: bool,
}

/// The cohort that another one was queued behind. Until its slot's word is `left`, which says that its launch is
/// done, the other one does nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct After {
    pub control: ControlIndex,
    pub slot: u8,
    pub left: u64,
}
