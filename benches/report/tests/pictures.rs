//! Pictures of small results: well-formed, and with a bar for each row that has one.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use preempt_report::{ensure_picture, papers, picture};
use roxmltree::Document;
use serde_json::{Value, json};

/// An SVG's bars, by colour, and its texts.
fn drawn(svg: &str) -> (Vec<(String, usize)>, Vec<String>) {
    let svg = Document::parse(svg).unwrap();
    let mut bars: Vec<(String, usize)> = Vec::new();
    for node in svg.descendants().filter(|node| node.has_tag_name("rect")) {
        let fill = node.attribute("fill").unwrap();
        match bars.iter_mut().find(|(other, _)| other == fill) {
            Some((_, count)) => *count += 1,
            None => bars.push((fill.to_owned(), 1)),
        }
    }
    bars.retain(|(fill, _)| fill != "#FFFFFF");
    let texts = svg.descendants().filter(|node| node.has_tag_name("text"));
    (bars, texts.map(|node| node.text().unwrap_or_default().trim().to_owned()).collect())
}

fn svg_of(results: &Value) -> (Vec<usize>, Vec<String>) {
    let (bars, texts) = drawn(&picture(results).unwrap().svg().unwrap());
    (bars.into_iter().map(|(_, count)| count).collect(), texts)
}

fn results(suite: &str, rows: Vec<Value>, summary: Value) -> Value {
    json!({ "suite": suite, "device": "a device", "driver": null, "hardware": "a machine",
            "commit": "c0ffee", "date": "2026-01-01", "rows": rows, "summary": summary })
}

fn has(texts: &[String], expected: &[&str]) {
    for text in expected {
        assert!(texts.iter().any(|other| other == text), "{text} in {texts:?}");
    }
}

#[test]
fn priority_has_a_bar_for_each_pair_and_arm_and_lines_over_the_delay() {
    let row = |low: &str, high: &str, arm: &str, delay: f64, speedup: f64| json!({ "low": low, "high": high, "arm": arm, "delay_over_low_alone": delay, "speedup": speedup });
    let arms = [
        ("plain streams", 1.0),
        ("stream priorities", 3.0),
        ("preempt", 10.0),
        ("preempt, all preemptible", 9.0),
        ("ceiling", 12.0),
    ];
    let mut rows = Vec::new();
    for high in ["MM", "VA", "MD"] {
        rows.extend(arms.map(|(arm, speedup)| row("CFD", high, arm, 0.0, speedup)));
    }
    let (bars, texts) = svg_of(&results("priority", rows.clone(), json!({})));
    assert_eq!(bars, [3, 3, 3, 3]);
    has(
        &texts,
        &["a device; a machine; c0ffee; 2026-01-01", "CFD MM", "CFD VA", "stream priorities"],
    );
    has(&texts, &["FLEP, K40, mean: 10.1x", "FLEP, K40, best: 24.2x"]);
    assert!(!texts.iter().any(|text| text == "The urgent one later"));

    rows.extend(arms.map(|(arm, _)| row("CFD", "MM", arm, 1.1, 1.0)));
    let (bars, texts) = svg_of(&results("priority", rows.clone(), json!({})));
    assert_eq!(bars, [3, 3, 3, 3], "delayed pairs have lines");
    has(&texts, &["The urgent one later", "CFD MM, ceiling"]);

    // The CPU device has no stream priorities.
    rows.retain(|row| row["arm"] != "stream priorities");
    let (bars, texts) = svg_of(&results("priority", rows, json!({})));
    assert_eq!(bars, [3, 3, 3]);
    assert!(!texts.iter().any(|text| text == "stream priorities"));
}

#[test]
fn antt_has_pairs_and_triples() {
    let arms = [
        ("alone", 1.0),
        ("ceiling", 1.1),
        ("plain streams", 6.0),
        ("reordered", 5.8),
        ("preempt", 1.3),
        ("preempt, all preemptible", 1.4),
    ];
    let groups = [vec!["CFD", "MM"], vec!["NN", "VA"], vec!["PF", "MM", "VA"]];
    let rows = groups.iter().flat_map(|programs| {
        arms.map(|(arm, antt)| json!({ "programs": programs, "arm": arm, "antt": antt }))
    });
    let rows: Vec<Value> = rows.collect();
    let (bars, texts) = svg_of(&results("antt", rows.clone(), json!({})));
    assert_eq!(bars, [3, 3, 3, 3]);
    has(
        &texts,
        &["Pairs", "Triples", "PF MM VA", "FLEP, K40, mean: 8.0x", "FLEP, K40, mean: 6.6x"],
    );
    let (bars, texts) = svg_of(&results("antt", rows[..6].to_vec(), json!({})));
    assert_eq!(bars, [1, 1, 1, 1]);
    assert!(!texts.iter().any(|text| text == "Triples"));
}

