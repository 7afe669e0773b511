//! Recording a program: each call is checked and resolved, and the device makes ready what it launches.

use std::error::Error as StdError;
use std::fmt;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use preempt_device::host::{Access, Call, HasGrid, Preemption};
use preempt_device::kernel::KernelArg;

use super::{Program, ProgramCall};
use crate::device::{
    Captured, Copy, CopyKind, KernelLaunch, OwnedCopy, Owner, ProgramLaunch, RawStream, Rows, Step,
};
use crate::engine::{LaunchSpec, MAX_CALLS, Use, merged, of_unknown_size, whole};
use crate::error::{ArgumentError, Error, ProgramError, caught};
use crate::scheduler::api::input::Readers;
use crate::scheduler::api::slice::{DeviceSlice, DeviceSliceMut};
use crate::scheduler::api::stream::{COPY, Checked, CopySide, Stream, check_lengths, side};
use crate::scheduler::runtime::memory::Memory;
use crate::scheduler::runtime::opaque::Opaque;
use crate::sync::Mutex;
use crate::vocabulary::BufferId;

/// Bytes, at most, of a value that memory is filled with. A graph writes each word of the first element by itself, which
/// takes as long as a call.
const MAX_VALUE: usize = 1024;

/// Numbers for programs, which no other program of the process has.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// What a call uses.
pub(super) struct CallUse {
    pub uses: Vec<Use>,
    /// `None` for a copy.
    pub spec: Option<LaunchSpec>,
}

/// What follows from all calls together.
pub(super) struct Resolved {
    pub uses: Vec<Use>,
    pub spec: LaunchSpec,
    /// Of each call.
    pub specs: Arc<[Option<LaunchSpec>]>,
    /// The memory of its buffers, each once.
    pub owners: Arc<[Owner]>,
    pub has_borrowed: bool,
    pub is_of_others: bool,
}

/// Records the calls of a [`Program`], in the order in which they will run; [`Stream::program`] makes one.
pub struct ProgramBuilder<'a> {
    stream: &'a Stream,
    name: &'static str,
    id: u64,
    steps: Vec<Step>,
    calls: Vec<CallUse>,
    preemption: Preemption,
    has_inputs: bool,
}

