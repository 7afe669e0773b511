//! The pages whose figures come from results.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use preempt_report::pages::{Page, check, check_one_commit, pages};
use serde_json::{Value, json};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A repository with copies of the README, the results and the pages, to be changed.
fn copy(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // It is there if an earlier run was stopped.
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(root.join("benches/results")).unwrap();
    for file in ["README.md", "benches/RESULTS.md"] {
        fs::copy(repository().join(file), root.join(file)).unwrap();
    }
    for entry in fs::read_dir(repository().join("benches/results")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), root.join("benches/results").join(entry.file_name())).unwrap();
    }
    root
}

fn edit(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{} has no `{from}`", path.display());
    fs::write(path, text.replacen(from, to, 1)).unwrap();
}

fn results_page(root: &Path) -> String {
    let is_it = |page: &Page| page.path.ends_with("RESULTS.md");
    pages(root).unwrap().into_iter().find(is_it).unwrap().text
}

#[test]
fn the_pages_are_what_the_results_say() {
    check(&repository()).unwrap();
}

#[test]
fn results_with_changes_that_were_not_committed_are_refused() {
    let root = copy("dirty");
    edit(
        &root.join("benches/results/storm-gpu.json"),
        "\"commit\": \"",
        "\"commit\": \"0123abc-dirty",
    );
    let error = check(&root).unwrap_err().to_string();
    assert!(error.contains("storm-gpu.json measured 0123abc-dirty"), "{error}");
}

#[test]
fn results_of_a_second_commit_are_named() {
    let root = copy("commits");
    let files =
        fs::read_dir(root.join("benches/results")).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|end| end == "json")).collect();
    for path in &files {
        let mut results: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        results["commit"] = json!("0123abc");
        fs::write(path, results.to_string()).unwrap();
    }
    check_one_commit(&root).unwrap();
    let other = &files[0];
    edit(other, "0123abc", "0123abd");
    let error = check_one_commit(&root).unwrap_err().to_string();
    let name = other.file_name().unwrap().to_str().unwrap();
    assert!(error.contains("2 commits") && error.contains(&format!("0123abd: {name}")), "{error}");
}

#[test]
fn each_result_has_its_table_with_source_and_command() {
    let page = results_page(&repository());
    for entry in fs::read_dir(repository().join("benches/results")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".json") {
            let source = page.lines().find(|line| line.contains(&format!("From [{name}]")));
            let source = source.unwrap_or_else(|| panic!("no table is from {name}"));
            assert!(source.contains("; commit ") && source.contains("; `"), "{source}");
        }
    }
}

#[test]
fn two_processes_have_a_row_for_each_arm_and_a_word_about_mps() {
    let root = copy("processes");
    let path = root.join("benches/results/processes-gpu.json");
    let text = fs::read_to_string(root.join("benches/results/libraries-gpu.json")).unwrap();
    let mut results: Value = serde_json::from_str(&text).unwrap();
    results["suite"] = json!("processes");
    for (arms, word) in [
        (&["two processes", "one process, preempt"][..], "MPS was not there"),
        (&["two processes", "two processes, MPS"], "With MPS, kernels of both run side by side"),
    ] {
        let row = |arm: &&str| {
            json!({ "arm": arm, "block_us": 1000.0, "idle_p50_us": 9.0, "p50_us": 550.0, "p99_us": 2100.0,
                    "max_us": 4000.0, "batch": 0.975 })
        };
        results["rows"] = arms.iter().map(row).collect();
        fs::write(&path, results.to_string()).unwrap();
        let page = results_page(&root);
        assert!(page.contains(word));
        for arm in arms {
            let line =
                format!("| 1.00 ms | {arm} | 9.00 µs | 550 µs / 2.10 ms | 4.00 ms | 97.5 % |");
            assert!(page.contains(&line), "{line}");
        }
    }
}

#[test]
fn a_result_that_changes_changes_the_pages() {
    let root = copy("changed");
    check(&root).unwrap();
    let latency = root.join("benches/results/latency-gpu.json");
    let text = fs::read_to_string(&latency).unwrap();
    let results: serde_json::Value = serde_json::from_str(&text).unwrap();
    // A row of README's table.
    let row = |row: &&serde_json::Value| {
        row["arm"] == "preempt" && row["block_task_us"] == 1000.0 && row["yield_points"] == true
    };
    let row = results["rows"].as_array().unwrap().iter().find(row).unwrap();
    edit(&latency, &format!("\"p50_us\": {}", row["p50_us"]), "\"p50_us\": 77.7");
    let error = check(&root).unwrap_err().to_string();
    assert!(error.contains("README.md, line ") && error.contains("--pages"), "{error}");
    for Page { path, text } in pages(&root).unwrap() {
        fs::write(path, text).unwrap();
    }
    check(&root).unwrap();
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    assert!(readme.contains("77.7 µs"), "{readme}");
}

