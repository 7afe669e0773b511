//! What happens to launches, for the crates `tracing` and `metrics`, if the features of these names are on.
//!
//! Subscribers and recorders are application code: their panics end here.

use std::time::Duration;

use super::accounts::LaunchEntry;
use super::stats::Overdue;
use super::trace::Moment;

/// Reports that a launch was submitted.
pub(in crate::scheduler) fn submitted(entry: &LaunchEntry) {
    tell(entry, Moment::Queued);
    #[cfg(feature = "metrics")]
    crate::sync::contain(|| metrics::counter!("preempt_launches_submitted_total").increment(1));
}

/// Reports that a launch has SMs for the first time.
pub(in crate::scheduler) fn started(entry: &LaunchEntry) {
    tell(entry, Moment::Starts);
}

/// Reports that SMs were taken from a launch.
pub(in crate::scheduler) fn yielded(entry: &LaunchEntry) {
    tell(entry, Moment::Yields);
    #[cfg(feature = "metrics")]
    crate::sync::contain(|| {
        metrics::counter!("preempt_yields_total", "kernel" => entry.name).increment(1);
    });
}

/// Reports that a launch has ended, and how long after it was ready.
pub(in crate::scheduler) fn finished(entry: &LaunchEntry, moment: Moment, turnaround: Duration) {
    tell(entry, moment);
    #[cfg(feature = "metrics")]
    crate::sync::contain(|| {
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

/// Warns of a launch that has not left the device for long.
pub(in crate::scheduler) fn overdue(of: &Overdue) {
    #[cfg(feature = "tracing")]
    crate::sync::contain(|| {
        let since = if of.was_told { "since it was told to leave" } else { "since it began" };
        tracing::warn!(
            target: "preempt",
            kernel = of.kernel,
            stream = of.stream,
            time = ?of.time,
            "on the device {since}: its block-tasks take long, or wait for each other",
        );
    });
    #[cfg(feature = "metrics")]
    crate::sync::contain(|| {
        metrics::counter!("preempt_overdue_total", "kernel" => of.kernel).increment(1);
    });
    #[cfg(not(any(feature = "tracing", feature = "metrics")))]
    let _ = of;
}

/// Emits an event with what is known of the launch.
fn tell(entry: &LaunchEntry, moment: Moment) {
    #[cfg(feature = "tracing")]
    crate::sync::contain(|| {
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

#[cfg(all(test, any(feature = "tracing", feature = "metrics")))]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::engine::Outcome;
    use crate::policy::Priority;
    use crate::scheduler::observed::accounts::Accounts;

    /// What subscribers and recorders were told.
    type Told = Arc<Mutex<Vec<String>>>;

    /// Submits a launch and cancels it.
    fn launch() {
        launch_in(Accounts::new(4, None));
    }

    fn launch_in(mut accounts: Accounts) {
        let now = Duration::ZERO;
        let entry = accounts.submitted(now, 3, "saxpy", Priority(5), None);
        let time = Duration::from_secs(2);
        accounts.overdue(&Overdue { kernel: "spins", stream: 3, time, was_told: true });
        accounts.finished(now, &entry, Outcome::Cancelled { done: 0 }, None);
    }

    #[cfg(feature = "tracing")]
    #[test]
    fn subscribers_are_told() {
        use tracing::field::{Field, Visit};
        use tracing::span::{Attributes, Id, Record};
        use tracing::{Event, Metadata, Subscriber};

        struct ToldTo(Told);

        impl Subscriber for ToldTo {
            fn enabled(&self, metadata: &Metadata<'_>) -> bool {
                metadata.target() == "preempt"
            }
            fn new_span(&self, _: &Attributes<'_>) -> Id {
                Id::from_u64(1)
            }
            fn record(&self, _: &Id, _: &Record<'_>) {}
            fn record_follows_from(&self, _: &Id, _: &Id) {}
            fn event(&self, event: &Event<'_>) {
                event.record(&mut Fields(&self.0));
                panic!("as intended");
            }
            fn enter(&self, _: &Id) {}
            fn exit(&self, _: &Id) {}
        }

        struct Fields<'a>(&'a Told);

        impl Visit for Fields<'_> {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                self.0.lock().expect("no panic").push(format!("{field}={value:?}"));
            }
        }

        let told = Told::default();
        let texts = [
            "message=queued",
            "message=cancelled",
            "stream=3",
            "priority=5",
            "kernel=\"saxpy\"",
            "kernel=\"spins\"",
            "message=on the device since it was told to leave",
        ];
        tracing::subscriber::with_default(ToldTo(told.clone()), || {
            launch_in(Accounts::new(4, None).untold());
            assert!(told.lock().expect("no panic").is_empty());
            // Other tests run the same code at the same time without a subscriber: `tracing` may have cached that there is no
            // interest, or do so now.
            let is_told = |_| {
                tracing::callsite::rebuild_interest_cache();
                launch();
                let told = told.lock().expect("no panic").join(" ");
                texts.iter().all(|text| told.contains(text))
            };
            assert!((0..1000).any(is_told), "{:?}", told.lock());
        });
    }

    #[cfg(feature = "metrics")]
    #[test]
    fn recorders_are_told() {
        use metrics::{
            Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
        };

        struct ToldTo(Told);

        impl Recorder for ToldTo {
            fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
            fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
            fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
            fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
                self.0.lock().expect("no panic").push(key.to_string());
                panic!("as intended");
            }
            fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
                Gauge::noop()
            }
            fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
                Histogram::noop()
            }
        }

        let told = Told::default();
        let untold = || launch_in(Accounts::new(4, None).untold());
        metrics::with_local_recorder(&ToldTo(told.clone()), untold);
        assert!(told.lock().expect("no panic").is_empty());
        metrics::with_local_recorder(&ToldTo(told.clone()), launch);
        let told = told.lock().expect("no panic").join(" ");
        for text in [
            "preempt_launches_submitted_total",
            "preempt_launches_total",
            "saxpy",
            "cancelled",
            "preempt_overdue_total",
        ] {
            assert!(told.contains(text), "{text} in {told}");
        }
    }
}
