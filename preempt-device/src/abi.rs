//! What host and device code share: the control block, the signal word, and the
//! parameter that every preemptible entry takes first.
//!
//! Host and device code come from different compilers, so everything here is `repr(C)` and
//! its size is asserted. The protocol over these words is in [`worker`](crate::worker).

use crate::atomic_shim::AtomicU64;

/// How many cohorts of one launch can be out at the same time.
///
/// A yielded launch resumes as a new cohort while blocks of the old one still drain; a launch
/// that grows while it runs adds one cohort for each growth.
pub const COHORT_SLOTS: usize = 8;

/// The most block-tasks that one launch can have, 2³¹ − 1.
///
/// The claim counter has 32 bits for the task index; the upper half is room for claims that
/// overshoot the end.
pub const MAX_TASKS: u32 = i32::MAX as u32;

/// The largest SM count that a signal word can address.
pub const MAX_SMS: u32 = (1 << SM_BITS) - 1;

const SM_BITS: u32 = 14;
const SM_MASK: u64 = (1 << SM_BITS) - 1;

/// The last epoch a signal word can carry, 2³⁶ − 1. A control block that comes near it is retired.
pub const MAX_EPOCH: u64 = (1 << (64 - 2 * SM_BITS)) - 1;

/// A half-open range `[lo, hi)` of SM ids; `lo == hi` is empty, `lo > hi` wraps around the last SM.
///
/// ```
/// use preempt_device::abi::SmRange;
/// let wrapped = SmRange::new(6, 2); // SMs 6, 7, .. and 0, 1
/// assert!(wrapped.contains(7) && wrapped.contains(1) && !wrapped.contains(2));
/// assert!(!SmRange::EMPTY.contains(0));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SmRange {
    lo: u16,
    hi: u16,
}

impl SmRange {
    /// No SM.
    pub const EMPTY: SmRange = SmRange { lo: 0, hi: 0 };
    /// Every SM of any device.
    pub const ALL: SmRange = SmRange { lo: 0, hi: MAX_SMS as u16 };

    /// `[lo, hi)`, both at most [`MAX_SMS`].
    ///
    /// # Panics
    ///
    /// If a bound is larger than [`MAX_SMS`].
    pub const fn new(lo: u32, hi: u32) -> SmRange {
        assert!(lo <= MAX_SMS && hi <= MAX_SMS, "an SM range ends at MAX_SMS");
        SmRange { lo: lo as u16, hi: hi as u16 }
    }

    /// The first SM of the range.
    pub const fn lo(self) -> u32 {
        self.lo as u32
    }

    /// The SM after the last one of the range.
    pub const fn hi(self) -> u32 {
        self.hi as u32
    }

    /// Whether the range holds no SM.
    pub const fn is_empty(self) -> bool {
        self.lo == self.hi
    }

    /// Whether `sm` lies in the range.
    #[inline(always)]
    pub const fn contains(self, sm: u32) -> bool {
        let (lo, hi) = (self.lo as u32, self.hi as u32);
        if lo <= hi { lo <= sm && sm < hi } else { sm >= lo || sm < hi }
    }
}

impl core::fmt::Debug for SmRange {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "[{}, {})", self.lo, self.hi)
    }
}

/// The signal word: which SMs a cohort may use, and the epoch in which that was said.
///
/// The epoch is in the high bits, so of two words the newer is the larger: a block takes the
/// larger of the word in its launch parameter and the word in memory, and cannot be misled by
/// what an earlier owner of the slot left there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Signal(u64);

impl Signal {
    /// A word that grants `range` from `epoch` on.
    ///
    /// # Panics
    ///
    /// If `epoch` is larger than [`MAX_EPOCH`].
    pub const fn new(epoch: u64, range: SmRange) -> Signal {
        assert!(epoch <= MAX_EPOCH, "epochs end at MAX_EPOCH");
        Signal(epoch << (2 * SM_BITS) | (range.lo as u64) << SM_BITS | range.hi as u64)
    }

    /// The word as it stands in memory.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// A word read from memory.
    #[inline(always)]
    pub const fn from_bits(bits: u64) -> Signal {
        Signal(bits)
    }

    /// When the word was written, in signals of this control block.
    pub const fn epoch(self) -> u64 {
        self.0 >> (2 * SM_BITS)
    }

