//! The core runs on the thread that has a message for it, one thread at a time.
//!
//! See `combiner` for why no submission is left behind.
//!
//! While operations are in flight, one poller thread waits for the device. Otherwise it sleeps.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, Weak};
use std::time::Duration;

use preempt_device::host::Preemption;

use super::combiner::{Combiner, Unposted};
use super::completion::Completion;
use super::core::{Core, InFlight, Job, Message, News, Rest, Target};
use super::moves;
use super::opaque::{OpaqueThread, Task};
use super::priorities::Priorities;
use super::warm_up::WarmUp;
use crate::device::{Backend, Device, DeviceInner, Mark, Patience, SignalPath};
use crate::engine::Change;
use crate::error::{Error, LaunchError, SchedulerError};
use crate::module::DeviceCode;
use crate::policy::Policy;
use crate::predict::Predictor;
use crate::recording::Recording;
use crate::scheduler::observed::stats::Stats;
use crate::scheduler::observed::trace::Trace;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::mpsc::Sender;
use crate::sync::thread::{self, JoinHandle, Thread};
use crate::sync::{Condvar, Instant, Mutex, contain, hint, lock, thread_local};
use crate::vocabulary::Costs;

thread_local! {
    /// The scheduler whose poller this thread is: a waker that it calls may wait for an operation of another scheduler.
    static POLLED: RefCell<Weak<Shared>> = RefCell::default();
}

/// Time between two questions whether an operation of another scheduler has ended, which is not announced to this one.
const FOREIGN_TIMEOUT: Duration = Duration::from_millis(1);

/// Time, at most, that the poller waits for the device before it looks by itself.
const POLL_TIMEOUT: Duration = Duration::from_millis(100);

/// Time that the poller spins after something happened, by default.
pub(in crate::scheduler) const POLLER_SPIN: Duration = Duration::from_millis(1);

/// Time between two checks, while it spins beside work in flight, that the device still works.
const FAULT_CHECK: Duration = Duration::from_millis(10);

/// Time, at most, that dropping a scheduler waits for running kernels to stop.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A thread of a layer above, which ends [external operations](super::external::ExternalOperation). Closing the scheduler stops
/// it.
pub(crate) trait Helper: Any + Send + Sync {
    fn stop(&self);
}

/// A scheduler, as its threads share it: those that submit and wait, and the poller.
pub(crate) struct Shared {
    pub device: Device,
    pub wait_spin: Duration,
    /// Preemption of launches that do not choose it.
    pub preemption: Preemption,
    /// How long an armed program waits for its launch on the device.
    armed_for: Duration,
    /// Patience of requests for memory that do not choose it.
    pub patience: Patience,
    /// How long the poller of a polled device spins after something happened, operations in flight or not.
    poller_spin: Duration,
    combiner: Combiner<Core>,
    /// Of the streams that there are.
    priorities: Arc<Priorities>,
    /// Numbers for the streams of moves.
    moves: AtomicU32,
    in_flight: Arc<InFlight>,
    /// Whether the device was given back.
    released: Mutex<bool>,
    release: Condvar,
    /// Calls opaque work; started at the first use.
    opaque: OnceLock<OpaqueThread>,
    /// Looks after streams and events of other libraries; started at the first use.
    helper: OnceLock<Box<dyn Helper>>,
    poller: OnceLock<Thread>,
    /// For the thread that closes the scheduler.
    join: Mutex<Option<JoinHandle<()>>>,
}

/// A builder's settings beside device, policy and kernels.
#[derive(Clone, Copy, Debug)]
pub(in crate::scheduler) struct Settings {
    /// How long a thread that waits for a handle spins before it sleeps.
    pub wait_spin: Duration,
    /// How long the poller of a polled device spins after something happened, operations in flight or not.
    pub poller_spin: Duration,
    /// Preemption of launches that do not choose it.
    pub preemption: Preemption,
    /// The longest launch that may be a plain grid without being told to.
    pub longest_plain: Duration,
    /// How long an armed program waits for its launch on the device.
    pub armed_for: Duration,
    /// What the device and its host take, if it is not what was measured.
    pub costs: Option<Costs>,
    /// How signals reach the device.
    pub signal_path: SignalPath,
    /// Mebibytes for block-tasks that blocks leave at checkpoints.
    pub checkpoint_memory: u32,
    /// Whether everything is recorded.
    pub recording: bool,
    /// Patience of requests for memory that do not choose it.
    pub patience: Patience,
    /// How many entries of a timeline to keep, if any.
    pub trace: Option<usize>,
}