#[test]
fn fairness_has_shares_and_a_point_for_each_loss() {
    let row = |pair: [&str; 2], arm: &str, most: Option<f64>, share: Option<f64>| {
        json!({ "weight_2": pair[0], "weight_1": pair[1], "arm": arm, "max_overhead": most, "share": share,
                "share_of_work": 0.6, "throughput_lost": most.map_or(0.0, |most| most / 2.0) })
    };
    let mut rows = Vec::new();
    for pair in [["MM", "CFD"], ["VA", "CFD"]] {
        rows.push(row(pair, "plain streams", None, None));
        // Only what FLEP has is in the first panel.
        rows.extend(
            [0.02, 0.1, 0.2]
                .map(|most| row(pair, "preempt", Some(most), (most == 0.1).then_some(0.67))),
        );
    }
    let results = results("fairness", rows, json!({ "throughput_lost": 0.05 }));
    let (bars, texts) = svg_of(&results);
    assert_eq!(bars, [2, 2, 2]);
    has(
        &texts,
        &["MM CFD", "VA CFD", "FLEP, K40: 2/3", "FLEP, K40: about 10 %", "preempt, of SM-time"],
    );
    let svg = picture(&results).unwrap().svg().unwrap();
    // And one in the legend.
    assert_eq!(svg.matches("<circle").count(), 1 + 6);
    let table = papers::comparison(&results).unwrap();
    assert_eq!(table[1][1..], ["66.7 %", "67.0 %", "66.7 %"]);
    assert_eq!(table[2][1..], ["about 10.0 %", "5.0 %", "0.0 %"]);
}

#[test]
fn prediction_has_both_errors_of_each_program() {
    let rows = ["CFD", "MM", "VA"]
        .map(|program| json!({ "program": program, "mean_error": 0.05, "online_mean_error": 0.1 }));
    let (bars, texts) = svg_of(&results("prediction", rows.to_vec(), json!({})));
    assert_eq!(bars, [3, 3]);
    has(&texts, &["CFD", "MM", "VA", "FLEP, K40, mean: 6.9 %"]);
}

#[test]
fn urgent_inference_has_three_bars_for_each_row_with_requests() {
    let row = |name: &str, p50: Option<f64>| {
        json!({ "name": name, "p50_us": p50, "p99_us": p50.map(|p50| 2.0 * p50),
                                                     "max_us": p50.map(|p50| 3.0 * p50) })
    };
    let rows =
        [row("batch alone", None), row("preempt", Some(44.0)), row("stream priority", Some(184.0))];
    let (bars, texts) = svg_of(&results("urgent-inference", rows.to_vec(), json!({})));
    assert_eq!(bars, [2, 2, 2]);
    has(&texts, &["preempt, p99 88.0 µs", "stream priority, p99 368 µs", "99 of 100"]);
}

