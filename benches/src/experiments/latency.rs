//! From an urgent launch to its end: on an idle device, behind a batch kernel in submission order, and with preemption.
//! The three take turns, so that disturbances by the machine meet all of them.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use preempt::policy::StaticPriority;
use preempt::{Handle, LaunchReport, Scheduler, Stream};
use preempt_microkernels::{count, occupy};
use preempt_report::microseconds;
use preempt_test_kit::Random;
use preempt_test_kit::storm::Tally;
use serde_json::{Value, json};

use super::counted::Counted;
use super::{Bench, Experiment, Outcome, line, random_time};
use crate::progress::Progress;
use crate::samples::{Samples, ratio, show, show_ratio};

/// Lengths of the batch kernel's block-tasks, and groups of samples.
const CASES: [(Duration, u32); 4] = [
    (Duration::from_micros(10), 100),
    (Duration::from_micros(100), 100),
    (Duration::from_millis(1), 100),
    (Duration::from_millis(10), 30),
];
/// Groups with `--quick`.
const QUICK_GROUPS: u32 = 1;

/// Samples in each group, alone and with preemption; there is one in submission order.
const GROUP: u32 = 10;

/// The most time between two urgent launches, in addition to two block-tasks: they come at any moment of a block-task.
const PAUSE: Duration = Duration::from_millis(1);

/// The least time of the batch kernel where urgent launches wait for it.
const SHORT_BATCH: Duration = Duration::from_millis(5);
/// The same bound in block-tasks on each SM.
const SHORT_BATCH_TASKS: u32 = 4;

/// The kind of an urgent launch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Urgent {
    OneTask,
    AllSms,
}

impl Urgent {
    fn name(self) -> &'static str {
        match self {
            Urgent::OneTask => "one task",
            Urgent::AllSms => "all SMs",
        }
    }
}

/// One length of block-tasks and one kind of urgent launch.
struct Case {
    length: Duration,
    urgent: Urgent,
    alone: Samples,
    in_order: Samples,
    preempt: Samples,
    /// Yields of the batch kernels that urgent launches waited for; `yields` are of those that they preempted.
    yields_in_order: u64,
    yields: u64,
}

/// The experiment `latency`.
#[derive(Debug)]
pub struct Latency;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
From an urgent launch to its end. On the CPU device: for block-tasks of a batch kernel of 10 µs to
10 ms, and for urgent kernels of one block-task and of one for each place on the device. On a GPU:
for block-tasks of 1 µs to 10 ms, with and without yield points, against raw driver calls; and for
each program of the papers, how long it takes from the signal until its last block has left
(EffiSha, figure 10).

On the CPU device:

The arms:

- alone: an idle device.
- submission order: a short batch kernel of the same priority: it waits for the end, so its times
  are those of that batch (20 to 40 ms or so of work), and a longer batch makes them longer.
- preempt: a long batch kernel of a lower priority.

- The three arms take turns, so that disturbances by the machine meet all of them. Urgent launches
  come at random moments of the batch's block-tasks.
- A preempted SM ends its current block-task, so the least latency of `preempt` is `alone` plus the
  rest of a block-task: half of one on average, a whole one at worst.
- p50 / alone, p99 / alone: the ratio to an idle device. Below 1 it means that threads with work
  answer faster than those that sleep.
- batch yields: from the batch kernels' reports. An urgent launch that comes while the batch ends
  needs none.
- Where there are more SMs than processors less one, the thread that launches shares its processor
  with an SM, and the operating system may keep it waiting for milliseconds: see p99 and max.
  Block-tasks of 1 ms and more mostly sleep, which leaves the processors alone.

On a GPU:

The victim fills the GPU with blocks of 1024 threads, two on each SM. The urgent kernel has 8 such
blocks, which find no room beside it. All arms of a case take turns.

The arms:

- preempt: an urgent launch through the scheduler, from the call of `launch` to the return of
  `wait`, which spins. Signals go by the path that is the default.
- preempt, armed: a program of the same kernel, which is armed 50 to 600 µs before its launch.
- preempt, by the proxy: with `SignalPath::Proxy`, measured after the others, a quarter as often.
- preempt, by stream writes: with `SignalPath::StreamWrite`, measured so after that. `preempt` has
  either where it is worth more, so these two say what that gains.
- floor: the victim's preemptible entry by a raw launch with a control block made by hand; one
  stream write takes from it the SMs that the urgent kernel needs, which is launched right after in
  its plain form on a stream of the highest priority. Measured until the host sees the output of all
  its blocks. The scheduler is not involved.
- floor, all SMs: the same, and the victim leaves all SMs. `drained`: from the signal to the moment
  at which the host sees that its last block has left.
- stream priority: both in their plain form on streams of the driver, that of the urgent kernel with
  the highest priority.
- plain streams: the same with equal priorities: the urgent kernel waits for the rest of the victim,
  which takes 2 ms and four block-tasks or so in all. A tenth as many samples.
- idle GPU: a raw launch of the urgent kernel on the idle GPU, after a pause like those before it.

