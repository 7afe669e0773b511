//! One thread at a time runs the core; no message is left behind.
//!
//! Flat combining (Hendler, Incze, Shavit, Tzafrir, SPAA 2010): a thread puts its message into the inbox and tries to
//! take the *combiner*, the core's lock. The lock holder runs the core on all messages, its own and those of others. So
//! a launch on a free device runs on the submitting thread, without a detour.
//!
//! A thread that does not get the lock leaves its message to the holder. Each holder, whatever it took the combiner
//! for, looks into the inbox after it has released it. Inbox and combiner are mutexes: if the holder's last look
//! precedes the message, its release precedes the other thread's attempt. So one of the two threads always sees the
//! message.
//!
//! While a thread *attends*, it polls the inbox, and other threads leave the core to it because its caches are warm.
//! Before it does anything else, it stops attending and looks once more.

use std::collections::VecDeque;
use std::sync::{PoisonError, TryLockError};

#[cfg(all(test, loom))]
use loom::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::Relaxed,
    Ordering::{Acquire, Release},
};
#[cfg(all(test, loom))]
use loom::sync::{Mutex, MutexGuard};

#[cfg(not(all(test, loom)))]
use crate::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::Relaxed,
    Ordering::{Acquire, Release},
};
#[cfg(not(all(test, loom)))]
use crate::sync::{Mutex, MutexGuard};

/// Takes in messages; implemented by the core.
pub(in crate::scheduler) trait Turn {
    type Message;
    /// Results of a turn, told to other threads after the combiner is released.
    type News;

    /// Takes in all messages.
    fn turn(&mut self, mail: Mail<'_, Self::Message>) -> Self::News;
}

/// The messages of a turn, in order of arrival. A turn consumes all of them, because no thread would begin another turn
/// for the rest. A turn that panics does leave some.
pub(in crate::scheduler) struct Mail<'a, M> {
    /// What the last looks have found; `None` in the place of a message that was taken out of its turn.
    taken: &'a mut VecDeque<Option<M>>,
    /// How many of these were considered for that.
    considered: usize,
    inbox: &'a Mutex<Inbox<M>>,
    handled: &'a AtomicU64,
    /// Whether the message that was taken last is being handled.
    handles_one: bool,
}

impl<M> Mail<'_, M> {
    /// The next message that arrived before the last look. The last one was handled.
    pub fn next(&mut self) -> Option<M> {
        self.count();
        let next = self.taken.pop_front().flatten();
        self.considered = self.considered.saturating_sub(1);
        self.handles_one = next.is_some();
        next
    }

    /// Counts the messages that were handled, up to the first one that was not: those are the *first* messages.
    fn count(&mut self) {
        let mut count = u64::from(std::mem::take(&mut self.handles_one));
        while let Some(None) = self.taken.front() {
            self.taken.pop_front();
            self.considered = self.considered.saturating_sub(1);
            count += 1;
        }
        if count > 0 {
            // Release: pairs with the acquire of a thread that waits for this.
            self.handled.fetch_add(count, Release);
        }
    }

    /// The first message that is taken in before its turn, where `goes_first` is given the messages in front of it that are
    /// left, and it. Each message is considered once. The last one was handled.
    pub fn out_of_turn(
        &mut self,
        mut goes_first: impl FnMut(&mut dyn Iterator<Item = &M>, &M) -> bool,
    ) -> Option<M> {
        self.count();
        for at in self.considered.max(1)..self.taken.len() {
            let (front, message) = (self.taken.range(..at), self.taken.get(at));
            let Some(Some(message)) = message else { continue };
            if goes_first(&mut front.flatten(), message) {
                self.considered = at + 1;
                return self.taken.get_mut(at)?.take();
            }
        }
        self.considered = self.taken.len();
        None
    }

    /// Whether a message that arrived before the last look is left.
    pub fn has_next(&self) -> bool {
        self.taken.iter().any(Option::is_some)
    }

    /// Whether there is such a message among the next ones, this many of those that the last looks have found.
    pub fn has_soon(&self, within: usize, is_it: impl FnMut(&M) -> bool) -> bool {
        self.taken.iter().flatten().take(within).any(is_it)
    }

    /// Looks into the inbox; returns whether there is a next message.
    pub fn look(&mut self) -> bool {
        let mut inbox = locked(self.inbox);
        match self.taken.is_empty() {
            true => std::mem::swap(&mut inbox.messages, self.taken),
            false => self.taken.append(&mut inbox.messages),
        }
        self.has_next()
    }
}