#[test]
fn mix_has_three_settings_and_evictions() {
    let arms = [("plain streams", 6.0), ("preempt, static", 2.0), ("ceiling, static", 1.5)];
    let mut rows = Vec::new();
    for setting in ["sjf", "random", "group"] {
        rows.extend(arms.map(|(arm, antt)| {
            let makespan = (!arm.starts_with("ceiling")).then_some(1000.0 + antt);
            json!({ "setting": setting, "arm": arm, "antt": antt, "stp": 8.0 / antt, "makespan_p50_us": makespan,
                    "programs": ["Sort", "FFT"], "ntt": [antt, 2.0] })
        }));
    }
    rows.push(json!({ "wait_ms": 1, "yields_by_priority": [4, 3, 2, 1, 1, 1, 0, 0, 0] }));
    rows.push(json!({ "wait_ms": 64, "yields_by_priority": [0, 0, 0, 0, 0, 0, 0, 0, 0] }));
    let summary = json!({ "sjf_antt_change": -0.6, "sjf_antt_over_ceiling": 0.5, "sjf_stp_gain": 1.5,
                          "sjf_stp_over_ceiling": 0.75, "scheduling_overhead": 0.02 });
    let results = results("mix", rows, summary);
    let (bars, texts) = svg_of(&results);
    // ANTT, STP and overhead of three settings, NTT of two programs; plain streams have no overhead, and ceilings no
    // makespan.
    assert_eq!(bars, [3 + 3 + 2, 3 + 3 + 2 + 3, 3 + 3 + 2]);
    has(
        &texts,
        &["sjf", "random", "group", "Sort", "EffiSha: -65 %", "EffiSha: 1.42x", "EffiSha: < 5 %"],
    );
    has(&texts, &["1 ms", "64 ms", "priority"]);
    let table = papers::comparison(&results).unwrap();
    assert_eq!(table[0][1..], ["EffiSha, K40m", "here, a device", "if preemption were free"]);
    assert_eq!(table[1], ["ANTT, sjf", "-65.0 %", "-60.0 %", "-80.0 %"]);
    assert_eq!(table[2], ["STP, sjf", "1.80x", "1.50x", "2.00x"]);
    assert_eq!(table[3], ["ANTT, random", "-18.0 %", "-", "-"]);
    assert_eq!(table[7], ["scheduling overhead", "< 5.0 %", "2.0 %", "0.0 %"]);
}

#[test]
fn coschedule_has_preemptions_and_makespans_of_drawn_and_of_measured_speeds() {
    let row = |speeds: &str, setting: &str, tasks: u32, over_max_pair: f64| {
        json!({ "speeds": speeds, "setting": setting, "tasks": tasks, "preemptions_per_task": [0.0, 0.1, 0.05],
                "over_sequential": 0.7, "max_pair_over_sequential": 0.8, "over_max_pair": over_max_pair,
                "cost_20_over_sequential": 0.72, "cost_20_planned_over_sequential": 0.71,
                "cost_50_over_sequential": 0.76, "cost_50_planned_over_sequential": 0.74 })
    };
    let mut rows = Vec::new();
    for setting in ["actual, uniform", "random duration"] {
        rows.extend([row("drawn", setting, 10, 0.95), row("drawn", setting, 20, 0.9)]);
    }
    // Speeds and arms are not drawn.
    rows.push(json!({ "way": "all SMs", "speeds": [[1.0]] }));
    rows.push(json!({ "arm": "plan", "tasks": 5 }));
    let summary =
        json!({ "preemptions_per_task_worst_mean": 0.05, "preemptions_per_task_worst": 0.08 });
    let points = |rows: &[Value]| {
        let svg = picture(&results("coschedule", rows.to_vec(), json!({}))).unwrap().svg().unwrap();
        (svg.matches("<circle").count(), drawn(&svg).1)
    };
    let (count, texts) = points(&rows);
    assert_eq!(count, 2 * 2 * 3);
    has(&texts, &["Preemptions at drawn speeds", "paper, mean: 9 %", "paper, at most: 12 %"]);
    has(&texts, &["Makespans at drawn speeds: random duration", "planned for 50 %", "tasks"]);
    assert!(!texts.iter().any(|text| text.contains("measured")));

    rows.push(row("measured", "random duration", 10, 0.5));
    let (count, texts) = points(&rows);
    assert_eq!(count, 2 * 2 * 3 + 3);
    has(
        &texts,
        &["Preemptions at measured speeds", "Makespans at measured speeds: random duration"],
    );

    let table = papers::comparison(&results("coschedule", rows, summary)).unwrap();
    assert_eq!(table[1][1..], ["9.0 %", "5.0 %", "-"]);
    assert_eq!(table[3][1..], ["20.0 to 30.0 %", "20.0 to 20.0 %", "-"]);
    assert_eq!(table[5][1..], ["10.0 to 12.0 %", "-", "-"], "there is no such setting");
    assert_eq!(table[6][1..], ["3.0 to 5.0 %", "5.0 to 10.0 %", "-"], "of drawn speeds alone");
}

