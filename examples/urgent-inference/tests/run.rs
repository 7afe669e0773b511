//! The whole program, with little work. No times are asserted: machines differ.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_urgent-inference"));
    // A folder where files may be left.
    command.current_dir(env!("CARGO_TARGET_TMPDIR")).args(args).output().unwrap()
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_quick_run_writes_a_table_json_and_a_picture() {
    let output =
        run(&["--quick", "--out", "quick.json", "--svg", "quick.svg", "--trace", "trace.json"]);
    assert!(output.status.success(), "{}", errors(&output));
    let table = String::from_utf8_lossy(&output.stdout);
    for row in ["requests alone", "submission order", "preempt", "p99 with preempt"] {
        assert!(table.contains(row), "{table}");
    }
    assert!(errors(&output).contains("submission order .. done"), "{}", errors(&output));

    let json: Value =
        serde_json::from_str(&fs::read_to_string(file("quick.json")).unwrap()).unwrap();
    assert_eq!(json["suite"], "urgent-inference");
    assert!(json["driver"].is_null());
    for key in ["device", "hardware", "date", "command"] {
        assert!(json[key].is_string(), "{key}");
    }
    let summary = &json["summary"];
    for key in ["alone_p50_us", "alone_p99_us", "fifo_p99_us", "preempt_p99_us", "batch_slowdown"] {
        assert!(summary[key].as_f64().is_some_and(|value| value > 0.0), "{key}");
    }
    assert!(summary.as_object().unwrap().contains_key("stream_priority_p99_us"));
    assert!(summary["stream_priority_p50_us"].is_null());
    assert!(summary["stream_priority_p99_us"].is_null());
    assert!(summary["accuracy"].as_f64().is_some_and(|accuracy| accuracy >= 0.95));
    assert_eq!(summary["checksums_equal"], true);

    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    let requests: Vec<_> = rows.iter().map(|row| row["requests"].as_u64().unwrap()).collect();
    assert_eq!(requests, [0, 400, 400, 400]);

    let picture = fs::read_to_string(file("quick.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("preempt: p99"));

    let trace = fs::read_to_string(file("trace.json")).unwrap();
    let trace: Value = serde_json::from_str(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let count = |name: &str| events.iter().filter(|event| event["name"] == name).count();
    assert!(count("yield") > 0, "the batch job gives SMs to requests");
    for (process, tracks) in [(1, "streams"), (2, "SMs")] {
        let is_request = |event: &&Value| event["name"] == "classify" && event["pid"] == process;
        let requests = events.iter().filter(is_request).count();
        assert!(requests >= 3 * 400 / 2, "{requests} requests are on tracks of {tracks}");
    }
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_before_anything_runs() {
    let output = run(&["--quick", "--out", "no/such/folder/results.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("cannot write no/such/folder/results.json"));
    assert!(output.stdout.is_empty());
}

#[test]
fn without_a_gpu_cuda_is_refused_in_words() {
    let output = run(&["--quick", "--device", "cuda"]);
    let errors = errors(&output);
    assert!(output.status.success() || errors.contains("driver"), "{errors}");
}
