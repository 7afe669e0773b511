//! Which cohorts are out on the device, and whether something happened that the scheduler has not
//! looked at.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use preempt_device::abi::Post;

use super::lock;

/// How long a waiting thread spins after something happened: what happens in microseconds is seen in
/// microseconds.
const SPIN: Duration = Duration::from_millis(1);
/// After that it sleeps between two looks, so that long kernels do not cost a processor. A launch does
/// not wake it: that would take microseconds of the thread that launches, which mostly looks itself.
const SLEEP: Duration = Duration::from_micros(50);
/// How often it asks the driver whether the context still works.
const FAULT_CHECK: Duration = Duration::from_millis(10);

/// The cohorts that are out, and news of them.
#[derive(Debug)]
pub(super) struct Watch {
    start: Instant,
    /// When something was last given to the device or came back from it, in nanoseconds since `start`.
    active: AtomicU64,
    /// Counts what happened.
    news: AtomicU64,
    /// Launched, and in no queue yet, so that a launch does not wait for a thread that looks.
    arrivals: Mutex<Vec<(u32, Out)>>,
    /// Whether there are any.
    has_arrivals: AtomicBool,
    /// For each queue, in the order in which they were launched, which is the order in which they end:
    /// looking at the first one is enough.
    queues: Mutex<Vec<VecDeque<Out>>>,
}

/// A cohort that is out.
#[derive(Clone, Copy, Debug)]
struct Out {
    post: *const Post,
    ticket: u32,
}

// SAFETY: posts are shared between threads through atomics only.
unsafe impl Send for Out {}

impl Out {
    /// Whether the cohort, or a later one that uses its post, has posted.
    fn is_back(self) -> bool {
        // SAFETY: the device keeps posts as long as it lives.
        unsafe { &*self.post }.has_passed(self.ticket)
    }
}

impl Watch {
    pub fn new(queues: usize) -> Watch {
        Watch {
            start: Instant::now(),
            active: AtomicU64::new(0),
            news: AtomicU64::new(0),
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
        arrivals.push((queue, Out { post, ticket }));
        // Relaxed: whoever sees it takes the lock.
        self.has_arrivals.store(true, Ordering::Relaxed);
        drop(arrivals);
        self.stir();
    }

    /// Notes that something goes on, so that waiting threads look often.
    pub fn stir(&self) {
        let now = self.start.elapsed().as_nanos() as u64;
        // Relaxed: whoever sees it late sleeps once more.
        self.active.store(now, Ordering::Relaxed);
    }

    /// Notes that something happened which is not seen in a post.
    pub fn announce(&self) {
        // Release, with the acquire below: what happened is seen by whoever sees the count.
        self.news.fetch_add(1, Ordering::Release);
        self.stir();
    }

    /// How much has happened.
    pub fn news(&self) -> u64 {
        self.news.load(Ordering::Acquire)
    }

    /// Takes cohorts that are back from the queues, which is news.
    fn look(&self, queues: &mut [VecDeque<Out>]) {
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
    pub fn has_out(&self) -> bool {
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

    /// Waits until `is_over`, which looks at [`news`](Watch::news) among others, or for `timeout`.
    /// `check` asks the driver for faults.
    pub fn wait(&self, timeout: Duration, is_over: impl Fn() -> bool, check: impl Fn()) {
        let start = Instant::now();
        let mut checked = start;
        loop {
            self.look(&mut lock(&self.queues));
            if is_over() {
                return;
            }
            let now = Instant::now();
            if now - start >= timeout {
                return;
            }
            if now - checked >= FAULT_CHECK {
                checked = now;
                check();
                continue;
            }
            let active = self.start + Duration::from_nanos(self.active.load(Ordering::Relaxed));
            let quiet = now.saturating_duration_since(active);
            match quiet < SPIN {
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
        let watch = Watch::new(2);
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
        assert!(watch.has_out() && watch.news() == 0);
        assert_eq!(watch.busy_queues(), [0, 1]);
        post(&posts[1], 7);
        assert!(watch.has_out() && watch.news() == 1);
        assert!(watch.has_out() && watch.news() == 1);
        assert_eq!(watch.busy_queues(), [0]);
        post(&posts[0], 1);
        assert!(!watch.has_out() && watch.news() == 2);
    }

    #[test]
    fn a_later_ticket_in_the_post_will_do() {
        let posts = [Post::default()];
        let watch = watch(&posts, &[(0, 0, MAX_TICKET), (0, 0, 1)]);
        post(&posts[0], MAX_TICKET - 1);
        assert!(watch.has_out());
        post(&posts[0], 1);
        assert!(!watch.has_out());
    }

    #[test]
    fn what_is_forgotten_is_not_waited_for() {
        let posts = [Post::default()];
        let watch = watch(&posts, &[(0, 0, 1)]);
        watch.clear();
        assert!(!watch.has_out());
    }

    #[test]
    fn a_wait_ends_with_news_or_the_timeout_and_checks_for_faults() {
        let posts = [Post::default()];
        let watch = watch(&posts, &[(0, 0, 1)]);
        let mark = watch.news();
        let checks = Cell::new(0);
        let check = || checks.set(checks.get() + 1);
        let wait = |timeout| watch.wait(timeout, || watch.news() != mark, check);
        wait(Duration::from_millis(25));
        assert!(checks.get() > 0);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                watch.wait(Duration::from_secs(100), || watch.news() != mark, || ());
            });
            post(&posts[0], 1);
            waiter.join().expect("no panic");
        });
        // At once, since it has happened.
        watch.wait(Duration::from_secs(100), || watch.news() != mark, || ());
    }
}
