//! The thread that calls code of others for the scheduler, and looks at their events: the lock holder must not wait for
//! other code, and the driver's threads must not call the driver.

use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::order::{Keeper, RawHandle};
use crate::device::Device;
use crate::error::{Error, caught};
use crate::scheduler::{ExternalOperation, Shared};

/// Time between two looks at events that operations wait for.
const LOOK: Duration = Duration::from_micros(20);

/// Time, at most, that dropping a scheduler waits for the thread.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Messages to the thread.
pub(super) enum Task {
    /// Call `work`; the external operation is over when what it put into the stream is done.
    Run { stream: RawHandle, keeper: Keeper, work: Work, external: Arc<ExternalOperation> },
    /// The external operation is over when the event has happened.
    Await { has_happened: Look, external: Arc<ExternalOperation> },
    /// The external operation is over, with this result.
    Over { external: Arc<ExternalOperation>, result: Ending },
    /// The scheduler does not need the thread any more.
    Stop,
}

/// Code of the application that puts work into a stream; its error is a message.
pub(crate) type Work = Box<dyn FnOnce() -> Ended + Send>;

/// Asks whether an event has happened.
type Look = Box<dyn FnMut() -> Result<bool, String> + Send>;

type Ended = Result<(), String>;

/// How an external operation ended; if it failed, with the message.
type Ending = Result<(), Arc<str>>;

/// The sender of tasks.
#[derive(Clone)]
pub(super) struct Tasks(Sender<Task>);

impl Tasks {
    pub fn send(&self, task: Task) {
        // Without the thread, the scheduler is gone, and has ended its external operations.
        if let Err(unsent) = self.0.send(task) {
            // Values of the application may panic on drop.
            let _ = caught(|| drop(unsent));
        }
    }

    /// A callback that ends the external operation, on any thread.
    pub fn over(
        self,
        external: Arc<ExternalOperation>,
        result: Ending,
    ) -> impl FnOnce() + Send + 'static {
        move || self.send(Task::Over { external, result })
    }
}

/// A handle of the thread.
pub(crate) struct Helper {
    tasks: Tasks,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Helper {
    pub fn start(device: Device, shared: Weak<Shared>) -> Result<Helper, Error> {
        let (sender, receiver) = channel();
        let tasks = Tasks(sender);
        let own = tasks.clone();
        let run = move || {
            let mut thread = Thread { device, shared, tasks: own, awaited: Vec::new() };
            loop {
                let task = match thread.awaited.is_empty() {
                    true => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
                    false => receiver.recv_timeout(LOOK),
                };
                match task {
                    Ok(Task::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                    Ok(task) => thread.take(task),
                    Err(RecvTimeoutError::Timeout) => {}
                }
                thread.look_at_events();
            }
        };
        let thread = thread::Builder::new().name("preempt-raw".into()).spawn(run);
        let thread = thread.map_err(|source| {
            let what = "work of CUDA streams";
            Error::Thread { what, source: Arc::new(source) }
        })?;
        Ok(Helper { tasks, thread: Mutex::new(Some(thread)) })
    }

    pub(super) fn tasks(&self) -> Tasks {
        self.tasks.clone()
    }
}

impl crate::scheduler::Helper for Helper {
    /// Ends the thread. Waits for it, unless this is that thread, or application code occupies it.
    fn stop(&self) {
        self.tasks.send(Task::Stop);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread.filter(|own| own.thread().id() != thread::current().id()) else {
            return;
        };
        let start = Instant::now();
        while !thread.is_finished() && start.elapsed() < STOP_TIMEOUT {
            thread::sleep(LOOK);
        }
        if thread.is_finished() {
            // Panics of the application end in `caught`.
            let _ = thread.join();
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.tasks.send(Task::Stop);
    }
}

impl fmt::Debug for Helper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Helper").finish_non_exhaustive()
    }
}

/// The state of the thread.
struct Thread {
    device: Device,
    shared: Weak<Shared>,
    tasks: Tasks,
    awaited: Vec<(Look, Arc<ExternalOperation>)>,
}

impl Thread {
    fn take(&mut self, task: Task) {
        match task {
            Task::Run { stream, keeper, work, external } => {
                let result = self.run(work);
                // Work that was put into the stream before the failure is waited for, too.
                let over = self.tasks.clone().over(external.clone(), result.clone());
                let put = self.device.inner.backend.streams().and_then(|streams| {
                    // SAFETY: promised to the stream that the work was submitted to; the keeper is there.
                    unsafe { streams.call_after(stream.0, Box::new(over)) }
                });
                if let Err(error) = put {
                    self.end(&external, result.and(Err(error.to_string().into())));
                }
                let _ = caught(|| drop(keeper));
            }
            Task::Await { has_happened, external } => self.awaited.push((has_happened, external)),
            Task::Over { external, result } => self.end(&external, result),
            Task::Stop => {}
        }
    }

    /// Calls the work, with the device's context current.
    fn run(&self, work: Work) -> Ending {
        let (mut work, mut result) = (Some(work), Err("it was not called".into()));
        let mut call = || {
            let Some(work) = work.take() else { return };
            result = match caught(work) {
                Ok(ended) => ended.map_err(Arc::from),
                Err(panic) => Err(format!("panicked: {panic}").into()),
            };
        };
        let entered = self.device.inner.backend.streams().and_then(|of| of.enter(&mut call));
        // Values of the application, if it was not called, may panic on drop.
        let _ = caught(|| drop(work));
        match entered {
            Ok(()) => result,
            Err(error) => Err(error.to_string().into()),
        }
    }

    fn look_at_events(&mut self) {
        let mut awaited = std::mem::take(&mut self.awaited);
        awaited.retain_mut(|(has_happened, external)| match has_happened() {
            Ok(false) => true,
            Ok(true) => {
                self.end(external, Ok(()));
                false
            }
            Err(error) => {
                self.end(external, Err(error.into()));
                false
            }
        });
        self.awaited = awaited;
    }

    fn end(&self, external: &ExternalOperation, result: Ending) {
        external.finish(result);
        // Not by running the core here: its wakers may wait for other external operations.
        if let Some(shared) = self.shared.upgrade() {
            shared.announce();
        }
    }
}
