//! Each rule of the transformation, by a kernel that is wrong without it.

use std::collections::BTreeMap;

use preempt_ptx_text::{
    CohortLayout, Note, PreemptibleEntry, Rule, TransformError, Verdict, blanked, bound_registers,
    check, functions, read, transform, with_panic_records, with_waits,
};

mod assembler;

/// A module with one entry of this body, behind `ahead`.
fn module(ahead: &str, body: &str) -> String {
    format!(
        ".version 8.6
.target sm_90a
.address_size 64
{ahead}
.visible .entry kernel(.param .u64 data, .param .u32 n) .maxntid 256
{{
	.reg .pred %p<9>; .reg .b32 %r<9>; .reg .b64 %a<9>;
	ld.param.u64 %a1, [data]; ld.param.u32 %r1, [n];
	mov.u32 %r2, %tid.x; setp.ge.u32 %p1, %r2, %r1;
{body}
}}
"
    )
}

struct Outcome {
    /// The preemptible entry's text, without the worker loop in front of the body and behind it.
    body: String,
    /// All of it.
    entry: String,
    ptx: String,
    rules: Vec<Rule>,
    barrier: u8,
    launch: PreemptibleEntry,
}

/// Transforms a module whose entry is accepted, and assembles it.
fn accepted(ahead: &str, body: &str) -> Outcome {
    let text = module(ahead, body);
    let transformed = transform(&text, &["kernel"]).unwrap();
    let kernel = &transformed.kernels[0];
    let Verdict::Accepted(verdict) = &kernel.verdict else { panic!("{}", kernel.verdict) };
    let (rules, barrier) = (verdict.rules.iter().copied().collect(), verdict.barrier);
    let ptx = transformed.ptx;
    assembler::assemble("sm_90a", "kernel", &ptx);
    // What the host library asks of a module before it loads it.
    assert_eq!(check(&ptx).unwrap().preemptible, ["kernel"]);
    let (original, entry) = (function(&text, "kernel"), function(&ptx, "kernel__preemptible"));
    assert_eq!(function(&ptx, "kernel"), original, "the entry stays as it is");
    // The loop's first instruction behind the body waits for its copy of the signal.
    let start = entry.find("mov.u32 %preempt_block_z").unwrap();
    let end = entry[start..].find("ld.volatile.shared").map_or(entry.len(), |len| start + len);
    let (body, entry) = (entry[start..end].to_owned(), entry.to_owned());
    Outcome { body, entry, ptx, rules, barrier, launch: kernel.preemptible.clone().unwrap() }
}

fn refused(ahead: &str, body: &str) -> String {
    let text = module(ahead, body);
    let transformed = transform(&text, &["kernel"]).unwrap();
    assert_eq!(transformed.ptx, text, "nothing is added for an entry that is refused");
    assert_eq!(transformed.kernels[0].preemptible, None);
    transformed.kernels[0].verdict.to_string()
}

/// From the name of a function to its end.
fn function<'a>(text: &'a str, name: &str) -> &'a str {
    let mut heads = [".entry ", ".func ", ") "].iter();
    let start = heads.find_map(|head| text.find(&format!("{head}{name}("))).unwrap();
    let end = text[start..].find("\n}").unwrap();
    &text[start..start + end]
}

const DYNAMIC: &str = ".extern .shared .align 16 .b8 dynamic[];";
const STORE: &str = "mul.wide.u32 %a2, %r2, 4; add.s64 %a3, %a1, %a2; st.global.u32 [%a3], %r3;";

#[test]
fn the_index_and_the_grid_are_the_tasks() {
    let of = accepted("", "mov.u32 %r3, %ctaid.x;\n mov.u32 %r4, %nctaid.z;\n ret;");
    assert!(of.body.contains("mov.u32 %r3, %preempt_block_x;"), "{}", of.body);
    assert!(of.body.contains("mov.u32 %r4, %preempt_grid_z;"), "{}", of.body);
    assert!(!of.body.contains("%ctaid"), "that is the loop's own: {}", of.body);
    assert_eq!(of.rules, []);
}

