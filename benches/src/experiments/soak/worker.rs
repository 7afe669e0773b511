//! One thread's part of a scheduler: operations at random, and what arrays are to be after each.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use std::{mem, thread};

use anyhow::{Context, Result, bail, ensure};
use preempt::error::LaunchError;
use preempt::{
    Buffer, Error, ForeignKernel, Handle, LaunchReport, Opaque, Preemption, Program,
    ProgramBuilder, Scheduler, Stream,
};
use preempt_microkernels::{fails, hash_in_place, hash_whole, hash_yielding, hashed};
use preempt_test_kit::Random;

use super::{Counts, STEPS};
use crate::experiments::random_time;

/// Operations of a thread until all results are looked at and the scheduler is dropped.
const OPERATIONS: u32 = 150;

/// Different elements of an array. The 32 elements of a block-task are equal, and those of the next block-tasks differ, so one
/// block-task in the place of another shows.
const VALUES: usize = 61;

/// Elements of a buffer: few enough that the CPU device plays a launch in a millisecond.
const ELEMENTS: u32 = 2_000;
const GPU_ELEMENTS: u32 = 300_000;

/// Rounds of a thread, at most.
pub const ROUNDS: u32 = 60;
const GPU_ROUNDS: u32 = 3_000;

/// What an array is to be: its values, in turn for each block.
pub type Values = [u32; VALUES];

/// An array on the device, and what it is to be there. `None` after a cancel or a panic.
struct Array {
    buffer: Buffer<u32>,
    expected: Option<Values>,
}

/// The value of an element.
fn value_of(values: &Values, element: usize) -> u32 {
    values[element / 32 % VALUES]
}

/// An array of these values.
pub fn elements(values: &Values, len: u32) -> Vec<u32> {
    (0..len as usize).map(|element| value_of(values, element)).collect()
}

/// A program, and the hashes that it makes.
struct Recorded {
    program: Program,
    steps: Vec<(u32, u32)>,
}

/// One thread's part of a scheduler.
pub struct Worker {
    scheduler: Scheduler,
    stream: Stream,
    arrays: [Array; 3],
    handles: Vec<Handle<LaunchReport>>,
    random: Random,
    /// Elements of an array, and rounds of a thread at most.
    size: (u32, u32),
    foreign: Option<ForeignKernel>,
    counts: Counts,
}

/// Whether an operation was cancelled.
fn is_cancelled(error: &Error) -> bool {
    matches!(error, Error::Launch(LaunchError::Cancelled { .. }))
}

impl Worker {
    /// Of a GPU if there is a kernel of another compiler.
    pub fn new(
        scheduler: &Scheduler,
        foreign: Option<ForeignKernel>,
        random: Random,
    ) -> Result<Worker> {
        let size = match foreign {
            None => (ELEMENTS, ROUNDS),
            Some(_) => (GPU_ELEMENTS, GPU_ROUNDS),
        };
        let array = || {
            let buffer = scheduler.zeroed(size.0 as usize)?;
            Ok::<_, Error>(Array { buffer, expected: Some([0; VALUES]) })
        };
        let mut worker = Worker {
            arrays: [array()?, array()?, array()?],
            stream: scheduler.stream(0),
            scheduler: scheduler.clone(),
            handles: Vec::new(),
            random,
            size,
            foreign,
            counts: Counts::default(),
        };
        worker.stream.set_priority(worker.random.below(4) as i32);
        Ok(worker)
    }

    fn hashing(&mut self) -> (u32, u32) {
        (1 + self.random.below(self.size.1), self.random.bits() as u32)
    }

    fn form(&mut self) -> Preemption {
        let forms = [Preemption::Auto, Preemption::Preemptible, Preemption::Plain];
        forms[self.random.below(3) as usize]
    }

    /// Two different arrays, the second of which is written.
    fn two(&mut self) -> (usize, usize) {
        let from = self.random.below(3) as usize;
        (from, (from + 1 + self.random.below(2) as usize) % 3)
    }

