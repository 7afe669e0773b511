//! Opaque work: code of others that puts work into a stream of the device's own.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use preempt_device::host::Access;
use preempt_device::kernel::KernelArg;

use super::core::Work;
use crate::device::{Device, OpaqueWork, RawStream};
use crate::engine::{self, Use};
use crate::error::{ArgumentError, Error, caught};
use crate::scheduler::Buffer;
use crate::scheduler::api::handle::Handle;
use crate::scheduler::api::stream::Stream;
use crate::sync::mpsc::{Receiver, Sender, channel};
use crate::sync::thread::{self, JoinHandle, ThreadId};
use crate::sync::{Mutex, contain, lock};
use crate::vocabulary::OpKey;

/// What a piece of [opaque work](Stream::opaque) is called, and which buffers it uses.
#[must_use = "it does nothing until it is given to `Stream::opaque`"]
pub struct Opaque {
    known: engine::Opaque,
    uses: Vec<(u64, Use)>,
    owners: Vec<Arc<dyn Any + Send + Sync>>,
}

impl Opaque {
    /// Work of this name, which errors use, too.
    pub fn new(name: &'static str) -> Opaque {
        let known = engine::Opaque { name, variant: 0, exclusive: false };
        Opaque { known, uses: Vec::new(), owners: Vec::new() }
    }

    /// It reads this buffer, and no other operation writes it meanwhile.
    pub fn reads<T: KernelArg>(self, buffer: &Buffer<T>) -> Opaque {
        self.uses(buffer, Access::Read)
    }

    /// It writes this buffer, and no other operation uses it meanwhile. If the work fails, what it wrote is lost, as for
    /// a kernel ([`LaunchError::InputLost`](crate::error::LaunchError::InputLost)).
    pub fn writes<T: KernelArg>(self, buffer: &mut Buffer<T>) -> Opaque {
        self.uses(buffer, Access::Write)
    }

    /// Which one it is of several that may use different kernels: a library may choose them by the size of a matrix,
    /// say. The first run of each variant has the device alone.
    pub fn variant(mut self, variant: u64) -> Opaque {
        self.known.variant = variant;
        self
    }

    /// Every run has the device alone, not only the first one. Opaque work takes no SMs from launches: beside a
    /// preemptible kernel that fills the device, its kernels start when that one is done.
    pub fn exclusive(mut self) -> Opaque {
        self.known.exclusive = true;
        self
    }

    fn uses<T>(mut self, buffer: &Buffer<T>, access: Access) -> Opaque {
        let used = Use { buffer: buffer.memory.id, access, overwrites: false };
        self.uses.push((buffer.memory.home(), used));
        self.owners.push(buffer.memory.clone());
        self
    }
}

impl fmt::Debug for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Opaque").field(&self.known).finish()
    }
}

impl Stream {
    /// Runs code of others in the order of this stream: a library such as cuBLAS, or kernels that are not
    /// preemptible.
    ///
    /// When everything before it is done, `work` is called with a CUDA stream, and puts its own work there. The
    /// operation is done, and what comes after it starts, when everything is done that it has put there. On
    /// the CPU device there is no such stream, and it is done when `work` returns.
    ///
    /// `work` is called on a thread of the scheduler, with the device's context current. Other opaque work
    /// waits for it there, so it should not wait for the device: it must not wait for what comes after it, ever. What
    /// it puts into other streams is not waited for. Pass buffers by their [`address`](Buffer::address), and name
    /// them in `opaque`, which keeps them, and their order, until the work is done.
    ///
    /// CUDA loads a kernel when it is launched for the first time, and waits for all kernels that run: for ever, if
    /// one of them waits for SMs. So the first run of each name and [variant](Opaque::variant) has the device alone:
    /// the launches that run yield, and those that come wait until it is done. It waits for launches that are more urgent
    /// than it is. Later runs go on beside others; their kernels take no SMs from launches, so where preemptible kernels may
    /// fill the device for long, have each run [alone](Opaque::exclusive).
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
        let Opaque { known, uses, owners } = opaque;
        let name = known.name;
        let device = self.shared().device.inner.id;
        if uses.iter().any(|&(owner, _)| owner != device) {
            return Err(Error::Argument(ArgumentError::ForeignBuffer { name }));
        }
        let uses = uses.into_iter().map(|(_, used)| used).collect();
        let work: OpaqueWork = Box::new(move |stream| {
            // What it returns, or holds, is code of others as well.
            match caught(|| work(stream).map_err(|error| error.to_string())) {
                Ok(result) => result,
                Err(panic) => Err(format!("panicked: {panic}")),
            }
        });
        let to = self.shared().opaque_thread()?;
        let job = OpaqueJob { known, work: Some(work), to, owners };
        self.submit(name, uses, Work::Opaque(job), ())
    }
}

/// Opaque work, as it is in the stream.
pub(in crate::scheduler) struct OpaqueJob {
    pub known: engine::Opaque,
    /// Until it starts.
    work: Option<OpaqueWork>,
    to: Sender<Task>,
    /// What keeps its buffers.
    pub owners: Vec<Arc<dyn Any + Send + Sync>>,
}

impl OpaqueJob {
    /// Everything before it is done. Whether its thread is there to call it.
    pub fn start(&mut self, op: OpKey) -> bool {
        let Some(work) = self.work.take() else { return false };
        let Err(unsent) = self.to.send(Task::Run(op, work)) else { return true };
        contain(|| drop(unsent));
        false
    }

    /// Whether dropping it runs code of others.
    pub fn has_work(&self) -> bool {
        self.work.is_some()
    }
}

impl fmt::Debug for OpaqueJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Opaque").field(&self.known).finish()
    }
}

/// What the thread has to do.
pub(in crate::scheduler) enum Task {
    Run(OpKey, OpaqueWork),
    Stop,
}

/// The thread that calls opaque work, so that a thread that runs the core waits for no code of others.
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

    /// Ends the thread; `wait`s for it if it has nothing to do any more.
    pub fn stop(&self, wait: bool) {
        // It may have ended.
        let _ = self.to.send(Task::Stop);
        if let Some(thread) = lock(&self.handle).take().filter(|_| wait && !self.is_current()) {
            // Panics of others end in `caught`.
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
