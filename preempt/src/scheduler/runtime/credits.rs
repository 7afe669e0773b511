//! How many operations of a stream can be outstanding.
//!
//! Threads that wait for a credit sleep; futures stand in a line. A credit that is returned wakes the first future of the
//! line that is not awake yet, and all sleeping threads. It is not handed over: whichever takes it first has it. So a
//! future whose task does not run delays no thread, not even a thread that blocks the task's executor.
//!
//! Invariant: as many futures of the line are awake as there are free credits, or all of them. A free credit therefore
//! always has a taker, because an awake future takes it, or wakes the next one when it is dropped.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use super::shared::Shared;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Instant, Mutex, contain, hint, lock};

/// Operations, at most, of one stream that are submitted and have not ended.
pub(in crate::scheduler) const MAX_OUTSTANDING: usize =
    if cfg!(all(test, shuttle)) { 2 } else { 64 };

/// Counts a stream's outstanding operations.
#[derive(Debug, Default)]
pub(in crate::scheduler) struct StreamCredits {
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    outstanding: usize,
    /// The line of futures.
    line: VecDeque<InLine>,
    /// Numbers for futures.
    next: u64,
}

/// A future that waits for a credit.
#[derive(Debug)]
struct InLine {
    number: u64,
    /// `None` once it is awake.
    waker: Option<Waker>,
}

impl State {
    fn free(&self) -> usize {
        MAX_OUTSTANDING - self.outstanding
    }

    fn awake(&self) -> usize {
        self.line.iter().filter(|one| one.waker.is_none()).count()
    }

    /// The waker of the first future that sleeps, which counts as awake from now on.
    fn next_waker(&mut self) -> Option<Waker> {
        self.line.iter_mut().find_map(|one| one.waker.take())
    }
}

impl StreamCredits {
    /// Credits of a stream whose only operation holds its credit already.
    pub fn of_one() -> Arc<StreamCredits> {
        let credits = StreamCredits::default();
        lock(&credits.state).outstanding = 1;
        Arc::new(credits)
    }

    /// Takes a credit for one more operation; waits until there is one.
    fn enter(&self, shared: &Shared) {
        if self.try_enter() {
            return;
        }
        let start = Instant::now();
        while start.elapsed() < shared.wait_spin {
            shared.drive();
            if self.try_enter() {
                return;
            }
            hint::spin_loop();
        }
        // A waker on a poller may submit here: no other thread would look after the device meanwhile.
        while shared.poll_instead(|| lock(&self.state).free() == 0) {
            if self.try_enter() {
                return;
            }
        }
        let full = |state: &mut State| state.free() == 0;
        let state = self.freed.wait_while(lock(&self.state), full);
        state.unwrap_or_else(PoisonError::into_inner).outstanding += 1;
    }

    fn try_enter(&self) -> bool {
        let mut state = lock(&self.state);
        let has_room = state.free() > 0;
        state.outstanding += usize::from(has_room);
        has_room
    }

    /// Takes a credit, or places the future in the line; `number` is its place there.
    fn poll_enter(&self, number: &mut Option<u64>, waker: &Waker) -> Poll<()> {
        // Wakers are application code: none is cloned, dropped or called under the lock.
        let waker = waker.clone();
        let mut state = lock(&self.state);
        let place =
            number.and_then(|number| state.line.iter().position(|one| one.number == number));
        let is_awake = place.is_some_and(|place| state.line[place].waker.is_none());
        // A credit for which another future is awake is left to that.
        if state.free() > 0 && (is_awake || state.free() > state.awake()) {
            state.outstanding += 1;
            let left = place.and_then(|place| state.line.remove(place));
            drop(state);
            drop(left);
            *number = None;
            return Poll::Ready(());
        }
        let before = match place {
            Some(place) => state.line[place].waker.replace(waker),
            None => {
                let new = state.next;
                state.next += 1;
                state.line.push_back(InLine { number: new, waker: Some(waker) });
                *number = Some(new);
                None
            }
        };
        drop(state);
        drop(before);
        Poll::Pending
    }

    /// Takes a future out of the line. The caller has to wake the returned waker.
    fn give_up(&self, number: u64) -> Option<Waker> {
        let mut state = lock(&self.state);
        let place = state.line.iter().position(|one| one.number == number)?;
        let left = state.line.remove(place);
        // If it was awake, a free credit may have lost its taker.
        let next = if state.awake() < state.free() { state.next_waker() } else { None };
        drop(state);
        drop(left);
        next
    }

    /// Returns a credit. The caller has to wake the returned waker.
    #[must_use = "a future waits for its waker"]
    pub fn leave(&self) -> Option<Waker> {
        let mut state = lock(&self.state);
        let was_full = state.free() == 0;
        state.outstanding -= 1;
        let next = state.next_waker();
        drop(state);
        if was_full {
            self.freed.notify_all();
        }
        next
    }
}

/// A stream's credits, one of which may be set aside.
#[derive(Debug, Default)]
pub(in crate::scheduler) struct Credits {
    stream: Arc<StreamCredits>,
    /// Whether a credit is set aside for the next operation.
    is_reserved: AtomicBool,
}

