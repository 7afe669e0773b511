//! The whole program, with little work. No times that were executed are asserted: machines differ.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nightly-batch"));
    // A folder where files may be left.
    command.current_dir(env!("CARGO_TARGET_TMPDIR")).args(args).output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The planned seconds in a row of the table.
fn planned(table: &str, row: &str) -> f64 {
    let line = table.lines().rev().find(|line| line.starts_with(row)).expect(row);
    line[row.len()..].split_whitespace().next().expect(line).parse().expect(line)
}

#[test]
fn a_quick_run_has_right_results_a_short_plan_and_charts() {
    let output = run(&["--quick", "--svg", "night.svg"]);
    assert!(output.status.success(), "{}", errors(&output));
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("20 jobs, measured in"), "{table}");
    assert!(table.ends_with("all results are right\n"), "{table}");
    let [plan, pairs, sequential] =
        ["the plan", "MaxPair", "one after the other"].map(|row| planned(&table, row));
    assert!(0.0 < plan && plan <= pairs && pairs <= sequential, "{table}");
    for name in ["night.svg", "night.executed.svg"] {
        let chart = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let chart = fs::read_to_string(chart).unwrap();
        assert!(chart.starts_with("<svg") && chart.contains("Chains 24"), "{name}");
    }
}

#[test]
fn a_chart_that_cannot_be_written_is_an_error_before_anything_runs() {
    let output = run(&["--quick", "--svg", "no/such/folder/night.svg"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("cannot write no/such/folder/night.svg"));
    assert!(output.stdout.is_empty());
}

#[test]
fn without_a_gpu_cuda_is_refused_in_words() {
    let output = run(&["--quick", "--device", "cuda"]);
    let errors = errors(&output);
    assert!(output.status.success() || errors.contains("driver"), "{errors}");
}
