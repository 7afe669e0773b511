//! Waiting for posts: the grids that have yet to post, and whether something has happened that the scheduler has not
//! looked at.
//!
//! The scheduler's own list of cohorts is behind its lock, which a waiting thread does not have. A turn that reads
//! posts does not wait for waiting threads either. So the pending posts are kept here a second time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use preempt_device::abi::Post;

use super::lock;
use crate::device::{Mark, News};

/// Time that a waiting thread spins after something happened: events microseconds apart are seen within microseconds.
const SPIN: Duration = Duration::from_millis(1);
/// Time between two looks afterwards, so that long kernels do not cost a processor. A launch does not wake the sleeper,
/// because that would take microseconds of the launching thread, which mostly looks itself.
const SLEEP: Duration = Duration::from_micros(50);
/// Time between two questions to the driver whether the context still works.
const FAULT_CHECK: Duration = Duration::from_millis(10);

/// The posts that are yet to come.
#[derive(Debug)]
pub(super) struct Watch {
    news: Arc<News>,
    start: Instant,
    /// Nanoseconds since `start`: when the device last got work or finished some.
    active: AtomicU64,
    /// Launched, and in no queue yet, so that a launch does not wait for a thread that looks.
    arrivals: Mutex<Vec<(u32, PendingPost)>>,
    /// Set when there are arrivals.
    has_arrivals: AtomicBool,
    /// Posts of each queue in the order of launch, in which they end too: looking at the first is enough.
    queues: Mutex<Vec<VecDeque<PendingPost>>>,
}

/// The post of a grid that is on the device.
#[derive(Clone, Copy, Debug)]
struct PendingPost {
    post: *const Post,
    ticket: u32,
}

// SAFETY: posts are shared between threads through atomics only.
unsafe impl Send for PendingPost {}

impl PendingPost {
    /// Whether the grid, or a later grid with the same post, has posted.
    fn is_back(self) -> bool {
        // SAFETY: the device keeps posts as long as it lives.
        unsafe { &*self.post }.has_passed(self.ticket)
    }
}

impl Watch {
    pub fn new(queues: usize, news: Arc<News>) -> Watch {
        Watch {
            news,
            start: Instant::now(),
            active: AtomicU64::new(0),
            arrivals: Mutex::default(),
            has_arrivals: AtomicBool::new(false),
            queues: Mutex::new(vec![VecDeque::new(); queues]),
        }
    }

    /// Adds a cohort that was just launched.
    ///
    /// # Safety
    ///
    /// The post lives as long as the watch.
    pub unsafe fn add(&self, queue: u32, post: *const Post, ticket: u32) {
        let mut arrivals = lock(&self.arrivals);
        arrivals.push((queue, PendingPost { post, ticket }));
        // Relaxed: a thread that sees the flag takes the lock.
        self.has_arrivals.store(true, Ordering::Relaxed);
        drop(arrivals);
        self.stir();
    }

