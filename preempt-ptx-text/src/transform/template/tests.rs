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
