//! PTX that other compilers made of other projects' kernels: how much of it is accepted, and whether that assembles.
//!
//! `PREEMPT_CORPUS` names the folder that `benches/corpus/build.py` has filled. Without it the tests print SKIP.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use preempt_ptx_text::{Options, Verdict, read, transform_with};

use assembler::assemble;

mod assembler;

/// The least share of a group's entries that has to be accepted, in percent.
const LEAST: [(&str, usize); 2] = [("candle", 98), ("ggml", 95)];

/// An entry, alone in its file.
struct Entry {
    name: String,
    text: String,
    target: String,
    verdict: Verdict,
    /// Yield points in its loops.
    points: usize,
}

/// The files of a group, for each architecture.
fn files(corpus: &Path, group: &str) -> Vec<PathBuf> {
    let folders = fs::read_dir(corpus.join(group)).into_iter().flatten().flatten();
    let files = folders.flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten());
    let mut files: Vec<_> = files.flatten().map(|file| file.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "ptx"));
    files.sort();
    files
}

fn entries(file: &Path) -> Vec<Entry> {
    let text = fs::read_to_string(file).expect("it is there");
    let module = read(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    assert!(module.to_string() == text, "{}", file.display());
    let target = text.lines().find_map(|line| line.strip_prefix(".target "));
    let target = target.and_then(|line| line.split(',').next()).expect("a target").trim();
    // With yield points, where there may be any.
    let options = Options::default().yields(true);
    let entry = |name: &str| {
        let made = transform_with(&module.only(&[name]), &[name], options).expect("it can be read");
        Entry {
            name: format!("{} of {}", name, file.display()),
            points: made.kernels[0].yielding.as_ref().map_or(0, |entry| entry.points),
            text: made.ptx,
            target: target.to_owned(),
            verdict: module.verdict(name).expect("it is there"),
        }
    };
    module.entries().map(entry).collect()
}

/// Calls `task` with each item, on all processors.
fn on_all<T: Send>(items: Vec<T>, task: impl Fn(T) + Sync) {
    let items = Mutex::new(items);
    let processors = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..processors {
            scope.spawn(|| {
                loop {
                    let item = items.lock().unwrap().pop();
                    let Some(item) = item else { break };
                    task(item);
                }
            });
        }
    });
}

#[test]
fn entries_of_other_compilers_are_accepted_and_assemble() {
    let Some(corpus) = std::env::var_os("PREEMPT_CORPUS").map(PathBuf::from) else {
        println!("SKIP: PREEMPT_CORPUS names no corpus; `benches/corpus/build.py` builds one");
        return;
    };
    for group in ["own", "triton", "candle", "ggml"] {
        let (all, accepted) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let yielding = AtomicUsize::new(0);
        let reasons = Mutex::new(BTreeMap::<String, usize>::new());
        on_all(files(&corpus, group), |file| {
            for Entry { name, text, target, verdict, points } in entries(&file) {
                all.fetch_add(1, Ordering::Relaxed);
                yielding.fetch_add(usize::from(points > 0), Ordering::Relaxed);
                match verdict {
                    Verdict::Accepted(_) => {
                        accepted.fetch_add(1, Ordering::Relaxed);
                        assemble(&target, &name, &text);
                    }
                    Verdict::Refused(refusals) => {
                        println!("{name}: {}", Verdict::Refused(refusals.clone()));
                        let reason = refusals.into_iter().map(|refusal| refusal.what).next();
                        *reasons.lock().unwrap().entry(reason.unwrap_or_default()).or_default() +=
                            1;
                    }
                    verdict => panic!("{name}: {verdict}"),
                }
            }
        });
        let (all, accepted) = (all.into_inner(), accepted.into_inner());
        println!("{group}: {accepted} of {all} accepted; refused: {reasons:#?}");
        println!("{group}: {} with yield points", yielding.into_inner());
        assert!(all > 0, "the corpus has no {group}");
        let least = LEAST.iter().find(|(of, _)| *of == group).map_or(0, |(_, least)| *least);
        assert!(100 * accepted >= least * all, "{group}: {accepted} of {all}");
    }
}