#[test]
fn a_return_goes_on_to_the_end_of_the_task() {
    let of = accepted("", &format!("@%p1 ret;\n{STORE}\n@!%p1 exit;\nret.uni;"));
    for branch in ["@%p1 bra $preempt_tail;", "@!%p1 bra $preempt_tail;", "\nbra $preempt_tail;"] {
        assert!(of.body.contains(branch), "{branch}: {}", of.body);
    }
    assert!(of.body.contains("$preempt_tail:\n\tbar.warp.sync -1;"), "{}", of.body);
    assert!(!of.body.contains("exit;") && !of.body.contains("ret;"), "{}", of.body);
}

#[test]
fn names_of_the_body_are_its_own() {
    // The loop has registers and labels of these names.
    let of = accepted(
        "",
        "$L__BB2_4:\n add.u32 %r2, %r2, %r1; setp.lt.u32 %p2, %r2, 9;\n @%p2 bra $L__BB2_4;\n ret;",
    );
    assert_eq!(of.entry.matches("$L__BB2_4:").count(), 2);
    let scope = of.body.find("\t{\n").unwrap();
    assert!(scope < of.body.find("$L__BB2_4:").unwrap());
}

#[test]
fn the_cohort_is_behind_the_parameters() {
    let of = accepted("", "ret;");
    let place = |at: usize| (of.launch.parameters[at].offset, of.launch.parameters[at].bytes);
    assert_eq!((place(0), place(1)), ((0, 8), (8, 4)));
    assert_eq!((of.launch.cohort.offset, of.launch.cohort.bytes), (16, 160));
    assert!(
        of.entry
            .contains(".param .u32 n,\n\t.param .align 8 .b8 preempt_cohort[160]\n) .maxntid 256"),
        "{}",
        of.entry
    );
    assert_eq!(of.launch.name, "kernel__preemptible");
    // What a pointer points to has no say in where it is.
    let text = ".version 8.6\n.target sm_90a\n.address_size 64\n.entry k(.param .u32 n, .param .u64 .ptr .global .align 1 a) { ret; }\n.entry none { ret; }";
    let transformed = transform(text, &["k", "none"]).unwrap();
    assembler::assemble("sm_90a", "k", &transformed.ptx);
    let entry = |at: usize| transformed.kernels[at].preemptible.clone().unwrap();
    assert_eq!((entry(0).parameters[1].offset, entry(0).cohort.offset), (8, 16));
    assert_eq!((entry(1).parameters.len(), entry(1).cohort.offset), (0, 0));
}

#[test]
fn the_loop_has_the_lowest_barrier_that_is_free() {
    let of = accepted("", "bar.sync 0;\n bar.sync 1;\n bar.sync 3, 64;\n ret;");
    assert_eq!(of.barrier, 2);
    let count = |number: u8| of.entry.matches(&format!("bar.sync \t{number};")).count();
    assert_eq!((count(0), count(1), count(2) > 3), (0, 0, true));
    assert!(of.launch.cooperates);
    // One in a function counts.
    let of = accepted(".func f() { bar.sync 1; ret; }", "call f;\n bar.sync 0;\n ret;");
    assert_eq!(of.barrier, 2);
}

