//! Workloads: which launches arrive, and when.

use std::fmt::Write as _;
use std::time::Duration;

use preempt_device::abi::MAX_TASKS;
use rustc_hash::FxHashMap;

use super::machine::{KernelModel, LONGEST, number, refused};
use super::program::JobModel;
use super::random::Random;
use super::recorded::{RecordedChange, RecordedJob};
use crate::error::{Error, SimulationError};
use crate::policy::{Priority, Urgency};

/// Streams, and the launches that are submitted to them in virtual time. A workload is the same for every policy: no
/// random number depends on what the device does.
#[derive(Clone, Debug)]
pub struct Workload {
    pub(super) seed: u64,
    pub(super) streams: Vec<StreamModel>,
    pub(super) jobs: Vec<Job>,
    /// Of a recording: in the order of time.
    pub(super) changes: Vec<RecordedChange>,
}

/// A stream of a [`Workload`], by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamNumber(pub(super) u32);

/// What a stream asks of the policy for its launches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[must_use = "a workload makes the stream"]
pub struct StreamModel {
    /// How urgent its launches are.
    pub priority: Priority,
    /// Their share relative to others; at least 1.
    pub weight: u32,
    /// When each is due, from its submission on.
    pub due: Option<Duration>,
}

impl StreamModel {
    /// A stream of this priority, with a weight of 1 and no deadlines.
    pub fn new(priority: impl Into<Priority>) -> StreamModel {
        StreamModel { priority: priority.into(), weight: 1, due: None }
    }

    /// With this share relative to others.
    pub fn weight(mut self, weight: u32) -> StreamModel {
        self.weight = weight;
        self
    }

    /// With launches that are due this long after their submission.
    pub fn due(mut self, time: Duration) -> StreamModel {
        self.due = Some(time);
        self
    }

    pub(super) fn urgency(&self, now: Duration) -> Urgency {
        let deadline = self.due.map(|due| now + due);
        Urgency {
            priority: self.priority,
            weight: self.weight.max(1),
            deadline,
            latency_limit: None,
        }
    }
}

impl<P: Into<Priority>> From<P> for StreamModel {
    fn from(priority: P) -> StreamModel {
        StreamModel::new(priority)
    }
}

/// When launches are submitted, independent of earlier ones.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Arrivals {
    /// One at a time, at regular intervals, the first one at once.
    Periodic(Duration),
    /// At random, with this time between two on average (a Poisson process).
    Poisson(Duration),
    /// In bursts, with this time between two bursts on average, at random.
    Bursts {
        /// Launches in a burst.
        size: u32,
        /// Between two bursts, on average.
        every: Duration,
    },
    /// At these times.
    At(Vec<Duration>),
}

/// Sizes of launches, relative to the kernel's model: they multiply the block-tasks and the duration.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[non_exhaustive]
pub enum Sizes {
    /// As the model says.
    #[default]
    Same,
    /// From 1 to `most` times as large, with a Pareto distribution: many small ones and few large ones.
    Pareto {
        /// The distribution's shape: the smaller, the more large ones; above 0.
        shape: f64,
        /// The largest size; at least 1.
        most: f64,
    },
}

/// A launch, or one after the other.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub stream: StreamNumber,
    pub model: JobModel,
    pub at: Duration,
    pub again: Option<Again>,
    /// If it is of a recording: what that says of it.
    pub recorded: Option<RecordedJob>,
}

/// Submits the same again after a wait, until a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Again {
    pub wait: Duration,
    pub until: Duration,
}

impl Workload {
    /// An empty workload. Its random numbers depend on the seed.
    pub fn new(seed: u64) -> Workload {
        Workload { seed, streams: Vec::new(), jobs: Vec::new(), changes: Vec::new() }
    }

    /// A stream: its launches run in the order in which they are submitted.
    pub fn stream(&mut self, model: impl Into<StreamModel>) -> StreamNumber {
        self.streams.push(model.into());
        StreamNumber(self.streams.len() as u32 - 1)
    }

    /// A launch that is submitted at a time.
    pub fn launch(&mut self, stream: StreamNumber, kernel: &KernelModel, at: Duration) {
        self.once(stream, kernel.into(), at);
    }

