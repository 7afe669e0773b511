//! The turns in which the warps of a block without barriers look at their signal.

use crate::atomic_shim::{AtomicU32, Ordering::Relaxed};

/// Cycles between two looks of a block, about 2 µs. All blocks of a queue load the same word; with a load
/// at each yield point they would wait for each other.
pub const PERIOD: u32 = 1 << 12;

/// The time of the block's last look: the clock, without the bits of a period. Or [`TAKEN`] beside the last period that the
/// clock has: a yield point in that one, once in two seconds, sees it 2 µs later.
///
/// Warps reach yield points in any order. The first one of a period exchanges the word, and looks at the
/// signal; the others only compare the word with the clock.
///
/// Relaxed: the word says when to look, and that the SM was taken; no other memory access depends on it.
#[repr(transparent)]
pub struct Watch(AtomicU32);

/// The last period of the clock, and the bits of a clock that say which period it is in.
const LAST_PERIOD: u32 = !(PERIOD - 1);

/// Periods after which a look is old.
pub const OLD_PERIODS: u32 = 4;

/// The bit that says that the SM was taken from the cohort, which does not get it back.
const TAKEN: u32 = 1;

/// The bit beside it that says that the launch was revoked.
const REVOKED: u32 = 2;

impl Watch {
    /// The watch of a block whose last look is at `clock`.
    #[inline(always)]
    pub fn new(clock: u32) -> Watch {
        Watch(AtomicU32::new(clock & LAST_PERIOD))
    }

    /// The time of the last look.
    #[inline(always)]
    pub fn last(&self) -> Last {
        Last(self.0.load(Relaxed))
    }

    /// Whether this thread has to look, because no thread has looked after `last`. At most one thread
    /// gets `true`.
    #[inline(always)]
    pub fn takes_turn(&self, last: Last, clock: u32) -> bool {
        self.0.compare_exchange(last.0, clock & LAST_PERIOD, Relaxed, Relaxed).is_ok()
    }

    /// Tells all warps of the block that the SM was taken, by a revocation or not. What was told of a revocation stays: a thread
    /// with an older word knows less, and the block must not give back what it has stopped behind a marker.
    #[inline(always)]
    pub fn end(&self, is_revoked: bool) {
        // The largest one stays. In one operation, because yield points of kernels without source are copied as they are
        // compiled, and a loop here would be laid out apart from them.
        self.0.fetch_max(LAST_PERIOD | TAKEN | if is_revoked { REVOKED } else { 0 }, Relaxed);
    }

    /// Has warps of the block look again, because the block does not leave for what took the SM: its block-task is marked.
    #[inline(always)]
    pub fn resume(&self, clock: u32) {
        let last = self.last();
        if last.is_end() && !last.is_revoked() {
            // What another thread has found meanwhile stays.
            let _ = self.0.compare_exchange(last.0, clock & LAST_PERIOD, Relaxed, Relaxed);
        }
    }
}

/// The time of a block's last look, as read from its watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Last(u32);

impl Last {
    /// Whether the look was in the period of `clock`.
    #[inline(always)]
    pub fn is_recent(self, clock: u32) -> bool {
        self.0 ^ clock < PERIOD
    }

    /// Whether the look was many periods ago. Then the thread that looks now may not reach another yield
    /// point for long.
    #[inline(always)]
    pub fn is_old(self, clock: u32) -> bool {
        clock.wrapping_sub(self.0) > OLD_PERIODS * PERIOD
    }

    /// Whether the look found that the SM was taken.
    #[inline(always)]
    pub fn is_end(self) -> bool {
        self.0 & TAKEN > 0
    }

    /// Whether it found that the launch was revoked.
    #[inline(always)]
    pub fn is_revoked(self) -> bool {
        self.0 & REVOKED > 0
    }
}
