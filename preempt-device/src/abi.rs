//! What host and device code share: the control block, the signal word, and the
//! parameter that every preemptible entry takes first.
//!
//! Host and device code come from different compilers, so everything here is `repr(C)` and
//! its size is asserted. The protocol over these words is in [`worker`](crate::worker).

use crate::atomic_shim::{AtomicU32, AtomicU64, Ordering};

mod progress;
mod stops;
pub use progress::{Begun, MAX_PROGRESS, Progress};
pub(crate) use stops::Technique;
pub use stops::{StopLimit, StopWords, Stops};

/// Cohorts of one launch that can be on the device at the same time.
///
/// A preempted launch resumes as a new cohort while blocks of the old one still drain. A launch that grows
/// adds one cohort for each growth.
pub const COHORT_SLOTS: usize = 8;

/// Block-tasks: the most that one launch can have, 2³⁰.
///
/// [`Claims::next`] exceeds it by half at most, and stays below [`REQUEUED`]. The packed form of a
/// [`Chunk`](crate::worker::Chunk) relies on it, too.
pub const MAX_TASKS: u32 = 1 << 30;

/// The bit of [`Claims::next`] that announces a requeued task: a block that claims and finds it set looks at
/// the [`RequeueList`].
pub const REQUEUED: u32 = 1 << 31;

/// The largest SM count that a signal word can address.
pub const MAX_SMS: u32 = (1 << SM_BITS) - 1;

const SM_BITS: u32 = 10;
const SM_MASK: u64 = (1 << SM_BITS) - 1;
const LIMIT_BITS: u32 = 8;

/// Chunks: the most on a [`RequeueList`] at the same time. Two for each block of a device with 132 SMs and 32
/// blocks on each, and [`REQUEUE_MARGIN`].
pub const REQUEUE_CAPACITY: usize = if cfg!(all(test, loom)) { 4 } else { 32_768 };

/// Entries of a [`RequeueList`] that stay free for blocks that find room on it at the same time.
pub const REQUEUE_MARGIN: u32 = if cfg!(all(test, loom)) { 2 } else { 16_384 };

/// Slots of a save area: the most block-tasks of a launch that blocks have left at checkpoints.
pub const MAX_SAVE_SLOTS: usize = 4096;

const _: () = assert!(
    cfg!(all(test, loom)) || 2 * 132 * 32 + MAX_SAVE_SLOTS <= REQUEUE_MARGIN as usize,
    "the margin holds two chunks of each block, and a saved one for each slot"
);

/// A half-open range `[lo, hi)` of SM ids; `lo == hi` is empty, `lo > hi` wraps around the last SM.
///
/// ```
/// # use preempt_device::abi::SmRange;
/// let wrapped = SmRange::new(6, 2); // SMs 6, 7, .. and 0, 1
/// assert!(wrapped.contains(7) && wrapped.contains(1) && !wrapped.contains(2));
/// assert!(!SmRange::EMPTY.contains(0));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SmRange {
    lo: u16,
    hi: u16,
}

impl SmRange {
    /// No SM.
    pub const EMPTY: SmRange = SmRange { lo: 0, hi: 0 };
    /// Every SM of any device.
    pub const ALL: SmRange = SmRange { lo: 0, hi: MAX_SMS as u16 };

    /// `[lo, hi)`, both at most the end of [`ALL`](SmRange::ALL).
    ///
    /// # Panics
    ///
    /// If a bound is larger than that.
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

/// The signal word of a device queue: which SMs its cohorts may use, the time that they have to leave others, and the epoch
/// of that grant.
///
/// The epoch is in the high bits and grows with each word, modulo 2³⁶. A block compares the word in its
/// launch parameter with the word in memory and takes the [newer](Signal::is_newer) one. So a word that was
/// written for an earlier cohort of the queue has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Signal(u64);

impl Signal {
    /// The lowest bit of the epoch.
    pub const EPOCH_SHIFT: u32 = 2 * SM_BITS + LIMIT_BITS;

