//! What is read from PTX as a compiler writes it, and what looks like it and is not.

use super::*;

/// As LLVM writes it: a kernel that cooperates, a kernel that does not, and helpers.
const PTX: &str = "\
.version 7.0
.target sm_80
.address_size 64
// .globl k // a comment with { and bar.sync 0;
.global .align 4 .b8 table[4] = {0, 0, 0, 63};
.extern .shared .align 16 .b8 preempt_smem[];
.shared .align 16 .b8 preempt_slot[16];
.shared .align 4 .u32 preempt_yields;
.func (.param .b32 func_retval0) helper(.param .b32 helper_param_0)
{ bar.warp.sync -1; { call.uni other, (); } ret; }
.func other() { barrier.sync 0; ret; }
.visible .entry lone(
\t.param .align 8 .b8 lone_param_0[96],
\t.param .u64 lone_param_1
)
{
\t{ .reg .b32 tmp; mov.b64 {tmp, %r17}, %rd18; }
\tmov.b64 \t%rd29, preempt_slot; /* preempt_smem */
\tbar.sync \t1;
\tbar.red.or.pred \t%p1, 1, %p2;
\tld.shared.b64 \t%rd12, [%rd11];
}
.visible .entry lone__plain(.param .u64 p) { ret; }
";

fn has_to_wait(body: &str) -> bool {
    let ptx = PTX.replace("ld.shared.b64 \t%rd12, [%rd11];", body);
    let text = blanked(&ptx);
    !cooperates(&text, &functions(&text), ["lone"]).is_empty()
}

#[test]
fn blanks_leave_everything_where_it_is() {
    let ptx = "a // é {\nb /* } \" */ c \"d // { e\" / f \"";
    let text = blanked(ptx);
    assert_eq!(text.len(), ptx.len());
    assert_eq!(text.split_whitespace().collect::<Vec<_>>(), ["a", "b", "c", "/", "f"]);
    for (at, c) in text.char_indices().filter(|(_, c)| *c != ' ') {
        assert!(ptx[at..].starts_with(c));
    }
}

#[test]
fn functions_have_a_head_and_a_body() {
    let text = blanked(PTX);
    let functions = functions(&text);
    let entries: Vec<_> = functions.iter().filter(|(_, f)| f.is_entry).map(|(n, _)| *n).collect();
    assert_eq!(entries, ["lone", "lone__plain"]);
    let lone = &functions["lone"];
    assert!(lone.body.starts_with("{\n\t{ .reg") && lone.body.ends_with("[%rd11];\n}"));
    assert!(PTX[lone.start..].starts_with("{\n\t{ .reg"));
    assert_eq!(first_parameter_bytes(lone), Some(96));
    assert_eq!(first_parameter_bytes(&functions["lone__plain"]), None);
}

#[test]
fn the_worker_loops_own_barriers_and_slot_do_not_count() {
    assert!(!has_to_wait("ld.shared.b64 \t%rd12, [%rd11];"));
    assert!(!has_to_wait("ld.shared.b32 %r1, [preempt_yields];"));
    assert!(!has_to_wait("bar.warp.sync \t-1; mov.u32 %bar, %r1; $bar: bra $bar;"));
}

#[test]
fn every_other_barrier_does() {
    for barrier in [
        "bar.sync \t0;",
        "@%p1 bar.sync 0;",
        "$L: bar.sync 2, 64;",
        "bar.arrive 3, 64;",
        "barrier.sync %r1;",
        "barrier.cta.sync.aligned 0;",
        "bar.red.popc.u32 %r1, 0, %p1;",
        "barrier.cta.red.or.aligned.pred %p1, 0, %p2;",
        "barrier.cluster.arrive;",
        "{ call.uni (retval0), helper, (param0); }",
    ] {
        assert!(has_to_wait(barrier), "{barrier}");
    }
}

#[test]
fn shared_memory_of_the_kernel_does() {
    assert!(has_to_wait("mov.b64 %rd1, preempt_smem;"));
    assert!(has_to_wait("st.shared.b32 [preempt_smem+64], %r1;"));
    assert!(has_to_wait(".shared .align 4 .b8 buf[4]; st.shared.b32 [buf], %r1;"));
    assert!(!has_to_wait("mov.b64 %rd1, preempt_smem_2;"));
    // The callee may.
    assert!(has_to_wait("call (retval0), %rd1, (param0), prototype_0;"));
}

