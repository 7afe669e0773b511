//! Plans for drawn instances, at drawn and at measured speeds (figures 7 and 8), and the time that a plan takes to
//! compute.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use preempt::coschedule::{CoSchedule, Job, Planner, Sharing, Speeds};
use preempt_test_kit::Random;

use super::executed::Measured;
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

/// Kernels that tasks run.
pub trait Kernels {
    /// The time of each kernel alone, in seconds.
    fn alone(&self) -> Vec<f64>;

    /// The bound of random durations, in seconds.
    fn longest(&self) -> f64;

    /// Tasks that run these kernels once each, and how fast they are beside each other.
    ///
    /// # Errors
    ///
    /// If a speed is none.
    fn instance(&self, of: &[usize]) -> Result<(Vec<Job>, Speeds)>;
}

/// Kernels with speeds after figure 6.
pub struct Figure6 {
    alone: Vec<f64>,
    /// Of kernel i beside kernel j.
    speeds: Vec<Vec<f64>>,
}

/// From 0 up to 1.
fn unit(random: &mut Random) -> f64 {
    (random.bits() >> 11) as f64 / (1u64 << 53) as f64
}

impl Figure6 {
    /// Half of the pairs cannot run together; the speeds of the others are uniform. A kernel beside itself is a pair,
    /// too. Durations lie over three orders of magnitude.
    pub fn new(random: &mut Random) -> Figure6 {
        let mut speeds = vec![vec![0.0; KERNELS]; KERNELS];
        for (i, j) in (0..KERNELS).flat_map(|i| (0..=i).map(move |j| (i, j))) {
            if unit(random) >= 0.5 {
                speeds[i][j] = unit(random);
                speeds[j][i] = if i == j { speeds[i][j] } else { unit(random) };
            }
        }
        let alone = (0..KERNELS).map(|_| 10f64.powf(3.0 * unit(random))).collect();
        Figure6 { alone, speeds }
    }
}

impl Kernels for Figure6 {
    fn alone(&self) -> Vec<f64> {
        self.alone.clone()
    }

    fn longest(&self) -> f64 {
        10.0
    }

    fn instance(&self, of: &[usize]) -> Result<(Vec<Job>, Speeds)> {
        let job = |(task, &kernel): (usize, &usize)| Job::new(task.to_string(), self.alone[kernel]);
        let jobs = of.iter().enumerate().map(job).collect();
        let speed = |i: usize, j: usize| self.speeds[of[i]][of[j]];
        Ok((jobs, Speeds::from_fn(Sharing::AllSms, of.len(), speed)?))
    }
}

impl Kernels for Measured {
    fn alone(&self) -> Vec<f64> {
        self.programs.iter().map(|program| program.seconds).collect()
    }

    /// So that the mean is that of the programs.
    fn longest(&self) -> f64 {
        2.0 * self.alone().iter().sum::<f64>() / self.programs.len() as f64
    }

    fn instance(&self, of: &[usize]) -> Result<(Vec<Job>, Speeds)> {
        Measured::instance(self, of)
    }
}

/// Chooses the kernel and the duration of each task.
fn draw(
    kernels: &impl Kernels,
    setting: Setting,
    tasks: usize,
    random: &mut Random,
) -> Result<(Vec<Job>, Speeds)> {
    let alone = kernels.alone();
    let weight = |&seconds: &f64| match setting {
        Setting::ActualWeighted => 1.0 / seconds,
        _ => 1.0,
    };
    let weights: Vec<f64> = alone.iter().map(weight).collect();
    let (mut of, mut durations) = (Vec::new(), Vec::new());
    for _ in 0..tasks {
        let mut left = unit(random) * weights.iter().sum::<f64>();
        let is_it = |weight: &f64| {
            left -= weight;
            left < 0.0
        };
        let kernel = weights.iter().position(is_it).unwrap_or(weights.len() - 1);
        of.push(kernel);
        durations.push(match setting {
            Setting::RandomDuration => kernels.longest() * unit(random),
            _ => alone[kernel],
        });
    }
    let (mut jobs, speeds) = kernels.instance(&of)?;
    for (job, seconds) in jobs.iter_mut().zip(durations) {
        job.seconds = seconds;
    }
    Ok((jobs, speeds))
}

/// Plans `instances` instances for each setting and each number of tasks.
///
/// # Errors
///
/// Errors of the planner.
pub fn drawn(
    kernels: &impl Kernels,
    random: &mut Random,
    tasks: &[usize],
    instances: usize,
) -> Result<Vec<Drawn>> {
    let cases =
        Setting::ALL.into_iter().flat_map(|setting| tasks.iter().map(move |&n| (setting, n)));
    let progress = Progress::new("drawn instances", (Setting::ALL.len() * tasks.len()) as u64);
    let mut all = Vec::new();
    for (setting, tasks) in cases {
        let instance = |_| {
            let (jobs, speeds) = draw(kernels, setting, tasks, random)?;
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
        let Figure6 { speeds, alone } = Figure6::new(&mut Random(1));
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
        let kernels = Figure6::new(&mut Random(2));
        let kernels = Figure6 { alone: [vec![9.0; 30], vec![1.0; 30]].concat(), ..kernels };
        let long = |setting| {
            let (jobs, _) = draw(&kernels, setting, 1000, &mut Random(3)).unwrap();
            jobs.iter().filter(|job| job.seconds == 9.0).count()
        };
        assert!((450..550).contains(&long(Setting::ActualUniform)));
        assert!((70..130).contains(&long(Setting::ActualWeighted)));
        assert_eq!(long(Setting::RandomDuration), 0);
    }

    #[test]
    fn tasks_of_measured_programs_have_their_times_or_random_ones_of_their_size() {
        let way = Sharing::split(1, 2);
        let speeds = || Speeds::new(way, vec![vec![1.0, 0.7], vec![0.6, 1.0]]).unwrap();
        let measured = Measured {
            programs: vec![Job::new("a", 0.01), Job::new("b", 0.03)],
            speeds: speeds(),
            twins: vec![speeds(), speeds()],
            preemptions: vec![0.0; 2],
        };
        let (jobs, speeds) = draw(&measured, Setting::ActualWeighted, 400, &mut Random(4)).unwrap();
        let short = jobs.iter().filter(|job| job.seconds == 0.01).count();
        assert!((260..340).contains(&short), "{short}");
        assert_eq!(jobs.iter().filter(|job| job.seconds == 0.03).count(), 400 - short);
        assert_eq!(speeds.ways().collect::<Vec<_>>(), [way]);
        let (jobs, _) = draw(&measured, Setting::RandomDuration, 400, &mut Random(5)).unwrap();
        assert!(jobs.iter().all(|job| (0.0..0.04).contains(&job.seconds)));
        let mean = jobs.iter().map(|job| job.seconds).sum::<f64>() / 400.0;
        assert!((0.018..0.022).contains(&mean), "{mean}");
    }
}