    /// A word that grants `range` from `epoch` on, of which it keeps the lowest 36 bits. Blocks on other SMs leave as soon
    /// as possible.
    pub const fn new(epoch: u64, range: SmRange) -> Signal {
        Signal::within(epoch, range, StopLimit::SOONEST)
    }

    /// As [`new`](Signal::new), and blocks on other SMs leave within `limit`.
    ///
    /// Words of one epoch may differ in their limits. Those that cohorts are launched with have the largest, so they are no
    /// older than what is in memory.
    pub const fn within(epoch: u64, range: SmRange, limit: StopLimit) -> Signal {
        let grant = (range.lo as u64) << SM_BITS | range.hi as u64;
        Signal((epoch << LIMIT_BITS | limit.0 as u64) << (2 * SM_BITS) | grant)
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

    /// The number of this word among those of its queue, modulo 2³⁶.
    pub const fn epoch(self) -> u64 {
        self.0 >> Signal::EPOCH_SHIFT
    }

    /// The time that blocks on other SMs have to leave.
    #[inline(always)]
    pub const fn limit(self) -> StopLimit {
        StopLimit((self.0 >> (2 * SM_BITS)) as u8)
    }

    /// Whether this word was written after the other one. Exact as long as they are less than 2³⁵ words
    /// apart, so epochs may wrap around.
    #[inline(always)]
    pub const fn is_newer(self, other: Signal) -> bool {
        self.0.wrapping_sub(other.0) as i64 > 0
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

/// A queue of the device that runs cohorts in order (a CUDA stream), as its blocks see it: its signal word.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct DeviceQueue {
    /// The [`Signal`]. The host writes it; each block of the queue's cohorts reads it before each chunk.
    pub signal: AtomicU64,
    /// When that word came: the lowest 32 bits of its epoch in the high half, and of the device's time in nanoseconds in the
    /// low half. What carries the word writes this before it, if it knows the time.
    pub arrived: AtomicU64,
}

impl DeviceQueue {
    /// How long ago a word came, in nanoseconds, if that is known; `now` is the device's time.
    #[inline(always)]
    pub fn since(&self, signal: Signal, now: u64) -> Option<u32> {
        // Relaxed: a time for statistics.
        Self::between(self.arrived.load(Ordering::Relaxed), signal, now)
    }

    /// The time between the arrival of a word and `now`, if `arrived` is that of this word.
    #[inline(always)]
    pub(crate) fn between(arrived: u64, signal: Signal, now: u64) -> Option<u32> {
        let Halves { high, low } = Halves::unpack(arrived);
        (high == signal.epoch() as u32).then(|| (now as u32).wrapping_sub(low))
    }

    /// The value of [`arrived`](DeviceQueue::arrived) for a word that comes now.
    pub const fn arrival(signal: Signal, now: u64) -> u64 {
        Halves { high: signal.epoch() as u32, low: now as u32 }.pack()
    }

    /// Whether a block on `sm`, of a cohort that was launched with `granted`, may go on.
    ///
    /// Relaxed: a signal is advice to stop, and no other memory access depends on it.
    #[inline(always)]
    pub fn grants(&self, granted: Signal, sm: u32) -> bool {
        granted.grants_with(self.signal.load(Ordering::Relaxed), sm)
    }
}

impl Signal {
    /// Whether a block on `sm` may go on, if its cohort was launched with this word and its queue's word is
    /// now `in_memory`.
    #[inline(always)]
    pub const fn grants_with(self, in_memory: u64, sm: u32) -> bool {
        self.or_newer(in_memory).range().contains(sm)
    }

    /// This word, or the one in memory if that is newer.
    #[inline(always)]
    pub const fn or_newer(self, in_memory: u64) -> Signal {
        let in_memory = Signal::from_bits(in_memory);
        if in_memory.is_newer(self) { in_memory } else { self }
    }
}

/// The counter of the tasks of one launch that blocks have claimed.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Claims {
    /// The next unclaimed task, counted from [`Cohort::handed`]. The highest bit is [`REQUEUED`].
    ///
    /// May overshoot the number of tasks by one claim for each running block; bounded by [`MAX_TASKS`], so it
    /// cannot wrap.
    pub next: AtomicU32,
}

/// The state of one launch in device memory. It starts as zeros, and launches use it one after the other. The
/// worker loop cleans it up, so that a launch is one driver call.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct ControlBlock {
    /// Launches use the two in turn ([`Cohort::claims`]); each cohort zeroes the one of the other launches.
    pub claims: [Claims; 2],
    /// For each slot: the blocks that left (high half) and the tasks that they finished (low half), over all
    /// cohorts of the slot; see [`departures`].
    pub left: [AtomicU64; COHORT_SLOTS],
    /// How blocks left, for each of `claims`: by the launch that uses it. The last block of a cohort moves it to its post.
    pub stops: [StopWords; 2],
}

/// What a cohort of `blocks` blocks that finished `tasks` tasks adds to its [`ControlBlock::left`]
/// word, modulo 2⁶⁴. The tasks of all cohorts together may carry over into the blocks: only
/// differences count.
pub const fn departures(blocks: u32, tasks: u32) -> u64 {
    Halves { high: blocks, low: tasks }.pack()
}

/// Chunks that blocks gave back: a queue that any block of the launch puts into and takes from.
///
/// An entry that is not zero holds a chunk. `put` and `taken` only grow, and wrap around the array.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct RequeueList {
    /// Chunks that no block has reserved. A block that decrements it from above 0 has reserved one.
    ///
    /// Below 0, modulo 2³², while blocks find that the list is empty.
    pub available: AtomicU32,
    /// Entries that were ever handed out to blocks that put a chunk.
    pub put: AtomicU32,
    /// Entries that were ever handed out to blocks that take a chunk.
    pub taken: AtomicU32,
    /// [`Chunk`](crate::worker::Chunk)s in their packed form.
    pub entries: [AtomicU64; REQUEUE_CAPACITY],
    /// The save area that goes with the list, on a GPU. In what would be padding, so a launch's only way there is the
    /// address of its list, and the parameter of entries without a checkpoint stays what it is.
    pub save: SavePart,
}