#[test]
fn values_that_no_axis_can_have_are_left_out() {
    let row = |arm: &str, speedup: f64| json!({ "low": "CFD", "high": "MM", "arm": arm, "delay_over_low_alone": 0.0, "speedup": speedup });
    let zero = row("preempt", 0.0);
    let error = picture(&results("priority", vec![zero.clone()], json!({}))).unwrap().svg();
    let error = error.unwrap_err().to_string();
    assert!(error.contains("nothing to draw"), "{error}");
    let (bars, _) = svg_of(&results("priority", vec![zero, row("ceiling", 3.0)], json!({})));
    assert_eq!(bars, [1]);
}

#[test]
fn suites_without_a_picture_are_refused_with_those_that_have_one() {
    let error = ensure_picture("verify").unwrap_err().to_string();
    assert!(error.contains("`verify`") && error.contains("fairness"), "{error}");
    assert!(papers::comparison(&results("verify", vec![json!({})], json!({}))).is_none());
    for suite in ["priority", "antt", "fairness", "prediction", "mix", "coschedule"] {
        ensure_picture(suite).unwrap();
        assert!(papers::comparison(&results(suite, vec![], json!({}))).is_some());
    }
}

/// Results in a file, drawn by the program.
fn plot(name: &str, text: &str) -> (Output, PathBuf) {
    let path = |end: &str| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{end}"));
    fs::write(path("json"), text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_preempt-plot"));
    (command.args([path("json"), path("svg")]).output().unwrap(), path("svg"))
}

#[test]
fn the_program_draws_a_file_and_prints_the_table() {
    let row = json!({ "program": "MM", "mean_error": 0.05, "online_mean_error": 0.1 });
    let results = results("prediction", vec![row], json!({ "mean_error": 0.05 }));
    let (output, svg) = plot("whole", &results.to_string());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.contains("FLEP, K40") && table.contains("5.0 %"), "{table}");
    let (bars, _) = drawn(&fs::read_to_string(svg).unwrap());
    assert_eq!(bars.len(), 2);
}

#[test]
fn broken_files_are_refused_in_words() {
    let row = json!({ "program": "MM", "mean_error": 0.05, "online_mean_error": 0.1 });
    let without = |key: &str| {
        let mut row = row.clone();
        row.as_object_mut().unwrap().remove(key);
        results("prediction", vec![row.clone(), row], json!({})).to_string()
    };
    for (name, text, expected) in [
        ("cut", "{ \"suite\": \"mix\"".to_owned(), "is no JSON"),
        ("nameless", "{}".to_owned(), "they name no suite"),
        (
            "verify",
            results("verify", vec![row.clone()], json!({})).to_string(),
            "no picture of the suite `verify`",
        ),
        ("rowless", "{ \"suite\": \"mix\" }".to_owned(), "have no rows"),
        ("empty", results("mix", vec![], json!({})).to_string(), "have no rows"),
        ("lacking", without("mean_error"), "row 1: missing field `mean_error`"),
    ] {
        let (output, svg) = plot(name, &text);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert!(errors.starts_with("preempt-plot: ") && errors.contains(expected), "{errors}");
        assert!(errors.contains(&format!("{name}.json")), "{errors}");
        assert!(!svg.exists(), "{name}");
    }
}

