use super::*;

const FORMS: [Form; 2] = [Form::Polling, Form::Voting];

#[test]
fn the_worker_loop_has_the_marks_and_the_shape() {
    let template = Template::compiled(Form::Worker).unwrap();
    let count = |piece: &Piece| template.pieces.iter().filter(|of| *of == piece).count();
    assert_eq!(count(&Piece::Body), 1);
    assert!(count(&Piece::Cohort) > 10);
    assert!(count(&Piece::Barrier) >= 4);
    assert!(count(&Piece::Slot) > 20);
    let filling = Filling { cohort: "cohort", barrier: 7, vote: 9, slot: "%slot", body: "BODY" };
    let text = template.filled(&filling);
    assert!(!text.contains("worker_param_0") && !text.contains("preempt_slot"), "{text}");
    assert_eq!(text.matches("bar.sync").count(), count(&Piece::Barrier));
    assert_eq!(text.matches("bar.sync \t7;").count(), count(&Piece::Barrier));
    assert_eq!(text.matches("BODY").count(), 1);
}

#[test]
fn another_shape_is_refused() {
    let of = |from: &str, to: &str| {
        assert!(WORKER.contains(from), "{from}");
        Template::of(&WORKER.replace(from, to), Form::Worker).unwrap_err()
    };
    assert_eq!(of("\tbar.sync \t0;\n", "\n"), "0 places for a body");
    assert_eq!(
        of("\tbar.sync \t0;\n", "\tbar.sync \t2;\n"),
        "a barrier `bar.sync` that is not the loop's"
    );
    let early = "a body that runs ahead of the index of its task";
    assert_eq!(of("mov.u32 %preempt_block_z, ", "mov.u32 %preempt_grid_z, "), early);
    assert_eq!(of("preempt_slot[112]", "preempt_slot[88]"), "variables outside of the entry");
    assert_eq!(of("worker_param_0[160]", "worker_param_0[168]"), "a cohort of another size");
    assert_eq!(
        of(".target sm_80", ".target sm_90"),
        "another version or target than its constants say"
    );
    assert_eq!(
        of(".visible .entry worker(", ".global .b32 more; .visible .entry worker("),
        "variables outside of the entry"
    );
}

#[test]
fn the_loops_with_yield_points_have_marks_and_points() {
    for form in FORMS {
        let template = Template::compiled(form).unwrap();
        let point = template.point.as_ref().unwrap();
        let count = |piece: &Piece| template.pieces.iter().filter(|of| *of == piece).count();
        assert_eq!((count(&Piece::Body), count(&Piece::Vote)), (1, 0));
        assert_eq!(
            count(&Piece::Watch),
            2,
            "set where a block starts, and read where it gives tasks back"
        );
        let filling =
            Filling { cohort: "cohort", barrier: 7, vote: 9, slot: "%slot", body: "BODY" };
        let text = template.filled(&filling);
        let point = (point.start(), point.text(&filling, "$tail"), point.end());
        for text in [&text, &point.0, &point.1, &point.2] {
            for own in ["preempt_slot", "_param_0", "preempt_yields", "__local_depot"] {
                assert!(!text.contains(own), "{form:?}: {own}: {text}");
            }
            // Names that the body may have, too.
            for register in ["%r1", "%rd1,", "%p1", "%rs1", "%SP"] {
                assert!(!text.contains(register), "{form:?}: {register}: {text}");
            }
        }
        // What changes at yield points, and no copy of the cohort, which the loop would read from local memory.
        assert!(text.contains("preempt_stack[24]"), "{text}");
        assert!(text.contains("%slot+112") && text.contains("BODY"), "{text}");
        assert_eq!(point.1.matches("bar.").count(), usize::from(form == Form::Voting));
        assert_eq!(point.1.contains(", 9, "), form == Form::Voting, "{}", point.1);
        assert!(point.1.contains("@%preempt_leaves bra $tail;"), "{}", point.1);
        // What changes from one yield point to the next is in registers.
        assert!(!point.1.contains("st.local") && point.0.contains("ld.local"), "{}", point.1);
        assert_eq!(point.0.matches("ld.local").count(), point.2.matches("st.local").count());
    }
}

#[test]
fn another_yield_point_is_refused() {
    let of = |form: Form, from: &str, to: &str| {
        let start = WORKER.find(&format!(".entry {}(", form.entry())).unwrap();
        let at = start + WORKER[start..].find(from).unwrap();
        let text = format!("{}{to}{}", &WORKER[..at], &WORKER[at + from.len()..]);
        Template::of(&text, form).unwrap_err()
    };
    let polling = |from: &str, to: &str| of(Form::Polling, from, to);
    assert_eq!(
        polling("// preempt.yields", "// preempt.other"),
        "not one mark `// preempt.yields %`"
    );
    let again = "// preempt.leaves %r1 %rd1\n\t// preempt.leaves";
    assert_eq!(polling("// preempt.leaves", again), "not one mark `// preempt.leaves %`");
    let ahead_of_second =
        |what: &str| polling("// preempt.leaves ", &format!("{what}\n\t// preempt.leaves "));
    let error = ahead_of_second("ret;");
    assert_eq!(error, "`ret` in a yield point");
    let error = ahead_of_second("bra $L__BB0_1;\n$L__BB0_999:");
    assert!(error.starts_with("a branch into or out of a yield point"), "{error}");
    let error = ahead_of_second("add.u32 %r1, %r1, 1;");
    assert_eq!(error, "`%r1`, which a yield point computes, elsewhere");
    let error = ahead_of_second("bar.sync 0;");
    assert_eq!(error, "a barrier `bar.sync` in a yield point that is no vote");
    let error = polling("mov.u32 %preempt_block_z, ", "mov.u32 %preempt_grid_z, ");
    assert_eq!(error, "a body that runs ahead of the index of its task");
    let is_vote = |line: &&str| line.contains("bar.red.or.pred") && line.contains(", 2, ");
    let vote = WORKER.lines().find(is_vote).unwrap();
    let error = of(Form::Voting, vote, &vote.replace(", 2, ", ", 1, "));
    assert_eq!(error, "a barrier `bar.red.or.pred` in a yield point that is no vote");
}