/// Where the block-tasks of a launch are kept that blocks have left at checkpoints, in device memory: a bit for each of
/// [`MAX_SAVE_SLOTS`] slots, which is 0 while no block-task has the slot, and behind these words the slots. How many there
/// are follows from the bytes that a block saves, which host and device compute alike ([`slot_bytes`]).
///
/// The host writes it before any cohort can use the list, and never again. It is atomic because the list is shared.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SavePart {
    /// The address of the words, a multiple of 16.
    pub memory: AtomicU64,
    /// Bytes at that address; 0 if the list has no save area.
    pub bytes: AtomicU32,
    unused: AtomicU32,
}

/// Bytes ahead of the slots of a save area: the words that say which of them are in use.
pub const SAVE_WORDS: usize = MAX_SAVE_SLOTS / 8;

/// Bytes of a slot for a block of `threads` threads, with `state` bytes for each of its warps' and `shared` bytes of shared
/// memory: a multiple of 16 if `state` is one. 1024 threads with the largest state, and any shared memory, are less than 2²⁷.
#[inline(always)]
pub const fn slot_bytes(threads: u32, state: u32, shared: u32) -> u32 {
    threads.next_multiple_of(32) * state + shared.next_multiple_of(16)
}

/// Slots of `slot_bytes` bytes each in a save area of `bytes` bytes.
#[inline(always)]
pub const fn save_slots(bytes: u32, slot_bytes: u32) -> u32 {
    if slot_bytes == 0 {
        return 0;
    }
    let slots = bytes.saturating_sub(SAVE_WORDS as u32) / slot_bytes;
    if slots < MAX_SAVE_SLOTS as u32 { slots } else { MAX_SAVE_SLOTS as u32 }
}