    /// A launch of a program that is submitted at a time: kernels that run one after the other, as one operation with
    /// one result. It is what [`Stream::program`](crate::Stream::program) records.
    ///
    /// - It is plain, like a CUDA graph, if all its kernels are [plain](KernelModel::plain). For the policy it is one
    ///   launch, as wide as the widest kernel. From kernel to kernel it takes [`Costs::graph`](super::Costs::graph), and
    ///   SMs are taken from it at the ends of blocks alone.
    /// - Otherwise it is preemptible. SMs are taken from it in each kernel and between them, and then what is left goes
    ///   on. A kernel follows after [`Costs::follow`](super::Costs::follow). Up to 31 that are queued in a row take the
    ///   host one [`Costs::call`](super::Costs::call). A plain kernel among others runs to its end.
    /// - If all kernels that are not plain are [auto](KernelModel::auto), the form is chosen. The program is plain if
    ///   each of them would be, if it is predicted to take at most 10 ms, and if the policy goes by order.
    ///
    /// [`Simulation::run`](super::Simulation::run) refuses a program without kernels, or with more than 4096.
    ///
    /// ```
    /// use std::time::Duration;
    /// use preempt::policy::StaticPriority;
    /// use preempt::sim::{KernelModel, Machine, Simulation, Workload};
    ///
    /// let ms = Duration::from_millis(1);
    /// let mut workload = Workload::new(1);
    /// let (batch, urgent) = (workload.stream(0), workload.stream(10));
    /// let step = [KernelModel::new("forward", 5 * ms, 10_000), KernelModel::new("backward", 9 * ms, 10_000)];
    /// workload.program(batch, "step", &step, Duration::ZERO);
    /// workload.launch(urgent, &KernelModel::new("short", ms, 132), 7 * ms);
    ///
    /// let results = Simulation::new(Machine::h200(), StaticPriority::new()).run(&workload)?;
    /// let [step, short] = &results.launches[..] else { panic!("two launches") };
    /// assert_eq!((&*step.kernel, step.tasks, step.yields), ("step", 20_000, 1));
    /// assert!(short.done < step.done);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    pub fn program(
        &mut self,
        stream: StreamNumber,
        name: impl Into<String>,
        kernels: &[KernelModel],
        at: Duration,
    ) {
        self.once(stream, JobModel::program(name, kernels), at);
    }

    fn once(&mut self, stream: StreamNumber, model: JobModel, at: Duration) {
        self.jobs.push(Job { stream, model, at, again: None, recorded: None });
    }

    /// Launches of a kernel or of a program that are submitted at these arrivals before `until`, independent of earlier
    /// ones. All kernels of a program have the same size.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use preempt::policy::StaticPriority;
    /// use preempt::sim::{Arrivals, KernelModel, Machine, Simulation, Sizes, Workload};
    ///
    /// let ms = Duration::from_millis(1);
    /// let mut workload = Workload::new(1);
    /// let (batch, control) = (workload.stream(0), workload.stream(10));
    /// // Requests of many sizes, now and then, and a step of the same size every 2 ms.
    /// let (request, step) = (KernelModel::new("request", ms, 1000), KernelModel::new("step", ms / 10, 132));
    /// let sizes = Sizes::Pareto { shape: 1.5, most: 20.0 };
    /// workload.arrive(batch, &request, &Arrivals::Poisson(5 * ms), sizes, 100 * ms)?;
    /// workload.arrive(control, &step, &Arrivals::Periodic(2 * ms), Sizes::Same, 100 * ms)?;
    ///
    /// let results = Simulation::new(Machine::h200(), StaticPriority::new()).run(&workload)?;
    /// assert_eq!(results.of(control).count(), 50);
    /// assert!(results.of(batch).all(|launch| (1000..=20_000).contains(&launch.tasks)));
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SimulationError::GivenUp`] if no time passes between two arrivals, or the sizes have no distribution.
    pub fn arrive(
        &mut self,
        stream: StreamNumber,
        model: impl Into<JobModel>,
        arrivals: &Arrivals,
        sizes: Sizes,
        until: Duration,
    ) -> Result<(), Error> {
        let model = model.into();
        if let Sizes::Pareto { shape, most } = sizes
            && !(shape > 0.0 && most >= 1.0 && shape.is_finite() && most.is_finite())
        {
            let found = format!("not {shape} and {most}");
            return Err(refused(format!(
                "Pareto sizes have a shape above 0 and a largest size of at least 1, {found}"
            )));
        }
        let mut random = Random::of(self.seed, self.jobs.len() as u64);
        for at in arrivals.times(&mut random, until)? {
            self.once(stream, sized(&model, sizes, &mut random), at);
        }
        Ok(())
    }

    /// A closed loop until a time: a launch of a kernel or of a program at `first`, and the same again `wait` after the
    /// previous one was done.
    pub fn repeat(
        &mut self,
        stream: StreamNumber,
        model: impl Into<JobModel>,
        first: Duration,
        wait: Duration,
        until: Duration,
    ) {
        let again = Some(Again { wait, until });
        self.jobs.push(Job { stream, model: model.into(), at: first, again, recorded: None });
    }

    /// The workload of a trace: a line for each launch, with fields between spaces; `#` starts a comment.
    ///
    /// | field | |
    /// | --- | --- |
    /// | arrival | in microseconds |
    /// | stream | a number of the trace's own |
    /// | priority | of the stream: the first line that names it decides |
    /// | kernel | its name |
    /// | duration | alone, in microseconds |
    /// | block-tasks | |
    /// | blocks per SM | |
    ///
    /// The line of a program has its name behind the priority, and then the last four fields of each of its kernels.
    ///
    /// ```
    /// use preempt::sim::Workload;
    ///
    /// let trace = "\
    /// ## arrival stream priority kernel  duration tasks per_sm
    ///    0       0      0        batch   1000.0   10000 8
    ///    50.5    1      5        urgent  20.0     132   1
    ///    75.0    1      5        program first 20.0 132 1  second 10.0 264 2
    /// ";
    /// let workload = Workload::from_trace(trace)?;
    /// assert_eq!(Workload::from_trace(&workload.trace())?.len(), 3);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SimulationError::GivenUp`], with the line, if one cannot be read.
    pub fn from_trace(text: &str) -> Result<Workload, Error> {
        let mut workload = Workload::new(0);
        let mut streams = FxHashMap::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            if !line.trim().is_empty() {
                workload.trace_line(line, &mut streams).map_err(|error| match error {
                    Error::Simulation(SimulationError::GivenUp { reason }) => {
                        refused(format!("line {} of the trace: {reason}", index + 1))
                    }
                    other => other,
                })?;
            }
        }
        Ok(workload)
    }

    fn trace_line(
        &mut self,
        line: &str,
        streams: &mut FxHashMap<u32, StreamNumber>,
    ) -> Result<(), Error> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let fields_are = || {
            let allowed = "a launch has 7, and a program 4 and then 4 for each of its kernels";
            refused(format!("it has {} fields; {allowed}", fields.len()))
        };
        let [at, stream, priority, of @ ..] = &fields[..] else { return Err(fields_are()) };
        let model = match of.as_rchunks() {
            ([], [kernel]) => JobModel::Kernel(traced(kernel)?),
            ([name], kernels) => JobModel::Program {
                name: (*name).to_owned(),
                kernels: kernels.iter().map(traced).collect::<Result<_, Error>>()?,
            },
            _ => return Err(fields_are()),
        };
        model.check()?;
        let priority = Priority(number(priority, "the priority")?);
        let stream = number(stream, "the stream")?;
        let stream = *streams.entry(stream).or_insert_with(|| self.stream(priority));
        self.once(stream, model, microseconds(at, "the arrival")?);
        Ok(())
    }

    /// The trace of the workload. Closed loops are reduced to their first launch, and kernels to what a trace has.
    pub fn trace(&self) -> String {
        let mut text = String::from("# arrival stream priority kernel duration tasks per_sm\n");
        // Writing to a string cannot fail.
        for job in self.launches() {
            let at = job.at.as_nanos() as f64 / 1e3;
            let StreamNumber(stream) = job.stream;
            let priority = self.streams[stream as usize].priority.0;
            let _ = write!(text, "{at} {stream} {priority}");
            if let JobModel::Program { name, .. } = &job.model {
                let _ = write!(text, " {}", word(name));
            }
            for (kernel, _) in job.calls().filter(|(_, takes_time)| *takes_time) {
                let KernelModel { name, duration, tasks, blocks_per_sm, .. } = kernel;
                let (name, duration) = (word(name), duration.as_nanos() as f64 / 1e3);
                let _ = write!(text, " {name} {duration} {tasks} {blocks_per_sm}");
            }
            text.push('\n');
        }
        text
    }

    /// How many launches, of kernels and of programs, and closed loops there are.
    pub fn len(&self) -> usize {
        self.launches().count()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn launches(&self) -> impl Iterator<Item = &Job> {
        self.jobs.iter().filter(|job| job.takes_time())
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        for Job { stream, model, at, again, .. } in &self.jobs {
            model.check()?;
            if self.streams.get(stream.0 as usize).is_none() {
                return Err(refused(format!("{stream:?} is of another workload")));
            }
            let latest = again.map_or(*at, |again| again.until.max(*at));
            if latest > FOREVER {
                return Err(refused(format!("a launch at {latest:?} is years away")));
            }
        }
        Ok(())
    }
}

