//! Each suite, with little work. No times are asserted: machines differ.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;

use serde_json::{Value, json};

mod command_line;
mod sharing;
mod simulated;

fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_preempt-bench"));
    // Where files may be left.
    command.current_dir(env!("CARGO_TARGET_TMPDIR")).args(args).output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What `--quick` writes of a suite, with what holds for all suites checked.
fn quick(suite: &str) -> Value {
    quick_of(suite, &[])
}

/// The same with options.
fn quick_of(suite: &str, options: &[&str]) -> Value {
    let json = quick_with(suite, options);
    assert_eq!((&json["summary"]["lost"], &json["summary"]["repeated"]), (&0.into(), &0.into()));
    json
}

fn quick_with(suite: &str, options: &[&str]) -> Value {
    results(suite, &[&["--device", "cpu", "--quick", "--seed", "7"], options].concat())
}

fn results(suite: &str, options: &[&str]) -> Value {
    // No two tests write the same file.
    let file = format!("{}.json", thread::current().name().unwrap_or(suite));
    let output = run(&[&[suite, "--out", &file], options].concat());
    assert!(output.status.success(), "{}", errors(&output));
    assert_eq!(errors(&output), "", "no progress where there is no terminal");
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(file);
    let json: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(json["suite"], suite);
    assert!(json["driver"].is_null());
    assert!(json.as_object().unwrap().contains_key("commit"));
    for key in ["device", "hardware", "date", "command"] {
        assert!(json[key].is_string(), "{key}");
    }
    // A heading and a line for each row, between empty lines.
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_full = |line: &&str| !line.is_empty();
    let lines = table.lines().skip_while(is_full).skip(1).take_while(is_full);
    assert_eq!(lines.count(), 1 + json["rows"].as_array().unwrap().len(), "{table}");
    json
}

fn assert_numbers(object: &Value, keys: &[&str]) {
    for key in keys {
        assert!(object[key].is_number(), "{key} in {object}");
    }
}

#[test]
fn storm_loses_and_repeats_nothing() {
    let json = quick("storm");
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for row in &rows[..4] {
        assert!(row["yields"].as_u64() >= Some(20) && row["resumes"].as_u64() >= Some(20));
        assert!(row["block_tasks"].as_u64() >= Some(6 * 12_000));
    }
    for technique in ["drops", "switches", "drains"] {
        assert!(rows[2][technique].as_u64() > Some(0), "{technique} in {}", rows[2]);
    }
    assert_eq!(rows[4]["kernels"], 40, "20 that are cancelled or not, with an urgent one each");
    assert_eq!((&rows[5]["kernels"], &rows[5]["on_excluded_sm"]), (&6.into(), &0.into()));
    for row in rows {
        assert_eq!((&row["lost"], &row["repeated"]), (&0.into(), &0.into()), "{row}");
    }
    let keys = ["block_tasks", "yields", "resumes", "cancelled", "lost", "repeated", "seconds"];
    assert_numbers(&json["summary"], &keys);
    assert_numbers(&json["summary"], &["drops", "switches", "drains"]);
    assert!(json["summary"]["yields_mid_kernel"].as_u64() >= Some(60));
    for key in ["tasks_wrong", "tasks_on_excluded_sm"] {
        assert_eq!(json["summary"][key], 0, "{key}");
    }
}

#[test]
fn a_soak_does_everything_and_is_right() {
    let json = quick_with("soak", &[]);
    let keys = ["operations", "programs", "cancelled", "panics", "yields", "tasks"];
    for key in keys {
        assert!(json["summary"][key].as_u64() > Some(0), "{key} in {}", json["summary"]);
    }
    assert_eq!(json["summary"]["wrong"], 0);
    assert!(json["summary"]["dropped"].is_number());
    assert_eq!(json["rows"].as_array().unwrap().len(), 2);
}