impl Credits {
    /// Takes the credit that is set aside, or else another one; waits until there is one.
    pub fn take(&self, shared: &Shared) -> Arc<StreamCredits> {
        // Relaxed: the count of credits has a lock of its own, and nothing else depends on the flag.
        if !self.is_reserved.swap(false, Ordering::Relaxed) {
            self.stream.enter(shared);
        }
        self.stream.clone()
    }

    /// Returns the credit of an operation that was not submitted.
    pub fn give_back(&self) {
        if let Some(waker) = self.stream.leave() {
            contain(|| waker.wake());
        }
    }

    /// The same credits with one set aside, if there is one.
    pub fn try_reserve(&self) -> Option<Credits> {
        self.stream.try_enter().then(|| self.with_one_reserved())
    }

    /// The same credits with one set aside, once there is one.
    pub fn reserve(&self) -> Reserve<'_> {
        Reserve { credits: self, number: None }
    }

    fn with_one_reserved(&self) -> Credits {
        Credits { stream: self.stream.clone(), is_reserved: AtomicBool::new(true) }
    }
}

impl Clone for Credits {
    /// Without the credit that is set aside, which is one.
    fn clone(&self) -> Credits {
        Credits { stream: self.stream.clone(), is_reserved: AtomicBool::new(false) }
    }
}

impl Drop for Credits {
    fn drop(&mut self) {
        if self.is_reserved.swap(false, Ordering::Relaxed) {
            self.give_back();
        }
    }
}

/// Waits for a credit to set aside. Dropping it leaves the line.
#[derive(Debug)]
pub(in crate::scheduler) struct Reserve<'a> {
    credits: &'a Credits,
    /// Its place in the line.
    number: Option<u64>,
}

impl Future for Reserve<'_> {
    type Output = Credits;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Credits> {
        let Reserve { credits, number } = self.get_mut();
        credits.stream.poll_enter(number, context.waker()).map(|()| credits.with_one_reserved())
    }
}

impl Drop for Reserve<'_> {
    fn drop(&mut self) {
        let next = self.number.and_then(|number| self.credits.stream.give_up(number));
        if let Some(waker) = next {
            contain(|| waker.wake());
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::task::Wake;

    use super::*;

    /// Counts how often a future was woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    /// A future for a credit, with its waker.
    struct Task<'a> {
        future: Reserve<'a>,
        woken: Arc<Woken>,
    }

    impl<'a> Task<'a> {
        fn new(credits: &'a Credits) -> Task<'a> {
            Task { future: credits.reserve(), woken: Arc::default() }
        }

        fn poll(&mut self) -> Option<Credits> {
            let waker = Waker::from(self.woken.clone());
            match Pin::new(&mut self.future).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(credits) => Some(credits),
                Poll::Pending => None,
            }
        }

        fn woken(&self) -> usize {
            self.woken.0.load(SeqCst)
        }
    }

    /// Credits that are all taken.
    fn full() -> Credits {
        let credits = Credits::default();
        (0..MAX_OUTSTANDING).for_each(|_| assert!(credits.stream.try_enter()));
        credits
    }

    #[test]
    fn each_credit_wakes_one_future_in_the_order_of_the_line() {
        let credits = full();
        let mut tasks = [0; 3].map(|_| Task::new(&credits));
        assert!(tasks.iter_mut().all(|task| task.poll().is_none()));
        credits.give_back();
        assert_eq!(tasks.each_ref().map(Task::woken), [1, 0, 0]);
        // The second one is early, and the credit is the first one's.
        assert!(tasks[1].poll().is_none() && Task::new(&credits).poll().is_none());
        let first = tasks[0].poll().expect("its turn");
        drop(first);
        assert_eq!(tasks.each_ref().map(Task::woken), [1, 1, 0]);
    }

    #[test]
    fn a_future_that_is_woken_and_dropped_wakes_the_next() {
        let credits = full();
        let [mut first, mut second] = [0; 2].map(|_| Task::new(&credits));
        assert!(first.poll().is_none() && second.poll().is_none());
        credits.give_back();
        drop(first);
        assert_eq!(second.woken(), 1);
        assert!(second.poll().is_some());
    }

    #[test]
    fn a_future_keeps_its_place_when_a_thread_is_faster() {
        let credits = full();
        let [mut first, mut second] = [0; 2].map(|_| Task::new(&credits));
        assert!(first.poll().is_none() && second.poll().is_none());
        credits.give_back();
        assert!(credits.try_reserve().is_some_and(|taken| {
            assert!(first.poll().is_none());
            drop(taken);
            true
        }));
        assert_eq!((first.woken(), second.woken()), (2, 0));
        assert!(first.poll().is_some());
    }

    #[test]
    fn a_future_that_leaves_before_its_turn_wakes_no_other() {
        let credits = full();
        let [mut first, mut second] = [0; 2].map(|_| Task::new(&credits));
        assert!(first.poll().is_none() && second.poll().is_none());
        drop(first);
        assert_eq!(second.woken(), 0);
        credits.give_back();
        assert_eq!(second.woken(), 1);
    }
}
