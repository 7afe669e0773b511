//! Plans for drawn instances (figures 7 and 8), and the time that a plan takes to compute.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use preempt::coschedule::{CoSchedule, Job, Planner, Sharing, Speeds};
use preempt_test_kit::Random;

use crate::progress::Progress;

/// Kernels of the paper's benchmarks.
const KERNELS: usize = 60;

/// The cost of a preemption, as part of the mean time of a task.
pub const COSTS: [f64; 2] = [0.2, 0.5];

/// How the durations of tasks are drawn (section V-B).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Setting {
    /// Those of the kernels, which are equally likely.
    ActualUniform,
    /// Those of the kernels, of which each has as much work.
    ActualWeighted,
    /// Uniform.
    RandomDuration,
}

impl Setting {
    /// All settings.
    pub const ALL: [Setting; 3] =
        [Setting::ActualUniform, Setting::ActualWeighted, Setting::RandomDuration];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Setting::ActualUniform => "actual, uniform",
            Setting::ActualWeighted => "actual, weighted",
            Setting::RandomDuration => "random duration",
        }
    }
}

/// Makespans of an instance, in seconds, and preemptions of its plan.
pub struct Instance {
    /// The plan's.
    pub makespan: f64,
    /// No schedule is shorter.
    pub bound: f64,
    /// One task after the other.
    pub sequential: f64,
    /// MaxPair's.
    pub max_pair: f64,
    /// Preemptions for each task.
    pub preemptions: f64,
    /// For each cost: of the plan with its preemptions, and of the plan that was made for this cost.
    pub with_costs: [[f64; 2]; COSTS.len()],
}

/// Instances of one setting and one number of tasks.
pub struct Drawn {
    /// The setting.
    pub setting: Setting,
    /// Tasks of each instance.
    pub tasks: usize,
    /// The instances.
    pub instances: Vec<Instance>,
}

/// Kernels with speeds after figure 6.
struct Kernels {
    alone: Vec<f64>,
    /// Of kernel i beside kernel j.
    speeds: Vec<Vec<f64>>,
}

/// From 0 up to 1.
fn unit(random: &mut Random) -> f64 {
    (random.bits() >> 11) as f64 / (1u64 << 53) as f64
}

impl Kernels {
    /// Half of the pairs cannot run together; the speeds of the others are uniform. A kernel beside itself is a pair,
    /// too. Durations lie over three orders of magnitude.
    fn new(random: &mut Random) -> Kernels {
        let mut speeds = vec![vec![0.0; KERNELS]; KERNELS];
        for (i, j) in (0..KERNELS).flat_map(|i| (0..=i).map(move |j| (i, j))) {
            if unit(random) >= 0.5 {
                speeds[i][j] = unit(random);
                speeds[j][i] = if i == j { speeds[i][j] } else { unit(random) };
            }
        }
        let alone = (0..KERNELS).map(|_| 10f64.powf(3.0 * unit(random))).collect();
        Kernels { alone, speeds }
    }

    fn draw(
        &self,
        setting: Setting,
        tasks: usize,
        random: &mut Random,
    ) -> Result<(Vec<Job>, Speeds)> {
        let weight = |&seconds: &f64| match setting {
            Setting::ActualWeighted => 1.0 / seconds,
            _ => 1.0,
        };
        let weights: Vec<f64> = self.alone.iter().map(weight).collect();
        let mut of = Vec::new();
        let mut jobs = Vec::new();
        for task in 0..tasks {
            let mut left = unit(random) * weights.iter().sum::<f64>();
            let is_it = |weight: &f64| {
                left -= weight;
                left < 0.0
            };
            let kernel = weights.iter().position(is_it).unwrap_or(KERNELS - 1);
            let seconds = match setting {
                Setting::RandomDuration => 10.0 * unit(random),
                _ => self.alone[kernel],
            };
            of.push(kernel);
            jobs.push(Job::new(task.to_string(), seconds));
        }
        let speeds = Speeds::from_fn(Sharing::AllSms, tasks, |i, j| self.speeds[of[i]][of[j]])?;
        Ok((jobs, speeds))
    }
}

