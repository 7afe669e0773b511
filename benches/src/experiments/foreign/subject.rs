//! A kernel with its arguments, by raw launches of the original and through a scheduler.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use preempt::{
    Buffer, Call, Footprint, ForeignCall, ForeignKernel, LaunchReport, Preemption, Scheduler,
    Stream,
};
use preempt_device::host::Dim3;
use preempt_driver::{Launch, Level, Module};
use preempt_test_kit::Random;
use preempt_workload_kernels::input::{BLOCK, DIGESTED, digest_u32, fill_f32, fill_u32, set_u32};

use super::super::cuda::spin_until;
use super::cases::{Argument, Case, Content};
use super::corpus::Corpus;

/// What is in an output before a run.
pub const POISON: u32 = 0xA5C3_5A3C;

/// Different words of what is generated on the host; longer arrays repeat them.
const PERIOD: usize = 1 << 20;

/// An array that the kernel writes.
struct Output {
    /// Makes the contents those before a run.
    reset: Call<'static>,
    digest: Call<'static>,
    sum: Buffer<u64>,
}

/// See the module.
pub struct Subject {
    pub case: &'static Case,
    pub kernel: ForeignKernel,
    with_points: ForeignKernel,
    pub call: Call<'static>,
    /// With yield points, if the kernel has some and these arguments are as they need to be.
    pub yielding: Option<Call<'static>>,
    pub footprint: Footprint,
    outputs: Vec<Output>,
    raw: Launch,
    raw_stream: preempt_driver::Stream,
    /// Digests of the outputs of the original.
    expected: Vec<u64>,
}

impl Subject {
    /// Loads the kernel in both forms, allocates its memory and makes its inputs, and runs the original. `None` if the original does
    /// not write the same twice, so that nothing can be compared.
    pub fn new(
        scheduler: &Scheduler,
        corpus: &Corpus,
        case: &'static Case,
        seed: u32,
    ) -> Result<Option<Subject>> {
        let text = corpus.text(case)?;
        let entry = text.entry(case)?;
        let kernel = scheduler.foreign(&Corpus::module(case), &entry)?;
        let with_points = scheduler.foreign(&Corpus::module_with_points(case), &entry)?;
        let facts = corpus.facts(case)?;
        let stream = scheduler.stream(0);
        let blocks = case.grid.iter().product();
        let mut outputs = Vec::new();
        let mut all = Vec::new();
        for (place, &argument) in case.arguments.iter().enumerate() {
            let seed = seed.wrapping_add(place as u32);
            all.push(passed(scheduler, argument, blocks, seed, &mut outputs)?);
        }
        let extents = |[x, y, z]: [u32; 3]| Dim3 { x, y, z };
        let mut call = |kernel: ForeignKernel| {
            // SAFETY: the arguments are those of the kernel, and its arrays as long as these numbers say: `compute-sanitizer`
            // finds nothing in the original.
            let call = unsafe { kernel.call() };
            let call = all.iter_mut().fold(call, |call, passed| passed.push(call));
            let call = call.block(extents(facts.block)).dynamic_shared(facts.shared);
            call.grid(extents(case.grid))
        };
        let yielding = (with_points.yield_points() > 0).then(|| call(with_points));
        let yielding = yielding.filter(|call| call.kernel().yields);
        let call = call(kernel);
        scheduler.synchronize()?;
        let footprint = scheduler.footprint(&call)?;
        let module = Module::load_plain(&text.only(&entry)?)?;
        let original = module.plain(call.kernel())?;
        original.allow_shared(facts.shared)?;
        let raw_stream = preempt_driver::Stream::new(Level::Lowest)?;
        let raw = Launch::plain(original, call.clone());
        let expected = Vec::new();
        let mut subject = Subject {
            case,
            kernel,
            with_points,
            call,
            yielding,
            footprint,
            outputs,
            raw,
            raw_stream,
            expected,
        };
        let digests = || {
            subject.reset(&stream)?;
            scheduler.synchronize()?;
            subject.original()?;
            subject.digests(&stream)
        };
        let (expected, again) = (digests()?, digests()?);
        subject.expected = expected;
        scheduler.synchronize()?;
        Ok((subject.expected == again).then_some(subject))
    }

    /// Runs the original by a raw launch, timed from the launch to the host's knowledge of its end. Nothing else runs.
    pub fn original(&self) -> Result<Duration> {
        let start = Instant::now();
        // SAFETY: no other work uses the buffers now.
        unsafe { self.raw.on(&self.raw_stream)? };
        spin_until(|| Ok(self.raw_stream.is_idle()?))?;
        Ok(start.elapsed())
    }

    /// The original, for launches in streams of the caller's.
    pub fn raw(&self) -> &Launch {
        &self.raw
    }

    /// Runs it through the scheduler, timed as [`original`](Subject::original) is.
    pub fn scheduled(
        &self,
        stream: &Stream,
        call: &Call<'static>,
        preemption: Preemption,
    ) -> Result<(Duration, LaunchReport)> {
        let call = call.clone().preemption(preemption);
        let start = Instant::now();
        let report = stream.launch(call)?.wait()?;
        let time = start.elapsed();
        ensure!(
            report.tasks == self.tasks(),
            "{} of {} block-tasks ran",
            report.tasks,
            self.tasks()
        );
        Ok((time, report))
    }

    /// The yield points of launches with these arguments.
    pub fn yield_points(&self) -> usize {
        self.yielding.as_ref().map_or(0, |_| self.with_points.yield_points())
    }

