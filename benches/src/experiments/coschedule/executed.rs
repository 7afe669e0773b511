//! Programs measured alone and in pairs, and plans for them that are carried out.

use std::time::Duration;

use anyhow::{Error, Result};
use preempt::coschedule::{CoSchedule, Execution, Job, Planner, Sharing, Speeds};
use preempt::error::CoscheduleError;
use preempt::policy::Policy;
use preempt_test_kit::Random;
use preempt_test_kit::storm::Tally;
use preempt_workloads::{Definition, Size};

use crate::experiments::Bench;
use crate::experiments::corun::{Arm, Job as Run, NewPolicy, Testbed};
use crate::progress::Progress;
use crate::samples::{Samples, mean};

/// Numbers of the policies on the testbed: those that measure all programs, and one beside itself; then one for each
/// number of tasks.
const ALL: usize = 1;
const TWINS: usize = 2;
const PLANNED: usize = 3;

/// All launches preemptible, in submission order.
const PREEMPTIBLE: Arm = Arm::AllPreemptible(0);

/// How much is run.
pub struct Amount {
    /// A task runs its program as often as takes this long alone, once at least.
    pub task: Duration,
    /// Runs of each pair.
    pub runs: u32,
    /// Numbers of tasks.
    pub tasks: Vec<usize>,
    /// Instances of each number of tasks.
    pub instances: usize,
    /// Runs of each arm of an instance.
    pub samples: u32,
}

/// What programs take alone, and how fast they are beside each other.
pub struct Measured {
    /// Tasks of the programs, with the seconds that they take alone.
    pub programs: Vec<Job>,
    /// Of programs beside others.
    pub speeds: Speeds,
    /// Of each program beside itself: two tasks.
    pub twins: Vec<Speeds>,
    /// Seconds that a preemption of each program costs.
    pub preemptions: Vec<f64>,
}

/// One way to run the tasks of an instance.
pub struct Measurement {
    /// The plan, if there is one.
    pub plan: Option<CoSchedule>,
    /// From the first submission to the last end.
    pub makespan: Samples,
    /// Preemptions of each run, as the execution saw them.
    pub preemptions: Vec<usize>,
}

/// Tasks that were run.
pub struct Instance {
    /// The numbers of their programs.
    pub of: Vec<usize>,
    /// Seconds that a preemption of one of them costs, in the mean.
    pub preemption: f64,
    /// By the plan, by MaxPair's, by the sequential one, and without a policy, as in [`ARMS`].
    pub arms: [Measurement; ARMS.len()],
}

/// Names of the arms.
pub const ARMS: [&str; 4] = ["plan", "MaxPair", "sequential", "plain, one stream"];

/// A device or a model of one, with executions as policies.
struct Site {
    testbed: Box<dyn Testbed>,
    size: Size,
    /// Of each program.
    programs: Vec<Program>,
}

/// A program on the testbed.
#[derive(Clone, Debug)]
struct Program {
    /// Runs of a task.
    rounds: u32,
    /// Its numbers there: a task has buffers of its own.
    copies: Vec<usize>,
}

/// Measures the programs, and runs instances of them.
///
/// # Errors
///
/// Errors of the scheduler, the driver, the simulation and the planner. Wrong results go to the tally.
pub fn executed(
    bench: &Bench,
    definitions: &[&Definition],
    ways: &[Sharing],
    amount: &Amount,
) -> Result<(Measured, Vec<Instance>, Tally)> {
    let all = Execution::unplanned(definitions.iter().map(|definition| definition.name));
    let twins = Execution::unplanned(["first", "second"]);
    let numbered = |&tasks: &usize| Execution::unplanned((0..tasks).map(|n| n.to_string()));
    let planned: Vec<Execution> = amount.tasks.iter().map(numbered).collect();
    let executions = [&all, &twins].into_iter().chain(&planned);
    let policy = |of: &Execution| -> NewPolicy {
        let of = of.clone();
        Box::new(move || Box::new(of.clone()) as Box<dyn Policy>)
    };
    let size = match (&bench.device, bench.gpu) {
        // All pairs of them, in all ways.
        (Some(_), None) => Size::Trivial,
        _ => bench.sizes()[0],
    };
    let mut site = Site {
        testbed: bench.testbed(executions.map(policy).collect())?,
        size,
        programs: vec![Program { rounds: 1, copies: Vec::new() }; definitions.len()],
    };
    for program in 0..definitions.len() {
        site.ensure_copies(definitions, program, 2)?;
        site.choose_rounds(program, amount.task)?;
    }
    let measured = measure(&mut site, &all, &twins, ways, amount.runs)?;
    let mut random = Random(bench.seed);
    let mut instances = Vec::new();
    let progress = Progress::new("instances", (planned.len() * amount.instances) as u64);
    for (number, (&tasks, execution)) in amount.tasks.iter().zip(&planned).enumerate() {
        for _ in 0..amount.instances {
            let program = |_| random.below(definitions.len() as u32) as usize;
            let of: Vec<usize> = (0..tasks).map(program).collect();
            let runs = site.tasks(definitions, &of)?;
            let arm = Arm::AllPreemptible(PLANNED + number);
            let preemption = measured.preemption(&of);
            let how = (arm, preemption, amount.samples);
            let arms = run(&mut site, execution, &measured, (&of, &runs), how)?;
            instances.push(Instance { of, preemption, arms });
            progress.step();
        }
    }
    Ok((measured, instances, site.testbed.close()?))
}

