//! What scheduling makes of preemption: the papers' experiments, and the simulator beside them.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::markdown::{Table, change, percent, range};
use super::results::{Folder, Results};
use crate::{digits, papers, time};

/// The paper's figures and ours.
pub(super) fn compared(results: &Results) -> Result<String> {
    let lines = papers::comparison(results.value());
    let told = || format!("{}: the papers have nothing to compare with", results.file);
    Ok(Table::of(lines.with_context(told)?).text())
}

#[derive(Deserialize)]
struct Pair {
    low: String,
    high: String,
    arm: String,
    delay_over_low_alone: f64,
    high_p50_us: f64,
    yields: u32,
}

pub fn priority(folder: &Folder) -> Result<String> {
    let results = folder.get("priority-gpu")?;
    let rows: Vec<Pair> = results.rows()?;
    let of = |arm: &'static str| rows.iter().filter(move |row| row.arm == arm);
    // In the other form a launch makes room without a yield.
    let at_once = || of("preempt, all preemptible").filter(|row| row.delay_over_low_alone == 0.0);
    ensure!(at_once().next().is_some(), "{}: no row is all preemptible", results.file);
    let unseen = at_once().filter(|row| row.yields == 0).count();
    // The long program runs when the urgent one comes.
    let later = || of("preempt").filter(|row| (0.1..1.0).contains(&row.delay_over_low_alone));
    let longer_than = |arm: &str| {
        let of = |row: &Pair| {
            let key = |row: &Pair| (row.low.clone(), row.high.clone(), row.delay_over_low_alone);
            let other = rows.iter().find(|other| other.arm == arm && key(other) == key(row))?;
            Some(row.high_p50_us - other.high_p50_us)
        };
        let range = range(later().filter_map(of));
        range.with_context(|| format!("{}: no `{arm}` with a delay", results.file))
    };
    let ((least, most), priorities) = (longer_than("alone")?, longer_than("stream priorities")?);
    Ok(format!(
        "A short urgent program beside a long one: {} pairs.\n\n{}\nWith all launches preemptible, urgent programs \
         are {}x faster in the mean. With CUDA's stream priorities they take {:.2} times as long as with preempt \
         (geometric mean), {:.2} times in the pair that suits stream priorities best. Both programs are submitted one \
         right after the other. In {unseen} pairs nothing ever yields even if all launches are preemptible, because \
         the scheduler sees the urgent program before it has launched the long one.\n\nAn urgent program that comes \
         while the long one runs takes {} to {} µs longer than alone. To stream priorities the difference is {} to {} \
         µs. Most of it is the processor's, and differs between machines of the same kind: the scheduler takes the \
         submission in, decides, signals where it has to, and launches with cold caches.\n\n{}",
        results.number("pairs")?,
        compared(&results)?,
        digits(results.number("mean_speedup_all_preemptible")?),
        results.number("mean_vs_stream_priority")?,
        results.number("worst_vs_stream_priority")?,
        digits(least),
        digits(most),
        digits(priorities.0),
        digits(priorities.1),
        results.source(),
    ))
}

pub fn antt(folder: &Folder) -> Result<String> {
    let results = folder.get("antt-gpu")?;
    Ok(format!(
        "Programs of equal priority, one right after the other: {} pairs and {} triples.\n\n{}\nWith all launches \
         preemptible, ANTT is {} and {} times lower (pairs, triples), and makespans are {} longer: what preemptible \
         kernels cost. The shortest programs first, by CUDA's stream priorities, lower ANTT {} and {} times.\n\n{}",
        results.number("pairs")?,
        results.number("triples")?,
        compared(&results)?,
        digits(results.number("pairs_gain_all_preemptible")?),
        digits(results.number("triples_gain_all_preemptible")?),
        percent(results.number("makespan_lost_all_preemptible")?),
        digits(results.number("pairs_gain_stream_priorities")?),
        digits(results.number("triples_gain_stream_priorities")?),
        results.source(),
    ))
}

/// A pair of `fairness` in one arm.
#[derive(Deserialize)]
struct Shared {
    max_overhead: Option<f64>,
    share_of_work: Option<f64>,
}