impl Job {
    /// Its kernels, and whether each takes time; a recording has copies, too.
    pub fn calls(&self) -> impl Iterator<Item = (&KernelModel, bool)> {
        let takes_time =
            |index: usize| self.recorded.as_ref().is_none_or(|recorded| recorded.takes_time[index]);
        let kernels = self.model.kernels().iter().enumerate();
        kernels.map(move |(index, kernel)| (kernel, takes_time(index)))
    }

    /// Whether it launches anything; a recording has other operations, too.
    pub fn takes_time(&self) -> bool {
        self.recorded.is_none() || self.calls().any(|(_, takes_time)| takes_time)
    }
}

/// The longest virtual time.
const FOREVER: Duration = Duration::from_secs(100 * 24 * 3600);

impl Arrivals {
    /// All before `until`.
    fn times(&self, random: &mut Random, until: Duration) -> Result<Vec<Duration>, Error> {
        let gap = match self {
            Arrivals::Periodic(gap) | Arrivals::Poisson(gap) => *gap,
            Arrivals::Bursts { every, .. } => *every,
            Arrivals::At(times) => {
                return Ok(times.iter().copied().filter(|time| *time < until).collect());
            }
        };
        if gap.is_zero() {
            return Err(refused("no time passes between two arrivals; give them a time above 0"));
        }
        let mut times = Vec::new();
        let mut at = Duration::ZERO;
        if !matches!(self, Arrivals::Periodic(_)) {
            at += random.exponential(gap);
        }
        while at < until {
            let count = if let Arrivals::Bursts { size, .. } = self { *size } else { 1 };
            times.extend(std::iter::repeat_n(at, count as usize));
            at += match self {
                Arrivals::Periodic(_) => gap,
                _ => random.exponential(gap),
            };
        }
        Ok(times)
    }
}