    /// One operation. What it is to have done is known afterwards.
    fn step(&mut self) -> Result<()> {
        self.counts.operations += 1;
        STEPS.fetch_add(1, Relaxed);
        let (from, to) = self.two();
        match self.random.below(20) {
            0..5 => self.hash(from, to)?,
            5..7 => self.hash_in_place(to)?,
            7 => {
                self.arrays[to].expected = None;
                self.renew(to)?;
            }
            8 => {
                let [from, to] = disjoint(&mut self.arrays, from, to);
                self.stream.copy_buffer(&from.buffer, &mut to.buffer)?.detach();
                to.expected = from.expected;
            }
            9 => {
                let value = self.random.bits() as u32;
                let array = &mut self.arrays[to];
                self.stream.fill(&mut array.buffer, value)?.detach();
                array.expected = Some([value; VALUES]);
            }
            10 => self.look(from)?,
            11..14 => self.program(to)?,
            14 => {
                let opaque = Opaque::new("nothing").reads(&self.arrays[from].buffer);
                self.stream.opaque(opaque, |_| Ok(()))?.detach();
            }
            15 => self.cancel(from, to)?,
            16 => self.stream.set_priority(self.random.below(4) as i32),
            17 => self.stream.set_weight(1 + self.random.below(4)),
            18 => {
                let limits = [None, Some(Duration::ZERO), Some(Duration::from_micros(50))];
                self.stream.set_latency_limit(limits[self.random.below(3) as usize]);
            }
            // On a GPU a panic ends the context.
            _ if self.foreign.is_none() => self.panic(to)?,
            _ => self.await_some()?,
        }
        if self.handles.len() > 30 {
            self.await_some()?;
        }
        Ok(())
    }

    fn hash(&mut self, from: usize, to: usize) -> Result<()> {
        let ((rounds, key), form) = (self.hashing(), self.form());
        let threads = self.size.0;
        let [from, to] = disjoint(&mut self.arrays, from, to);
        let call = match (self.random.below(3), self.foreign) {
            (0, Some(kernel)) => {
                self.counts.foreign += 1;
                // SAFETY: these are its parameters, and both arrays have this many elements.
                let call = unsafe { kernel.call() }.value(rounds).value(key).read(&from.buffer);
                let call = call.write(&mut to.buffer).value(threads);
                call.block(32).grid(threads.div_ceil(32))
            }
            (0 | 1, _) => hash_yielding(rounds, key, &from.buffer, &mut to.buffer).threads(threads),
            _ => hash_whole(rounds, key, &from.buffer, &mut to.buffer).threads(threads),
        };
        self.handles.push(self.stream.launch(call.preemption(form))?);
        to.expected = from.after(&[(rounds, key)]);
        Ok(())
    }

    fn hash_in_place(&mut self, to: usize) -> Result<()> {
        let ((rounds, key), form) = (self.hashing(), self.form());
        let array = &mut self.arrays[to];
        let call = hash_in_place(rounds, key, &mut array.buffer).threads(self.size.0);
        self.handles.push(self.stream.launch(call.preemption(form))?);
        array.expected = array.after(&[(rounds, key)]);
        Ok(())
    }

