//! Programs in virtual time: the engine and a policy, with launches that are models.

use std::time::Duration;

use anyhow::{Result, ensure};
use preempt::Preemption;
use preempt::policy::{Policy, Priority, StaticPriority};
use preempt::sim::{
    Costs, KernelModel, Machine, Results, Simulation, StreamModel, StreamNumber, Workload,
};
use preempt_test_kit::storm::Tally;
use preempt_workloads::{Definition, Size};

use super::endless::{Endless, Looped};
use super::launches::Launches;
use super::switch::SelectedPolicy;
use super::testbed::{Arm, Bind, Completed, FIFO, Job, NewPolicy, Testbed};

/// What `--device sim` stands for.
pub const MEANING: &str = "\
With `--device sim` the same suites run on a model of an H200 (`preempt::sim`): the same engine and
the same policies, tables, pictures and keys, with `device` `sim`, and no thread, no clock and no
GPU. The same command gives the same results.

- Launches of the programs, each with its duration in both forms, its block-tasks and its blocks on
  an SM, are those of `results/sim-gpu.json`, where the suite `sim` wrote them on a GPU. Each stops as the
  dominating one of its program does at full size (`KernelModel::h200`), and the policy is told its
  true duration.
- `preempt` chooses between plain grids and preemptible ones by the times of blocks, of stops and of
  both forms.
- `preempt` and `reordered` have the costs that the suite `sim` measured in the same run as the
  launches, else those of `Costs::h200`, and programs are submitted one after the other, as by one
  thread. In `plain streams` a launch follows the one before it in its stream in
  the driver's time, behind launches of other streams that are ready already, and SMs that it cannot
  fill are left to them. There are no `stream priorities`. `ceiling` is as on a device, from the
  times alone.
- There is one sample of each arm, since all would be the same, and `--quick` makes windows shorter
  and triples fewer, not programs smaller. The seed draws the triples of `antt`. `mix` has no yields
  by priority.
- The model leaves out memory bandwidth that programs share, programs side by side on one SM, and
  waves of blocks. Blocks that have to leave work until they are out, so a stop costs the launch that
  waits, and nearly no throughput. `benches/RESULTS.md` has what it makes of them, beside what was
  measured.
";

/// The path of launches to an H200. One thread submits all programs, one after the other.
struct Path {
    machine: Machine,
    /// Time to submit a launch.
    submit: Duration,
    /// Time that a program takes longer than on the machine.
    latency: Duration,
}

impl Path {
    /// The path of an arm, where the scheduler has these costs.
    fn of(arm: Arm, costs: Costs) -> Path {
        if arm == Arm::PlainStreams { Path::raw() } else { Path::scheduler(costs) }
    }

    /// The path through the scheduler (`submit` of `preempt` in the results of `launch` at b963d75, c5368291 in the history).
    fn scheduler(costs: Costs) -> Path {
        let submit = Duration::from_nanos(798);
        let machine = Machine::new(Machine::h200().sms, costs);
        Path { machine, submit, latency: Duration::ZERO }
    }

    /// The path over streams of the driver, where no policy decides. A launch enters the hardware's line when its
    /// predecessor in the stream is done, behind ready launches of other streams. Times are the driver's in the same
    /// file. A launch follows after the time that each kernel of 10 µs in a stream takes longer than its length. A
    /// program's first launch takes as long as an empty kernel from launch to done.
    fn raw() -> Path {
        let (follow, empty) = (Duration::from_nanos(2_075), Duration::from_nanos(8_588));
        let mut machine =
            Machine::new(Machine::h200().sms, Costs { launch: follow, ..Costs::free() });
        machine.free_stops = true;
        // Nothing is queued behind what runs.
        machine.queues.chains = 0;
        Path { machine, submit: Duration::from_nanos(3_084), latency: empty - follow }
    }
}

/// A model of an H200, with measured costs and programs.
pub struct SimulatedTestbed {
    known: Launches,
    costs: Costs,
    policies: Vec<NewPolicy>,
    models: Vec<ProgramModel>,
    tally: Tally,
}

struct ProgramModel {
    name: &'static str,
    launches: Vec<KernelModel>,
}

impl SimulatedTestbed {
    /// Policy number 0 is submission order; `policies` follow, from number 1 on.
    ///
    /// # Errors
    ///
    /// If no launches of the programs can be read.
    pub fn new(policies: Vec<NewPolicy>) -> Result<SimulatedTestbed> {
        let (known, tally) = (Launches::measured()?, Tally::default());
        let costs = known.costs()?;
        Ok(SimulatedTestbed { known, costs, policies, models: Vec::new(), tally })
    }

    /// A new policy each time, which knows nothing of earlier runs.
    fn policy(&self, arm: Arm) -> Box<dyn Policy> {
        match arm.policy() {
            // With equal priorities, submission order; a launch leaves SMs that it cannot fill to the next.
            FIFO => Box::new(StaticPriority::packed()),
            number => self.policies[number - 1](),
        }
    }

    /// Counts the block-tasks. The engine has checked that none is lost or repeated.
    fn count(&mut self, results: &Results) {
        self.tally.kernels += results.launches.len() as u64;
        self.tally.block_tasks +=
            results.launches.iter().map(|launch| u64::from(launch.tasks)).sum::<u64>();
    }

    /// The launches of a job in an arm.
    fn launches(&self, arm: Arm, job: &Job) -> Vec<KernelModel> {
        let (plain, auto) = match arm.preemption() {
            Preemption::Plain => (true, false),
            Preemption::Preemptible => (false, false),
            Preemption::Auto => (false, true),
        };
        let launches = &self.models[job.program].launches;
        let rounds = std::iter::repeat_n(launches, job.rounds as usize).flatten();
        rounds.map(|launch| launch.clone().plain(plain).auto(auto)).collect()
    }
}