#[test]
fn latency_has_three_arms_for_each_case() {
    let json = quick("latency");
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4 * 2 * 3);
    for arms in rows.chunks(3) {
        let names: Vec<_> = arms.iter().map(|row| row["arm"].as_str().unwrap()).collect();
        assert_eq!(names, ["alone", "submission order", "preempt"]);
        let samples: Vec<_> = arms.iter().map(|row| row["samples"].as_u64().unwrap()).collect();
        assert_eq!(samples, [10, 1, 10]);
        for row in arms {
            assert_numbers(row, &["block_task_us", "p50_us", "p99_us", "max_us", "p50_to_alone"]);
            assert!(row["urgent"].is_string());
        }
        assert!(arms[0]["batch_yields"].is_null());
        assert_eq!(arms[1]["batch_yields"], 0, "equal priorities do not preempt each other");
        assert_numbers(&arms[2], &["batch_yields"]);
    }
    let summary = &json["summary"];
    assert!(summary["yields"].as_u64() > Some(0));
    assert!(summary["block_tasks"].as_u64() > Some(1000));
    assert_eq!(summary["cases"].as_array().unwrap().len(), 8);
    let keys = ["alone_p99_us", "submission_order_p99_us", "preempt_p99_us"];
    summary["cases"].as_array().unwrap().iter().for_each(|case| assert_numbers(case, &keys));
}

#[test]
fn launch_measures_both_sides() {
    let json = quick("launch");
    let rows = json["rows"].as_array().unwrap();
    let samples: Vec<_> = rows.iter().map(|row| row["samples"].as_u64().unwrap()).collect();
    assert_eq!(samples, [200, 200, 2000, 2, 10, 10, 10]);
    rows.iter().for_each(|row| assert_numbers(row, &["p50_us", "p99_us", "max_us"]));
    assert_eq!(json["summary"]["kernels"], 3700);
    assert_eq!(json["summary"]["block_tasks"], 3700);
    let keys = [
        "program_over_launches",
        "submit_p50_us",
        "done_p50_us",
        "stream_submit_p50_us",
        "stream_per_kernel_p50_us",
    ];
    assert_numbers(&json["summary"], &keys);
}

