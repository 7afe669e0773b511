//! Two and three programs of equal priority (FLEP figures 10, 11 and 12).

use std::time::Duration;

use anyhow::{Result, ensure};
use preempt::policy::{Hpf, Policy};
use preempt_programs::Definition;
use preempt_record::{digits, microseconds};
use preempt_tests::Random;
use serde_json::{Value, json};

use super::corun::{Arm, Cast, FLEP, Job, Stage, Turnarounds, antt, ceiling, mean, stp};
use super::{Bench, Outcome, line};
use crate::progress::Progress;
use crate::samples::{Samples, ratio, show};

/// Those that run on the small input, after a large one.
pub(super) const SHORT: [&str; 4] = ["MD", "MM", "SPMV", "VA"];

/// Random triples.
const TRIPLES: usize = 28;

/// Samples of each arm, and with `--quick`.
const SAMPLES: u32 = 10;
const QUICK_SAMPLES: u32 = 1;
const QUICK_TRIPLES: usize = 2;

/// `Hpf` among the stage's policies.
const HPF: usize = 1;

const ARMS: [Arm; 3] = [Arm::PlainStreams, Arm::Reordered(HPF), Arm::Ours(HPF)];

/// Programs that are submitted one right after the other.
struct Group {
    names: Vec<&'static str>,
    alone: Vec<Samples>,
    arms: [Turnarounds; ARMS.len()],
    /// Where preemption is free.
    ceiling: Vec<Duration>,
}

/// Measures all pairs and triples.
pub fn run(bench: &Bench) -> Result<Outcome> {
    let hpf = || Box::new(Hpf::by_stream()) as Box<dyn Policy>;
    let mut stage = Stage::new(bench, vec![hpf()])?;
    let is_long = |definition: &&Definition| FLEP.contains(&definition.name);
    let longs: Vec<_> = bench.programs.iter().copied().filter(is_long).collect();
    ensure!(!longs.is_empty(), "`--program` names none of {}", FLEP.join(", "));
    let [long, short] = bench.sizes();
    let (samples, triples) = match bench.quick {
        true => (QUICK_SAMPLES, QUICK_TRIPLES),
        false => (SAMPLES, TRIPLES),
    };
    let seed = bench.seed as u32;
    let mut casts = Vec::new();
    for definition in FLEP.into_iter().filter_map(preempt_programs::find) {
        casts.push(Cast::new(&stage.scheduler, definition, short, seed)?);
    }
    // A long one, and two others that are short; all different.
    let mut random = Random(bench.seed);
    let mut drawn: Vec<[usize; 3]> = Vec::new();
    while drawn.len() < triples {
        let [a, b, c] =
            [longs.len(), FLEP.len(), FLEP.len()].map(|n| random.below(n as u32) as usize);
        let a = FLEP.iter().position(|name| *name == longs[a].name).unwrap_or_default();
        if a != b && b != c && a != c && !drawn.contains(&[a, b, c]) {
            drawn.push([a, b, c]);
        }
    }
    let mut groups = Vec::new();
    let progress = Progress::new("long programs", longs.len() as u64);
    for definition in longs {
        // One at a time: they take gigabytes.
        casts.push(Cast::new(&stage.scheduler, definition, long, seed)?);
        let first = casts.len() - 1;
        let index = FLEP.iter().position(|name| *name == definition.name).unwrap_or_default();
        let pairs = (0..first)
            .filter(|&other| SHORT.contains(&casts[other].name) && other != index)
            .map(|other| vec![first, other]);
        let triples =
            drawn.iter().filter(|[a, ..]| *a == index).map(|&[_, b, c]| vec![first, b, c]);
        for members in pairs.chain(triples).collect::<Vec<_>>() {
            groups.push(group(&mut stage, &casts, &members, samples, hpf)?);
        }
        casts.pop();
        progress.step();
    }
    stage.scheduler.synchronize()?;
    Ok(outcome(&groups, stage))
}

fn group(
    stage: &mut Stage,
    casts: &[Cast],
    members: &[usize],
    samples: u32,
    policy: impl Fn() -> Box<dyn Policy>,
) -> Result<Group> {
    let job = |cast| Job { cast, at: Duration::ZERO, priority: 0 };
    let jobs: Vec<Job> = members.iter().map(|&cast| job(cast)).collect();
    let mut alone = vec![Samples::default(); members.len()];
    let mut arms: [Turnarounds; ARMS.len()] = Default::default();
    for round in 0..=samples {
        for (samples, &job) in alone.iter_mut().zip(&jobs) {
            let played = stage.play(Arm::PlainStreams, casts, &[job])?;
            samples.extend(played.turnaround.first().copied().filter(|_| round > 0));
        }
        for (arm, times) in ARMS.into_iter().zip(&mut arms) {
            let played = stage.play(arm, casts, &jobs)?;
            // The first round warms up, and teaches the scheduler how long the launches take.
            if round > 0 {
                times.push(&played.turnaround, played.makespan);
            }
        }
    }
    let jobs: Vec<_> = alone.iter().map(|time| (Duration::ZERO, time.p50(), 0)).collect();
    let names = members.iter().map(|&cast| casts[cast].name).collect();
    Ok(Group { names, alone, arms, ceiling: ceiling(policy(), &jobs)? })
}

