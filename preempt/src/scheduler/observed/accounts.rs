//! Counts of launches, kept while they run, in a fixed amount of memory.

use std::collections::BTreeMap;
use std::time::Duration;

use preempt_device::abi::{SmRange, Stops as Posted};
use rustc_hash::FxHashMap;

use super::stats::{Decisions, Overdue, Stats, Stops, StreamStats, Totals};
use super::telemetry;
use super::trace::{Moment, Trace};
use crate::engine::{Grant, LaunchReport, Outcome, count};
use crate::policy::Priority;
use crate::sync::Instant;

/// Streams, at most, with accounts of their own. Beyond that, those idle for longest are added up.
const MOST_STREAMS: usize = 256;

/// Priorities, at most, with accounts of their own; further priorities are added up.
const MOST_PRIORITIES: usize = 32;

/// Decisions of which one is timed: reading the clock twice takes as long as a small decision.
const TIMED: u64 = 32;

/// A launch in the accounts.
#[derive(Debug)]
pub(in crate::scheduler) struct LaunchEntry {
    /// A running number.
    pub launch: u64,
    pub stream: u32,
    pub name: &'static str,
    pub priority: Priority,
    /// Its predicted time.
    pub predicted: Option<Duration>,
    /// The SMs that it has, since when, and whether another launch has them, too.
    has: Option<(Duration, SmRange, bool)>,
    started: bool,
    /// Whether SMs were taken from it, and it has got none back since.
    has_yielded: bool,
}

/// All counts.
#[derive(Debug)]
pub(in crate::scheduler) struct Accounts {
    sms: u32,
    launches: u64,
    total: Tally,
    streams: FxHashMap<u32, Account>,
    other_streams: Tally,
    priorities: BTreeMap<Priority, Tally>,
    other_priorities: Tally,
    stops: Stops,
    decisions: u64,
    timed: Histogram,
    busy: Duration,
    busy_since: Option<Duration>,
    trace: Option<Trace>,
    /// Whether `tracing` and `metrics` are told.
    is_told: bool,
}

/// A stream's account.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    tally: Tally,
    /// Launches that have not ended.
    outstanding: u32,
    last: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    done: u64,
    failed: u64,
    cancelled: u64,
    refused: u64,
    yields: u64,
    sm_time: Duration,
    /// Sum of normalized turnaround times; their number is in the next field.
    turnarounds: f64,
    turned_around: u64,
    /// Time that finished launches would have taken alone.
    alone: Duration,
}

impl Accounts {
    /// With a timeline of `trace` entries, if it is to be kept.
    pub fn new(sms: u32, trace: Option<usize>) -> Accounts {
        Accounts {
            sms,
            launches: 0,
            total: Tally::default(),
            streams: FxHashMap::default(),
            other_streams: Tally::default(),
            priorities: BTreeMap::new(),
            other_priorities: Tally::default(),
            stops: Stops::default(),
            decisions: 0,
            timed: Histogram::default(),
            busy: Duration::ZERO,
            busy_since: None,
            trace: trace.map(Trace::new),
            is_told: true,
        }
    }

    /// Tells neither `tracing` nor `metrics`.
    pub fn untold(self) -> Accounts {
        Accounts { is_told: false, ..self }
    }

    /// Records that a launch was submitted.
    pub fn submitted(
        &mut self,
        now: Duration,
        stream: u32,
        name: &'static str,
        priority: Priority,
        predicted: Option<Duration>,
    ) -> LaunchEntry {
        if let Some(account) = self.account(stream) {
            account.outstanding += 1;
            account.last = now;
        }
        self.launches += 1;
        let launch = self.launches;
        let (has, started, has_yielded) = (None, false, false);
        let entry =
            LaunchEntry { launch, stream, name, priority, predicted, has, started, has_yielded };
        self.note(now, &entry, Moment::Queued);
        if self.is_told {
            telemetry::submitted(&entry);
        }
        entry
    }

    /// A stream's account; a new stream gets one if there is room, or other streams are idle.
    fn account(&mut self, stream: u32) -> Option<&mut Account> {
        if self.streams.len() >= MOST_STREAMS && !self.streams.contains_key(&stream) {
            self.make_room();
            if self.streams.len() >= MOST_STREAMS {
                return None;
            }
        }
        Some(self.streams.entry(stream).or_default())
    }

