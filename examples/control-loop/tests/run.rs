//! The whole program, with little work. No times are asserted: machines differ.

use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_control-loop")).args(args).output().unwrap()
}

#[test]
fn a_quick_run_keeps_all_pendulums_upright_in_each_row() {
    let output = run(&["--quick"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    let table = String::from_utf8_lossy(&output.stdout);
    for row in ["leave at the next yield point", "end the block-task", "by cost, within the limit"]
    {
        assert!(table.lines().any(|line| line.starts_with(row)), "{table}");
    }
    assert!(table.contains("violations") && table.contains("all pendulums are upright"), "{table}");
}

#[test]
fn without_a_gpu_cuda_is_refused_in_words() {
    let output = run(&["--quick", "--device", "cuda"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() || errors.contains("driver"), "{errors}");
}
