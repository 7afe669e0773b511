//! Expected durations of launches.

use std::time::Duration;

use preempt_device::host::{Args, Dim3, Kernel};

use crate::device::KernelLaunch;
use crate::error::caught;
use crate::predict::{Features, Predictor};

/// Time that is as good as for ever: predictions are cut to it, so that sums cannot overflow.
const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

/// The predictor, and what it is told.
pub(in crate::scheduler) struct Forecast {
    predictor: Option<Box<dyn Predictor>>,
    /// The message of the predictor's panic, if it panicked.
    panic: Option<String>,
}

/// A launch that is done.
pub(in crate::scheduler) struct Ended {
    pub stream: u32,
    /// Whether it is a program whose calls are ended launches, too.
    pub is_program: bool,
    pub launch: Features<'static>,
    /// Its predicted time at submission.
    pub predicted: Option<Duration>,
    /// Its observed time with all the SMs that it can use.
    pub took: Duration,
    /// Whether its blocks had to wait for others to leave, so that it took less than `took`.
    pub waited: bool,
}

impl KernelLaunch {
    /// What is known of a launch of `tasks` block-tasks before it runs.
    pub(in crate::scheduler) fn features(&self, tasks: u32) -> Features<'static> {
        features(self.kernel, &self.args, tasks, self.block)
    }
}

/// What is known of a launch before it runs.
pub(in crate::scheduler) fn features(
    kernel: &'static Kernel,
    args: &Args,
    tasks: u32,
    block: Dim3,
) -> Features<'static> {
    Features {
        module: kernel.module,
        kernel: kernel.name,
        grid: tasks,
        // At most 1024, as checked before.
        block: block.count() as u32,
        input_bytes: args.buffers().iter().map(|(buffer, _)| buffer.bytes as u64).sum(),
        shared_bytes: args.shared_bytes(kernel).try_into().unwrap_or(u32::MAX),
    }
}

impl Forecast {
    pub fn new(predictor: Box<dyn Predictor>) -> Forecast {
        Forecast { predictor: Some(predictor), panic: None }
    }

    /// The message of the predictor's panic, if it panicked.
    pub fn panic(&self) -> Option<&str> {
        self.panic.as_deref()
    }

    /// How long a launch will take.
    pub fn predict(&mut self, launch: &Features<'_>) -> Option<Duration> {
        let took = self.ask(|predictor| predictor.predict(launch)).flatten();
        took.map(|took| took.min(LONGEST))
    }

    /// Learns from launches that were seen to end together; empties the list.
    pub fn learn(&mut self, ended: &mut Vec<Ended>) {
        let chain_of = |ended: &Ended| (ended.stream, ended.is_program);
        ended.sort_by_key(chain_of);
        for chain in ended.chunk_by(|a, b| chain_of(a) == chain_of(b)) {
            self.learn_chain(chain);
        }
        ended.clear();
    }

    /// Learns from launches of one stream. The ends within the chain were not seen, so that the first launch seems to
    /// have taken all the time. So each gets a share in proportion to its expected time.
    fn learn_chain(&mut self, chain: &[Ended]) {
        let took: Duration = chain.iter().map(|ended| ended.took).sum();
        if took.is_zero() {
            return;
        }
        let all: Option<Duration> = chain.iter().map(|ended| ended.predicted).sum();
        for Ended { launch, predicted, waited, .. } in chain {
            let share = match (predicted, all.filter(|all| !all.is_zero())) {
                (Some(predicted), Some(all)) => predicted.div_duration_f64(all),
                _ => 1.0 / chain.len() as f64,
            };
            let took = took.mul_f64(share);
            let is_known = *waited && predicted.is_some_and(|predicted| predicted <= took);
            if !is_known && !took.is_zero() {
                self.ask(|predictor| predictor.finished(launch, took));
            }
        }
    }

