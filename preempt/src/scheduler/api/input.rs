//! Memory of the host that the kernels of one program read where it lies.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use preempt_device::host::{BufferArg, ReadArg};
use preempt_device::kernel::KernelArg;

use super::handle::Handle;
use super::pinned::PinnedBuffer;
use super::program::{Program, ProgramBuilder};
use crate::device::Owner;
use crate::error::{Error, LaunchError, ProgramError};
use crate::scheduler::Shared;
use crate::sync::{Mutex, lock};

/// An input of a program: an array in pinned memory of the host, which the program's kernels read where it lies, as `&[T]`.
/// [`ProgramBuilder::input`] makes it, and [`Program::write`] gives the host its elements.
///
/// A launch reads what was written before it, and an [armed](Program::arm) program may be written to until it is launched:
/// neither a copy nor a call of the driver is between the request and the kernel that answers it. On a GPU each read goes
/// over the bus, so an input is for kilobytes that are read once. For more, upload to a [`Buffer`](crate::Buffer).
///
/// ```
/// # use preempt_device::prelude::*;
/// # #[preemptible(block = 32)]
/// # fn double(x: &[u32], y: SliceMut<u32>) {
/// #     let i = thread::index_1d() as usize;
/// #     if i < y.len() {
/// #         // SAFETY: each thread writes its own element.
/// #         unsafe { y.write(i, 2 * x[i]) }
/// #     }
/// # }
/// let scheduler = preempt::Scheduler::builder().build()?;
/// let stream = scheduler.stream(1);
/// let mut answer = scheduler.zeroed::<u32>(4)?;
/// let mut question = None;
/// let mut program = stream.program("answer", |program| {
///     let input = question.insert(program.input::<u32>(4)?);
///     program.launch(double(&*input, &mut answer).threads(4)).map(drop)
/// })?;
/// let question = question.expect("recorded");
/// program.arm()?;
/// // A request has come.
/// program.write(&question)?.copy_from_slice(&[1, 2, 3, 4]);
/// program.launch()?.wait()?;
/// assert_eq!(stream.download(&answer)?.wait()?, [2, 4, 6, 8]);
/// # Ok::<(), preempt::Error>(())
/// ```
pub struct ProgramInput<T> {
    memory: Arc<InputMemory>,
    len: usize,
    element: PhantomData<T>,
}

/// What launches keep of an input.
pub(super) struct InputMemory {
    /// The number of its program.
    program: u64,
    address: u64,
    _block: Owner,
}

impl InputMemory {
    /// Whether this owner of an argument is an input, and if so, whether it is one of this program.
    pub fn is_of(owner: &Owner, program: Option<u64>) -> Option<bool> {
        let input = owner.downcast_ref::<InputMemory>()?;
        Some(Some(input.program) == program)
    }
}

/// What may read a program's inputs.
#[derive(Default)]
pub(super) struct Readers(Mutex<Reading>);

#[derive(Default)]
struct Reading {
    /// Launches that were not seen to end.
    launches: Vec<Handle<()>>,
    /// The error of the last launch that failed or was cancelled. A handle has it before the calls behind the stopped call have
    /// left.
    failure: Option<Error>,
}

impl Reading {
    /// Takes out the launches that have ended.
    fn see_ends(&mut self) {
        let Reading { launches, failure } = self;
        launches.retain(|launch| {
            let has_ended = launch.is_done();
            if has_ended && let Err(error) = launch.wait() {
                *failure = Some(error);
            }
            !has_ended
        });
    }
}

impl Readers {
    pub fn add(&self, launch: Handle<()>) {
        let mut reading = lock(&self.0);
        reading.see_ends();
        reading.launches.push(launch);
    }

    /// Waits until none of them runs.
    fn wait(&self, shared: &Shared) -> Result<(), Error> {
        loop {
            let mut reading = lock(&self.0);
            reading.see_ends();
            let Some(launch) = reading.launches.last().map(Handle::untyped) else { break };
            drop(reading);
            let ended = launch.wait();
            if !launch.is_done() {
                return ended;
            }
        }
        match lock(&self.0).failure.clone() {
            None => return Ok(()),
            // Whether its blocks have left is never known.
            Some(
                error @ (Error::Device(_) | Error::Launch(LaunchError::SchedulerDropped { .. })),
            ) => return Err(error),
            Some(_) => shared.wait_until_idle(),
        }
        lock(&self.0).failure = None;
        Ok(())
    }
}

impl ProgramBuilder<'_> {
    /// An input of `len` elements, all bytes 0, for kernels of this program alone.
    ///
    /// # Errors
    ///
    /// As for [`Scheduler::pinned`](crate::Scheduler::pinned).
    pub fn input<T: KernelArg>(&mut self, len: usize) -> Result<ProgramInput<T>, Error> {
        let array = PinnedBuffer::<T>::new(&self.stream().shared().device, len)?;
        let (address, len, block) = array.side();
        let memory = InputMemory { program: self.id(), address, _block: block };
        self.has_inputs();
        Ok(ProgramInput { memory: Arc::new(memory), len, element: PhantomData })
    }
}

impl Program {
    /// The elements of an input, for the launches to come. Blocks until the launches of the program that were submitted are
    /// over, because these read them; after a launch that failed or was cancelled, until nothing is in flight. An armed program
    /// stays armed.
    ///
    /// # Errors
    ///
    /// [`ProgramError::OtherInput`];
    /// [`LaunchError::SchedulerDropped`] or [`DeviceError::ContextLost`](crate::error::DeviceError::ContextLost), after which
    /// the program is of no use.
    pub fn write<'a, T: KernelArg>(
        &'a mut self,
        input: &'a ProgramInput<T>,
    ) -> Result<&'a mut [T], Error> {
        let Some(readers) = self.readers().filter(|_| input.memory.program == self.id()) else {
            let name = self.name();
            return Err(Error::Program(ProgramError::OtherInput { name }));
        };
        readers.wait(self.shared())?;
        let start = input.memory.address as *mut T;
        // SAFETY: pinned memory of this length, of plain data, aligned, which lives as long as `input`. Kernels of this program
        // alone read it, those that were submitted have left, and none is submitted, nor released, while the program is borrowed
        // mutably. So is the input's other access, by this function.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, input.len) })
    }
}

impl<T> ProgramInput<T> {
    /// Number of elements.
    #[expect(clippy::len_without_is_empty, reason = "an input without elements is of no use")]
    pub fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: the owner keeps the memory, whose address is the same for the device. `Program::write` says who writes it when.
unsafe impl<T: KernelArg> ReadArg<'_, T> for &ProgramInput<T> {
    fn read_arg(self) -> BufferArg {
        let bytes = self.len * size_of::<T>();
        let (address, owner) = (self.memory.address, self.memory.clone());
        BufferArg { address, len: self.len, bytes, owner: Some(owner) }
    }
}

impl<T> fmt::Debug for ProgramInput<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProgramInput<{}>[{}]", std::any::type_name::<T>(), self.len)
    }
}
