//! Urgent requests beside batches of foreign kernels.

use std::time::Duration;

use anyhow::Result;
use preempt::{Preemption, Scheduler};

use super::cases::{CORPUS, Case, OWN};
use super::corpus::Corpus;
use super::pairs::{Arm, Manner, Pair, Requests};
use super::subject::{Subject, task_time};
use crate::experiments::Bench;
use crate::experiments::corun::LEARNING;
use crate::progress::Progress;
use crate::samples::{Samples, ratio};

/// Requests beside one batch.
pub struct Beside {
    pub name: String,
    pub task: Duration,
    pub idle: Samples,
    pub ours: Arm,
    /// With yield points, if a kernel of the batch has some.
    pub yielding: Option<Arm>,
    /// With armed requests; with yield points, too, where there are some.
    pub armed: Arm,
    pub priorities: Arm,
}

impl Beside {
    /// Stream priorities' p99 to that of an arm.
    pub fn gain(&self, arm: &Arm) -> Option<f64> {
        ratio(self.priorities.times.summary().p99, arm.times.summary().p99)
    }

    pub fn arms(&self) -> impl Iterator<Item = (&'static str, &Arm)> {
        let yielding = self.yielding.iter().map(|arm| ("preempt, yield points", arm));
        let others = [("preempt, armed", &self.armed), ("stream priority", &self.priorities)];
        [("preempt", &self.ours)].into_iter().chain(yielding).chain(others)
    }
}

/// Kernels with long block-tasks, each of which is the batch of a pair.
pub const LONG: [&str; 9] = [
    "tiled_matmul",
    "tensor_matmul",
    "stack_walk",
    "n_body",
    "n_body_tiled",
    "matmul",
    "matmul_small",
    "attention",
    "attention_causal",
];

/// The kernels of a transformer's block, all of Triton's.
pub const BLOCK: [&str; 9] = [
    "layer_norm",
    "matmul",
    "rotary",
    "attention",
    "matmul",
    "layer_norm",
    "matmul",
    "gelu",
    "matmul",
];

/// Measures requests beside each batch.
///
/// # Errors
///
/// Errors of the scheduler and of the driver.
pub fn beside(
    scheduler: &Scheduler,
    bench: &Bench,
    corpus: &Corpus,
    (requests, groups): (u32, u32),
) -> Result<Vec<Beside>> {
    let all: Vec<&'static Case> = match bench.corpus {
        Some(_) => OWN.iter().chain(CORPUS).collect(),
        None => OWN.iter().collect(),
    };
    let find = |name: &str| {
        let of_triton = |case: &&&'static Case| case.entry == name && case.group == "triton";
        let triton = all.iter().find(of_triton);
        triton.or_else(|| all.iter().find(|case| case.entry == name)).copied()
    };
    let mut batches: Vec<(String, Vec<&'static Case>)> =
        LONG.iter().filter_map(|&name| Some((name.to_owned(), vec![find(name)?]))).collect();
    if let Some(steps) = BLOCK.iter().map(|name| find(name)).collect::<Option<Vec<_>>>() {
        batches.push(("block".to_owned(), steps));
    }
    let progress = Progress::new("requests", batches.len() as u64);
    let sms = scheduler.device().properties().sms;
    let stream = scheduler.stream(0);
    let mut found = Vec::new();
    for (name, steps) in batches {
        let mut subjects = Vec::new();
        for case in steps {
            subjects.extend(Subject::new(scheduler, corpus, case, bench.seed as u32)?);
        }
        let mut task = Duration::ZERO;
        for subject in &subjects {
            let mut alone = Samples::default();
            for _ in 0..LEARNING {
                alone.push(subject.scheduled(&stream, &subject.call, Preemption::Plain)?.0);
            }
            let resident = sms * subject.footprint.plain.blocks_per_sm;
            task = task.max(task_time(alone.p50(), subject.tasks(), resident));
        }
        let mut arms = Requests::new(scheduler, bench.seed)?;
        let pair = Pair { steps: subjects.iter().collect() };
        let has_points = subjects.iter().any(|subject| subject.yielding.is_some());
        let mut row = Beside {
            name,
            task,
            idle: arms.idle(requests)?,
            ours: Arm::default(),
            yielding: has_points.then(Arm::default),
            armed: Arm::default(),
            priorities: Arm::default(),
        };
        for _ in 0..groups {
            arms.by_priorities(&pair, requests, &mut row.priorities)?;
            let manner = |has_points, is_armed| Manner { has_points, is_armed };
            arms.by_scheduler(&pair, manner(false, false), requests, &mut row.ours)?;
            if let Some(arm) = &mut row.yielding {
                arms.by_scheduler(&pair, manner(true, false), requests, arm)?;
            }
            arms.by_scheduler(&pair, manner(has_points, true), requests, &mut row.armed)?;
            scheduler.synchronize()?;
        }
        found.push(row);
        progress.step();
    }
    Ok(found)
}
