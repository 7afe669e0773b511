//! Control flow and divergence of small bodies.

use super::*;
use crate::divergence::{Among, Divergence};
use crate::read;

/// A diamond within a loop, which some threads leave early.
const BODY: &str = "
    mov.u32 %r1, %tid.x;
LOOP:
    setp.eq.u32 %p1, %r0, 0;
    @%p1 bra LEFT;
    add.u32 %r0, %r0, 1;
    bra MEET;
LEFT:
    add.u32 %r0, %r0, 2;
MEET:
    setp.lt.u32 %p2, %r0, %r1;
    @%p2 bra LOOP;
    @%p1 trap;
";

fn with_flow<T>(body: &str, look: impl FnOnce(&Code<'_>, &Flow, &mut Budget) -> T) -> T {
    let head = ".version 8.0 .target sm_90 .address_size 64 .entry k() {";
    let text = format!("{head} .reg .pred %p<4>; .reg .b32 %r<4>; {body} ret; }}");
    let module = read(&text).unwrap();
    let function = module.functions().next().unwrap();
    let code = Code::of(&module, function, function.body.as_ref().unwrap()).unwrap();
    let mut budget = Budget(1_000_000);
    let flow = Flow::of(&code, &mut budget).unwrap();
    look(&code, &flow, &mut budget)
}

#[test]
fn blocks_end_at_branches_and_labels() {
    with_flow(BODY, |_, flow, _| {
        assert_eq!(flow.blocks, [0..1, 1..3, 3..5, 5..6, 6..8, 8..9, 9..10]);
        assert_eq!(flow.after[1], [2, 3]);
        assert_eq!(flow.after[4], [1, 5]);
        // A trap goes nowhere, but where its guard does not hold.
        assert_eq!(flow.after[5], [6]);
        assert_eq!(flow.after[6], [flow.exit()]);
    });
}

#[test]
fn ways_meet_at_the_post_dominator() {
    with_flow(BODY, |_, flow, budget| {
        assert_eq!(flow.post[1], Some(4));
        assert_eq!(flow.post[4], Some(5));
        let mut region = flow.region(1, budget).unwrap();
        region.sort_unstable();
        assert_eq!(region, [2, 3]);
        let on = flow.control_dependence(budget).unwrap();
        // The arms of the diamond, and the loop that is entered again.
        assert_eq!((&on[2][..], &on[3][..]), (&[1][..], &[1][..]));
        assert_eq!((&on[1][..], &on[4][..], &on[5][..]), (&[4][..], &[4][..], &[][..]));
    });
}

#[test]
fn loops_are_found_with_those_inside() {
    let nested = "
A:  add.u32 %r1, %r1, 1;
B:  add.u32 %r2, %r2, 1;
    setp.lt.u32 %p1, %r2, 9;
    @%p1 bra B;
    setp.lt.u32 %p2, %r1, 9;
    @%p2 bra A;";
    let count = |body: &str| with_flow(body, |_, flow, budget| flow.loops(budget).unwrap().len());
    assert_eq!(count(nested), 2);
    assert_eq!(count(BODY), 1);
    assert_eq!(count("add.u32 %r1, %r1, 1;"), 0);
    // Both of these are entered from outside.
    let irreducible = "@%p1 bra B; A: add.u32 %r1, %r1, 1; B: @%p2 bra A;";
    assert_eq!(count(irreducible), 1);
}

#[test]
fn threads_part_at_branches_on_their_number() {
    let branches = |body: &str| {
        with_flow(body, |code, flow, budget| {
            Divergence::of(code, flow, Among::Block, budget).unwrap().branches
        })
    };
    // The loop's, and what then differs by the number of rounds.
    assert_eq!(branches(BODY), [1, 4, 5]);
    assert_eq!(branches("mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 0; @%p1 ret;"), []);
    let own = "mov.u32 %r1, %laneid; setp.eq.u32 %p1, %r1, 0; @%p1 ret;";
    assert_eq!(branches(own), [0]);
    let reduced =
        "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; bar.red.or.pred %p2, 0, %p1; @%p2 ret;";
    assert_eq!(branches(reduced), []);
    let written = "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; mov.u32 %r2, 0;
        @%p1 bra SKIP; mov.u32 %r2, 1; SKIP: setp.eq.u32 %p2, %r2, 0; @%p2 ret;";
    assert_eq!(branches(written), [0, 2]);
}

#[test]
fn a_used_up_budget_is_told() {
    with_flow(BODY, |code, _, _| {
        assert_eq!(Flow::of(code, &mut Budget(3)).unwrap_err(), TooLarge);
    });
}
