//! A program's dominating launch at full size, with an entry for each way to run it, by raw launches.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use preempt::{Call, Preemption, Scheduler};
use preempt_device::abi::SmRange;
use preempt_device::host::{Dim3, Kernel};
use preempt_driver::{Control, Event, Gpu, KernelEntry, Launch, Level, Module, Pinned, Stream};
use preempt_flep_device::flep;
use preempt_workloads::{Definition, Program, Size};

use super::super::{BASELINES, PROGRAMS};
use super::spin_until;

/// The workload kernels in the form of each arm.
pub struct Modules {
    suite: Module,
    flep: Module,
    sliced: Module,
}

impl Modules {
    /// Loads everything, when nothing runs.
    pub fn load(scheduler: &Scheduler) -> Result<Modules> {
        let mut kernels: Vec<&'static Kernel> = Vec::new();
        for definition in preempt_workloads::every() {
            let program = (definition.build)(scheduler.into(), Size::Reduced, 1)?;
            kernels.extend(program.steps.iter().map(Call::kernel));
        }
        kernels.sort_by_key(|kernel| kernel.name);
        kernels.dedup_by_key(|kernel| kernel.name);
        let without = "this build found no compiler for PTX, so it has no kernels for a GPU";
        let suite = PROGRAMS.ptx().context(without)?;
        let flep = BASELINES.ptx().context(without)?;
        Ok(Modules {
            suite: Module::load(suite, &kernels)?,
            flep: Module::load(flep, &kernels)?,
            sliced: Module::load_sliced(suite, &kernels)?,
        })
    }
}

/// The resources that an entry takes, and the blocks that an SM then holds.
#[derive(Clone, Copy)]
pub struct Demand {
    pub registers: u32,
    pub local_bytes: u32,
    pub blocks_per_sm: u32,
}

impl Demand {
    fn of(entry: KernelEntry, block: Dim3) -> Result<Demand> {
        Ok(Demand {
            registers: entry.registers()?,
            local_bytes: entry.local_bytes()?,
            blocks_per_sm: entry.resident(block)?,
        })
    }
}

/// See the module.
pub struct Subject {
    definition: &'static Definition,
    program: Program,
    gpu: Gpu,
    call: Call<'static>,
    stream: Stream,
    /// Carries signals only.
    control_stream: Stream,
    /// Streams for slices in turn.
    slice_streams: [Stream; 2],
    events: [Event; 2],
    control: Control,
    flag: Pinned<u64>,
    sms: u32,
    before: Vec<Launch>,
    after: Vec<Launch>,
    plain: Launch,
    preemptible: Launch,
    flep: Launch,
    sliced: Launch,
    pub plain_demand: Demand,
    pub demand: Demand,
    pub flep_demand: Demand,
}

