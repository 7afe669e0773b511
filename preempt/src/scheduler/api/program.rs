//! Programs: launches and copies that are recorded once, and launched as one operation as often as one likes.

use std::fmt;
use std::ptr;
use std::sync::Arc;

use preempt_device::host::{Access, Call, HasGrid, Preemption};

use self::builder::{CallUse, Resolved, check, resolve};
use super::handle::{Gives, Handle};
use super::input::Readers;
use super::stream::Stream;
use crate::device::{ProgramLaunch, Step};
use crate::engine::LaunchReport;
use crate::error::{Error, ProgramError};
use crate::scheduler::Shared;
use crate::scheduler::runtime::armed::Armed;
use crate::scheduler::runtime::core::Work;
use crate::scheduler::runtime::program::ProgramJob;
use crate::sync::{Mutex, lock};
use crate::vocabulary::{BufferId, OpKey};

mod builder;

pub use builder::ProgramBuilder;

/// Launches, copies and fills that were recorded once, and are launched as one operation: one handle, one report, one
/// entry in the timeline. [`Stream::program`] records them.
///
/// Grids, arguments and kernels are checked when they are recorded. On a GPU a [plain](Program#preemption) program of several
/// calls is a CUDA graph, so that many short kernels cost one call of the driver, and follow each other without the host. In a
/// preemptible one, up to 31 kernels in a row are such a call, which the driver is given while those before them run.
///
/// ```
/// # use preempt_device::prelude::*;
/// # #[preemptible(block = 32)]
/// # fn add(n: u32, x: SliceMut<u32>) {
/// #     let i = thread::index_1d() as usize;
/// #     if i < x.len() {
/// #         // SAFETY: each thread writes its own element.
/// #         unsafe { x.write(i, x.read(i) + n) }
/// #     }
/// # }
/// let scheduler = preempt::Scheduler::builder().build()?;
/// let stream = scheduler.stream(0);
/// let (mut x, mut sum) = (scheduler.zeroed::<u32>(4)?, scheduler.zeroed::<u32>(4)?);
///
/// let mut first = None;
/// let mut step = stream.program("step", |program| {
///     program.fill(&mut x, 7)?;
///     first = Some(program.launch(add(1, &mut x).threads(4))?);
///     program.launch(add(10, &mut x).threads(4))?;
///     program.copy_buffer(&x, &mut sum)
/// })?;
///
/// let report = stream.launch_program(&step)?.wait()?;
/// assert_eq!(report.tasks, 2);
/// assert_eq!(stream.download(&sum)?.wait()?, [18; 4]);
///
/// // Other arguments for the first launch, from now on.
/// step.set(first.expect("recorded"), add(2, &mut x).threads(4))?;
/// step.launch()?.wait()?;
/// assert_eq!(stream.download(&sum)?.wait()?, [19; 4]);
/// # Ok::<(), preempt::Error>(())
/// ```
///
/// # Order
///
/// A launch of a program uses every range that one of its calls uses. So it waits for what uses them before it, and what
/// uses them later waits for it, on any stream; launches of the same program are no exception. Within a program, each
/// call waits for the one before it, as in a stream.
///
/// The program keeps its buffers, also after they were dropped elsewhere. They were made by the scheduler of the
/// program, and their contents are moved there if another device has written them.
///
/// # Preemption
///
/// A program is preempted as its [`Preemption`] says, which is the scheduler's unless it has
/// [its own](ProgramBuilder::preemption). What a call says of its own preemption has no effect.
///
/// | | |
/// | --- | --- |
/// | [`Preemptible`](Preemption::Preemptible) | Each kernel runs in its preemptible entry. An urgent launch takes the SMs of the program in each of its kernels and between them, and then what is left goes on. It is cancelled as promptly as a launch. |
/// | [`Plain`](Preemption::Plain) | On a GPU it is one CUDA graph, or a launch if it is one kernel, and runs to its end once it has started. Blocks of more urgent launches go first where both wait for room. It is for kernels that are short together. Amortizing factors have no effect. |
/// | [`Auto`](Preemption::Auto) | It is plain where each of its kernels would be as a launch of its own, and where the program is known to take no longer than the [limit](crate::SchedulerBuilder::longest_plain). |
///
/// A preemptible program that waits is cancelled as a whole. If it runs, its handle reports the block-tasks that were done.
///
/// # Failure
///
/// If a call fails, the program fails, with an error that says which call it was, and all that the program was to write is
/// lost. Calls behind it do not run, or write only what is lost: in a preemptible program the device may have gone on to
/// them before the failure was known. A fault on a GPU ends the device's context, as for any kernel. The driver does
/// not say which kernel it was; a panic does.
pub struct Program {
    stream: Stream,
    name: &'static str,
    id: u64,
    launch: Arc<ProgramLaunch>,
    preemption: Preemption,
    alone: Arc<[Option<Arc<ProgramLaunch>>]>,
    last: Arc<Mutex<Option<OpKey>>>,
    calls: Vec<CallUse>,
    resolved: Resolved,
    /// The launch that was armed last.
    armed: Mutex<Option<ArmedLaunch>>,
    is_of_runs: bool,
    /// Of its inputs, if it has any.
    readers: Option<Readers>,
}