#[test]
fn a_page_or_picture_that_is_edited_is_refused() {
    let root = copy("edited");
    let page = root.join("benches/RESULTS.md");
    edit(&page, " decisions of a run on the GPU", "0 decisions of a run on the GPU");
    let error = check(&root).unwrap_err().to_string();
    assert!(error.contains("RESULTS.md, line "), "{error}");
    fs::copy(repository().join("benches/RESULTS.md"), &page).unwrap();
    edit(&root.join("benches/results/mix-gpu.svg"), "<rect", "<rect ");
    let error = check(&root).unwrap_err().to_string();
    assert!(error.contains("mix-gpu.svg, line "), "{error}");
}

#[test]
fn what_is_missing_is_named() {
    let root = copy("missing");
    let prediction = root.join("benches/results/prediction-gpu.json");
    edit(&prediction, "\"max_error\"", "\"largest\"");
    let error = format!("{:#}", pages(&root).unwrap_err());
    assert!(error.contains("prediction-gpu.json: row 1: missing field `max_error`"), "{error}");
    fs::remove_file(&prediction).unwrap();
    let error = format!("{:#}", pages(&root).unwrap_err());
    assert!(error.contains("prediction-gpu.json: cannot be read"), "{error}");
    edit(&root.join("README.md"), "<!-- figures: choice -->", "");
    let error = format!("{:#}", pages(&root).unwrap_err());
    assert!(error.contains("figures: choice"), "{error}");
}

#[test]
fn a_suite_without_results_says_so_and_its_results_are_read_once_they_are_there() {
    let root = copy("unmeasured");
    let chimera = root.join("benches/results/chimera-gpu.json");
    let _ = fs::remove_file(&chimera);
    let page = results_page(&root);
    assert!(page.contains("Not measured yet: `preempt-bench chimera "));
    assert!(page.contains("| 10.1 % | - | - | not measured | - |"));
    fs::write(&chimera, "{").unwrap();
    let error = format!("{:#}", pages(&root).unwrap_err());
    assert!(error.contains("chimera-gpu.json: is no JSON"), "{error}");
    fs::write(&chimera, r#"{ "suite": "chimera", "rows": [] }"#).unwrap();
    let error = format!("{:#}", pages(&root).unwrap_err());
    assert!(error.contains("chimera-gpu.json: the summary has no number"), "{error}");
}

/// Changes what a result says.
fn change(root: &Path, file: &str, change: impl FnOnce(&mut Value)) {
    let path = root.join("benches/results").join(file);
    let mut results = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut results);
    fs::write(&path, results.to_string()).unwrap();
}

#[test]
fn what_older_results_lack_is_on_the_page_once_it_is_measured() {
    let root = copy("older");
    let is_newer = |row: &Value| row.get("beside").is_some() || row.get("form").is_some();
    change(&root, "launch-gpu.json", |launch| {
        launch["rows"].as_array_mut().unwrap().retain(|row| !is_newer(row));
        launch["summary"].as_object_mut().unwrap().remove("calibration_ms");
    });
    let by_writes = "preempt, by stream writes";
    change(&root, "latency-gpu.json", |latency| {
        latency["rows"].as_array_mut().unwrap().retain(|row| row["arm"] != by_writes);
    });
    let page = results_page(&root);
    let told = ["| destroy | a graph |", "| preemptible launch |", "were measured in", by_writes];
    told.iter().for_each(|told| assert!(!page.contains(told), "{told}"));

    change(&root, "launch-gpu.json", |launch| {
        let call = |beside, waited| {
            json!({
                "call": "destroy", "of": "a graph", "side": "driver", "beside": beside,
                "samples": 20, "waited": waited, "p50_us": 7.0, "p99_us": 8.0, "max_us": 9.0,
            })
        };
        let guard = json!({ "form": "preemptible launch", "p50_us": 5.0, "p99_us": 6.0 });
        let rows = launch["rows"].as_array_mut().unwrap();
        rows.extend([call(false, 0), call(true, 3), guard]);
        launch["summary"]["calibration_ms"] = json!(12.5);
        let names = ["call", "launch", "follow", "stop", "report", "claim"];
        launch["summary"]["costs_us"] = names.iter().map(|name| (*name, 4.0)).collect();
    });
    change(&root, "latency-gpu.json", |latency| {
        let rows = latency["rows"].as_array_mut().unwrap();
        let mut more: Vec<_> = rows.iter().filter(|row| row["arm"] == "preempt").cloned().collect();
        more.iter_mut().for_each(|row| row["arm"] = by_writes.into());
        rows.extend(more);
    });
    let page = results_page(&root);
    for told in [
        "| destroy | a graph | driver | 7.00 µs / 8.00 µs | 7.00 µs / 8.00 µs | 9.00 µs | 3 of 20 |",
        "| preemptible launch | 5.00 µs | 6.00 µs |",
        "Its costs were measured in 12.5 ms when the device was opened: call 4.00 µs, ",
        "| preempt, by the proxy | preempt, by stream writes | floor |",
        " µs by stream writes alone; below 0",
    ] {
        assert!(page.contains(told), "{told}");
    }
}