impl Subject {
    /// Allocates the program and makes its inputs.
    pub fn new(
        scheduler: &Scheduler,
        gpu: Gpu,
        modules: &Modules,
        definition: &'static Definition,
        size: Size,
        seed: u32,
    ) -> Result<Subject> {
        let program = (definition.build)(scheduler.into(), size, seed)?;
        let stream = scheduler.stream(0);
        for call in &program.setup {
            stream.launch(call.clone())?.wait()?;
        }
        scheduler.synchronize()?;
        let call = program.steps[program.dominant].clone();
        let kernel = call.kernel();
        let block = kernel.block.context("a kernel without a block size")?;
        let plain_of = |call: &Call<'static>| -> Result<Launch> {
            Ok(Launch::plain(modules.suite.plain(call.kernel())?, call.clone()))
        };
        let (before, after) = program.steps.split_at(program.dominant);
        let before = before.iter().map(plain_of).collect::<Result<_>>()?;
        let after = after[1..].iter().map(plain_of).collect::<Result<_>>()?;
        let (preemptible, plain) =
            (modules.suite.preemptible(kernel)?, modules.suite.plain(kernel)?);
        let flep = modules.flep.preemptible(kernel)?;
        let sms = gpu.sms()?;
        let raw_stream = Stream::new(Level::Lowest)?;
        let mut control = Control::new(gpu)?;
        let cohort = control.start(&raw_stream, &call, 1, true)?;
        raw_stream.synchronize()?;
        Ok(Subject {
            definition,
            gpu,
            plain: Launch::plain(plain, call.clone()),
            preemptible: Launch::preemptible(preemptible, call.clone(), cohort),
            flep: Launch::preemptible(flep, call.clone(), cohort),
            sliced: Launch::sliced(modules.sliced.plain(kernel)?, call.clone()),
            plain_demand: Demand::of(plain, block)?,
            demand: Demand::of(preemptible, block)?,
            flep_demand: Demand::of(flep, block)?,
            call,
            stream: raw_stream,
            control_stream: Stream::new(Level::Highest)?,
            slice_streams: [Stream::new(Level::Lowest)?, Stream::new(Level::Lowest)?],
            events: [Event::new()?, Event::new()?],
            control,
            flag: Pinned::filled(0, 1)?,
            sms,
            before,
            after,
            program,
        })
    }

    /// Block-tasks of the launch.
    pub fn tasks(&self) -> u32 {
        self.call.grid_dim().count() as u32
    }

    fn barrier(&self) -> bool {
        // Of the kernels here, those with barriers use shared memory.
        self.call.kernel().shared_bytes > 0
    }

    /// The kernel's name.
    pub fn kernel(&self) -> &'static str {
        self.call.kernel().name
    }

    /// Whether the kernel has yield points.
    pub fn yields(&self) -> bool {
        self.call.kernel().yields
    }

    /// Makes the launch's input.
    fn prepare(&self) -> Result<()> {
        // SAFETY: no other work uses the program's buffers.
        self.before.iter().try_for_each(|launch| unsafe { launch.on(&self.stream) })?;
        Ok(self.stream.synchronize()?)
    }

    /// Runs the steps that follow the launch.
    fn finish(&self) -> Result<()> {
        // SAFETY: no other work uses the program's buffers.
        self.after.iter().try_for_each(|launch| unsafe { launch.on(&self.stream) })?;
        Ok(self.stream.synchronize()?)
    }

    /// Resets the words for the next launch of the preemptible entry, or FLEP's.
    fn arm(&mut self, flep: Option<(u8, u32)>) -> Result<()> {
        let per_sm = flep.map_or(self.demand, |_| self.flep_demand).blocks_per_sm;
        let blocks = (self.sms * per_sm).min(self.tasks());
        let barrier = self.barrier();
        let cohort = self.control.start(&self.stream, &self.call, blocks, barrier)?;
        match flep {
            None => self.preemptible.set_cohort(cohort),
            Some((slot, amortize)) => {
                self.flag.set(0, 0);
                let cohort = Control::with_flag(cohort, slot, amortize, &self.flag);
                self.flep.set_cohort(cohort);
            }
        }
        Ok(self.stream.synchronize()?)
    }

    fn between_events(&self, launch: &Launch) -> Result<Duration> {
        let [start, end] = &self.events;
        self.stream.record(start)?;
        // SAFETY: no other work uses the buffers now.
        unsafe { launch.on(&self.stream)? };
        self.stream.record(end)?;
        spin_until(|| Ok(self.stream.is_idle()?))?;
        Ok(end.since(start)?)
    }

    /// Runs the plain entry, timed between events.
    pub fn plain(&mut self) -> Result<Duration> {
        self.prepare()?;
        // Without effect, so that the same comes before each launch.
        self.arm(None)?;
        self.between_events(&self.plain)
    }

    /// Runs the plain entry, timed from the launch to the host's knowledge of its end.
    pub fn plain_done(&mut self) -> Result<Duration> {
        self.prepare()?;
        let start = Instant::now();
        // SAFETY: no other work uses the buffers now.
        unsafe { self.plain.on(&self.stream)? };
        spin_until(|| Ok(self.stream.is_idle()?))?;
        Ok(start.elapsed())
    }

    /// Runs the preemptible entry, timed between events; also returns its amortizing factor.
    pub fn preemptible(&mut self) -> Result<(Duration, u32)> {
        self.prepare()?;
        self.arm(None)?;
        let time = self.between_events(&self.preemptible)?;
        Ok((time, self.control.posted().map_or(0, |posted| posted.amortize)))
    }

    /// Runs the launch through the scheduler, timed from the launch to the host's knowledge of its end; also returns
    /// whether it was a plain grid.
    pub fn scheduled(
        &mut self,
        stream: &preempt::Stream,
        preemption: Preemption,
    ) -> Result<(Duration, bool)> {
        self.prepare()?;
        let call = self.call.clone().preemption(preemption);
        let start = Instant::now();
        let report = stream.launch(call)?.wait()?;
        let time = start.elapsed();
        anyhow::ensure!(report.tasks == self.tasks(), "{} block-tasks ran", report.tasks);
        Ok((time, report.plain))
    }

    /// Runs FLEP's loop with its flag in memory of the host, timed between events.
    pub fn flep(&mut self) -> Result<Duration> {
        self.prepare()?;
        self.arm(Some((flep::FLEP, self.definition.flep_amortize)))?;
        self.between_events(&self.flep)
    }

    /// The longest block-task, while the device is full.
    pub fn longest(&mut self) -> Result<Duration> {
        self.prepare()?;
        self.arm(Some((flep::LONGEST, 1)))?;
        self.between_events(&self.flep)?;
        Ok(self.gpu.time(self.control.last_left()?)?)
    }

    /// Runs slices of `blocks` blocks, two of them in flight, timed from the first launch to the host's knowledge of
    /// the last one's end. After the time of `stop_after`, no further slices are launched, and the time counts from
    /// there.
    pub fn slices(
        &mut self,
        blocks: u32,
        stop_after: Option<Duration>,
    ) -> Result<Option<Duration>> {
        self.prepare()?;
        let (tasks, mut first) = (self.tasks(), 0);
        let start = Instant::now();
        let mut stopped = None;
        for stream in self.slice_streams.iter().cycle() {
            spin_until(|| Ok(stream.is_idle()?))?;
            if first >= tasks {
                break;
            }
            if stop_after.is_some_and(|after| start.elapsed() >= after) {
                stopped = Some(Instant::now());
                break;
            }
            let next = blocks.min(tasks - first);
            self.sliced.set_slice(first, next);
            // SAFETY: no other work uses the buffers now.
            unsafe { self.sliced.on(stream)? };
            first += next;
        }
        let is_idle = || Ok(self.slice_streams[0].is_idle()? && self.slice_streams[1].is_idle()?);
        spin_until(is_idle)?;
        Ok(match stop_after {
            None => Some(start.elapsed()),
            Some(_) => stopped.map(|stopped| stopped.elapsed()),
        })
    }

    /// Takes all SMs from the preemptible entry `after` its launch, by a stream write. Timed from the signal to the
    /// host's knowledge that the last block is out; `None` if it was out before.
    pub fn stop(&mut self, after: Duration) -> Result<Option<Duration>> {
        self.prepare()?;
        self.arm(None)?;
        let launched = Instant::now();
        // SAFETY: no other work uses the buffers now.
        unsafe { self.preemptible.on(&self.stream)? };
        while launched.elapsed() < after {
            std::hint::spin_loop();
        }
        let is_over = self.control.out().is_some();
        let start = Instant::now();
        self.control.signal(&self.control_stream, SmRange::EMPTY)?;
        spin_until(|| Ok(self.control.out().is_some()))?;
        let took = start.elapsed();
        let done = self.control.out().unwrap_or_default();
        self.stream.synchronize()?;
        self.control_stream.synchronize()?;
        Ok((!is_over && done < self.tasks()).then_some(took))
    }

    /// Stops FLEP's loop by its flag `after` its launch, and returns the time that it took.
    pub fn flep_stop(&mut self, after: Duration) -> Result<Option<Duration>> {
        self.prepare()?;
        self.arm(Some((flep::FLEP, self.definition.flep_amortize)))?;
        let launched = Instant::now();
        // SAFETY: no other work uses the buffers now.
        unsafe { self.flep.on(&self.stream)? };
        while launched.elapsed() < after {
            std::hint::spin_loop();
        }
        let is_over = self.stream.is_idle()?;
        let start = Instant::now();
        self.flag.set(0, 1);
        spin_until(|| Ok(self.stream.is_idle()?))?;
        Ok((!is_over).then(|| start.elapsed()))
    }

    /// Blocks that fill the device in plain form.
    pub fn wave(&self) -> u32 {
        (self.sms * self.plain_demand.blocks_per_sm).min(self.tasks())
    }

    /// A digest of each output after all steps that follow the launch.
    pub fn digests(&self, stream: &preempt::Stream) -> Result<Vec<u64>> {
        self.finish()?;
        let outputs = self.program.outputs.iter();
        Ok(outputs.map(|output| output.digest(stream)).collect::<Result<_, _>>()?)
    }

    /// Overwrites the outputs.
    pub fn poison(&self, stream: &preempt::Stream) -> Result<()> {
        for output in &self.program.outputs {
            stream.launch(output.poison.clone())?.wait()?;
        }
        Ok(())
    }
}