impl<M> Drop for Mail<'_, M> {
    fn drop(&mut self) {
        self.count();
    }
}

/// The core with its inbox. Every method that takes the combiner calls `tell` after releasing it.
pub(in crate::scheduler) struct Combiner<C: Turn> {
    inbox: Mutex<Inbox<C::Message>>,
    core: Mutex<Holder<C>>,
    /// Whether a thread polls the inbox.
    ///
    /// Relaxed, because the inbox orders what matters: if the attending thread's last look precedes a message, the
    /// poster sees the flag cleared.
    attended: AtomicBool,
    /// Messages that were handled.
    handled: AtomicU64,
}

/// Why a message was not put into the inbox.
pub(in crate::scheduler) enum Unposted<M> {
    /// The inbox is closed.
    Closed,
    /// `admit` refused the message.
    Refused(M),
}

struct Inbox<M> {
    /// All are there; see [`Mail`].
    messages: VecDeque<Option<M>>,
    /// Messages that there ever were.
    posted: u64,
    closed: bool,
}

impl<M> Inbox<M> {
    fn push(&mut self, message: M) {
        self.messages.push_back(Some(message));
        self.posted += 1;
    }
}

struct Holder<C: Turn> {
    core: C,
    /// Empty between turns; kept for its capacity.
    messages: VecDeque<Option<C::Message>>,
}

