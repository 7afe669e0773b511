//! Keeps the poller's caches warm while it spins.
//!
//! What a processor has not run for a while is gone from its caches, and comes back line by line: on an H100's host, the
//! first urgent launch after a pause takes 50 to 70 µs longer than the next ones. So the poller launches something urgent each
//! [period](WarmUp::period), from the submission to the report, by the same code: on a [device](NullBackend) where nothing
//! runs, and in a core of its own, so that the scheduler has no part in it. It does so in parts, and looks at what the
//! application has launched between them.

use std::sync::Arc;
use std::time::Duration;

use preempt_device::host::{Amortize, Args, Dim3, Idempotence, Kernel, Preemption};

use super::combiner::Combiner;
use super::completion::Completion;
use super::core::{Core, InFlight, Job, Message, Work};
use super::credits::StreamCredits;
use super::priorities::Priorities;
use super::shared::Settings;
use crate::device::{Device, KernelLaunch, NullBackend};
use crate::engine::{LaunchSpec, Leaving};
use crate::policy::{Priority, StaticPriority, Urgency};
use crate::predict::Online;

/// Decisions, by their cost, between the begins of two warm-ups.
///
/// A warm-up takes as long as seven, so one launch in fourteen comes during one, and waits for the rest of a part of it: on an
/// H200's host the 95th percentile of the time until the poller sees a launch is 5 µs, and with whole warm-ups 13 to 16 µs. Less often,
/// caches are colder when a launch comes. On the H100's host (a decision of 1 µs), an urgent launch after a pause of 12 to 23
/// ms takes 74 µs without warm-ups, and 48 with them, in turns. In runs of their own it takes 55 with one each millisecond, 39
/// to 47 with one each 100 µs, and 50 to 54 with one each 30 µs, when every fourth launch waits. (These are of warm-ups that were
/// done as a whole.)
const DECISIONS: u32 = 100;

const BATCH: i32 = 0;
const URGENT: i32 = 1;

/// Looks at the null device after the submission: the second one finds what was stopped once that had ended.
const LOOKS: u32 = 2;

/// The number of block-tasks of the batch launch, which is never over.
const ENDLESS: u32 = 1 << 30;

static KERNEL: Kernel = Kernel {
    name: "warm-up",
    entry: "",
    plain: "",
    module: module_path!(),
    block: None,
    amortize: None,
    shared_bytes: 0,
    yields: true,
    idempotence: Idempotence::NotNeeded,
    reason: "",
    state_bytes: 0,
    cpu: |_| false,
};

/// A core with a batch launch that has all SMs.
pub(super) struct WarmUp {
    combiner: Combiner<Core>,
    null: Arc<NullBackend>,
    /// Block-tasks of an urgent launch.
    tasks: u32,
    /// Time from one to the next.
    pub period: Duration,
    /// The urgent launch of a warm-up that is under way, and how many looks are left.
    under_way: Option<(Arc<Completion>, u32)>,
}

impl WarmUp {
    /// For the scheduler of this device and with these settings.
    pub fn new(device: &Device, settings: Settings) -> WarmUp {
        let (device, null) = NullBackend::like(device);
        let period = DECISIONS * settings.costs.unwrap_or(device.costs()).decision;
        let tasks = device.properties().sms.div_ceil(8);
        let priorities = Arc::new(Priorities::default());
        [BATCH, URGENT].into_iter().for_each(|priority| priorities.enter(Priority(priority)));
        let settings = Settings { trace: None, recording: false, ..settings };
        // Not the application's policy and predictor, which would count these launches among theirs.
        let (policy, predictor) = (Box::new(StaticPriority::new()), Box::new(Online::new()));
        let in_flight = Arc::<InFlight>::default();
        let core = Core::new(device, policy, predictor, in_flight, priorities, settings);
        let combiner = Combiner::new(core.untold());
        let warm_up = WarmUp { combiner, null, tasks, period, under_way: None };
        warm_up.launch(BATCH, ENDLESS);
        warm_up
    }

    /// Whether there is a part to do, this long after the code of an urgent launch has run.
    pub fn is_due(&self, cold: Duration) -> bool {
        self.under_way.is_some() || cold > self.period
    }

