//! The papers' figures, on their hardware, and the table with ours beside them.

use crate::digits;
use crate::pages::range;
use serde_json::Value;

/// A paper, as headings and labels have it.
pub(crate) const FLEP: &str = "FLEP, K40";
pub(crate) const EFFISHA: &str = "EffiSha, K40m";
pub(crate) const COSCHEDULING: &str = "Eyraud-Dubois and Bentes, P100";
pub(crate) const CHIMERA: &str = "Chimera, simulated Fermi";
pub(crate) const TREM: &str = "TReM, four P1000";

/// FLEP (ASPLOS 2017).
pub(crate) mod flep {
    /// Abstract: what preemptible kernels take longer, in the mean.
    pub const OVERHEAD: f64 = 0.025;
    /// Section 6.4: the part of the overhead that is saved where a kernel gives some SMs instead of all, in the mean and at best.
    pub const SPATIAL_SAVED: f64 = 0.31;
    pub const SPATIAL_SAVED_BEST: f64 = 0.41;
    /// Figure 7: the mean error of predicted durations, and that of the worst program.
    pub const ERROR: f64 = 0.069;
    pub const WORST_ERROR: f64 = 0.122;
    /// Figure 8: how many times faster urgent programs are, in the mean and at best.
    pub const SPEEDUP: f64 = 10.1;
    pub const BEST_SPEEDUP: f64 = 24.2;
    /// Figures 10 and 12: how many times lower ANTT is for pairs and triples; section 6.3.2: for triples, where the
    /// queue is reordered and nothing preempted.
    pub const PAIRS_GAIN: f64 = 8.0;
    pub const TRIPLES_GAIN: f64 = 6.6;
    pub const TRIPLES_GAIN_REORDERED: f64 = 1.023;
    /// Figure 11: what pairs lose in throughput.
    pub const PAIRS_LOSS: f64 = 0.054;
    /// Figure 13: the share of the program of weight 2 beside one of weight 1.
    pub const SHARE: f64 = 2.0 / 3.0;
    /// Figure 14: throughput lost, which is close to what was allowed.
    pub const MAX_OVERHEAD: f64 = 0.10;
}

/// TReM (HPCC 2020).
pub(crate) mod trem {
    /// Section I: user-facing tasks within their SLA at 89 % load, the work that is wasted, and microseconds of a revocation.
    pub const IN_TIME: f64 = 0.98;
    pub const WASTED: f64 = 0.03;
    pub const REVOCATION_US: f64 = 22_000.0;
    /// Section VI.B: tasks that were later than the SLA, where the text has a number.
    pub fn late(mix: &str, arm: &str, load: f64) -> Option<f64> {
        let is_killed = arm.ends_with(", killed");
        let is_plain = matches!(arm, "priority" | "elastic");
        match (mix, load) {
            ("W1", 1.0) if is_killed => Some(0.01),
            ("W1", 2.0) if is_killed => Some(0.02),
            ("W2", 1.0) if is_killed => Some(0.02),
            ("W2", 2.0) if is_killed => Some(0.04),
            ("W1", 1.0) if is_plain => Some(0.07),
            ("W1", 2.0) if is_plain => Some(0.08),
            ("W2", 1.0) if is_plain => Some(0.10),
            _ => None,
        }
    }
}

/// EffiSha (PPoPP 2017).
pub(crate) mod effisha {
    /// Figure 13: what preemptible kernels take longer, in the mean and at worst.
    pub const OVERHEAD: f64 = 0.04;
    pub const WORST_OVERHEAD: f64 = 0.08;
    /// Figure 10: microseconds from the flag until a kernel has left, in the mean and at worst.
    pub const EVICTION_US: f64 = 80.0;
    pub const WORST_EVICTION_US: f64 = 400.0;
    /// Figure 12, for each setting of priorities.
    pub const SETTINGS: [Setting; 3] = [
        Setting { name: "sjf", antt_change: -0.65, stp_gain: 1.8 },
        Setting { name: "random", antt_change: -0.18, stp_gain: 1.35 },
        Setting { name: "group", antt_change: -0.24, stp_gain: 1.42 },
    ];

    /// A setting of priorities.
    pub struct Setting {
        pub name: &'static str,
        /// ANTT by that without preemption, less 1.
        pub antt_change: f64,
        /// STP by that without preemption.
        pub stp_gain: f64,
    }

    /// Figure 15: what scheduling costs, at most.
    pub const MAX_OVERHEAD: f64 = 0.05;
}

/// Preemptive co-scheduling (HiPC 2020).
pub(crate) mod coscheduling {
    /// Section V-C, for each setting.
    pub const SETTINGS: [Setting; 3] = [
        Setting { name: "actual, uniform", below_max_pair: (0.05, 0.07) },
        Setting { name: "actual, weighted", below_max_pair: (0.10, 0.12) },
        Setting { name: "random duration", below_max_pair: (0.03, 0.05) },
    ];

