//! What happens to launches, for the crates `tracing` and `metrics`, if the features of these names are on.
//!
//! Subscribers and recorders are code of others: one that panics takes nothing with it.

use std::time::Duration;

use super::accounts::Entry;
use super::trace::Moment;

/// A launch was submitted.
pub(super) fn submitted(entry: &Entry) {
    tell(entry, Moment::Queued);
    #[cfg(feature = "metrics")]
    super::contain(|| metrics::counter!("preempt_launches_submitted_total").increment(1));
}

/// It has SMs for the first time.
pub(super) fn started(entry: &Entry) {
    tell(entry, Moment::Starts);
}

/// SMs were taken from it.
pub(super) fn yielded(entry: &Entry) {
    tell(entry, Moment::Yields);
    #[cfg(feature = "metrics")]
    super::contain(|| {
        metrics::counter!("preempt_yields_total", "kernel" => entry.name).increment(1);
    });
}

/// It is over, so long after it was ready.
pub(super) fn finished(entry: &Entry, moment: Moment, turnaround: Duration) {
    tell(entry, moment);
    #[cfg(feature = "metrics")]
    super::contain(|| {
        let labels = [("kernel", entry.name), ("outcome", moment.name())];
        metrics::counter!("preempt_launches_total", &labels).increment(1);
        if moment == Moment::Done {
            metrics::histogram!("preempt_turnaround_seconds", "kernel" => entry.name)
                .record(turnaround.as_secs_f64());
        }
    });
    #[cfg(not(feature = "metrics"))]
    let _ = turnaround;
}

/// An event with what is known of the launch.
fn tell(entry: &Entry, moment: Moment) {
    #[cfg(feature = "tracing")]
    super::contain(|| {
        tracing::debug!(
            target: "preempt",
            launch = entry.launch,
            stream = entry.stream,
            priority = entry.priority.0,
            kernel = entry.name,
            "{}",
            moment.name(),
        );
    });
    #[cfg(not(feature = "tracing"))]
    let _ = (entry, moment);
}