    /// The SMs that the cohort may use.
    #[inline(always)]
    pub const fn range(self) -> SmRange {
        SmRange { lo: (self.0 >> SM_BITS & SM_MASK) as u16, hi: (self.0 & SM_MASK) as u16 }
    }
}

impl core::fmt::Debug for Signal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Signal(epoch {}, {:?})", self.epoch(), self.range())
    }
}

/// Two 32-bit halves in one 64-bit word, so that both change in one atomic operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Halves {
    pub high: u32,
    pub low: u32,
}

impl Halves {
    #[inline(always)]
    pub const fn pack(self) -> u64 {
        (self.high as u64) << 32 | self.low as u64
    }

    #[inline(always)]
    pub const fn unpack(word: u64) -> Halves {
        Halves { high: (word >> 32) as u32, low: word as u32 }
    }
}

/// One cohort's part of the control block.
#[derive(Debug, Default)]
#[repr(C, align(32))]
pub struct CohortSlot {
    /// The [`Signal`]. Written by the host, read by each block of the cohort before each chunk.
    pub signal: AtomicU64,
    /// Blocks that left (high half) and the tasks they finished (low half). Written by leaving
    /// blocks; set back to zero by the last one.
    pub left: AtomicU64,
}

/// The state of one launch in device memory. It starts as zeros and is used for one launch
/// after another: it cleans itself, so that a launch is one driver call.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct ControlBlock {
    /// Generation (high half) and next unclaimed task (low half). A claim that finds another
    /// generation there starts this one at task 0.
    pub next: AtomicU64,
    /// One slot for each cohort that can be out at the same time.
    pub slots: [CohortSlot; COHORT_SLOTS],
}

/// Where the last block of a cohort tells the host that the cohort is out; in host-mapped memory.
///
/// High half: the cohort's ticket. Low half: the tasks that the cohort finished.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Post(pub AtomicU64);

impl Post {
    /// The number of tasks that the cohort with this `ticket` finished, once it is out.
    ///
    /// Everything that those tasks wrote is visible to the caller after `Some`.
    pub fn read(&self, ticket: u32) -> Option<u32> {
        // Acquire: pairs with the last block's release fence before its store of this word.
        let post = Halves::unpack(self.0.load(crate::atomic_shim::Ordering::Acquire));
        (post.high == ticket).then_some(post.low)
    }
}

/// The first parameter of every preemptible entry: one cohort of one launch.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Cohort {
    /// The launch's control block, in device memory.
    pub control: *const ControlBlock,
    /// The cohort's post, in host-mapped memory.
    pub post: *const Post,
    /// The cohort's signal when it was launched; older words in memory are ignored.
    pub signal: Signal,
    /// Block-tasks in x, y and z: the grid that the kernel sees.
    pub grid: [u32; 3],
    /// Block-tasks in all, the product of `grid`.
    pub tasks: u32,
    /// Which use of the control block this launch is.
    pub generation: u32,
    /// Which use of the post this cohort is; never zero.
    pub ticket: u32,
    /// Index into [`ControlBlock::slots`].
    pub slot: u32,
    /// Blocks in this cohort's grid.
    pub blocks: u32,
    /// Blocks of this kernel that fill the device; chunks shrink when fewer tasks remain than
    /// would occupy these.
    pub workers: u32,
    /// The amortizing factor: the most tasks claimed at once.
    pub amortize: u32,
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Signal>() == 8);
    assert!(size_of::<CohortSlot>() == 32);
    assert!(size_of::<ControlBlock>() == 384);
    assert!(size_of::<Post>() == 8);
    assert!(size_of::<Cohort>() == 64);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_keeps_its_epoch_and_range() {
        let signal = Signal::new(MAX_EPOCH, SmRange::new(MAX_SMS, 3));
        assert_eq!(signal.epoch(), MAX_EPOCH);
        assert_eq!(signal.range(), SmRange::new(MAX_SMS, 3));
    }

    #[test]
    fn a_newer_signal_is_larger_whatever_its_range() {
        assert!(Signal::new(2, SmRange::EMPTY) > Signal::new(1, SmRange::ALL));
    }

    #[test]
    fn a_range_wraps_around_the_last_sm() {
        let range = SmRange::new(5, 2);
        let held: [bool; 8] = core::array::from_fn(|sm| range.contains(sm as u32));
        assert_eq!(held, [true, true, false, false, false, true, true, true]);
    }
}
