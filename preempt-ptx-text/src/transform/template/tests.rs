use super::*;

#[test]
fn the_worker_loop_has_the_marks_and_the_shape() {
    let template = Template::compiled().unwrap();
    let count = |piece: &Piece| template.pieces.iter().filter(|of| *of == piece).count();
    assert_eq!(count(&Piece::Body), 1);
    assert!(count(&Piece::Cohort) > 10);
    assert!(count(&Piece::Barrier) >= 4);
    assert!(count(&Piece::Slot) > 20);
    let filling = Filling { cohort: "cohort", barrier: 7, slot: "%slot", body: "BODY" };
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
        Template::of(WORKER.replace(from, to).leak()).unwrap_err()
    };
    assert_eq!(of("\tbar.sync \t0;\n\tsetp", "\tsetp"), "0 places for a body");
    assert_eq!(
        of("\tbar.sync \t0;\n\tsetp", "\tbar.sync \t2;\n\tsetp"),
        "a barrier `bar.sync` that is not the loop's"
    );
    let early = "a body that runs ahead of the index of its task";
    assert_eq!(of("mov.u32 %preempt_block_z, ", "mov.u32 %preempt_grid_z, "), early);
    assert_eq!(of("preempt_slot[112]", "preempt_slot[88]"), "memory in `.shared` that is no slot");
    assert_eq!(of("worker_param_0[144]", "worker_param_0[152]"), "a cohort of another size");
    assert_eq!(
        of(".target sm_80", ".target sm_90"),
        "another version or target than its constants say"
    );
    assert_eq!(
        of(".visible .entry worker(", ".global .b32 more; .visible .entry worker("),
        "variables outside of the entry"
    );
}