pub fn fairness(folder: &Folder) -> Result<String> {
    let results = folder.get("fairness-gpu")?;
    let lost = &results.value()["summary"]["throughput_lost_by_max_overhead_percent"];
    let lost = lost.as_object().context("fairness: no losses by what is allowed")?;
    let mut lost: Vec<(f64, f64)> = lost
        .iter()
        .filter_map(|(allowed, lost)| Some((allowed.parse().ok()?, lost.as_f64()?)))
        .collect();
    ensure!(!lost.is_empty(), "fairness: no losses by what is allowed");
    lost.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut table = Table::new(["throughput that may be lost", "lost, mean"]);
    for (allowed, lost) in lost {
        table.row([format!("{allowed} %"), percent(lost)]);
    }
    let by_work: Vec<f64> = results
        .rows_with::<Shared>("max_overhead")?
        .into_iter()
        .filter(|row| row.max_overhead == Some(0.1))
        .filter_map(|row| Some(100.0 * (row.share_of_work? - 2.0 / 3.0).abs()))
        .collect();
    let (_, worst) = range(by_work.iter().copied()).context("fairness: no shares of work")?;
    Ok(format!(
        "Two programs in endless loops, with weights of 2 and 1, under `Ffs`: {} pairs.\n\n{}\nThe worst pair is {:.1} \
         points off its share of SM time, the mean {:.2}; off its share of the work, which also has what block-tasks do that end \
         after their turn, {worst:.1} and {:.1}.\n\n{}\n{}",
        results.number("pairs")?,
        compared(&results)?,
        results.number("share_error_points")?,
        results.number("share_error_points_mean")?,
        by_work.iter().sum::<f64>() / by_work.len() as f64,
        table.text(),
        results.source(),
    ))
}

#[derive(Deserialize)]
struct Predicted {
    program: String,
    shortest_us: f64,
    longest_us: f64,
    mean_error: f64,
    max_error: f64,
    online_mean_error: f64,
}

pub fn prediction(folder: &Folder) -> Result<String> {
    let results = folder.get("prediction-gpu")?;
    let mut table =
        Table::new(["program", "shortest", "longest", "error, mean", "largest", "online, mean"]);
    for row in results.rows::<Predicted>()? {
        table.row([
            row.program,
            time(row.shortest_us),
            time(row.longest_us),
            percent(row.mean_error),
            percent(row.max_error),
            percent(row.online_mean_error),
        ]);
    }
    Ok(format!(
        "How far predicted durations are from true ones, for inputs of random sizes.\n\n{}\n{}\n{}",
        compared(&results)?,
        table.text(),
        results.source(),
    ))
}

#[derive(Deserialize)]
struct Mix {
    setting: String,
    arm: String,
    antt: f64,
    stp: f64,
    makespan_p50_us: Option<f64>,
}

#[derive(Deserialize)]
struct Yields {
    wait_ms: u32,
    yields_by_priority: Vec<u32>,
}

pub fn mix(folder: &Folder) -> Result<String> {
    let results = folder.get("mix-gpu")?;
    let mut arms = Table::new(["setting", "arm", "ANTT", "STP", "makespan"]);
    for Mix { setting, arm, antt, stp, makespan_p50_us } in results.rows_with("setting")? {
        let makespan = makespan_p50_us.map_or_else(|| "-".to_owned(), time);
        arms.row([setting, arm, digits(antt), digits(stp), makespan]);
    }
    let mut yields = Table::new(["wait after a run", "yields of priorities 1 to 9"]);
    for Yields { wait_ms, yields_by_priority } in results.rows_with("wait_ms")? {
        let yields_by_priority: Vec<_> = yields_by_priority.iter().map(u32::to_string).collect();
        yields.row([format!("{wait_ms} ms"), yields_by_priority.join(", ")]);
    }
    Ok(format!(
        "EffiSha's eleven programs, one after the other at intervals. With random priorities ANTT is high for any policy \
         that keeps to them, since long programs come before short ones.\n\n{}\n{}\n{}\n{}",
        compared(&results)?,
        arms.text(),
        yields.text(),
        results.source(),
    ))
}

