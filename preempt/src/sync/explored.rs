//! What shuttle lacks: time, and waits that end with it.

use std::cell::Cell;
use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LockResult, PoisonError};
use std::time::Duration;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::MutexGuard;
use shuttle::thread;

/// Virtual time by which each look moves the clock: a thread that spins until a time looks a few times.
const TICK: Duration = Duration::from_micros(100);

/// Virtual time that nothing takes here. Waits for this or longer do not end by themselves. So a thread that goes on
/// only because of such a timeout waits for ever, and shuttle reports it.
const LONG: Duration = Duration::from_millis(100);

/// Switches to other threads before a timeout, at most.
const PATIENCE: u32 = 64;

thread_local! {
    /// All threads of shuttle run on one thread of the system. Only differences count, so no test has to reset it.
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// A moment on a clock that moves with each look, and to the end of waits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Instant(Duration);

impl Instant {
    pub fn now() -> Instant {
        NOW.set(NOW.get() + TICK);
        Instant(NOW.get())
    }

    pub fn elapsed(self) -> Duration {
        Instant::now() - self
    }

    pub fn checked_add(self, time: Duration) -> Option<Instant> {
        self.0.checked_add(time).map(Instant)
    }

    pub fn checked_duration_since(self, other: Instant) -> Option<Duration> {
        self.0.checked_sub(other.0)
    }

    pub fn saturating_duration_since(self, other: Instant) -> Duration {
        self.0.saturating_sub(other.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, time: Duration) -> Instant {
        Instant(self.0 + time)
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, other: Instant) -> Duration {
        self.saturating_duration_since(other)
    }
}

/// A condition variable whose waits can time out, at any moment.
#[derive(Debug, Default)]
pub(crate) struct Condvar(Arc<shuttle::sync::Condvar>);

/// The guard, without the result of the wait, which no caller looks at.
type Waited<'a, T> = LockResult<(MutexGuard<'a, T>, ())>;

impl Condvar {
    pub fn new() -> Condvar {
        Condvar::default()
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.0.wait(guard)
    }

    pub fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<MutexGuard<'a, T>> {
        self.0.wait_while(guard, condition)
    }

    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> Waited<'a, T> {
        let _timer = (timeout < LONG).then(|| Timer::start(self.0.clone(), timeout));
        match self.wait(guard) {
            Ok(guard) => Ok((guard, ())),
            Err(poisoned) => Err(PoisonError::new((poisoned.into_inner(), ()))),
        }
    }

    pub fn wait_timeout_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> Waited<'a, T> {
        let (end, mut left) = (Instant::now() + timeout, timeout);
        // Other threads go first even if no time is left: a thread that looks again and again would keep them from
        // going on.
        while condition(&mut guard) {
            guard = self.wait_timeout(guard, left)?.0;
            left = end - Instant::now();
            if timeout >= LONG {
                // However often another waiter is meant.
                left = timeout;
            } else if left.is_zero() {
                break;
            }
        }
        Ok((guard, ()))
    }
}

/// A thread that ends a wait; it gives up when this is dropped.
struct Timer(Arc<AtomicBool>);

impl Timer {
    fn start(condvar: Arc<shuttle::sync::Condvar>, timeout: Duration) -> Timer {
        let end = NOW.get() + timeout;
        let is_over = Arc::new(AtomicBool::new(false));
        let timer = Timer(is_over.clone());
        // The flag is the standard library's, so that no thread goes between the look and what follows.
        let is_over = move || is_over.load(Ordering::Relaxed);
        thread::spawn(move || {
            for _ in 0..thread_rng().gen_range(0..PATIENCE) {
                if is_over() {
                    return;
                }
                thread::yield_now();
            }
            // More than once: the waiter may not have begun to wait.
            while !is_over() {
                NOW.set(NOW.get().max(end));
                condvar.notify_all();
                thread::yield_now();
            }
        });
        timer
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