fn measure(
    site: &mut Site,
    all: &Execution,
    twins: &Execution,
    ways: &[Sharing],
    runs: u32,
) -> Result<Measured> {
    let programs: Vec<Run> = site.programs.iter().map(|program| program.task(0)).collect();
    let count = programs.len();
    // Each alone, each pair in each way, and each beside itself.
    let alone = (count + 2 * count) as u64 * u64::from(runs + 1);
    let pairs = (count * (count - 1) / 2 + count) as u64 * ways.len() as u64;
    let progress = Progress::new("co-runs", alone + pairs * u64::from(runs));
    let (jobs, speeds) = site.measure(all, ALL, &programs, ways, runs, &progress)?;
    let mut of_twins = Vec::new();
    for program in site.programs.clone() {
        let both = [program.task(0), program.task(1)];
        let (_, speeds) = site.measure(twins, TWINS, &both, ways, runs, &progress)?;
        of_twins.push(speeds);
    }
    let preemptions = all.preemption_seconds();
    Ok(Measured { programs: jobs, speeds, twins: of_twins, preemptions })
}

/// Runs the tasks in all arms, which take turns.
fn run(
    site: &mut Site,
    execution: &Execution,
    measured: &Measured,
    (of, runs): (&[usize], &[Run]),
    (arm, preemption, samples): (Arm, f64, u32),
) -> Result<[Measurement; ARMS.len()]> {
    let (jobs, speeds) = measured.instance(of)?;
    let plans = [
        Some(Planner::new().preemption_cost(preemption).plan(&jobs, &speeds)?),
        Some(CoSchedule::max_pair(&jobs, &speeds)?),
        Some(CoSchedule::sequential(&jobs, &speeds)?),
        None,
    ];
    let (makespan, preemptions) = (Samples::default(), Vec::new());
    let mut arms = plans.map(|plan| Measurement {
        plan,
        makespan: makespan.clone(),
        preemptions: preemptions.clone(),
    });
    for _ in 0..samples {
        for Measurement { plan, makespan, preemptions } in &mut arms {
            match plan {
                Some(plan) => {
                    execution.begin(plan.clone())?;
                    makespan.push(site.run(execution, arm, &plan.order(), runs)?);
                    preemptions.push(execution.executed().preemptions());
                }
                None => makespan.push(site.testbed.run_in_one_stream(runs)?),
            }
        }
    }
    Ok(arms)
}

impl Site {
    fn ensure_copies(
        &mut self,
        definitions: &[&Definition],
        program: usize,
        count: usize,
    ) -> Result<()> {
        while self.programs[program].copies.len() < count {
            let copy = self.testbed.add(definitions[program], self.size)?;
            self.programs[program].copies.push(copy);
        }
        Ok(())
    }

    /// Lets a task of a program take this long alone, or longer.
    fn choose_rounds(&mut self, program: usize, task: Duration) -> Result<()> {
        let run = [self.programs[program].task(0)];
        let mut alone = || Ok::<_, Error>(self.testbed.run_jobs(PREEMPTIBLE, &run)?.makespan);
        // The first one loads its code.
        let takes = alone()?.min(alone()?);
        self.programs[program].rounds = task.div_duration_f64(takes).ceil().max(1.0) as u32;
        Ok(())
    }

    /// A copy of its program for each task.
    fn tasks(&mut self, definitions: &[&Definition], of: &[usize]) -> Result<Vec<Run>> {
        let mut used = vec![0; definitions.len()];
        let mut tasks = Vec::new();
        for &program in of {
            used[program] += 1;
            self.ensure_copies(definitions, program, used[program])?;
            tasks.push(self.programs[program].task(used[program] - 1));
        }
        Ok(tasks)
    }

