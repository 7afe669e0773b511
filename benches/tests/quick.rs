//! Each suite, with little work. No times are asserted: machines differ.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;

use serde_json::{Value, json};

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
    assert_eq!(rows.len(), 5);
    for row in &rows[..3] {
        assert!(row["yields"].as_u64() >= Some(20) && row["resumes"].as_u64() >= Some(20));
        assert!(row["block_tasks"].as_u64() >= Some(6 * 12_000));
    }
    assert_eq!(rows[3]["kernels"], 40, "20 that are cancelled or not, with an urgent one each");
    assert_eq!((&rows[4]["kernels"], &rows[4]["on_excluded_sm"]), (&6.into(), &0.into()));
    for row in rows {
        assert_eq!((&row["lost"], &row["repeated"]), (&0.into(), &0.into()), "{row}");
    }
    let keys = ["block_tasks", "yields", "resumes", "cancelled", "lost", "repeated", "seconds"];
    assert_numbers(&json["summary"], &keys);
    assert!(json["summary"]["yields_mid_kernel"].as_u64() >= Some(60));
    for key in ["tasks_wrong", "tasks_on_excluded_sm"] {
        assert_eq!(json["summary"][key], 0, "{key}");
    }
}

#[test]
fn a_soak_does_everything_and_is_right() {
    let json = quick_with("soak", &[]);
    let keys = ["operations", "programs", "cancelled", "panics", "yields", "tasks", "dropped"];
    for key in keys {
        assert!(json["summary"][key].as_u64() > Some(0), "{key} in {}", json["summary"]);
    }
    assert_eq!(json["summary"]["wrong"], 0);
    assert!(json["summary"]["host_growth_mb"].is_number());
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
        assert_eq!(row["late_simulated_free"].is_number(), arm.ends_with("yielding"), "{row}");
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

#[test]
fn priority_has_all_arms_for_each_pair_and_delay() {
    // Only victims are chosen.
    let json = quick_of("priority", &["--program", "NN", "--program", "MD"]);
    let rows = json["rows"].as_array().unwrap();
    let others = ["CFD", "PF", "PL", "MD", "SPMV", "MM", "VA"];
    let delays = |other: &str| match other {
        "MM" => &[0.0, 0.25, 0.5, 0.75, 1.1][..],
        _ => &[0.0],
    };
    let cases = others.iter().flat_map(|&other| delays(other).iter().map(move |&at| (other, at)));
    let cases: Vec<_> = cases.collect();
    let names = ["alone", "plain streams", "preempt", "preempt, all preemptible", "ceiling"];
    assert_eq!(rows.len(), names.len() * cases.len());
    for (arms, (other, delay)) in rows.chunks(names.len()).zip(cases) {
        assert_eq!(column(arms, "arm"), names);
        for row in arms {
            assert_eq!((&row["low"], &row["high"]), (&"NN".into(), &other.into()));
            assert_eq!((&row["samples"], &row["delay_over_low_alone"]), (&1.into(), &delay.into()));
            assert_numbers(row, &["high_p50_us", "speedup", "yields"]);
        }
        assert_eq!(arms[1]["speedup"], 1.0, "it is to plain streams");
        for (row, runs) in arms.iter().zip([false, true, true, true, false]) {
            assert_eq!(row["high_p99_us"].is_number(), runs, "{row}");
        }
    }
    let summary = &json["summary"];
    assert_eq!(summary["pairs"], 7);
    let keys =
        ["mean_speedup", "best_speedup", "mean_ceiling", "best_ceiling", "mean_over_ceiling"];
    assert_numbers(summary, &keys);
    assert_numbers(summary, &["mean_speedup_all_preemptible"]);
    let by_streams = ["worst", "mean"].map(|which| format!("{which}_vs_stream_priority"));
    for key in by_streams.iter().map(String::as_str).chain(["rows_behind_stream_priority"]) {
        assert!(summary[key].is_null(), "the CPU device has no such streams");
    }
    assert_all_ran(summary);
    let output = run(&["priority", "--quick", "--program", "MD"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("CFD, NN, PF, PL"), "{}", errors(&output));
}

/// A number of a row or a summary.
fn number(object: &Value, key: &str) -> f64 {
    object[key].as_f64().unwrap_or_else(|| panic!("{key} in {object}"))
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
        assert!((0.6..0.75).contains(&number(row, "share_of_work")), "{row}");
        // A tenth may be lost. In a short window, block-tasks of PL as long as the kernel are dropped once more or less.
        assert!(number(row, "throughput_lost") < 0.13 && number(row, "yields") > 1.0, "{row}");
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

/// What holds of `coschedule` on every device, with this many programs.
fn assert_coscheduled(json: &Value, ways: &[&str], programs: usize) {
    let rows = json["rows"].as_array().unwrap();
    let with = |key: &str| rows.iter().filter(|row| row.get(key).is_some()).collect::<Vec<_>>();
    let drawn = with("setting");
    let speeds: Vec<_> = drawn.iter().map(|row| row["speeds"].as_str().unwrap()).collect();
    assert_eq!(speeds, [["drawn"; 3 * 2], ["measured"; 3 * 2]].concat());
    for row in &drawn {
        assert_eq!(row["preemptions_per_task"].as_array().unwrap().len(), 3);
        assert!((1.0 - 1e-6..1.0 + 1e-6).contains(&number(row, "over_lp")), "{row}");
        let [ours, pairs, after] =
            ["over_sequential", "max_pair_over_sequential", "cost_50_planned_over_sequential"]
                .map(|key| number(row, key));
        // At measured speeds, perhaps no pair gains.
        let most = if row["speeds"] == "drawn" { 1.0 - 1e-6 } else { 1.0 + 1e-6 };
        assert!(ours <= pairs + 1e-6 && pairs <= most, "{row}");
        // With its preemptions, a plan for costly ones is no longer than MaxPair's and than the one that ignores them.
        let ignored = number(row, "cost_50_over_sequential");
        assert!(ours <= after + 1e-6 && after <= pairs.min(ignored) + 1e-6, "{row}");
    }
    let timed = with("timed_tasks");
    assert_eq!(timed.len(), 1);
    assert_numbers(timed[0], &["plan_p50_s"]);
    let measured = with("way");
    assert_eq!(measured.iter().map(|row| row["way"].as_str().unwrap()).collect::<Vec<_>>(), ways);
    for row in &measured {
        let speeds = row["speeds"].as_array().unwrap();
        assert_eq!((speeds.len(), row["twins"].as_array().unwrap().len()), (programs, programs));
        assert!(row["alone_us"].as_array().unwrap().iter().all(|time| time.as_f64() > Some(0.0)));
    }
    let executed = with("arm");
    let arms: Vec<_> = executed.iter().map(|row| row["arm"].as_str().unwrap()).collect();
    assert_eq!(arms, ["plan", "MaxPair", "sequential", "plain, one stream"]);
    for row in &executed {
        assert_eq!(row["programs"].as_array().unwrap().len(), 5);
        assert_eq!(row["planned_us"].is_number(), row["arm"] != "plain, one stream", "{row}");
        assert!(number(row, "executed_p50_us") > 0.0, "{row}");
    }
    let planned = |arm: usize| number(executed[arm], "planned_us");
    assert!(planned(0) <= planned(1) * (1.0 + 1e-6) && planned(1) <= planned(2) * (1.0 + 1e-6));
    let summary = &json["summary"];
    assert_eq!((&summary["instances"], &summary["executed_instances"]), (&18.into(), &1.into()));
    let keys = [
        "preemptions_per_task_worst",
        "preemptions_per_task_worst_mean",
        "makespan_over_lp",
        "makespan_over_maxpair_mean",
        "measured_preemptions_per_task_worst_mean",
        "measured_makespan_over_maxpair_mean",
        "executed_over_plan",
        "executed_over_maxpair_executed",
        "executed_over_sequential",
        "executed_over_plain",
    ];
    assert_numbers(summary, &keys);
    assert!(summary["plan_s_n1000"].is_null(), "quick runs plan fewer tasks");
    assert_all_ran(summary);
}

#[test]
fn coschedule_carries_plans_out() {
    let names = ["FFT", "BFS", "CFD"];
    let json = quick_of("coschedule", &names.map(|name| ["--program", name]).concat());
    assert_coscheduled(&json, &["all SMs", "SMs 1/2 : 1/2"], 3);
    let output = run(&["coschedule", "--quick", "--program", "FFT"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("Stencil2D"), "{}", errors(&output));
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
fn what_is_not_simulated_is_refused_with_what_is() {
    for (suite, said) in [
        ("storm", "priority, antt, fairness, mix, coschedule, pool, sim"),
        ("verify", "--device cpu"),
    ] {
        let output = run(&[suite, "--device", "sim"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(errors(&output).contains(said), "{}", errors(&output));
    }
    let output = run(&["mix", "--device", "sim", "--sms", "4"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("`--sms`"), "{}", errors(&output));
}

#[test]
fn older_results_stay_where_a_run_fails() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("older.json");
    fs::write(&path, "older and longer").unwrap();
    let fails = ["mix", "--device", "sim", "--program", "VA", "--out", "older.json"];
    assert_eq!(run(&fails).status.code(), Some(1));
    assert_eq!(fs::read_to_string(&path).unwrap(), "older and longer");
    let works = ["mix", "--device", "sim", "--out", "older.json", "--program", "MD"];
    let output = run(&[&works[..], &["--program", "Scan", "--program", "MD"]].concat());
    assert!(output.status.success(), "{}", errors(&output));
    let json: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(json["rows"][0]["programs"], json!(["MD", "Scan"]), "each once");
}

#[test]
fn antt_has_pairs_and_triples() {
    let json = quick_of("antt", &["--program", "VA"]);
    let rows = json["rows"].as_array().unwrap();
    let groups: Vec<_> = rows.chunks(6).collect();
    for (index, arms) in groups.iter().enumerate() {
        let ours = ["preempt", "preempt, all preemptible"];
        let others = ["alone", "ceiling", "plain streams", "reordered"];
        assert_eq!(column(arms, "arm"), [&others[..], &ours].concat());
        for row in *arms {
            let programs = row["programs"].as_array().unwrap();
            assert_eq!((programs.len(), &programs[0]), (2 + index / 3, &"VA".into()));
            assert_eq!(row["turnaround_p50_us"].as_array().unwrap().len(), programs.len());
            assert_numbers(row, &["antt", "stp", "samples"]);
        }
        let count = if index < 3 { 2.0 } else { 3.0 };
        assert_eq!((&arms[0]["antt"], &arms[0]["stp"]), (&1.0.into(), &count.into()));
        arms[2..].iter().for_each(|row| assert_numbers(row, &["makespan_p50_us"]));
    }
    let summary = &json["summary"];
    assert_eq!((&summary["pairs"], &summary["triples"]), (&3.into(), &2.into()));
    assert_eq!(groups.len(), 3 + 2);
    for size in ["pairs", "triples"] {
        let keys = ["gain", "ceiling", "over_ceiling", "gain_all_preemptible", "gain_reordered"];
        keys.iter().for_each(|key| assert_numbers(summary, &[&format!("{size}_{key}")]));
        let by_priority = summary.get(format!("{size}_gain_stream_priorities"));
        assert_eq!(by_priority, Some(&Value::Null), "the CPU device has no such streams");
    }
    assert_numbers(summary, &["stp_over_plain", "makespan_lost", "makespan_lost_all_preemptible"]);
    assert_all_ran(summary);
}

#[test]
fn fairness_has_both_arms_for_each_pair() {
    let json = quick_of("fairness", &["--program", "NN"]);
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 7);
    for arms in rows.chunks(2) {
        assert_eq!(column(arms, "arm"), ["plain streams", "preempt"]);
        for (row, max_overhead) in arms.iter().zip([Value::Null, 0.1.into()]) {
            assert_eq!((&row["weight_1"], &row["max_overhead"]), (&"NN".into(), &max_overhead));
            assert_eq!(row["window_us"], 60_000.0);
            assert_numbers(row, &["share_of_work", "throughput_lost", "yields"]);
        }
        assert!((0.0..=1.0).contains(&arms[1]["share"].as_f64().unwrap()), "{}", arms[1]);
    }
    let summary = &json["summary"];
    assert_eq!(summary["pairs"], 7);
    let keys = ["share_error_points", "share_error_points_mean", "throughput_lost"];
    assert_numbers(summary, &keys);
    assert_numbers(summary, &["throughput_lost_max"]);
    let by_overhead = &summary["throughput_lost_by_max_overhead_percent"];
    assert_eq!(by_overhead["10.0"], summary["throughput_lost"]);
    assert_all_ran(summary);
}

#[test]
fn mix_has_three_settings_and_counts_yields_by_priority() {
    // Among those that take least here.
    let names = ["MD", "Scan", "Triad", "FFT", "SPMV"];
    let json = quick_of("mix", &names.map(|name| ["--program", name]).concat());
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3 * 5 + 1);
    for (arms, setting) in rows.chunks_exact(5).zip(["sjf", "random", "group"]) {
        let arm_names = [
            "plain streams",
            "preempt, static",
            "preempt, dynamic",
            "ceiling, static",
            "ceiling, dynamic",
        ];
        assert_eq!(column(arms, "arm"), arm_names);
        for row in arms {
            assert_eq!((&row["setting"], &row["programs"]), (&setting.into(), &json!(names)));
            assert_eq!(row["ntt"].as_array().unwrap().len(), 5);
            assert_numbers(row, &["antt", "stp"]);
        }
        for key in
            ["antt_change", "stp_gain", "over_ceiling", "antt_over_ceiling", "stp_over_ceiling"]
        {
            assert_numbers(&json["summary"], &[&format!("{setting}_{key}")]);
        }
    }
    assert_eq!(rows[15]["wait_ms"], 1);
    assert_eq!(rows[15]["yields_by_priority"].as_array().unwrap().len(), 9);
    assert_numbers(&json["summary"], &["scheduling_overhead"]);
    assert_all_ran(&json["summary"]);
    let output = run(&["mix", "--quick", "--program", "VA"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("NeuralNet"), "{}", errors(&output));
}

#[test]
fn chimera_has_nine_arms_for_each_program_and_three_for_each_pair() {
    let options = ["--program", "BS", "--program", "LUD", "--program", "ST"];
    let json = quick_of(
        "chimera",
        &options.into_iter().chain(["--svg", "chimera.svg"]).collect::<Vec<_>>(),
    );
    let rows = json["rows"].as_array().unwrap();
    let (rows, pairs) = rows.split_at(3 * 9);
    for (arms, program) in rows.chunks(9).zip(["BS", "LUD", "ST"]) {
        let alone = ["drain", "flush", "switch"];
        assert_eq!(column(arms, "arm"), [&alone[..], &["choice"; 6]].concat());
        let limits = [30.0, 30.0, 30.0, 5.0, 10.0, 15.0, 20.0, 30.0, 50.0];
        for (row, limit) in arms.iter().zip(limits) {
            assert_eq!((&row["program"], &row["limit_us"]), (&program.into(), &limit.into()));
            if row["form"] == "no checkpoint" {
                assert_ne!(program, "ST");
                assert_eq!(
                    (&row["arm"], &row["throughput_lost"]),
                    (&"switch".into(), &Value::Null)
                );
                continue;
            }
            assert_eq!(row["form"] == "neither", program == "LUD", "{row}");
            let saves = ["switch", "choice"].iter().any(|arm| row["arm"] == *arm);
            assert_eq!(row["form"] == "checkpoints", program == "ST" && saves, "{row}");
            let keys = ["runs", "tasks", "late", "throughput_lost", "throughput_lost_beside_half"];
            assert_numbers(row, &keys);
            assert_numbers(row, &["stops", "drained", "requeued", "switched", "work_dropped_us"]);
        }
    }
    // With `--quick` those of LUD alone.
    for (arms, pair) in pairs.chunks(3).zip([["BS", "LUD"], ["LUD", "ST"]]) {
        assert_eq!(column(arms, "arm"), ["in order", "shared", "ceiling"]);
        for row in arms {
            assert_eq!(row["pair"], json!(pair));
            assert_numbers(row, &["antt", "stp", "samples"]);
        }
    }
    assert_eq!(pairs.len(), 2 * 3);
    let summary = &json["summary"];
    assert_eq!((&summary["wrong"], &summary["limit_us"]), (&0.into(), &30.0.into()));
    let keys = ["violations_mean", "violations_worst", "throughput_lost_switch"];
    assert!(keys.iter().all(|key| summary.get(key).is_some()), "{summary}");
    let keys = ["throughput_lost_mean", "throughput_lost_flush", "throughput_lost_drain"];
    assert_numbers(summary, &keys);
    assert_numbers(summary, &["antt_gain", "stp_gain", "over_ceiling", "drops", "switches"]);
    assert_numbers(
        summary,
        &["drains", "end_to_end_late", "end_to_end_beyond_floor", "floor_p998_us"],
    );
    assert_all_ran(summary);
    let output = run(&["chimera", "--quick", "--program", "VA"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("MUM"), "{}", errors(&output));
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

#[test]
fn the_simulator_is_as_near_to_what_was_measured_as_it_says() {
    let json = simulated("sim", &[]);
    let (rows, summary) = (json["rows"].as_array().unwrap(), &json["summary"]);
    assert_eq!((rows.len(), &summary["pairs"]), (2 * 72, &72.into()));
    assert!(number(summary, "mean_turnaround_error") <= 0.015, "{summary}");
    assert!(number(summary, "mean_turnaround_error_all_preemptible") <= 0.015, "{summary}");
    assert!(number(summary, "mean_turnaround_error_if_free") > 0.03, "costs count: {summary}");
}

#[test]
fn a_program_that_there_is_not_is_refused_with_those_that_there_are() {
    let output = run(&["verify", "--program", "nonsense"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("NeuralNet"), "{}", errors(&output));
}

#[test]
fn spatial_has_five_arms_for_each_pair() {
    let json = quick("spatial");
    let rows = json["rows"].as_array().unwrap();
    let victims = ["CFD", "NN", "PF", "PL"];
    let urgents = ["CFD", "NN", "PF", "PL", "MD", "SPMV", "MM", "VA", "VA, 1 block-task"];
    let pairs = victims.iter().flat_map(|victim| urgents.map(|urgent| (*victim, urgent)));
    let pairs: Vec<_> = pairs.filter(|(victim, urgent)| victim != urgent).collect();
    assert_eq!(rows.len(), 5 * pairs.len());
    let count = |value: &Value| value.as_u64().unwrap();
    let mut yields = 0;
    for (arms, (victim, urgent)) in rows.chunks(5).zip(&pairs) {
        let names: Vec<_> = arms.iter().map(|row| row["arm"].as_str().unwrap()).collect();
        assert_eq!(names, ["victim alone", "urgent alone", "just enough", "twice", "all"]);
        for row in arms {
            assert_eq!((&row["victim"], &row["urgent"]), (&(*victim).into(), &(*urgent).into()));
            let needed = count(&row["sms"]);
            assert!(if urgent.ends_with("1 block-task") { needed == 1 } else { needed > 1 });
        }
        let [alone, idle, taken @ ..] = arms else { panic!("{arms:?}") };
        for (row, has, lacks) in [(alone, "victim", "urgent"), (idle, "urgent", "victim")] {
            assert_eq!((&row["samples"], &row["yields"]), (&2.into(), &0.into()));
            assert_numbers(row, &[&format!("{has}_p50_us"), &format!("{has}_p99_us")]);
            assert!(row[format!("{lacks}_p50_us")].is_null() && row["cost_us"].is_null());
        }
        for row in taken {
            // Fewer samples if the urgent launch came too late again and again.
            let samples = count(&row["samples"]);
            assert!(samples <= 2 && count(&row["yields"]) >= samples, "{row}");
            assert_eq!(row["cost_us"].is_number(), samples > 0, "{row}");
            yields += count(&row["yields"]);
        }
    }
    let summary = &json["summary"];
    assert_eq!((&summary["pairs"], count(&summary["yields"])), (&28.into(), yields));
    assert!(yields > 0 && count(&summary["block_tasks"]) > 1000, "{summary}");
    for key in ["saved_vs_all_mean", "saved_vs_all_best", "urgent_vs_all"] {
        assert!(summary.get(key).is_some(), "{key}");
    }
}

#[test]
fn spatial_measures_the_victims_that_are_asked_for() {
    let file = "spatial-nn.json";
    let output = run(&["spatial", "--quick", "--program", "NN", "--program", "MD", "--out", file]);
    assert!(output.status.success(), "{}", errors(&output));
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(file);
    let json: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 5 * 8);
    assert!(rows.iter().all(|row| row["victim"] == "NN"));
    let output = run(&["spatial", "--quick", "--program", "MD"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("CFD, NN, PF, PL"), "{}", errors(&output));
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_before_anything_runs() {
    let output = run(&["launch", "--quick", "--out", "no/such/folder/results.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("cannot write no/such/folder/results.json"));
    assert!(output.stdout.is_empty());
}

#[test]
fn a_picture_that_there_is_not_is_an_error_before_anything_runs() {
    let output = run(&["launch", "--quick", "--svg", "launch.svg"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("no picture of the suite `launch`"), "{}", errors(&output));
    assert!(output.stdout.is_empty());
}

#[test]
fn a_device_that_cannot_be_is_refused_in_words() {
    let output = run(&["storm", "--quick", "--sms", "0"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("0 SMs"), "{}", errors(&output));
    let output = run(&["storm", "--quick", "--sms", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("two at least"), "{}", errors(&output));
}

#[test]
fn a_gpu_runs_a_suite_or_is_refused_in_words() {
    let output = run(&["launch", "--quick", "--device", "cuda"]);
    let errors = errors(&output);
    let is_refused = ["driver", "without device code"].iter().any(|why| errors.contains(why));
    assert!(output.status.success() || is_refused, "{errors}");
}