#[test]
fn foreign_judges_its_kernels_where_there_is_no_gpu() {
    let json = quick_with("foreign", &[]);
    let summary = &json["summary"];
    assert_eq!((&summary["kernels"], &summary["refused"]), (&18.into(), &0.into()));
    assert!(summary["candle_accepted"].is_null(), "without a corpus");
    let rows = json["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["verdict"].as_str().unwrap().contains("EarlyExit")));
    let output = run(&["foreign", "--quick", "--corpus", "no/such/folder"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("benches/corpus/build.py"), "{}", errors(&output));
}

#[test]
fn armed_programs_run_once_and_stand_beside_others() {
    let json = quick("armed");
    let summary = &json["summary"];
    assert_eq!((&summary["lost"], &summary["repeated"]), (&0.into(), &0.into()));
    assert!(summary["began_armed"].as_u64() > Some(0), "{summary}");
    assert!(summary["changed"].as_u64() > Some(0) && summary["cancelled"].is_u64(), "{summary}");
    assert_numbers(summary, &["victim_beside_four", "launch_beside_four"]);
    let rows = json["rows"].as_array().unwrap();
    let victims: Vec<_> = rows.iter().filter(|row| row["what"] == "victim").collect();
    assert_eq!(victims.len(), 4);
}

/// Some programs; all of them are a step of their own in `.ci/run`.
const PROGRAMS: [&str; 6] = ["--program", "VA", "--program", "Scan", "--program", "BFS"];

#[test]
fn verify_runs_each_program_in_four_modes() {
    let json = quick_with("verify", &PROGRAMS);
    let rows = json["rows"].as_array().unwrap();
    let modes: Vec<_> = rows.iter().map(|row| row["mode"].as_str().unwrap()).collect();
    let four = ["plain", "plain, in a storm", "preemptible", "preemptible, in a storm"];
    assert_eq!(modes, [four, four, four].concat());
    for row in rows {
        assert_eq!(row["right"], true, "{row}");
        let is_preempted = row["mode"] == four[3];
        // What it counts to be enough: one yield can make room for more than one later cohort.
        assert_eq!(row["resumes"].as_u64() >= Some(3), is_preempted, "{row}");
    }
    assert_eq!(
        (&json["summary"]["kernels"], &json["summary"]["kernels_right"]),
        (&3.into(), &3.into())
    );
}

#[test]
fn overhead_compares_both_kinds_of_launch() {
    let json = quick_with("overhead", &PROGRAMS);
    let rows = json["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["program"].as_str().unwrap()).collect();
    assert_eq!(names, ["VA", "Scan", "BFS"]);
    for row in rows {
        assert_numbers(row, &["plain_p50_us", "p50_us", "p50_to_plain"]);
        assert!(row["amortize"].as_u64() > Some(0), "{row}");
    }
    assert_numbers(&json["summary"], &["geomean_ratio", "max_ratio"]);
}

#[test]
fn prediction_has_both_errors_of_each_program() {
    let options =
        ["--program", "MM", "--program", "VA", "--program", "Scan", "--svg", "prediction.svg"];
    let json = quick_with("prediction", &options);
    let rows = json["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["program"].as_str().unwrap()).collect();
    assert_eq!(names, ["MM", "VA"], "the sizes of others do not vary");
    for row in rows {
        assert_eq!((&row["training_inputs"], &row["test_inputs"]), (&8.into(), &4.into()));
        let keys = ["shortest_us", "longest_us", "mean_error", "max_error", "online_mean_error"];
        assert_numbers(row, &keys);
    }
    assert_numbers(&json["summary"], &["mean_error", "online_mean_error", "worst_program_error"]);
    let picture = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("prediction.svg");
    assert!(fs::read_to_string(picture).unwrap().starts_with("<svg"));
    let output = run(&["prediction", "--quick", "--program", "Scan"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("SPMV"), "{}", errors(&output));
}

#[test]
fn engine_tells_what_a_decision_takes() {
    let json = quick_with("engine", &[]);
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4 * 2);
    for row in rows {
        let keys = ["events_per_s", "allocations_per_event", "decision_p50_us", "decision_p99_us"];
        assert_numbers(row, &keys);
    }
    let keys = [
        "events_per_s",
        "allocations_per_event",
        "decision_p99_us_1000_waiting",
        "decision_p99_us_100000_waiting",
    ];
    assert_numbers(&json["summary"], &keys);
}

#[test]
fn pool_runs_tasks_on_devices_and_loses_none() {
    let json = quick_with("pool", &[]);
    let rows = json["rows"].as_array().unwrap();
    let of = |figure: &str| -> Vec<&Value> {
        rows.iter().filter(|row| row["figure"] == figure).collect()
    };
    let (tasks, inversions, runs) = (of("tasks"), of("6"), of("7-9"));
    assert_eq!((tasks.len(), inversions.len()), (9 + 3, 2 * 2 * 9));
    // Priority without stops is there at load 2 alone.
    assert_eq!(runs.len(), 2 * (8 + 8 + 9));
    tasks.iter().for_each(|row| assert_numbers(row, &["alone_us", "wanted_us", "repeats"]));
    inversions.iter().for_each(|row| assert_numbers(row, &["response_over_alone", "batch_us"]));
    for row in &runs {
        let keys = ["late", "late_simulated", "revocations", "yields", "wasted", "batch_p50_us"];
        assert_numbers(row, &keys);
        let (arm, stops) = (row["arm"].as_str().unwrap(), number(row, "revocations"));
        let is_revoked = arm.ends_with("killed") || arm.ends_with("revoked");
        assert!(is_revoked || stops == 0.0, "{row}");
        assert!(arm.ends_with("yielding") || row["yields"] == 0, "{row}");
    }
    let over_time: Vec<_> = runs.iter().filter(|row| row["over_time"].is_object()).collect();
    let samples = over_time[0]["over_time"]["devices_user_facing"].as_array().unwrap();
    assert!(over_time.len() == 1 && samples.iter().all(|devices| devices.as_u64() <= Some(4)));
    let summary = &json["summary"];
    for key in ["tasks_lost", "tasks_twice", "tasks_wrong"] {
        assert_eq!(summary[key], 0, "{key}");
    }
    let keys = [
        "late_over_simulated_points",
        "late_over_trem_arm",
        "wasted",
        "revocation_p50_us",
        "revocation_p99_us",
        "revocation_to_next_p50_us",
        "revocation_to_next_p99_us",
        "opaque_revocation_p50_ms",
        "opaque_begins_p99_ms",
        "batch_over_no_revocation",
        "sim_late_error_points",
    ];
    assert_numbers(summary, &keys);
    // There are none where few tasks come, and no look where the last job comes at once.
    for key in ["elastic_over_priority_revocations_max", "offered_time_run"] {
        assert!(summary.get(key).is_some(), "{key}");
    }
    let output = run(&["pool", "--quick", "--load", "0"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("--load 0"), "{}", errors(&output));
    let output = run(&["pool", "--quick", "--mix", "W3"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("W1 and W2"), "{}", errors(&output));
}

/// The values that a key has, row by row.
fn column<'a>(rows: &'a [Value], key: &str) -> Vec<&'a str> {
    rows.iter().map(|row| row[key].as_str().unwrap()).collect()
}

/// What a suite of co-runs has counted.
fn assert_all_ran(summary: &Value) {
    assert!(summary["kernels"].as_u64() > Some(10), "{summary}");
    assert!(summary["block_tasks"].as_u64() > Some(1000), "{summary}");
}

/// A number of a row or a summary.
fn number(object: &Value, key: &str) -> f64 {
    object[key].as_f64().unwrap_or_else(|| panic!("{key} in {object}"))
}

#[test]
fn sim_replays_what_was_decided() {
    let json = quick_of("sim", &["--program", "NN"]);
    let rows = json["rows"].as_array().unwrap();
    let (rows, [alone]) = rows.split_at(rows.len() - 1) else { panic!("{rows:?}") };
    assert_eq!((&alone["program"], &alone["size"]), (&"NN".into(), &"reduced".into()));
    assert_numbers(alone, &["alone_p50_us"]);
    let [launch] = &alone["launches"].as_array().unwrap()[..] else { panic!("{alone}") };
    assert!(launch.as_str().unwrap().starts_with("nn_distances "), "{launch}");
    let seconds = rows.iter().map(|row| row["programs"][1].as_str().unwrap());
    // Those of equal priority come after those of `priority`.
    let expected = ["CFD", "PF", "PL", "MD", "MD", "SPMV", "SPMV", "MM", "MM", "VA", "VA"];
    let in_both_arms = expected.iter().flat_map(|name| [*name; 2]);
    assert_eq!(seconds.collect::<Vec<_>>(), in_both_arms.collect::<Vec<_>>());
    for row in rows {
        assert_eq!((&row["programs"][0], &row["samples"]), (&"NN".into(), &2.into()));
        assert_numbers(row, &["mean_turnaround_error", "yields_mean", "yields_simulated"]);
        for key in ["alone_p50_us", "alone_simulated_us", "turnaround_p50_us"] {
            assert_eq!(row[key].as_array().unwrap().len(), 2, "{key}");
        }
        let simulated = row["turnaround_simulated_us"].as_array().unwrap();
        assert!(simulated.iter().all(|time| time.as_f64() > Some(0.0)), "{row}");
    }
    let summary = &json["summary"];
    assert_eq!((&summary["replays_identical"], &summary["pairs"]), (&true.into(), &11.into()));
    assert!(summary["decisions"].as_u64() > Some(100), "{summary}");
    let keys = ["mean_turnaround_error", "max_turnaround_error", "mean_turnaround_error_if_free"];
    assert_numbers(summary, &keys);
    let keys = ["mean_error_alone", "launch_us", "follow_us", "report_us", "decision_us"];
    assert_numbers(summary, &keys);
    assert_all_ran(summary);
    let output = run(&["sim", "--quick", "--program", "Scan"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("CFD, NN, PF, PL"), "{}", errors(&output));
}
