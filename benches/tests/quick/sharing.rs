//! Programs that share the device.

use super::*;

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

/// What holds of `coschedule` on every device, with this many programs.
pub fn assert_coscheduled(json: &Value, ways: &[&str], programs: usize) {
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
        // With its preemptions, a plan for costly ones is no longer than MaxPair's, and than a plan that ignores them.
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
fn chimera_has_nine_arms_and_an_estimate_for_each_program_and_four_arms_for_each_pair() {
    let options = ["--program", "BS", "--program", "LUD", "--program", "ST"];
    let json = quick_of(
        "chimera",
        &options.into_iter().chain(["--svg", "chimera.svg"]).collect::<Vec<_>>(),
    );
    let rows = json["rows"].as_array().unwrap();
    let (rows, others) = rows.split_at(3 * 9);
    let (pairs, estimates) = others.split_at(2 * 4);
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
            let saves = row["form"] == "checkpoints";
            assert_eq!(number(row, "saved_bytes") > 0.0, number(row, "switched") > 0.0, "{row}");
            assert_eq!(row["with_checkpoints_over_without"].is_number(), saves, "{row}");
        }
    }
    // With `--quick` those of LUD alone.
    for (arms, pair) in pairs.chunks(4).zip([["BS", "LUD"], ["LUD", "ST"]]) {
        assert_eq!(column(arms, "arm"), ["in order", "shared", "ceiling", "halves"]);
        for row in arms {
            assert_eq!(row["pair"], json!(pair));
            assert_numbers(row, &["antt", "stp", "samples"]);
        }
    }
    // The yield points of one are proved, the other one declares that its block-tasks may run again.
    let kernels = [("BS", [1, 0, 0, 0]), ("LUD", [0, 0, 0, 4]), ("ST", [0, 0, 1, 0])];
    assert_eq!(estimates.len(), kernels.len());
    for (row, (program, counts)) in estimates.iter().zip(kernels) {
        assert_eq!(row["estimated"], program);
        let found = ["strict", "relaxed", "declared", "without"]
            .map(|of| number(row, &format!("kernels_{of}")));
        assert_eq!(found, counts.map(f64::from), "{row}");
        assert!(row["kernel"].is_string() && number(row, "block_tasks") > 0.0, "{row}");
        // Both are whole nanoseconds.
        let half = number(row, "block_task_us") / 2.0;
        assert!((number(row, "drain_us") - half).abs() < 1e-3, "{row}");
        assert!(number(row, "blocks_per_sm") > 0.0, "{row}");
        assert_eq!(row["flush_lost"].is_number(), program != "LUD", "{row}");
        let saved = rows.iter().any(|other| {
            other["program"] == program && other["switched"].as_u64().is_some_and(|count| count > 0)
        });
        for key in ["saved_bytes", "switch_us", "switch_lost"] {
            assert_eq!(row[key].is_number(), saved, "{key} in {row}");
        }
        let unknown = ["context_bytes", "context_us", "context_lost"];
        assert!(
            unknown.iter().all(|key| row[key] == Value::Null),
            "the CPU device has no registers"
        );
    }
    let summary = &json["summary"];
    assert_numbers(summary, &["memory_gb_per_s", "estimated_drain_us", "estimated_flush_lost"]);
    let [ours, halves] = ["antt_gain", "antt_halves"].map(|key| number(summary, key));
    assert!(number(summary, "over_halves") <= ours / halves, "the least of four ratios");
    assert_numbers(summary, &["over_ceiling", "halves_over_ceiling", "lud_stp_halves"]);
    assert!(
        ["switch_us", "switch_lost", "context_us", "context_lost"]
            .iter()
            .all(|key| summary.get(format!("estimated_{key}")).is_some())
    );
    let kernels = ["strict", "relaxed", "declared", "without"]
        .map(|of| number(summary, &format!("kernels_{of}")));
    assert_eq!(kernels, [1.0, 0.0, 1.0, 4.0]);
    assert_eq!((&summary["wrong"], &summary["limit_us"]), (&0.into(), &30.0.into()));
    let keys = ["violations_mean", "violations_worst", "throughput_lost_switch"];
    assert!(keys.iter().all(|key| summary.get(key).is_some()), "{summary}");
    let keys = ["throughput_lost_mean", "throughput_lost_flush", "throughput_lost_drain"];
    assert_numbers(summary, &keys);
    assert_numbers(summary, &["antt_gain", "stp_gain", "over_ceiling", "drops", "switches"]);
    assert_numbers(summary, &["with_checkpoints_over_without_max"]);
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
fn choice_has_two_arms_for_each_victim_and_number_of_sms() {
    let json = quick("choice");
    let rows = json["rows"].as_array().unwrap();
    let (mut yields, mut of_rows) = (0, Vec::new());
    for arms in rows.chunks(2) {
        let names: Vec<_> = arms.iter().map(|row| row["arm"].as_str().unwrap()).collect();
        assert_eq!(names, ["first", "cheapest"]);
        let of =
            |row: &Value| (row["yield_points"].as_bool().unwrap(), row["sms"].as_u64().unwrap());
        assert_eq!(of(&arms[0]), of(&arms[1]));
        of_rows.push(of(&arms[0]));
        for row in arms {
            assert_eq!(row["samples"], 4);
            assert_numbers(row, &["urgent_p50_us", "urgent_p99_us", "victim_p50_us"]);
            let lost = row["lost_mean_us"].as_f64().unwrap();
            assert!(
                lost == 0.0 || of(row).0,
                "only block-tasks with yield points are dropped: {row}"
            );
            yields += row["yields"].as_u64().unwrap();
        }
    }
    // Eight SMs are all that the CPU device has, or more.
    assert_eq!(of_rows, [(false, 1), (false, 2), (true, 1), (true, 2)]);
    let summary = &json["summary"];
    assert!(yields > 0 && summary["yields"] == yields, "{summary}");
    assert_numbers(summary, &["cheapest_over_first_urgent"]);
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
