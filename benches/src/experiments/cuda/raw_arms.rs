//! The arms of `latency` that use raw driver calls.

use std::time::{Duration, Instant};

use anyhow::Result;
use preempt::Call;
use preempt_device::abi::SmRange;
use preempt_device::host::WriteArg;
use preempt_driver::{Array, Control, Gpu, Launch, Level, Module, Pinned, Stream};
use preempt_microkernels::{answer, spin, spin_yielding};
use preempt_test_kit::storm::Tally;

use super::{check_spins, ptx, spin_until};

/// Blocks of the urgent kernel.
pub const URGENT_BLOCKS: u32 = 8;

/// Time after which a kernel that was launched on an idle device runs.
const START: Duration = Duration::from_micros(200);

/// The victim's kernel: `spin`, or `spin_yielding`.
pub fn victim(
    yields: bool,
    ticks: u64,
    runs: impl WriteArg<'static, u32>,
    marks: impl WriteArg<'static, u32>,
    tasks: u32,
) -> Call<'static> {
    let call = match yields {
        true => spin_yielding(ticks, runs, marks),
        false => spin(ticks, runs, marks),
    };
    call.grid(tasks)
}

/// Streams, entries and launches of one case.
pub struct RawArms {
    /// Carries signals only.
    control_stream: Stream,
    batch_stream: Stream,
    /// A stream of the batch's priority.
    equal_stream: Stream,
    urgent_stream: Stream,
    control: Control,
    yields: bool,
    call: Call<'static>,
    plain: Launch,
    preemptible: Launch,
    /// Blocks of the victim that fill the device.
    pub blocks: u32,
    sms: u32,
    /// SMs that the urgent kernel needs.
    needed: u32,
    runs: Array<u32>,
    marks: Array<u32>,
    answer: Launch,
    done: Pinned<u32>,
}

/// Times from the signal on.
#[derive(Clone, Copy)]
pub struct Times {
    /// Time to the urgent kernel's answers on the host.
    pub urgent: Duration,
    /// Time to the post of the victim's last block.
    pub drained: Duration,
}

impl RawArms {
    /// Loads and allocates everything, when nothing runs. The victim's block-tasks take `length`, and
    /// the victim at least `time`.
    pub fn new(gpu: Gpu, length: Duration, yields: bool, time: Duration) -> Result<RawArms> {
        let control_stream = Stream::new(Level::Highest)?;
        let (batch_stream, equal_stream) =
            (Stream::new(Level::Lowest)?, Stream::new(Level::Lowest)?);
        let urgent_stream = Stream::new(Level::Highest)?;
        let mut control = Control::new(gpu)?;
        let sms = gpu.sms()?;
        let ticks = gpu.ticks(length)?;

        let mut done = Pinned::filled(0u32, URGENT_BLOCKS as usize)?;
        let answer = answer(1, &mut done).grid(URGENT_BLOCKS);
        // The kernel can be seen in a call alone.
        let (mut runs, mut marks) = (Array::zeroed(1)?, Array::zeroed(1)?);
        let kernel = victim(yields, ticks, &mut runs, &mut marks, 1).kernel();
        let module = Module::load(ptx()?, &[kernel, answer.kernel()])?;

        let preemptible = module.preemptible(kernel)?;
        let on_each = |block| preemptible.resident(block);
        let blocks = sms * kernel.block.map_or(Ok(1), on_each)?;
        let tasks = blocks * time.as_nanos().div_ceil(length.as_nanos()) as u32;
        (runs, marks) = (Array::zeroed(tasks as usize)?, Array::zeroed(tasks as usize)?);
        let call = victim(yields, ticks, &mut runs, &mut marks, tasks);
        let plain = Launch::plain(module.plain(kernel)?, call.clone());
        let cohort = control.start(&control_stream, &call, blocks, true)?;
        let preemptible = Launch::preemptible(preemptible, call.clone(), cohort);

        let urgent = answer.kernel();
        let on_each = |block| module.preemptible(urgent)?.resident(block);
        let needed = URGENT_BLOCKS.div_ceil(urgent.block.map_or(Ok(1), on_each)?.max(1));
        let answer = Launch::plain(module.plain(urgent)?, answer);
        control_stream.synchronize()?;
        Ok(RawArms {
            control_stream,
            batch_stream,
            equal_stream,
            urgent_stream,
            control,
            yields,
            call,
            plain,
            preemptible,
            blocks,
            sms,
            needed,
            runs,
            marks,
            answer,
            done,
        })
    }

