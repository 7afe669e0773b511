//! The thread that calls `cust` for the scheduler: the lock holder must not wait for other code, and the driver's
//! threads must not call the driver.

use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cust::context::{Context, CurrentContext};
use cust::error::CudaResult;
use cust::event::{Event, EventStatus};
use cust::stream::Stream;

use super::words;
use crate::error::{Error, caught};
use crate::scheduler::{ExternalOperation, Shared};

/// Time between two looks at events that operations wait for.
const LOOK: Duration = Duration::from_micros(20);

/// Time, at most, that dropping a scheduler waits for the thread.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Messages to the thread.
pub(super) enum Task {
    /// Call `work`; the external operation is over when what it put into the stream is done.
    Run { stream: Arc<Stream>, work: Work, external: Arc<ExternalOperation> },
    /// The external operation is over when the event has happened.
    Await { event: Arc<Event>, external: Arc<ExternalOperation> },
    /// The external operation is over, with this result.
    Over { external: Arc<ExternalOperation>, result: Ending },
    /// The scheduler does not need the thread any more.
    Stop,
}

type Work = Box<dyn FnOnce(&Stream) -> CudaResult<()> + Send>;

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
    pub fn start(context: Arc<Context>, shared: Weak<Shared>) -> Result<Helper, Error> {
        let (sender, receiver) = channel();
        let tasks = Tasks(sender);
        let own = tasks.clone();
        let run = move || {
            let mut thread = Thread { shared, tasks: own, awaited: Vec::new() };
            // Without the context, each later call reports the failure.
            let _ = CurrentContext::set_current(&*context);
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
        let thread = thread::Builder::new().name("preempt-cust".into()).spawn(run);
        let thread = thread.map_err(|source| {
            let what = "work of `cust`";
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
    shared: Weak<Shared>,
    tasks: Tasks,
    awaited: Vec<(Arc<Event>, Arc<ExternalOperation>)>,
}

impl Thread {
    fn take(&mut self, task: Task) {
        match task {
            Task::Run { stream, work, external } => {
                let result: Ending = match caught(|| work(&stream)) {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(error)) => Err(words(error).into()),
                    Err(panic) => Err(format!("panicked: {panic}").into()),
                };
                // Work that was put into the stream before the failure is waited for, too.
                let over = self.tasks.clone().over(external.clone(), result.clone());
                if let Err(error) = stream.add_callback(Box::new(over)) {
                    self.end(&external, result.and(Err(words(error).into())));
                }
            }
            Task::Await { event, external } => self.awaited.push((event, external)),
            Task::Over { external, result } => self.end(&external, result),
            Task::Stop => {}
        }
    }

    fn look_at_events(&mut self) {
        let mut awaited = std::mem::take(&mut self.awaited);
        awaited.retain(|(event, external)| match event.query() {
            Ok(EventStatus::NotReady) => true,
            Ok(EventStatus::Ready) => {
                self.end(external, Ok(()));
                false
            }
            Err(error) => {
                self.end(external, Err(words(error).into()));
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
