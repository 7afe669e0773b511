//! The README shows the changes that preempt makes to the program; they are the real ones.

use std::collections::HashMap;

/// Lines, each with its number of occurrences.
fn lines(text: &str) -> HashMap<&str, i32> {
    let mut lines = HashMap::new();
    for line in text.lines() {
        *lines.entry(line).or_default() += 1;
    }
    lines
}

#[test]
fn the_readme_shows_the_difference() {
    let before = include_str!("../src/bin/before.rs");
    let after = include_str!("../src/bin/after.rs");
    let readme = include_str!("../README.md");
    let (_, shown) = readme.split_once("```diff\n").expect("the README has a difference");
    let (shown, _) = shown.split_once("\n```").expect("it ends");

    let mut patched = lines(before);
    let (mut removed, mut added) = (0, 0);
    for line in shown.lines() {
        if let Some(line) = line.strip_prefix('-') {
            *patched.entry(line).or_default() -= 1;
            removed += 1;
        } else if let Some(line) = line.strip_prefix('+') {
            *patched.entry(line).or_default() += 1;
            added += 1;
        }
    }
    patched.retain(|_, count| *count != 0);
    assert_eq!(patched, lines(after));
    let words =
        format!("{removed} lines of {} are gone, and {added} are new", before.lines().count());
    assert!(readme.contains(&words), "{words}");
}