/// A launch that may still be released.
struct ArmedLaunch {
    armed: Arc<Armed>,
    handle: Handle<LaunchReport>,
}

impl ArmedLaunch {
    /// Takes it back, unless it was released.
    fn disarm(self) {
        let ArmedLaunch { armed, handle } = self;
        if armed.disarm() {
            handle.shared().disarmed(handle.completion().clone());
        }
    }
}

/// The place of a launch in its program, for [`Program::set`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ProgramCall {
    program: u64,
    index: usize,
}

impl Stream {
    /// Launches a program of this stream's scheduler, in the order of this stream, with the arguments that it has now.
    ///
    /// The report counts the block-tasks of all its kernels.
    ///
    /// # Errors
    ///
    /// [`ProgramError::OtherScheduler`],
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped), or errors of moving the contents of
    /// [buffers](crate::Buffer#several-devices) to this device. The handle gives
    /// [`LaunchError::KernelFailed`](crate::error::LaunchError::KernelFailed) with the program's name if a call fails.
    pub fn launch_program(&self, program: &Program) -> Result<Handle<LaunchReport>, Error> {
        if !Arc::ptr_eq(self.shared(), program.stream.shared()) {
            return Err(Error::Program(ProgramError::OtherScheduler { program: program.name }));
        }
        if program.resolved.has_borrowed {
            self.shared().device.inner.await_unseen()?;
        }
        let launch = self.submit_program(program, None)?;
        program.reads(&launch);
        Ok(launch)
    }

    fn submit_program(
        &self,
        program: &Program,
        armed: Option<Arc<Armed>>,
    ) -> Result<Handle<LaunchReport>, Error> {
        let &Program { name, ref launch, preemption, ref alone, ref resolved, .. } = program;
        let work = Work::Program(Box::new(ProgramJob {
            name,
            program: launch.clone(),
            owners: resolved.owners.clone(),
            spec: resolved.spec,
            specs: resolved.specs.clone(),
            preemption,
            is_of_others: resolved.is_of_others,
            last: program.last.clone(),
            alone: alone.clone(),
            armed,
            plain: preemption == Preemption::Plain,
            due: self.due(),
        }));
        self.submit(name, resolved.uses.clone(), work, Gives::REPORT)
    }
}

impl Program {
    /// The program's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Has it launched by runs of a pool's tasks alone, which see what becomes of it.
    pub(crate) fn keep_to_runs(&mut self) {
        self.is_of_runs = true;
    }