// Beside the entries there were at least 16 bytes of padding: a list takes as many bytes as without a save area.
const _: () = assert!(
    cfg!(all(test, loom)) || size_of::<RequeueList>() == 8 * REQUEUE_CAPACITY + 128,
    "a list has its counters, its entries, and less than a line beside"
);

impl Default for RequeueList {
    fn default() -> RequeueList {
        RequeueList {
            available: AtomicU32::default(),
            put: AtomicU32::default(),
            taken: AtomicU32::default(),
            entries: core::array::from_fn(|_| AtomicU64::default()),
            save: SavePart::default(),
        }
    }
}

impl RequeueList {
    /// Empties a list that no block uses.
    pub fn clear(&self) {
        for word in [&self.available, &self.put, &self.taken] {
            word.store(0, Ordering::Relaxed);
        }
        self.entries.iter().for_each(|entry| entry.store(0, Ordering::Relaxed));
    }
}

/// Where the last block of a cohort reports to the host that all blocks have left. In host-mapped memory.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Post {
    /// The [word](Post::word) that says so. From the highest bit on: 20 bits of the cohort's ticket, 12 of the amortizing
    /// factor, 32 of the tasks that the cohort finished.
    pub word: AtomicU64,
    /// [`Stops`], written before the word: both times, the techniques, and the lost time.
    times: AtomicU64,
    techniques: AtomicU64,
    lost: AtomicU64,
}

/// What a cohort did, as its [`Post`] reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Posted {
    /// Tasks that the cohort finished.
    pub done: u32,
    /// The amortizing factor of the cohort's last block when it left; 0 if it had run nothing.
    pub amortize: u32,
}

/// The largest ticket. A later use of a post can be told from an earlier one if fewer than half as many uses
/// lie between.
pub const MAX_TICKET: u32 = (1 << 20) - 1;

const AMORTIZE_BITS: u32 = 12;

impl Post {
    /// The word of the cohort with this `ticket`. It holds amortizing factors up to 4095, and larger ones as
    /// 4095.
    #[inline(always)]
    pub const fn word(ticket: u32, posted: Posted) -> u64 {
        let most = (1 << AMORTIZE_BITS) - 1;
        let amortize = if posted.amortize < most { posted.amortize } else { most };
        Halves { high: ticket << AMORTIZE_BITS | amortize, low: posted.done }.pack()
    }

    /// What the cohort with this `ticket` did; `None` before all of its blocks have left.
    ///
    /// Everything that its tasks wrote is visible to the caller after `Some`.
    pub fn read(&self, ticket: u32) -> Option<Posted> {
        let (last, posted) = self.last();
        (last == ticket).then_some(posted)
    }

    /// A post with this word.
    pub fn with(word: u64) -> Post {
        Post { word: AtomicU64::new(word), ..Post::default() }
    }

    /// How the blocks of the cohort left, after [`read`](Post::read) has returned `Some`.
    ///
    /// Relaxed: that read was the acquire.
    ///
    /// Takes it away, because a cohort that has nothing to say of it writes nothing.
    pub fn take_stops(&self) -> Stops {
        let take = |word: &AtomicU64| match word.load(Ordering::Relaxed) {
            0 => 0,
            value => {
                word.store(0, Ordering::Relaxed);
                value
            }
        };
        let Halves { high: latest, low: longest } = Halves::unpack(take(&self.times));
        let stops = Stops { longest, latest, lost: take(&self.lost), ..Stops::default() };
        stops.with_techniques(take(&self.techniques))
    }

    /// Whether the cohort with this `ticket`, or a later user of the post, has ended.
    pub fn has_passed(&self, ticket: u32) -> bool {
        let ahead = self.last().0.wrapping_sub(ticket) & MAX_TICKET;
        ahead <= MAX_TICKET / 2
    }