/// Plans `instances` instances for each setting and each number of tasks.
///
/// # Errors
///
/// Errors of the planner.
pub fn drawn(seed: u64, tasks: &[usize], instances: usize) -> Result<Vec<Drawn>> {
    let mut random = Random(seed);
    let kernels = Kernels::new(&mut random);
    let cases =
        Setting::ALL.into_iter().flat_map(|setting| tasks.iter().map(move |&n| (setting, n)));
    let progress = Progress::new("drawn instances", (Setting::ALL.len() * tasks.len()) as u64);
    let mut all = Vec::new();
    for (setting, tasks) in cases {
        let instance = |_| {
            let (jobs, speeds) = kernels.draw(setting, tasks, &mut random)?;
            planned(&jobs, &speeds)
        };
        let instances = (0..instances).map(instance).collect::<Result<_>>()?;
        all.push(Drawn { setting, tasks, instances });
        progress.step();
    }
    Ok(all)
}

fn planned(jobs: &[Job], speeds: &Speeds) -> Result<Instance> {
    let plan = CoSchedule::plan(jobs, speeds)?;
    let sequential = CoSchedule::sequential(jobs, speeds)?.makespan();
    let with_cost = |part: f64| -> Result<[f64; 2]> {
        let cost = part * sequential / jobs.len() as f64;
        let planned = Planner::new().preemption_cost(cost).plan(jobs, speeds)?;
        Ok([plan.makespan_with(cost), planned.makespan_with(cost)])
    };
    let [low, high] = COSTS.map(with_cost);
    Ok(Instance {
        makespan: plan.makespan(),
        bound: plan.lower_bound().context("a plan without a bound")?,
        sequential,
        max_pair: CoSchedule::max_pair(jobs, speeds)?.makespan(),
        preemptions: plan.preemptions() as f64 / jobs.len() as f64,
        with_costs: [low?, high?],
    })
}

/// The median time of a plan for tasks of which any two have speeds of their own.
///
/// # Errors
///
/// Errors of the planner.
pub fn time_of_plan(seed: u64, tasks: usize, runs: usize) -> Result<Duration> {
    let mut random = Random(seed);
    let mut times = Vec::new();
    for _ in 0..runs {
        let jobs: Vec<Job> =
            (0..tasks).map(|task| Job::new(task.to_string(), 10.0 * unit(&mut random))).collect();
        let speeds = Speeds::from_fn(Sharing::AllSms, tasks, |_, _| unit(&mut random))?;
        let start = Instant::now();
        CoSchedule::plan(&jobs, &speeds)?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    times.get(runs / 2).copied().context("no run")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_pairs_cannot_run_together() {
        let Kernels { speeds, alone } = Kernels::new(&mut Random(1));
        let pairs: Vec<(usize, usize)> =
            (0..KERNELS).flat_map(|i| (0..i).map(move |j| (i, j))).collect();
        let zeros = pairs.iter().filter(|&&(i, j)| speeds[i][j] == 0.0).count();
        assert!((0.45..0.55).contains(&(zeros as f64 / pairs.len() as f64)), "{zeros}");
        assert!(pairs.iter().all(|&(i, j)| (speeds[i][j] == 0.0) == (speeds[j][i] == 0.0)));
        let rest: f64 = pairs.iter().map(|&(i, j)| speeds[i][j]).sum();
        assert!((0.45..0.55).contains(&(rest / (pairs.len() - zeros) as f64)), "{rest}");
        assert!(alone.iter().all(|seconds| (1.0..1000.0).contains(seconds)));
    }

    #[test]
    fn weighted_kernels_have_equal_work() {
        let kernels = Kernels::new(&mut Random(2));
        let kernels = Kernels { alone: [vec![9.0; 30], vec![1.0; 30]].concat(), ..kernels };
        let long = |setting| {
            let (jobs, _) = kernels.draw(setting, 1000, &mut Random(3)).unwrap();
            jobs.iter().filter(|job| job.seconds == 9.0).count()
        };
        assert!((450..550).contains(&long(Setting::ActualUniform)));
        assert!((70..130).contains(&long(Setting::ActualWeighted)));
        assert_eq!(long(Setting::RandomDuration), 0);
    }
}