#[test]
fn a_bound_comes_before_the_body_of_its_entry_and_nothing_else_changes() {
    let text = blanked(PTX);
    let bounds = BTreeMap::from([("lone__plain", 24), ("lone", 32), ("helper", 8), ("none", 8)]);
    let bound = bound_registers(PTX, &functions(&text), &bounds);
    assert!(bound.contains("lone_param_1\n)\n.maxnreg 32\n{\n\t{ .reg"), "{bound}");
    assert!(bound.contains("lone__plain(.param .u64 p) .maxnreg 24\n{ ret; }"), "{bound}");
    assert_eq!(bound.replace(".maxnreg 32\n", "").replace(".maxnreg 24\n", ""), PTX);
    // An entry has one bound at most.
    let text = blanked(&bound);
    assert_eq!(bound_registers(&bound, &functions(&text), &bounds), bound);
}

/// What the entry `lone` says of its blocks with `line` in its body.
fn block_with(line: &str) -> Option<u32> {
    let ptx = PTX.replace("bar.sync \t1;", line);
    let text = blanked(&ptx);
    let functions = functions(&text);
    assert_eq!(block_threads(&ptx, &functions["lone__plain"]), None, "the mark is in the other");
    block_threads(&ptx, &functions["lone"])
}

#[test]
fn an_entry_says_how_many_threads_its_blocks_have() {
    assert_eq!(block_with("bar.sync \t1;"), None, "there is no mark");
    // As the compiler leaves it, also where what comes before is not ASCII.
    let mark = "// begin inline asm\n\t// preempt.block 192\n\t// end inline asm";
    assert_eq!(block_with(mark), Some(192));
    assert_eq!(block_with(&format!("/* é */\n{mark}")), Some(192));
    for other in [
        "// preempt.block",
        "// preempt.block \n",
        "// preempt.block x",
        "// preempt.block -1",
        "// preempt.block 0",
        "// preempt.block 4294967296",
        "// preempt.blocks 192",
        "// // preempt.block 192",
        "bar.sync 1; // preempt.block 192",
    ] {
        assert_eq!(block_with(other), None, "{other}");
    }
}

#[test]
fn waits_take_the_place_of_their_marks() {
    assert_eq!(with_waits(PTX), None, "there is no mark");
    let marked = |body: &str| PTX.replace("bar.sync \t1;", body);
    // As the compiler leaves them, and what only looks like it.
    let ptx = marked("// begin inline asm\n\t// preempt.griddepcontrol.wait\n\t// end inline asm");
    let with = with_waits(&ptx).expect("there is a mark");
    assert!(with.contains("asm\n\tgriddepcontrol.wait;\n\t// end"), "{with}");
    assert!(with.starts_with(".version 7.8\n.target sm_90\n.address_size 64"), "{with}");
    let text = blanked(&with);
    assert!(waits(&functions(&text)["lone"]) && !waits(&functions(&text)["lone__plain"]));
    for other in ["// preempt.griddepcontrol.waits", "// // preempt.griddepcontrol.wait"] {
        assert_eq!(with_waits(&marked(other)), None);
    }
}

#[test]
fn what_is_newer_than_waits_stays() {
    let marks = ["wait", "launch_dependents"];
    let lines = marks.map(|mark| format!("// preempt.griddepcontrol.{mark}\n")).concat();
    let ptx = |head: &str| format!("{head}\n{lines}");
    let with_lines = marks.map(|mark| format!("griddepcontrol.{mark};\n")).concat();
    struct Case {
        head: &'static str,
        raised: &'static str,
    }
    let unchanged = |head| Case { head, raised: head };
    for Case { head, raised: with } in [
        Case {
            head: ".version 7.0\n.target sm_80, debug",
            raised: ".version 7.8\n.target sm_90, debug",
        },
        unchanged(".version 8.3\n.target sm_90a"),
        unchanged(".version 8.3 // .target sm_10\n.target sm_120"),
    ] {
        assert_eq!(with_waits(&ptx(head)), Some(format!("{with}\n{with_lines}")));
    }
    assert_eq!(with_waits(&ptx("")), None, "it is no PTX");
}

#[test]
fn no_text_is_too_broken() {
    for text in
        ["", "/", "/*", "\"", "//", ".entry", ".entry k", ".entry k(", ".func (", "}{", "call"]
    {
        let text = blanked(text);
        let functions = functions(&text);
        assert!(functions.is_empty());
        assert!(cooperates(&text, &functions, ["k"]).is_empty());
    }
    let text = blanked(".entry k { bar");
    assert!(cooperates(&text, &functions(&text), ["k"]).is_empty());
}