    /// Does a part of a warm-up: the submission of an urgent launch, its report, or what follows until the batch launch has its
    /// SMs again. Whether it goes on: not if the launch did not end, since the next ones would wait for it.
    pub fn go_on(&mut self) -> bool {
        let Some((urgent, looks)) = self.under_way.take() else {
            self.under_way = Some((self.launch(URGENT, self.tasks), LOOKS));
            return true;
        };
        if let Some(&op) = urgent.op.get() {
            self.null.end(op);
            self.combiner.drive_now(drop);
        }
        if looks > 1 {
            self.under_way = Some((urgent, looks - 1));
            return true;
        }
        #[cfg(all(test, not(shuttle)))]
        tests::RUNS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        urgent.is_done()
    }

    fn launch(&self, priority: i32, tasks: u32) -> Arc<Completion> {
        let completion = Arc::new(Completion::new(StreamCredits::of_one()));
        let launch = KernelLaunch {
            kernel: &KERNEL,
            args: Args::default(),
            block: Dim3::from(256),
            grid: [tasks, 1, 1],
            amortize: Amortize::Auto,
            leaves_place: false,
        };
        let spec = LaunchSpec {
            tasks,
            predicted: None,
            yield_overhead: Duration::ZERO,
            requeued: Duration::ZERO,
            blocks_per_sm: 2,
            on_last_sm: 2,
            plain: false,
            hardware_stop: None,
            leaving: Leaving::AtEnd,
        };
        let (launch, preemption) = (Arc::new(launch), Preemption::Auto);
        let job = Job {
            completion: completion.clone(),
            stream: priority as u32,
            name: KERNEL.name,
            uses: Vec::new(),
            urgency: Urgency { priority: Priority(priority), ..Urgency::default() },
            longest_plain: None,
            work: Work::Launch { launch, preemption, spec, due: None },
        };
        // The inbox is never closed.
        let _ = self.combiner.post(Message::Submit(job));
        self.combiner.drive(drop);
        completion
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::time::Instant;

    use preempt_device::prelude::*;

    use super::*;
    use crate::device::model::{Model, Settings as OfModel};
    use crate::sync::{Mutex, lock};
    use crate::{CpuLayout, Scheduler};

    pub static RUNS: AtomicU32 = AtomicU32::new(0);

    /// One test at a time counts.
    static COUNTS: Mutex<()> = Mutex::new(());

    /// The model's block-tasks wait at its yield points.
    #[preemptible(block = 1, idempotent)]
    fn patient(_x: &[u32]) {
        yield_point!();
    }

    #[test]
    fn a_poller_that_spins_keeps_warm_whether_a_kernel_runs_or_none() {
        let _counts = lock(&COUNTS);
        let model = OfModel { sms: 1, is_polled: true, memory: None };
        let (device, _model) = Model::device(model);
        let builder = || Scheduler::builder().device(device.clone()).poller_spin(Duration::MAX);
        let is_kept_warm = || {
            let (before, start) = (RUNS.load(Relaxed), Instant::now());
            while RUNS.load(Relaxed) < before + 10 {
                assert!(start.elapsed() < Duration::from_secs(10), "the poller is not at it");
                std::thread::yield_now();
            }
        };
        let scheduler = builder().build().expect("a scheduler");
        is_kept_warm();
        let x = scheduler.zeroed::<u32>(1).expect("memory");
        let handle = scheduler.stream(0).launch(patient(&x).grid(1)).expect("accepted");
        is_kept_warm();
        handle.cancel();
        assert!(handle.wait().is_err());
        let stats = scheduler.stats();
        assert_eq!(
            (stats.total.done, stats.total.cancelled),
            (0, 1),
            "no launch of the scheduler's"
        );
        drop((x, handle, scheduler));
        builder().build().expect("the poller has ended, so the device is free");
    }

    #[test]
    fn each_urgent_launch_takes_sms_and_ends() {
        let _counts = lock(&COUNTS);
        let device = Device::cpu_with(CpuLayout::sms(132)).expect("a device");
        let mut warm_up = WarmUp::new(&device, Scheduler::builder().settings);
        let never = Duration::ZERO;
        for _ in 0..10_000 {
            assert!(!warm_up.is_due(never), "none is under way");
            // What the application launches waits for one of these at most.
            assert!((0..=LOOKS).all(|part| warm_up.is_due(never) == (part > 0) && warm_up.go_on()));
        }
        let stats = warm_up.combiner.with_core(|core| core.stats(), drop);
        let of =
            |stream| stats.streams.iter().find(|of| of.stream == stream).expect("one").launches;
        assert_eq!(of(URGENT as u32).done, 10_000);
        assert_eq!(of(BATCH as u32).yields, 10_000, "each has taken SMs");
    }
}