/// The same in another size.
fn sized(model: &JobModel, sizes: Sizes, random: &mut Random) -> JobModel {
    let mut model = model.clone();
    if let Sizes::Pareto { shape, most } = sizes {
        let size = random.pareto(shape, most);
        for kernel in model.kernels_mut() {
            let times = kernel.plain_duration.iter_mut().chain([&mut kernel.duration]);
            times.for_each(|time| *time = time.mul_f64(size).min(LONGEST));
            kernel.tasks = ((f64::from(kernel.tasks) * size) as u32).clamp(1, MAX_TASKS);
        }
    }
    model
}

/// A kernel of a trace.
fn traced(&[name, duration, tasks, blocks_per_sm]: &[&str; 4]) -> Result<KernelModel, Error> {
    let duration = microseconds(duration, "the duration")?;
    let kernel = KernelModel::new(name, duration, number(tasks, "the number of block-tasks")?);
    Ok(kernel.blocks_per_sm(number(blocks_per_sm, "the number of blocks per SM")?))
}

/// A name as a field of a trace.
fn word(name: &str) -> String {
    let is_apart = |c: char| c.is_whitespace() || c == '#';
    match name {
        "" => "_".to_owned(),
        name => name.chars().map(|c| if is_apart(c) { '_' } else { c }).collect(),
    }
}