    /// The ticket of the cohort that wrote the post last, and what that cohort did.
    fn last(&self) -> (u32, Posted) {
        // Acquire: pairs with the last block's release fence before its store of this word.
        let Halves { high, low } = Halves::unpack(self.word.load(Ordering::Acquire));
        let amortize = high & ((1 << AMORTIZE_BITS) - 1);
        (high >> AMORTIZE_BITS, Posted { done: low, amortize })
    }
}

/// The parameter that a preemptible entry has beside the kernel's own: one cohort of one launch.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Cohort {
    /// The launch's control block, in device memory.
    pub control: *const ControlBlock,
    /// The launch's own counter in [`ControlBlock::claims`]: launches that use the control block alternate
    /// between the two.
    pub claims: *const Claims,
    /// The device queue that the cohort is in, in device memory.
    pub queue: *const DeviceQueue,
    /// The cohort's post, in host-mapped memory.
    pub post: *const Post,
    /// The list of chunks that blocks give back, in device memory.
    pub requeue_list: *const RequeueList,
    /// Where its blocks tell how far they are, each in the word of its number, in host-mapped memory. Null if they do not.
    pub progress: *const Progress,
    /// The queue's signal when the cohort was launched; older words in memory are ignored.
    pub signal: Signal,
    /// The [`ControlBlock::left`] word of the preceding launch of the stream, if that launch was unfinished
    /// when this cohort was queued behind it. Behind a gate, the word that has the gate's ticket once it was opened. Null
    /// otherwise.
    pub after: *const AtomicU64,
    /// The value of that word once the preceding launch is done, or the gate's ticket. While the word differs, no block of
    /// this cohort runs a task.
    pub after_word: u64,
    /// The value of the cohort's own [`ControlBlock::left`] word when it was launched.
    pub left: u64,
    /// Block-tasks in all, the product of `grid`.
    pub tasks: u32,
    /// Block-tasks in x, y and z: the grid that the kernel sees.
    pub grid: [u32; 3],
    /// The grid's x.
    pub row: Divisor,
    /// The grid's y.
    pub layer: Divisor,
    /// The number of this use of the post, from 1 to [`MAX_TICKET`].
    pub ticket: u32,
    /// Blocks in this cohort's grid.
    pub blocks: u32,
    /// The amortizing factor: the most tasks claimed at once.
    pub amortize: u32,
    /// Units of [`Block::clock`](crate::worker::Block::clock): the most that a chunk should take. 0 if
    /// `amortize` alone limits chunks.
    pub pace: u32,
    /// [`share_bits`] of the blocks of this kernel that fill the device: chunks shrink when fewer tasks are
    /// left than would occupy these blocks.
    pub share_bits: u32,
    /// Units of the same clock: if chunks take less, each block claims several at once, because blocks would
    /// otherwise wait for each other's claims.
    pub crowd: u32,
    /// Units of the same clock: the longest chunk that is expected; 0 if none is known. What a chunk still takes is
    /// estimated by it.
    pub longest: u32,
    /// Units of the same clock in 2²⁰ ns.
    pub clock: u32,
    /// The number of tasks that are not claimed. Each block of the launch's first cohort starts with the task
    /// of its own number. 0 if that cohort was queued behind another launch or a gate, or has spare blocks.
    pub handed: u32,
    /// What fits into a few bits.
    pub flags: CohortFlags,
    /// Rows of the grid behind the first one: 0 takes one instruction and no register to compare with.
    pub more_rows: u32,
    /// 1 if all threads have to end a task before the next one of its chunk starts: for kernels that use
    /// shared memory or barriers. 0 otherwise.
    pub barrier: u32,
}

/// Small parts of a [`Cohort`], in one word, which the worker loop reads anew where it needs one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct CohortFlags(u32);

impl CohortFlags {
    const FIRST: u32 = 1 << 16;