fn locked<M>(inbox: &Mutex<Inbox<M>>) -> MutexGuard<'_, Inbox<M>> {
    inbox.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<C: Turn> Combiner<C> {
    pub fn new(core: C) -> Combiner<C> {
        let inbox = Inbox { messages: VecDeque::new(), posted: 0, closed: false };
        let holder = Holder { core, messages: VecDeque::new() };
        Combiner {
            inbox: Mutex::new(inbox),
            core: Mutex::new(holder),
            attended: AtomicBool::new(false),
            handled: AtomicU64::new(0),
        }
    }

    /// Starts attending: the calling thread polls the inbox from now on, with [`drive_now`](Combiner::drive_now).
    pub fn attend(&self) {
        if !self.attended.load(Relaxed) {
            self.attended.store(true, Relaxed);
        }
    }

    /// Stops attending; returns whether the inbox needs one more look.
    pub fn stop_attending(&self) -> bool {
        self.attended.store(false, Relaxed);
        self.has_messages()
    }

    /// The number of messages so far, for [`has_handled`](Combiner::has_handled).
    pub fn posted(&self) -> u64 {
        self.inbox().posted
    }

    /// Whether the first messages, this many, were handled. What they did is visible then.
    pub fn has_handled(&self, messages: u64) -> bool {
        self.handled.load(Acquire) >= messages
    }

    fn has_messages(&self) -> bool {
        !self.inbox().messages.is_empty()
    }

    /// Waits for the combiner and looks at the core. `None` if messages have arrived, which the caller has to take
    /// over; nothing else happens in between.
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

    /// Puts a message into the inbox if `admit` agrees. `admit` looks at it with the inbox locked, so it sees what
    /// another thread wrote before posting.
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
        inbox.push(message);
        Ok(())
    }

    /// Puts the last message into the inbox and closes it.
    pub fn close(&self, message: C::Message) {
        let mut inbox = self.inbox();
        inbox.push(message);
        inbox.closed = true;
    }

    /// Runs the core on the inbox, unless another thread attends or holds the combiner, which then takes the messages
    /// over.
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

    /// Waits for the combiner and runs the core, which looks at everything that happened before the call.
    pub fn drive_now(&self, mut tell: impl FnMut(C::News)) {
        tell(self.run(self.core()));
        self.look_again(tell);
    }

    /// Waits for the combiner and looks at the core.
    pub fn with_core<R>(&self, look: impl FnOnce(&mut C) -> R, tell: impl FnMut(C::News)) -> R {
        let result = look(&mut self.core().core);
        self.look_again(tell);
        result
    }

    /// Takes over messages that arrived while this thread held the combiner.
    fn look_again(&self, tell: impl FnMut(C::News)) {
        if self.has_messages() {
            self.drive(tell);
        }
    }

    /// Runs the core once and releases the combiner.
    fn run(&self, mut holder: MutexGuard<'_, Holder<C>>) -> C::News {
        let Holder { core, messages } = &mut *holder;
        let (inbox, handled) = (&self.inbox, &self.handled);
        let (considered, handles_one) = (0, false);
        let mut mail = Mail { taken: messages, considered, inbox, handled, handles_one };
        mail.look();
        core.turn(mail)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::{Combiner, Mail, Turn};

    /// Takes numbers above 9 out of their turn, and notes in which order all were taken in, and how many messages counted as
    /// handled then.
    #[derive(Default)]
    struct LargeOnesFirst(Vec<(u32, u64)>);

    impl Turn for LargeOnesFirst {
        type Message = u32;
        type News = ();

        fn turn(&mut self, mut mail: Mail<'_, u32>) {
            loop {
                // Not before those that end with the same digit.
                let goes_first = |in_front: &mut dyn Iterator<Item = &u32>, number: &u32| {
                    *number > 9 && in_front.copied().all(|other| other % 10 != number % 10)
                };
                let first = mail.out_of_turn(goes_first);
                let Some(number) = first.or_else(|| mail.next()) else { break };
                let handled = mail.handled.load(std::sync::atomic::Ordering::SeqCst);
                assert_eq!(mail.has_next(), self.0.len() < 5);
                self.0.push((number, handled));
            }
        }
    }

    #[test]
    fn messages_count_as_handled_in_order_of_arrival() {
        let combiner = Combiner::new(LargeOnesFirst::default());
        for number in [1, 2, 13, 22, 14, 5] {
            assert!(combiner.post(number));
        }
        combiner.drive(|()| ());
        let expected = [(13, 0), (14, 0), (1, 0), (2, 1), (22, 3), (5, 5)];
        assert_eq!(combiner.core().core.0, expected);
        assert!(combiner.has_handled(6) && !combiner.has_handled(7));
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::thread;

    use super::{Combiner, Mail, Turn};

    /// Adds messages up. The sum is an atomic, so that loom lets other threads run while the core does.
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

    /// One thread submits while another thread holds the combiner for a reason of its own.
    fn no_message_is_left_behind(other: fn(&Combiner<Sum>)) {
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
        no_message_is_left_behind(|combiner| {
            combiner.post(100);
            combiner.drive(|()| ());
        });
    }

    #[test]
    fn beside_the_poller() {
        no_message_is_left_behind(|combiner| combiner.drive_now(|()| ()));
    }

    #[test]
    fn beside_a_thread_that_stops_attending() {
        no_message_is_left_behind(|combiner| {
            combiner.attend();
            combiner.drive_now(|()| ());
            if combiner.stop_attending() {
                combiner.drive(|()| ());
            }
        });
    }

    #[test]
    fn beside_a_look_at_the_core() {
        no_message_is_left_behind(|combiner| {
            combiner.with_core(|sum| sum.0.fetch_add(0, Ordering::Relaxed), |()| ());
        });
    }

    #[test]
    fn beside_a_peek() {
        no_message_is_left_behind(|combiner| {
            if combiner.peek(|sum| sum.0.fetch_add(0, Ordering::Relaxed)).is_none() {
                combiner.drive(|()| ());
            }
        });
    }
}