#[test]
fn chimera_has_lines_by_limit_bars_by_program_and_gains_of_the_shown_pairs() {
    let row = |program: &str, arm: &str, limit: f64, lost: Option<f64>| {
        let violations = (arm == "choice").then_some(0.01);
        let late = lost.map(|_| if arm == "drain" { 0.6 } else { 0.02 });
        json!({ "program": program, "arm": arm, "limit_us": limit, "violations": violations, "late": late,
                "throughput_lost": lost, "drained": 1, "requeued": 2, "switched": 0 })
    };
    let mut rows = Vec::new();
    for program in ["BS", "LUD"] {
        rows.push(row(program, "drain", 15.0, Some(0.09)));
        rows.push(row(program, "flush", 15.0, None));
        rows.push(row(program, "switch", 15.0, None));
        rows.extend([5.0, 15.0].map(|limit| row(program, "choice", limit, Some(0.1))));
    }
    for pair in [["BS", "LUD"], ["BS", "CP"]] {
        let arms = [("in order", 10.0, 0.5), ("shared", 2.0, 1.0), ("ceiling", 1.5, 1.2)];
        rows.extend(
            arms.map(
                |(arm, antt, stp)| json!({ "pair": pair, "arm": arm, "antt": antt, "stp": stp }),
            ),
        );
    }
    let summary = json!({ "violations_mean": 0.001, "throughput_lost_mean": 0.08, "antt_gain": 6.0,
                          "antt_ceiling": 6.5, "stp_gain": 0.2, "stp_ceiling": 0.25 });
    let results = results("chimera", rows.clone(), summary);
    let svg = picture(&results).unwrap().svg().unwrap();
    let (bars, texts) = drawn(&svg);
    // Drain and choice of two programs, in two panels; drained, dropped and switched blocks of two limits; shared and ceiling
    // of the one pair that is shown, in two panels.
    let mut bars: Vec<_> = bars.into_iter().map(|(_, count)| count).collect();
    bars.sort_unstable();
    assert_eq!(bars.iter().sum::<usize>(), 2 * 4 + 2 * 3 + 2 * 2, "{bars:?}");
    has(&texts, &["BS LUD", "LUD", "limit, in µs", "Tasks behind their deadline"]);
    has(&texts, &["Chimera, simulated Fermi, mean: 25.40x", "Throughput lost by limit", "5 µs"]);
    has(&texts, &["Tasks behind their deadline, which a limit of 15 µs allows", "dropped"]);
    assert!(!texts.iter().any(|text| text == "BS CP" || text == "switch"), "{texts:?}");
    assert!(!texts.iter().any(|text| text.starts_with("Estimated")), "{texts:?}");
    let table = papers::comparison(&results).unwrap();
    assert_eq!(table[1], ["violations of 15 µs, or `limit_us`", "0.2 %", "0.1 %", "0.0 %"]);
    assert_eq!(table[6], ["ANTT lower, all pairs", "5.50x", "6.00x", "6.50x"]);
    assert_eq!(table[7], ["STP, all pairs", "+12.2 %", "+20.0 %", "+25.0 %"]);
    assert_eq!(table[8][2..], ["-", "-"]);
    assert_eq!(table[11], ["tasks behind their deadline, drain", "61.3 %", "60.0 %", "0.0 %"]);
    assert_eq!(table.len(), 1 + 9 + 4, "no estimates");

    // Without stops that the device has timed, and without pairs.
    rows.truncate(10);
    rows.iter_mut().for_each(|row| row["violations"] = Value::Null);
    let (_, texts) = svg_of(&crate::results("chimera", rows, json!({})));
    has(&texts, &["Tasks behind their deadline"]);
    assert!(!texts.iter().any(|text| text.contains("STP") || text.contains("took longer")));
}

#[test]
fn chimera_has_estimates_and_what_is_strict_once_they_are_measured() {
    let row = |program: &str, arm: &str, late: f64| json!({ "program": program, "arm": arm, "limit_us": 30.0, "late": late, "throughput_lost": 0.1 });
    let estimate = |program: &str, saved: Option<f64>, [strict, declared]: [u32; 2]| {
        json!({ "estimated": program, "kernel": "kernel", "block_task_us": 100.0, "blocks_per_sm": 4,
                "saved_bytes": saved, "context_bytes": 32768, "drain_us": 50.0,
                "switch_us": saved.map(|_| 0.5), "context_us": 4.0, "flush_lost": 0.307,
                "switch_lost": saved.map(|_| 0.01), "context_lost": 0.08, "kernels_strict": strict,
                "kernels_relaxed": 0, "kernels_declared": declared, "kernels_without": 1 })
    };
    let mut rows = Vec::new();
    for program in ["BS", "ST", "SAD"] {
        rows.extend([row(program, "drain", 0.8), row(program, "flush", 0.1)]);
    }
    let of_techniques =
        svg_of(&results("chimera", rows.clone(), json!({}))).0.iter().sum::<usize>();
    assert_eq!(of_techniques, 2 * 3 * 2, "drain and flush of three programs, in two panels");
    rows.extend([
        estimate("BS", None, [1, 0]),
        estimate("ST", Some(4096.0), [0, 1]),
        estimate("SAD", Some(4096.0), [2, 1]),
    ]);
    let summary = json!({ "estimated_drain_us": 50.0, "estimated_context_lost": 0.08 });
    let results = results("chimera", rows, summary);
    let (bars, texts) = svg_of(&results);
    // Drain, and what is saved where that is known, and all registers; flush in the place of drain; what is late with
    // kernels that are strict where that is known, and with all.
    let more = (3 + 2 + 3) + (3 + 2 + 3) + (2 + 3);
    assert_eq!(bars.iter().sum::<usize>(), of_techniques + more, "{bars:?}");
    has(
        &texts,
        &["switch, all registers and shared memory", "of kernels that are strictly idempotent"],
    );
    has(&texts, &["Chimera, simulated Fermi, strict: 50.0 %"]);
    let table = papers::comparison(&results).unwrap();
    assert_eq!(table[table.len() - 2], ["estimated time to drain", "830 µs", "50.0 µs", "-"]);
    assert_eq!(table[table.len() - 1][1..], ["47.7 %", "8.0 %", "-"]);
}