#[test]
fn the_slot_moves_no_shared_memory() {
    let of = accepted(
        "",
        ".shared .align 4 .b8 tile[100];\n mov.u32 %r3, tile; st.shared.u32 [%r3], %r2; bar.sync 0; ld.shared.u32 %r4, [%r3]; ret;",
    );
    // Behind what is static, as the dynamic memory that the launch gives.
    assert!(of.ptx.contains(".extern .shared .align 16 .b8 preempt_slot[];"));
    assert!(!of.entry.contains(".shared .align 16"), "{}", of.entry);
    assert!(of.entry.contains("[preempt_slot+16]"));
    assert_eq!((of.launch.added_shared, of.launch.cooperates), (128, true));

    // Behind what is dynamic.
    let of = accepted(
        DYNAMIC,
        "mov.u32 %r3, dynamic; st.shared.u32 [%r3], %r2; bar.sync 0; ld.shared.u32 %r4, [%r3]; ret;",
    );
    assert_eq!(of.rules, [Rule::SlotBehindDynamicShared]);
    assert!(of.entry.contains("mov.u32 %preempt_size, %dynamic_smem_size;"), "{}", of.entry);
    assert!(of.entry.contains("[%preempt_slot+16]") && !of.entry.contains("[preempt_slot"));
}

#[test]
fn the_size_of_shared_memory_is_the_entrys_own() {
    let body = "mov.u32 %r3, %dynamic_smem_size;\n st.shared.u32 [dynamic], %r3; ret;";
    let of = accepted(DYNAMIC, body);
    assert_eq!(of.rules, [Rule::SlotBehindDynamicShared, Rule::SharedSize]);
    assert!(
        of.body.contains("sub.u32 %preempt_shared_size, %preempt_shared_size, 128;"),
        "{}",
        of.body
    );
    assert!(of.body.contains("mov.u32 %r3, %preempt_shared_size;"), "{}", of.body);
    // That is rounded up, so nothing can be taken off.
    let verdict =
        refused(DYNAMIC, "mov.u32 %r3, %total_smem_size;\n st.shared.u32 [dynamic], %r3; ret;");
    assert!(
        verdict.contains("`%total_smem_size` counts the shared memory of the worker loop"),
        "{verdict}"
    );
}

#[test]
fn shared_memory_by_numbers_is_refused() {
    let verdict = refused("", "st.shared.u32 [16], %r2; bar.sync 0; ld.shared.u32 %r3, [16]; ret;");
    assert!(verdict.contains("accesses shared memory by a number (line 10"), "{verdict}");
    let verdict = refused("", "mov.u32 %r3, 0; st.shared.u32 [%r3], %r2; ret;");
    assert!(verdict.contains("shared memory that is not declared"), "{verdict}");
}

#[test]
fn barrier_objects_are_invalidated_before_they_are_used_again() {
    let body = ".shared .align 8 .b64 bar;
 mbarrier.init.shared::cta.b64 [bar], 32;
 @!%p1 mbarrier.init.shared.b64 [bar+8], 1;
 bar.sync 0; ret;";
    let of = accepted("", body);
    assert_eq!(of.rules, [Rule::MbarrierInit]);
    assert!(of.entry.contains("mov.b32 %preempt_again, 0;"));
    let first = of.body.find("@%preempt_is mbarrier.inval.shared::cta.b64 [bar];").unwrap();
    assert!(first < of.body.find("mbarrier.init.shared::cta.b64 [bar], 32;").unwrap());
    assert!(of.body.contains("not.pred %preempt_guard, %p1;"), "{}", of.body);
    assert!(of.body.contains("$preempt_tail:\n\tbar.warp.sync -1;\n\tmov.b32 %preempt_again, 1;"));
    let ahead = ".func f(.param .b32 at) { .reg .b32 %r; ld.param.b32 %r, [at]; mbarrier.init.shared.b64 [%r], 1; ret; }";
    let verdict = refused(
        ahead,
        ".shared .align 8 .b64 bar; mov.u32 %r3, bar;\n { .param .b32 at; st.param.b32 [at], %r3; call f, (at); }\n ret;",
    );
    assert!(verdict.contains("`mbarrier.init.shared.b64` in a function"), "{verdict}");
}