/// Closes the scheduler when its last clone is dropped.
pub(in crate::scheduler) struct Closer {
    pub shared: Arc<Shared>,
}

impl Shared {
    pub(in crate::scheduler) fn start(
        device: Device,
        policy: Box<dyn Policy>,
        predictor: Box<dyn Predictor>,
        code: &[DeviceCode],
        settings: Settings,
    ) -> Result<Arc<Shared>, Error> {
        device.take()?;
        let taken = device.clone();
        Self::start_on(device, policy, predictor, code, settings).inspect_err(|_| taken.give_back())
    }

    fn start_on(
        device: Device,
        policy: Box<dyn Policy>,
        predictor: Box<dyn Predictor>,
        code: &[DeviceCode],
        settings: Settings,
    ) -> Result<Arc<Shared>, Error> {
        let Settings {
            wait_spin, poller_spin, preemption, armed_for, signal_path, patience, ..
        } = settings;
        let save_bytes = (settings.checkpoint_memory as usize).saturating_mul(1 << 20);
        device.inner.backend.load(code, signal_path, save_bytes)?;
        let (in_flight, priorities) = (Arc::<InFlight>::default(), Arc::<Priorities>::default());
        let shared = Arc::new(Shared {
            combiner: Combiner::new(Core::new(
                device.clone(),
                policy,
                predictor,
                in_flight.clone(),
                priorities.clone(),
                settings,
            )),
            priorities,
            moves: AtomicU32::new(0),
            device,
            wait_spin,
            preemption,
            armed_for,
            patience,
            poller_spin,
            in_flight,
            released: Mutex::new(false),
            release: Condvar::new(),
            opaque: OnceLock::new(),
            helper: OnceLock::new(),
            poller: OnceLock::new(),
            join: Mutex::new(None),
        });
        // Within the time that is the default, caches are still warm from what has happened.
        let spins = poller_spin > POLLER_SPIN && shared.device.inner.capabilities.is_polled;
        // Decisions that cost nothing need no warm caches.
        let warm_up = spins.then(|| WarmUp::new(&shared.device, settings));
        let warm_up = warm_up.filter(|of| !of.period.is_zero());
        let polled = shared.clone();
        let poller = thread::Builder::new().name("preempt-poller".into());
        match poller.spawn(move || polled.poll(warm_up)) {
            Ok(handle) => {
                // Set here and nowhere else.
                let _ = shared.poller.set(handle.thread().clone());
                *lock(&shared.join) = Some(handle);
                let known: Arc<dyn Any + Send + Sync> = shared.clone();
                *lock(&shared.device.inner.scheduler) = Some(Arc::downgrade(&known));
                Ok(shared)
            }
            Err(source) => Err(Error::Thread { what: "the poller", source: Arc::new(source) }),
        }
    }

    /// The scheduler that a device has, or had last.
    pub(in crate::scheduler) fn of(device: &DeviceInner) -> Option<Arc<Shared>> {
        let last = lock(&device.scheduler).clone()?;
        last.upgrade()?.downcast().ok()
    }

    /// Hands a submission to the core, with the moves that it needs if its buffers were used on other devices.
    pub(in crate::scheduler) fn submit(self: &Arc<Self>, job: Job) -> Result<(), Error> {
        let device = self.device.inner.id;
        let is_at_home = |message: &Message| match message {
            Message::Submit(job) => job.is_at_home(device),
            _ => true,
        };
        match self.combiner.post_if(Message::Submit(job), is_at_home) {
            Ok(()) => {
                self.drive();
                Ok(())
            }
            Err(Unposted::Refused(Message::Submit(job))) => moves::submit(self, job),
            Err(_) => Err(Error::Launch(LaunchError::SchedulerDropped { done: 0, tasks: 0 })),
        }
    }

    /// Puts a submission into the inbox without running the core; `false` if the scheduler is closed.
    pub(in crate::scheduler) fn post(&self, job: Job) -> bool {
        self.combiner.post(Message::Submit(job))
    }

    /// The priorities of the streams that there are.
    pub(in crate::scheduler) fn priorities(&self) -> Arc<Priorities> {
        self.priorities.clone()
    }