impl Stream {
    /// Records a program: `record` names its calls, none of which runs before the program is launched.
    ///
    /// This may take a while, and may wait for kernels that run, so it belongs where an application prepares its work. The
    /// name is for errors, the timeline and statistics. [`Program`] has an example.
    ///
    /// # Errors
    ///
    /// What `record` returns, [`ProgramError::Empty`], or an error of the driver, which makes the program ready to be
    /// launched.
    pub fn program(
        &self,
        name: &'static str,
        record: impl FnOnce(&mut ProgramBuilder<'_>) -> Result<(), Error>,
    ) -> Result<Program, Error> {
        // Relaxed: only the number counts.
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let (steps, calls, preemption) = (Vec::new(), Vec::new(), self.shared().preemption);
        let (stream, has_inputs) = (self, false);
        let mut builder = ProgramBuilder { stream, name, id, steps, calls, preemption, has_inputs };
        record(&mut builder)?;
        let ProgramBuilder { steps, calls, preemption, has_inputs, .. } = builder;
        if steps.is_empty() {
            return Err(Error::Program(ProgramError::Empty { program: name }));
        }
        let resolved = resolve(self, &steps, &calls);
        let is_alone =
            |step: &Step| matches!(step, Step::Captured(_)) && preemption != Preemption::Plain;
        let apart = steps.iter().filter(|step| is_alone(step)).map(slice::from_ref);
        let whole = (preemption != Preemption::Preemptible).then_some(&*steps);
        // All at once, so that work is captured once for both.
        let programs: Vec<&[Step]> = apart.chain(whole).collect();
        let backend = &self.shared().device.inner.backend;
        let prepared = if programs.is_empty() {
            Vec::new()
        } else {
            // SAFETY: the launches are checked calls; copies come from `ProgramBuilder::copy`, captured work from
            // `ProgramBuilder::capture`.
            unsafe { backend.prepare(&programs)? }
        };
        let chains = match preemption {
            Preemption::Plain => None,
            // SAFETY: as above.
            Preemption::Preemptible | Preemption::Auto => unsafe {
                backend.prepare_chains(&steps)?
            },
        };
        let mut prepared = prepared.into_iter();
        let alone = |step: &Step| {
            is_alone(step).then(|| {
                let (steps, prepared) = (vec![step.clone()], prepared.next());
                Arc::new(ProgramLaunch { version: 0, steps, prepared, chains: None, is_call: true })
            })
        };
        let alone = steps.iter().map(alone).collect();
        let prepared = prepared.next();
        let launch =
            Arc::new(ProgramLaunch { version: 0, steps, prepared, chains, is_call: false });
        let (stream, last) = (self.clone(), Arc::default());
        let (armed, is_of_runs) = (Mutex::default(), false);
        Ok(Program {
            stream,
            name,
            id,
            launch,
            preemption,
            alone,
            last,
            calls,
            resolved,
            armed,
            is_of_runs,
            readers: has_inputs.then(Readers::default),
        })
    }
}

impl ProgramBuilder<'_> {
    /// Sets the [preemption](Program#preemption) of the program, instead of the
    /// [scheduler's](crate::SchedulerBuilder::preemption).
    ///
    /// ```
    /// # use preempt_device::prelude::*;
    /// # #[preemptible(block = 32)]
    /// # fn add(n: u32, x: PerThread<u32>) {
    /// #     if let Some(own) = x.own() {
    /// #         own.set(own.get() + n);
    /// #     }
    /// # }
    /// use preempt::Preemption;
    ///
    /// # let scheduler = preempt::Scheduler::builder().build()?;
    /// # let stream = scheduler.stream(0);
    /// let mut x = scheduler.zeroed::<u32>(4)?;
    /// let step = stream.program("step", |program| {
    ///     // Kernels that are short together: on a GPU, one call of the driver for all of them.
    ///     program.preemption(Preemption::Plain);
    ///     program.launch(add(1, &mut x).threads(4))?;
    ///     program.launch(add(10, &mut x).threads(4)).map(drop)
    /// })?;
    /// step.launch()?.wait()?;
    /// assert_eq!(stream.download(&x)?.wait()?, [11; 4]);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    pub fn preemption(&mut self, preemption: Preemption) {
        self.preemption = preemption;
    }

    /// Records a launch. Its place serves to [change](Program::set) its arguments later.
    ///
    /// # Errors
    ///
    /// As for [`Stream::launch`]; [`ProgramError::TooManyCalls`]; [`ProgramError::OtherInput`];
    /// [`ArgumentError::ForeignBuffer`] for buffers that were made by a scheduler of another device.
    pub fn launch<G: HasGrid>(&mut self, call: Call<'static, G>) -> Result<ProgramCall, Error> {
        let index = self.room()?;
        let (launch, used) = check(self.stream, call.with_its_grid(), self.id)?;
        self.push(Step::Launch { launch, version: 0 }, used);
        Ok(ProgramCall { program: self.id, index })
    }

    /// Records a copy of a buffer, or a range of one, to another one of the same length.
    ///
    /// # Errors
    ///
    /// [`ArgumentError::LengthMismatch`], [`ArgumentError::ForeignBuffer`], or [`ProgramError::TooManyCalls`].
    pub fn copy_buffer<T: KernelArg>(
        &mut self,
        from: &impl DeviceSlice<T>,
        to: &mut impl DeviceSliceMut<T>,
    ) -> Result<(), Error> {
        let (from, to) = (from.as_slice(), to.as_slice_mut().target());
        check_lengths(from.len(), to.len())?;
        let uses = vec![from.used(Access::Read, false), to.used(Access::Write, true)];
        let rows = Rows::one(from.len() * size_of::<T>());
        self.copy(CopyKind::OnDevice, uses, side(from), side(to), rows)
    }

    /// Records that every element of a buffer, or a range of one, is set to `value`.
    ///
    /// In a [plain](Program#preemption) program on a GPU, a value that consists of 1, 2 or 4 bytes, or of these repeated, is
    /// written at the speed of the device's memory. Other values take longer, and a value may have 1 KiB: copy a longer one
    /// from a buffer. In a preemptible program a fill is one as by [`Stream::fill`]: while kernels of the scheduler run, the
    /// elements come from the host, at the speed of an [upload](Stream::upload).
    ///
    /// # Errors
    ///
    /// [`ProgramError::LongValue`], [`ArgumentError::ForeignBuffer`] or [`ProgramError::TooManyCalls`].
    pub fn fill<T: KernelArg>(
        &mut self,
        to: &mut impl DeviceSliceMut<T>,
        value: T,
    ) -> Result<(), Error> {
        let (program, bytes, limit) = (self.name, size_of::<T>(), MAX_VALUE);
        if bytes > limit {
            return Err(Error::Program(ProgramError::LongValue { program, bytes, limit }));
        }
        let to = to.as_slice_mut().target();
        let uses = vec![to.used(Access::Write, true)];
        let rows = Rows::repeated(size_of::<T>(), to.len());
        let element = Arc::new([value]);
        let from = (element.as_ptr() as u64, 1, element as Owner);
        self.copy(CopyKind::ToDevice, uses, from, side(to), rows)
    }

    /// Records work of another library, such as cuBLAS, or kernels of your own that are not preemptible.
    ///
    /// On a GPU, `work` is called once, whatever the program's preemption, by this thread, before [`Stream::program`]
    /// returns. It is given a CUDA stream that is [being
    /// captured](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html) (`cuStreamBeginCapture`, for
    /// this thread alone): what it puts there does not run, and becomes a part of the program. So it must neither wait
    /// for the stream nor allocate memory, and it should call nothing of the scheduler. What the library sets up at a
    /// first call, such as a workspace, is better set up before. On the CPU device, where no stream is there to be
    /// captured, `work` is called at each launch of the program.
    ///
    /// Pass buffers by their [`address`](crate::Buffer::address), and name them in `opaque`, which keeps them, and their
    /// order, as for [`Stream::opaque`]. Its [`variant`](Opaque::variant) and [`exclusive`](Opaque::exclusive) have no
    /// effect, because no kernel is loaded at a launch.
    ///
    /// In a [preemptible](Program#preemption) program it is a step that is not interrupted: it runs to its end, like a plain
    /// launch that fills the device. Between it and the calls beside it the program is preempted as elsewhere.
    ///
    /// ```
    /// # use preempt::Opaque;
    /// # let scheduler = preempt::Scheduler::builder().build()?;
    /// # let stream = scheduler.stream(0);
    /// let mut out = scheduler.zeroed::<u32>(1)?;
    /// let address = out.address();
    /// let program = stream.program("answers", |program| {
    ///     let opaque = Opaque::new("answer").writes(&mut out);
    ///     program.capture(opaque, move |raw| {
    ///         match raw.as_raw() {
    ///             Some(_stream) => { /* cuMemsetD32Async(address, 42, 1, stream) */ }
    ///             // SAFETY: on the CPU device an address is one of this process, and no other operation has the buffer.
    ///             None => unsafe { (address as *mut u32).write(42) },
    ///         }
    ///         Ok(())
    ///     })
    /// })?;
    /// program.launch()?.wait()?;
    /// assert_eq!(stream.download(&out)?.wait()?, [42]);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArgumentError::ForeignBuffer`] or [`ProgramError::TooManyCalls`]. On a GPU, [`Stream::program`] gives
    /// [`ProgramError::Capture`] if `work` fails or panics, puts nothing into the stream, or leaves a capture that cannot
    /// be used. On the CPU device the handle of a launch gives
    /// [`LaunchError::KernelFailed`](crate::error::LaunchError::KernelFailed) if `work` fails or panics.
    pub fn capture(
        &mut self,
        opaque: Opaque,
        work: impl Fn(RawStream) -> Result<(), Box<dyn StdError + Send + Sync>> + Send + Sync + 'static,
    ) -> Result<(), Error> {
        self.room()?;
        let shared = self.stream.shared();
        let (name, uses, owners) = opaque.resolved(&shared.device)?;
        let work = Box::new(move |stream| {
            // Its result is application code as well.
            match caught(|| work(stream).map_err(|error| error.to_string())) {
                Ok(result) => result,
                Err(panic) => Err(format!("panicked: {panic}")),
            }
        });
        let spec = Some(of_unknown_size(shared.device.properties().sms));
        let step = Step::Captured(Arc::new(Captured { program: self.name, name, owners, work }));
        check_owners(self.stream, &step, name)?;
        self.push(step, CallUse { uses, spec });
        Ok(())
    }

    fn copy(
        &mut self,
        kind: CopyKind,
        uses: Vec<Use>,
        (from, _, from_owner): CopySide,
        (to, _, to_owner): CopySide,
        rows: Rows,
    ) -> Result<(), Error> {
        self.room()?;
        let copy = Copy { kind, from, to, rows };
        // SAFETY: each owner keeps its place, which has room for the rows, and the engine orders operations on buffers by
        // `uses`.
        let copy = unsafe { OwnedCopy::new(copy, [from_owner, to_owner]) };
        let step = Step::Copy(Arc::new(copy));
        check_owners(self.stream, &step, COPY)?;
        self.push(step, CallUse { uses, spec: None });
        Ok(())
    }

    pub(in crate::scheduler) fn stream(&self) -> &Stream {
        self.stream
    }

    /// The number of the program that it records.
    pub(in crate::scheduler) fn id(&self) -> u64 {
        self.id
    }

    /// Says that the program has inputs.
    pub(in crate::scheduler) fn has_inputs(&mut self) {
        self.has_inputs = true;
    }

    /// The place of the next call.
    fn room(&self) -> Result<usize, Error> {
        match self.steps.len() {
            MAX_CALLS.. => {
                let (program, limit) = (self.name, MAX_CALLS);
                Err(Error::Program(ProgramError::TooManyCalls { program, limit }))
            }
            index => Ok(index),
        }
    }

    fn push(&mut self, step: Step, used: CallUse) {
        self.steps.push(step);
        self.calls.push(used);
    }
}