pub fn sim(folder: &Folder) -> Result<String> {
    let results = folder.get("sim-gpu")?;
    let again = folder.get("sim-sim")?;
    let identical = results.value()["summary"]["replays_identical"].as_bool();
    let identical = identical.context("sim: no `replays_identical`")?;
    Ok(format!(
        "A recording of {} decisions of a run on the GPU was decided again, and gave {} decisions. Simulated turnarounds \
         of {} pairs of `priority` and `antt` are off by {} in the mean, and by {} in the worst pair; where all launches \
         are preemptible, by {} in the mean. The simulator of this commit is off by {}, which \
         `preempt-bench sim --device sim` says of the same pairs. The worst ones are those of urgent PL: its few blocks \
         share SMs with those of the other program, which slow them down.\n\n{}\n\n{}",
        super::markdown::count(results.number("decisions")?),
        if identical { "the same" } else { "OTHER" },
        results.number("pairs")?,
        percent(results.number("mean_turnaround_error")?),
        percent(results.number("max_turnaround_error")?),
        percent(results.number("mean_turnaround_error_all_preemptible")?),
        percent(again.number("mean_turnaround_error")?),
        results.source(),
        again.source(),
    ))
}

/// Figures of a suite on the GPU and in virtual time.
struct Beside {
    suite: &'static str,
    what: &'static str,
    measured: &'static str,
    ceiling: Option<Ceiling>,
    told: fn(f64) -> String,
}

