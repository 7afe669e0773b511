//! Whether block-tasks of small kernels may be dropped in their loops, and the entries that drop them.

use preempt_ptx_text::{
    Droppable, Options, ParameterUse, TransformedKernel, Verdict, check, read, transform,
    transform_with,
};

mod assembler;

const POLLED: &str = include_str!("samples/drops_polled.ptx");
const VOTED: &str = include_str!("samples/drops_voted.ptx");
const NEVER: &str = include_str!("samples/drops_never.ptx");

/// The entries, each with the comment ahead of it.
fn expected(text: &'static str) -> Vec<(&'static str, &'static str)> {
    let lines: Vec<_> = text.lines().collect();
    let entry = |pair: &[&'static str]| {
        let name = pair[1].strip_prefix(".visible .entry ")?.split('(').next()?;
        Some((name, pair[0].strip_prefix("// ")?))
    };
    lines.windows(2).filter_map(entry).collect()
}

fn with_yields(text: &str, entries: &[&str]) -> (String, Vec<TransformedKernel>) {
    let options = Options::default().yields(true);
    let transformed = transform_with(text, entries, options).unwrap();
    (transformed.ptx, transformed.kernels)
}

/// A verdict as the comments have it.
fn told(kernel: &TransformedKernel) -> String {
    let of_points = |name: &str| {
        let Some(entry) = &kernel.yielding else { return format!("{name}, but no entry") };
        let uses: Vec<_> = entry.uses.iter().map(|(at, of)| format!("{at} {of:?}")).collect();
        format!("{name} {}: {}", entry.points, uses.join(", ")).trim_end().to_owned()
    };
    match &kernel.droppable {
        Some(Droppable::Strict) => of_points("strict"),
        Some(Droppable::Relaxed) => of_points("relaxed"),
        Some(Droppable::Never(reasons)) if kernel.yielding.is_none() => {
            let reasons: Vec<_> = reasons.iter().map(|reason| &*reason.what).collect();
            format!("never: {}", reasons.join("; "))
        }
        other => format!("{other:?}: {}", kernel.verdict),
    }
}

#[test]
fn verdicts_are_as_the_samples_say() {
    let mut wrong = Vec::new();
    let mut all = Vec::new();
    for text in [POLLED, VOTED, NEVER] {
        let entries = expected(text);
        assert_eq!(entries.len(), read(text).unwrap().entries().count());
        let names: Vec<_> = entries.iter().map(|(name, _)| *name).collect();
        let (_, kernels) = with_yields(text, &names);
        for ((name, expected), kernel) in entries.iter().zip(&kernels) {
            let told = told(kernel);
            let is_right = match expected.strip_prefix("never: ") {
                Some(part) => told.starts_with("never: ") && told.contains(part),
                None => told == *expected,
            };
            if !is_right {
                wrong.push(format!("{name}: {told}, not {expected}"));
            }
        }
        all.extend(entries);
    }
    assert_eq!(wrong, Vec::<String>::new());
    let count = |verdict: &str| all.iter().filter(|of| of.1.starts_with(verdict)).count();
    assert!(count("strict") >= 20 && count("relaxed") >= 3 && count("never") >= 40);
}

#[test]
fn all_is_assembled_and_passes_the_check() {
    for text in [POLLED, VOTED, NEVER] {
        let entries: Vec<_> = expected(text).into_iter().map(|(name, _)| name).collect();
        let (ptx, kernels) = with_yields(text, &entries);
        assembler::assemble("sm_90a", "drops", &ptx);
        let report = check(&ptx).unwrap();
        for kernel in &kernels {
            let is_accepted = matches!(kernel.verdict, Verdict::Accepted(_));
            assert_eq!(report.preemptible.contains(&kernel.name), is_accepted, "{}", kernel.name);
            let yielding = format!("{}__yielding", kernel.name);
            let is_there = ptx.contains(&format!(".entry {yielding}("));
            assert_eq!(is_there, kernel.yielding.is_some(), "{yielding}");
        }
    }
}

/// The text of an entry.
fn entry<'a>(ptx: &'a str, name: &str) -> &'a str {
    let start = ptx.find(&format!(".entry {name}(")).unwrap_or_else(|| panic!("no {name}"));
    let end = ptx[start..].find("\n}").unwrap();
    &ptx[start..start + end]
}

