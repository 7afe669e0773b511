//! Suites in virtual time.

use super::sharing::assert_coscheduled;
use super::*;

/// What a suite writes in virtual time, which is the same each time.
fn simulated(suite: &str, options: &[&str]) -> Value {
    let options = [&["--device", "sim"], options].concat();
    let [json, again] = [0, 1].map(|_| results(suite, &options));
    assert_eq!(json["device"], "sim");
    assert_eq!((&json["rows"], &json["summary"]), (&again["rows"], &again["summary"]));
    assert_eq!((&json["summary"]["lost"], &json["summary"]["repeated"]), (&0.into(), &0.into()));
    assert_all_ran(&json["summary"]);
    json
}

#[test]
fn pool_repeats_the_figures_of_trem() {
    let json = results("pool", &["--device", "sim", "--quick", "--seed", "7"]);
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 4 * 9 + 4 * 3 + 6);
    for row in rows {
        assert_numbers(row, &["devices", "load", "late", "revocations", "wasted", "utilization"]);
    }
    let summary = &json["summary"];
    let late = [
        "late_first_come",
        "late_elastic",
        "late_elastic_killed",
        "late_elastic_yielding",
        "late_in_time_yielding",
    ];
    let late = late.map(|key| summary[key].as_f64().unwrap());
    assert!(late.is_sorted_by(|more, less| more >= less), "{summary}");
    assert_eq!(summary["wasted_yielding"], 0.0, "{summary}");
    assert!(summary["million"]["tasks"].as_u64() > Some(10_000), "{summary}");
}

#[test]
fn priority_is_simulated() {
    let json = simulated("priority", &[]);
    let rows = json["rows"].as_array().unwrap();
    let names = ["alone", "plain streams", "preempt", "preempt, all preemptible", "ceiling"];
    // Four delays more for each of four victims.
    assert_eq!(rows.len(), (28 + 4 * 4) * names.len());
    for arms in rows.chunks(names.len()) {
        assert_eq!(column(arms, "arm"), names);
        let [alone, plain, ours, preemptible, ceiling] = arms else { panic!("{arms:?}") };
        let time = |row| number(row, "high_p50_us");
        assert_eq!((&plain["yields"], &plain["samples"]), (&0.into(), &1.into()));
        for row in [ours, preemptible] {
            // The worker loop of VA is a little faster than the plain grid, which is the program alone.
            assert!(time(ceiling).max(time(alone)) <= 1.05 * time(row), "{row}");
            // A launch of it fills the device for milliseconds.
            if row["low"] == "NN" && number(row, "delay_over_low_alone") < 1.0 {
                assert!(10.0 * time(row) < 8.0 * time(plain), "{plain} {row}");
            }
        }
        // Its blocks are short, so the form that costs least is a plain grid, which makes room without a yield.
        let is_mid_run = (0.1..1.0).contains(&number(ours, "delay_over_low_alone"));
        if ours["low"] == "NN" && is_mid_run {
            assert_eq!(ours["yields"], 0, "{ours}");
            assert!(number(preemptible, "yields") >= 1.0, "{preemptible}");
        }
    }
    let summary = &json["summary"];
    assert_eq!(summary["pairs"], 28);
    let ours = number(summary, "mean_speedup");
    assert!(1.0 < ours && ours <= number(summary, "mean_ceiling"), "{summary}");
}

#[test]
fn antt_is_simulated() {
    let json = simulated("antt", &[]);
    let summary = &json["summary"];
    assert_eq!((&summary["pairs"], &summary["triples"]), (&28.into(), &28.into()));
    for size in ["pairs", "triples"] {
        let [ours, best] = ["gain", "ceiling"].map(|key| number(summary, &format!("{size}_{key}")));
        assert!(1.0 < ours && ours <= best, "{summary}");
    }
    let other = results("antt", &["--device", "sim", "--seed", "8"]);
    assert_ne!(other["rows"], json["rows"], "other triples");
}

#[test]
fn fairness_is_simulated() {
    let json = simulated("fairness", &["--quick"]);
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 28);
    for row in rows.iter().filter(|row| row["arm"] == "preempt") {
        assert!((0.6..0.75).contains(&number(row, "share")), "{row}");
        // Block-tasks that end after their turn are not charged. Those of PL take half a turn, and the window has few turns.
        let is_long = row["weight_1"] == "PL" || row["weight_2"] == "PL";
        let fair = if is_long { 0.5..0.8 } else { 0.6..0.75 };
        assert!(fair.contains(&number(row, "share_of_work")), "{row}");
        assert!(number(row, "throughput_lost") < 0.1 && number(row, "yields") > 1.0, "{row}");
    }
}

#[test]
fn mix_is_simulated() {
    let json = simulated("mix", &[]);
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3 * 5, "no yields by priority");
    for setting in ["sjf", "random", "group"] {
        let key = format!("{setting}_antt_over_ceiling");
        assert!((0.1..=1.0).contains(&number(&json["summary"], &key)), "{}", json["summary"]);
    }
}

#[test]
fn coschedule_is_simulated() {
    let json = results("coschedule", &["--device", "sim", "--quick"]);
    assert_eq!(json["device"], "sim");
    assert_eq!((&json["summary"]["lost"], &json["summary"]["repeated"]), (&0.into(), &0.into()));
    assert_coscheduled(&json, &["SMs 1/2 : 1/2"], 10);
    let over = number(&json["summary"], "executed_over_plan");
    // Without a clock or a thread, only launches and decisions come on top.
    assert!((0.9..1.3).contains(&over), "{over}");
    // Only the time to plan is of a clock.
    let again = results("coschedule", &["--device", "sim", "--quick"]);
    let of_device = |json: &Value| {
        let rows = json["rows"].as_array().unwrap().iter();
        rows.filter(|row| row.get("timed_tasks").is_none()).cloned().collect::<Vec<_>>()
    };
    assert_eq!(of_device(&json), of_device(&again));
}

#[test]
fn the_simulator_is_as_near_to_what_was_measured_as_it_says() {
    let json = simulated("sim", &[]);
    let (rows, summary) = (json["rows"].as_array().unwrap(), &json["summary"]);
    assert_eq!((rows.len(), &summary["pairs"]), (2 * 72, &72.into()));
    assert!(number(summary, "mean_turnaround_error") <= 0.015, "{summary}");
    assert!(number(summary, "mean_turnaround_error_all_preemptible") <= 0.015, "{summary}");
    assert!(number(summary, "mean_turnaround_error_if_free") > 0.03, "costs count: {summary}");
}
