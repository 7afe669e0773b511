//! Waiting for posts: which grids have yet to post, and whether something happened that the scheduler has not
//! looked at.
//!
//! The scheduler's own book of cohorts is behind its lock, which a thread that waits does not have; and a turn that reads
//! posts does not wait for a thread that waits. So the posts to wait for are here once more.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use preempt_device::abi::Post;

use super::lock;
use crate::device::{Mark, News};

/// How long a waiting thread spins after something happened: what happens in microseconds is seen in
/// microseconds.
const SPIN: Duration = Duration::from_millis(1);
/// After that it sleeps between two looks, so that long kernels do not cost a processor. A launch does
/// not wake it: that would take microseconds of the thread that launches, which mostly looks itself.
const SLEEP: Duration = Duration::from_micros(50);
/// Time between two questions to the driver whether the context still works.
const FAULT_CHECK: Duration = Duration::from_millis(10);

/// The posts that are yet to come.
#[derive(Debug)]
pub(super) struct Watch {
    news: Arc<News>,
    start: Instant,
    /// When something was last given to the device or came back from it, in nanoseconds since `start`.
    active: AtomicU64,
    /// Launched, and in no queue yet, so that a launch does not wait for a thread that looks.
    arrivals: Mutex<Vec<(u32, PendingPost)>>,
    /// Whether there are any.
    has_arrivals: AtomicBool,
    /// For each queue, in the order in which they were launched, which is the order in which they end:
    /// looking at the first one is enough.
    queues: Mutex<Vec<VecDeque<PendingPost>>>,
}

/// The post of a grid that is out.
#[derive(Clone, Copy, Debug)]
struct PendingPost {
    post: *const Post,
    ticket: u32,
}

// SAFETY: posts are shared between threads through atomics only.
unsafe impl Send for PendingPost {}

impl PendingPost {
    /// Whether the grid, or a later one that uses its post, has posted.
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

    /// Takes a cohort in that was just launched.
    ///
    /// # Safety
    ///
    /// The post lives as long as the watch.
    pub unsafe fn add(&self, queue: u32, post: *const Post, ticket: u32) {
        let mut arrivals = lock(&self.arrivals);
        arrivals.push((queue, PendingPost { post, ticket }));
        // Relaxed: a thread that sees it takes the lock.
        self.has_arrivals.store(true, Ordering::Relaxed);
        drop(arrivals);
        self.stir();
    }

    /// Notes that something goes on, so that waiting threads look often.
    pub fn stir(&self) {
        // Relaxed: a thread that sees it late sleeps once more.
        self.active.store(self.start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    /// Notes that something happened which is not seen in a post.
    pub fn announce(&self) {
        self.news.announce();
        self.stir();
    }

    /// Takes cohorts that are back from the queues, which is news.
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

    /// Whether cohorts are out.
    pub fn has_pending(&self) -> bool {
        let mut queues = lock(&self.queues);
        self.look(&mut queues);
        queues.iter().any(|queue| !queue.is_empty())
    }

    /// The queues with cohorts that are out.
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
                // More of it comes soon.
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