    /// The floor: a signal and a launch, while the victim runs in its preemptible entry. The victim
    /// leaves the SMs that the urgent kernel needs, or all. `None` if the victim was over before.
    pub fn floor(&mut self, all: bool, pause: Duration) -> Result<Option<Times>> {
        self.clear()?;
        let cohort = self.control.start(&self.batch_stream, &self.call, self.blocks, true)?;
        self.batch_stream.synchronize()?;
        self.preemptible.set_cohort(cohort);
        // SAFETY: the arguments are this case's, and no other work uses them until the cohort is out; the
        // control block is reset.
        unsafe { self.preemptible.on(&self.batch_stream)? };
        std::thread::sleep(START + pause);

        let keep = if all { SmRange::EMPTY } else { SmRange::new(self.needed, self.sms) };
        let met = self.control.out().is_none();
        let start = Instant::now();
        self.control.signal(&self.control_stream, keep)?;
        // SAFETY: no other work uses what it writes.
        unsafe { self.answer.on(&self.urgent_stream)? };
        let (mut urgent, mut drained) = (None, None);
        spin_until(|| {
            if drained.is_none() && self.control.out().is_some() {
                drained = Some(start.elapsed());
            }
            if urgent.is_none() && self.is_answered() {
                urgent = Some(start.elapsed());
            }
            Ok(urgent.is_some() && (drained.is_some() || !all))
        })?;
        self.control.signal(&self.control_stream, SmRange::EMPTY)?;
        spin_until(|| Ok(self.control.out().is_some()))?;
        self.synchronize()?;
        let times =
            Times { urgent: urgent.unwrap_or_default(), drained: drained.unwrap_or_default() };
        Ok(met.then_some(times))
    }

    /// The plain entries on streams of the driver; with `priority`, the urgent one's is the highest.
    /// From the urgent launch to its answers on the host; `None` if the victim was over before.
    pub fn plain(&mut self, priority: bool, pause: Duration) -> Result<Option<Duration>> {
        self.clear()?;
        // SAFETY: the arguments are this case's, and no other work uses them until the kernel has ended.
        unsafe { self.plain.on(&self.batch_stream)? };
        std::thread::sleep(START + pause);

        let stream = if priority { &self.urgent_stream } else { &self.equal_stream };
        let met = !self.batch_stream.is_idle()?;
        let start = Instant::now();
        // SAFETY: no other work uses what it writes.
        unsafe { self.answer.on(stream)? };
        spin_until(|| Ok(self.is_answered()))?;
        let time = start.elapsed();
        self.synchronize()?;
        Ok(met.then_some(time))
    }

    /// The urgent kernel on an idle GPU: from its launch to its answers on the host.
    pub fn idle(&mut self, pause: Duration) -> Result<Duration> {
        self.clear()?;
        std::thread::sleep(START + pause);
        let start = Instant::now();
        // SAFETY: no other work uses what it writes.
        unsafe { self.answer.on(&self.urgent_stream)? };
        spin_until(|| Ok(self.is_answered()))?;
        let time = start.elapsed();
        self.synchronize()?;
        Ok(time)
    }

    /// Clears the results of the last kernels.
    fn clear(&mut self) -> Result<()> {
        for index in 0..URGENT_BLOCKS as usize {
            self.done.set(index, 0);
        }
        for array in [&self.runs, &self.marks] {
            // SAFETY: nothing runs.
            unsafe { self.batch_stream.fill(array.address(), 0, array.len())? };
        }
        self.batch_stream.synchronize()?;
        Ok(())
    }

    fn is_answered(&self) -> bool {
        (0..URGENT_BLOCKS as usize).all(|index| self.done.get(index) == 1)
    }

    fn synchronize(&self) -> Result<()> {
        let streams =
            [&self.control_stream, &self.batch_stream, &self.equal_stream, &self.urgent_stream];
        streams.into_iter().try_for_each(|stream| Ok(stream.synchronize()?))
    }

    /// Compares the last victim's results, in the floor with its post.
    pub fn check(&self, tally: &mut Tally, floor: bool) -> Result<()> {
        let (runs, marks) = (self.runs.read()?, self.marks.read()?);
        let posted = self.control.out().unwrap_or_default();
        let (what, done) = match floor {
            true => ("the victim of the floor", posted),
            false => ("the victim on streams", marks.len() as u32),
        };
        check_spins(tally, what, (&runs, &marks), done, self.yields);
        Ok(())
    }
}