    /// Of a cohort with this index into [`ControlBlock::left`], whose blocks mark their words of `progress` with `mark`, which
    /// is 0 if they tell nothing.
    pub const fn new(slot: u8, mark: u8) -> CohortFlags {
        CohortFlags(mark as u32 | (slot as u32) << 8)
    }

    /// With another index.
    pub const fn at(self, slot: u8) -> CohortFlags {
        CohortFlags(self.0 & !0xff00 | (slot as u32) << 8)
    }

    /// Whether this is the launch's first cohort, whose blocks have the `handed` tasks.
    pub const fn first(self, is_first: bool) -> CohortFlags {
        CohortFlags(self.0 & !Self::FIRST | if is_first { Self::FIRST } else { 0 })
    }

    /// Index into [`ControlBlock::left`].
    #[inline(always)]
    pub const fn slot(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// What its blocks mark their words of `progress` with; 0 if they tell nothing.
    #[inline(always)]
    pub const fn mark(self) -> u8 {
        self.0 as u8
    }

    /// Whether this is the launch's first cohort.
    #[inline(always)]
    pub const fn is_first(self) -> bool {
        self.0 & Self::FIRST > 0
    }

    /// The same, which the compiler cannot have read before.
    #[inline(always)]
    pub(crate) fn anew(self) -> CohortFlags {
        CohortFlags(crate::target::opaque(self.0))
    }
}

/// Bytes of arguments, at most, that a kernel takes: 4096 are the limit of every driver (CUDA C++ programming guide,
/// "Function parameters"), and the cohort is one of them.
pub const MAX_ARGUMENT_BYTES: usize = 4096 - size_of::<Cohort>();

/// The shift that divides a number of tasks into half of an even share for each of `workers`. The result is
/// too small by less than half. A division would take longer than all other steps of a claim.
pub const fn share_bits(workers: u32) -> u32 {
    let bits = 33 - workers.leading_zeros();
    if bits < 31 { bits } else { 31 }
}

/// A divisor from 1 to [`MAX_TASKS`], for division by a multiplication. A GPU has no division instruction,
/// and its routine takes longer than a small kernel's body.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Divisor {
    /// 2³¹⁺ˡ / divisor, rounded up, where 2ˡ is the first power of two that is not below the divisor; 0 for
    /// 1.
    multiplier: u32,
    /// l - 1.
    shift: u32,
}

impl Divisor {
    /// Division by `divisor`.
    pub const fn new(divisor: u32) -> Divisor {
        if divisor <= 1 {
            return Divisor { multiplier: 0, shift: 0 };
        }
        let shift = 31 - (divisor - 1).leading_zeros();
        let power = 1 << (32 + shift);
        Divisor { multiplier: u64::div_ceil(power, divisor as u64) as u32, shift }
    }

    /// The quotient of `dividend`, which is at most [`MAX_TASKS`], rounded down.
    ///
    /// Exact (Granlund and Montgomery 1994, theorem 4.2). The multiplier is too large by less than 1, so with
    /// a dividend of 31 bits the quotient is too large by less than 2⁻ˡ. That is at most 1 / divisor, the
    /// least distance of a fraction to the next whole number.
    #[inline(always)]
    pub const fn of(self, dividend: u32) -> u32 {
        match self.multiplier {
            0 => dividend,
            multiplier => ((dividend as u64 * multiplier as u64) >> 32) as u32 >> self.shift,
        }
    }
}

