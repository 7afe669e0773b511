//! Kernels that other compilers made: the cost of the preemptible form, its results over many stops, and urgent requests beside it.

use std::time::Duration;

use anyhow::Result;
use preempt::policy::StaticPriority;
use preempt::ptx::{Verdict, read};
use preempt::{Buffer, Footprint, ForeignKernel, Preemption, Scheduler, SchedulerBuilder};
use preempt_microkernels::answer;
use preempt_report::{digits, microseconds};
use preempt_test_kit::Random;
use serde_json::{Value, json};

use self::cases::{CORPUS, Case, OWN};
use self::corpus::Corpus;
use self::pairs::{Arm, Pair, Requests};
use self::subject::{Subject, task_time};
use super::corun::LEARNING;
use super::{Bench, Experiment, Outcome, Rows, line, random_time};
use crate::progress::Progress;
use crate::samples::{Samples, geometric_mean, ratio, show};

mod cases;
mod corpus;
mod pairs;
mod subject;

/// Samples of each time, and stops of each kernel.
const SAMPLES: u32 = 31;
const STOPS: u32 = 170;
/// Launches in which the stops have to come.
const LAUNCHES: u32 = 300;
/// Requests of each arm of a pair, and groups in which arms take turns.
const REQUESTS: u32 = 100;
const GROUPS: u32 = 5;
/// The same with `--quick`.
const QUICK: [u32; 5] = [3, 6, 30, 5, 1];

/// Time that `wait` spins.
const SPIN: Duration = Duration::from_millis(100);

/// The experiment `foreign`.
#[derive(Debug)]
pub struct Foreign;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
Kernels of nvcc and Triton, which nothing of preempt compiled: `benches/corpus/own.cu`, whose PTX is
in this program, and with `--corpus` kernels of Triton, candle and ggml. Without a GPU, their
verdicts alone.

Kernels:

- original: a raw launch of the PTX as the compiler made it, from the launch to the host's knowledge
  of its end. plain, preemptible, default: the same launch through the scheduler, as a plain grid, in
  the preemptible form, and in the form that costs least (`Preemption::Auto`), until `wait` returns.
  The first rounds teach the scheduler what each form costs.
- `ratio`: preemptible to plain, so that both have passed the scheduler. `ratio_to_original` has the
  cost of the scheduler in it, too. `ratio_default` is of default to plain.
- registers, blocks per SM: of the plain and of the preemptible form, as loaded.
- stops: how often the kernel lost its SMs in mid-kernel, to launches that take the whole device at
  random moments; `urgent` is the time from such a launch to its end. After each run the outputs are
  compared with those of the original, by a digest of all bits; before it they are overwritten.
- task: the time of a block-task while the device is full.

Requests:

- A batch runs the kernel again and again, two launches deep. Requests of 8 blocks of 1024 threads
  come up to 4 ms apart. `preempt`: both through the scheduler, the batch preemptible, and the
  request more urgent; from the launch to the return of `wait`. `stream priority`: both by raw
  launches of the originals on streams of the least and the highest priority, until the host sees
  the answers. Arms take turns.
- `block` is a transformer's block of Triton's kernels: norm, product, rotary embedding, attention,
  product, norm, product, activation, product.
- slowdown: the time of a run of the batch, less that of the requests on the idle device, to that of
  a run without requests.
- `stream_priority_over_ours_p99_100us` is the least quotient of the p99s over kernels whose
  block-tasks take 50 to 500 µs, `.._500us` over those of 500 µs and more.
- The kernels have no yield points: they give way at the ends of their block-tasks.

- `geomean_ratio`, `max_ratio`, `geomean_ratio_over_150us` are of `ratio`; `within_5_percent_over_300us`
  is the part of the kernels above 300 µs with a ratio of at most 1.05. `candle_accepted` and
  `ggml_accepted` are parts of all entries of the corpus.
";

impl Experiment for Foreign {
    fn name(&self) -> &'static str {
        "foreign"
    }

    fn about(&self) -> &'static str {
        "Kernels of nvcc and Triton: what being preemptible costs them, and urgent requests beside them."
    }

    fn meaning(&self) -> &'static [&'static str] {
        &[MEANING]
    }

    fn run(&self, bench: &Bench) -> Result<Outcome> {
        let mut cases: Vec<&'static Case> = OWN.iter().collect();
        if bench.corpus.is_some() {
            cases.extend(CORPUS);
        }
        let corpus = Corpus::read(bench.corpus.as_deref(), &cases)?;
        match bench.gpu {
            Some(_) => measured(bench, &corpus, &cases),
            None => judged(&corpus, &cases),
        }
    }
}