#[test]
fn latency_has_a_line_for_each_arm_and_a_bar_for_each_stop() {
    let row = |arm: &str, block_task: f64, yields: bool| json!({ "arm": arm, "block_task_us": block_task, "yield_points": yields, "p50_us": 20.0, "p99_us": 40.0 });
    let arms =
        ["preempt", "preempt, armed", "floor", "floor, all SMs", "stream priority", "idle GPU"];
    let mut rows = Vec::new();
    for block_task in [1.0, 100.0] {
        rows.extend(
            [true, false]
                .into_iter()
                .flat_map(|yields| arms.map(|arm| row(arm, block_task, yields))),
        );
    }
    let (_, texts) = svg_of(&results("latency", rows.clone(), json!({})));
    has(&texts, &["Half of the launches", "99 of 100", "preempt, armed", "stream priority"]);
    assert!(!texts.iter().any(|text| text == "floor, all SMs"), "{texts:?}");
    assert!(!texts.iter().any(|text| text.starts_with("From the signal")), "{texts:?}");

    rows.extend(["CFD", "MM", "PL"].map(
        |program| json!({ "arm": "stop", "program": program, "p50_us": 20.0, "p99_us": 30.0 }),
    ));
    let (bars, texts) = svg_of(&results("latency", rows, json!({})));
    assert_eq!(bars.iter().filter(|&&bars| bars == 3).count(), 2, "{bars:?}");
    has(
        &texts,
        &["From the signal until the last block has left", "PL", "EffiSha, K40m, mean: 80 µs"],
    );
}

#[test]
fn overhead_is_shown_to_the_plain_kernel_and_beside_other_ways() {
    let arms = [
        ("plain", 1.0),
        ("preempt", 0.99),
        ("preempt, all preemptible", 1.02),
        ("slices", 1.3),
        ("FLEP's loop", 110.0),
    ];
    let rows = ["CFD", "MM"].into_iter().flat_map(|program| {
        arms.map(|(arm, ratio)| json!({ "program": program, "arm": arm, "p50_to_plain": ratio }))
    });
    let (bars, texts) = svg_of(&results("overhead", rows.collect(), json!({})));
    // Ours are in both panels, in the same colours.
    assert_eq!(bars, [4, 4, 2, 2]);
    has(&texts, &["CFD", "FLEP's loop", "FLEP, K40, mean: 2.5 %", "EffiSha, K40m, worst: 8 %"]);
}

#[test]
fn spatial_has_a_bar_for_each_number_of_sms() {
    let arms = [
        ("victim alone", None, None),
        ("urgent alone", None, Some(17.0)),
        ("just enough", Some(1.8), Some(26.0)),
        ("twice", Some(2.5), Some(25.0)),
        ("all", Some(16.0), Some(24.0)),
    ];
    let rows = ["NN", "MM"].into_iter().flat_map(|urgent| {
        arms.map(|(arm, cost, time)| {
            json!({ "victim": "CFD", "urgent": urgent, "arm": arm, "cost_us": cost, "urgent_p50_us": time })
        })
    });
    let (bars, texts) = svg_of(&results("spatial", rows.collect(), json!({})));
    assert_eq!(bars, [4, 4, 4]);
    has(&texts, &["CFD NN", "just enough", "twice", "all"]);
}