    /// How the durations of tasks are drawn.
    pub struct Setting {
        pub name: &'static str,
        /// How much shorter plans are than MaxPair's.
        pub below_max_pair: (f64, f64),
    }

    /// Figure 8: how much shorter MaxPair's schedules are than sequential ones.
    pub const MAX_PAIR_BELOW_SEQUENTIAL: (f64, f64) = (0.20, 0.30);
    /// Figure 7: preemptions for each task in the worst setting, in the mean and at most.
    pub const PREEMPTIONS: f64 = 0.09;
    pub const MOST_PREEMPTIONS: f64 = 0.12;
}

/// Chimera (ASPLOS 2015).
pub(crate) mod chimera {
    /// Figure 2: microseconds until blocks have left, as estimated, in the mean.
    pub const DRAIN_US: f64 = 830.4;
    pub const SWITCH_US: f64 = 14.5;
    /// Figure 3: the throughput that is lost by that. To drain loses none.
    pub const ESTIMATED_FLUSH_LOST: f64 = 0.307;
    pub const ESTIMATED_SWITCH_LOST: f64 = 0.477;
    /// Figure 6: preemptions that are behind the deadline, with the choice and a limit of 15 µs, and with each technique alone.
    /// Figures 7 and 9 have that limit, too.
    pub const VIOLATIONS: f64 = 0.002;
    pub const VIOLATIONS_DRAIN: f64 = 0.613;
    pub const VIOLATIONS_FLUSH: f64 = 0.073;
    pub const VIOLATIONS_SWITCH: f64 = 0.56;
    /// Figure 7: the throughput lost with the choice, and with each technique alone.
    pub const LOST: f64 = 0.101;
    pub const LOST_DRAIN: f64 = 0.089;
    pub const LOST_FLUSH: f64 = 0.193;
    pub const LOST_SWITCH: f64 = 0.122;
    /// Figure 8 (a): by the limit, in microseconds.
    pub const VIOLATIONS_BY_LIMIT: [(f64, f64); 4] =
        [(5.0, 0.02), (10.0, 0.0108), (15.0, 0.0024), (20.0, 0.0)];
    /// Figure 8 (b): the same of the throughput lost.
    pub const LOST_BY_LIMIT: [(f64, f64); 4] =
        [(5.0, 0.165), (10.0, 0.122), (15.0, 0.1), (20.0, 0.09)];
    /// Figure 9: preemptions that are behind the deadline, where only kernels are dropped that are strictly idempotent, and
    /// where block-tasks are that have done nothing yet that cannot be repeated.
    pub const VIOLATIONS_STRICT: f64 = 0.5;
    pub const VIOLATIONS_RELAXED: f64 = 0.002;
    /// Section 4.4: of all pairs, how many times lower ANTT is than with one kernel at a time, and how much higher STP.
    pub const ANTT_GAIN: f64 = 5.5;
    pub const STP_GAIN: f64 = 0.122;
    /// Figures 10 and 11: the same of the pairs of this program.
    pub const SHOWN: &str = "LUD";
    pub const SHOWN_ANTT_GAIN: f64 = 25.4;
    pub const SHOWN_STP_GAIN: f64 = 0.417;
}

/// The papers' figures, ours, and what they would be if preemption cost nothing: headings, then a line for each.
/// The first column is text. `None` for suites whose papers have none here.
pub fn comparison(results: &Value) -> Option<Vec<Vec<String>>> {
    let summary = Summary(&results["summary"]);
    let (paper, lines) = match results["suite"].as_str()? {
        "priority" => (FLEP, priority(&summary)),
        "antt" => (FLEP, antt(&summary)),
        "fairness" => (FLEP, fairness(&summary, &results["rows"])),
        "prediction" => (FLEP, prediction(&summary)),
        "mix" => (EFFISHA, mix(&summary)),
        "coschedule" => (COSCHEDULING, coschedule(&summary, &results["rows"])),
        "chimera" => (CHIMERA, chimera(&summary, &results["rows"])),
        _ => return None,
    };
    let here = format!("here, {}", results["device"].as_str().unwrap_or("unknown device"));
    let headings = ["", paper, &here, "if preemption were free"].map(str::to_owned).to_vec();
    Some([vec![headings], lines].concat())
}

fn priority(summary: &Summary) -> Vec<Vec<String>> {
    let faster = |what, paper, here, ceiling| {
        line(what, times(paper), summary.tell(here, times), summary.tell(ceiling, times))
    };
    vec![
        faster("urgent program faster, mean", flep::SPEEDUP, "mean_speedup", "mean_ceiling"),
        faster("urgent program faster, best", flep::BEST_SPEEDUP, "best_speedup", "best_ceiling"),
    ]
}