    /// Runs jobs of an execution.
    fn run(
        &mut self,
        execution: &Execution,
        arm: Arm,
        jobs: &[usize],
        runs: &[Run],
    ) -> Result<Duration> {
        let these: Vec<Run> = jobs.iter().map(|&job| runs[job]).collect();
        let bind = |index: usize, stream: u32| Ok(execution.bind(jobs[index], stream)?);
        Ok(self.testbed.run_bound(arm, &these, &bind)?.makespan)
    }

    fn measure(
        &mut self,
        execution: &Execution,
        policy: usize,
        programs: &[Run],
        ways: &[Sharing],
        runs: u32,
        progress: &Progress,
    ) -> Result<(Vec<Job>, Speeds)> {
        let mut failed: Option<Error> = None;
        let measured = execution.measure(ways, runs, |jobs| {
            progress.step();
            match self.run(execution, Arm::AllPreemptible(policy), jobs, programs) {
                Ok(_) => Ok(()),
                Err(error) => {
                    failed = Some(error);
                    // Ends the measurement.
                    Err(CoscheduleError::NoWay.into())
                }
            }
        });
        match failed {
            Some(error) => Err(error),
            None => Ok(measured?),
        }
    }
}

impl Measured {
    /// Seconds that a preemption of a task costs, in the mean over tasks of these programs.
    fn preemption(&self, of: &[usize]) -> f64 {
        let costs: Vec<f64> = of.iter().map(|&program| self.preemptions[program]).collect();
        mean(&costs).unwrap_or(0.0)
    }

    /// Tasks that run these programs once each, and how fast they are beside each other.
    ///
    /// # Errors
    ///
    /// If nothing was measured in any way.
    pub fn instance(&self, of: &[usize]) -> Result<(Vec<Job>, Speeds)> {
        let job = |(task, &program): (usize, &usize)| {
            let Job { name, seconds } = &self.programs[program];
            Job::new(format!("{task} {name}"), *seconds)
        };
        let jobs = of.iter().enumerate().map(job).collect();
        let ways = || self.speeds.ways();
        // A pair was measured with the program of the smaller number first.
        let mirrored = |way| ways().position(|other| Some(other) == ways().nth(way).map(mirror));
        let speeds = Speeds::in_ways(ways(), of.len(), |way, i, j| match (of[i], of[j]) {
            (a, b) if a == b => self.twins[a].speed(way, usize::from(i > j), usize::from(i < j)),
            (a, b) if (a < b) == (i < j) => self.speeds.speed(way, a, b),
            (a, b) => mirrored(way).map_or(0.0, |way| self.speeds.speed(way, a, b)),
        })?;
        Ok((jobs, speeds))
    }
}

impl Program {
    /// A task with the buffers of this copy.
    fn task(&self, copy: usize) -> Run {
        Run { rounds: self.rounds, ..Run::now(self.copies[copy]) }
    }
}

/// The way in which the second job has what the first one has.
fn mirror(way: Sharing) -> Sharing {
    match way {
        Sharing::Split { first, of } => Sharing::split(of - first, of),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_have_the_speeds_of_their_programs() {
        let ways = [Sharing::split(1, 4), Sharing::split(3, 4)];
        let speeds = |first: [f64; 2], second: [f64; 2]| {
            let rows = |[a, b]: [f64; 2]| vec![vec![1.0, a], vec![b, 1.0]];
            let speeds = Speeds::new(ways[0], rows(first)).unwrap();
            speeds.with(ways[1], rows(second)).unwrap()
        };
        let measured = Measured {
            programs: vec![Job::new("a", 1.0), Job::new("b", 2.0)],
            speeds: speeds([0.1, 0.9], [0.7, 0.3]),
            twins: vec![speeds([0.2, 0.8], [0.6, 0.4]), speeds([0.25, 0.75], [0.75, 0.25])],
            preemptions: vec![0.0; 2],
        };
        let (jobs, speeds) = measured.instance(&[1, 0, 0]).unwrap();
        assert_eq!(jobs.iter().map(|job| job.seconds).collect::<Vec<_>>(), [2.0, 1.0, 1.0]);
        // The first task has a quarter, and its program is the second one: it was measured with three quarters for the
        // other one.
        assert_eq!([speeds.speed(0, 0, 1), speeds.speed(0, 1, 0)], [0.3, 0.7]);
        assert_eq!([speeds.speed(1, 0, 2), speeds.speed(1, 2, 0)], [0.9, 0.1]);
        assert_eq!([speeds.speed(0, 1, 2), speeds.speed(0, 2, 1)], [0.2, 0.8]);
        assert_eq!([speeds.speed(1, 1, 2), speeds.speed(1, 2, 1)], [0.6, 0.4]);
    }
}
