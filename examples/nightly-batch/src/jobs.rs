//! The jobs: their kernels, launches and results.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nightly_batch_kernels as kernels;
use nightly_batch_kernels::THREADS;
use preempt::{Buffer, Error, Handle, LaunchReport, Scheduler, Stream};

/// Kernels, in the order of their jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernel {
    Multiply,
    MonteCarlo,
    Triad,
    Stencil,
    Histogram,
    Chains,
    Sort,
}

/// The jobs: kernels, and the parts of each of their jobs. Those of a kernel follow each other, and are at least two.
pub const JOBS: [(Kernel, &[usize]); 7] = [
    (Kernel::Multiply, &[4, 6, 9]),
    (Kernel::MonteCarlo, &[5, 7, 10]),
    (Kernel::Triad, &[4, 7, 10]),
    (Kernel::Stencil, &[3, 6]),
    (Kernel::Histogram, &[4, 5, 8]),
    (Kernel::Chains, &[12, 15, 24]),
    (Kernel::Sort, &[10, 13, 18]),
];

/// Block-tasks of a part for each SM, of kernels that use all SMs.
const WIDE: u32 = 32;

/// Block-tasks of a part, at most, whose results the host computes, too.
const CHECKED: u32 = 64;

/// Rounds of threads, at most, that the host computes for them: milliseconds for each part. A block-task on a GPU may have
/// half as many. One is computed in any case.
const CHECKED_ROUNDS: u32 = 1 << 20;

impl Kernel {
    /// Block-tasks of a part, on this many SMs.
    fn tasks(self, sms: u32) -> u32 {
        match self {
            Kernel::Chains | Kernel::Sort => (sms / 8).max(1),
            _ => WIDE * sms,
        }
    }

    /// What a block-task writes, computed without blocks and barriers.
    fn reference(self, data: &[u32], part: &Part, task: u32) -> Vec<u32> {
        let &Part { seed, rounds, tasks, .. } = part;
        let at = |place: u32| data[place as usize % data.len()];
        let threads = THREADS as u32;
        let run = |round: u32| {
            let first = seed.wrapping_add((task * rounds + round).wrapping_mul(threads));
            (0..threads).map(move |thread| at(first.wrapping_add(thread)))
        };
        let mut results = vec![0u32; THREADS];
        match self {
            Kernel::Histogram => {
                for number in (0..rounds).flat_map(run) {
                    results[number as usize % THREADS] += 1;
                }
            }
            Kernel::Sort => {
                for mut keys in (0..rounds).map(|round| run(round).collect::<Vec<_>>()) {
                    keys.sort_unstable();
                    results
                        .iter_mut()
                        .zip(keys)
                        .for_each(|(sum, key)| *sum = sum.wrapping_add(key));
                }
            }
            _ => {
                for (thread, result) in (0..threads).zip(&mut results) {
                    let index = task * threads + thread;
                    let far =
                        |way: u32, d: u32| at((seed + index).wrapping_add(way.wrapping_mul(d)));
                    let term = |k: u32| match self {
                        Kernel::Multiply => {
                            at(seed + task * rounds + k).wrapping_mul(at(k * threads + thread))
                        }
                        Kernel::Triad => far(tasks * threads, k).wrapping_mul(k + 1),
                        _ if k == 0 => far(0, 0).wrapping_mul(rounds),
                        _ => far(1, k).wrapping_add(far(u32::MAX, k)).wrapping_mul(rounds - k),
                    };
                    let link = |link: u32, _| kernels::mix(link ^ at(link));
                    *result = match self {
                        Kernel::MonteCarlo => {
                            kernels::points_inside(kernels::mix(index ^ seed), rounds)
                        }
                        Kernel::Chains => (0..rounds).fold(kernels::mix(index ^ seed), link),
                        _ => (0..rounds).map(term).fold(0, u32::wrapping_add),
                    };
                }
            }
        }
        results
    }
}

/// A launch. It has a stream of its own, so that all parts of a job are ready at once.
#[derive(Debug)]
struct Part {
    kernel: Kernel,
    stream: Stream,
    seed: u32,
    rounds: u32,
    tasks: u32,
    out: Buffer<u32>,
    /// What the first run gave, once it is checked.
    expected: Vec<u32>,
}

impl Part {
    fn new(scheduler: &Scheduler, kernel: Kernel, seed: u32, rounds: u32) -> Result<Part, Error> {
        let tasks = kernel.tasks(scheduler.device().properties().sms);
        let (stream, out) = (scheduler.stream(0), scheduler.zeroed(tasks as usize * THREADS)?);
        Ok(Part { kernel, stream, seed, rounds, tasks, out, expected: Vec::new() })
    }

    fn launch(&mut self, data: &Buffer<u32>) -> Result<Handle<LaunchReport>, Error> {
        let (seed, rounds, out) = (self.seed, self.rounds, &mut self.out);
        let call = match self.kernel {
            Kernel::Multiply => kernels::multiply(data, seed, rounds, out),
            Kernel::MonteCarlo => kernels::monte_carlo(data, seed, rounds, out),
            Kernel::Triad => kernels::triad(data, seed, rounds, out),
            Kernel::Stencil => kernels::stencil(data, seed, rounds, out),
            Kernel::Histogram => kernels::histogram(data, seed, rounds, out),
            Kernel::Chains => kernels::chains(data, seed, rounds, out),
            Kernel::Sort => kernels::sort(data, seed, rounds, out),
        };
        self.stream.launch(call.grid(self.tasks))
    }

    fn time(&mut self, data: &Buffer<u32>) -> Result<Duration, Error> {
        let start = Instant::now();
        self.launch(data)?.wait()?;
        Ok(start.elapsed())
    }