    /// Adds up the streams that have been idle for longest: many at once, since the search takes microseconds.
    fn make_room(&mut self) {
        let idle = self.streams.iter().filter(|(_, account)| account.outstanding == 0);
        let mut idle: Vec<_> = idle.map(|(&stream, account)| (account.last, stream)).collect();
        idle.sort_unstable();
        for (_, stream) in idle.into_iter().take(MOST_STREAMS / 4) {
            if let Some(account) = self.streams.remove(&stream) {
                self.other_streams.add(&account.tally);
            }
        }
    }

    /// Records that a launch has other SMs from now on.
    pub fn granted(
        &mut self,
        entry: &mut LaunchEntry,
        Grant { at, range, shares, is_over, .. }: Grant,
    ) {
        let before = entry.has.take();
        if let Some((since, before, shared)) = before {
            self.had(entry, since, at, (before, shared));
        }
        let (had, has) = (before.map_or(SmRange::EMPTY, |(_, before, _)| before), range);
        if !has.is_empty() {
            entry.has = Some((at, has, shares));
        }
        if is_over {
            return;
        }
        // Whether the first range has an SM outside the second. Mostly one of them is empty.
        let is_more = |range: SmRange, than: SmRange| match (range.is_empty(), than.is_empty()) {
            (true, _) => false,
            (false, true) => true,
            _ => (0..self.sms).any(|sm| range.contains(sm) && !than.contains(sm)),
        };
        let (loses, gains) = (is_more(had, has), is_more(has, had));
        if loses {
            entry.has_yielded = true;
            self.each(entry.stream, entry.priority, |tally| tally.yields += 1);
            self.note(at, entry, Moment::Yields);
            if self.is_told {
                telemetry::yielded(entry);
            }
        }
        if !gains {
            return;
        }
        // A program's next kernel goes on with what the one before it had, so a gain without a yield before it is none.
        if std::mem::take(&mut entry.has_yielded) {
            self.note(at, entry, Moment::Resumes);
        } else if !std::mem::replace(&mut entry.started, true) {
            self.note(at, entry, Moment::Starts);
            if self.is_told {
                telemetry::started(entry);
            }
        }
    }

    /// Records that a launch had these SMs for a time, alone or with another one.
    fn had(
        &mut self,
        entry: &LaunchEntry,
        from: Duration,
        to: Duration,
        (range, shared): (SmRange, bool),
    ) {
        let sm_time = to.saturating_sub(from).saturating_mul(count(range, self.sms));
        // The other half is the other one's.
        let sm_time = if shared { sm_time / 2 } else { sm_time };
        self.each(entry.stream, entry.priority, |tally| tally.sm_time += sm_time);
        if let Some(trace) = &mut self.trace {
            trace.slice(entry, from, to, range);
        }
    }

    /// Records the end of a launch. `own` is how long it had as many SMs as it can fill, if known.
    pub fn finished(
        &mut self,
        now: Duration,
        entry: &LaunchEntry,
        outcome: Outcome,
        own: Option<Duration>,
    ) {
        if let Some(account) = self.streams.get_mut(&entry.stream) {
            account.outstanding = account.outstanding.saturating_sub(1);
            account.last = now;
        }
        let moment = match outcome {
            Outcome::Done(_) => Moment::Done,
            Outcome::Failed | Outcome::InputLost { .. } => Moment::Failed,
            Outcome::Cancelled { .. } | Outcome::Closed { .. } => Moment::Cancelled,
            Outcome::NotAdmitted => Moment::Refused,
        };
        let alone = entry.predicted.or(own).filter(|alone| !alone.is_zero());
        let turnaround = match outcome {
            Outcome::Done(LaunchReport { ready, done, .. }) => done - ready,
            _ => Duration::ZERO,
        };
        self.each(entry.stream, entry.priority, |tally| {
            match moment {
                Moment::Done => tally.done += 1,
                Moment::Failed => tally.failed += 1,
                Moment::Refused => tally.refused += 1,
                _ => tally.cancelled += 1,
            }
            // The time of a launch that was found done at its turn is unknown.
            if let Some(alone) = alone.filter(|_| !turnaround.is_zero()) {
                tally.turnarounds += turnaround.as_secs_f64() / alone.as_secs_f64();
                tally.turned_around += 1;
                tally.alone = tally.alone.saturating_add(alone);
            }
        });
        self.note(now, entry, moment);
        if self.is_told {
            telemetry::finished(entry, moment, turnaround);
        }
    }