    /// A stream number for the operations of one move, which no other stream of the scheduler has.
    pub(in crate::scheduler) fn move_stream(&self) -> u32 {
        // Relaxed: only the number counts. Streams of the application count upwards from 0.
        u32::MAX - self.moves.fetch_add(1, Ordering::Relaxed) % (u32::MAX / 2)
    }

    /// Asks for an operation to be stopped.
    pub(in crate::scheduler) fn cancel(&self, completion: Arc<Completion>) {
        // A closed scheduler has stopped it already.
        self.combiner.post(Message::Cancel(completion));
        self.drive();
    }

    /// Asks for operations to be stopped of which nothing counts.
    pub(in crate::scheduler) fn revoke(&self, completions: Vec<Arc<Completion>>) {
        self.combiner.post(Message::Revoke(completions));
        self.drive();
    }

    /// Waits until the core has seen what was submitted before this call, for as long as a program stays armed; whether it
    /// has. To give up sooner mostly gains nothing, because the core has to take in an unarmed launch, too. If the core is in a
    /// call of the driver that waits for the gate, the call ends at the gate's limit, after as long.
    pub(in crate::scheduler) fn catches_up(&self) -> bool {
        let messages = self.combiner.posted();
        let start = Instant::now();
        while !self.combiner.has_handled(messages) {
            if start.elapsed() > self.armed_for {
                return false;
            }
            self.drive();
            hint::spin_loop();
        }
        true
    }

    /// Tells the core that an armed launch was released.
    pub(in crate::scheduler) fn release(&self, completion: Arc<Completion>) {
        // A closed scheduler has stopped it.
        self.combiner.post(Message::Release(completion));
        self.drive();
    }

    /// Tells the core that an armed launch was disarmed.
    pub(in crate::scheduler) fn disarmed(&self, completion: Arc<Completion>) {
        self.combiner.post(Message::Disarmed(completion));
        self.drive();
    }

    /// Makes launches more urgent, or less.
    pub(in crate::scheduler) fn change(&self, target: Target, change: Change) {
        self.post_change(target, change);
        self.drive();
    }

    /// The same, once the core is [driven](Shared::drive). This runs no application code.
    pub(in crate::scheduler) fn post_change(&self, target: Target, change: Change) {
        // In a closed scheduler no operation waits.
        self.combiner.post(Message::Change(target, change));
    }

    /// Runs the core, unless another thread does, which then takes the submission over.
    pub fn drive(&self) {
        self.combiner.drive(|news| self.tell(news));
    }

    /// Wakes the poller to look. Unlike [`drive`](Shared::drive), this runs no application code.
    pub fn announce(&self) {
        self.device.inner.announce();
    }

    /// The sender to the thread for opaque work, which is started if need be.
    pub(in crate::scheduler) fn opaque_thread(&self) -> Result<Sender<Task>, Error> {
        if self.opaque.get().is_none() {
            // If another thread was faster, this one ends.
            let _ = self.opaque.set(OpaqueThread::start(self.device.clone())?);
        }
        let none = Error::Launch(LaunchError::SchedulerDropped { done: 0, tasks: 0 });
        self.opaque.get().map(OpaqueThread::sender).ok_or(none)
    }

    /// The thread that looks after streams and events of other libraries, which `start` starts.
    pub fn helper<H: Helper>(
        self: &Arc<Self>,
        start: impl FnOnce(Weak<Shared>) -> Result<H, Error>,
    ) -> Result<&H, Error> {
        if self.helper.get().is_none() {
            // If another thread was faster, this one ends.
            let _ = self.helper.set(Box::new(start(Arc::downgrade(self))?));
        }
        let helper = self.helper.get().map(|helper| &**helper as &dyn Any);
        let helper = helper.and_then(|helper| helper.downcast_ref());
        helper.ok_or(Error::Launch(LaunchError::SchedulerDropped { done: 0, tasks: 0 }))
    }

    /// Waits until nothing is in flight.
    pub fn wait_until_idle(&self) {
        // Not `drive`: what the caller submitted must be in flight before it waits.
        self.combiner.drive_now(|news| self.tell(news));
        let is_busy = || *lock(&self.in_flight.any);
        if !self.poll_instead(is_busy) {
            let any = lock(&self.in_flight.any);
            drop(self.in_flight.none.wait_while(any, |any| *any));
        }
    }