    /// Records a program that hashes an array in place, and launches it.
    fn program(&mut self, to: usize) -> Result<()> {
        self.counts.programs += 1;
        let steps: Vec<_> = (0..1 + self.random.below(4)).map(|_| self.hashing()).collect();
        let (form, threads) = (self.form(), self.size.0);
        let array = &mut self.arrays[to];
        let record = |program: &mut ProgramBuilder<'_>| {
            program.preemption(form);
            for &(rounds, key) in &steps {
                program.launch(hash_in_place(rounds, key, &mut array.buffer).threads(threads))?;
            }
            Ok(())
        };
        let program = self.stream.program("hashes", record)?;
        let mut recorded = Recorded { program, steps };
        for _ in 0..1 + self.random.below(3) {
            self.launch_program(&mut recorded, to)?;
        }
        Ok(())
    }

    fn launch_program(&mut self, recorded: &mut Recorded, to: usize) -> Result<()> {
        let program = &mut recorded.program;
        if self.random.below(2) == 0 {
            // Until then the array is in use, and the program is armed once it is not.
            self.stream.synchronize()?;
            program.arm()?;
            // Beyond the millisecond that it stays armed for, too.
            thread::sleep(random_time(&mut self.random, Duration::from_micros(1400)));
        }
        if self.random.below(4) == 0 {
            // Not launched. It is disarmed by the next operation.
            return Ok(());
        }
        self.handles.push(program.launch()?);
        let array = &mut self.arrays[to];
        array.expected = array.after(&recorded.steps);
        Ok(())
    }

    /// Launches, and cancels at once or soon.
    fn cancel(&mut self, from: usize, to: usize) -> Result<()> {
        let (rounds, key) = self.hashing();
        let [source, target] = disjoint(&mut self.arrays, from, to);
        let call = hash_yielding(rounds, key, &source.buffer, &mut target.buffer);
        let call = call.threads(self.size.0);
        let handle = self.stream.launch(call.preemption(Preemption::Preemptible))?;
        if self.random.below(2) == 0 {
            thread::sleep(random_time(&mut self.random, Duration::from_micros(300)));
        }
        handle.cancel();
        self.arrays[to].expected = match handle.wait() {
            Ok(report) => {
                self.counts.take(report);
                self.arrays[from].after(&[(rounds, key)])
            }
            Err(error) if is_cancelled(&error) => {
                self.counts.cancelled += 1;
                None
            }
            Err(error) => return Err(error.into()),
        };
        self.renew(to)
    }

    /// A kernel that panics loses what it was to write.
    fn panic(&mut self, to: usize) -> Result<()> {
        let at = self.random.below(self.size.0);
        let call = fails(at, &mut self.arrays[to].buffer).threads(self.size.0);
        match self.stream.launch(call)?.wait() {
            Err(Error::Launch(LaunchError::KernelFailed { .. })) => self.counts.panics += 1,
            other => bail!("a kernel that panics ended with {other:?}"),
        }
        self.arrays[to].expected = None;
        self.renew(to)
    }

    /// Uploads anew what is not known.
    fn renew(&mut self, to: usize) -> Result<()> {
        let array = &mut self.arrays[to];
        if array.expected.is_none() {
            let values = std::array::from_fn(|_| self.random.bits() as u32);
            array.expected = Some(values);
            self.stream.upload(elements(&values, self.size.0), &mut array.buffer)?.detach();
        }
        Ok(())
    }

    /// Downloads an array, and compares.
    fn look(&self, at: usize) -> Result<()> {
        let Array { buffer, expected } = &self.arrays[at];
        let found = self.stream.download(buffer)?.wait()?;
        let expected = expected.as_ref().context("renewed after each loss")?;
        let mut all = found.iter().enumerate();
        let wrong = all.find(|&(element, &found)| found != value_of(expected, element));
        ensure!(wrong.is_none(), "array {at}: element {wrong:?} is wrong");
        Ok(())
    }

    fn await_some(&mut self) -> Result<()> {
        for handle in self.handles.drain(..) {
            self.counts.take(handle.wait()?);
        }
        Ok(())
    }

    /// All operations, and a look at all arrays; or, if the scheduler is to be dropped, what is left of the handles.
    pub fn run(mut self, looks: bool) -> Result<(Counts, Vec<Handle<LaunchReport>>)> {
        for _ in 0..OPERATIONS {
            self.step()?;
        }
        if !looks {
            return Ok((self.counts, mem::take(&mut self.handles)));
        }
        self.await_some()?;
        (0..3).try_for_each(|at| self.look(at))?;
        self.scheduler.synchronize()?;
        Ok((self.counts, Vec::new()))
    }
}

impl Array {
    /// Its elements after these hashes.
    fn after(&self, steps: &[(u32, u32)]) -> Option<Values> {
        let hash = |x| steps.iter().fold(x, |x, &(rounds, key)| hashed(x, rounds, key));
        Some(self.expected?.map(hash))
    }
}

/// An array, and another one to write.
fn disjoint(arrays: &mut [Array; 3], from: usize, to: usize) -> [&mut Array; 2] {
    arrays.get_disjoint_mut([from, to]).expect("two of three")
}
