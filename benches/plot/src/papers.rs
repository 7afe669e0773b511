//! The papers' figures, on their hardware, and the table with ours beside them.

use preempt_record::digits;
use serde_json::Value;

/// A paper, as headings and labels have it.
pub(crate) const FLEP: &str = "FLEP, K40";
pub(crate) const EFFISHA: &str = "EffiSha, K40m";

/// FLEP (ASPLOS 2017).
pub(crate) mod flep {
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

/// EffiSha (PPoPP 2017).
pub(crate) mod effisha {
    /// Figure 12, for each setting of priorities: ANTT to that without preemption, less one, and STP to that.
    pub const SETTINGS: [(&str, f64, f64); 3] =
        [("sjf", -0.65, 1.8), ("random", -0.18, 1.35), ("group", -0.24, 1.42)];
    /// Figure 15: what scheduling costs, at most.
    pub const MAX_OVERHEAD: f64 = 0.05;
}

/// The papers' figures, ours, and what they would be if preemption cost nothing: headings, then a line for each.
/// The first column is text. `None` for suites whose papers have none here.
pub fn comparison(results: &Value) -> Option<Vec<Vec<String>>> {
    let summary = |key: &str| results["summary"][key].as_f64();
    let times = |value: f64| digits(value) + "x";
    let percent = |value: f64| format!("{:.1} %", 100.0 * value);
    let change = |value: f64| format!("{:+.1} %", 100.0 * value);
    let (paper, lines) = match results["suite"].as_str()? {
        "priority" => {
            let speedup = |what, paper, here, ceiling| {
                line(what, times(paper), summary(here).map(times), summary(ceiling).map(times))
            };
            let mean = "urgent program faster, mean";
            let best = "urgent program faster, best";
            (
                FLEP,
                vec![
                    speedup(mean, flep::SPEEDUP, "mean_speedup", "mean_ceiling"),
                    speedup(best, flep::BEST_SPEEDUP, "best_speedup", "best_ceiling"),
                ],
            )
        }
        "antt" => {
            let gain = |what, paper, here, ceiling| {
                line(what, times(paper), summary(here).map(times), summary(ceiling).map(times))
            };
            let reordered = summary("triples_gain_reordered").map(times);
            let lost = summary("makespan_lost").map(percent);
            (
                FLEP,
                vec![
                    gain("ANTT lower, pairs", flep::PAIRS_GAIN, "pairs_gain", "pairs_ceiling"),
                    gain(
                        "ANTT lower, triples",
                        flep::TRIPLES_GAIN,
                        "triples_gain",
                        "triples_ceiling",
                    ),
                    line(
                        "ANTT lower, triples reordered",
                        times(flep::TRIPLES_GAIN_REORDERED),
                        reordered,
                        None,
                    ),
                    line(
                        "throughput lost (here: makespan)",
                        percent(flep::PAIRS_LOSS),
                        lost,
                        Some(percent(0.0)),
                    ),
                ],
            )
        }
        "fairness" => {
            let share = mean_share(&results["rows"]).map(percent);
            let lost = summary("throughput_lost").map(percent);
            let paper_lost = format!("about {}", percent(flep::MAX_OVERHEAD));
            (
                FLEP,
                vec![
                    line(
                        "share of weight 2, mean",
                        percent(flep::SHARE),
                        share,
                        Some(percent(flep::SHARE)),
                    ),
                    line("throughput lost, 10 % allowed", paper_lost, lost, Some(percent(0.0))),
                ],
            )
        }
        "prediction" => {
            let error = |what, paper: Option<f64>, here| {
                let paper = paper.map_or_else(|| "-".to_owned(), percent);
                line(what, paper, summary(here).map(percent), None)
            };
            (
                FLEP,
                vec![
                    error("error, mean", Some(flep::ERROR), "mean_error"),
                    error("error, worst program", Some(flep::WORST_ERROR), "worst_program_error"),
                    error("error of online learning, mean", None, "online_mean_error"),
                ],
            )
        }
        "mix" => {
            let mut lines = Vec::new();
            for (setting, antt, stp) in effisha::SETTINGS {
                let of = |key| summary(&format!("{setting}_{key}"));
                let here = of("antt_change");
                let free = here.zip(of("antt_over_ceiling"));
                let free = free.map(|(here, reached)| (1.0 + here) * reached - 1.0);
                let what = format!("ANTT, {setting}");
                lines.push(line(&what, change(antt), here.map(change), free.map(change)));
                let here = of("stp_gain");
                let free = here.zip(of("stp_over_ceiling")).map(|(here, reached)| here / reached);
                let what = format!("STP, {setting}");
                lines.push(line(&what, times(stp), here.map(times), free.map(times)));
            }
            let paper = format!("< {}", percent(effisha::MAX_OVERHEAD));
            let here = summary("scheduling_overhead").map(percent);
            lines.push(line("scheduling overhead", paper, here, Some(percent(0.0))));
            (EFFISHA, lines)
        }
        _ => return None,
    };
    let here = format!("here, {}", results["device"].as_str().unwrap_or("unknown device"));
    let headings = ["", paper, &here, "if preemption were free"].map(str::to_owned).to_vec();
    Some([vec![headings], lines].concat())
}

/// What the policy gave the program of weight 2, with what FLEP allows to be lost.
fn mean_share(rows: &Value) -> Option<f64> {
    let rows = rows.as_array()?.iter();
    let of_ours = rows.filter(|row| row["max_overhead"].as_f64() == Some(flep::MAX_OVERHEAD));
    let shares: Vec<f64> = of_ours.filter_map(|row| row["share"].as_f64()).collect();
    (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
}

fn line(what: &str, paper: String, here: Option<String>, ceiling: Option<String>) -> Vec<String> {
    let told = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    vec![what.to_owned(), paper, told(here), told(ceiling)]
}