    /// The results, which are those of the host and those of the first run.
    fn check(&mut self, data: &[u32]) -> Result<()> {
        let results = self.stream.download(&self.out)?.wait()?;
        if self.expected.is_empty() {
            let of_one = self.rounds.saturating_mul(THREADS as u32).max(1);
            let checked = (CHECKED_ROUNDS / of_one).clamp(1, CHECKED);
            let step = self.tasks.div_ceil(checked) as usize;
            for task in (0..self.tasks).step_by(step) {
                let own = &results[task as usize * THREADS..][..THREADS];
                let expected = self.kernel.reference(data, self, task);
                ensure!(own == expected, "block-task {task} differs from the host's results");
            }
            self.expected = results;
        } else {
            ensure!(results == self.expected, "the results differ from those of the first run");
        }
        Ok(())
    }
}

/// A job: its name, and its launches.
#[derive(Debug)]
struct BatchJob {
    name: String,
    parts: Vec<Part>,
}

/// The twenty jobs on a device.
#[derive(Debug)]
pub struct Jobs {
    scheduler: Scheduler,
    on_host: Vec<u32>,
    data: Buffer<u32>,
    jobs: Vec<BatchJob>,
}

/// The names of the jobs, and their kernels' numbers.
pub fn names() -> impl Iterator<Item = (String, usize)> {
    let of = |(number, (kernel, jobs)): (usize, (Kernel, &'static [usize]))| {
        jobs.iter().map(move |parts| (format!("{kernel:?} {parts}"), number))
    };
    JOBS.into_iter().enumerate().flat_map(of)
}

impl Jobs {
    /// Jobs that read `numbers` numbers, a power of two. Each of their parts takes about `time`.
    pub fn new(scheduler: Scheduler, numbers: u32, time: Duration) -> Result<Jobs> {
        let on_host: Vec<u32> = (0..numbers).map(kernels::mix).collect();
        let data = scheduler.buffer(&on_host)?;
        let (mut jobs, mut names, mut seeds) = (Vec::new(), names(), 1..);
        for (kernel, sizes) in JOBS {
            let rounds = rounds(&scheduler, kernel, &data, time)?;
            for &parts in sizes {
                let (name, _) = names.next().context("a name for each job")?;
                let part = |seed| Part::new(&scheduler, kernel, seed, rounds);
                let parts = seeds.by_ref().take(parts).map(part).collect::<Result<_, _>>()?;
                jobs.push(BatchJob { name, parts });
            }
        }
        Ok(Jobs { scheduler, on_host, data, jobs })
    }

    /// The numbers of the streams, each with its job.
    pub fn streams(&self) -> impl Iterator<Item = (usize, u32)> {
        let jobs = self.jobs.iter().enumerate();
        jobs.flat_map(|(job, of)| of.parts.iter().map(move |part| (job, part.stream.id())))
    }

    /// Runs these jobs, and waits until they are done.
    pub fn run(&mut self, these: &[usize]) -> Result<(), Error> {
        let mut handles = Vec::new();
        for &job in these {
            for part in &mut self.jobs[job].parts {
                handles.push(part.launch(&self.data)?);
            }
        }
        handles.into_iter().try_for_each(|handle| handle.wait().map(|_| ()))?;
        // Fails if the policy gave an invalid plan.
        self.scheduler.synchronize()
    }

    /// Forgets all results.
    pub fn clear(&mut self) -> Result<(), Error> {
        for part in self.jobs.iter_mut().flat_map(|job| &mut job.parts) {
            part.stream.upload(vec![0; part.out.len()], &mut part.out)?.wait()?;
        }
        Ok(())
    }

    /// Checks the results of all jobs.
    ///
    /// # Errors
    ///
    /// If a result is wrong.
    pub fn check(&mut self) -> Result<()> {
        for BatchJob { name, parts } in &mut self.jobs {
            for part in parts {
                part.check(&self.on_host).with_context(|| format!("job `{name}`"))?;
            }
        }
        Ok(())
    }
}

/// Rounds with which a launch takes about this long.
fn rounds(
    scheduler: &Scheduler,
    kernel: Kernel,
    data: &Buffer<u32>,
    time: Duration,
) -> Result<u32, Error> {
    let mut part = Part::new(scheduler, kernel, 0, 1)?;
    loop {
        // The faster one, because the first may find the caches cold.
        let took = part.time(data)?.min(part.time(data)?);
        if took * 4 > time {
            let rounds = f64::from(part.rounds) * time.as_secs_f64() / took.as_secs_f64();
            return Ok(rounds.max(1.0) as u32);
        }
        part.rounds *= 2;
    }
}

#[cfg(test)]
mod tests {
    use preempt::{CpuLayout, Device};

    use super::*;

    #[test]
    fn results_are_compared_with_those_of_the_host_and_of_the_first_run() {
        let device = Device::cpu_with(CpuLayout::sms(2)).expect("a device");
        let scheduler = Scheduler::builder().device(device).build().expect("a scheduler");
        let mut jobs = Jobs::new(scheduler, 1 << 20, Duration::from_micros(100)).expect("jobs");
        let wrong = jobs.check().expect_err("nothing has run");
        assert_eq!(
            format!("{wrong:#}"),
            "job `Multiply 4`: block-task 0 differs from the host's results"
        );
        let all: Vec<usize> = (0..jobs.jobs.len()).collect();
        jobs.run(&all).expect("they run");
        jobs.check().expect("the host's results");
        jobs.clear().expect("zeros");
        jobs.run(&all[1..]).expect("they run");
        let wrong = jobs.check().expect_err("the first job has not run");
        assert_eq!(
            format!("{wrong:#}"),
            "job `Multiply 4`: the results differ from those of the first run"
        );
    }
}