    fn note(&mut self, at: Duration, entry: &LaunchEntry, moment: Moment) {
        if let Some(trace) = &mut self.trace {
            trace.moment(entry, at, moment);
        }
    }

    /// Every tally that a launch is in.
    fn each(&mut self, stream: u32, priority: Priority, mut change: impl FnMut(&mut Tally)) {
        change(&mut self.total);
        match self.streams.get_mut(&stream) {
            Some(account) => change(&mut account.tally),
            None => change(&mut self.other_streams),
        }
        let has_room = self.priorities.len() < MOST_PRIORITIES;
        match self.priorities.get_mut(&priority) {
            Some(tally) => change(tally),
            None if has_room => change(self.priorities.entry(priority).or_default()),
            None => change(&mut self.other_priorities),
        }
    }

    /// Begins a decision; returns the time then if it is to be timed.
    pub fn decides(&mut self) -> Option<Instant> {
        let is_timed = self.decisions.is_multiple_of(TIMED);
        self.decisions += 1;
        is_timed.then(Instant::now)
    }

    /// Records the time of a decision.
    pub fn decided(&mut self, took: Duration) {
        self.timed.add(took);
    }

    /// Records whether anything is in flight from now on.
    pub fn set_busy(&mut self, now: Duration, is_busy: bool) {
        let since = if is_busy { Some(now) } else { None };
        if let Some(before) = std::mem::replace(&mut self.busy_since, since) {
            self.busy += now.saturating_sub(before);
        }
    }

    /// Tells of a launch that has not left the device for long.
    pub fn overdue(&self, of: &Overdue) {
        if self.is_told {
            telemetry::overdue(of);
        }
    }

    /// Counts how a cohort's blocks have left, with the time that dropped work had taken, the bytes of a slot of the save area,
    /// and the limit and the time of its stop, if it had a limit.
    pub fn stopped(
        &mut self,
        blocks: &Posted,
        (lost, slot): (Duration, u32),
        stop: Option<(Duration, Duration)>,
    ) {
        self.stops.count_blocks(blocks, lost, slot);
        if let Some((limit, took)) = stop {
            self.stops.count(limit, took);
        }
    }

    /// The counts until now, with those of launches that have SMs now.
    pub fn stats<'a>(
        &self,
        now: Duration,
        running: impl Iterator<Item = &'a LaunchEntry>,
    ) -> Stats {
        let mut all = self.settled();
        for entry in running {
            if let Some((since, range, shared)) = entry.has {
                all.had(entry, since, now, (range, shared));
            }
        }
        let busy =
            self.busy + self.busy_since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        let whole = all.total.sm_time;
        let totals = |tally: &Tally| tally.totals(busy, whole);
        let mut streams: Vec<StreamStats> = all
            .streams
            .iter()
            .map(|(&stream, account)| StreamStats { stream, launches: totals(&account.tally) })
            .collect();
        streams.sort_unstable_by_key(|of| of.stream);
        let timed = &self.timed;
        let mean = timed.mean();
        let overhead = ratio(mean.as_secs_f64() * self.decisions as f64, busy.as_secs_f64());
        Stats {
            elapsed: now,
            busy,
            total: totals(&all.total),
            streams,
            other_streams: totals(&all.other_streams),
            priorities: all.priorities.iter().map(|(&of, tally)| (of, totals(tally))).collect(),
            other_priorities: totals(&all.other_priorities),
            stops: self.stops.clone(),
            overdue: Vec::new(),
            decisions: Decisions {
                count: self.decisions,
                mean,
                p99: timed.percentile(0.99),
                max: timed.max,
                overhead: overhead.unwrap_or(0.0),
            },
        }
    }

    /// A copy, to which running launches can be added.
    fn settled(&self) -> Accounts {
        Accounts {
            streams: self.streams.clone(),
            priorities: self.priorities.clone(),
            total: self.total,
            other_streams: self.other_streams,
            other_priorities: self.other_priorities,
            ..Accounts::new(self.sms, None)
        }
    }

    /// The timeline, if it is kept, with the SMs that launches have now.
    pub fn trace<'a>(
        &self,
        now: Duration,
        running: impl Iterator<Item = &'a LaunchEntry>,
    ) -> Option<Trace> {
        let mut trace = self.trace.clone()?;
        for entry in running {
            if let Some((since, range, _)) = entry.has {
                trace.slice(entry, since, now, range);
            }
        }
        Some(trace)
    }
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.done += other.done;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
        self.refused += other.refused;
        self.yields += other.yields;
        self.sm_time += other.sm_time;
        self.turnarounds += other.turnarounds;
        self.turned_around += other.turned_around;
        self.alone = self.alone.saturating_add(other.alone);
    }

    fn totals(&self, busy: Duration, whole: Duration) -> Totals {
        let Tally { done, failed, cancelled, refused, yields, sm_time, .. } = *self;
        let known = self.turned_around > 0;
        Totals {
            done,
            failed,
            cancelled,
            refused,
            yields,
            sm_time,
            sm_share: ratio(sm_time.as_secs_f64(), whole.as_secs_f64()).unwrap_or(0.0),
            antt: ratio(self.turnarounds, self.turned_around as f64),
            stp: ratio(self.alone.as_secs_f64(), busy.as_secs_f64()).filter(|_| known),
        }
    }
}