    pub fn tasks(&self) -> u32 {
        self.call.grid_dim().count() as u32
    }

    /// Poisons the outputs.
    pub fn reset(&self, stream: &Stream) -> Result<()> {
        for output in &self.outputs {
            stream.launch(output.reset.clone())?.wait()?;
        }
        Ok(())
    }

    fn digests(&self, stream: &Stream) -> Result<Vec<u64>> {
        let digest = |output: &Output| {
            let sum = || Ok::<u64, preempt::Error>(stream.download(&output.sum)?.wait()?[0]);
            let before = sum()?;
            stream.launch(output.digest.clone())?.wait()?;
            Ok(sum()?.wrapping_sub(before))
        };
        self.outputs.iter().map(digest).collect()
    }

    /// Whether the outputs are those of the original, bit for bit.
    pub fn is_equal(&self, stream: &Stream) -> Result<bool> {
        Ok(self.digests(stream)? == self.expected)
    }
}

/// What is passed for an argument.
enum Passed {
    Words(Buffer<u32>),
    Floats(Buffer<f32>),
    Written(Buffer<u32>),
    U32(u32),
    U64(u64),
    F32(f32),
    F64(f64),
}

impl Passed {
    fn push(&mut self, call: ForeignCall<'static>) -> ForeignCall<'static> {
        match self {
            Passed::Words(buffer) => call.read(&*buffer),
            Passed::Floats(buffer) => call.read(&*buffer),
            Passed::Written(buffer) => call.write(buffer),
            Passed::U32(value) => call.value(*value),
            Passed::U64(value) => call.value(*value),
            Passed::F32(value) => call.value(*value),
            Passed::F64(value) => call.value(*value),
        }
    }
}

/// Makes what is passed for an argument of a launch of this many blocks.
fn passed(
    scheduler: &Scheduler,
    argument: Argument,
    blocks: u32,
    seed: u32,
    outputs: &mut Vec<Output>,
) -> Result<Passed> {
    let stream = scheduler.stream(0);
    let grid = |words: u32, each: u32| words.div_ceil(each).max(1);
    Ok(match argument {
        Argument::Reads(Content::Floats, words) => {
            let mut buffer = scheduler.zeroed::<f32>(words as usize)?;
            let fill = fill_f32(seed, -1.0, 1.0, &mut buffer).grid(grid(words, BLOCK));
            stream.launch(fill)?.wait()?;
            Passed::Floats(buffer)
        }
        Argument::Reads(Content::Halves, words) => {
            let mut random = Random(u64::from(seed));
            let mut half = || half_of(random.below(1 << 16) as u16);
            let mut word = || u32::from(half()) | u32::from(half()) << 16;
            let period: Vec<u32> = (0..PERIOD).map(|_| word()).collect();
            let data: Vec<u32> = period.into_iter().cycle().take(words as usize).collect();
            Passed::Words(scheduler.buffer(&data)?)
        }
        Argument::Reads(content, words) => {
            let bound = if let Content::Below(bound) = content { bound } else { u32::MAX };
            let mut buffer = scheduler.zeroed::<u32>(words as usize)?;
            let fill = fill_u32(seed, bound, &mut buffer).grid(grid(words, BLOCK));
            stream.launch(fill)?.wait()?;
            Passed::Words(buffer)
        }
        Argument::Writes(words) | Argument::Adds(words) => {
            let before = if let Argument::Adds(_) = argument { 0 } else { POISON };
            let mut buffer = scheduler.zeroed::<u32>(words as usize)?;
            let mut sum = scheduler.zeroed::<u64>(1)?;
            let digest = digest_u32(&buffer, &mut sum).grid(grid(words, BLOCK * DIGESTED));
            let reset = set_u32(before, &mut buffer).grid(grid(words, BLOCK));
            outputs.push(Output { reset, digest, sum });
            Passed::Written(buffer)
        }
        Argument::Scratch(each) => {
            Passed::Written(scheduler.zeroed(blocks as usize * each as usize)?)
        }
        Argument::Sizes(sizes) => {
            let words = sizes.iter().flat_map(|&size| [size as u32, (size >> 32) as u32]);
            Passed::Words(scheduler.buffer(&words.collect::<Vec<_>>())?)
        }
        Argument::Null => Passed::U64(0),
        Argument::U32(value) => Passed::U32(value),
        Argument::U64(value) => Passed::U64(value),
        Argument::F32(value) => Passed::F32(value),
        Argument::F64(value) => Passed::F64(value),
    })
}

/// A half-precision number from -1 up to 1, with these bits as its sign and mantissa.
fn half_of(bits: u16) -> u16 {
    // An exponent of -1 to -4: numbers from 1/16 up to 1.
    let exponent = 14 - (bits >> 10 & 3);
    bits & 0x8000 | exponent << 10 | bits & 0x3FF
}

/// The time of a block-task while the device is full, from that of the kernel alone.
pub fn task_time(alone: Duration, tasks: u32, resident: u32) -> Duration {
    alone.mul_f64(f64::from(resident.min(tasks)) / f64::from(tasks.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_numbers_below_one() {
        for bits in 0..=u16::MAX {
            let half = half_of(bits);
            let exponent = half >> 10 & 31;
            assert!((11..15).contains(&exponent), "{half:x}");
        }
    }

    #[test]
    fn a_task_takes_the_time_of_its_wave() {
        let alone = Duration::from_micros(1000);
        assert_eq!(task_time(alone, 100, 10), Duration::from_micros(100));
        assert_eq!(task_time(alone, 10, 100), alone);
    }
}
