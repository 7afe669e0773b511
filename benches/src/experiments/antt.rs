//! Two and three programs of equal priority (FLEP figures 10, 11 and 12).

use std::time::Duration;

use anyhow::Result;
use preempt_report::microseconds;
use preempt_test_kit::Random;
use preempt_test_kit::storm::Tally;
use preempt_workloads::Definition;
use serde_json::{Value, json};

use super::corun::{self, Arm, IdealJob, Job, Rounds, Testbed, Turnarounds, antt, ceiling, stp};
use super::priority::hpf;
use super::{Bench, Experiment, FLEP, Outcome, Rows, line, with_tally};
use crate::progress::Progress;
use crate::samples::{Samples, mean, ratio, show, show_number, show_time};

/// Programs that run on the small input, after a large one.
pub(super) const SHORT: [&str; 4] = ["MD", "MM", "SPMV", "VA"];

/// Random triples.
const TRIPLES: usize = 28;

/// Samples of each arm, and with `--quick`.
const SAMPLES: u32 = 10;
const QUICK_SAMPLES: u32 = 1;
const QUICK_TRIPLES: usize = 2;

/// The number of `Hpf` among the testbed's policies.
const HPF: usize = 1;

/// The arm of the summary.
const OURS: Arm = Arm::Ours(HPF);
const ALL_PREEMPTIBLE: Arm = Arm::AllPreemptible(HPF);

const ARMS: [Arm; 5] =
    [Arm::PlainStreams, Arm::StreamPriorities, Arm::Reordered(HPF), OURS, ALL_PREEMPTIBLE];

/// Programs that are submitted one right after the other.
struct Group {
    names: Vec<&'static str>,
    alone: Vec<Samples>,
    arms: Vec<(Arm, Turnarounds)>,
    /// Turnarounds where preemption is free.
    ceiling: Vec<Duration>,
}

/// The experiment `antt`.
#[derive(Debug)]
pub struct Antt;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
A long program, and right after it one or two short ones of equal priority: pairs and random triples
(FLEP, figures 10 to 12).

Each of FLEP's eight programs is the long one and comes first; MD, MM, SPMV and VA are the short
ones of the pairs. A triple has two short ones, drawn from all eight; all three are different. All
are submitted one right after the other, with equal priorities. The policy is `Hpf::by_stream`, in
`reordered`, too. Equal `stream priorities` would be plain streams. So the shorter a program is
alone, the higher is its hardware priority there, which a user without a scheduler can do.

- The `gain` of an arm is ANTT on plain streams by its ANTT. `pairs_gain` and `triples_gain` are
  means over the groups of that of `preempt`, `.._ceiling` of `ceiling`, `.._gain_all_preemptible`
  of `preempt, all preemptible`, `.._gain_reordered` of `reordered`, `.._gain_stream_priorities` of
  `stream priorities` (null on the CPU device); `.._over_ceiling` is the first by the second.
- `stp_over_plain`: STP with `preempt` by that on plain streams, the mean over all groups.
  `makespan_lost`: the median makespan with `preempt` by that on plain streams, less 1, the same;
  `makespan_lost_all_preemptible`: that of `preempt, all preemptible`.
";

impl Experiment for Antt {
    fn name(&self) -> &'static str {
        "antt"
    }

    fn about(&self) -> &'static str {
        "Two and three programs of equal priority."
    }

    fn meaning(&self) -> &'static [&'static str] {
        &[MEANING, corun::MEANING, corun::WITHOUT_A_DEVICE]
    }

    fn is_simulated(&self) -> bool {
        true
    }

    fn run(&self, bench: &Bench) -> Result<Outcome> {
        run(bench)
    }
}

/// Measures all pairs and triples.
fn run(bench: &Bench) -> Result<Outcome> {
    let longs = bench.programs_among(&FLEP)?;
    let mut testbed = bench.testbed(vec![Box::new(hpf)])?;
    let [long, short] = bench.sizes();
    let rounds = bench.rounds(QUICK_SAMPLES, SAMPLES);
    testbed.add_flep(short)?;
    let drawn = draw_triples(bench, &longs);
    let mut groups = Vec::new();
    let progress = Progress::new("long programs", longs.len() as u64);
    for definition in longs {
        // One at a time, because their buffers take gigabytes.
        let first = testbed.add(definition, long)?;
        let index = number(definition.name);
        let pairs = (0..FLEP.len())
            .filter(|&other| SHORT.contains(&FLEP[other]) && other != index)
            .map(|other| vec![first, other]);
        let triples =
            drawn.iter().filter(|[a, ..]| *a == index).map(|&[_, b, c]| vec![first, b, c]);
        for members in pairs.chain(triples) {
            groups.push(group(&mut *testbed, &members, rounds)?);
        }
        testbed.remove_last();
        progress.step();
    }
    Ok(outcome(&groups, testbed.close()?))
}