    /// That of its scheduler.
    pub(super) fn shared(&self) -> &Shared {
        self.stream.shared()
    }

    /// Its number, which no other program has.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// The launches that may read its inputs; `None` if it has none.
    pub(super) fn readers(&self) -> Option<&Readers> {
        self.readers.as_ref()
    }

    /// Notes a launch, which reads the inputs until it is over.
    fn reads(&self, launch: &Handle<LaunchReport>) {
        if let Some(readers) = &self.readers {
            readers.add(launch.untyped());
        }
    }

    fn check_runs(&self) -> Result<(), Error> {
        match self.is_of_runs {
            true => Err(Error::Program(ProgramError::OfRuns { program: self.name })),
            false => Ok(()),
        }
    }

    /// The buffers that it writes; `None` for memory that no buffer has.
    pub(crate) fn written(&self) -> impl Iterator<Item = Option<BufferId>> {
        let written = self.resolved.uses.iter().filter(|used| used.access == Access::Write);
        written.map(|used| match used.buffer {
            BufferId::Borrowed(_) => None,
            buffer => Some(buffer),
        })
    }

    /// Says that a launch of the program is on its way, so that it starts sooner: what decides about it is decided ahead, and
    /// its first kernel waits on the device. The [launch](Program::launch) is then a store to memory that the device reads,
    /// and the kernel starts without the driver and the host. Returns at once.
    ///
    /// It is a hint. The program counts as launched when it is launched, and whatever happens before, the launch does what
    /// it would have done. Nothing of an armed program runs before.
    ///
    /// Its [inputs](crate::ProgramInput) may be [written](Program::write) until it is launched.
    ///
    /// An armed program is disarmed
    /// - after [a millisecond](crate::SchedulerBuilder::armed_for) on the device;
    /// - by any other operation on its stream or its buffers, also by a launch of the program on another stream: so what
    ///   the program is to read comes before;
    /// - by [`set`](Program::set), and where the program is dropped.
    ///
    /// Nothing is made ahead for a [plain](Program#preemption) program, one that begins with a copy, a fill or captured
    /// work, and one with borrowed memory; nor under a policy that [cannot foresee](crate::policy::Policy::foresee) its
    /// plan. Nor is it while more urgent launches have the device, as long as operations before it are not over, or where a
    /// program that was disarmed before still waits for room to leave; it is then once they are.
    ///
    /// # Costs
    ///
    /// Until it is launched, a block of one warp reads the host's memory. On a GPU it needs room beside the blocks that run.
    /// From the first call on, launches leave room for it where that makes them a fiftieth longer at most. Each armed program
    /// takes the place of a stream whose kernels are queued behind each other. Calls of the driver that wait for the
    /// device may take as long as the program stays armed.
    ///
    /// ```
    /// # use preempt_device::prelude::*;
    /// # #[preemptible(block = 32)]
    /// # fn add(n: u32, x: SliceMut<u32>) {
    /// #     let i = thread::index_1d() as usize;
    /// #     if i < x.len() {
    /// #         // SAFETY: each thread writes its own element.
    /// #         unsafe { x.write(i, x.read(i) + n) }
    /// #     }
    /// # }
    /// let scheduler = preempt::Scheduler::builder().build()?;
    /// let stream = scheduler.stream(1);
    /// let mut x = scheduler.zeroed::<u32>(4)?;
    /// let answer = stream.program("answer", |program| {
    ///     program.launch(add(1, &mut x).threads(4)).map(drop)
    /// })?;
    /// // The header of a request is there, and the rest is on its way.
    /// answer.arm()?;
    /// // The whole request is there.
    /// answer.launch()?.wait()?;
    /// assert_eq!(stream.download(&x)?.wait()?, [1; 4]);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Stream::launch_program`]; [`ProgramError::OfRuns`] for a program that a run of a pool's task has recorded.
    pub fn arm(&self) -> Result<(), Error> {
        self.check_runs()?;
        if lock(&self.armed).as_ref().is_some_and(|last| last.armed.waits()) {
            return Ok(());
        }
        let begins_with_a_launch = self.launch.steps.first().is_some_and(Step::has_cohorts);
        let is_plain = self.preemption == Preemption::Plain;
        if is_plain || !begins_with_a_launch || self.resolved.has_borrowed {
            return Ok(());
        }
        let device = self.stream.shared().device.inner.clone();
        device.backend.expect_gates();
        let armed = Arc::new(Armed::new(device));
        let handle = self.stream.submit_program(self, Some(armed.clone()))?;
        // Without the lock until here, because the core may have called wakers of the application.
        let before = lock(&self.armed).replace(ArmedLaunch { armed, handle });
        before.into_iter().for_each(ArmedLaunch::disarm);
        Ok(())
    }

