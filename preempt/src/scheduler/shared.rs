//! Who runs the core: whichever thread has something for it, one at a time.
//!
//! A thread that submits puts its message into the inbox and tries to take the *baton* (the
//! core's lock). If it gets it, it runs the core itself, so that a launch on a free device takes
//! no detour. If not, the holder finds the message: it looks into the inbox again after it has
//! given the baton back. One of the two always sees it, since inbox and baton are mutexes: if
//! the holder's last look came before the message, the baton was free when the submitter tried.
//!
//! While operations are in flight, one poller thread waits for the device. It sleeps otherwise.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, TryLockError};
use std::thread::{self, Thread};
use std::time::Duration;

use super::core::{Core, Message};
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
    inbox: Mutex<Inbox>,
    core: Mutex<Core>,
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

#[derive(Default)]
struct Inbox {
    messages: Vec<Message>,
    closed: bool,
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
            core: Mutex::new(Core::new(device.clone(), policy)),
            device,
            spin,
            inbox: Mutex::default(),
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
    pub fn submit(&self, message: Message) -> Result<(), Error> {
        let mut inbox = lock(&self.inbox);
        if inbox.closed {
            return Err(Error::SchedulerDropped { done: 0, tasks: 0 });
        }
        inbox.messages.push(message);
        drop(inbox);
        self.drive();
        Ok(())
    }

    /// Asks for an operation to be stopped.
    pub fn cancel(&self, completion: Arc<Completion>) {
        lock(&self.inbox).messages.push(Message::Cancel(completion));
        self.drive();
    }

    /// Runs the core, unless another thread does; then that one takes over what is in the inbox.
    pub fn drive(&self) {
        loop {
            let core = match self.core.try_lock() {
                Ok(core) => core,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            self.run(core);
            // The baton is free again: see the top of this file.
            if lock(&self.inbox).messages.is_empty() {
                return;
            }
        }
    }

    /// Runs the core once, then gives the baton back, then wakes those who wait.
    fn run(&self, mut core: MutexGuard<'_, Core>) {
        {
            let core = &mut *core;
            std::mem::swap(&mut lock(&self.inbox).messages, &mut core.messages);
            core.turn();
        }
        let mut status = lock(&self.status);
        let was_busy = std::mem::replace(&mut status.busy, core.is_busy());
        let is_busy = status.busy;
        drop(status);
        let completed = std::mem::take(&mut core.completed);
        drop(core);
        for (completion, result) in completed {
            completion.complete(result);
        }
        match (was_busy, is_busy) {
            (false, true) => self.wake_poller(),
            (true, false) => self.quieter.notify_all(),
            _ => {}
        }
    }

    /// Waits until nothing is in flight.
    pub fn wait_until_idle(&self) {
        // Not `drive`: what the caller submitted must be in flight before it waits.
        self.run(lock(&self.core));
        let status = lock(&self.status);
        drop(self.quieter.wait_while(status, |status| status.busy));
    }

    pub fn policy_error(&self) -> Option<Error> {
        let core = lock(&self.core);
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
        let core = lock(&self.core);
        let inbox = lock(&self.inbox);
        inbox.closed && inbox.messages.is_empty() && !core.is_busy()
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        let shared = &*self.shared;
        let mut inbox = lock(&shared.inbox);
        inbox.closed = true;
        inbox.messages.push(Message::Close);
        drop(inbox);
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