/// The number of one of FLEP's programs.
fn number(name: &str) -> usize {
    FLEP.iter().position(|&other| other == name).expect("it is one of FLEP's")
}

/// Random triples of FLEP's programs, all different: one of `longs`, and two that are short.
fn draw_triples(bench: &Bench, longs: &[&Definition]) -> Vec<[usize; 3]> {
    let mut random = Random(bench.seed);
    let mut drawn: Vec<[usize; 3]> = Vec::new();
    while drawn.len() < bench.amount(QUICK_TRIPLES, TRIPLES) {
        let [a, b, c] =
            [longs.len(), FLEP.len(), FLEP.len()].map(|n| random.below(n as u32) as usize);
        let a = number(longs[a].name);
        if a != b && b != c && a != c && !drawn.contains(&[a, b, c]) {
            drawn.push([a, b, c]);
        }
    }
    drawn
}

fn group(testbed: &mut dyn Testbed, members: &[usize], rounds: Rounds) -> Result<Group> {
    let jobs: Vec<Job> = members.iter().copied().map(Job::now).collect();
    let mut alone = vec![Samples::default(); members.len()];
    let arms = ARMS.into_iter().filter(|arm| testbed.has(*arm));
    let mut arms: Vec<_> = arms.map(|arm| (arm, Turnarounds::default())).collect();
    for round in 0..rounds.count() {
        // Rounds before have the order of stream priorities, too.
        if round == rounds.learning {
            alone.fill_with(Samples::default);
        }
        for (samples, &job) in alone.iter_mut().zip(&jobs) {
            let completed = testbed.run_jobs(Arm::PlainStreams, &[job])?;
            samples.extend(completed.turnaround.first().copied());
        }
        let alone: Vec<Duration> = alone.iter().map(Samples::p50).collect();
        for (arm, times) in &mut arms {
            testbed.warm(*arm, members[0])?;
            let completed = match arm {
                Arm::StreamPriorities => testbed.run_jobs(*arm, &shortest_first(&jobs, &alone))?,
                _ => testbed.run_jobs(*arm, &jobs)?,
            };
            if round >= rounds.learning {
                times.push(&completed.turnaround, completed.makespan);
            }
        }
    }
    let jobs: Vec<_> = alone
        .iter()
        .map(|time| IdealJob { at: Duration::ZERO, alone: time.p50(), priority: 0 })
        .collect();
    let names = members.iter().map(|&program| testbed.name(program)).collect();
    Ok(Group { names, alone, arms, ceiling: ceiling(hpf(), &jobs)? })
}

/// Jobs for a user without a scheduler: the shorter a job is alone, the higher its hardware priority.
fn shortest_first(jobs: &[Job], alone: &[Duration]) -> Vec<Job> {
    let longer = |time| alone.iter().filter(|&&other| other > time).count() as i32;
    jobs.iter().zip(alone).map(|(job, &time)| Job { priority: longer(time), ..*job }).collect()
}

impl Group {
    fn alone(&self) -> Vec<Duration> {
        self.alone.iter().map(Samples::p50).collect()
    }

    /// `None` if the device does not have what the arm needs.
    fn times(&self, arm: Arm) -> Option<&Turnarounds> {
        self.arms.iter().find(|(other, _)| *other == arm).map(|(_, times)| times)
    }

