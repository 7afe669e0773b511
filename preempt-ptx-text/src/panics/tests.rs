//! Traps become branches to the code of a record, and records say where a thread panicked.

use super::*;

const LAYOUT: CohortLayout = CohortLayout { grid: 72, post: 24, ticket: 100 };

/// A kernel with both entries, a kernel of others, and functions.
const PTX: &str = "\
.version 7.0
.target sm_80
.address_size 64
// .globl k: a comment with trap;
.func (.param .b32 r) _RNvCs8OaPBnAvo7b_4mine4deep(.param .b32 p)
{
\ttrap; exit;
}
.func shared_by_two() { @%p1 trap; ret; }
.visible .entry k(
\t.param .align 8 .b8 k_param_0[168],
\t.param .u64 k_param_1
)
{
\t// preempt.task %r7
\tmov.u32 %preempt_block_x, %r8;
$L__BB0_1: trap; exit;
\t@!%p2 trap;
\tcall.uni _RNvCs8OaPBnAvo7b_4mine4deep, (p);
\tcall.uni shared_by_two, ();
\tst.global.u32 [trap], %trap;
\tret;
}
.visible .entry k__plain(.param .u64 p) { { @%p1 trap ; } ret; }
.visible .entry l(.param .align 8 .b8 l_param_0[168]) { call.uni shared_by_two, (); ret; }
.visible .entry l__plain() { ret; }
.visible .entry others(.param .u64 p) { // preempt.task %r1
\tret; }
";

fn recorded() -> String {
    with_panic_records(PTX, LAYOUT).expect("it has traps")
}

/// The body of one function of the result.
fn body(name: &str) -> String {
    let text = recorded();
    let start = functions(&blanked(&text))[name].start;
    let end = start + functions(&blanked(&text))[name].body.len();
    text[start..end].to_owned()
}

#[test]
fn traps_become_branches_with_their_guards() {
    let k = body("k");
    assert!(k.contains("$L__BB0_1: bra $preempt_panic; exit;"), "{k}");
    assert!(k.contains("@!%p2 bra $preempt_panic;"), "{k}");
    // What only looks like a trap stays.
    assert!(k.contains("st.global.u32 [trap], %trap;"), "{k}");
    assert!(recorded().contains("a comment with trap;"));
    let plain = body("k__plain");
    assert!(plain.contains("{ @%p1 bra $preempt_panic ; }"), "{plain}");
    // One trap is left in each function that had some.
    for name in ["k", "k__plain", "_RNvCs8OaPBnAvo7b_4mine4deep", "shared_by_two"] {
        let body = body(name);
        assert_eq!(body.matches("\ttrap;\n").count(), 1, "{body}");
        assert_eq!(body.matches("$preempt_panic:\n").count(), 1, "{body}");
    }
    for name in ["l", "l__plain"] {
        assert!(!body(name).contains("preempt_panic"));
    }
}

#[test]
fn an_entry_records_what_it_knows() {
    let k = body("k");
    let task = "\t.reg .b32 %preempt_panic_task;\n\tmov.b32 %preempt_panic_task, 4294967295;\n";
    assert!(k.starts_with(&format!("{{\n{task}")), "{k}");
    assert!(k.contains("\tmov.b32 %preempt_panic_task, %r7;\n"), "{k}");
    for parameter in
        ["k_param_0+72", "k_param_0+76", "k_param_0+100", "k_param_0+24", "k_param_0+28"]
    {
        assert!(k.contains(&format!("[{parameter}]")), "{parameter}: {k}");
    }
    assert!(!k.contains("%ctaid") && k.contains("%tid.z"), "{k}");
    let plain = body("k__plain");
    assert!(plain.contains("%ctaid.z") && !plain.contains("ld.param"), "{plain}");
    let deep = body("_RNvCs8OaPBnAvo7b_4mine4deep");
    assert!(deep.contains("%tid.x") && !deep.contains("%ctaid"), "{deep}");
    // The kernel of another compiler has no traps, and its mark stays a comment.
    assert!(body("others").contains("// preempt.task %r1"));
    let declared = ".address_size 64\n.visible .global .align 8 .b64 preempt_panic[2];\n";
    assert!(recorded().contains(declared), "{}", recorded());
}