    /// Takes back that a launch is on its way, if it was armed.
    fn disarm(&self) {
        let armed = lock(&self.armed).take();
        armed.into_iter().for_each(ArmedLaunch::disarm);
    }

    /// Launches the program on the stream that recorded it, as [`Stream::launch_program`] does; if it is
    /// [armed](Program::arm), without the driver. What was submitted before is taken in first: an armed launch waits for the
    /// thread that takes it in, which may be in a call of the driver, for [a millisecond](crate::SchedulerBuilder::armed_for)
    /// at most.
    ///
    /// # Errors
    ///
    /// As for [`Stream::launch_program`]; [`ProgramError::OfRuns`] for a program that a run of a pool's task has recorded.
    pub fn launch(&self) -> Result<Handle<LaunchReport>, Error> {
        self.check_runs()?;
        // The lock is let go before the core may run.
        let armed = lock(&self.armed).take();
        if let Some(ArmedLaunch { armed, handle }) = armed {
            let shared = self.stream.shared();
            // What was submitted before, and uses its stream or buffers, has disarmed it once the core knows of that.
            if armed.waits() && shared.catches_up() && armed.release() {
                // It may run already.
                self.reads(&handle);
                shared.release(handle.completion().clone());
                return Ok(handle);
            }
            ArmedLaunch { armed, handle }.disarm();
        }
        self.stream.launch_program(self)
    }

    /// Replaces a recorded launch by another call of the same kernel: with other arguments, buffers or another grid.
    ///
    /// Launches of the program that were submitted before keep the arguments that they had, also if they have not
    /// started.
    ///
    /// # Errors
    ///
    /// What is wrong with the call, as for [`ProgramBuilder::launch`]; [`ProgramError::OtherProgram`];
    /// [`ProgramError::OtherKernel`]. The program stays as it is then.
    pub fn set<G: HasGrid>(
        &mut self,
        place: ProgramCall,
        call: Call<'static, G>,
    ) -> Result<(), Error> {
        let (program, call) = (self.name, call.with_its_grid());
        let step = self.launch.steps.get(place.index).filter(|_| place.program == self.id);
        let Some(Step::Launch { launch, .. }) = step else {
            return Err(Error::Program(ProgramError::OtherProgram { program }));
        };
        let (recorded, given) = (launch.kernel, call.kernel());
        if !ptr::eq(recorded, given) {
            let (recorded, given) = (recorded.name, given.name);
            return Err(Error::Program(ProgramError::OtherKernel { program, recorded, given }));
        }
        let (launch, used) = check(&self.stream, call, self.id)?;
        self.disarm();
        // Launches under way have the steps as they were.
        let program = Arc::make_mut(&mut self.launch);
        program.version += 1;
        program.steps[place.index] = Step::Launch { launch, version: program.version };
        self.calls[place.index] = used;
        self.resolved = resolve(&self.stream, &self.launch.steps, &self.calls);
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.disarm();
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("name", &self.name)
            .field("calls", &self.calls.len())
            .finish_non_exhaustive()
    }
}