/// The ceiling's figure, as summaries have it.
#[derive(Clone, Copy)]
enum Ceiling {
    /// With this key.
    Is(&'static str),
    /// ANTT that has changed by the measured figure is this many times the ceiling's.
    AnttTimes(&'static str),
}

const BESIDE: [Beside; 7] = [
    Beside {
        suite: "priority",
        what: "urgent program faster, mean",
        measured: "mean_speedup",
        ceiling: Some(Ceiling::Is("mean_ceiling")),
        told: factor,
    },
    Beside {
        suite: "antt",
        what: "ANTT lower, pairs",
        measured: "pairs_gain",
        ceiling: Some(Ceiling::Is("pairs_ceiling")),
        told: factor,
    },
    Beside {
        suite: "antt",
        what: "ANTT lower, triples",
        measured: "triples_gain",
        ceiling: Some(Ceiling::Is("triples_ceiling")),
        told: factor,
    },
    Beside {
        suite: "mix",
        what: "ANTT, shortest job first",
        measured: "sjf_antt_change",
        ceiling: Some(Ceiling::AnttTimes("sjf_antt_over_ceiling")),
        told: change,
    },
    Beside {
        suite: "mix",
        what: "ANTT, random priorities",
        measured: "random_antt_change",
        ceiling: Some(Ceiling::AnttTimes("random_antt_over_ceiling")),
        told: change,
    },
    Beside {
        suite: "mix",
        what: "ANTT, priorities in groups",
        measured: "group_antt_change",
        ceiling: Some(Ceiling::AnttTimes("group_antt_over_ceiling")),
        told: change,
    },
    Beside {
        suite: "fairness",
        what: "throughput lost, 10 % allowed",
        measured: "throughput_lost",
        ceiling: None,
        told: percent,
    },
];

/// How far simulated turnarounds of an arm are from those that were measured, by the latter; ascending.
fn errors(folder: &Folder, suite: &str, arm: &str) -> Result<Vec<f64>> {
    const KEYS: [&str; 5] = ["arm", "low", "high", "delay_over_low_alone", "programs"];
    const TIMES: [&str; 3] = ["low_p50_us", "high_p50_us", "turnaround_p50_us"];
    let get = |name: &str| folder.get(&format!("{suite}-{name}"));
    let (measured, simulated) = (get("gpu")?, get("sim")?);
    let rows = |results: &Results| results.value()["rows"].as_array().cloned().unwrap_or_default();
    let simulated = rows(&simulated);
    let mut errors = Vec::new();
    for row in rows(&measured).iter().filter(|row| row["arm"] == arm) {
        let is_it = |other: &&Value| KEYS.iter().all(|&key| other[key] == row[key]);
        let other = simulated.iter().find(is_it);
        let other = other.with_context(|| format!("`{suite}`: {row} was not simulated"))?;
        for key in TIMES {
            let times = |of: &Value| match &of[key] {
                Value::Array(times) => times.iter().filter_map(Value::as_f64).collect::<Vec<_>>(),
                time => time.as_f64().into_iter().collect(),
            };
            let (took, told) = (times(row), times(other));
            ensure!(took.len() == told.len(), "`{suite}`: {row} and {other} differ in `{key}`");
            errors.extend(took.iter().zip(told).map(|(took, told)| (told / took - 1.0).abs()));
        }
    }
    ensure!(!errors.is_empty(), "`{suite}`: no row is of `{arm}`");
    errors.sort_by(f64::total_cmp);
    Ok(errors)
}

pub fn simulated(folder: &Folder) -> Result<String> {
    let mut table = Table::new(["", "measured", "its ceiling", "`--device sim`", "its ceiling"]);
    for Beside { suite, what, measured, ceiling, told } in &BESIDE {
        let cells = |name: &str| -> Result<[String; 2]> {
            let results = folder.get(&format!("{suite}-{name}"))?;
            let figure = results.number(measured)?;
            let ceiling = match ceiling {
                None => 0.0,
                Some(Ceiling::Is(key)) => results.number(key)?,
                Some(Ceiling::AnttTimes(key)) => (1.0 + figure) * results.number(key)? - 1.0,
            };
            Ok([told(figure), told(ceiling)])
        };
        let ([gpu, its_ceiling], [sim, sims_ceiling]) = (cells("gpu")?, cells("sim")?);
        table.row([format!("`{suite}`: {what}"), gpu, its_ceiling, sim, sims_ceiling]);
    }
    let mut off = Table::new(["turnarounds", "off by, median", "mean", "at most"]);
    for suite in ["priority", "antt"] {
        for arm in ["preempt", "preempt, all preemptible"] {
            let errors = errors(folder, suite, arm)?;
            let mean = errors.iter().sum::<f64>() / errors.len() as f64;
            let (median, most) = (errors[errors.len() / 2], errors[errors.len() - 1]);
            let [median, mean, most] = [median, mean, most].map(percent);
            off.row([format!("`{suite}`, {arm}"), median, mean, most]);
        }
    }
    let mut sources = String::new();
    for suite in ["priority", "antt", "mix", "fairness"] {
        sources += &format!("{}\n", folder.get(&format!("{suite}-sim"))?.source());
    }
    Ok(format!(
        "The same suites in virtual time, on a model of an H200, with the launches and costs that the suite `sim` \
         measured. With priorities in groups and at random, much hangs on one short program, Scan: a few microseconds \
         decide whether it waits for the other queue.\n\n{}\n{}\nThe model has no programs side by side on an SM, and a \
         host that is as fast after a pause as before. Urgent programs of many short kernels suffer most from both \
         (CFD, PL). On the GPU the arms before those of the scheduler are raw launches, after which its code and its \
         path to the device are in no cache; the suite `sim` has no such arms.\n\n{sources}",
        table.text(),
        off.text(),
    ))
}

fn factor(value: f64) -> String {
    digits(value) + "x"
}

/// A row as the table of decisions has it; the engine's suite uses no device.
#[derive(Deserialize)]
struct Decision {
    policy: String,
    launches: String,
    waiting: f64,
    events_per_s: f64,
    event_p50_us: f64,
    event_p99_us: f64,
    decision_p50_us: f64,
    decision_p99_us: f64,
    allocations_per_event: Value,
}

pub fn engine(folder: &Folder) -> Result<String> {
    let results = folder.get("engine-cpu")?;
    let mut table = Table::new([
        "policy",
        "launches",
        "waiting",
        "events per second",
        "event p50",
        "p99",
        "decision p50",
        "p99",
        "allocations per event",
    ]);
    for row in results.rows::<Decision>()? {
        table.row([
            row.policy,
            row.launches,
            super::markdown::count(row.waiting),
            super::markdown::count(row.events_per_s),
            time(row.event_p50_us),
            time(row.event_p99_us),
            time(row.decision_p50_us),
            time(row.decision_p99_us),
            row.allocations_per_event.to_string(),
        ]);
    }
    Ok(format!(
        "The time that the engine and a policy take for a decision. An event is a launch that arrives, or a cohort that \
         is out.\n\n{}\n{}",
        table.text(),
        results.source(),
    ))
}
