//! What a block tells of how it leaves, for statistics, and of its longest chunk.

use super::{Block, BlockNotes, Body};
use crate::abi::{Cohort, DeviceQueue, StopLimit, StopWords, Technique};
use crate::atomic_shim::Ordering::Relaxed;

/// Notes how long the chunk took that ends now. A requeued one took less than that, which changes no maximum.
#[inline(always)]
pub(super) fn note_chunk<B: Block>(block: &B) {
    let notes = block.notes();
    let took = notes.elapsed(block.clock() as u32);
    if took > notes.longest.get() {
        notes.longest.set(took);
    }
}

/// Notes that the block leaves because its SM was taken.
///
/// # Safety
///
/// As [`run`](super::run).
#[inline(always)]
pub(super) unsafe fn note_stop<B: Block>(block: &B, cohort: &Cohort, technique: Technique) {
    if cfg!(all(test, loom)) {
        return;
    }
    // SAFETY: the caller's promise.
    note_stop_by(block, cohort, unsafe { signal_and_arrival(cohort) }, technique);
}

/// The signal of a cohort's queue, and when that came. Both at once, so that the loads overlap; the signal first, since what carries
/// it writes its time before it.
///
/// # Safety
///
/// As [`run`](super::run).
#[inline(always)]
pub(super) unsafe fn signal_and_arrival(cohort: &Cohort) -> (u64, u64) {
    // SAFETY: the caller's promise.
    let queue = unsafe { &*cohort.queue };
    let signal = queue.signal.load(Relaxed);
    // For statistics alone.
    (signal, if cfg!(all(test, loom)) { 0 } else { queue.arrived.load(Relaxed) })
}

/// As [`note_stop`], by these words.
#[inline(always)]
pub(super) fn note_stop_by<B: Block>(
    block: &B,
    cohort: &Cohort,
    (word, arrived): (u64, u64),
    technique: Technique,
) {
    let notes = block.notes();
    let signal = cohort.signal.or_newer(word);
    // Without a branch: a block that stops can spare the time, and what the compiler does not lay out apart cannot come between
    // the marks of a yield point (`preempt-ptx-text`).
    let since = DeviceQueue::between(arrived, signal, block.nanos());
    let keeps_to_some = !matches!(signal.limit(), StopLimit::SOONEST | StopLimit::REVOKED);
    let latest = since.filter(|_| keeps_to_some);
    let is_lost = technique == Technique::Requeue;
    notes.lost.set(if is_lost { notes.elapsed(block.clock() as u32) } else { 0 });
    notes.latest.set(latest.unwrap_or(0));
    notes.technique.set(technique as u32 + 1);
}

/// Adds how a block leaves to the launch's words, and how long its chunks took, if it stops or none is known; whether it has.
/// The last block posts both in these cases, as far as it has seen that the cohort was signalled.
///
/// Not under loom: they are statistics, and nothing depends on them.
#[inline(always)]
pub(super) fn tell_stop<T: Body>(notes: &BlockNotes, cohort: &Cohort, stops: &StopWords) -> bool {
    if cfg!(all(test, loom)) {
        return false;
    }
    let technique = notes.technique.get();
    let is_told = technique > 0 || T::YIELDS && cohort.longest == 0;
    if T::YIELDS && is_told {
        stops.add_chunk(notes.longest.get());
    }
    let technique = match technique {
        0 => return is_told,
        1 => Technique::Drain,
        2 => Technique::Requeue,
        _ => Technique::Switch,
    };
    stops.add(technique, notes.latest.get(), notes.lost.get());
    true
}