    /// Calls `act` while nothing is in flight, and lets nothing begin before it has returned: what is submitted waits.
    pub fn while_idle<R>(&self, act: impl FnOnce(&dyn Backend) -> R) -> R {
        let mut act = Some(act);
        loop {
            self.wait_until_idle();
            let acted = self.combiner.with_core(
                |core| {
                    let act = if core.is_idle() { act.take() } else { None };
                    act.map(|act| act(&*self.device.inner.backend))
                },
                |news| self.tell(news),
            );
            if let Some(result) = acted {
                return result;
            }
        }
    }

    pub fn recording(&self) -> Option<Recording> {
        self.combiner.with_core(|core| core.recording(), |news| self.tell(news))
    }

    pub fn policy_error(&self) -> Option<Error> {
        let refusal =
            self.combiner.with_core(|core| core.refusal().cloned(), |news| self.tell(news))?;
        let (policy, reason) = (refusal.policy.into(), refusal.reason.into());
        Some(Error::Scheduler(SchedulerError::PolicyReplaced { policy, reason }))
    }

    pub fn predictor_error(&self) -> Option<Error> {
        let message = self
            .combiner
            .with_core(|core| core.predictor_panic().map(Arc::from), |news| self.tell(news))?;
        Some(Error::Scheduler(SchedulerError::PredictorDropped { message }))
    }

    pub fn stats(&self) -> Stats {
        self.combiner.with_core(|core| core.stats(), |news| self.tell(news))
    }

    pub(in crate::scheduler) fn trace(&self) -> Option<Trace> {
        self.combiner.with_core(|core| core.trace(), |news| self.tell(news))
    }

    /// Wakes waiting threads and futures. The combiner is released, since they may come back at once.
    fn tell(&self, news: News) {
        if news.became_busy {
            // Even if this is the poller: it may have decided to park before it came here.
            self.wake_poller();
        }
        if news.wake_changed && !self.is_poller() {
            // The poller may sleep beyond that time.
            self.announce();
        }
        if news.became_idle {
            self.in_flight.none.notify_all();
        }
        let (own, of_others): (Vec<_>, Vec<_>) =
            news.retired.into_iter().partition(|job| !job.work.is_of_others());
        drop(own);
        if !news.wakers.is_empty() || !of_others.is_empty() {
            // Wakers are application code, and retired jobs may hold values with destructors: no thread can rely on
            // this thread meanwhile.
            if self.is_poller() && self.combiner.stop_attending() {
                self.drive();
            }
            for waker in news.wakers {
                contain(|| waker.wake());
            }
            for job in of_others {
                contain(|| drop(job));
            }
        }
    }

    fn wake_poller(&self) {
        if let Some(poller) = self.poller.get() {
            poller.unpark();
        }
    }

    /// Whether this is the poller: a waker that it calls may wait for other operations.
    pub fn is_poller(&self) -> bool {
        self.poller.get().is_some_and(|poller| poller.id() == thread::current().id())
    }

    /// Waits while `condition` holds if this thread is a poller, of this scheduler or of another one: looks after that
    /// one's device meanwhile, because no other thread does. `false` if it is none.
    pub fn poll_instead(&self, condition: impl Fn() -> bool) -> bool {
        if self.is_poller() {
            self.poll_while(POLL_TIMEOUT, condition);
            return true;
        }
        let Some(polled) = Shared::polled_by_this_thread() else { return false };
        polled.poll_while(FOREIGN_TIMEOUT, condition);
        true
    }

    /// Whether this thread is a poller, of this scheduler or of another one.
    pub fn is_on_poller(&self) -> bool {
        self.is_poller() || Shared::polled_by_this_thread().is_some()
    }

    /// The scheduler whose poller this thread is.
    fn polled_by_this_thread() -> Option<Arc<Shared>> {
        // Without the value, the thread is ending: an application's.
        POLLED.try_with(|polled| polled.borrow().upgrade()).ok().flatten()
    }

    /// Looks after the device while `condition` holds, which is asked at least each `timeout`.
    fn poll_while(&self, timeout: Duration, condition: impl Fn() -> bool) {
        let device = &self.device.inner;
        while condition() {
            let (mark, _) = self.look();
            if condition() {
                device.wait(mark, timeout);
            }
        }
    }

    /// Has the poller look at the device and at the inbox, even if it sleeps.
    pub fn rouse(&self) {
        self.announce();
        self.wake_poller();
    }

