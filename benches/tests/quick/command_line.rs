//! What the command line refuses, and says.

use super::*;

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
fn a_program_that_there_is_not_is_refused_with_those_that_there_are() {
    let output = run(&["verify", "--program", "nonsense"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("NeuralNet"), "{}", errors(&output));
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
    let output = run(&["verify", "--quick", "--svg", "verify.svg"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("no picture of the suite `verify`"), "{}", errors(&output));
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

#[test]
fn a_log_tells_each_part_with_its_time() {
    let output = run(&["armed", "--quick", "--log"]);
    assert!(output.status.success(), "{}", errors(&output));
    let told = errors(&output);
    let is_part = |line: &str| line.contains(" steps in ") && line.ends_with(" s");
    assert!(!told.is_empty() && told.lines().all(is_part), "{told}");
}
