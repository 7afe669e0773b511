//! The end of an operation, shared by the core that announces it and the handles that wait for it.

use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError};
use std::task::{Poll, Waker};

use super::credits::StreamCredits;

use crate::engine::LaunchReport;
use crate::error::Error;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Instant, Mutex, lock};
use crate::vocabulary::OpKey;

/// How an operation ended: its report, or why there is none.
pub(in crate::scheduler) type Ending = Result<LaunchReport, Error>;

/// An operation's end, for threads and futures to wait for.
#[derive(Debug)]
pub(in crate::scheduler) struct Completion {
    /// The stream's credits; the operation holds a credit until it ends.
    credits: Arc<StreamCredits>,
    /// The operation's key in the engine; set when the core takes the operation in.
    pub op: OnceLock<OpKey>,
    /// Set with `state`; lets waiting threads look without a lock.
    done: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    result: Option<Ending>,
    /// Wakers of futures, each with the future's number.
    wakers: Vec<(u64, Waker)>,
    /// Numbers for futures.
    next: u64,
    sequel: Option<Sequel>,
    /// How many threads sleep until the end. To wake none is a call of the system, too.
    sleepers: u32,
}

/// The scheduler's own work at the end of an operation. It runs while the combiner is held, so it neither waits nor
/// runs application code.
pub(in crate::scheduler) struct Sequel(Box<dyn FnOnce(&Ending) + Send>);

impl fmt::Debug for Sequel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sequel").finish_non_exhaustive()
    }
}

impl Completion {
    /// A completion for an operation that holds one of these credits.
    pub fn new(credits: Arc<StreamCredits>) -> Completion {
        Completion {
            credits,
            op: OnceLock::new(),
            done: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// A completion with a `sequel`, which neither waits nor runs application code.
    pub fn with_sequel(
        credits: Arc<StreamCredits>,
        sequel: impl FnOnce(&Ending) + Send + 'static,
    ) -> Completion {
        let mut completion = Completion::new(credits);
        let state = completion.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.sequel = Some(Sequel(Box::new(sequel)));
        completion
    }

    /// Ends the operation and wakes waiting threads. The caller has to wake the returned wakers, of futures.
    pub fn complete(&self, result: Ending) -> impl Iterator<Item = Waker> + use<> {
        // First, so that a thread with the result finds the room of the operation.
        let for_room = self.credits.leave();
        let mut state = lock(&self.state);
        let sequel = state.sequel.take().map(|sequel| (sequel, result.clone()));
        state.result = Some(result);
        let wakers = std::mem::take(&mut state.wakers);
        let some_sleep = state.sleepers > 0;
        // Under the lock, so that a thread with the result finds `done` set. Release: pairs with the acquire in
        // `is_done`.
        self.done.store(true, Ordering::Release);
        drop(state);
        if some_sleep {
            self.changed.notify_all();
        }
        if let Some((Sequel(run), result)) = sequel {
            run(&result);
        }
        wakers.into_iter().map(|(_, waker)| waker).chain(for_room)
    }

    /// Whether the operation has ended.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// The result, if the operation has ended.
    pub fn result(&self) -> Option<Ending> {
        lock(&self.state).result.clone()
    }

    /// The result, or a promise to wake `waker`. `number` is the future's, given at its first call. Wakers are
    /// application code, so none is cloned or dropped under the lock.
    pub fn poll(&self, number: &mut Option<u64>, waker: &Waker) -> Poll<Ending> {
        let waker = waker.clone();
        let mut state = lock(&self.state);
        if let Some(result) = &state.result {
            let result = result.clone();
            drop(state);
            return Poll::Ready(result);
        }
        let known = state.wakers.iter().position(|(one, _)| Some(*one) == *number);
        let before = match known {
            Some(known) => Some(std::mem::replace(&mut state.wakers[known].1, waker)),
            None => {
                let new = state.next;
                state.next += 1;
                state.wakers.push((new, waker));
                *number = Some(new);
                None
            }
        };
        drop(state);
        drop(before);
        Poll::Pending
    }

    /// Forgets the waker of a future, which is dropped.
    pub fn forget(&self, number: u64) {
        let mut state = lock(&self.state);
        let known = state.wakers.iter().position(|(one, _)| *one == number);
        let before = known.map(|known| state.wakers.swap_remove(known));
        drop(state);
        drop(before);
    }

    /// The result, waiting for it until `deadline`.
    pub fn park(&self, deadline: Option<Instant>) -> Option<Ending> {
        let mut state = lock(&self.state);
        loop {
            if let Some(result) = &state.result {
                return Some(result.clone());
            }
            let left = match deadline {
                None => None,
                Some(deadline) => Some(deadline.checked_duration_since(Instant::now())?),
            };
            state.sleepers += 1;
            state = match left {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) => match self.changed.wait_timeout(state, left) {
                    Ok((state, _)) => state,
                    Err(poisoned) => poisoned.into_inner().0,
                },
            };
            state.sleepers -= 1;
        }
    }
}
