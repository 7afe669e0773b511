//! Real PTX, and what can be made of it: any text is read or refused, and soon.
//!
//! `PROPTEST_CASES` is the number of changed texts of each test. With `PREEMPT_ASSEMBLE_EVERY=N`, each Nth of those that are
//! accepted is assembled, if the text assembles that it was made of.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use preempt_ptx_text::{Droppable, Options, Verdict, read, transform_with};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

mod assembler;

/// What compilers wrote, each as `rustc` or rust-cuda did.
const COMPILED: [(&str, &str); 6] = [
    ("control-loop", include_str!("../../examples/control-loop/kernels/kernels.ptx")),
    ("cust-app", include_str!("../../examples/cust-app/kernels/kernels.ptx")),
    ("nightly-batch", include_str!("../../examples/nightly-batch/kernels/kernels.ptx")),
    ("urgent-inference", include_str!("../../examples/urgent-inference/kernels/kernels.ptx")),
    ("tests", include_str!("../../tests/kernels/kernels.ptx")),
    ("rust-cuda", include_str!("../../tests/rust-cuda-kernels/kernels.ptx")),
];
const SAMPLES: [&str; 7] = [
    include_str!("samples/drops_never.ptx"),
    include_str!("samples/drops_polled.ptx"),
    include_str!("samples/drops_voted.ptx"),
    include_str!("samples/waits.ptx"),
    include_str!("samples/locks_and_bounds.ptx"),
    include_str!("samples/refused.ptx"),
    include_str!("samples/accepted.ptx"),
];
/// Far above what any of these texts takes, so that only growth faster than the text's is found.
const SOON: Duration = Duration::from_secs(10);

/// Reads a text and transforms all of its entries, if it can be read, with yield points where they may be. What comes of it can be
/// read, too.
fn judge(text: &str) {
    let Ok(module) = read(text) else { return };
    READ.fetch_add(1, Ordering::Relaxed);
    assert_eq!(module.to_string(), text);
    let entries: Vec<_> = module.entries().collect();
    let transformed = transform_with(text, &entries, Options::default().yields(true)).unwrap();
    let after = read(&transformed.ptx).unwrap_or_else(|error| panic!("{error}\nof {text}"));
    let after: Vec<_> = after.entries().collect();
    for kernel in &transformed.kernels {
        assert_eq!(module.verdict(&kernel.name).is_some(), after.contains(&&*kernel.name));
        if let Some(entry) = &kernel.preemptible {
            assert!(after.contains(&&*entry.name), "{}", transformed.ptx);
        }
        let may_be = matches!(kernel.droppable, Some(Droppable::Strict | Droppable::Relaxed));
        assert_eq!(may_be, kernel.yielding.is_some());
        if let Some(entry) = &kernel.yielding {
            assert!(after.contains(&&*entry.entry.name) && entry.points > 0);
        }
    }
    if transformed.kernels.iter().any(|kernel| kernel.preemptible.is_some()) {
        assemble_some(text, &transformed.ptx);
    }
}

/// Texts that could be read.
static READ: AtomicU64 = AtomicU64::new(0);
/// Texts with an accepted entry.
static ACCEPTED: AtomicU64 = AtomicU64::new(0);
/// Texts that were assembled, as they were and transformed.
static ASSEMBLED: AtomicU64 = AtomicU64::new(0);

/// Assembles each Nth of the transformed texts, and panics if that fails where the text that it was made of assembles.
fn assemble_some(text: &str, transformed: &str) {
    let number = ACCEPTED.fetch_add(1, Ordering::Relaxed);
    let every = std::env::var("PREEMPT_ASSEMBLE_EVERY").ok().and_then(|every| every.parse().ok());
    let is_due = every.is_some_and(|every: u64| number.is_multiple_of(every));
    if is_due && assembler::run("sm_90a", text).is_ok_and(|output| output.status.success()) {
        ASSEMBLED.fetch_add(1, Ordering::Relaxed);
        assembler::assemble("sm_90a", &format!("{transformed}\nof {text}"), transformed);
    }
}

