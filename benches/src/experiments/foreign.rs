//! Kernels that other compilers made: the cost of the preemptible form, its results over many stops, and urgent requests beside it.

use std::time::Duration;

use anyhow::Result;
use preempt::SchedulerBuilder;
use preempt::policy::StaticPriority;
use preempt::ptx::{Droppable, Options, Verdict, transform_with};
use preempt_report::{digits, microseconds};
use preempt_test_kit::Random;
use serde_json::{Value, json};

use self::beside::{Beside, beside};
use self::cases::{CORPUS, Case, OWN};
use self::corpus::Corpus;
use self::measured::{Form, Measured, Storming, timed};
use self::pairs::Arm;
use self::subject::Subject;
use super::{Bench, Experiment, Outcome, Rows, line};
use crate::progress::Progress;
use crate::samples::{geometric_mean, ratio, show};

mod beside;
mod cases;
mod corpus;
mod measured;
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
- coarse: preemptible, with 16 block-tasks between two looks at the signal, whatever a stop takes then.
  By default they are as many as take two thirds of a stop. Where `ratio_coarse` is less than `ratio`,
  the difference is the cost of looks.
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
  the answers. `preempt, armed`: a request is a program, whose arguments are set and which is armed
  50 to 600 µs before its launch; the batch has yield points where its kernels have some.
  `began_armed`: how many began without a call of the driver. Arms take turns, and the thread that
  launches spins until a request comes in all of them.
- `block` is a transformer's block of Triton's kernels: norm, product, rotary embedding, attention,
  product, norm, product, activation, product.
- slowdown: the time of a run of the batch, less that of the requests on the idle device, to that of
  a run without requests; `batch_slowdown` is the largest of all arms through the scheduler.
- `stream_priority_over_ours_p99_100us` is the least quotient of the p99s over kernels whose
  block-tasks take 50 to 500 µs, `.._500us` over those of 500 µs and more; both with yield points, in
  kernels that have some, and `.._without_points` without. `stream_priority_over_armed_p99_..` is the
  same of armed requests, beside kernels with yield points.
- Stream priorities answer as fast as an idle device beside kernels that leave room on SMs, or whose
  blocks end one after the other all the time: nothing can be twice as fast there.