fn antt(summary: &Summary) -> Vec<Vec<String>> {
    let lower = |what, paper, here, ceiling| {
        line(what, times(paper), summary.tell(here, times), summary.tell(ceiling, times))
    };
    let reordered = summary.tell("triples_gain_reordered", times);
    let lost = summary.tell("makespan_lost", percent);
    vec![
        lower("ANTT lower, pairs", flep::PAIRS_GAIN, "pairs_gain", "pairs_ceiling"),
        lower("ANTT lower, triples", flep::TRIPLES_GAIN, "triples_gain", "triples_ceiling"),
        line("ANTT lower, triples reordered", times(flep::TRIPLES_GAIN_REORDERED), reordered, None),
        // The paper's figure is for pairs; ours is of pairs and triples.
        line("throughput lost (here: makespan)", percent(flep::PAIRS_LOSS), lost, nothing()),
    ]
}

fn fairness(summary: &Summary, rows: &Value) -> Vec<Vec<String>> {
    let fair = percent(flep::SHARE);
    let lost = format!("about {}", percent(flep::MAX_OVERHEAD));
    let share = mean_share(rows).map(percent);
    vec![
        line("share of weight 2, mean", fair.clone(), share, Some(fair)),
        line(
            "throughput lost, 10 % allowed",
            lost,
            summary.tell("throughput_lost", percent),
            nothing(),
        ),
    ]
}

fn prediction(summary: &Summary) -> Vec<Vec<String>> {
    let error = |what, paper, here| line(what, paper, summary.tell(here, percent), None);
    vec![
        error("error, mean", percent(flep::ERROR), "mean_error"),
        error("error, worst program", percent(flep::WORST_ERROR), "worst_program_error"),
        error("error of online learning, mean", "-".to_owned(), "online_mean_error"),
    ]
}

fn mix(summary: &Summary) -> Vec<Vec<String>> {
    let settings = effisha::SETTINGS.into_iter().flat_map(|paper| {
        let effisha::Setting { name: setting, antt_change: antt, stp_gain: stp } = paper;
        let of = |key| summary.number(&format!("{setting}_{key}"));
        let (our_antt, our_stp) = (of("antt_change"), of("stp_gain"));
        let free_antt = our_antt.zip(of("antt_over_ceiling"));
        let free_antt = free_antt.map(|(ours, reached)| (1.0 + ours) * reached - 1.0);
        let free_stp = our_stp.zip(of("stp_over_ceiling")).map(|(ours, reached)| ours / reached);
        let names = ["ANTT", "STP"].map(|name| format!("{name}, {setting}"));
        [
            line(&names[0], change(antt), our_antt.map(change), free_antt.map(change)),
            line(&names[1], times(stp), our_stp.map(times), free_stp.map(times)),
        ]
    });
    let paper = format!("< {}", percent(effisha::MAX_OVERHEAD));
    let here = summary.tell("scheduling_overhead", percent);
    settings.chain([line("scheduling overhead", paper, here, nothing())]).collect()
}

/// Ranges are of means: one of each number of tasks, at drawn speeds.
fn coschedule(summary: &Summary, rows: &Value) -> Vec<Vec<String>> {
    let drawn = || {
        let rows = rows.as_array().into_iter().flatten();
        rows.filter(|row| row["speeds"] == "drawn")
    };
    let below = |key: &str, setting: Option<&str>| {
        let of = drawn().filter(|row| setting.is_none_or(|name| row["setting"] == name));
        range(of.filter_map(|row| Some(1.0 - row[key].as_f64()?)))
    };
    let count = |what, paper, key| line(what, percent(paper), summary.tell(key, percent), None);
    let mean = "preemptions_per_task_worst_mean";
    let all = below("max_pair_over_sequential", None).map(from_to);
    let paper = from_to(coscheduling::MAX_PAIR_BELOW_SEQUENTIAL);
    let mut lines = vec![
        count("preemptions per task, worst setting", coscheduling::PREEMPTIONS, mean),
        count(
            "the same, worst number of tasks",
            coscheduling::MOST_PREEMPTIONS,
            "preemptions_per_task_worst",
        ),
        line("MaxPair shorter than sequential", paper, all, None),
    ];
    lines.extend(coscheduling::SETTINGS.into_iter().map(|setting| {
        let coscheduling::Setting { name, below_max_pair } = setting;
        let here = below("over_max_pair", Some(name)).map(from_to);
        line(&format!("plan shorter than MaxPair, {name}"), from_to(below_max_pair), here, None)
    }));
    lines
}

