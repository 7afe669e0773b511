//! Opaque work: application code that puts work into a stream of the device's own.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use preempt_device::host::Access;
use preempt_device::kernel::KernelArg;

use super::core::Work;
use crate::device::{Device, OpaqueWork, Owner, RawStream};
use crate::engine::{self, Use};
use crate::error::{ArgumentError, Error, caught};
use crate::scheduler::api::handle::{Gives, Handle};
use crate::scheduler::api::slice::{BufferSlice, DeviceSlice, DeviceSliceMut};
use crate::scheduler::api::stream::Stream;
use crate::sync::mpsc::{Receiver, Sender, channel};
use crate::sync::thread::{self, JoinHandle, ThreadId};
use crate::sync::{Mutex, contain, lock};
use crate::vocabulary::OpKey;

/// The name and the buffers of a piece of [opaque work](Stream::opaque).
#[must_use = "it does nothing until it is given to `Stream::opaque`"]
pub struct Opaque {
    known: engine::Opaque,
    uses: Vec<(u64, Use)>,
    owners: Vec<Arc<dyn Any + Send + Sync>>,
}

impl Opaque {
    /// Opaque work of this name, which errors report.
    pub fn new(name: &'static str) -> Opaque {
        let known = engine::Opaque { name, variant: 0, exclusive: false };
        Opaque { known, uses: Vec::new(), owners: Vec::new() }
    }

    /// Declares that the work reads this buffer or range; no other operation writes it meanwhile.
    pub fn reads<T: KernelArg>(self, buffer: &impl DeviceSlice<T>) -> Opaque {
        self.uses(buffer.as_slice(), Access::Read)
    }

    /// Declares that the work writes this buffer or range; no other operation uses it meanwhile. If the work fails, its
    /// writes are lost, as for a kernel ([`LaunchError::InputLost`](crate::error::LaunchError::InputLost)).
    pub fn writes<T: KernelArg>(self, buffer: &mut impl DeviceSliceMut<T>) -> Opaque {
        self.uses(buffer.as_slice_mut().target(), Access::Write)
    }

    /// Tells apart work of one name that may use different kernels: a library may choose them by the size of a matrix,
    /// say. The first run of each variant has the device alone.
    pub fn variant(mut self, variant: u64) -> Opaque {
        self.known.variant = variant;
        self
    }

    /// Gives every run the device alone, not only the first. Opaque work takes no SMs from launches: beside a
    /// preemptible kernel that fills the device, its kernels start when that kernel is done.
    pub fn exclusive(mut self) -> Opaque {
        self.known.exclusive = true;
        self
    }

    /// Its name, its uses, and what keeps their memory, if all buffers are at home on this device.
    pub(in crate::scheduler) fn resolved(
        self,
        device: &Device,
    ) -> Result<(&'static str, Vec<Use>, Vec<Owner>), Error> {
        let Opaque { known: engine::Opaque { name, .. }, uses, owners } = self;
        if uses.iter().any(|&(owner, _)| owner != device.inner.id) {
            return Err(Error::Argument(ArgumentError::ForeignBuffer { name }));
        }
        Ok((name, uses.into_iter().map(|(_, used)| used).collect(), owners))
    }

    fn uses<T>(mut self, range: BufferSlice<'_, T>, access: Access) -> Opaque {
        self.uses.push((range.memory().home(), range.used(access, false)));
        self.owners.push(range.memory().clone());
        self
    }
}

impl fmt::Debug for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Opaque").field(&self.known).finish()
    }
}

