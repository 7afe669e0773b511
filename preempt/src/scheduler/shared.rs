//! Who runs the core: whichever thread has something for it, one at a time.
//!
//! See `baton` for how no submission is left behind.
//!
//! While operations are in flight, one poller thread waits for the device. It sleeps otherwise.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

use super::baton::Baton;
use super::core::{Completed, Core, Job, Message};
use super::handle::Completion;
use super::lock;
use crate::device::Device;
use crate::error::Error;
use crate::module::Module;
use crate::policy::Policy;

/// How long the poller waits for the device before it looks by itself.
const POLL_TIMEOUT: Duration = Duration::from_millis(100);

/// How long dropping a scheduler waits for running kernels to stop.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct Shared {
    pub device: Device,
    pub spin: Duration,
    baton: Baton<Core, Message>,
    status: Mutex<Status>,
    /// When `status` becomes quieter.
    quieter: Condvar,
    poller: OnceLock<Thread>,
}

#[derive(Debug, Default)]
struct Status {
    /// Whether operations are in flight. Written with the core locked.
    busy: bool,
    /// Whether the scheduler has given the device back.
    released: bool,
}

/// What came of a turn of the core.
struct News {
    completed: Vec<Completed>,
    was_busy: bool,
    is_busy: bool,
}

/// Closes the scheduler when its last clone is dropped.
pub(super) struct Closer {
    pub shared: Arc<Shared>,
}

impl Shared {
    pub fn start(
        device: Device,
        policy: Box<dyn Policy>,
        modules: &[Module],
        spin: Duration,
    ) -> Result<Arc<Shared>, Error> {
        device.take()?;
        let taken = device.clone();
        Self::start_on(device, policy, modules, spin).inspect_err(|_| taken.give_back())
    }

    fn start_on(
        device: Device,
        policy: Box<dyn Policy>,
        modules: &[Module],
        spin: Duration,
    ) -> Result<Arc<Shared>, Error> {
        device.inner.backend.load(modules)?;
        let shared = Arc::new(Shared {
            baton: Baton::new(Core::new(device.clone(), policy)),
            device,
            spin,
            status: Mutex::default(),
            quieter: Condvar::new(),
            poller: OnceLock::new(),
        });
        let polled = shared.clone();
        let poller = thread::Builder::new().name("preempt-poller".into());
        match poller.spawn(move || polled.poll()) {
            Ok(handle) => {
                // Set here and nowhere else.
                let _ = shared.poller.set(handle.thread().clone());
                Ok(shared)
            }
            Err(source) => Err(Error::Thread { what: "the poller", source: Arc::new(source) }),
        }
    }

    /// Hands a submission to the core.
    pub fn submit(&self, job: Job) -> Result<(), Error> {
        if !self.baton.post(Message::Submit(job)) {
            return Err(Error::SchedulerDropped { done: 0, tasks: 0 });
        }
        self.drive();
        Ok(())
    }

    /// Asks for an operation to be stopped.
    pub fn cancel(&self, completion: Arc<Completion>) {
        // A scheduler that is closed has stopped it already.
        self.baton.post(Message::Cancel(completion));
        self.drive();
    }

    /// Runs the core, unless another thread does; then that one takes over what was submitted.
    pub fn drive(&self) {
        self.baton.drive(|core, messages| self.turn(core, messages), |news| self.tell(news));
    }

    /// Waits until nothing is in flight.
    pub fn wait_until_idle(&self) {
        // Not `drive`: what the caller submitted must be in flight before it waits.
        self.baton.drive_now(|core, messages| self.turn(core, messages), |news| self.tell(news));
        let status = lock(&self.status);
        drop(self.quieter.wait_while(status, |status| status.busy));
    }

    /// Runs the core once; the baton is held.
    fn turn(&self, core: &mut Core, messages: &mut Vec<Message>) -> News {
        core.turn(messages);
        let is_busy = core.is_busy();
        let was_busy = std::mem::replace(&mut lock(&self.status).busy, is_busy);
        News { completed: std::mem::take(&mut core.completed), was_busy, is_busy }
    }

    /// Wakes those who wait; the baton is not held, since they may come back at once.
    fn tell(&self, news: News) {
        for (completion, result) in news.completed {
            completion.complete(result);
        }
        match (news.was_busy, news.is_busy) {
            (false, true) => self.wake_poller(),
            (true, false) => self.quieter.notify_all(),
            _ => {}
        }
    }

    pub fn policy_error(&self) -> Option<Error> {
        let core = self.baton.core();
        let refusal = core.refusal()?;
        Some(Error::PolicyReplaced {
            policy: refusal.policy.as_str().into(),
            reason: refusal.reason.as_str().into(),
        })
    }

    fn wake_poller(&self) {
        if let Some(poller) = self.poller.get() {
            poller.unpark();
        }
    }

    /// The poller thread.
    fn poll(&self) {
        let backend = &self.device.inner.backend;
        loop {
            // Before the look, so that what happens between look and wait ends the wait.
            let mark = backend.mark();
            self.drive();
            if lock(&self.status).busy {
                backend.wait(mark, POLL_TIMEOUT);
            } else if self.has_drained() {
                break;
            } else {
                // Whoever makes the core busy, or closes the scheduler, unparks.
                thread::park();
            }
        }
        self.device.give_back();
        lock(&self.status).released = true;
        self.quieter.notify_all();
    }

    /// Whether the scheduler is closed and everything is done.
    fn has_drained(&self) -> bool {
        let core = self.baton.core();
        self.baton.is_drained() && !core.is_busy()
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        let shared = &*self.shared;
        shared.baton.close(Message::Close);
        shared.drive();
        shared.wake_poller();
        // The last scheduler may be dropped by a waker that the poller calls.
        if shared.poller.get().is_none_or(|poller| poller.id() != thread::current().id()) {
            let status = lock(&shared.status);
            let released = |status: &mut Status| !status.released;
            drop(shared.quieter.wait_timeout_while(status, CLOSE_TIMEOUT, released));
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("device", &self.device).finish_non_exhaustive()
    }
}
