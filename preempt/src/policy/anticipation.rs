//! SMs that stay free for a moment, because the next launch of a stream comes soon.
//!
//! An application that waits for each of its launches has none for some microseconds. If a less urgent launch is given the
//! SMs meanwhile, it has to yield at once: the next launch waits for that, and what the yield takes is lost. To leave
//! the SMs free instead costs the time until the next launch comes (Iyer and Druschel, "Anticipatory scheduling", SOSP 2001).
//! It is not known when that is. So SMs stay free no longer than a yield would take. That costs at most twice what the better
//! choice would have, as when skis are rented until they could have been bought (Karlin et al., 1990). And they stay free only
//! where that has been worth it for the stream.

use std::time::Duration;

use super::{DeviceView, Priority, SmRange};
use crate::vocabulary::LaunchId;

/// Streams that are remembered: those whose launches ended last. Each decision looks at all of them.
const MOST_STREAMS: usize = 16;

/// The part of what is expected that the last gap is: more lets it follow a stream sooner, less forgets an exception sooner.
const PART: i64 = 4;

/// For each stream, what to expect behind its last launch.
#[derive(Debug, Default)]
pub(super) struct Anticipation {
    /// In the order in which their launches ended.
    streams: Vec<Expected>,
    /// When the first of the waits that the last plan has made is over.
    until: Option<Duration>,
}

/// A stream whose launch has ended.
#[derive(Debug)]
struct Expected {
    stream: u32,
    priority: Priority,
    /// The SMs that its launch had.
    range: SmRange,
    ended: Duration,
    /// Whether its next launch has yet to come.
    is_awaited: bool,
    /// What a yield of the launch that would be given the SMs costs; `None` before a plan without the stream.
    yields: Option<Duration>,
    /// What a wait has saved on the mean, in nanoseconds, or would have.
    saves: i64,
}

impl Expected {
    /// Until when its SMs are left free, where the first of the others has this priority.
    fn wait(&self, now: Duration, priority: Priority) -> Option<Duration> {
        let over = self.ended.saturating_add(self.yields?);
        let waits = self.is_awaited && self.priority > priority && self.saves > 0;
        (waits && now < over).then_some(over)
    }
}

impl Anticipation {
    /// Notes that a launch of a stream has ended, which had these SMs.
    pub fn ended(&mut self, now: Duration, stream: u32, priority: Priority, range: SmRange) {
        let known = self.streams.iter().position(|of| of.stream == stream);
        let saves = known.map_or(0, |place| self.streams.remove(place).saves);
        if self.streams.len() >= MOST_STREAMS {
            self.streams.remove(0);
        }
        let (is_awaited, yields, ended) = (true, None, now);
        self.streams.push(Expected { stream, priority, range, ended, is_awaited, yields, saves });
    }

    /// Notes that the next launch of a stream is there.
    pub fn came(&mut self, now: Duration, stream: u32) {
        let known = self.streams.iter_mut().find(|of| of.stream == stream);
        let Some(of) = known.filter(|of| of.is_awaited) else { return };
        of.is_awaited = false;
        // Without a plan in between, nothing was to be decided.
        if let Some(yields) = of.yields {
            let (gap, yields) = (nanos(now.saturating_sub(of.ended)), nanos(yields));
            let saved = if gap <= yields { yields - gap } else { -yields };
            of.saves += (saved - of.saves) / PART;
        }
    }

    /// The SMs to leave free now, where `first` is the launch that is first in the order, and its priority.
    pub fn waits(
        &mut self,
        now: Duration,
        (priority, first): (Priority, LaunchId),
        device: &dyn DeviceView,
    ) -> impl Iterator<Item = SmRange> {
        self.until = None;
        for of in self.streams.iter_mut().filter(|of| of.is_awaited && of.priority > priority) {
            of.yields.get_or_insert_with(|| device.yield_overhead(first));
            if let Some(over) = of.wait(now, priority) {
                self.until = self.until.into_iter().chain([over]).min();
            }
        }
        self.streams.iter().filter(move |of| of.wait(now, priority).is_some()).map(|of| of.range)
    }

    /// Notes that nothing waits for SMs.
    pub fn rests(&mut self) {
        self.until = None;
    }

    /// When SMs that were left free are to be given to others.
    pub fn until(&self) -> Option<Duration> {
        self.until
    }
}

fn nanos(time: Duration) -> i64 {
    time.as_nanos().try_into().unwrap_or(i64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::ModelDevice;

    fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    const SMS: SmRange = SmRange::new(0, 4);

    /// Beside a batch launch whose yields take 20 µs: launches of a stream end a millisecond after each other, and the next
    /// one comes after each of these gaps. Until when SMs are left free after each.
    fn waits(gaps: &[u64], priority: i32) -> Vec<Option<u64>> {
        let mut device = ModelDevice::new(8);
        let batch = device.launch(1000).id;
        device.set_yield_overhead(batch, us(20), Duration::ZERO);
        let mut anticipation = Anticipation::default();
        let mut waits = Vec::new();
        for (index, &gap) in (1..).zip(gaps) {
            let ended = us(1000 * index);
            anticipation.ended(ended, 7, Priority(priority), SMS);
            let free: Vec<_> = anticipation.waits(ended, (Priority(0), batch), &device).collect();
            assert_eq!(free.is_empty(), anticipation.until().is_none());
            assert!(free.iter().all(|&range| range == SMS));
            waits.push(anticipation.until().map(|until| (until - ended).as_micros() as u64));
            if let Some(until) = anticipation.until() {
                assert_eq!(anticipation.waits(until, (Priority(0), batch), &device).count(), 0);
                assert_eq!(anticipation.until(), None);
            }
            anticipation.came(ended + us(gap), 7);
        }
        waits
    }

    #[test]
    fn sms_wait_for_a_yield_at_most_where_the_next_launch_comes_sooner() {
        assert_eq!(waits(&[5, 5, 5], 1), [None, Some(20), Some(20)]);
        assert_eq!(waits(&[50, 50, 50], 1), [None; 3]);
        // 20 - 5 gained against 20 lost: each saves a quarter of the rest.
        assert_eq!(waits(&[5, 50, 5, 5], 1), [None, Some(20), None, Some(20)]);
        assert_eq!(waits(&[5, 5, 5], 0), [None; 3], "the other launch is as urgent");
    }

    #[test]
    fn a_launch_that_was_there_when_the_last_one_ended_says_nothing() {
        let mut device = ModelDevice::new(8);
        let batch = device.launch(1000).id;
        device.set_yield_overhead(batch, us(20), Duration::ZERO);
        let mut anticipation = Anticipation::default();
        for _ in 0..10 {
            anticipation.ended(us(1), 7, Priority(1), SMS);
            anticipation.came(us(1), 7);
        }
        anticipation.ended(us(2), 7, Priority(1), SMS);
        assert_eq!(anticipation.waits(us(2), (Priority(0), batch), &device).count(), 0);
    }

    #[test]
    fn few_streams_are_remembered() {
        let mut anticipation = Anticipation::default();
        for stream in 0..1000 {
            anticipation.ended(us(stream.into()), stream, Priority(1), SMS);
        }
        assert_eq!(anticipation.streams.len(), MOST_STREAMS);
        assert_eq!(anticipation.streams[0].stream, 1000 - MOST_STREAMS as u32);
    }
}