impl Stream {
    /// Runs work of another library, such as cuBLAS, or kernels that are not preemptible, in the order of this stream.
    ///
    /// When everything before it is done, `work` is called with a CUDA stream, and puts its own work there. The
    /// operation ends, and what follows starts, when all of that is done. On the CPU device there is no such stream,
    /// and the operation ends when `work` returns.
    ///
    /// `work` is called on a thread of the scheduler, with the device's context current. Other opaque work waits for
    /// that thread, so `work` should not wait for the device, and must never wait for what follows it. Work that it
    /// puts into other streams is not waited for. Pass buffers by their [`address`](crate::Buffer::address), and name them in
    /// `opaque`, which keeps them, and their order, until the work is done.
    ///
    /// CUDA loads a kernel at its first launch, and loading waits for all running kernels: for ever, if one of them
    /// waits for SMs. So the first run of each name and [variant](Opaque::variant) has the device alone: running
    /// launches yield, and new launches wait until it is done. It waits for more urgent launches. Later runs go on
    /// beside others, but their kernels take no SMs from launches. Where preemptible kernels may fill the device for
    /// long, have each run [alone](Opaque::exclusive).
    ///
    /// Nothing makes a library's kernels yield, and blocks of large ones stay on the SMs until the kernel ends: a launch of any
    /// priority waits for room, 10 ms beside a product of 16,384 rows by cuBLAS (H200). To keep SMs free of them, run them in a
    /// part of the device, by [`Device::split`].
    ///
    /// ```
    /// # use preempt::Opaque;
    /// # let scheduler = preempt::Scheduler::builder().build()?;
    /// # let stream = scheduler.stream(0);
    /// let mut out = scheduler.zeroed::<u32>(1)?;
    /// let address = out.address();
    /// let opaque = Opaque::new("answer").writes(&mut out);
    /// stream.opaque(opaque, move |raw| {
    ///     match raw.as_raw() {
    ///         Some(_stream) => { /* cuMemsetD32Async(address, 42, 1, stream) */ }
    ///         // SAFETY: on the CPU device an address is one of this process, and no other operation has the buffer.
    ///         None => unsafe { (address as *mut u32).write(42) },
    ///     }
    ///     Ok(())
    /// })?;
    /// assert_eq!(stream.download(&out)?.wait()?, [42]);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArgumentError::ForeignBuffer`], [`Error::Thread`], or
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped). The handle gives
    /// [`LaunchError::KernelFailed`](crate::error::LaunchError::KernelFailed) with what `work` returned, or with its
    /// panic; what it had put into the stream until then is waited for all the same.
    pub fn opaque(
        &self,
        opaque: Opaque,
        work: impl FnOnce(RawStream) -> Result<(), Box<dyn StdError + Send + Sync>> + Send + 'static,
    ) -> Result<Handle<()>, Error> {
        let known = opaque.known;
        let (name, uses, owners) = opaque.resolved(&self.shared().device)?;
        let work: OpaqueWork = Box::new(move |stream| {
            // Its result, and what the closure holds, are application code as well.
            match caught(|| work(stream).map_err(|error| error.to_string())) {
                Ok(result) => result,
                Err(panic) => Err(format!("panicked: {panic}")),
            }
        });
        let to = self.shared().opaque_thread()?;
        let job = OpaqueJob { known, work: Some(work), to, owners };
        self.submit(name, uses, Work::Opaque(job), Gives::NOTHING)
    }
}

/// Opaque work, in the order of a stream.
pub(in crate::scheduler) struct OpaqueJob {
    pub known: engine::Opaque,
    /// Taken at the start.
    work: Option<OpaqueWork>,
    to: Sender<Task>,
    /// Keep its buffers.
    pub owners: Vec<Arc<dyn Any + Send + Sync>>,
}

impl OpaqueJob {
    /// Hands the work to its thread, when everything before it is done; returns whether the thread is there.
    pub fn start(&mut self, op: OpKey) -> bool {
        let Some(work) = self.work.take() else { return false };
        let Err(unsent) = self.to.send(Task::Run(op, work)) else { return true };
        contain(|| drop(unsent));
        false
    }

    /// Whether dropping it runs application code.
    pub fn has_work(&self) -> bool {
        self.work.is_some()
    }
}

impl fmt::Debug for OpaqueJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Opaque").field(&self.known).finish()
    }
}

/// Messages to the thread for opaque work.
pub(in crate::scheduler) enum Task {
    Run(OpKey, OpaqueWork),
    Stop,
}

/// The thread that calls opaque work, so that the lock holder never waits for application code.
pub(in crate::scheduler) struct OpaqueThread {
    to: Sender<Task>,
    id: ThreadId,
    handle: Mutex<Option<JoinHandle<()>>>,
}

impl OpaqueThread {
    pub fn start(device: Device) -> Result<OpaqueThread, Error> {
        let (to, tasks) = channel();
        let thread = thread::Builder::new().name("preempt-opaque".into());
        match thread.spawn(move || run(&device, &tasks)) {
            Ok(handle) => {
                let id = handle.thread().id();
                Ok(OpaqueThread { to, id, handle: Mutex::new(Some(handle)) })
            }
            Err(source) => Err(Error::Thread { what: "opaque work", source: Arc::new(source) }),
        }
    }

    pub fn sender(&self) -> Sender<Task> {
        self.to.clone()
    }

    pub fn is_current(&self) -> bool {
        self.id == thread::current().id()
    }

    /// Ends the thread; `wait`s for it if it has nothing left to do.
    pub fn stop(&self, wait: bool) {
        // It may have ended.
        let _ = self.to.send(Task::Stop);
        if let Some(thread) = lock(&self.handle).take().filter(|_| wait && !self.is_current()) {
            // Panics of the work end in `caught`.
            let _ = thread.join();
        }
    }
}

impl Drop for OpaqueThread {
    fn drop(&mut self) {
        let _ = self.to.send(Task::Stop);
    }
}

fn run(device: &Device, tasks: &Receiver<Task>) {
    for task in tasks {
        match task {
            Task::Run(op, work) => device.inner.backend.opaque(op, work),
            Task::Stop => return,
        }
    }
}