#[test]
fn compiled_modules_are_read_without_a_loss() {
    for (name, text) in COMPILED {
        let module = read(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(module.to_string() == text, "{name}");
        assert!(module.entries().count() > 0);
    }
}

/// Entries that call a function with an `exit` where LLVM knows that no thread comes: behind a switch over all values.
const HELPERS_EXIT: [&str; 3] = ["angles_f32", "angles_f64", "powers_f32"];

/// Plain entries of kernels in Rust, but for those named above, are accepted.
#[test]
fn plain_entries_are_accepted() {
    let mut refused = Vec::new();
    let mut count = 0;
    for (_, text) in COMPILED {
        let module = read(text).unwrap();
        for entry in module.entries().filter(|name| name.ends_with("__plain")) {
            count += 1;
            let verdict = module.verdict(entry).unwrap();
            let is_known = HELPERS_EXIT.iter().any(|name| entry.starts_with(name));
            if matches!(verdict, Verdict::Refused(_)) != is_known {
                refused.push(format!("{entry}: {verdict}"));
            }
        }
    }
    assert!(count > 60, "{count}");
    assert_eq!(refused, Vec::<String>::new(), "of {count}");
}

/// A module with one entry of this body.
fn module(body: &str) -> String {
    let registers = ".reg .pred %p<9>; .reg .b32 %r<9>; .reg .b64 %a<9>;";
    format!(
        ".version 8.6\n.target sm_90a\n.address_size 64\n.entry k() {{ {registers}\n{body}\nret; }}\n"
    )
}

#[test]
fn texts_that_are_made_to_take_long_are_answered_soon() {
    let many = |part: &dyn Fn(usize) -> String, n: usize| (0..n).map(part).collect::<String>();
    let branches = |n| {
        many(&|i| format!("@%p1 bra L{};\nL{i}: ld.volatile.u32 %r1, [%a1];\n", (i * 7) % n), n)
    };
    let nested_loops = |n| {
        let back = |i: usize| format!("setp.eq.u32 %p1, %r1, 0; @%p1 bra L{};\n", n - 1 - i);
        many(&|i| format!("L{i}: ld.global.u32 %r1, [%a1];\n"), n) + &many(&back, n)
    };
    let divergent = |n| {
        "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0;\n".to_owned()
            + &many(&|i| format!("@%p1 bra L{i}; bar.sync 0;\n"), n)
            + &many(&|i| format!("L{i}: add.u32 %r2, %r2, 1;\n"), n)
    };
    let targets = |n: usize| {
        let list = many(&|i| format!("{}L{i}", if i == 0 { "" } else { ", " }), n);
        let labels = many(&|i| format!("L{i}: brx.idx %r1, T;\n"), n);
        format!("T: .branchtargets {list};\n{labels}")
    };
    let masks = |n| {
        let open = "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; @%p1 ret;".to_owned();
        open + &many(&|_| "{ bar.warp.sync -1; }\n".into(), n)
            + &"{ ".repeat(30)
            + &many(&|_| "bar.warp.sync -1;\n".into(), n)
            + &"} ".repeat(30)
    };
    let claims = |n| {
        let stores = many(&|_| "add.s64 %a2, %a3, %a4; st.global.u32 [%a2], %r1;\n".into(), n);
        let chain = "add.s64 %a4, %a4, %a5; shl.b64 %a5, %a5, 1; mad.lo.u64 %a6, %a6, %a6, %a6;";
        format!(
            "L: atom.global.add.u32 %r1, [%a1], 1; setp.ge.u32 %p1, %r1, %r2; @%p1 ret; {chain} ld.global.u32 %r3, [%a6]; {stores} setp.eq.u32 %p2, %r3, 0; @%p2 bra L;"
        )
    };
    let data = "ld.param.u64 %a1, [from]; ld.param.u64 %a2, [to];";
    let accesses = |n| {
        let loads = many(&|i| format!("ld.global.u32 %r3, [%a1+{i}];\n"), n);
        let stores = many(&|i| format!("st.global.u32 [%a2+{i}], %r3;\n"), n);
        let body = format!(
            "{data} L: {loads} {stores} add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 9; @%p1 bra L;"
        );
        module(&body).replace(".entry k()", ".entry k(.param .u64 from, .param .u64 to)")
    };
    let sums = |n| {
        // All registers are made of all parameters.
        let chain = many(
            &|i| {
                format!(
                    "add.s64 %x{}, %x{i}, %x{i}; ld.param.u64 %a1, [p{i}]; add.s64 %x{i}, %x{i}, %a1;\n",
                    i + 1
                )
            },
            n,
        );
        let parameters: Vec<_> = (0..n).map(|i| format!(".param .u64 p{i}")).collect();
        module(&format!(".reg .b64 %x<{}>; L: {chain} st.global.u32 [%x1], 0; mov.b64 %x0, %x{n}; add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 9; @%p1 bra L;", n + 1))
            .replace(".entry k()", &format!(".entry k({})", parameters.join(", ")))
    };
    let votes = |n| {
        let round = |i| {
            format!(
                "L{i}: bar.sync 0; add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 9; @%p1 bra L{i};\n"
            )
        };
        module(&many(&round, n))
    };
    let texts = [
        accesses(20_000),
        sums(500),
        votes(5_000),
        module(&masks(5_000)),
        module(&claims(10_000)),
        module(&branches(10_000)),
        module(&nested_loops(5_000)),
        module(&divergent(20_000)),
        module(&targets(1_000)),
        module(&"{ }".repeat(100_000)),
        module(&"{".repeat(200_000)),
        module(&format!("add.u32 %r1, {}", "(".repeat(200_000))),
        module(&many(&|i| format!(".reg .b32 %x{i}<9>;"), 50_000)),
        module(&"add.u32 %r1, %r1, 1; ".repeat(100_000)),
        ".version 8.6\n".to_owned() + &"/* ".repeat(200_000),
        ".version 8.6\n".to_owned() + &"\"".repeat(200_001),
        ".version 8.6\n".to_owned() + &".func f(".repeat(100_000),
        ".version 8.6\n.global .b8 a[] = ".to_owned() + &"{".repeat(200_000),
    ];
    for text in &texts {
        let start = Instant::now();
        judge(text);
        let taken = start.elapsed();
        assert!(taken < SOON, "{taken:?} for {}..", &text[..100.min(text.len())]);
    }
}

/// Pieces that mean something in PTX.
const PIECES: [&str; 24] = [
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ";",
    ",",
    ":",
    "@",
    "!",
    "<",
    ">",
    "\"",
    "/*",
    "//",
    "%",
    "::",
    "bra L;",
    ".reg .b32 %r<9>;",
    ".entry",
    "ret;",
    "\0",
    "é",
];

#[derive(Clone, Debug)]
enum Change {
    Remove(usize, usize),
    Insert(usize, &'static str),
    Copy(usize, usize, usize),
    /// Puts one word in the place of another.
    Replace(usize, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let at = || any::<usize>();
    prop_oneof![
        1 => (at(), 0usize..30).prop_map(|(at, len)| Change::Remove(at, len)),
        1 => (at(), prop::sample::select(&PIECES[..])).prop_map(|(at, piece)| Change::Insert(at, piece)),
        1 => (at(), at(), 0usize..80).prop_map(|(from, to, len)| Change::Copy(from, to, len)),
        3 => (at(), at()).prop_map(|(from, to)| Change::Replace(from, to)),
    ]
}

/// The place at or before `at` between two characters.
fn between(text: &str, at: usize) -> usize {
    let at = at % (text.len() + 1);
    (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

/// Where the names, numbers and operations are.
fn words(text: &str) -> impl Iterator<Item = Range<usize>> {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '%' | '$' | '.');
    let start = text.as_ptr().addr();
    text.split(move |c| !is_of_word(c)).filter(|word| !word.is_empty()).map(move |word| {
        let at = word.as_ptr().addr() - start;
        at..at + word.len()
    })
}

fn changed(text: &str, changes: &[Change]) -> String {
    let mut text = text.to_owned();
    for change in changes {
        match *change {
            Change::Remove(at, len) => {
                let at = between(&text, at);
                let end = between(&text, (at + len).min(text.len())).max(at);
                text.replace_range(at..end, "");
            }
            Change::Insert(at, piece) => text.insert_str(between(&text, at), piece),
            Change::Copy(from, to, len) => {
                let from = between(&text, from);
                let end = between(&text, (from + len).min(text.len())).max(from);
                let piece = text[from..end].to_owned();
                text.insert_str(between(&text, to), &piece);
            }
            Change::Replace(from, to) => {
                let words: Vec<_> = words(&text).collect();
                if !words.is_empty() {
                    let piece = text[words[from % words.len()].clone()].to_owned();
                    text.replace_range(words[to % words.len()].clone(), &piece);
                }
            }
        }
    }
    text
}

/// A part of the compiled modules, which are long: of whole lines, behind a header.
fn part(which: usize, at: usize) -> String {
    let text = COMPILED[which % COMPILED.len()].1;
    let entries: Vec<_> = text.match_indices("\n.visible .entry").map(|(at, _)| at).collect();
    let start = entries[at % entries.len()];
    let end = text[start..].find("\n}").map_or(text.len(), |len| start + len + 2);
    format!(".version 8.6\n.target sm_90a\n.address_size 64\n{}\n", &text[start..end])
}

/// One entry of the samples, behind what is ahead of all.
fn sample(which: usize, at: usize) -> String {
    let text = SAMPLES[which % SAMPLES.len()];
    let entries: Vec<_> = text.match_indices("\n.visible .entry").map(|(at, _)| at).collect();
    let start = entries[at % entries.len()];
    let end = text[start..].find("\n}").map_or(text.len(), |len| start + len + 3);
    format!("{}\n{}", &text[..entries[0]], &text[start..end])
}

#[test]
fn changed_samples_are_read_or_refused() {
    let changes = prop::collection::vec(change(), 1..6);
    let mut runner = TestRunner::new(config());
    let strategy = (any::<usize>(), any::<usize>(), changes);
    let judged = runner.run(&strategy, |(which, at, changes)| {
        judge(&changed(&sample(which, at), &changes));
        Ok(())
    });
    let [read, accepted, assembled] =
        [&READ, &ACCEPTED, &ASSEMBLED].map(|count| count.load(Ordering::Relaxed));
    println!("so far {read} texts are read, {accepted} accepted, {assembled} assembled");
    judged.unwrap_or_else(|error| panic!("{error}"));
}

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,400}") {
        judge(&text);
        judge(&module(&text));
    }

    #[test]
    fn changed_entries_are_read_or_refused(
        (which, at) in any::<(usize, usize)>(),
        changes in prop::collection::vec(change(), 0..6),
    ) {
        // By names that are not the worker loop's.
        judge(&changed(&part(which, at), &changes).replace("preempt_", "own_"));
    }
}