#[test]
fn the_loop_waits_for_other_grids() {
    let of = accepted(
        "",
        &format!(
            "griddepcontrol.wait;\n{STORE}\n@%p1 bra END;\n griddepcontrol.launch_dependents;\nEND:\n ret;"
        ),
    );
    assert_eq!(of.rules, [Rule::GridDependency]);
    // What the loop has are marks.
    assert!(!of.entry.contains("griddepcontrol.wait;") && !of.entry.contains("launch_dependents;"));
    assert!(of.entry.contains("// preempt.griddepcontrol.wait\n"));
    let with_waits = with_waits(&of.ptx).unwrap();
    assert!(function(&with_waits, "kernel__preemptible").contains("\tgriddepcontrol.wait;\n"));
    assembler::assemble("sm_90a", "with waits", &with_waits);
}

#[test]
fn copies_end_with_the_task() {
    let ahead = ".shared .align 16 .b8 tile[64];";
    let of = accepted(ahead, "cp.async.cg.shared.global [tile], [%a1], 16;\n ret;");
    assert_eq!(of.rules, [Rule::AsyncCopies]);
    assert!(
        of.body.contains("$preempt_tail:\n\tbar.warp.sync -1;\n\tcp.async.wait_all;"),
        "{}",
        of.body
    );
    let body = "cp.async.bulk.global.shared::cta.bulk_group [%a1], [tile], 16;\n ret;";
    let of = accepted(ahead, body);
    assert_eq!(of.rules, [Rule::BulkCopies]);
    let tail = "\tcp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group 0;\n\tfence.proxy.async.shared::cta;";
    assert!(of.body.contains(tail), "{}", of.body);
}

const INDEX: &str = ".visible .func (.param .b32 index) inner()
{
	.reg .b32 %r<4>;
	mov.u32 %r1, %ctaid.y; mov.u32 %r2, %nctaid.y; mad.lo.u32 %r3, %r1, %r2, 1;
	st.param.b32 [index], %r3;
	ret;
}
.func (.param .b32 index) outer(.param .b32 by)
{
	.reg .b32 %r<4>;
	ld.param.b32 %r2, [by];
	{ .param .b32 v; call.uni (v), inner, (); ld.param.b32 %r1, [v]; }
	add.u32 %r1, %r1, %r2;
	st.param.b32 [index], %r1;
	ret;
}
.func other() { ret; }";

#[test]
fn functions_that_ask_for_the_index_get_it() {
    let body = "call.uni other;
	{ .param .b32 by; .param .b32 v; st.param.b32 [by], %r1; call.uni (v), outer, (by); ld.param.b32 %r3, [v]; }
	st.global.u32 [%a1], %r3;
	ret;";
    let of = accepted(INDEX, body);
    assert_eq!(of.rules, [Rule::HelperIndex]);
    let (inner, outer) =
        (function(&of.ptx, "inner__preempt_copy"), function(&of.ptx, "outer__preempt_copy"));
    assert!(inner.contains("mov.u32 %r1, %task_block_y; mov.u32 %r2, %task_grid_y;"), "{inner}");
    assert!(!inner.contains("%ctaid"));
    assert!(outer.contains("call.uni (v), inner__preempt_copy, (preempt_in_"), "{outer}");
    assert!(outer.contains(", %task_block_x;"), "the copy hands on what it was given: {outer}");
    assert!(of.body.contains("outer__preempt_copy, (by, preempt_in_"), "{}", of.body);
    assert!(of.body.contains("+12], %preempt_grid_x;"), "{}", of.body);
    assert!(of.body.contains("call.uni other;"), "others have no copy: {}", of.body);
    assert_eq!(of.ptx.matches(".visible .func").count(), 1, "copies are not visible");
    // Two entries share them.
    let one = module(INDEX, body);
    let second = one[one.find(".visible .entry").unwrap()..].replace("kernel", "second");
    let transformed = transform(&(one + &second), &["kernel", "second"]).unwrap();
    assert_eq!(transformed.ptx.matches(") inner__preempt_copy(").count(), 1);
    assembler::assemble("sm_90a", "two", &transformed.ptx);
}