#[test]
fn foreign_has_kernels_and_requests_beside_them() {
    let kernel = |kernel: &str| json!({ "kernel": kernel, "ratio": 1.1, "ratio_default": 0.9 });
    let beside = |batch: &str, arm: &str| json!({ "batch": batch, "arm": arm, "p99_us": 60.0 });
    let mut rows = vec![kernel("saxpy"), kernel("softmax"), kernel("gelu")];
    let (bars, _) = svg_of(&results("foreign", rows.clone(), json!({})));
    assert_eq!(bars, [3, 3]);
    rows.extend([
        beside("softmax", "preempt"),
        beside("softmax", "stream priority"),
        beside("gelu", "preempt"),
    ]);
    let (bars, texts) = svg_of(&results("foreign", rows, json!({})));
    assert_eq!(bars, [5, 4], "one arm was not measured beside gelu");
    has(&texts, &["saxpy", "Requests beside a batch kernel, p99", "stream priority"]);
}

#[test]
fn pool_has_policies_beside_the_papers() {
    let late = |arm: &str, load: f64| json!({ "figure": "7-9", "mix": "W1", "arm": arm, "load": load, "late": 0.1, "wasted": 0.02 });
    let beside = |arm: &str, batch_us: f64| json!({ "figure": "6", "task": "PL", "arm": arm, "batch_us": batch_us, "response_over_alone": 9.0 });
    let mut rows = vec![json!({ "figure": "tasks" })];
    rows.extend(["first come", "elastic, killed", "in time, yielding"].map(|arm| late(arm, 1.0)));
    rows.extend([beside("no stop", 1e5), beside("no stop", 8e5), beside("yielding", 8e5)]);
    let (bars, texts) = svg_of(&results("pool", rows, json!({})));
    // In the order of the panels: a task in two arms; three policies and the paper's; what three policies waste.
    assert_eq!(bars.iter().sum::<usize>(), 2 + 4 + 3, "{bars:?}");
    has(&texts, &["W1, load 1", "in time, yielding", "TReM, four P1000: elastic, killed"]);
    has(&texts, &["Response of a task that comes to a batch task of 800 ms"]);
}

#[test]
fn sim_has_a_point_for_each_turnaround() {
    let row = |arm: &str| json!({ "arm": arm, "turnaround_p50_us": [100.0, 200.0], "turnaround_simulated_us": [101.0, 190.0] });
    let rows = vec![row("preempt"), row("preempt"), row("preempt, all preemptible")];
    let svg = picture(&results("sim", rows, json!({}))).unwrap().svg().unwrap();
    let document = Document::parse(&svg).unwrap();
    let circles = document.descendants().filter(|node| node.has_tag_name("circle"));
    // And one for each arm in the legend.
    assert_eq!(circles.count(), 3 * 2 + 2);
}

#[test]
fn launch_has_a_bar_for_each_side_and_form() {
    let task = |name: &str, kernel: &str, side: &str, p50: f64| json!({ "name": name, "kernel": kernel, "side": side, "p50_us": p50 });
    let form = |form: &str| json!({ "form": form, "p50_us": 9.0, "p99_us": 20.0 });
    let rows = vec![
        task("stream", "busy, 132 blocks of 128 threads", "preempt", 12.0),
        task("stream", "busy, 132 blocks of 128 threads", "driver", 11.0),
        json!({ "of": "a graph", "call": "update", "p50_us": 0.8 }),
        form("plain launch"),
        form("program, armed"),
        form("program, not armed"),
    ];
    let (bars, texts) = svg_of(&results("launch", rows, json!({})));
    // Those of the first panel are of the colours of the second one's, too.
    assert_eq!(bars, [1 + 3, 1 + 3]);
    has(&texts, &["stream, 132 blocks", "preempt", "driver", "program, armed", "p99"]);
}

#[test]
fn choice_has_a_bar_for_each_arm_and_tells_what_is_lost_with_yield_points() {
    let row = |points: bool, arm: &str| {
        json!({ "yield_points": points, "sms": 1, "arm": arm, "urgent_p50_us": 50.0, "urgent_p99_us": 99.0,
                "lost_mean_us": 7.0 })
    };
    let arms = [false, true].map(|points| ["first", "cheapest"].map(|arm| row(points, arm)));
    let (bars, texts) = svg_of(&results("choice", arms.concat(), json!({})));
    assert_eq!(bars, [2 + 2 + 1, 2 + 2 + 1]);
    has(&texts, &["1 SM, none", "1 SM, yield points", "cheapest"]);
}