    /// Notes activity, so that waiting threads look often.
    pub fn stir(&self) {
        // Relaxed: a thread that sees the time late sleeps once more.
        self.active.store(self.start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    /// Announces an event that no post shows.
    pub fn announce(&self) {
        self.news.announce();
        self.stir();
    }

    /// Removes cohorts that have posted from the queues, and announces that.
    fn look(&self, queues: &mut [VecDeque<PendingPost>]) {
        if self.has_arrivals.load(Ordering::Relaxed) {
            let mut arrivals = lock(&self.arrivals);
            for (queue, out) in arrivals.drain(..) {
                queues[queue as usize].push_back(out);
            }
            self.has_arrivals.store(false, Ordering::Relaxed);
        }
        let mut is_news = false;
        for queue in queues {
            while queue.front().is_some_and(|out| out.is_back()) {
                queue.pop_front();
                is_news = true;
            }
        }
        if is_news {
            self.announce();
        }
    }

    /// Whether cohorts are on the device.
    pub fn has_pending(&self) -> bool {
        let mut queues = lock(&self.queues);
        self.look(&mut queues);
        queues.iter().any(|queue| !queue.is_empty())
    }

    /// The queues with cohorts on the device.
    pub fn busy_queues(&self) -> Vec<u32> {
        let mut queues = lock(&self.queues);
        self.look(&mut queues);
        let busy = queues.iter().enumerate().filter(|(_, queue)| !queue.is_empty());
        busy.map(|(queue, _)| queue as u32).collect()
    }

    /// Forgets all cohorts.
    pub fn clear(&self) {
        let mut queues = lock(&self.queues);
        self.look(&mut queues);
        queues.iter_mut().for_each(VecDeque::clear);
    }

    /// Waits until something was announced since the mark, a grid has posted, or `has_news`; or for `timeout`. `check`
    /// asks the driver for faults each [`FAULT_CHECK`], or once if `timeout` is zero.
    pub fn wait(
        &self,
        since: Mark,
        timeout: Duration,
        has_news: impl Fn() -> bool,
        check: impl Fn(),
    ) {
        let start = self.start.elapsed();
        let (mut now, mut checked) = (start, start);
        loop {
            // Not at once, because a question takes the driver's locks just when launches follow the first one. A wait
            // without a timeout only asks.
            if timeout.is_zero() || now.saturating_sub(checked) >= FAULT_CHECK {
                checked = now;
                check();
            }
            self.look(&mut lock(&self.queues));
            if self.news.mark() != since {
                // More events follow soon.
                return self.stir();
            }
            now = self.start.elapsed();
            if has_news() || now - start >= timeout {
                return;
            }
            let active = Duration::from_nanos(self.active.load(Ordering::Relaxed));
            match now.saturating_sub(active) < SPIN {
                true => std::hint::spin_loop(),
                false => thread::sleep(SLEEP.min(timeout)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::Ordering::Release;

    use preempt_device::abi::{MAX_TICKET, Posted};

    use super::*;

    fn post(post: &Post, ticket: u32) {
        post.0.store(Post::word(ticket, Posted { done: 5, amortize: 1 }), Release);
    }

    fn watch(posts: &[Post], cohorts: &[(u32, usize, u32)]) -> Watch {
        let watch = Watch::new(2, Arc::default());
        for &(queue, index, ticket) in cohorts {
            // SAFETY: the tests keep the posts.
            unsafe { watch.add(queue, &raw const posts[index], ticket) };
        }
        watch
    }

    #[test]
    fn a_post_is_news_once() {
        let posts = [Post::default(), Post::default()];
        let watch = watch(&posts, &[(0, 0, 1), (1, 1, 7)]);
        let mark = || watch.news.mark();
        let start = mark();
        assert!(watch.has_pending() && mark() == start);
        assert_eq!(watch.busy_queues(), [0, 1]);
        post(&posts[1], 7);
        assert!(watch.has_pending() && mark() != start);
        let first = mark();
        assert!(watch.has_pending() && mark() == first);
        assert_eq!(watch.busy_queues(), [0]);
        post(&posts[0], 1);
        assert!(!watch.has_pending() && mark() != first);
    }

    #[test]
    fn a_later_ticket_in_the_post_will_do() {
        let posts = [Post::default()];
        let watch = watch(&posts, &[(0, 0, MAX_TICKET), (0, 0, 1)]);
        post(&posts[0], MAX_TICKET - 1);
        assert!(watch.has_pending());
        post(&posts[0], 1);
        assert!(!watch.has_pending());
    }

    #[test]
    fn what_is_forgotten_is_not_waited_for() {
        let posts = [Post::default()];
        let watch = watch(&posts, &[(0, 0, 1)]);
        watch.clear();
        assert!(!watch.has_pending());
    }

    #[test]
    fn a_wait_ends_with_news_or_the_timeout_and_checks_for_faults() {
        let posts = [Post::default()];
        let watch = watch(&posts, &[(0, 0, 1)]);
        let mark = watch.news.mark();
        let checks = Cell::new(0);
        let check = || checks.set(checks.get() + 1);
        watch.wait(mark, Duration::ZERO, || false, check);
        assert_eq!(checks.get(), 1);
        watch.wait(mark, Duration::from_millis(25), || false, check);
        assert!(checks.get() > 1);
        let long = Duration::from_secs(100);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| watch.wait(mark, long, || false, || ()));
            post(&posts[0], 1);
            waiter.join().expect("no panic");
        });
        // At once, since it has happened.
        watch.wait(mark, long, || false, || ());
        watch.wait(watch.news.mark(), long, || true, || ());
    }
}