impl Group {
    fn alone(&self) -> Vec<Duration> {
        self.alone.iter().map(Samples::p50).collect()
    }

    fn times(&self, arm: Arm) -> &Turnarounds {
        &self.arms[ARMS.iter().position(|other| *other == arm).unwrap_or_default()]
    }

    fn antt(&self, arm: Arm) -> Option<f64> {
        antt(&self.times(arm).p50(), &self.alone())
    }

    /// How many times lower ANTT is than in submission order.
    fn gain(&self, antt: Option<f64>) -> Option<f64> {
        Some(self.antt(Arm::PlainStreams)? / antt?)
    }

    fn ceiling(&self) -> Option<f64> {
        antt(&self.ceiling, &self.alone())
    }
}

/// The mean gain of groups of `size`, by what `antt` says of each.
fn gain(groups: &[Group], size: usize, antt: impl Fn(&Group) -> Option<f64>) -> Option<f64> {
    let of_size = groups.iter().filter(|group| group.names.len() == size);
    mean(&of_size.filter_map(|group| group.gain(antt(group))).collect::<Vec<_>>())
}

fn outcome(groups: &[Group], stage: Stage) -> Outcome {
    let ours = |group: &Group| group.antt(Arm::Ours(HPF));
    let reordered = |group: &Group| group.antt(Arm::Reordered(HPF));
    let over = |size| Some(gain(groups, size, ours)? / gain(groups, size, Group::ceiling)?);
    let makespan = |group: &Group, arm: Arm| group.times(arm).makespan.p50();
    let lost: Vec<f64> = groups
        .iter()
        .filter_map(|group| {
            let [ours, plain] = [Arm::Ours(HPF), Arm::PlainStreams].map(|arm| makespan(group, arm));
            Some(ratio(ours, plain)? - 1.0)
        })
        .collect();
    let throughput: Vec<f64> = groups
        .iter()
        .filter_map(|group| {
            let stp = |arm| stp(&group.times(arm).p50(), &group.alone());
            Some(stp(Arm::Ours(HPF))? / stp(Arm::PlainStreams)?)
        })
        .collect();
    let summary = json!({
        "pairs": groups.iter().filter(|group| group.names.len() == 2).count(),
        "triples": groups.iter().filter(|group| group.names.len() == 3).count(),
        "pairs_gain": gain(groups, 2, ours),
        "pairs_ceiling": gain(groups, 2, Group::ceiling),
        "pairs_over_ceiling": over(2),
        "pairs_gain_reordered": gain(groups, 2, reordered),
        "triples_gain": gain(groups, 3, ours),
        "triples_ceiling": gain(groups, 3, Group::ceiling),
        "triples_over_ceiling": over(3),
        "triples_gain_reordered": gain(groups, 3, reordered),
        "stp_over_plain": mean(&throughput),
        "makespan_lost": mean(&lost),
        "kernels": stage.tally.kernels,
        "block_tasks": stage.tally.block_tasks,
        "lost": stage.tally.lost,
        "repeated": stage.tally.repeated,
    });
    let mut table = vec![line(["programs", "arm", "ANTT", "STP", "makespan", "turnarounds, each"])];
    let mut rows: Vec<Value> = Vec::new();
    for group in groups {
        let alone = group.alone();
        let names = group.names.join(" ");
        let measured =
            ARMS.map(|arm| (arm.name(), group.times(arm).p50(), Some(makespan(group, arm))));
        let others = [("alone", alone.clone(), None), ("ceiling", group.ceiling.clone(), None)];
        for (arm, times, makespan) in others.into_iter().chain(measured) {
            let (antt, stp) = (antt(&times, &alone), stp(&times, &alone));
            let told = |value: Option<f64>| value.map_or("-".to_owned(), digits);
            let each: Vec<String> = times.iter().map(|&time| show(time)).collect();
            table.push(line([
                &names,
                arm,
                &told(antt),
                &told(stp),
                &makespan.map_or("-".to_owned(), show),
                &each.join("  "),
            ]));
            rows.push(json!({
                "programs": group.names,
                "arm": arm,
                "samples": group.alone.first().map(Samples::len),
                "antt": antt,
                "stp": stp,
                "makespan_p50_us": makespan.map(microseconds),
                "turnaround_p50_us":
                    times.iter().map(|&time| microseconds(time)).collect::<Vec<_>>(),
            }));
        }
    }
    let told = |value: Option<f64>| value.map_or("-".to_owned(), digits);
    Outcome {
        about: format!(
            "A long program, and right after it one or two short ones of equal priority, in the order of \
             submission. With `Hpf`, ANTT is {} times lower than on plain streams for pairs and {} times for \
             triples; where preemption is free it would be {} and {} times lower.",
            told(gain(groups, 2, ours)),
            told(gain(groups, 3, ours)),
            told(gain(groups, 2, Group::ceiling)),
            told(gain(groups, 3, Group::ceiling)),
        ),
        table,
        text_columns: 2,
        rows,
        summary,
        mistake: stage.tally.mistake,
    }
}
