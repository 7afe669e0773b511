//! One thread at a time runs the core; no message is left behind.
//!
//! A thread that has something for the core puts it into the inbox and tries to take the *baton*
//! (the core's lock). If it gets it, it runs the core itself, so that a launch on a free device
//! takes no detour. If not, the holder finds the message: it looks into the inbox again after it
//! has given the baton back. One of the two always sees it, since both are mutexes: if the
//! holder's last look came before the message, then the holder had given the baton back before the
//! other thread tried to take it.

#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};
use std::sync::{PoisonError, TryLockError};

/// The core `C` with its inbox of `M`.
pub(super) struct Baton<C, M> {
    inbox: Mutex<Inbox<M>>,
    core: Mutex<C>,
}

struct Inbox<M> {
    messages: Vec<M>,
    closed: bool,
}

impl<C, M> Baton<C, M> {
    pub fn new(core: C) -> Baton<C, M> {
        let inbox = Inbox { messages: Vec::new(), closed: false };
        Baton { inbox: Mutex::new(inbox), core: Mutex::new(core) }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox<M>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the baton.
    pub fn core(&self) -> MutexGuard<'_, C> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a message into the inbox, whose next [`drive`](Baton::drive) takes it out; `false` if
    /// the inbox is closed.
    pub fn post(&self, message: M) -> bool {
        let mut inbox = self.inbox();
        if !inbox.closed {
            inbox.messages.push(message);
        }
        !inbox.closed
    }

    /// Puts in the last message.
    pub fn close(&self, message: M) {
        let mut inbox = self.inbox();
        inbox.messages.push(message);
        inbox.closed = true;
    }

    /// Whether no message is there, and none will come.
    pub fn is_drained(&self) -> bool {
        let inbox = self.inbox();
        inbox.closed && inbox.messages.is_empty()
    }

    /// Runs the core on what is in the inbox, unless another thread does; then that one takes over
    /// what is there. `after` gets what `turn` returned when the baton is back.
    pub fn drive<R>(
        &self,
        mut turn: impl FnMut(&mut C, &mut Vec<M>) -> R,
        mut after: impl FnMut(R),
    ) {
        loop {
            let core = match self.core.try_lock() {
                Ok(core) => core,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            after(self.run(core, &mut turn));
            if self.inbox().messages.is_empty() {
                return;
            }
        }
    }

    /// As [`drive`](Baton::drive), once, and waits for the baton.
    pub fn drive_now<R>(
        &self,
        mut turn: impl FnMut(&mut C, &mut Vec<M>) -> R,
        after: impl FnOnce(R),
    ) {
        after(self.run(self.core(), &mut turn));
    }

    /// Runs the core once and gives the baton back.
    fn run<R>(
        &self,
        mut core: MutexGuard<'_, C>,
        turn: &mut impl FnMut(&mut C, &mut Vec<M>) -> R,
    ) -> R {
        let mut messages = std::mem::take(&mut self.inbox().messages);
        turn(&mut core, &mut messages)
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::thread;

    use super::Baton;

    #[test]
    fn every_message_is_taken_by_somebody() {
        loom::model(|| {
            // An atomic, so that loom lets others go first while the core runs.
            let baton = Arc::new(Baton::new(AtomicU32::new(0)));
            let send = |message: u32| {
                let baton = baton.clone();
                move || {
                    assert!(baton.post(message));
                    let turn = |sum: &mut AtomicU32, messages: &mut Vec<u32>| {
                        sum.fetch_add(messages.drain(..).sum(), Ordering::Relaxed);
                    };
                    baton.drive(turn, |()| ());
                }
            };
            let other = thread::spawn(send(1));
            send(10)();
            other.join().expect("no panic");
            assert_eq!(baton.core().load(Ordering::Relaxed), 11);
        });
    }
}
