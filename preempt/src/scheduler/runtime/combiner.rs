//! One thread at a time runs the core; no message is left behind.
//!
//! A thread that has something for the core puts it into the inbox and tries to take the *combiner*
//! (the core's lock). If it gets it, it runs the core itself, so that a launch on a free device
//! takes no detour. If not, the holder finds the message: each thread that held the combiner, for
//! any reason, looks into the inbox after it has given the combiner back. One of the two always sees the
//! message, since both are mutexes: if the holder's last look came before the message, then it had
//! given the combiner back before the other thread tried to take it.
//!
//! While a thread *attends*, it looks into the inbox all the time, and the others leave the core to
//! it: its caches are warm, and theirs are not. Before it does anything else, it stops attending and
//! then looks once more.

use std::collections::VecDeque;
use std::sync::{PoisonError, TryLockError};

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};

#[cfg(not(loom))]
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};
#[cfg(not(loom))]
use crate::sync::{Mutex, MutexGuard};

/// What takes messages in.
pub(in crate::scheduler) trait Turn {
    type Message;
    /// What others have to be told, once the combiner is back.
    type News;

    /// Takes in everything that has come.
    fn turn(&mut self, mail: Mail<'_, Self::Message>) -> Self::News;
}

/// The messages of a turn, in the order in which they came. It takes all of them: no thread would begin another turn for
/// those that it left, as a turn that panics does.
pub(in crate::scheduler) struct Mail<'a, M> {
    taken: &'a mut VecDeque<M>,
    inbox: &'a Mutex<Inbox<M>>,
}

impl<M> Mail<'_, M> {
    /// The next of the messages that had come by the last look.
    pub fn next(&mut self) -> Option<M> {
        self.taken.pop_front()
    }

    /// What comes after that, as far as it had come by the last look.
    pub fn coming(&self) -> impl DoubleEndedIterator<Item = &M> {
        self.taken.iter()
    }

    /// Looks into the inbox; whether there is a next message now.
    pub fn look(&mut self) -> bool {
        let mut inbox = locked(self.inbox);
        match self.taken.is_empty() {
            true => std::mem::swap(&mut inbox.messages, self.taken),
            false => self.taken.append(&mut inbox.messages),
        }
        !self.taken.is_empty()
    }
}

/// The core with its inbox. Every method that takes the combiner calls `tell` without it.
pub(in crate::scheduler) struct Combiner<C: Turn> {
    inbox: Mutex<Inbox<C::Message>>,
    core: Mutex<Holder<C>>,
    /// Whether a thread looks into the inbox all the time.
    ///
    /// Relaxed: the inbox orders what matters. If the last look of the thread that stops attending
    /// came before a message, then the thread that posted it sees that none attends.
    attended: AtomicBool,
}

/// Why a message was not put into the inbox.
pub(in crate::scheduler) enum Unposted<M> {
    /// The inbox is closed.
    Closed,
    /// It was not admitted.
    Refused(M),
}

struct Inbox<M> {
    messages: VecDeque<M>,
    closed: bool,
}

struct Holder<C: Turn> {
    core: C,
    /// Empty; kept for its capacity.
    messages: VecDeque<C::Message>,
}