- Without yield points kernels give way at the ends of their block-tasks, as plain grids do. `points`,
  `preempt, yield points`: with yield points in their loops, where the PTX shows that block-tasks may
  be dropped (`SchedulerBuilder::ptx_with`). The kernel is interrupted as often in that form, too;
  `with points` is the p99 of these urgent launches.

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
    let mut rows = Rows::below(["kernel", "of", "verdict", "yield points"]);
    let mut refused = 0;
    for case in cases {
        let text = corpus.text(case)?;
        let entry = text.entry(case)?;
        let only = text.only(&entry)?;
        let transformed = transform_with(&only, &[&entry], Options::default().yields(true))?;
        let Some(kernel) = transformed.kernels.into_iter().next() else { continue };
        refused += u32::from(!matches!(kernel.verdict, Verdict::Accepted(_)));
        let (name, verdict) = (name(case), kernel.verdict.to_string());
        let points = kernel.yielding.as_ref().map_or(0, |yielding| yielding.points);
        let json = json!({
            "kernel": name,
            "group": case.group,
            "verdict": verdict,
            "yield_points": points,
        });
        let why = match &kernel.droppable {
            Some(Droppable::Never(reasons)) => {
                reasons.first().map_or_else(String::new, |reason| format!("none: {}", reason.what))
            }
            _ => points.to_string(),
        };
        rows.push(line([&name, case.group, &verdict, &why]), json);
    }
    let mut summary = accepted(corpus)?;
    summary["kernels"] = json!(cases.len());
    summary["refused"] = json!(refused);
    Ok(Outcome {
        about: "Verdicts of kernels of other compilers; `--device cuda` runs them.".to_owned(),
        table: rows.table,
        text_columns: 4,
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

fn builder(bench: &Bench, corpus: &Corpus) -> Result<SchedulerBuilder> {
    let builder = bench.spinning_builder(StaticPriority::new(), SPIN)?;
    Ok(corpus.given_to(builder))
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
                let forms = [Some(&subject.call), subject.yielding.as_ref()];
                for (at, call) in forms.into_iter().enumerate() {
                    let Some(call) = call else { continue };
                    let mut storming = Storming {
                        scheduler: &scheduler,
                        subject: &subject,
                        ticks: &mut ticks,
                        random: &mut random,
                    };
                    let storm = storming.run(call, row.plain(), (stops, launches))?;
                    row.is_equal &= storm.wrong == 0;
                    row.storms[at] = storm;
                }
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
        "points",
        "registers",
        "blocks/SM",
        "stops",
        "urgent p50",
        "urgent p99",
        "with points",
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
                "",
                &of.yields.to_string(),
                &show(times.p50),
                &show(times.p99),
                "",
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
                "began_armed": of.began_armed,
            });
            rows.push(line(cells.map(|cell| cell as &str)), json);
        }
    }
    let over = |least: u64| {
        let least = Duration::from_micros(least);
        kernels.iter().filter(move |row| row.plain() >= least)
    };
    let long = over(300).count();
    let near = |form| {
        let near = over(300).filter(|row| row.ratio_of(form) <= Some(1.05)).count();
        (long > 0).then(|| near as f64 / long as f64)
    };
    let gain = |of_arm: fn(&Beside) -> Option<&Arm>, from: u64, to: u64| {
        let range = Duration::from_micros(from)..Duration::from_micros(to);
        let of = pairs.iter().filter(|pair| range.contains(&pair.task));
        of.filter_map(|pair| pair.gain(of_arm(pair)?)).reduce(f64::min)
    };
    let with_points: fn(&Beside) -> Option<&Arm> = |pair| pair.yielding.as_ref();
    let without: fn(&Beside) -> Option<&Arm> = |pair| Some(&pair.ours);
    let armed: fn(&Beside) -> Option<&Arm> = |pair| pair.yielding.is_some().then_some(&pair.armed);
    let long_tasks = u64::MAX / 1_000_000;
    let slowdown = |pair: &Beside| {
        let ours = [&pair.ours, &pair.armed].into_iter().chain(&pair.yielding);
        ours.filter_map(|arm| arm.slowdown(pair.idle.p50())).reduce(f64::max)
    };
    let slowdowns = pairs.iter().filter_map(slowdown);
    let loses = |row: &&Measured| {
        row.footprint.preemptible.blocks_per_sm < row.footprint.plain.blocks_per_sm
    };
    let mut summary = accepted(corpus)?;
    let more = json!({
        "kernels": kernels.len(),
        "kernels_equal": kernels.iter().filter(|row| row.is_equal).count(),
        "kernels_unstable": unstable.len(),
        "kernels_with_fewer_blocks": kernels.iter().filter(loses).count(),
        "stops_mid_kernel": kernels.iter().map(Measured::stops).sum::<u32>(),
        "geomean_ratio": geometric_mean(kernels.iter().map(Measured::ratio)),
        "geomean_ratio_over_150us": geometric_mean(over(150).map(Measured::ratio)),
        "within_5_percent_over_300us": near(Form::Preemptible),
        "max_ratio": kernels.iter().filter_map(Measured::ratio).reduce(f64::max),
        "geomean_ratio_auto": geometric_mean(kernels.iter().map(|row| row.ratio_of(Form::Default))),
        "geomean_ratio_to_original":
            geometric_mean(kernels.iter().map(|row| ratio(row.forms[1].p50(), row.original.p50()))),
        "kernels_with_yield_points": kernels.iter().filter(|row| row.yield_points > 0).count(),
        "geomean_ratio_yielding":
            geometric_mean(kernels.iter().map(|row| row.ratio_of(Form::Yielding))),
        "geomean_ratio_coarse":
            geometric_mean(kernels.iter().map(|row| row.ratio_of(Form::Coarse))),
        "within_5_percent_over_300us_coarse": near(Form::Coarse),
        "stops_with_yield_points": kernels.iter().map(|row| row.storms[1].stops).sum::<u32>(),
        "stream_priority_over_ours_p99_100us": gain(with_points, 50, 500),
        "stream_priority_over_ours_p99_500us": gain(with_points, 500, long_tasks),
        "stream_priority_over_ours_p99_100us_without_points": gain(without, 50, 500),
        "stream_priority_over_ours_p99_500us_without_points": gain(without, 500, long_tasks),
        "stream_priority_over_armed_p99_100us": gain(armed, 50, 500),
        "stream_priority_over_armed_p99_500us": gain(armed, 500, long_tasks),
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
    use super::beside::{BLOCK, LONG};
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