#[test]
fn whole_warps_that_return_come_to_the_barriers_of_others() {
    let body = format!(
        "mov.u32 %r4, %tid.y; setp.ge.u32 %p2, %r4, %r1;\n @%p2 bra END;\n bar.sync 0;\n{STORE}\n barrier.sync 0;\nEND:\n ret;"
    );
    let of = accepted("", &body);
    assert_eq!(of.rules, [Rule::EarlyExit]);
    assert!(of.launch.whole_rows, "rows of a block are whole warps");
    assert!(
        !of.body.contains("bar.sync 0;") && !of.body.contains("barrier.sync 0;"),
        "{}",
        of.body
    );
    // Aligned as the barrier was; that of warps which have left, behind a barrier of the warp.
    let is_left = ".red.and.pred %preempt_all, 0, %preempt_is_left;";
    let [bars, barriers] =
        ["bar", "barrier"].map(|root| of.body.matches(&format!("{root}{is_left}")).count());
    assert_eq!((bars, barriers), (2, 1), "{}", of.body);
    assert!(of.body.contains("bra $preempt_left;"), "{}", of.body);
    assert!(of.body.contains("$preempt_left:\n\tbar.warp.sync -1;\n"), "{}", of.body);
}

#[test]
fn lanes_that_return_meet_others_at_one_barrier() {
    let of =
        accepted("", &format!("@%p1 ret;\n bar.sync 0;\n{STORE}\n @%p2 barrier.sync 0;\n ret;"));
    assert_eq!((&of.rules[..], of.launch.whole_rows), (&[Rule::EarlyExit][..], false));
    assert_eq!(of.body.matches("bar.red").count(), 1, "{}", of.body);
    for part in [
        "$preempt_sites: .branchtargets $preempt_site_0, $preempt_site_1, $preempt_meeting, $preempt_begin;",
        // The body is a place, too: what comes first would get a barrier of its own.
        "add.u32 %preempt_site, %preempt_nought, 3;\n\tbra $preempt_on;\n$preempt_begin:",
        "@!%p2 bra $preempt_site_1; add.u32 %preempt_site, %preempt_nought, 1; bra $preempt_meeting;",
        "$preempt_left:\n\tadd.u32 %preempt_site, %preempt_nought, 2;\n$preempt_meeting:\n\tbar.warp.sync -1;",
    ] {
        assert!(of.body.contains(part), "{part} in {}", of.body);
    }
    assert!(of.body.contains("@%preempt_all bra $preempt_tail;"));
    let verdict = refused("", &format!("@%p1 ret;\n {{ bar.sync 0; }}\n{STORE}\n ret;"));
    assert!(verdict.contains("a barrier in braces"), "{verdict}");
}

