//! A program's dominating launch, which can be run again and again, each time with its result checked.

use anyhow::{Result, ensure};
use preempt::preempt_device::host::{Access, BufferArg, ReadArg, WriteArg};
use preempt::{Buffer, Call, LaunchReport, Scheduler, Stream};
use preempt_test_kit::storm::Tally;
use preempt_workload_kernels::input::{BLOCK, DIGESTED, digest_u32, set_u32};
use preempt_workloads::{Definition, Program, Size};

/// The contents of the launch's outputs before it: no result of a program is this number, nor this NaN.
const POISON: u32 = 0xFFFF_DEAD;

/// A program's dominating launch, with its expected results.
pub struct Subject {
    /// The program's name, and the grid if it is another one.
    pub name: String,
    /// The launch.
    pub call: Call<'static>,
    /// Keeps the launch's inputs.
    _program: Program,
    stream: Stream,
    /// Launches that overwrite everything that the launch writes.
    poisons: Vec<Call<'static>>,
    /// Launches that add digests of all that the launch writes to `sum`.
    digests: Vec<Call<'static>>,
    sum: Buffer<u64>,
    /// The last value read from `sum`.
    before: u64,
    /// The digest after an undisturbed run.
    expected: u64,
}

impl Subject {
    /// Allocates the program, makes the launch's inputs, and runs it once, undisturbed. With `grid`, it is a launch of
    /// this number of block-tasks instead.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler.
    pub fn new(
        scheduler: &Scheduler,
        definition: &Definition,
        size: Size,
        grid: Option<u32>,
        seed: u32,
    ) -> Result<Subject> {
        let program = (definition.build)(scheduler.into(), size, seed)?;
        let mut name = definition.name.to_owned();
        let mut call = program.steps[program.dominant].clone();
        if let Some(tasks) = grid {
            name = format!("{name}, {tasks} block-task{}", if tasks == 1 { "" } else { "s" });
            call = call.grid(tasks);
        }
        let mut sum = scheduler.zeroed(1)?;
        let (mut poisons, mut digests) = (Vec::new(), Vec::new());
        for (buffer, access) in call.args().buffers() {
            if *access == Access::Write {
                let (output, length) = Output::new(buffer)?;
                poisons.push(set_u32(POISON, output.clone()).grid(length.div_ceil(BLOCK)));
                let grid = length.div_ceil(BLOCK * DIGESTED);
                digests.push(digest_u32(output, &mut sum).grid(grid));
            }
        }
        let stream = scheduler.stream(0);
        let (before, expected) = (0, 0);
        let mut subject = Subject {
            name,
            call,
            stream,
            poisons,
            digests,
            sum,
            before,
            expected,
            _program: program,
        };
        // Before the steps that make the input: a launch that reads its own output then gives another result when it is
        // checked, and does not repeat its last one.
        subject.poison()?;
        let program = &subject._program;
        for call in program.setup.iter().chain(&program.steps[..program.dominant]) {
            subject.stream.launch(call.clone())?.wait()?;
        }
        subject.stream.launch(subject.call.clone())?.wait()?;
        subject.expected = subject.digest()?;
        Ok(subject)
    }

    /// Overwrites what the launch writes, so that a block-task that does not run shows.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler.
    pub fn poison(&self) -> Result<()> {
        for call in &self.poisons {
            self.stream.launch(call.clone())?.wait()?;
        }
        Ok(())
    }

    /// Compares the results since [`poison`](Subject::poison) with those of an undisturbed launch.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler. Wrong results go to the tally.
    pub fn check(&mut self, report: &LaunchReport, arm: &str, tally: &mut Tally) -> Result<()> {
        tally.report(report);
        let tasks = self.call.grid_dim().count() as u32;
        tally.count(&format!("{}, {arm}: block-tasks", self.name), &[report.tasks], &[tasks]);
        if self.digest()? != self.expected {
            tally.mistake.get_or_insert_with(|| {
                format!("{}, {arm}: its outputs are not those of an undisturbed run", self.name)
            });
        }
        Ok(())
    }

    /// A digest, which most likely differs if any bit of the results differs.
    fn digest(&mut self) -> Result<u64> {
        for call in &self.digests {
            self.stream.launch(call.clone())?.wait()?;
        }
        let sum = self.stream.download(&self.sum)?.wait()?.first().copied().unwrap_or_default();
        Ok(sum.wrapping_sub(std::mem::replace(&mut self.before, sum)))
    }
}

/// A buffer that a call writes, as words: a call knows its buffers, and not their elements' types.
#[derive(Clone)]
struct Output(BufferArg);

impl Output {
    /// The buffer and its length in words.
    fn new(buffer: &BufferArg) -> Result<(Output, u32)> {
        let words = buffer.bytes / 4;
        let is_words = buffer.bytes.is_multiple_of(4) && buffer.address.is_multiple_of(4);
        ensure!(is_words, "an output of {} bytes cannot be read as words of 4", buffer.bytes);
        let length = u32::try_from(words)?;
        Ok((Output(BufferArg { len: words, ..buffer.clone() }), length))
    }
}

// SAFETY: the buffer is that of a call, so its address is valid for `bytes` bytes while its owner lives,
// which it keeps; they are `len` aligned words, and each pattern of bits is a `u32`.
unsafe impl ReadArg<'static, u32> for Output {
    fn read_arg(self) -> BufferArg {
        self.0
    }
}

// SAFETY: as above, and the call writes it. Elements of the programs' outputs are numbers, which may hold
// any pattern of bits.
unsafe impl WriteArg<'static, u32> for Output {
    fn write_arg(self) -> BufferArg {
        self.0
    }
}