    /// Runs the core. Returns a mark, whose wait is ended by anything after this look at the device, and what the look
    /// found.
    fn look(&self) -> (Mark, Looked) {
        // The mark comes first, and then a turn of the core that begins after it: another thread's turn may have looked
        // at the device before the mark.
        let mark = self.device.inner.mark();
        let mut looked = Looked::default();
        self.combiner.drive_now(|news| {
            looked.happened |= news.happened;
            (looked.is_busy, looked.is_over) = (news.is_busy, news.is_over);
            self.tell(news);
        });
        (mark, looked)
    }

    /// The poller thread.
    fn poll(self: &Arc<Self>, warm_up: Option<WarmUp>) {
        POLLED.with(|polled| polled.replace(Arc::downgrade(self)));
        sleep_exactly();
        self.poll_until_retired(warm_up);
    }

    fn poll_until_retired(&self, mut warm_up: Option<WarmUp>) {
        let device = &self.device.inner;
        let (mut active, mut checked) = (Instant::now(), Instant::now());
        // When the code of an urgent launch has run last.
        let mut warm = active;
        loop {
            let (mark, looked) = self.look();
            let now = Instant::now();
            if looked.happened {
                (active, warm) = (now, now);
            }
            let spins = device.capabilities.is_polled && !looked.is_over;
            if spins && now - active < self.poller_spin {
                if !looked.is_busy {
                    // The next launch finds faults, and is not to wait for a question about them.
                    checked = now;
                } else if now - checked > FAULT_CHECK {
                    checked = now;
                    // A wait checks for faults, and this one ends at once.
                    device.wait(mark, Duration::ZERO);
                }
                self.combiner.attend();
                if let Some(of) = &mut warm_up
                    && !looked.happened
                    && of.is_due(now - warm)
                {
                    if !of.go_on() {
                        warm_up = None;
                    }
                    warm = Instant::now();
                }
                hint::spin_loop();
                continue;
            }
            if self.combiner.stop_attending() {
                continue;
            }
            // No wakers run between this look and the sleep: they may consume the unpark of this thread.
            match self.combiner.peek(Core::rest) {
                None => {}
                Some(Rest::Busy(time)) => device.wait(mark, time.min(POLL_TIMEOUT)),
                // The thread that makes the core busy, or closes the scheduler, unparks this one.
                Some(Rest::Idle) => thread::park(),
                Some(Rest::Retired) => break,
            }
        }
        self.device.give_back();
        *lock(&self.released) = true;
        self.release.notify_all();
    }
}

/// Has the system end this thread's sleeps when their time is over. By default it adds up to 50 µs, to wake several threads at
/// once, and the poller of a GPU sleeps for 50 µs between two looks at a long kernel: it would see the end that much later. The
/// price is twice as many looks.
fn sleep_exactly() {
    // If it is refused, ends are seen later.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

/// What a look at the core found.
#[derive(Clone, Copy, Default)]
struct Looked {
    happened: bool,
    is_busy: bool,
    is_over: bool,
}

impl Drop for Closer {
    fn drop(&mut self) {
        let shared = &*self.shared;
        shared.combiner.close(Message::Close);
        shared.drive();
        // It may wait for the device: an armed launch ends without a word of that.
        shared.rouse();
        let opaque = shared.opaque.get();
        let mut is_released = false;
        // A waker on the poller, or opaque work, may drop the last scheduler; its thread has not ended by then.
        if !shared.is_poller() && !opaque.is_some_and(OpaqueThread::is_current) {
            let start = Instant::now();
            let left = || CLOSE_TIMEOUT.saturating_sub(start.elapsed());
            // On the poller of another scheduler, which may have to fetch contents from here first.
            shared.poll_instead(|| !*lock(&shared.released) && !left().is_zero());
            let wait = |released: &mut bool| !*released;
            let (released, _) = shared
                .release
                .wait_timeout_while(lock(&shared.released), left(), wait)
                .unwrap_or_else(PoisonError::into_inner);
            is_released = *released;
            drop(released);
            // The poller may hold the last reference to the device, which must not be freed while the process ends.
            if is_released && let Some(poller) = lock(&shared.join).take() {
                // It has reported its panic, if it had one.
                let _ = poller.join();
            }
        }
        if let Some(thread) = opaque {
            // If the device was released, everything is over.
            thread.stop(is_released);
        }
        if let Some(helper) = shared.helper.get() {
            helper.stop();
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("device", &self.device).finish_non_exhaustive()
    }
}