/// A launch of a program, whose addresses are those at its buffers' home.
pub(super) fn check(
    stream: &Stream,
    call: Call<'static>,
    program: u64,
) -> Result<(Arc<KernelLaunch>, CallUse), Error> {
    let name = call.kernel().name;
    let Checked { launch, uses, spec } = stream.checked(call, Some(program))?;
    let launch = Arc::new(launch);
    check_owners(stream, &Step::Launch { launch: launch.clone(), version: 0 }, name)?;
    Ok((launch, CallUse { uses, spec: Some(spec) }))
}

/// Whether all buffers are at home on the stream's device.
fn check_owners(stream: &Stream, step: &Step, name: &'static str) -> Result<(), Error> {
    let device = stream.shared().device.inner.id;
    let is_here =
        |owner: &Owner| owner.downcast_ref::<Memory>().is_none_or(|memory| memory.home() == device);
    match step.owners().all(is_here) {
        true => Ok(()),
        false => Err(Error::Argument(ArgumentError::ForeignBuffer { name })),
    }
}

pub(super) fn resolve(stream: &Stream, steps: &[Step], calls: &[CallUse]) -> Resolved {
    let uses = merged(calls.iter().flat_map(|call| &call.uses));
    let mut owners: Vec<Owner> = steps.iter().flat_map(Step::owners).cloned().collect();
    let place = |owner: &Owner| Arc::as_ptr(owner).cast::<()>();
    owners.sort_by_key(place);
    owners.dedup_by_key(|owner| place(owner));
    let sms = stream.shared().device.properties().sms;
    Resolved {
        spec: whole(calls.iter().filter_map(|call| call.spec), sms),
        specs: calls.iter().map(|call| call.spec).collect(),
        owners: owners.into(),
        is_of_others: steps.iter().any(Step::is_of_others),
        has_borrowed: uses.iter().any(|used| matches!(used.buffer, BufferId::Borrowed(_))),
        uses,
    }
}

impl fmt::Debug for ProgramBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgramBuilder")
            .field("name", &self.name)
            .field("calls", &self.calls.len())
            .finish_non_exhaustive()
    }
}