    fn ask<R>(&mut self, question: impl FnOnce(&mut dyn Predictor) -> R) -> Option<R> {
        let predictor = &mut **self.predictor.as_mut()?;
        match caught(|| question(predictor)) {
            Ok(answer) => Some(answer),
            Err(message) => {
                self.panic = Some(message);
                let predictor = self.predictor.take();
                // It may panic again.
                let _ = caught(|| drop(predictor));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use preempt_device::prelude::*;

    use super::*;
    use crate::error::SchedulerError;
    use crate::policy::{Arrival, DeviceView, Fifo, Plan, Policy};
    use crate::{
        Buffer, Call, Costs, CpuLayout, Device, Error, LaunchId, NoGrid, Scheduler,
        SchedulerBuilder,
    };

    #[preemptible(block = 32)]
    fn squares(x: &[u32], out: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        if i < out.len() {
            // SAFETY: each thread writes its own element.
            unsafe { out.write(i, x[i].wrapping_mul(x[i])) }
        }
    }

    #[preemptible(block = 32, idempotent)]
    fn squares_in_steps(x: &[u32], out: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        yield_point!();
        if i < out.len() {
            // SAFETY: each thread writes its own element.
            unsafe { out.write(i, x[i].wrapping_mul(x[i])) }
        }
    }

    /// What a policy saw of launches: their expected times to run and to yield.
    type Seen = Arc<Mutex<Vec<(Option<Duration>, Duration)>>>;

    struct Watches(Fifo, Seen);

    impl Policy for Watches {
        fn name(&self) -> &str {
            "watches"
        }
        fn admits(&mut self, _now: Duration, launch: &Arrival, device: &dyn DeviceView) -> bool {
            let seen = (device.remaining(launch.id), device.yield_overhead(launch.id));
            self.1.lock().expect("no panic").push(seen);
            true
        }
        fn arrived(&mut self, now: Duration, launch: Arrival) {
            self.0.arrived(now, launch);
        }
        fn departed(&mut self, now: Duration, launch: LaunchId) {
            self.0.departed(now, launch);
        }
        fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
            self.0.assign(now, device, plan);
        }
    }

    /// What the policy sees of three launches, one after the other.
    fn three(
        predictor: impl FnOnce(SchedulerBuilder) -> SchedulerBuilder,
    ) -> (Scheduler, Vec<Option<Duration>>) {
        let (scheduler, seen) = three_of(|x, out| squares(x, out), predictor);
        assert!(seen.iter().all(|&(_, overhead)| overhead == Costs::h200().whole_stop()));
        (scheduler, seen.iter().map(|&(left, _)| left).collect())
    }

    fn three_of(
        kernel: impl Fn(&Buffer<u32>, &mut Buffer<u32>) -> Call<'static, NoGrid>,
        predictor: impl FnOnce(SchedulerBuilder) -> SchedulerBuilder,
    ) -> (Scheduler, Vec<(Option<Duration>, Duration)>) {
        let seen = Seen::default();
        let builder =
            Scheduler::builder().device(Device::cpu_with(CpuLayout::sms(2)).expect("a device"));
        let builder = predictor(builder.policy(Watches(Fifo::new(), seen.clone())));
        let scheduler = builder.build().expect("a scheduler");
        let stream = scheduler.stream(0);
        let x = scheduler.zeroed::<u32>(640).expect("memory");
        let mut out = scheduler.zeroed::<u32>(640).expect("memory");
        for grid in [20, 20, 10] {
            let call = kernel(&x, &mut out).grid(grid);
            stream.launch(call).expect("accepted").wait().expect("done");
        }
        let seen = seen.lock().expect("no panic").clone();
        (scheduler, seen)
    }

    #[test]
    fn the_cost_of_a_yield_contains_dropped_work() {
        let mut notes = KeepingPredictor::default();
        notes.name = "squares_in_steps";
        let kernel = |x: &Buffer<u32>, out: &mut Buffer<u32>| squares_in_steps(x, out);
        let (_scheduler, seen) = three_of(kernel, |builder| builder.predictor(notes));
        // The prediction is a second for each block-task, and two run at a time.
        let overhead = Costs::h200().whole_stop() + Duration::from_secs(1);
        assert_eq!(seen, [20, 20, 10].map(|grid| (Some(Duration::from_secs(grid)), overhead)));
    }

    fn layer(grid: u32) -> Features<'static> {
        let (module, kernel) = ("kernels", "layer");
        Features { module, kernel, grid, block: 32, input_bytes: 0, shared_bytes: 0 }
    }

    /// Launches of a stream, by their grids, that were submitted together and seen to end together.
    fn learn(forecast: &mut Forecast, grids: &[u32], took: u64) {
        let mut took = Some(Duration::from_micros(took));
        let ended = |&grid: &u32| {
            let (launch, predicted) = (layer(grid), forecast.predict(&layer(grid)));
            let took = took.take().unwrap_or_default();
            Ended { stream: 7, is_program: false, launch, predicted, took, waited: false }
        };
        let mut ended: Vec<Ended> = grids.iter().map(ended).collect();
        forecast.learn(&mut ended);
        assert!(ended.is_empty());
    }

    fn known(forecast: &mut Forecast, grid: u32) -> u128 {
        forecast.predict(&layer(grid)).expect("known").as_micros()
    }

    #[test]
    fn launches_that_were_seen_to_end_together_share_the_time() {
        let mut forecast = Forecast::new(Box::new(crate::predict::Online::new()));
        learn(&mut forecast, &[1, 2], 40);
        assert_eq!([1, 2].map(|grid| known(&mut forecast, grid)), [20, 20], "equal shares");
        // Seen to end one by one, they say more.
        for _ in 0..100 {
            learn(&mut forecast, &[1], 10);
            learn(&mut forecast, &[2], 30);
        }
        learn(&mut forecast, &[1, 2], 60);
        let [first, second] = [1, 2].map(|grid| known(&mut forecast, grid));
        assert!((11..20).contains(&first) && (33..60).contains(&second), "{first} {second}");
        assert!(second.abs_diff(3 * first) <= 3, "as they were expected: {first} {second}");
    }

    #[test]
    fn long_chains_of_one_kernel_are_predicted_as_well_as_short_ones() {
        let mut forecast = Forecast::new(Box::new(crate::predict::Online::new()));
        for took in [10, 15, 8, 13, 8, 15, 12, 9, 14, 8] {
            learn(&mut forecast, &[1; 16], 16 * took);
            assert!((8..=15).contains(&known(&mut forecast, 1)), "{}", known(&mut forecast, 1));
        }
    }

    #[test]
    fn streams_are_told_apart() {
        let mut forecast = Forecast::new(Box::new(crate::predict::Online::new()));
        let ended = |stream, grid, took| Ended {
            is_program: false,
            stream,
            launch: layer(grid),
            predicted: None,
            took: Duration::from_micros(took),
            waited: false,
        };
        forecast.learn(&mut vec![ended(1, 1, 40), ended(2, 3, 900), ended(1, 2, 0)]);
        assert_eq!([1, 2, 3].map(|grid| known(&mut forecast, grid)), [20, 20, 900]);
    }

    #[test]
    fn the_second_launch_of_a_kernel_has_a_prediction() {
        let (_scheduler, seen) = three(|builder| builder);
        assert_eq!(seen.len(), 3);
        assert_eq!(seen[0], None, "no run has been seen");
        let (second, third) = (seen[1].expect("known"), seen[2].expect("known"));
        assert!(second > Duration::ZERO && third > Duration::ZERO);
    }

    /// A predictor that keeps the launches that it predicts and learns from.
    #[derive(Clone)]
    struct KeepingPredictor {
        name: &'static str,
        told: Arc<Mutex<Vec<(u32, u64)>>>,
        panics: bool,
    }

    impl Default for KeepingPredictor {
        fn default() -> KeepingPredictor {
            KeepingPredictor { name: "squares", told: Arc::default(), panics: false }
        }
    }

    impl Predictor for KeepingPredictor {
        fn predict(&self, launch: &Features<'_>) -> Option<Duration> {
            assert!(!self.panics, "as intended");
            assert_eq!((launch.kernel, launch.block, launch.shared_bytes), (self.name, 32, 0));
            Some(Duration::from_secs(launch.grid.into()))
        }
        fn finished(&mut self, launch: &Features<'_>, took: Duration) {
            assert!(took > Duration::ZERO);
            self.told.lock().expect("no panic").push((launch.grid, launch.input_bytes));
        }
    }

    impl Drop for KeepingPredictor {
        fn drop(&mut self) {
            assert!(!self.panics || std::thread::panicking(), "again, as intended");
        }
    }

    #[test]
    fn a_custom_predictor_is_asked_and_told() {
        let notes = KeepingPredictor::default();
        let (scheduler, seen) = three(|builder| builder.predictor(notes.clone()));
        assert_eq!(seen, [20, 20, 10].map(|grid| Some(Duration::from_secs(grid))));
        assert!(scheduler.predictor_error().is_none());
        scheduler.synchronize().expect("nothing went wrong");
        // It is told after the launch's handle is.
        drop(scheduler);
        assert_eq!(
            *notes.told.lock().expect("no panic"),
            [20, 20, 10].map(|grid| (grid, 2 * 2560))
        );
    }

    #[test]
    fn a_predictor_that_panics_is_dropped() {
        let mut notes = KeepingPredictor::default();
        notes.panics = true;
        let told = notes.told.clone();
        let (scheduler, seen) = three(|builder| builder.predictor(notes));
        assert_eq!(seen, [None; 3]);
        assert!(told.lock().expect("no panic").is_empty());
        let error = scheduler.synchronize().expect_err("it says so");
        assert!(
            matches!(&error, Error::Scheduler(SchedulerError::PredictorDropped { message }) if &**message == "as intended"),
            "{error:?}"
        );
        assert!(scheduler.predictor_error().is_some());
    }

    /// Predicts that nothing ever ends.
    struct Forever;

    impl Predictor for Forever {
        fn predict(&self, _launch: &Features<'_>) -> Option<Duration> {
            Some(Duration::MAX)
        }
        fn finished(&mut self, _launch: &Features<'_>, _took: Duration) {}
    }

    #[test]
    fn a_prediction_may_be_longer_than_any_sum_can_hold() {
        let (scheduler, seen) = three(|builder| builder.predictor(Forever));
        assert_eq!(seen, [Some(LONGEST); 3]);
        scheduler.synchronize().expect("nothing went wrong");
        assert_eq!(scheduler.stats().total.done, 3);
    }
}