#[test]
fn a_preemptible_entry_without_a_mark_does_not_know_its_task() {
    let ptx = PTX.replace("// preempt.task %r7", "");
    let text = with_panic_records(&ptx, LAYOUT).expect("it has traps");
    assert!(!text.contains("_task") && !text.contains("ld.param"), "{text}");
}

#[test]
fn what_cannot_have_records_stays() {
    for (from, to) in [
        ("sm_80", "sm_61"),
        ("sm_80", "compute"),
        ("7.0", "5.9"),
        (".address_size 64", ".address_size 32"),
        (".address_size 64", ""),
        ("shared_by_two", "preempt_panic"),
        ("trap", "brkpt"),
    ] {
        assert_eq!(with_panic_records(&PTX.replace(from, to), LAYOUT), None, "{to}");
    }
    for target in ["sm_90a", "sm_80, debug", "sm_120f"] {
        assert!(with_panic_records(&PTX.replace("sm_80", target), LAYOUT).is_some(), "{target}");
    }
    assert_eq!(with_panic_records(&recorded(), LAYOUT), None, "it has records already");
}

#[test]
fn functions_keep_their_order_and_have_sources() {
    let (before, text) = (blanked(PTX), blanked(&recorded()));
    let names =
        |text: &str| functions(text).keys().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(names(&before), names(&text));
    let functions = functions(&text);
    let sources = panic_sources(&functions);
    let source = |name: &str| {
        let number = functions.keys().position(|key| *key == name).expect("it is there");
        // The record has the same number.
        let constant = format!(
            "\tmov.b32 %preempt_panic_word, {number};\n\tst.volatile.global.b32 [%preempt_panic_record+4]"
        );
        assert!(!functions[name].body.contains("trap") || functions[name].body.contains(&constant));
        let PanicSource { kernel, preemptible, function } = sources[number].clone();
        (kernel, preemptible, function)
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(source("k"), (some("k"), some("k"), None));
    assert_eq!(source("k__plain"), (some("k"), some("k"), None));
    assert_eq!(source("others"), (some("others"), None, None));
    assert_eq!(source("_RNvCs8OaPBnAvo7b_4mine4deep"), (some("k"), some("k"), some("mine::deep")));
    assert_eq!(source("shared_by_two"), (None, None, some("shared_by_two")));
}

#[test]
fn a_record_is_read() {
    let mut words = [0; PANIC_WORDS];
    (words[FUNCTION], words[PLACE], words[TICKET]) = (3, OF_COHORT, 9);
    words[THREAD..BLOCK].copy_from_slice(&[1, 2, 3]);
    // Task 123 of 10 x 4 x any block-tasks.
    words[BLOCK..TICKET].copy_from_slice(&[123, 10, 4]);
    words[POST..].copy_from_slice(&[0x89ab_cdef, 0x7f12]);
    assert_eq!(Panic::read(&words), None, "it is not whole before its first word is there");
    words[WRITTEN] = 1;
    let cohort = Some((0x7f12_89ab_cdef, 9));
    let panic = Panic { function: 3, thread: [1, 2, 3], block: Some([3, 0, 3]), cohort };
    assert_eq!(Panic::read(&words), Some(panic));
    words[BLOCK] = NO_TASK;
    assert_eq!(Panic::read(&words), Some(Panic { block: None, ..panic }));
    words[PLACE] = OF_GRID;
    words[BLOCK] = 7;
    assert_eq!(Panic::read(&words), Some(Panic { block: Some([7, 10, 4]), cohort: None, ..panic }));
    words[PLACE] = BLOCK_UNKNOWN;
    assert_eq!(Panic::read(&words), Some(Panic { block: None, cohort: None, ..panic }));
    // Words that no thread writes do no harm.
    assert!(Panic::read(&[u32::MAX; PANIC_WORDS]).is_some());
    words[PLACE] = OF_COHORT;
    words[BLOCK..TICKET].copy_from_slice(&[5, 0, 0]);
    assert_eq!(Panic::read(&words).and_then(|panic| panic.block), Some([0, 0, 5]));
}