/// Parts of the entries of candle's and ggml's that are accepted.
fn accepted(corpus: &Corpus) -> Result<Value> {
    let part = |group| -> Result<Option<f64>> {
        Ok(corpus.accepted(group)?.map(|(accepted, all)| accepted as f64 / all as f64))
    };
    Ok(json!({ "candle_accepted": part("candle")?, "ggml_accepted": part("ggml")? }))
}

/// The verdicts of the kernels.
fn judged(corpus: &Corpus, cases: &[&'static Case]) -> Result<Outcome> {
    let mut rows = Rows::below(["kernel", "of", "verdict"]);
    let mut refused = 0;
    for case in cases {
        let text = corpus.text(case)?;
        let entry = text.entry(case)?;
        let only = text.only(&entry)?;
        let verdict = read(&only)?.verdict(&entry);
        refused += u32::from(!matches!(verdict, Some(Verdict::Accepted(_))));
        let verdict = verdict.map_or_else(String::new, |verdict| verdict.to_string());
        let name = name(case);
        let json = json!({ "kernel": name, "group": case.group, "verdict": verdict });
        rows.push(line([&name, case.group, &verdict]), json);
    }
    let mut summary = accepted(corpus)?;
    summary["kernels"] = json!(cases.len());
    summary["refused"] = json!(refused);
    Ok(Outcome {
        about: "Verdicts of kernels of other compilers; `--device cuda` runs them.".to_owned(),
        table: rows.table,
        text_columns: 3,
        rows: rows.json,
        summary,
        mistake: None,
    })
}

/// The name of a case's kernel: the entry without what the compiler made of its parameters.
fn name(case: &Case) -> String {
    let Some(mangled) = case.entry.strip_prefix("_Z") else { return case.entry.to_owned() };
    let digits = mangled.bytes().take_while(u8::is_ascii_digit).count();
    let length = mangled[..digits].parse().unwrap_or(0);
    mangled[digits..].chars().take(length).collect()
}

/// A kernel's row.
struct Measured {
    name: String,
    case: &'static Case,
    tasks: u32,
    kernel: ForeignKernel,
    footprint: Footprint,
    original: Samples,
    /// Plain, preemptible, default.
    forms: [Samples; 3],
    is_plain: bool,
    stops: u32,
    runs: u32,
    urgent: Samples,
    is_equal: bool,
}

/// The forms in the order of [`Measured::forms`].
const FORMS: [Preemption; 3] = [Preemption::Plain, Preemption::Preemptible, Preemption::Auto];

impl Measured {
    fn ratio(&self) -> Option<f64> {
        ratio(self.forms[1].p50(), self.forms[0].p50())
    }

    fn task(&self, sms: u32) -> Duration {
        let resident = sms * self.footprint.plain.blocks_per_sm;
        task_time(self.forms[0].p50(), self.tasks, resident)
    }

    fn line(&self, sms: u32) -> Vec<String> {
        let Footprint { plain, preemptible, .. } = self.footprint;
        let ratios = [self.ratio(), ratio(self.forms[2].p50(), self.forms[0].p50())];
        let [preemptible_ratio, default] =
            ratios.map(|ratio| ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}")));
        let urgent = self.urgent.summary();
        line([
            &self.name,
            self.case.group,
            &self.tasks.to_string(),
            &show(self.task(sms)),
            &show(self.original.p50()),
            &show(self.forms[0].p50()),
            &preemptible_ratio,
            &default,
            &format!("{} → {}", plain.registers, preemptible.registers),
            &format!("{} → {}", plain.blocks_per_sm, preemptible.blocks_per_sm),
            &self.stops.to_string(),
            &show(urgent.p50),
            &show(urgent.p99),
            if self.is_equal { "yes" } else { "NO" },
        ])
    }

    fn json(&self, sms: u32) -> Value {
        let Footprint { plain, preemptible, .. } = self.footprint;
        let urgent = self.urgent.summary();
        let [plain_p50, preemptible_p50, default_p50] = self.forms.each_ref().map(Samples::p50);
        json!({
            "kernel": self.name,
            "group": self.case.group,
            "verdict": self.kernel.verdict().to_string(),
            "block_tasks": self.tasks,
            "task_us": microseconds(self.task(sms)),
            "samples": self.original.len(),
            "original_p50_us": microseconds(self.original.p50()),
            "plain_p50_us": microseconds(plain_p50),
            "preemptible_p50_us": microseconds(preemptible_p50),
            "default_p50_us": microseconds(default_p50),
            "ratio": self.ratio(),
            "ratio_to_original": ratio(preemptible_p50, self.original.p50()),
            "ratio_default": ratio(default_p50, plain_p50),
            "default_is_plain": self.is_plain,
            "registers": [plain.registers, preemptible.registers],
            "local_bytes": [plain.local_bytes, preemptible.local_bytes],
            "blocks_per_sm": [plain.blocks_per_sm, preemptible.blocks_per_sm],
            "runs": self.runs,
            "stops": self.stops,
            "urgent_p50_us": microseconds(urgent.p50),
            "urgent_p99_us": microseconds(urgent.p99),
            "equal": self.is_equal,
        })
    }
}

fn builder(bench: &Bench, corpus: &Corpus) -> Result<SchedulerBuilder> {
    let mut builder = bench.spinning_builder(StaticPriority::new(), SPIN)?;
    for (name, text) in corpus.texts() {
        builder = builder.ptx(name, text);
    }
    Ok(builder)
}

/// Measures all kernels, and then requests beside some.
fn measured(bench: &Bench, corpus: &Corpus, cases: &[&'static Case]) -> Result<Outcome> {
    let [samples, stops, launches, requests, groups] =
        bench.amount(QUICK, [SAMPLES, STOPS, LAUNCHES, REQUESTS, GROUPS]);
    let mut random = Random(bench.seed);
    let progress = Progress::new("kernels", cases.len() as u64);
    let scheduler = builder(bench, corpus)?.build()?;
    let sms = scheduler.device().properties().sms;
    let mut ticks = scheduler.zeroed(2 * sms as usize)?;
    let (mut kernels, mut unstable) = (Vec::new(), Vec::new());
    for &case in cases {
        match Subject::new(&scheduler, corpus, case, bench.seed as u32)? {
            Some(subject) => {
                let mut row = timed(&scheduler, &subject, samples)?;
                storm(&scheduler, &subject, &mut row, (stops, launches), &mut ticks, &mut random)?;
                kernels.push(row);
            }
            None => unstable.push(name(case)),
        }
        scheduler.synchronize()?;
        progress.step();
    }
    let pairs = beside(&scheduler, bench, corpus, (requests, groups))?;
    outcome(corpus, sms, &kernels, &unstable, &pairs)
}

/// Times the forms in turn, after the rounds in which the scheduler learns what they cost.
fn timed(scheduler: &Scheduler, subject: &Subject, samples: u32) -> Result<Measured> {
    let stream = scheduler.stream(0);
    let mut row = Measured {
        name: name(subject.case),
        case: subject.case,
        tasks: subject.tasks(),
        kernel: subject.kernel,
        footprint: subject.footprint,
        original: Samples::default(),
        forms: Default::default(),
        is_plain: false,
        stops: 0,
        runs: 0,
        urgent: Samples::default(),
        is_equal: true,
    };
    for round in 0..samples + LEARNING {
        let original = subject.original()?;
        // In another order in each round.
        for turn in 0..FORMS.len() {
            let form = (turn + round as usize) % FORMS.len();
            let is_checked = round < 2;
            if is_checked {
                subject.reset(&stream)?;
            }
            let (time, report) = subject.scheduled(&stream, FORMS[form])?;
            if is_checked {
                row.is_equal &= subject.is_equal(&stream)?;
            }
            scheduler.synchronize()?;
            if round >= LEARNING {
                row.forms[form].push(time);
            }
            if FORMS[form] == Preemption::Auto {
                row.is_plain = report.plain;
            }
        }
        if round >= LEARNING {
            row.original.push(original);
        }
    }
    Ok(row)
}

/// Runs the preemptible form while urgent launches take the device, and compares.
fn storm(
    scheduler: &Scheduler,
    subject: &Subject,
    row: &mut Measured,
    (stops, launches): (u32, u32),
    ticks: &mut Buffer<u32>,
    random: &mut Random,
) -> Result<()> {
    let (batch, urgent) = (scheduler.stream(0), scheduler.stream(1));
    let time = row.forms[1].p50();
    while row.stops < stops && row.runs < launches {
        subject.reset(&batch)?;
        let launched = batch.launch(subject.call.clone().preemption(Preemption::Preemptible))?;
        for _ in 0..2 {
            let pause = random_time(random, time / 2);
            let start = std::time::Instant::now();
            while start.elapsed() < pause {
                std::hint::spin_loop();
            }
            let start = std::time::Instant::now();
            // As many blocks of 1024 threads as the device holds.
            let blocks = ticks.len() as u32;
            urgent.launch(answer(row.runs + 1, &mut *ticks).grid(blocks))?.wait()?;
            row.urgent.push(start.elapsed());
        }
        row.stops += launched.wait()?.yields;
        row.runs += 1;
        row.is_equal &= subject.is_equal(&batch)?;
    }
    Ok(())
}

/// Requests beside one batch.
struct Beside {
    name: String,
    task: Duration,
    idle: Samples,
    ours: Arm,
    priorities: Arm,
}

impl Beside {
    /// Stream priorities' p99 to ours.
    fn gain(&self) -> Option<f64> {
        ratio(self.priorities.times.summary().p99, self.ours.times.summary().p99)
    }

    fn arms(&self) -> [(&'static str, &Arm); 2] {
        [("preempt", &self.ours), ("stream priority", &self.priorities)]
    }
}

/// Kernels with long block-tasks, each of which is the batch of a pair.
const LONG: [&str; 9] = [
    "tiled_matmul",
    "tensor_matmul",
    "stack_walk",
    "n_body",
    "n_body_tiled",
    "matmul",
    "matmul_small",
    "attention",
    "attention_causal",
];

/// The kernels of a transformer's block, all of Triton's.
const BLOCK: [&str; 9] = [
    "layer_norm",
    "matmul",
    "rotary",
    "attention",
    "matmul",
    "layer_norm",
    "matmul",
    "gelu",
    "matmul",
];

fn beside(
    scheduler: &Scheduler,
    bench: &Bench,
    corpus: &Corpus,
    (requests, groups): (u32, u32),
) -> Result<Vec<Beside>> {
    let all: Vec<&'static Case> = match bench.corpus {
        Some(_) => OWN.iter().chain(CORPUS).collect(),
        None => OWN.iter().collect(),
    };
    let find = |name: &str| {
        let of_triton = |case: &&&'static Case| case.entry == name && case.group == "triton";
        let triton = all.iter().find(of_triton);
        triton.or_else(|| all.iter().find(|case| case.entry == name)).copied()
    };
    let mut batches: Vec<(String, Vec<&'static Case>)> =
        LONG.iter().filter_map(|&name| Some((name.to_owned(), vec![find(name)?]))).collect();
    if let Some(steps) = BLOCK.iter().map(|name| find(name)).collect::<Option<Vec<_>>>() {
        batches.push(("block".to_owned(), steps));
    }
    let progress = Progress::new("requests", batches.len() as u64);
    let sms = scheduler.device().properties().sms;
    let stream = scheduler.stream(0);
    let mut found = Vec::new();
    for (name, steps) in batches {
        let mut subjects = Vec::new();
        for case in steps {
            subjects.extend(Subject::new(scheduler, corpus, case, bench.seed as u32)?);
        }
        let mut task = Duration::ZERO;
        for subject in &subjects {
            let mut alone = Samples::default();
            for _ in 0..LEARNING {
                alone.push(subject.scheduled(&stream, Preemption::Plain)?.0);
            }
            let resident = sms * subject.footprint.plain.blocks_per_sm;
            task = task.max(task_time(alone.p50(), subject.tasks(), resident));
        }
        let mut arms = Requests::new(scheduler, bench.seed)?;
        let pair = Pair { steps: subjects.iter().collect() };
        let (ours, priorities) = (Arm::default(), Arm::default());
        let mut row = Beside { name, task, idle: arms.idle(requests)?, ours, priorities };
        for _ in 0..groups {
            arms.by_priorities(&pair, requests, &mut row.priorities)?;
            arms.by_scheduler(&pair, Preemption::Preemptible, requests, &mut row.ours)?;
            scheduler.synchronize()?;
        }
        found.push(row);
        progress.step();
    }
    Ok(found)
}

fn outcome(
    corpus: &Corpus,
    sms: u32,
    kernels: &[Measured],
    unstable: &[String],
    pairs: &[Beside],
) -> Result<Outcome> {
    let mut rows = Rows::below([
        "kernel",
        "of",
        "block-tasks",
        "task",
        "original",
        "plain",
        "ratio",
        "default",
        "registers",
        "blocks/SM",
        "stops",
        "urgent p50",
        "urgent p99",
        "equal",
    ]);
    kernels.iter().for_each(|row| rows.push(row.line(sms), row.json(sms)));
    for pair in pairs {
        for (arm, of) in pair.arms() {
            let (times, slowdown) = (of.times.summary(), of.slowdown(pair.idle.p50()));
            let cells = [
                &format!("{} beside {}", arm, pair.name),
                "",
                "",
                &show(pair.task),
                "",
                "",
                "",
                &slowdown.map_or_else(|| "-".to_owned(), |slowdown| format!("{slowdown:.3}")),
                "",
                "",
                &of.yields.to_string(),
                &show(times.p50),
                &show(times.p99),
                "",
            ];
            let json = json!({
                "batch": pair.name,
                "arm": arm,
                "task_us": microseconds(pair.task),
                "requests": of.times.len(),
                "idle_p50_us": microseconds(pair.idle.p50()),
                "p50_us": microseconds(times.p50),
                "p99_us": microseconds(times.p99),
                "max_us": microseconds(times.max),
                "slowdown": slowdown,
                "yields": of.yields,
            });
            rows.push(line(cells.map(|cell| cell as &str)), json);
        }
    }
    let over = |least: u64| {
        let least = Duration::from_micros(least);
        kernels.iter().filter(move |row| row.forms[0].p50() >= least)
    };
    let (long, near) =
        (over(300).count(), over(300).filter(|row| row.ratio() <= Some(1.05)).count());
    let gain = |from: u64, to: u64| {
        let range = Duration::from_micros(from)..Duration::from_micros(to);
        let of = pairs.iter().filter(|pair| range.contains(&pair.task));
        of.filter_map(Beside::gain).reduce(f64::min)
    };
    let auto = |row: &Measured| ratio(row.forms[2].p50(), row.forms[0].p50());
    let slowdowns = pairs.iter().filter_map(|pair| pair.ours.slowdown(pair.idle.p50()));
    let loses = |row: &&Measured| {
        row.footprint.preemptible.blocks_per_sm < row.footprint.plain.blocks_per_sm
    };
    let mut summary = accepted(corpus)?;
    let more = json!({
        "kernels": kernels.len(),
        "kernels_equal": kernels.iter().filter(|row| row.is_equal).count(),
        "kernels_unstable": unstable.len(),
        "kernels_with_fewer_blocks": kernels.iter().filter(loses).count(),
        "stops_mid_kernel": kernels.iter().map(|row| row.stops).sum::<u32>(),
        "geomean_ratio": geometric_mean(kernels.iter().map(Measured::ratio)),
        "geomean_ratio_over_150us": geometric_mean(over(150).map(Measured::ratio)),
        "within_5_percent_over_300us": (long > 0).then(|| near as f64 / long as f64),
        "max_ratio": kernels.iter().filter_map(Measured::ratio).reduce(f64::max),
        "geomean_ratio_auto": geometric_mean(kernels.iter().map(auto)),
        "geomean_ratio_to_original":
            geometric_mean(kernels.iter().map(|row| ratio(row.forms[1].p50(), row.original.p50()))),
        "stream_priority_over_ours_p99_100us": gain(50, 500),
        "stream_priority_over_ours_p99_500us": gain(500, u64::MAX / 1000),
        "batch_slowdown": slowdowns.reduce(f64::max),
    });
    if let (Some(summary), Value::Object(more)) = (summary.as_object_mut(), more) {
        summary.extend(more);
    }
    let wrong: Vec<_> = kernels.iter().filter(|row| !row.is_equal).map(|row| &*row.name).collect();
    let mistake = (!wrong.is_empty()).then(|| format!("outputs differ of {}", wrong.join(", ")));
    let about = match unstable {
        [] => String::new(),
        names => format!(" {} write something else each time, and are left out.", names.join(", ")),
    };
    Ok(Outcome {
        about: format!(
            "{} kernels of other compilers, a bound of {} blocks.{about}",
            kernels.len(),
            digits(f64::from(sms))
        ),
        table: rows.table,
        text_columns: 2,
        rows: rows.json,
        summary,
        mistake,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_kernels_are_those_of_their_source() {
        let named = |name: &str| OWN.iter().chain(CORPUS).any(|case| super::name(case) == name);
        assert!(named("scale_f32") && named("norm_f32") && named("saxpy") && named("attention"));
    }

    #[test]
    fn each_batch_is_a_kernel_that_there_is() {
        for name in LONG.iter().chain(&BLOCK) {
            assert!(OWN.iter().chain(CORPUS).any(|case| case.entry == *name), "{name}");
        }
    }
}