#[test]
fn libraries_has_a_bar_for_each_arm_and_size() {
    let row = |size: u32, arm: &str| json!({ "size": size, "arm": arm, "p50_us": 50.0, "p99_us": 99.0, "batch": 1.1 });
    let rows = [1024, 2048].map(|size| ["streams", "preempt"].map(|arm| row(size, arm)));
    let (bars, texts) = svg_of(&results("libraries", rows.concat(), json!({})));
    assert_eq!(bars, [3 * 2, 3 * 2]);
    has(&texts, &["1024", "2048", "streams", "preempt"]);
}

#[test]
fn processes_has_a_bar_for_each_arm_and_block() {
    let row = |block: f64, arm: &str| json!({ "block_us": block, "arm": arm, "p50_us": 50.0, "p99_us": 99.0 });
    let arms = ["two processes", "one process, preempt"];
    let rows = [100.0, 1000.0].map(|block| arms.map(|arm| row(block, arm)));
    let (bars, texts) = svg_of(&results("processes", rows.concat(), json!({})));
    assert_eq!(bars, [2 * 2, 2 * 2]);
    has(&texts, &["100 µs", "1.00 ms", "two processes", "one process, preempt"]);
}

#[test]
fn armed_tells_what_armed_programs_cost_others_and_calls_of_threads() {
    let beside = |what: &str, armed: u32| json!({ "what": what, "armed": armed, "over_none": 1.1 });
    let mut rows =
        ["victim", "short launch"].map(|what| [0, 4].map(|armed| beside(what, armed))).concat();
    rows.push(json!({ "what": "in the driver", "call": "load a module", "p50_us": 70.0, "max_us": 900.0 }));
    rows.push(json!({ "what": "at random", "beside": "idle", "tries": 10, "began_armed": 9 }));
    let (bars, texts) = svg_of(&results("armed", rows, json!({})));
    assert_eq!(bars, [2 + 1, 2 + 1]);
    has(&texts, &["victim", "short launch", "load a module", "longest"]);
}

#[test]
fn soak_shows_memory_over_its_parts_where_it_is_known() {
    let row = |part: u32, free: Option<f64>| json!({ "part": part, "resident_mb": 240.0, "free_mb": free });
    let of = |free: Option<f64>| {
        svg_of(&results("soak", [1, 2].map(|part| row(part, free)).to_vec(), json!({}))).1
    };
    has(&of(Some(9000.0)), &["Memory of the process", "Free memory of the device"]);
    let texts = of(None);
    has(&texts, &["Memory of the process"]);
    assert!(!texts.iter().any(|text| text == "Free memory of the device"), "{texts:?}");
}

#[test]
fn engine_has_a_group_for_each_policy_and_number_that_waits() {
    let row = |policy: &str, launches: &str, waiting: u32| json!({ "policy": policy, "launches": launches, "waiting": waiting, "event_p50_us": 0.9, "event_p99_us": 1.3, "decision_p50_us": 0.6, "decision_p99_us": 0.9, "sms_needed": [132] });
    let rows = vec![row("FFS", "large", 1000), row("static priority", "mixed", 100_000)];
    let (bars, texts) = svg_of(&results("engine", rows, json!({})));
    assert_eq!(bars[..4], [2, 2, 2, 2]);
    has(
        &texts,
        &["FFS, large", "static priority, mixed", "1000 launches wait", "100000 launches wait"],
    );
}

#[test]
fn storm_shows_what_blocks_did_where_it_is_counted() {
    let row = |name: &str, count: u64| json!({ "name": name, "drains": count, "drops": count, "switches": count });
    let rows = vec![row("random ranges", 9000), row("cancelled", 0)];
    let (bars, texts) = svg_of(&results("storm", rows, json!({})));
    assert_eq!(bars, [1, 1, 1]);
    has(&texts, &["random ranges", "drained", "switched"]);
    assert!(!texts.iter().any(|text| text == "cancelled"), "{texts:?}");
}
