//! The uses of several calls that run one after the other, and their launches, as those of one operation.

use std::collections::BTreeMap;
use std::time::Duration;

use preempt_device::host::Access;
use rustc_hash::FxHashMap;

use super::launch::LaunchSpec;
use super::order::Use;
use super::progress::Leaving;
use crate::vocabulary::{BufferId, ByteRange};

/// Calls, at most, of a program. The driver takes up to a microsecond for each when a program is launched, and other
/// launches wait for that.
pub(crate) const MAX_CALLS: usize = 4096;

/// Bytes of a buffer up to `end`, which all calls use in the same way.
#[derive(Clone, Copy)]
struct Piece {
    end: u64,
    access: Access,
    overwrites: bool,
}

/// The pieces of a buffer by where they start. They do not overlap.
#[derive(Default)]
struct Pieces(BTreeMap<u64, Piece>);

impl Pieces {
    /// Has no piece reach across `at`.
    fn split(&mut self, at: u64) {
        if let Some((_, piece)) = self.0.range_mut(..at).next_back()
            && piece.end > at
        {
            let rest = *piece;
            piece.end = at;
            self.0.insert(at, rest);
        }
    }

    /// Adds a use behind all others.
    fn add(&mut self, used: &Use) {
        let ByteRange { start, end } = used.bytes;
        let Use { access, overwrites, .. } = *used;
        if used.bytes.is_empty() {
            return;
        }
        self.split(start);
        self.split(end);
        let mut gaps = Vec::new();
        let mut at = start;
        for (&from, piece) in self.0.range_mut(start..end) {
            if at < from {
                gaps.push((at, from));
            }
            // Whether it is written before it is read depends on the first use alone.
            if access == Access::Write {
                piece.access = Access::Write;
            }
            at = piece.end;
        }
        if at < end {
            gaps.push((at, end));
        }
        let piece = |(start, end)| (start, Piece { end, access, overwrites });
        self.0.extend(gaps.into_iter().map(piece));
    }
}

/// The uses of calls that run in this order, as those of a single operation. Those of one buffer do not overlap.
pub(crate) fn merged<'a>(uses: impl Iterator<Item = &'a Use>) -> Vec<Use> {
    let mut places: FxHashMap<BufferId, usize> = FxHashMap::default();
    let mut buffers: Vec<(BufferId, Pieces)> = Vec::new();
    for used in uses {
        let place = *places.entry(used.buffer).or_insert_with(|| {
            buffers.push((used.buffer, Pieces::default()));
            buffers.len() - 1
        });
        buffers[place].1.add(used);
    }
    let mut merged: Vec<Use> = Vec::new();
    for (buffer, Pieces(pieces)) in buffers {
        for (start, Piece { end, access, overwrites }) in pieces {
            match merged.last_mut() {
                Some(last)
                    if (last.buffer, last.access, last.overwrites, last.bytes.end)
                        == (buffer, access, overwrites, start) =>
                {
                    last.bytes.end = end;
                }
                _ => {
                    merged.push(Use { buffer, bytes: ByteRange { start, end }, access, overwrites })
                }
            }
        }
    }
    merged
}

/// Work that fills a device with `sms` SMs, as far as is known.
pub(crate) fn of_unknown_size(sms: u32) -> LaunchSpec {
    LaunchSpec {
        tasks: sms,
        predicted: None,
        yield_overhead: Duration::ZERO,
        requeued: Duration::ZERO,
        blocks_per_sm: 1,
        on_last_sm: 1,
        plain: true,
        hardware_stop: None,
        leaving: Leaving::AtEnd,
    }
}

/// A program of these launches, as the engine sees it on a device with `sms` SMs: the launch that needs most SMs, as a
/// plain one.
pub(crate) fn whole(launches: impl Iterator<Item = LaunchSpec>, sms: u32) -> LaunchSpec {
    let none = of_unknown_size(1);
    let need = |spec: &LaunchSpec| (spec.tasks.div_ceil(spec.blocks_per_sm).min(sms), spec.tasks);
    let widest = launches.max_by_key(need).unwrap_or(none);
    LaunchSpec { plain: true, ..widest }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What calls do with a byte: whether they write it, and whether they do so before they read it.
    fn naive(uses: &[Use], buffer: BufferId, byte: u64) -> Option<(bool, bool)> {
        let here = |used: &&Use| {
            used.buffer == buffer && used.bytes.start <= byte && byte < used.bytes.end
        };
        let mut all = uses.iter().filter(here).peekable();
        let overwrites = all.peek()?.overwrites;
        Some((all.any(|used| used.access == Access::Write), overwrites))
    }

    fn uses() -> impl Strategy<Value = Vec<Use>> {
        let used = (0u64..2, 0u64..20, 0u64..8, any::<bool>(), any::<bool>());
        let used = used.prop_map(|(buffer, start, len, writes, overwrites)| Use {
            buffer: BufferId::Own(buffer),
            bytes: ByteRange { start, end: start + len },
            access: if writes { Access::Write } else { Access::Read },
            overwrites: writes && overwrites,
        });
        prop::collection::vec(used, 0..12)
    }

    proptest! {
        #[test]
        fn each_byte_is_used_as_by_all_calls(uses in uses()) {
            let all = merged(uses.iter());
            for buffer in [0, 1].map(BufferId::Own) {
                for byte in 0..30 {
                    prop_assert_eq!(naive(&all, buffer, byte), naive(&uses, buffer, byte));
                }
            }
            for (at, one) in all.iter().enumerate() {
                prop_assert!(!one.bytes.is_empty());
                for other in &all[at + 1..] {
                    let overlap = one.buffer == other.buffer && one.bytes.overlaps(other.bytes);
                    prop_assert!(!overlap, "{:?} and {:?}", one, other);
                }
            }
        }
    }

    #[test]
    fn uses_that_are_alike_are_one() {
        let used = |start, end| Use {
            buffer: BufferId::Own(0),
            bytes: ByteRange { start, end },
            access: Access::Write,
            overwrites: false,
        };
        let all = [used(0, 8), used(8, 16), used(4, 12), used(0, 8)];
        let merged = merged(all.iter());
        assert_eq!(merged.len(), 1, "{merged:?}");
        assert_eq!(merged[0].bytes, ByteRange { start: 0, end: 16 });
    }
}