#[test]
fn masks_leave_out_lanes_that_returned() {
    let of = accepted(
        "",
        "@%p1 ret;\n shfl.sync.bfly.b32 %r3, %r2, 1, 31, -1;\n mov.u32 %r5, -1;\n bar.warp.sync %r5;\n { .reg .b32 own; redux.sync.add.u32 own, %r3, %r5; mov.b32 %r4, own; }\n st.global.u32 [%a1], %r4;\n ret;",
    );
    assert_eq!(of.rules, [Rule::ReturnedLanes]);
    assert!(of.body.contains("shfl.sync.bfly.b32 %r3, %r2, 1, 31, %preempt_mask;"), "{}", of.body);
    assert!(
        of.body
            .contains("mov.b32 %preempt_mask, -1; add.u32 %preempt_site, %preempt_nought, 0; bra $preempt_meeting;"),
        "{}",
        of.body
    );
    assert!(of.body.contains("bar.warp.sync %preempt_mask;"), "{}", of.body);
    let (place, brace) =
        (of.body.find("$preempt_site_2:").unwrap(), of.body.find("{ .reg .b32 own").unwrap());
    assert!(
        place < brace && of.body.contains("redux.sync.add.u32 own, %r3, %preempt_mask;"),
        "{}",
        of.body
    );
    assert!(!of.body.contains("bar.red"), "there is no barrier of the block");
    // With a barrier too.
    let of = accepted(
        "",
        "@%p1 ret;\n bar.sync 0;\n vote.sync.ballot.b32 %r3, %p2, -1;\n st.global.u32 [%a1], %r3;\n ret;",
    );
    assert_eq!(of.rules, [Rule::EarlyExit, Rule::ReturnedLanes]);
    assert!(
        of.body.contains("setp.lt.or.u32 %preempt_is_still, %preempt_site, 1, %preempt_is_left;"),
        "{}",
        of.body
    );
    // Whole warps return.
    let of = accepted(
        "",
        "mov.u32 %r4, %tid.y; setp.ge.u32 %p2, %r4, %r1;\n @%p2 ret;\n shfl.sync.bfly.b32 %r3, %r2, 1, 31, -1;\n st.global.u32 [%a1], %r3;\n ret;",
    );
    assert_eq!((&of.rules[..], of.launch.whole_rows), (&[][..], true));
    // So do those that have no lane below a number of lanes, however wide the register is that has the number of a thread.
    let rules = |chain: &str, condition: &str| {
        let body = format!(
            "{chain}\n setp.{condition};\n @%p2 ret;\n shfl.sync.bfly.b32 %r3, %r2, 1, 31, -1;\n st.global.u32 [%a1], %r3;\n ret;"
        );
        let of = accepted("", &body);
        (of.rules, of.launch.whole_rows)
    };
    let (warps, lanes) = ((vec![], true), (vec![Rule::ReturnedLanes], false));
    let tid = "mov.u32 %r4, %tid.x;";
    let wide = format!("{tid} cvt.u64.u32 %a4, %r4; cvt.u32.u64 %r5, %a4; mov.b32 %r6, %r5;");
    assert_eq!(rules(&wide, "gt.u32 %p2, %r6, 31"), warps);
    assert_eq!(rules(&wide, "lt.u64 %p2, %a4, 64"), warps);
    assert_eq!(rules(&wide, "gt.u32 %p2, %r6, 30"), lanes);
    // Not a register of 8 bits, nor one that only some lanes set, nor registers that are computed from each other.
    let cut = format!("{tid} cvt.u8.u32 %r5, %r4;");
    assert_eq!(rules(&cut, "gt.u32 %p2, %r5, 31"), lanes);
    let sometimes = format!("{tid} mov.b32 %r5, %r1; @%p1 mov.b32 %r5, %r4;");
    assert_eq!(rules(&sometimes, "gt.u32 %p2, %r5, 31"), lanes);
    let round = "@%p1 bra AROUND; mov.b32 %r5, %r6; mov.b32 %r6, %r5;\nAROUND:";
    assert_eq!(rules(round, "gt.u32 %p2, %r6, 31"), lanes);
    // By a part of the warp: then barriers are places too, ahead of any return.
    let of = accepted(
        "",
        "bar.sync 0;\n mov.u32 %r3, 0xffff;\n bar.warp.sync %r3;\n @%p1 ret;\n bar.warp.sync -1;\n ret;",
    );
    assert_eq!(of.rules, [Rule::ReturnedLanes]);
    assert!(
        of.body.contains(
            "add.u32 %preempt_site, %preempt_nought, 0; bra $preempt_meeting;\n$preempt_site_0:"
        ),
        "{}",
        of.body
    );
    for (body, why) in [
        ("bar.sync 1, 64;\n @%p1 ret;\n bar.warp.sync 3;\n ret;", "not all of the block's"),
        (
            ".shared .b32 flag; @%p1 ret;\n bar.warp.sync 3;\nL: atom.shared.exch.b32 %r3, [flag], 1; setp.eq.u32 %p3, %r3, 1; @%p3 bra L;\n ret;",
            "may wait for lanes that wait for a part",
        ),
        ("call stops;\n @%p1 ret;\n bar.warp.sync 3;\n ret;", "`bar.sync` in `stops`"),
        ("@%p1 ret;\n { .reg .b32 m; mov.b32 m, -1; bar.warp.sync m; }\n ret;", "wait in braces"),
        ("@%p1 ret;\n { @%p2 bar.warp.sync -1; }\n ret;", "wait in braces"),
        ("@%p1 ret;\n { bar.warp.sync -1; bar.warp.sync %r2; }\n ret;", "by several masks"),
        (
            "@%p1 ret;\n bar.warp.sync -1; .shared .align 16 .b8 m[16]; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [m]; st.shared.u32 [m], %r3; ret;",
            "needs all lanes",
        ),
        ("@%p1 ret;\n call waits;\n ret;", "others of their warp wait for them in a function"),
    ] {
        let verdict = refused(
            ".func waits() { bar.warp.sync -1; ret; } .func stops() { bar.sync 0; ret; }",
            body,
        );
        assert!(verdict.contains(why), "{why}: {verdict}");
    }
}