    fn antt(&self, arm: Arm) -> Option<f64> {
        antt(&self.times(arm)?.p50(), &self.alone())
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

/// The summary, by its keys.
fn summary(groups: &[Group]) -> Value {
    let ours = |group: &Group| group.antt(OURS);
    let preemptible = |group: &Group| group.antt(ALL_PREEMPTIBLE);
    let reordered = |group: &Group| group.antt(Arm::Reordered(HPF));
    let by_priority = |group: &Group| group.antt(Arm::StreamPriorities);
    let over = |size| Some(gain(groups, size, ours)? / gain(groups, size, Group::ceiling)?);
    let lost = |arm| {
        let lost = groups.iter().filter_map(|group| {
            let makespan = |arm| Some(group.times(arm)?.makespan.p50());
            Some(ratio(makespan(arm)?, makespan(Arm::PlainStreams)?)? - 1.0)
        });
        mean(&lost.collect::<Vec<_>>())
    };
    let throughput: Vec<f64> = groups
        .iter()
        .filter_map(|group| {
            let stp = |arm| stp(&group.times(arm)?.p50(), &group.alone());
            Some(stp(OURS)? / stp(Arm::PlainStreams)?)
        })
        .collect();
    json!({
        "pairs": groups.iter().filter(|group| group.names.len() == 2).count(),
        "triples": groups.iter().filter(|group| group.names.len() == 3).count(),
        "pairs_gain": gain(groups, 2, ours),
        "pairs_ceiling": gain(groups, 2, Group::ceiling),
        "pairs_over_ceiling": over(2),
        "pairs_gain_all_preemptible": gain(groups, 2, preemptible),
        "pairs_gain_reordered": gain(groups, 2, reordered),
        "pairs_gain_stream_priorities": gain(groups, 2, by_priority),
        "triples_gain": gain(groups, 3, ours),
        "triples_ceiling": gain(groups, 3, Group::ceiling),
        "triples_over_ceiling": over(3),
        "triples_gain_all_preemptible": gain(groups, 3, preemptible),
        "triples_gain_reordered": gain(groups, 3, reordered),
        "triples_gain_stream_priorities": gain(groups, 3, by_priority),
        "stp_over_plain": mean(&throughput),
        "makespan_lost": lost(OURS),
        "makespan_lost_all_preemptible": lost(ALL_PREEMPTIBLE),
    })
}

fn rows(groups: &[Group]) -> Rows {
    let mut rows = Rows::below(["programs", "arm", "ANTT", "STP", "makespan", "turnarounds, each"]);
    for group in groups {
        let alone = group.alone();
        let names = group.names.join(" ");
        let measured = group
            .arms
            .iter()
            .map(|(arm, times)| (arm.name(), times.p50(), Some(times.makespan.p50())));
        let others = [("alone", alone.clone(), None), ("ceiling", group.ceiling.clone(), None)];
        for (arm, times, makespan) in others.into_iter().chain(measured) {
            let (antt, stp) = (antt(&times, &alone), stp(&times, &alone));
            let each: Vec<String> = times.iter().map(|&time| show(time)).collect();
            let cells = line([
                &names,
                arm,
                &show_number(antt),
                &show_number(stp),
                &show_time(makespan),
                &each.join("  "),
            ]);
            let json = json!({
                "programs": group.names,
                "arm": arm,
                "samples": group.alone.first().map(Samples::len),
                "antt": antt,
                "stp": stp,
                "makespan_p50_us": makespan.map(microseconds),
                "turnaround_p50_us":
                    times.iter().map(|&time| microseconds(time)).collect::<Vec<_>>(),
            });
            rows.push(cells, json);
        }
    }
    rows
}

fn outcome(groups: &[Group], tally: Tally) -> Outcome {
    let summary = with_tally(summary(groups), &tally);
    let Rows { table, json: rows } = rows(groups);
    let number = |key: &str| show_number(summary[key].as_f64());
    Outcome {
        about: format!(
            "A long program, and right after it one or two short ones of equal priority, in the order of \
             submission. With `Hpf`, ANTT is {} times lower than on plain streams for pairs and {} times for \
             triples; where preemption is free it would be {} and {} times lower.",
            number("pairs_gain"),
            number("triples_gain"),
            number("pairs_ceiling"),
            number("triples_ceiling"),
        ),
        table,
        text_columns: 2,
        rows,
        summary,
        mistake: tally.mistake,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shorter_a_job_is_the_higher_is_its_priority() {
        let jobs = [0, 1, 2].map(Job::now);
        let priorities = |alone: [u64; 3]| -> Vec<i32> {
            let jobs = shortest_first(&jobs, &alone.map(Duration::from_millis));
            jobs.iter().map(|job| job.priority).collect()
        };
        assert_eq!(priorities([9, 2, 4]), [0, 2, 1]);
        assert_eq!(priorities([3, 3, 7]), [1, 1, 0]);
    }
}