#[test]
fn nothing_changes_unless_it_is_asked_for() {
    for (text, name) in [(POLLED, "sums"), (VOTED, "tiles"), (NEVER, "in_place")] {
        let plain = transform(text, &[name]).unwrap();
        let (ptx, kernels) = with_yields(text, &[name]);
        let (one, other) = (&plain.kernels[0], &kernels[0]);
        assert!(one.droppable.is_none() && one.yielding.is_none() && other.droppable.is_some());
        assert!(!plain.ptx.contains("__yielding"));
        assert_eq!((&one.verdict, &one.preemptible), (&other.verdict, &other.preemptible));
        for name in [name.to_owned(), format!("{name}__preemptible")] {
            assert_eq!(entry(&plain.ptx, &name), entry(&ptx, &name));
        }
    }
}

#[test]
fn an_entry_with_yield_points_says_what_a_launch_needs() {
    let (_, kernels) = with_yields(POLLED, &["sums"]);
    let (plain, yielding) =
        (kernels[0].preemptible.as_ref().unwrap(), kernels[0].yielding.as_ref().unwrap());
    assert_eq!(yielding.entry.name, "sums__yielding");
    assert_eq!((plain.added_shared, yielding.entry.added_shared), (128, 144));
    assert_eq!(
        (&plain.parameters, plain.cohort),
        (&yielding.entry.parameters, yielding.entry.cohort)
    );
    assert_eq!(yielding.uses, [(0, ParameterUse::Read), (1, ParameterUse::Written)]);
}

#[test]
fn threads_look_at_the_start_of_a_loop_and_vote_in_the_place_of_a_barrier() {
    let (ptx, _) = with_yields(POLLED, &["sums"]);
    let sums = entry(&ptx, "sums__yielding");
    // Behind the label of the loop, and ahead of its first instruction.
    let (_, of_loop) = sums.split_once("AGAIN:\n").unwrap();
    let (look, round) = of_loop.split_once("ld.global.u32 %r9, [%a4];").unwrap();
    assert_eq!(look.matches("@%preempt_leaves bra $preempt_tail;").count(), 1, "{look}");
    assert!(look.contains("setp.lt.u32 %preempt_is_early, %preempt_passed, 512;"), "{look}");
    assert!(!round.split("$preempt_tail:").next().unwrap().contains("preempt_leaves"));
    let (ptx, _) = with_yields(VOTED, &["tiles", "reduces_over_the_block"]);
    let tiles = entry(&ptx, "tiles__yielding");
    let (_, of_loop) = tiles.split_once("AGAIN:\n").unwrap();
    let (first, second) = of_loop.split_once("ld.shared.u32 %r13, [tile];").unwrap();
    assert!(first.contains(", 2, ") && !first.contains("bar.sync 0"), "{first}");
    assert!(first.contains("bar.warp.sync -1;"), "lanes come to a vote together");
    assert!(second.contains("bar.sync 0;"), "one vote in a round is enough");
    // Barrier 0 is the body's, 1 the loop's, so 2 is that of votes.
    let votes = |text: &str| {
        text.lines().filter(|of| of.contains("bar.red.or.pred") && of.contains(", 2, ")).count()
    };
    assert_eq!((votes(tiles), votes(entry(&ptx, "tiles__preemptible"))), (1, 0));
    let reduces = entry(&ptx, "reduces_over_the_block__yielding");
    assert!(reduces.contains("bar.red.or.pred %p3, 0, %p2;"), "{reduces}");
}

#[test]
fn a_block_that_leaves_waits_for_its_copies() {
    let (ptx, _) = with_yields(VOTED, &["copies_in_flight"]);
    let text = entry(&ptx, "copies_in_flight__yielding");
    let (_, tail) = text.split_once("$preempt_tail:\n").unwrap();
    let (ends, _) = tail.split_once("st.local").unwrap();
    assert!(ends.contains("bar.warp.sync -1;") && ends.contains("cp.async.wait_all;"), "{ends}");
}

#[test]
fn dynamic_shared_memory_makes_room_for_the_watch() {
    let text = VOTED.replace(
        "ld.shared.u32 %r13, [tile];",
        "ld.shared.u32 %r13, [dynamic]; mov.u32 %r14, %dynamic_smem_size;",
    );
    let (ptx, _) = with_yields(&text, &["tiles"]);
    assembler::assemble("sm_90a", "dynamic", &ptx);
    let (plain, yielding) = (entry(&ptx, "tiles__preemptible"), entry(&ptx, "tiles__yielding"));
    let (slot, size) = (
        "sub.u32 %preempt_end, %preempt_end, ",
        "sub.u32 %preempt_shared_size, %preempt_shared_size, ",
    );
    assert!(plain.contains(&format!("{slot}112;")) && plain.contains(&format!("{size}128;")));
    assert!(yielding.contains(&format!("{slot}128;")) && yielding.contains(&format!("{size}144;")));
    assert!(yielding.contains("[%preempt_slot+112]"));
}
