//! The pages whose figures come from results: `benches/RESULTS.md`, the marked parts of `README.md`, and the pictures
//! beside the results.
//!
//! A section's sentences are text; its figures come from a file in `benches/results/`, which it names.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

mod chimera;
mod claims;
mod coschedule;
mod cost;
mod foreign;
mod libraries;
mod markdown;
mod pool;
mod processes;
mod readme;
mod results;
mod right;
mod scheduling;
mod urgent;

use markdown::Table;
pub(crate) use markdown::range;
use results::Folder;

/// A file of the repository and what it has to hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// The path.
    pub path: PathBuf,
    /// The contents.
    pub text: String,
}

/// Writes what is below a heading.
type Section = fn(&Folder) -> Result<String>;

const SECTIONS: [(&str, Section); 29] = [
    ("What the papers claim", claims::claims_beside_ours),
    ("An urgent launch beside a kernel that fills the GPU", urgent::latency),
    ("Armed programs", urgent::armed),
    ("From the signal until the last block has left", urgent::stops),
    ("Requests beside a batch job", urgent::inference),
    ("The cost of being preemptible", cost::overhead),
    ("The same with kernels compiled by Rust 1.95", cost::overhead_older),
    ("The cost of a launch", cost::launch),
    ("Just enough SMs", cost::spatial),
    ("Which SMs", cost::choice),
    ("Urgent programs", scheduling::priority),
    ("Programs of equal priority", scheduling::antt),
    ("Shares by weight", scheduling::fairness),
    ("Eleven programs at intervals", scheduling::mix),
    ("Programs two at a time", coschedule::coschedule),
    ("Blocks that drain, are dropped or switch", chimera::chimera),
    ("Kernels of other compilers", foreign::foreign),
    ("Closed libraries", libraries::libraries),
    ("Two processes on one GPU", processes::processes),
    ("Tasks on pools of devices", pool::pool),
    ("Predicted durations", scheduling::prediction),
    ("Decided again, and simulated", scheduling::sim),
    ("In virtual time", scheduling::simulated),
    ("Decisions", scheduling::engine),
    ("Exactly once", right::storm),
    ("Everything at once, for minutes", right::soak),
    ("The papers' programs are right", right::verify),
    ("An application on rust-cuda", right::cust_app),
    ("Urgent launches on the CPU device", urgent::latency_on_cpu),
];

/// All pages of the repository in this folder.
///
/// # Errors
///
/// If a result is missing, or is not as its suite writes it; if the README has lost a mark.
pub fn pages(repository: &Path) -> Result<Vec<Page>> {
    let benches = repository.join("benches");
    let folder = Folder::new(benches.join("results"));
    let path = repository.join("README.md");
    let readme = fs::read_to_string(&path).with_context(|| {
        format!("{} cannot be read; run this in the repository", path.display())
    })?;
    let mut pages = vec![
        Page { text: readme::with_figures(&readme, &folder)?, path },
        Page { text: tables(&folder)?, path: benches.join("RESULTS.md") },
    ];
    for name in folder.names()? {
        let results = folder.get(&name)?;
        if let Some(picture) = results.picture()? {
            let path = benches.join("results").join(results.svg());
            pages.push(Page { text: picture.svg()?, path });
        }
    }
    Ok(pages)
}

/// Fails if a page is not what the results say, and names its first line that differs. Fails, too, if results were measured
/// with changes that were not committed.
///
/// # Errors
///
/// Then, and those of [`pages`].
pub fn check(repository: &Path) -> Result<()> {
    let pages = pages(repository)?;
    for (commit, files) in commits(repository)? {
        ensure!(
            is_clean(&commit),
            "{} measured {commit}, which is no commit: commit first, and measure again",
            files.join(", "),
        );
    }
    for Page { path, text } in pages {
        let found = fs::read_to_string(&path).unwrap_or_default();
        if found != text {
            let same = found.lines().zip(text.lines()).take_while(|(one, other)| one == other);
            bail!(
                "{}, line {}: this is not what benches/results says; run `cargo run -p preempt-report -- --pages`",
                path.display(),
                same.count() + 1,
            );
        }
    }
    Ok(())
}

/// Fails if not all results are of one commit, and names those of each.
///
/// # Errors
///
/// Then, and if results cannot be read.
pub fn check_one_commit(repository: &Path) -> Result<()> {
    let commits = commits(repository)?;
    if commits.len() > 1 {
        let list = commits.iter().map(|(of, files)| format!("\n{of}: {}", files.join(", ")));
        bail!(
            "results are of {} commits, and figures of different commits are not to be compared:{}",
            commits.len(),
            list.collect::<String>()
        );
    }
    Ok(())
}

/// Whether it is the hash of a commit, and nothing was changed since.
fn is_clean(commit: &str) -> bool {
    commit.len() >= 7 && commit.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The files of results by the commit that they measured.
fn commits(repository: &Path) -> Result<BTreeMap<String, Vec<String>>> {
    let folder = Folder::new(repository.join("benches/results"));
    let mut commits = BTreeMap::<_, Vec<_>>::new();
    for name in folder.names()? {
        let results = folder.get(&name)?;
        let commit = results.text("commit").unwrap_or("nothing that it names").to_owned();
        commits.entry(commit).or_default().push(results.file);
    }
    Ok(commits)
}

fn tables(folder: &Folder) -> Result<String> {
    let mut text = String::from(
        "# Results\n\n\
         `preempt-plot --pages` writes this page from the JSON files in [results](results), and the gate fails if it \
         is not what they say. The arms of each table took turns in one run, so compare inside a table: absolute times \
         move from machine to machine. Each suite says what its rows mean: \
         `cargo run --release -p preempt-bench -- SUITE --explain`. Words are those of the \
         [glossary](../ARCHITECTURE.md#glossary).\n",
    );
    for (title, section) in SECTIONS {
        let section = section(folder).with_context(|| format!("section `{title}`"))?;
        text += &format!("\n## {title}\n\n{}\n", section.trim_end());
    }
    let mut all = Table::new(["file", "suite", "device", "commit", "date"]);
    for name in folder.names()? {
        let results = folder.get(&name)?;
        let of = |key| results.text(key).unwrap_or("-").to_owned();
        let link = format!("[{0}](results/{0})", results.file);
        all.row([link, of("suite"), of("device"), of("commit"), of("date")]);
    }
    Ok(format!("{text}\n## The files\n\n{}", all.text()))
}
