//! Recordings whose files were changed: each is refused, or replayed and played, and soon.
//!
//! `PROPTEST_CASES` is the number of changed files.

use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{panic, thread};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::Value;

use super::*;
use crate::policy::{DynamicPriority, Ffs, StaticPriority};
use crate::sim::{Costs, KernelModel, Machine, Simulation, Workload};

/// Far above what any of these takes.
const SOON: Duration = Duration::from_secs(10);

/// A change at a place that `path` leads to.
#[derive(Clone, Debug)]
struct Edit {
    path: Vec<u16>,
    number: u64,
}

/// Numbers at which rules and types end.
const EDGES: [u64; 12] =
    [0, 1, 2, 31, 32, 1023, 1024, u32::MAX as u64, 1 << 32, 1 << 63, u64::MAX - 1, u64::MAX];

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let path = prop::collection::vec(any::<u16>(), 1..12);
    let edit = (path, any::<u64>()).prop_map(|(path, number)| Edit { path, number });
    prop::collection::vec(edit, 1..5)
}

/// Changes what the path ends at: a number to another one, a list by an element, anything to nothing.
fn apply(value: &mut Value, path: &[u16], number: u64) {
    let [first, rest @ ..] = path else { return change(value, number) };
    match value {
        Value::Array(all) if !all.is_empty() => {
            let at = usize::from(*first) % all.len();
            apply(&mut all[at], rest, number);
        }
        Value::Object(all) if !all.is_empty() => {
            let at = usize::from(*first) % all.len();
            apply(all.values_mut().nth(at).expect("it is that long"), rest, number);
        }
        _ => change(value, number),
    }
}

fn change(value: &mut Value, number: u64) {
    let edge = EDGES[number as usize % EDGES.len()];
    match value {
        Value::Number(known) => {
            let known = known.as_u64().unwrap_or(0);
            *value = match number >> 32 & 7 {
                0..3 => edge.into(),
                3..5 => known.wrapping_add(1).into(),
                5..7 => known.wrapping_sub(1).into(),
                _ => Value::Null,
            };
        }
        Value::Array(all) if !all.is_empty() => {
            let [from, to] = [number >> 8, number >> 20].map(|at| at as usize % all.len());
            match number >> 32 & 3 {
                0 => drop(all.remove(from)),
                1 => all.insert(to, all[from].clone()),
                _ => all.swap(from, to),
            }
        }
        Value::Bool(known) => *known = !*known,
        other => *other = edge.into(),
    }
}

/// A recording of a few launches, of which many more play in the same time than of [`RECORDED`](super::tests::RECORDED).
fn short() -> Recording {
    let mut workload = Workload::new(3);
    for priority in 0..3 {
        let stream = workload.stream(priority);
        let kernel = KernelModel::new("k", Duration::from_micros(200), 9);
        let (period, end) = (Duration::from_micros(150), Duration::from_micros(400));
        workload.repeat(stream, &kernel, Duration::ZERO, period, end);
    }
    let simulation = Simulation::new(Machine::new(3, Costs::h200()), StaticPriority::new());
    let results = simulation.recording(true).run(&workload).expect("results");
    results.recording.expect("recorded")
}

/// One file in this many, a power of two, is the long recording.
const LONG: u64 = 16;

/// How many files were read, replayed, and played. Relaxed throughout: one thread counts.
static READ: AtomicU64 = AtomicU64::new(0);
static REPLAYED: AtomicU64 = AtomicU64::new(0);
static PLAYED: AtomicU64 = AtomicU64::new(0);

fn judge(file: &Value) {
    let Ok(contents) = serde_json::from_value::<Contents>(file.clone()) else { return };
    READ.fetch_add(1, Relaxed);
    let recording = Recording(contents);
    let as_recorded = recording.replay(StaticPriority::new().anticipating());
    let others = [recording.replay(DynamicPriority::new()), recording.replay(Ffs::new())];
    if as_recorded.is_ok() && others.iter().all(Result::is_ok) {
        REPLAYED.fetch_add(1, Relaxed);
    }
    let Ok(workload) = Workload::from_recording(&recording) else { return };
    let machine = Machine::new(recording.sms(), Costs::free());
    if Simulation::new(machine, StaticPriority::new()).run(&workload).is_ok() {
        PLAYED.fetch_add(1, Relaxed);
    }
}

#[test]
fn changed_recordings_are_refused_or_replayed() {
    let json = |recording: &Recording| serde_json::to_value(&recording.0).expect("JSON");
    let (long, short) = (json(&super::tests::RECORDED), json(&short()));
    // Replays catch the engine's panics, of which there would be a message each.
    let messages: Arc<dyn Fn(&PanicHookInfo<'_>) + Send + Sync> = Arc::from(panic::take_hook());
    let (of_others, here) = (messages.clone(), thread::current().id());
    panic::set_hook(Box::new(move |info| {
        if thread::current().id() != here {
            of_others(info);
        }
    }));
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    let result = runner.run(&edits(), |edits| {
        let is_long = edits[0].number >> 48 & (LONG - 1) == 0;
        let mut file = if is_long { long.clone() } else { short.clone() };
        for Edit { path, number } in &edits {
            // Mostly of what happened, which is one of the file's fields.
            let at = if number % 5 > 0 { &mut file["steps"] } else { &mut file };
            apply(at, path, *number);
        }
        let start = Instant::now();
        judge(&file);
        prop_assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        Ok(())
    });
    panic::set_hook(Box::new(move |info| messages(info)));
    result.expect("no panic, and no file that takes long");
    let counts = [&READ, &REPLAYED, &PLAYED].map(|count| count.load(Relaxed));
    println!("{counts:?} files were read, replayed and played");
    assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
}
