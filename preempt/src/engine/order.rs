//! The order of operations: within a stream, and between those that use the same bytes of a buffer.
//!
//! A buffer keeps the unfinished writes and reads of its ranges. A write waits for all of them that overlap it. Then it
//! stands for those whose range it covers, because an operation that overlaps one of them overlaps the write, too. So a
//! buffer keeps no more than the uses of unfinished operations, and of whole buffers one write and the reads since.

use preempt_device::host::Access;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::vocabulary::{BufferId, ByteRange, OpKey};

/// The use that an operation makes of a range of a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub buffer: BufferId,
    pub bytes: ByteRange,
    pub access: Access,
    /// Every byte of the range is written before any is read.
    pub overwrites: bool,
}

impl Use {
    /// Whether two operations, one with each use, have to run one after the other.
    pub fn conflicts(&self, other: &Use) -> bool {
        self.buffer == other.buffer
            && self.bytes.overlaps(other.bytes)
            && (self.access == Access::Write || other.access == Access::Write)
    }
}

/// Streams and buffers with unfinished operations.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The last operation of each stream.
    tails: FxHashMap<u32, OpKey>,
    buffers: FxHashMap<BufferId, Buffer>,
    /// Those that nothing is kept of, for their capacity.
    spare: Vec<Buffer>,
}

#[derive(Debug, Default)]
struct Buffer {
    /// Unfinished writes, without those that a later one covers.
    writes: Vec<(OpKey, ByteRange)>,
    /// Unfinished reads, without those that a later write covers.
    reads: FxHashSet<(OpKey, ByteRange)>,
    /// Ranges that were written by kernels that failed, and which. They do not overlap.
    lost: Vec<(ByteRange, &'static str)>,
}

impl Order {
    /// Puts an operation behind its blockers, and calls `wait_for` with each of them, more than once if there are several
    /// reasons. Returns the operation before it in its stream.
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
            let spare = || self.spare.pop().unwrap_or_default();
            let buffer = self.buffers.entry(used.buffer).or_insert_with(spare);
            let mut wait_if_overlapping = |other: OpKey, bytes: ByteRange| {
                // An operation may use one range through two parameters; it does not wait for itself.
                if other != op && bytes.overlaps(used.bytes) {
                    wait_for(other);
                }
            };
            match used.access {
                Access::Read => {
                    let writes = buffer.writes.iter();
                    writes.for_each(|&(writer, bytes)| wait_if_overlapping(writer, bytes));
                    buffer.reads.insert((op, used.bytes));
                }
                Access::Write => {
                    let mut outlasts = |other: OpKey, bytes: ByteRange| {
                        wait_if_overlapping(other, bytes);
                        !used.bytes.covers(bytes)
                    };
                    buffer.writes.retain(|&(writer, bytes)| outlasts(writer, bytes));
                    buffer.reads.retain(|&(reader, bytes)| outlasts(reader, bytes));
                    buffer.writes.push((op, used.bytes));
                }
            }
        }
        before
    }

    /// Takes a finished operation out. If it failed, the ranges that it wrote are lost.
    pub fn leave(&mut self, op: OpKey, stream: u32, uses: &[Use], end: End) {
        if self.tails.get(&stream) == Some(&op) {
            self.tails.remove(&stream);
        }
        for used in uses {
            let Some(buffer) = self.buffers.get_mut(&used.buffer) else { continue };
            match used.access {
                Access::Read => {
                    buffer.reads.remove(&(op, used.bytes));
                }
                Access::Write => {
                    let is_it = |write: &(OpKey, ByteRange)| *write == (op, used.bytes);
                    if let Some(at) = buffer.writes.iter().position(is_it) {
                        buffer.writes.swap_remove(at);
                    }
                }
            }
            match (used.access, end) {
                (Access::Write, End::Failed(kernel)) => buffer.lose(used.bytes, kernel),
                (Access::Write, End::Succeeded) if used.overwrites => buffer.replace(used.bytes),
                _ => {}
            }
            if matches!(used.buffer, BufferId::Borrowed(_)) {
                buffer.forget_losses();
            }
            if !buffer.is_used() && buffer.lost.is_empty() {
                self.spare.extend(self.buffers.remove(&used.buffer));
            }
        }
    }

    /// Forgets a freed buffer, which no operation will use.
    pub fn forget(&mut self, buffer: BufferId) {
        self.buffers.remove(&buffer);
    }

    /// The failed kernel that left a range of these uses in an unknown state, if there is one.
    pub fn lost(&self, uses: &[Use]) -> Option<&'static str> {
        uses.iter().filter(|used| !used.overwrites).find_map(|used| {
            let lost = self.buffers.get(&used.buffer)?.lost.iter();
            let mut lost = lost.filter(|(bytes, _)| bytes.overlaps(used.bytes));
            lost.next().map(|&(_, kernel)| kernel)
        })
    }

    /// Writes and reads that are kept for all buffers, and lost ranges.
    #[cfg(test)]
    pub fn kept(&self) -> (usize, usize) {
        let uses = |buffer: &Buffer| buffer.writes.len() + buffer.reads.len();
        let buffers = self.buffers.values();
        (buffers.clone().map(uses).sum(), buffers.map(|buffer| buffer.lost.len()).sum())
    }
}

impl Buffer {
    fn is_used(&self) -> bool {
        !self.writes.is_empty() || !self.reads.is_empty()
    }

    /// Notes that the contents of a range are not lost any more.
    fn replace(&mut self, bytes: ByteRange) {
        if self.lost.is_empty() || bytes.is_empty() {
            return;
        }
        let around =
            |(lost, kernel): (ByteRange, _)| lost.around(bytes).map(|piece| (piece, kernel));
        let pieces = self.lost.drain(..).flat_map(around);
        self.lost = pieces.filter(|(piece, _)| !piece.is_empty()).collect();
    }

    /// Notes that a kernel has failed while it wrote a range.
    fn lose(&mut self, mut bytes: ByteRange, kernel: &'static str) {
        self.replace(bytes);
        // One range with those of the same kernel that touch it: a kernel that fails repeatedly must not fill the list.
        self.lost.retain(|&(lost, other)| {
            let is_beside = lost.end == bytes.start || lost.start == bytes.end;
            let is_part = other == kernel && is_beside;
            if is_part {
                let (start, end) = (bytes.start.min(lost.start), bytes.end.max(lost.end));
                bytes = ByteRange { start, end };
            }
            !is_part
        });
        if !bytes.is_empty() {
            self.lost.push((bytes, kernel));
        }
    }

    /// Forgets lost ranges of borrowed memory that no unfinished operation uses: code that the scheduler does not see may
    /// write them. So only operations that were submitted by then find them lost.
    fn forget_losses(&mut self) {
        let Buffer { writes, reads, lost } = self;
        lost.retain(|(lost, _)| {
            writes.iter().chain(&*reads).any(|(_, bytes)| bytes.overlaps(*lost))
        });
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