#[test]
fn version_and_target_are_the_higher_of_both() {
    let text = |version: &str, target: &str| {
        format!(".version {version}\n.target {target}\n.address_size 64\n.entry k() {{ ret; }}\n")
    };
    let old = transform(&text("6.4", "sm_75, texmode_independent"), &["k"]).unwrap();
    assert!(
        old.ptx.starts_with(".version 7.0\n.target sm_80, texmode_independent\n"),
        "{}",
        old.ptx
    );
    let new = transform(&text("8.6", "sm_90a"), &["k"]).unwrap();
    assert!(new.ptx.starts_with(".version 8.6\n.target sm_90a\n"));
    let lockstep = transform(&text("6.0", "sm_61"), &["k"]).unwrap();
    let verdict = lockstep.kernels[0].verdict.to_string();
    assert!(verdict.contains("lockstep") && verdict.contains("line 4"), "{verdict}");
}

#[test]
fn names_of_the_loop_are_refused() {
    let verdict = refused(".global .b32 preempt_slot;", "ret;");
    assert!(
        verdict.contains("a name that starts as those of the worker loop do (line 4, column 14)"),
        "{verdict}"
    );
    let verdict = refused(".entry kernel__preemptible() { ret; }", "ret;");
    assert!(verdict.contains("has a preemptible entry of the kernel"), "{verdict}");
}

#[test]
fn what_was_not_asked_for_stays() {
    let text = module(".entry other() { ret; }", "mov.u32 %r3, %smid;\n ret;");
    let transformed = transform(&text, &["kernel"]).unwrap();
    assert!(!transformed.ptx.contains("other__preemptible"));
    let Verdict::Accepted(accepted) = &transformed.kernels[0].verdict else { panic!() };
    assert!(accepted.notes.contains(&Note::Multiprocessor));
    let error = transform(&text, &["nothing"]).unwrap_err();
    assert_eq!(error.to_string(), "the PTX has no entry `nothing`; it has other, kernel");
    assert!(matches!(transform("}", &[]), Err(TransformError::NotUnderstood(_))));
}

/// All samples of kernels that are accepted, and what compilers wrote around them.
#[test]
fn samples_are_assembled() {
    let text = include_str!("samples/accepted.ptx");
    let entries: Vec<_> = read(text).unwrap().entries().map(str::to_owned).collect();
    let names: Vec<_> = entries.iter().map(String::as_str).collect();
    let transformed = transform(text, &names).unwrap();
    assert!(transformed.kernels.iter().all(|kernel| kernel.preemptible.is_some()));
    assert_eq!(check(&transformed.ptx).unwrap().preemptible.len(), names.len());
    assembler::assemble("sm_90a", "samples", &transformed.ptx);
}

