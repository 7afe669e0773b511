//! The time that the engine and a policy take for a decision, without any device.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Instant;

use anyhow::{Result, ensure};
use preempt::policy::{Fifo, Policy, StaticPriority};
use preempt::sim::{EngineLoad, Machine};
use preempt_report::{digits, microseconds};
use serde_json::{Value, json};

use super::{Bench, Experiment, Outcome, Rows, line};
use crate::progress::Progress;
use crate::samples::{Samples, Summary, show};

/// Launches in flight at any time; those without SMs wait.
const WAITING: [usize; 2] = [1_000, 100_000];

/// Events between two looks at the clock where the rate is measured. They take a millisecond or less, in which the
/// operating system mostly leaves the thread alone.
const BATCH: u32 = 1000;

/// Batches, and events that are timed one by one.
const FULL: (u64, u64) = (1000, 1_000_000);
/// The same with `--quick`.
const QUICK: (u64, u64) = (3, 1000);

/// A policy, and how many SMs the launches can fill.
struct Case {
    policy: &'static str,
    launches: &'static str,
    needs: &'static [u32],
    make: fn() -> Box<dyn Policy>,
}

/// Launches that can fill the device, as the batch kernels of the papers can.
const LARGE: &[u32] = &[132];
/// Launches of which up to 33 share the device.
const MIXED: &[u32] = &[4, 16, 44, 132];

const CASES: [Case; 4] = [
    Case {
        policy: "static priority",
        launches: "large",
        needs: LARGE,
        make: || Box::new(StaticPriority::new()),
    },
    Case {
        policy: "static priority",
        launches: "mixed",
        needs: MIXED,
        make: || Box::new(StaticPriority::new()),
    },
    Case {
        policy: "whole device",
        launches: "mixed",
        needs: MIXED,
        make: || Box::new(StaticPriority::whole_device()),
    },
    Case { policy: "fifo", launches: "large", needs: LARGE, make: || Box::new(Fifo::new()) },
];

/// The results of one case.
struct Measured {
    events_per_s: f64,
    allocations_per_event: f64,
    yields_per_event: f64,
    event: Summary,
    decision: Summary,
}

/// The experiment `engine`.
#[derive(Debug)]
pub struct Engine;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
The time that the engine and a policy take for a decision, with 1,000 and 100,000 launches that
wait, and how often they allocate memory. No device is used, whatever `--device` says.

- An `event` is a launch that arrives or a cohort that is out, with the decision that follows; a
  `decision` is the policy's plan and the engine's orders for it. Launches have eight priorities;
  when a launch is over, another arrives. `yields`: signals for each event.
- large: each launch can fill all 132 SMs. `mixed`: 4, 16, 44 or all of them, so that up to 33 share
  the device, and a new launch can make many of them move. The keys of the summary without `mixed`
  are of static priorities with large launches; `allocations_per_event` is the most of all rows.
- The rate is the median of batches of 1,000 events; the times of single events contain 20 to 40 ns
  for the clock.
";

impl Experiment for Engine {
    fn name(&self) -> &'static str {
        "engine"
    }

    fn about(&self) -> &'static str {
        "The time that the engine and a policy take for a decision, without any device."
    }

    fn meaning(&self) -> &'static [&'static str] {
        &[MEANING]
    }

    fn run(&self, bench: &Bench) -> Result<Outcome> {
        run(bench)
    }
}

/// Measures decisions.
fn run(bench: &Bench) -> Result<Outcome> {
    let (batches, samples) = bench.amount(QUICK, FULL);
    let mut all = Vec::new();
    let progress = Progress::new("engine", (CASES.len() * WAITING.len()) as u64);
    for case in &CASES {
        for waiting in WAITING {
            let mut load =
                EngineLoad::new(Machine::h200(), (case.make)(), waiting, case.needs, bench.seed)?;
            all.push((case, waiting, measure(&mut load, waiting, batches, samples)?));
            progress.step();
        }
    }
    drop(progress);
    Ok(outcome(&all))
}

