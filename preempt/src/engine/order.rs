//! The order of operations: within a stream, and between those that use the same buffer.

use preempt_device::host::Access;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::vocabulary::{BufferId, OpKey};

/// The use that an operation makes of a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub buffer: BufferId,
    pub access: Access,
    /// Every byte of the buffer is written before any is read.
    pub overwrites: bool,
}

/// Streams and buffers with unfinished operations.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The last operation of each stream.
    tails: FxHashMap<u32, OpKey>,
    buffers: FxHashMap<BufferId, Buffer>,
}

#[derive(Debug, Default)]
struct Buffer {
    writer: Option<OpKey>,
    /// Readers since that writer.
    readers: FxHashSet<OpKey>,
    /// The kernel that failed while it wrote the buffer.
    lost: Option<&'static str>,
}

impl Order {
    /// Puts an operation behind its blockers, and calls `wait_for` with each of them, twice if there are two reasons.
    /// Returns the operation before it in its stream.
    pub fn enter(
        &mut self,
        op: OpKey,
        stream: u32,
        uses: &[Use],
        mut wait_for: impl FnMut(OpKey),
    ) -> Option<OpKey> {
        let before = self.tails.insert(stream, op);
        before.into_iter().for_each(&mut wait_for);
        for used in uses {
            let buffer = self.buffers.entry(used.buffer).or_default();
            // An operation may read one buffer through two parameters; it does not wait for itself.
            buffer.writer.filter(|&writer| writer != op).into_iter().for_each(&mut wait_for);
            match used.access {
                Access::Read => {
                    buffer.readers.insert(op);
                }
                Access::Write => {
                    buffer.readers.drain().filter(|&reader| reader != op).for_each(&mut wait_for);
                    buffer.writer = Some(op);
                }
            }
        }
        before
    }

    /// Takes a finished operation out. If it failed, the buffers that it wrote are lost.
    pub fn leave(&mut self, op: OpKey, stream: u32, uses: &[Use], end: End) {
        if self.tails.get(&stream) == Some(&op) {
            self.tails.remove(&stream);
        }
        for used in uses {
            let Some(buffer) = self.buffers.get_mut(&used.buffer) else { continue };
            if buffer.writer == Some(op) {
                buffer.writer = None;
            }
            buffer.readers.remove(&op);
            match (used.access, end) {
                (Access::Write, End::Failed(kernel)) => buffer.lost = Some(kernel),
                (Access::Write, End::Succeeded) if used.overwrites => buffer.lost = None,
                _ => {}
            }
            let is_used = buffer.writer.is_some() || !buffer.readers.is_empty();
            // Borrowed memory may be written by code that the scheduler does not see. So only operations that were
            // submitted by then find it lost.
            let is_lost = buffer.lost.is_some() && matches!(used.buffer, BufferId::Own(_));
            if !is_used && !is_lost {
                self.buffers.remove(&used.buffer);
            }
        }
    }

    /// Forgets a freed buffer, which no operation will use.
    pub fn forget(&mut self, buffer: BufferId) {
        self.buffers.remove(&buffer);
    }

    /// The failed kernel that left a buffer of these uses in an unknown state, if there is one.
    pub fn lost(&self, uses: &[Use]) -> Option<&'static str> {
        uses.iter()
            .filter(|used| !used.overwrites)
            .find_map(|used| self.buffers.get(&used.buffer)?.lost)
    }
}

/// How an operation ended, as far as its buffers are concerned.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Succeeded,
    /// By this kernel's failure.
    Failed(&'static str),
    Stopped,
}