#[cfg(not(all(test, loom)))]
const _: () = {
    assert!(size_of::<Signal>() == 8);
    assert!(size_of::<DeviceQueue>() == 128);
    assert!(size_of::<Claims>() == 64);
    assert!(size_of::<ControlBlock>() == 256);
    assert!(size_of::<RequeueList>() == 128 + 8 * REQUEUE_CAPACITY);
    assert!(size_of::<Post>() == 32);
    assert!(size_of::<Cohort>() == 160);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_keeps_its_epoch_and_range() {
        let signal = Signal::new(77, SmRange::new(MAX_SMS, 3));
        assert_eq!(signal.epoch(), 77);
        assert_eq!(signal.range(), SmRange::new(MAX_SMS, 3));
    }

    #[test]
    fn the_newer_signal_is_newer_whatever_its_range() {
        let (old, new) = (Signal::new(1, SmRange::ALL), Signal::new(2, SmRange::EMPTY));
        assert!(new.is_newer(old) && !old.is_newer(new) && !new.is_newer(new));
    }

    // loom's atomics live in a model.
    #[cfg(not(all(test, loom)))]
    #[test]
    fn a_queue_says_how_long_ago_its_own_word_came() {
        let (queue, signal) = (DeviceQueue::default(), Signal::new(1 << 33 | 7, SmRange::EMPTY));
        assert_eq!(queue.since(signal, 99), None);
        queue.arrived.store(DeviceQueue::arrival(signal, u64::from(u32::MAX)), Ordering::Relaxed);
        assert_eq!(queue.since(signal, (1 << 32) + 49), Some(50));
        assert_eq!(queue.since(Signal::new(8, SmRange::EMPTY), 50), None);
    }

    #[test]
    fn epochs_go_round() {
        let last = Signal::new((1 << 36) - 1, SmRange::EMPTY);
        let next = Signal::new(1 << 36, SmRange::EMPTY);
        assert_eq!(next.epoch(), 0);
        assert!(next.is_newer(last) && !last.is_newer(next));
    }

    // loom's atomics live in a model.
    #[cfg(not(all(test, loom)))]
    #[test]
    fn a_post_keeps_ticket_factor_and_tasks() {
        for (ticket, amortize, done) in
            [(1, 0, 0), (MAX_TICKET, 4095, MAX_TASKS), (77, 16, u32::MAX)]
        {
            let posted = Posted { done, amortize };
            let post = Post::with(Post::word(ticket, posted));
            assert_eq!(post.read(ticket), Some(posted));
            assert_eq!(post.read(ticket - 1), None);
        }
        let many = Posted { done: 3, amortize: 100_000 };
        let post = Post::with(Post::word(2, many));
        assert_eq!(post.read(2), Some(Posted { done: 3, amortize: 4095 }));
    }

    // loom's atomics live in a model.
    #[cfg(not(all(test, loom)))]
    #[test]
    fn a_later_ticket_has_passed_an_earlier_one() {
        let at = |ticket| Post::with(Post::word(ticket, Posted::default()));
        assert!(at(5).has_passed(5) && at(6).has_passed(5) && !at(4).has_passed(5));
        assert!(at(1).has_passed(MAX_TICKET) && !at(MAX_TICKET).has_passed(1));
        assert!(!at(0).has_passed(1), "a fresh post");
    }

    #[test]
    fn quotients_are_exact() {
        let numbers = [0, 1, 2, 3, 7, 255, 256, 257, 65_535, 1 << 20, (1 << 30) + 1, MAX_TASKS];
        for x in numbers.into_iter().chain(2..3000).filter(|&x| x > 0) {
            let divisor = Divisor::new(x);
            let multiples = (0..4).map(|n| (MAX_TASKS / x).saturating_sub(n) * x);
            for multiple in multiples.chain([x, x.saturating_mul(2)]).chain(numbers) {
                for index in [multiple, multiple.saturating_sub(1), multiple.saturating_add(1)] {
                    let index = index.min(MAX_TASKS);
                    assert_eq!(divisor.of(index), index / x, "{index} / {x}");
                }
            }
        }
    }

    #[test]
    fn a_range_wraps_around_the_last_sm() {
        let range = SmRange::new(5, 2);
        let held: [bool; 8] = core::array::from_fn(|sm| range.contains(sm as u32));
        assert_eq!(held, [true, true, false, false, false, true, true, true]);
    }
}