fn chimera(summary: &Summary, rows: &Value) -> Vec<Vec<String>> {
    let part =
        |what, paper, here, free| line(what, percent(paper), summary.tell(here, percent), free);
    let lost = |what, paper, here| part(what, paper, here, nothing());
    let stp = |what, paper, here, free| {
        line(what, change(paper), summary.tell(here, change), summary.tell(free, change))
    };
    let antt = |what, paper, here, free| {
        line(what, times(paper), summary.tell(here, times), summary.tell(free, times))
    };
    let shown = (chimera::SHOWN_ANTT_GAIN, chimera::SHOWN_STP_GAIN);
    let late = |arm, paper| {
        let here = mean_late(rows, arm).map(percent);
        line(&format!("tasks behind their deadline, {arm}"), percent(paper), here, nothing())
    };
    let micros = |value: f64| format!("{} µs", digits(value));
    let estimated = |what, tell: fn(f64) -> String, paper, here| {
        // Older results have no estimates.
        Some(line(what, tell(paper), Some(summary.tell(here, tell)?), None))
    };
    let mut lines = vec![
        lost("violations of 15 µs, or `limit_us`", chimera::VIOLATIONS, "violations_mean"),
        lost("throughput lost, choice", chimera::LOST, "throughput_lost_mean"),
        lost("throughput lost, drain", chimera::LOST_DRAIN, "throughput_lost_drain"),
        lost("throughput lost, flush", chimera::LOST_FLUSH, "throughput_lost_flush"),
        lost("throughput lost, switch", chimera::LOST_SWITCH, "throughput_lost_switch"),
        antt("ANTT lower, all pairs", chimera::ANTT_GAIN, "antt_gain", "antt_ceiling"),
        stp("STP, all pairs", chimera::STP_GAIN, "stp_gain", "stp_ceiling"),
        antt("ANTT lower, pairs of LUD", shown.0, "lud_antt_gain", "lud_antt_ceiling"),
        stp("STP, pairs of LUD", shown.1, "lud_stp_gain", "lud_stp_ceiling"),
        late("choice", chimera::VIOLATIONS),
        late("drain", chimera::VIOLATIONS_DRAIN),
        late("flush", chimera::VIOLATIONS_FLUSH),
        late("switch", chimera::VIOLATIONS_SWITCH),
    ];
    let estimates = [
        estimated("estimated time to drain", micros, chimera::DRAIN_US, "estimated_drain_us"),
        estimated(
            "to switch with all registers",
            micros,
            chimera::SWITCH_US,
            "estimated_context_us",
        ),
        estimated(
            "estimated loss by flush",
            percent,
            chimera::ESTIMATED_FLUSH_LOST,
            "estimated_flush_lost",
        ),
        estimated(
            "by switch with all registers",
            percent,
            chimera::ESTIMATED_SWITCH_LOST,
            "estimated_context_lost",
        ),
    ];
    lines.extend(estimates.into_iter().flatten());
    lines
}

/// A suite's results in a few figures.
struct Summary<'a>(&'a Value);

impl Summary<'_> {
    fn number(&self, key: &str) -> Option<f64> {
        self.0[key].as_f64()
    }

    fn tell(&self, key: &str, how: fn(f64) -> String) -> Option<String> {
        self.number(key).map(how)
    }
}

/// The share of tasks behind their deadline beside a program, in the mean, with the limit of the summary.
fn mean_late(rows: &Value, arm: &str) -> Option<f64> {
    let of_drain = |row: &&Value| row["arm"] == "drain" && row.get("late").is_some();
    let rows = rows.as_array()?;
    let limit = &rows.iter().find(of_drain)?["limit_us"];
    let of_arm = rows.iter().filter(|row| row["arm"] == arm && row["limit_us"] == *limit);
    let shares: Vec<f64> = of_arm.filter_map(|row| row["late"].as_f64()).collect();
    (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
}

/// What the policy gave the program of weight 2, with what FLEP allows to be lost.
fn mean_share(rows: &Value) -> Option<f64> {
    let rows = rows.as_array()?.iter();
    let of_ours = rows.filter(|row| row["max_overhead"].as_f64() == Some(flep::MAX_OVERHEAD));
    let shares: Vec<f64> = of_ours.filter_map(|row| row["share"].as_f64()).collect();
    (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
}

fn times(value: f64) -> String {
    digits(value) + "x"
}

fn percent(value: f64) -> String {
    format!("{:.1} %", 100.0 * value)
}

fn from_to((least, most): (f64, f64)) -> String {
    format!("{:.1} to {}", 100.0 * least, percent(most))
}

fn change(value: f64) -> String {
    format!("{:+.1} %", 100.0 * value)
}

/// What is lost where preemption is free.
fn nothing() -> Option<String> {
    Some(percent(0.0))
}

fn line(what: &str, paper: String, here: Option<String>, ceiling: Option<String>) -> Vec<String> {
    let told = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    vec![what.to_owned(), paper, told(here), told(ceiling)]
}
