//! Each suite explains itself.

use std::process::Command;

/// What `preempt-bench` prints.
fn printed(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_preempt-bench")).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The suites, as `--help` lists them.
fn suites() -> Vec<String> {
    let help = printed(&["--help"]);
    let (_, suites) = help.split_once("[SUITE]").or(help.split_once("<SUITE>")).unwrap();
    let listed = suites.lines().filter_map(|line| line.trim().strip_prefix("- "));
    let names = listed.filter_map(|line| line.split_once(':')).map(|(name, _)| name.to_owned());
    names.take_while(|name| !matches!(name.as_str(), "cpu" | "cuda")).collect()
}

#[test]
fn each_suite_explains_itself_without_a_device() {
    let suites = suites();
    assert!(suites.len() >= 13, "{suites:?}");
    let mut all = Vec::new();
    for suite in &suites {
        // A GPU that is not there is not asked for.
        let text = printed(&[suite, "--explain", "--device", "cuda"]);
        assert!(text.starts_with(&format!("{suite}: ")), "{text}");
        assert!(text.len() > 300, "{suite} says next to nothing: {text}");
        assert!(text.ends_with('\n') && !text.contains("\n\n\n"), "{suite}: {text}");
        all.push(text);
    }
    all.sort();
    all.dedup();
    assert_eq!(all.len(), suites.len(), "two suites say the same");
}

#[test]
fn suites_with_several_programs_explain_what_they_share() {
    for suite in ["priority", "antt", "fairness", "mix", "sim"] {
        let text = printed(&[suite, "--explain"]);
        assert!(text.contains("`makespan` is from the first submission"), "{suite}: {text}");
        assert!(text.contains("--device sim"), "{suite}: {text}");
    }
}

#[test]
fn the_readme_names_each_suite() {
    let readme = include_str!("../README.md");
    for suite in suites() {
        assert!(
            readme.contains(&format!("| `{suite}` |")),
            "benches/README.md has no row of `{suite}`"
        );
    }
}