type CaseMeasured = (&'static Case, usize, Measured);

fn outcome(all: &[CaseMeasured]) -> Outcome {
    let mut rows = Rows::below([
        "policy",
        "launches",
        "waiting",
        "events/s",
        "allocations",
        "yields",
        "event p50",
        "event p99",
        "decision p50",
        "decision p99",
    ]);
    for (case, waiting, measured) in all {
        let Measured { events_per_s, allocations_per_event, yields_per_event, event, decision } =
            measured;
        let cells = line([
            case.policy,
            case.launches,
            &waiting.to_string(),
            &(digits(events_per_s / 1e6) + " M"),
            &digits(*allocations_per_event),
            &digits(*yields_per_event),
            &show(event.p50),
            &show(event.p99),
            &show(decision.p50),
            &show(decision.p99),
        ]);
        let json = json!({
            "policy": case.policy,
            "launches": case.launches,
            "sms_needed": case.needs,
            "waiting": waiting,
            "events_per_s": events_per_s,
            "allocations_per_event": allocations_per_event,
            "yields_per_event": yields_per_event,
            "event_p50_us": microseconds(event.p50),
            "event_p99_us": microseconds(event.p99),
            "decision_p50_us": microseconds(decision.p50),
            "decision_p99_us": microseconds(decision.p99),
            "decision_max_us": microseconds(decision.max),
        });
        rows.push(cells, json);
    }
    Outcome {
        about: "The engine of a device of 132 SMs and a policy, by themselves: no device is used. An event is a \
                launch that comes or a cohort that is out, with the decision that follows; times contain 20 to 40 ns \
                for the clock."
            .to_owned(),
        table: rows.table,
        text_columns: 2,
        rows: rows.json,
        summary: summary(all),
        mistake: None,
    }
}

/// The summary, by its keys.
fn summary(all: &[CaseMeasured]) -> Value {
    // In the order of the cases, each with both numbers of launches.
    let [(.., large_1000), (.., large_100000), (.., mixed_1000), (.., mixed_100000), ..] = all
    else {
        unreachable!("there are four cases")
    };
    let p99 = |measured: &Measured| microseconds(measured.decision.p99);
    let most = all.iter().map(|(.., measured)| measured.allocations_per_event).fold(0.0, f64::max);
    json!({
        "events_per_s": large_1000.events_per_s,
        "events_per_s_mixed": mixed_1000.events_per_s,
        "allocations_per_event": most,
        "decision_p99_us_1000_waiting": p99(large_1000),
        "decision_p99_us_100000_waiting": p99(large_100000),
        "decision_p99_us_1000_waiting_mixed": p99(mixed_1000),
        "decision_p99_us_100000_waiting_mixed": p99(mixed_100000),
    })
}

fn measure(load: &mut EngineLoad, waiting: usize, batches: u64, samples: u64) -> Result<Measured> {
    let event = |load: &mut EngineLoad| {
        load.tell();
        load.decide();
    };
    // All collections have grown to their size, because a launch has taken each place.
    (0..3 * waiting as u64 + samples / 2).for_each(|_| event(load));
    let (before, yields, done) = (allocations(), load.yields(), load.done());
    let mut rates = Vec::with_capacity(batches as usize);
    for _ in 0..batches {
        let start = Instant::now();
        (0..BATCH).for_each(|_| event(load));
        rates.push(f64::from(BATCH) / start.elapsed().as_secs_f64());
    }
    let events = (batches * u64::from(BATCH)) as f64;
    let allocated = allocations() - before;
    let yields_per_event = (load.yields() - yields) as f64 / events;
    ensure!(load.done() > done, "no launch came to its end");
    rates.sort_unstable_by(f64::total_cmp);
    let (mut events_took, mut decisions) = (Samples::default(), Samples::default());
    for _ in 0..samples {
        let start = Instant::now();
        load.tell();
        let told = Instant::now();
        load.decide();
        let decided = Instant::now();
        events_took.push(decided - start);
        decisions.push(decided - told);
    }
    Ok(Measured {
        events_per_s: rates[rates.len() / 2],
        allocations_per_event: allocated as f64 / events,
        yields_per_event,
        event: events_took.summary(),
        decision: decisions.summary(),
    })
}

/// The system's allocator, with a count of the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The number of allocations of this thread.
fn allocations() -> u64 {
    ALLOCATIONS.get()
}

fn count() {
    // A thread that ends has nothing to count.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: everything is the system's allocator; the counter allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(address, layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(address, layout, size) }
    }
}