#[test]
fn what_parts_warps_is_told_from_what_parts_lanes() {
    let of = |body: &str| {
        let of = accepted("", body);
        let inline = of.body.matches(".red.and.pred %preempt_all").count() > 1;
        (of.rules, of.launch.whole_rows, inline)
    };
    // Another block may write what warps read one after the other.
    let flag =
        "ld.global.u32 %r3, [%a1]; setp.eq.u32 %p2, %r3, 0;\n @%p2 ret;\n bar.sync 0;\n ret;";
    assert_eq!(of(flag), (vec![Rule::EarlyExit], false, true));
    assert_eq!(of(&flag.replace("ld.global", "ld.global.nc")), (vec![], false, false));
    let volatile = flag.replace("ld.global", "ld.volatile.global");
    assert_eq!(of(&volatile), (vec![Rule::EarlyExit], false, false));
    // The numbers of threads from one warp on.
    let part = |test: &str| format!("setp.{test};\n @%p2 ret;\n bar.warp.sync -1;\n ret;");
    for test in ["lt.u32 %p2, %r2, 64", "ge.s32 %p2, %r2, 32", "gt.s32 %p2, %r2, 31"] {
        assert_eq!(of(&part(test)), (vec![], true, false), "{test}");
    }
    for test in ["lt.u32 %p2, %r2, 65", "gt.s32 %p2, %r2, 32", "eq.u32 %p2, %r2, 64"] {
        assert_eq!(of(&part(test)), (vec![Rule::ReturnedLanes], false, false), "{test}");
    }
    let number =
        "shr.u32 %r3, %r2, 5; setp.ge.u32 %p2, %r3, %r1;\n @%p2 ret;\n bar.warp.sync -1;\n ret;";
    assert_eq!(of(number), (vec![], true, false));
    assert_eq!(of(&number.replace("%r2, 5", "%r2, 4")), (vec![Rule::ReturnedLanes], false, false));
    // A barrier of all keeps from a return.
    let skip = "@%p1 bra SKIP;\n bar.warp.sync -1;\nSKIP:\n bar.sync 0;\n ret;";
    assert_eq!(of(skip), (vec![], false, false));
    let counted = skip.replace("bar.sync 0", "bar.sync 1, 64");
    assert_eq!(accepted("", &counted.replace("-1", "0xffffffff")).rules, [Rule::ReturnedLanes]);
    // Lanes part at barriers, and warps return.
    let both = "mov.u32 %r4, %tid.y; setp.ge.u32 %p2, %r4, %r1;\n @%p2 ret;\n @%p1 bra ELSE;\n barrier.sync 0;\n bra END;\nELSE:\n barrier.sync 0;\nEND:\n ret;";
    assert_eq!(of(both), (vec![Rule::EarlyExit], true, false));
}

/// What the host library writes into the text of any module before it loads it.
#[test]
fn registers_can_be_bound_and_panics_recorded() {
    let of = accepted(DYNAMIC, "@%p1 trap;\n st.shared.u32 [dynamic], %r1; bar.sync 0; ret;");
    let text = blanked(&of.ptx);
    let functions = functions(&text);
    let bounds = BTreeMap::from([("kernel__preemptible", 40)]);
    let bound = bound_registers(&of.ptx, &functions, &bounds);
    assert!(function(&bound, "kernel__preemptible").contains(".maxnreg 40"));
    assembler::assemble("sm_90a", "bound", &bound);
    let cohort = CohortLayout { grid: 0, post: 0, ticket: 0 };
    let recording = with_panic_records(&of.ptx, cohort).unwrap();
    let entry = function(&recording, "kernel__preemptible");
    assert!(entry.contains("@%p1 bra $preempt_panic;"), "{entry}");
    assembler::assemble("sm_90a", "recording", &recording);
}