impl Testbed for SimulatedTestbed {
    fn has(&self, arm: Arm) -> bool {
        arm != Arm::StreamPriorities
    }

    fn add(&mut self, definition: &Definition, size: Size) -> Result<usize> {
        let launches = self.known.of(definition.name, size)?;
        self.models.push(ProgramModel { name: definition.name, launches });
        Ok(self.models.len() - 1)
    }

    fn remove_last(&mut self) {
        self.models.pop();
    }

    fn name(&self, program: usize) -> &'static str {
        self.models[program].name
    }

    fn run_bound(&mut self, arm: Arm, jobs: &[Job], bind: Bind<'_>) -> Result<Completed> {
        ensure!(self.has(arm), "the simulated device has no streams with priorities");
        let Path { machine, submit, latency } = Path::of(arm, self.costs);
        let mut free = Duration::ZERO;
        let mut programs = Vec::new();
        for job in jobs {
            let launches = self.launches(arm, job);
            let at = job.at.max(free);
            free = at + submit * launches.len() as u32;
            programs.push((launches, at, arm.priority(job)));
        }
        // A workload numbers its streams from 0.
        (0..jobs.len()).try_for_each(|index| bind(index, index as u32))?;
        let found = simulate(machine, self.policy(arm), &programs)?;
        self.count(&found.results);
        let times = programs.iter().zip(&found.turnaround);
        let times = times.map(|(&(_, at, _), &time)| (at, at + time + latency));
        Ok(Completed::new(times.collect(), found.yields, Vec::new()))
    }

    fn run_in_one_stream(&mut self, jobs: &[Job]) -> Result<Duration> {
        let arm = Arm::PlainStreams;
        let Path { machine, latency, .. } = Path::of(arm, self.costs);
        let launches = jobs.iter().flat_map(|job| self.launches(arm, job));
        let launches: Vec<KernelModel> = launches.collect();
        let found = simulate(machine, self.policy(arm), &[(launches, Duration::ZERO, 0)])?;
        self.count(&found.results);
        Ok(found.turnaround.into_iter().sum::<Duration>() + latency)
    }

    fn endless(&mut self, arm: Arm, loops: &[Endless], window: Duration) -> Result<Looped> {
        ensure!(self.has(arm), "the simulated device has no streams with priorities");
        let jobs: Vec<Job> = loops.iter().map(Endless::job).collect();
        let mut workload = Workload::new(0);
        let mut streams = Vec::new();
        for (job, one) in jobs.iter().zip(loops) {
            let stream = workload.stream(StreamModel::new(arm.priority(job)).weight(one.weight));
            let launches = self.launches(arm, job);
            // Two runs ahead, so that there is always a next launch in the stream.
            for launch in launches.iter().chain(&launches) {
                workload.repeat(stream, launch, Duration::ZERO, Duration::ZERO, window);
            }
            let tasks: u64 = launches.iter().map(|launch| u64::from(launch.tasks)).sum();
            streams.push((stream, tasks));
        }
        let (policy, selector) = SelectedPolicy::new(vec![self.policy(arm)]);
        selector.start_counting();
        let simulation = Simulation::new(Path::of(arm, self.costs).machine, policy).until(window);
        let results = run(simulation, &workload)?;
        self.count(&results);
        let runs = streams.iter().map(|&(stream, tasks)| {
            let done: u64 = results.of(stream).map(|launch| u64::from(launch.tasks)).sum();
            done as f64 / tasks as f64
        });
        Ok(Looped {
            runs: runs.collect(),
            yields: yields(&results),
            stops: None,
            weights: loops.iter().map(|one| one.weight).collect(),
            readings: selector.take_readings(),
        })
    }

    fn close(self: Box<Self>) -> Result<Tally> {
        Ok(self.tally)
    }
}

/// The results of programs in virtual time.
pub struct Simulated {
    /// Time from the submission of each program to its end.
    pub turnaround: Vec<Duration>,
    /// Yields of all launches.
    pub yields: u64,
    /// Results of each launch.
    pub results: Results,
}

/// Runs programs: for each, its launches, the time of their submission, and its priority.
///
/// # Errors
///
/// Errors of the simulation.
pub fn simulate<L: AsRef<[KernelModel]>>(
    machine: Machine,
    policy: Box<dyn Policy>,
    programs: &[(L, Duration, i32)],
) -> Result<Simulated> {
    let mut workload = Workload::new(0);
    let mut streams: Vec<StreamNumber> = Vec::new();
    for (launches, at, priority) in programs {
        let stream = workload.stream(Priority(*priority));
        launches.as_ref().iter().for_each(|launch| workload.launch(stream, launch, *at));
        streams.push(stream);
    }
    let results = run(Simulation::boxed(machine, policy), &workload)?;
    let turnaround = |stream| results.of(stream).map(|launch| launch.turnaround()).max();
    Ok(Simulated {
        turnaround: streams.into_iter().map(|one| turnaround(one).unwrap_or_default()).collect(),
        yields: yields(&results),
        results,
    })
}

fn run(simulation: Simulation, workload: &Workload) -> Result<Results> {
    let results = simulation.run(workload)?;
    ensure!(results.policy_error.is_none(), "the policy was refused: {:?}", results.policy_error);
    Ok(results)
}

fn yields(results: &Results) -> u64 {
    results.launches.iter().map(|launch| u64::from(launch.yields)).sum()
}