- p50 / floor: the ratio of `preempt` to the floor is the cost of the scheduler.
  `urgent_over_floor_p50` is the largest of the cases with yield points, and so is each key that
  begins with `armed_over`; `armed_over_idle_launch` is of block-tasks of at most 1 ms.
- `began_armed`: the part of the armed programs that began without a call of the driver.
- `stream_priority_over_ours_p50_1ms` and `.._10ms` are of the cases with yield points.
- A block-task that was requeued at a yield point twice runs through to its end the third time. In
  `preempt`, urgent launches come 1.2 to 2.2 block-tasks apart, so that block-tasks get done in
  between; the victims of the other arms start anew for each sample.
- Without yield points there are a quarter as many samples.
- Where p99s are compared, with yield points, there are more samples of those arms: 10,000 of
  `preempt`, `preempt, armed` and `floor` up to 1 ms, and 2,000 of 10 ms, where all ratios are far
  below the worst; of `idle GPU` up to 1 ms; and of `stream priority` up to 100 µs, beyond which it
  waits for ends of blocks for much longer than all others. Pauses before
  them take up to 1 ms, and before each second launch of each arm 1.2 block-tasks more, in which
  those of `preempt` get done. (A host answers more slowly behind a longer pause.)
";

impl Experiment for Latency {
    fn name(&self) -> &'static str {
        "latency"
    }

    fn about(&self) -> &'static str {
        "From an urgent launch to its end: alone, behind a batch kernel, and with preemption."
    }

    fn meaning(&self) -> &'static [&'static str] {
        &[MEANING]
    }

    fn run(&self, bench: &Bench) -> Result<Outcome> {
        match bench.gpu {
            Some(gpu) => super::cuda::latency::run(bench, gpu),
            None => run(bench),
        }
    }
}

/// Measures all cases.
fn run(bench: &Bench) -> Result<Outcome> {
    let scheduler =
        bench.builder(StaticPriority::new())?.kernels(preempt_test_kit::KERNELS).build()?;
    let mut random = Random(bench.seed);
    let mut tally = Tally::default();
    let mut cases = Vec::new();
    for (length, groups) in CASES {
        for urgent in [Urgent::OneTask, Urgent::AllSms] {
            let groups = bench.amount(QUICK_GROUPS, groups);
            let name = format!("block-tasks of {}, {}", show(length), urgent.name());
            let progress = Progress::new(name, u64::from(groups));
            let mut case = Arms::new(&scheduler, length, urgent, &mut random)?;
            for _ in 0..groups {
                case.measure_group()?;
                progress.step();
            }
            cases.push(case.finish(&mut tally)?);
        }
    }
    scheduler.synchronize()?;

    let mut table = vec![line([
        "block-tasks",
        "urgent",
        "",
        "samples",
        "p50",
        "p99",
        "max",
        "p50 / alone",
        "p99 / alone",
        "batch yields",
    ])];
    table.extend(cases.iter().flat_map(Case::lines));
    let summary = json!({
        "cases": cases.iter().map(Case::json_summary).collect::<Vec<_>>(),
        "kernels": tally.kernels,
        "block_tasks": tally.block_tasks,
        "yields": cases.iter().map(|case| case.yields).sum::<u64>(),
        "lost": tally.lost,
        "repeated": tally.repeated,
    });
    Ok(Outcome {
        about: "From an urgent launch to its end. Urgent block-tasks do nearly nothing; those of \
                the batch kernel occupy their SM for a known time."
            .to_owned(),
        table,
        text_columns: 3,
        rows: cases.iter().flat_map(Case::json_rows).collect(),
        summary,
        mistake: tally.mistake,
    })
}

/// The state that the three arms of a case share.
struct Arms<'a> {
    scheduler: &'a Scheduler,
    random: &'a mut Random,
    case: Case,
    batch_stream: Stream,
    /// A stream of the batch kernel's priority.
    equal_stream: Stream,
    urgent_stream: Stream,
    urgent: Counted,
    /// A batch kernel that runs while a group of urgent launches comes.
    long_batch: Counted,
    /// A batch kernel that runs while one urgent launch waits for its end.
    short_batch: Counted,
    short_time: Duration,
}

