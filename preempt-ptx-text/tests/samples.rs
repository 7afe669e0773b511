//! Verdicts of small kernels, each about one thing. `ptxas` assembles all of the samples for `sm_90a`.

use preempt_ptx_text::{Note, Verdict, read};

const WAITS: &str = include_str!("samples/waits.ptx");
const LOCKS: &str = include_str!("samples/locks_and_bounds.ptx");
const REFUSED: &str = include_str!("samples/refused.ptx");
const ACCEPTED: &str = include_str!("samples/accepted.ptx");

/// The entries of a file, each with the comment ahead of it.
fn expected(text: &str) -> Vec<(&str, &str)> {
    let lines: Vec<_> = text.lines().collect();
    lines
        .windows(2)
        .filter_map(|pair| {
            let name = pair[1].strip_prefix(".visible .entry ")?.split('(').next()?;
            Some((name, pair[0].strip_prefix("// ")?))
        })
        .collect()
}

fn refused(text: &str) -> Vec<String> {
    let module = read(text).unwrap();
    let entries = expected(text);
    assert_eq!(entries.len(), module.entries().count());
    let wrong = entries.iter().filter_map(|&(name, why)| match module.verdict(name).unwrap() {
        Verdict::Refused(reasons) => {
            let told = reasons.iter().any(|reason| reason.what.contains(why));
            (!told).then(|| format!("{name}: {reasons:?}"))
        }
        verdict => Some(format!("{name}: {verdict:?}")),
    });
    wrong.collect()
}

#[test]
fn blocks_that_wait_for_others_are_refused() {
    assert_eq!(refused(WAITS), Vec::<String>::new());
    assert_eq!(refused(LOCKS), Vec::<String>::new());
    assert!(expected(WAITS).len() + expected(LOCKS).len() >= 40);
}

#[test]
fn what_a_worker_loop_would_change_is_refused() {
    assert_eq!(refused(REFUSED), Vec::<String>::new());
}

#[test]
fn others_are_accepted_by_their_rules() {
    let module = read(ACCEPTED).unwrap();
    let entries = expected(ACCEPTED);
    assert!(entries.len() >= 30);
    let wrong = entries.iter().filter_map(|&(name, rules)| {
        let verdict = module.verdict(name).unwrap();
        let Verdict::Accepted(accepted) = &verdict else {
            return Some(format!("{name}: {verdict}"));
        };
        let rules = rules.strip_prefix("rules:").unwrap();
        let mut rules: Vec<_> = rules.split_whitespace().map(str::to_owned).collect();
        let mut found: Vec<_> = accepted.rules.iter().map(|rule| format!("{rule:?}")).collect();
        rules.sort();
        found.sort();
        (rules != found).then(|| format!("{name}: {found:?}"))
    });
    assert_eq!(wrong.collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn looks_that_are_given_up_are_noted() {
    let module = read(ACCEPTED).unwrap();
    let gives_up = |name: &&str| match module.verdict(name).unwrap() {
        Verdict::Accepted(accepted) => accepted.notes.contains(&Note::GivesUp),
        _ => false,
    };
    assert_eq!(module.entries().filter(gives_up).collect::<Vec<_>>(), ["bounded_look"]);
}

#[test]
fn a_refusal_says_what_where_and_what_to_do() {
    let module = read(WAITS).unwrap();
    let Verdict::Refused(reasons) = module.verdict("helper_of_helper_waits").unwrap() else {
        panic!()
    };
    let line = 1 + WAITS
        .lines()
        .position(|line| line.contains("ld.relaxed.gpu.global.u32 %r1, [%a1]"))
        .unwrap();
    let text = reasons[0].to_string();
    let start = format!(
        "wait_for: a loop ends by what `ld.relaxed.gpu.global.u32` reads, which another block may have to write first (line {line}, column 2); "
    );
    assert!(text.starts_with(&start), "{text}");
    assert!(text.contains("without preemption"), "{text}");
    assert_eq!(module.verdict("nowhere"), None);
    assert_eq!(module.verdict("wait_for"), None);
}