fn locked<M>(inbox: &Mutex<Inbox<M>>) -> MutexGuard<'_, Inbox<M>> {
    inbox.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<C: Turn> Combiner<C> {
    pub fn new(core: C) -> Combiner<C> {
        let inbox = Inbox { messages: VecDeque::new(), closed: false };
        let holder = Holder { core, messages: VecDeque::new() };
        Combiner {
            inbox: Mutex::new(inbox),
            core: Mutex::new(holder),
            attended: AtomicBool::new(false),
        }
    }

    /// From now on the calling thread looks all the time, with [`drive_now`](Combiner::drive_now).
    pub fn attend(&self) {
        if !self.attended.load(Relaxed) {
            self.attended.store(true, Relaxed);
        }
    }

    /// From now on it does not; whether it has to look once more.
    pub fn stop_attending(&self) -> bool {
        self.attended.store(false, Relaxed);
        self.has_messages()
    }

    fn has_messages(&self) -> bool {
        !self.inbox().messages.is_empty()
    }

    /// Waits for the combiner, and looks at the core; `None` if there are messages by then, which the
    /// caller has to take over. Nothing else happens in between.
    pub fn peek<R>(&self, look: impl FnOnce(&mut C) -> R) -> Option<R> {
        let result = look(&mut self.core().core);
        (!self.has_messages()).then_some(result)
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox<C::Message>> {
        locked(&self.inbox)
    }

    fn core(&self) -> MutexGuard<'_, Holder<C>> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a message into the inbox, for the next [`drive`](Combiner::drive); `false` if the inbox is
    /// closed.
    pub fn post(&self, message: C::Message) -> bool {
        self.post_if(message, |_| true).is_ok()
    }

    /// The same if `admit` says so, which looks at the message with the inbox locked: what another thread has written
    /// before it posted is seen.
    pub fn post_if(
        &self,
        message: C::Message,
        admit: impl FnOnce(&C::Message) -> bool,
    ) -> Result<(), Unposted<C::Message>> {
        let mut inbox = self.inbox();
        if inbox.closed {
            return Err(Unposted::Closed);
        }
        if !admit(&message) {
            return Err(Unposted::Refused(message));
        }
        inbox.messages.push_back(message);
        Ok(())
    }

    /// Puts the last message in.
    pub fn close(&self, message: C::Message) {
        let mut inbox = self.inbox();
        inbox.messages.push_back(message);
        inbox.closed = true;
    }

    /// Runs the core on what is in the inbox, unless another thread attends or has the combiner; then
    /// that one takes over what is there.
    pub fn drive(&self, mut tell: impl FnMut(C::News)) {
        while !self.attended.load(Relaxed) {
            let core = match self.core.try_lock() {
                Ok(core) => core,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            tell(self.run(core));
            if !self.has_messages() {
                return;
            }
        }
    }

    /// Waits for the combiner, and runs the core: it looks at everything that happened before the
    /// call.
    pub fn drive_now(&self, mut tell: impl FnMut(C::News)) {
        tell(self.run(self.core()));
        self.look_again(tell);
    }

    /// Waits for the combiner, and looks at the core.
    pub fn with_core<R>(&self, look: impl FnOnce(&mut C) -> R, tell: impl FnMut(C::News)) -> R {
        let result = look(&mut self.core().core);
        self.look_again(tell);
        result
    }

    /// Takes over what came while this thread had the combiner.
    fn look_again(&self, tell: impl FnMut(C::News)) {
        if self.has_messages() {
            self.drive(tell);
        }
    }

    /// Runs the core once and gives the combiner back.
    fn run(&self, mut holder: MutexGuard<'_, Holder<C>>) -> C::News {
        let Holder { core, messages } = &mut *holder;
        let mut mail = Mail { taken: messages, inbox: &self.inbox };
        mail.look();
        core.turn(mail)
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::thread;

    use super::{Combiner, Mail, Turn};

    /// Adds messages up. An atomic, so that loom lets others go first while the core runs.
    #[derive(Default)]
    struct Sum(AtomicU32);

    impl Turn for Sum {
        type Message = u32;
        type News = ();

        fn turn(&mut self, mut mail: Mail<'_, u32>) {
            while mail.look() {
                while let Some(message) = mail.next() {
                    self.0.fetch_add(message, Ordering::Relaxed);
                }
            }
        }
    }

    /// One thread submits while another one has the combiner for a reason of its own.
    fn nothing_is_left_behind(other: fn(&Combiner<Sum>)) {
        loom::model(move || {
            let combiner = Arc::new(Combiner::new(Sum::default()));
            let theirs = combiner.clone();
            let other = thread::spawn(move || other(&theirs));
            assert!(combiner.post(10));
            combiner.drive(|()| ());
            other.join().expect("no panic");
            let sum = &combiner.core().core.0;
            assert_eq!(sum.load(Ordering::Relaxed) % 100, 10);
        });
    }

    #[test]
    fn beside_another_submission() {
        nothing_is_left_behind(|combiner| {
            combiner.post(100);
            combiner.drive(|()| ());
        });
    }

    #[test]
    fn beside_the_poller() {
        nothing_is_left_behind(|combiner| combiner.drive_now(|()| ()));
    }

    #[test]
    fn beside_one_who_stops_attending() {
        nothing_is_left_behind(|combiner| {
            combiner.attend();
            combiner.drive_now(|()| ());
            if combiner.stop_attending() {
                combiner.drive(|()| ());
            }
        });
    }

    #[test]
    fn beside_a_look_at_the_core() {
        nothing_is_left_behind(|combiner| {
            combiner.with_core(|sum| sum.0.fetch_add(0, Ordering::Relaxed), |()| ());
        });
    }

    #[test]
    fn beside_a_peek() {
        nothing_is_left_behind(|combiner| {
            if combiner.peek(|sum| sum.0.fetch_add(0, Ordering::Relaxed)).is_none() {
                combiner.drive(|()| ());
            }
        });
    }
}