fn microseconds(text: &str, what: &str) -> Result<Duration, Error> {
    let value: f64 = number(text, what)?;
    Duration::try_from_secs_f64((value * 1e3).round() / 1e9)
        .map_err(|error| refused(format!("{what} is `{text}`: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn times(arrivals: &Arrivals, seed: u64) -> Vec<Duration> {
        let mut workload = Workload::new(seed);
        let stream = workload.stream(0);
        let kernel = KernelModel::new("k", MS, 1);
        workload.arrive(stream, &kernel, arrivals, Sizes::Same, 1000 * MS).unwrap();
        workload.jobs.iter().map(|job| job.at).collect()
    }

    #[test]
    fn arrivals_come_as_often_as_they_are_told_to() {
        let periodic = times(&Arrivals::Periodic(10 * MS), 1);
        assert_eq!((periodic.len(), periodic[0], periodic[99]), (100, Duration::ZERO, 990 * MS));
        let poisson = times(&Arrivals::Poisson(MS), 1);
        assert!((900..1100).contains(&poisson.len()), "{}", poisson.len());
        assert_ne!(poisson, times(&Arrivals::Poisson(MS), 2));
        assert_eq!(poisson, times(&Arrivals::Poisson(MS), 1));
        let bursts = times(&Arrivals::Bursts { size: 8, every: 10 * MS }, 1);
        assert!(bursts.chunks(8).all(|burst| burst.iter().all(|at| *at == burst[0])));
        let given = times(&Arrivals::At(vec![5 * MS, 2000 * MS, MS]), 1);
        assert_eq!(given, [5 * MS, MS]);
    }

    #[test]
    fn pareto_sizes_are_mostly_small_and_bounded() {
        let mut workload = Workload::new(3);
        let stream = workload.stream(0);
        let kernel = KernelModel::new("k", MS, 100);
        let sizes = Sizes::Pareto { shape: 1.1, most: 1000.0 };
        workload.arrive(stream, &kernel, &Arrivals::Periodic(MS), sizes, 1000 * MS).unwrap();
        let durations: Vec<_> =
            workload.jobs.iter().map(|job| job.model.kernels()[0].duration).collect();
        assert!(durations.iter().all(|time| (MS..=1000 * MS).contains(time)));
        let small = durations.iter().filter(|time| **time < 2 * MS).count();
        assert!((400..700).contains(&small), "1 - 2^-1.1 of them: {small}");
        assert!(durations.iter().any(|time| *time > 50 * MS));
    }

    #[test]
    fn what_cannot_be_is_refused_in_words() {
        let mut workload = Workload::new(0);
        let stream = workload.stream(0);
        let kernel = KernelModel::new("k", MS, 1);
        let mut arrive = |arrivals, sizes| workload.arrive(stream, &kernel, &arrivals, sizes, MS);
        assert!(arrive(Arrivals::Poisson(Duration::ZERO), Sizes::Same).is_err());
        let sizes = Sizes::Pareto { shape: 0.0, most: 2.0 };
        assert!(arrive(Arrivals::Periodic(MS), sizes).is_err());
        let error = |text| Workload::from_trace(text).unwrap_err().to_string();
        assert!(error("\n1 2 3\n").contains("line 2 of the trace: it has 3 fields"));
        assert!(error("1 0 0 k x 1 1").contains("the duration is `x`"));
        assert!(error("-1 0 0 k 1 1 1").contains("the arrival is `-1`"));
        assert!(error("1 0 0 k 1 0 1").contains("1 to"));
    }

    #[test]
    fn a_trace_comes_back_as_it_was() {
        let mut workload = Workload::new(0);
        let streams = [workload.stream(3), workload.stream(-1)];
        let kernel = KernelModel { blocks_per_sm: 4, ..KernelModel::new("a b", MS / 7, 9) };
        workload.launch(streams[0], &kernel, MS / 3);
        workload.launch(streams[1], &kernel, MS);
        let trace = workload.trace();
        let again = Workload::from_trace(&trace).unwrap();
        assert_eq!(again.trace(), trace);
        assert_eq!((again.jobs[0].at, again.jobs[0].model.kernels()[0].duration), (MS / 3, MS / 7));
        assert_eq!(again.streams[1].priority, Priority(-1));
    }

    #[test]
    fn programs_of_a_trace_come_back_as_they_were() {
        let mut workload = Workload::new(0);
        let stream = workload.stream(3);
        let kernel = |name: &str, tasks| KernelModel::new(name, MS / 3, tasks).blocks_per_sm(2);
        for count in 1..4 {
            workload.program(stream, "a program", &vec![kernel("", 5); count], MS);
            workload.launch(stream, &kernel("#", 7), MS);
        }
        let trace = workload.trace();
        let again = Workload::from_trace(&trace).unwrap();
        assert_eq!((again.trace(), again.len()), (trace, 6));
        assert_eq!(again.jobs[4].model, JobModel::program("a_program", &vec![kernel("_", 5); 3]));
        assert_eq!(again.jobs[5].model, (&kernel("_", 7)).into());
        let error = |text| Workload::from_trace(text).unwrap_err().to_string();
        let none = error("1 0 0 p");
        assert!(none.contains("line 1 of the trace: program `p` has no kernel"), "{none}");
        let half = error("1 0 0 p k 1 1");
        assert!(half.contains("the duration is `k`"), "{half}");
        let half = error("1 0 0 p k 1 1 1 k 1");
        assert!(half.contains("it has 10 fields; a launch has 7, and a program 4"), "{half}");
    }
}