#[test]
fn chimera_tells_estimates_and_strict_kernels_once_they_are_measured() {
    let root = copy("estimated");
    let is_estimate = |row: &Value| row.get("estimated").is_some();
    change(&root, "chimera-gpu.json", |chimera| {
        chimera["rows"].as_array_mut().unwrap().retain(|row| !is_estimate(row));
    });
    let unmeasured = "of each program may be dropped, is not measured yet.";
    let page = results_page(&root);
    assert!(page.contains(unmeasured) && !page.contains("| late, strict |"), "{page}");

    change(&root, "chimera-gpu.json", |chimera| {
        let estimate = |program, [strict, declared]: [u32; 2], saved: Option<u32>| {
            json!({
                "estimated": program, "kernel": "longest", "block_task_us": 84.0, "blocks_per_sm": 3,
                "saved_bytes": saved, "context_bytes": 24576, "drain_us": 42.0,
                "switch_us": saved.map(|_| 1.5), "context_us": 2.5, "flush_lost": 0.307,
                "switch_lost": saved.map(|_| 0.036), "context_lost": 0.06, "kernels_strict": strict,
                "kernels_relaxed": 0, "kernels_declared": declared, "kernels_without": 0,
            })
        };
        let late = |row: &mut Value| {
            let known = [("drain", 0.91), ("flush", 0.03)];
            let of_arm = known.iter().find(|(arm, _)| row["arm"] == *arm);
            of_arm.into_iter().for_each(|(_, late)| row["late"] = (*late).into());
        };
        let rows = chimera["rows"].as_array_mut().unwrap();
        rows.iter_mut().for_each(late);
        rows.extend([
            estimate("BS", [1, 0], None),
            estimate("ST", [0, 1], Some(4096)),
            estimate("SAD", [2, 1], Some(2048)),
        ]);
    });
    let page = results_page(&root);
    assert!(!page.contains(unmeasured));
    for told in [
        "| BS | `longest` | 84.0 µs | 3 | - / 24576 | 42.0 µs | - | 2.50 µs | 30.7 % | - | 6.0 % |",
        "| ST | `longest` | 84.0 µs | 3 | 4096 / 24576 | 42.0 µs | 1.50 µs | 2.50 µs | 30.7 % | 3.6 % | 6.0 % |",
        "| BS | 1 | 0 | 0 | 0 | 3.0 % | 3.0 % |",
        "| ST | 0 | 0 | 1 | 0 | 91.0 % | 3.0 % |",
        "| SAD | 2 | 0 | 1 | 0 | - | 3.0 % |",
    ] {
        assert!(page.contains(told), "{told}");
    }
}

#[test]
fn the_program_checks_the_folder_that_it_runs_in() {
    let plot = |folder: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_preempt-plot"));
        command.arg("--check").current_dir(folder).output().unwrap()
    };
    assert!(plot(&repository()).status.success());
    let elsewhere = plot(&repository().join("benches/results"));
    let errors = String::from_utf8_lossy(&elsewhere.stderr).into_owned();
    assert!(
        !elsewhere.status.success() && errors.contains("run this in the repository"),
        "{errors}"
    );
}