fn ratio(a: f64, b: f64) -> Option<f64> {
    (b > 0.0).then(|| a / b)
}

/// Buckets of a [`Histogram`]: eight for each power of two, up to 2^40 ns, which is 18 minutes.
const BUCKETS: usize = 8 * 40;

/// How often times occurred, by length.
#[derive(Clone, Debug)]
struct Histogram {
    buckets: Box<[u64; BUCKETS]>,
    count: u64,
    sum: Duration,
    max: Duration,
}

impl Default for Histogram {
    fn default() -> Histogram {
        let buckets = Box::new([0; BUCKETS]);
        Histogram { buckets, count: 0, sum: Duration::ZERO, max: Duration::ZERO }
    }
}

impl Histogram {
    fn add(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(8);
        // The highest four bits: the first of them is 1.
        let shift = nanos.ilog2() - 3;
        let bucket = 8 * shift as usize + (nanos >> shift) as usize - 8;
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
        self.count += 1;
        self.sum = self.sum.saturating_add(time);
        self.max = self.max.max(time);
    }

    fn mean(&self) -> Duration {
        let nanos = ratio(self.sum.as_nanos() as f64, self.count as f64).unwrap_or(0.0);
        Duration::from_nanos(nanos as u64)
    }

    /// The time that `part` of the times do not exceed, up to the width of a bucket.
    fn percentile(&self, part: f64) -> Duration {
        let mut left = (self.count as f64 * part).ceil();
        for (bucket, &count) in self.buckets.iter().enumerate() {
            left -= count as f64;
            if left <= 0.0 && self.count > 0 {
                let end = ((bucket % 8 + 9) as u64) << (bucket / 8);
                return Duration::from_nanos(end).min(self.max);
            }
        }
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::Timestamp;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn grant(at: Duration, range: SmRange, is_over: bool) -> Grant {
        Grant { op: Default::default(), at, range, shares: false, is_over }
    }

    /// A launch that got its SMs late, and takes `alone` milliseconds on all four.
    fn run(accounts: &mut Accounts, stream: u32, priority: i32, ready: u64, start: u64, end: u64) {
        let mut entry =
            accounts.submitted(at(ready), stream, "model", Priority(priority), Some(at(10)));
        accounts.granted(&mut entry, grant(at(start), SmRange::new(0, 4), false));
        accounts.granted(&mut entry, grant(at(end), SmRange::EMPTY, true));
        let [ready, done] = [ready, end].map(|time| Timestamp::after_start(at(time)));
        let report = LaunchReport { ready, done, ..LaunchReport::default() };
        accounts.finished(at(end), &entry, Outcome::Done(report), None);
    }

    #[test]
    fn antt_and_stp_are_those_of_eyerman_and_eeckhout() {
        let mut accounts = Accounts::new(4, None);
        accounts.set_busy(at(0), true);
        run(&mut accounts, 1, 5, 0, 0, 10);
        run(&mut accounts, 2, 0, 0, 10, 20);
        accounts.set_busy(at(20), false);
        let stats = accounts.stats(at(30), [].into_iter());
        assert_eq!((stats.elapsed, stats.busy), (at(30), at(20)));
        assert_eq!(
            (stats.total.done, stats.total.antt, stats.total.stp),
            (2, Some(1.5), Some(1.0))
        );
        assert_eq!(stats.total.sm_time, at(80));
        let of = |at: usize| (stats.streams[at].stream, stats.streams[at].launches);
        assert_eq!((of(0).0, of(0).1.antt, of(0).1.stp), (1, Some(1.0), Some(0.5)));
        assert_eq!((of(1).0, of(1).1.antt, of(1).1.sm_share), (2, Some(2.0), 0.5));
        assert_eq!(stats.priorities[0].0, Priority(0));
        assert_eq!(stats.priorities[1].1.antt, Some(1.0));
    }

    #[test]
    fn yields_are_counted_where_sms_are_taken() {
        let mut accounts = Accounts::new(4, None);
        let mut entry = accounts.submitted(at(0), 1, "model", Priority(0), None);
        let all = SmRange::new(0, 4);
        let grants = [(1, all), (2, SmRange::new(0, 1)), (3, SmRange::EMPTY), (5, all)];
        for (when, range) in grants {
            accounts.granted(&mut entry, grant(at(when), range, false));
        }
        // It still runs.
        let stats = accounts.stats(at(6), [&entry].into_iter());
        assert_eq!((stats.total.yields, stats.total.sm_time), (2, at(4 + 1 + 4)));
        accounts.granted(&mut entry, grant(at(7), SmRange::EMPTY, true));
        accounts.finished(at(7), &entry, Outcome::Cancelled { done: 3 }, None);
        let total = accounts.stats(at(9), [].into_iter()).total;
        assert_eq!((total.yields, total.cancelled, total.sm_time), (2, 1, at(4 + 1 + 8)));
        assert_eq!((total.antt, total.stp), (None, None));
    }

    #[test]
    fn two_launches_that_share_sms_have_half_of_their_time() {
        let mut accounts = Accounts::new(4, None);
        let mut entries =
            [1, 2].map(|stream| accounts.submitted(at(0), stream, "model", Priority(0), None));
        let all = SmRange::new(0, 4);
        for entry in &mut entries {
            accounts.granted(entry, Grant { shares: true, ..grant(at(1), all, false) });
        }
        accounts.granted(&mut entries[0], grant(at(3), SmRange::EMPTY, true));
        // The other one goes on alone.
        accounts.granted(&mut entries[1], grant(at(3), all, false));
        let stats = accounts.stats(at(4), entries.iter());
        assert_eq!(stats.total.sm_time, at(8 + 4));
        assert_eq!(stats.streams[1].launches.sm_time, at(4 + 4));
        assert_eq!(stats.total.yields, 0);
    }

    #[test]
    fn streams_and_priorities_are_bounded_and_nothing_is_lost() {
        let mut accounts = Accounts::new(4, None);
        let busy = accounts.submitted(at(0), 0, "model", Priority(0), None);
        let many = 3 * MOST_STREAMS as u32;
        for stream in 1..=many {
            let (time, priority) = (u64::from(stream), stream as i32);
            run(&mut accounts, stream, priority, time, time, time + 1);
        }
        let stats = accounts.stats(at(9999), [&busy].into_iter());
        assert!((MOST_STREAMS / 2..=MOST_STREAMS).contains(&stats.streams.len()));
        assert_eq!(stats.streams[0].stream, 0, "a stream that is not idle is kept");
        assert_eq!(stats.streams.last().map(|of| of.stream), Some(many), "and the last ones are");
        let known: u64 = stats.streams.iter().map(|of| of.launches.done).sum();
        assert_eq!(known + stats.other_streams.done, u64::from(many));
        assert_eq!(stats.priorities.len(), MOST_PRIORITIES);
        let known: u64 = stats.priorities.iter().map(|(_, of)| of.done).sum();
        assert_eq!(known + stats.other_priorities.done, u64::from(many));
        assert_eq!(stats.total.done, u64::from(many));
    }

    #[test]
    fn a_percentile_is_at_most_an_eighth_too_long() {
        let mut histogram = Histogram::default();
        assert_eq!(
            (histogram.mean(), histogram.percentile(0.99)),
            (Duration::ZERO, Duration::ZERO)
        );
        for nanos in 1..=10_000 {
            histogram.add(Duration::from_nanos(nanos));
        }
        assert_eq!(histogram.mean(), Duration::from_nanos(5000));
        assert_eq!(histogram.percentile(1.0), Duration::from_nanos(10_000));
        for part in [0.01, 0.5, 0.9] {
            let (found, exact) = (histogram.percentile(part).as_nanos() as f64, part * 10_000.0);
            assert!((exact..=1.13 * exact).contains(&found), "{part}: {found}");
        }
        histogram.add(Duration::MAX);
        assert_eq!(histogram.max, Duration::MAX);
    }
}