impl<'a> Arms<'a> {
    fn new(
        scheduler: &'a Scheduler,
        length: Duration,
        urgent: Urgent,
        random: &'a mut Random,
    ) -> Result<Arms<'a>> {
        let properties = scheduler.device().properties();
        let blocks = properties.sms * properties.blocks_per_sm;
        let on_each = |time: Duration| time.as_nanos().div_ceil(length.as_nanos()) as u32;
        // Half of the longest pause passes between two urgent launches, and a block-task or two until the urgent launch
        // is done.
        let long_time = GROUP * (PAUSE / 2 + 3 * length);
        let short_time = SHORT_BATCH.max(SHORT_BATCH_TASKS * length);
        let urgent_tasks = if urgent == Urgent::OneTask { 1 } else { blocks };
        Ok(Arms {
            scheduler,
            random,
            case: Case {
                length,
                urgent,
                alone: Samples::default(),
                in_order: Samples::default(),
                preempt: Samples::default(),
                yields_in_order: 0,
                yields: 0,
            },
            batch_stream: scheduler.stream(0),
            equal_stream: scheduler.stream(0),
            urgent_stream: scheduler.stream(1),
            urgent: Counted::new("urgent kernels", scheduler, urgent_tasks)?,
            long_batch: Counted::new("batch", scheduler, blocks * on_each(long_time))?,
            short_batch: Counted::new("short batch", scheduler, blocks * on_each(short_time))?,
            short_time,
        })
    }

    fn measure_group(&mut self) -> Result<()> {
        for _ in 0..GROUP {
            self.pause(PAUSE);
            self.scheduler.synchronize()?;
            let time = self.urgent_launch(self.urgent_stream.clone())?;
            self.case.alone.push(time);
        }

        let mut batch = self.launch_long_batch()?;
        for _ in 0..GROUP {
            self.pause(PAUSE + 2 * self.case.length);
            while batch.is_done() {
                self.case.yields += u64::from(batch.wait()?.yields);
                batch = self.launch_long_batch()?;
                self.pause(PAUSE + 2 * self.case.length);
            }
            let time = self.urgent_launch(self.urgent_stream.clone())?;
            self.case.preempt.push(time);
        }
        self.case.yields += u64::from(batch.wait()?.yields);

        loop {
            let nanos = self.case.length.as_nanos() as u64;
            let batch =
                self.short_batch.launch(&self.batch_stream, |counts| occupy(counts, nanos))?;
            self.pause(self.short_time / 2);
            let met = !batch.is_done();
            let time = self.urgent_launch(self.equal_stream.clone())?;
            self.case.yields_in_order += u64::from(batch.wait()?.yields);
            if met {
                self.case.in_order.push(time);
                return Ok(());
            }
        }
    }

    /// Sleeps for a random time.
    fn pause(&mut self, most: Duration) {
        thread::sleep(random_time(self.random, most));
    }

    fn launch_long_batch(&mut self) -> Result<Handle<LaunchReport>> {
        let nanos = self.case.length.as_nanos() as u64;
        self.long_batch.launch(&self.batch_stream, |counts| occupy(counts, nanos))
    }

    /// The time from an urgent launch to its end.
    fn urgent_launch(&mut self, stream: Stream) -> Result<Duration> {
        let start = Instant::now();
        self.urgent.launch(&stream, |counts| count(counts))?.wait()?;
        Ok(start.elapsed())
    }

    /// Compares the counts of all kernels.
    fn finish(self, tally: &mut Tally) -> Result<Case> {
        for counted in [&self.urgent, &self.long_batch, &self.short_batch] {
            counted.check(&self.batch_stream, tally)?;
        }
        Ok(self.case)
    }
}

impl Case {
    /// Name, times, and yields of the batch kernel, if there is one.
    fn arms(&self) -> [(&'static str, &Samples, Option<u64>); 3] {
        [
            ("alone", &self.alone, None),
            ("submission order", &self.in_order, Some(self.yields_in_order)),
            ("preempt", &self.preempt, Some(self.yields)),
        ]
    }

    fn lines(&self) -> Vec<Vec<String>> {
        let alone = self.alone.summary();
        let line = |(name, samples, yields): (&str, &Samples, Option<u64>)| {
            let summary = samples.summary();
            line([
                &show(self.length),
                self.urgent.name(),
                name,
                &samples.len().to_string(),
                &show(summary.p50),
                &show(summary.p99),
                &show(summary.max),
                &show_ratio(ratio(summary.p50, alone.p50)),
                &show_ratio(ratio(summary.p99, alone.p99)),
                &yields.map_or_else(|| "-".to_owned(), |yields| yields.to_string()),
            ])
        };
        self.arms().into_iter().map(line).collect()
    }

    fn json_rows(&self) -> Vec<Value> {
        let alone = self.alone.summary();
        let row = |(name, samples, yields): (&str, &Samples, Option<u64>)| {
            let summary = samples.summary();
            json!({
                "block_task_us": microseconds(self.length),
                "urgent": self.urgent.name(),
                "arm": name,
                "samples": samples.len(),
                "p50_us": microseconds(summary.p50),
                "p99_us": microseconds(summary.p99),
                "max_us": microseconds(summary.max),
                "p50_to_alone": ratio(summary.p50, alone.p50),
                "p99_to_alone": ratio(summary.p99, alone.p99),
                "batch_yields": yields,
            })
        };
        self.arms().into_iter().map(row).collect()
    }

    fn json_summary(&self) -> Value {
        let [alone, in_order, preempt] = self.arms().map(|(_, samples, _)| samples.summary());
        json!({
            "block_task_us": microseconds(self.length),
            "urgent": self.urgent.name(),
            "alone_p99_us": microseconds(alone.p99),
            "submission_order_p99_us": microseconds(in_order.p99),
            "preempt_p99_us": microseconds(preempt.p99),
            "preempt_to_alone_p99": ratio(preempt.p99, alone.p99),
            "submission_order_to_preempt_p99": ratio(in_order.p99, preempt.p99),
        })
    }
}
