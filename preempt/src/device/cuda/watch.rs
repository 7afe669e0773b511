//! Waiting for posts: the grids that have yet to post, and whether something has happened that the scheduler has not
//! looked at.
//!
//! The scheduler's own list of cohorts is behind its lock, which a waiting thread does not have. A turn that reads
//! posts does not wait for waiting threads either. So the pending posts are kept here a second time. Those of plain
//! grids are written here, by the thread that finds that the grid's event has completed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use preempt_device::abi::Post;

use super::events::{Ends, Event};
use super::lock;
use super::streams::GIVE_UP;
use crate::device::{Mark, News};
use crate::vocabulary::queue_bit;

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
    /// Set by a thread that waited, and has found ends.
    has_found: AtomicBool,
    /// The queues whose last word takes all SMs from their cohorts.
    leaving: AtomicU64,
    /// How many posts of plain grids are yet to be written.
    plain: AtomicUsize,
    ends: Arc<dyn Ends>,
    queues: Mutex<Vec<Queue>>,
}

/// The post of a grid that is on the device.
#[derive(Debug)]
struct PendingPost {
    post: *const Post,
    ticket: u32,
    /// What shows the end of a plain grid.
    end: Option<End>,
}

/// The event behind a plain grid, and the word of its post.
#[derive(Debug)]
pub(super) struct End {
    event: Event,
    word: u64,
    /// Since when each question about the event has failed.
    failing: Option<Instant>,
}

impl End {
    pub fn new(event: Event, word: u64) -> End {
        End { event, word, failing: None }
    }

    /// Whether the event has completed.
    fn is_over(&mut self, ends: &dyn Ends) -> bool {
        match ends.is_over(&self.event) {
            Ok(is_over) => {
                self.failing = None;
                is_over
            }
            Err(error) => {
                let since = *self.failing.get_or_insert_with(Instant::now);
                if since.elapsed() > GIVE_UP {
                    ends.give_up(error);
                }
                false
            }
        }
    }
}

// SAFETY: posts are shared between threads through atomics only.
unsafe impl Send for PendingPost {}

impl PendingPost {
    /// Whether the grid, or a later grid with the same post, has posted; of a plain grid, whether it is over.
    fn is_back(&mut self, ends: &dyn Ends) -> bool {
        // SAFETY: the device keeps posts as long as it lives.
        let post = unsafe { &*self.post };
        match &mut self.end {
            Some(end) => end.is_over(ends),
            None => post.has_passed(self.ticket),
        }
    }

    /// Whether a plain grid behind others is over. An error says nothing, because the driver is asked again once the grid is the
    /// first.
    fn is_back_early(&self, ends: &dyn Ends) -> bool {
        self.end.as_ref().is_some_and(|end| matches!(ends.is_over(&end.event), Ok(true)))
    }

    /// Writes the post of a plain grid that is over.
    fn write(&self) {
        if let Some(end) = &self.end {
            // SAFETY: the device keeps posts as long as it lives. Release: a thread that reads the post sees what the grid
            // wrote, which this one sees.
            unsafe { &*self.post }.word.store(end.word, Ordering::Release);
        }
    }
}

/// What is on the device in one queue.
#[derive(Debug)]
struct Queue {
    /// Posts in the order of launch, in which they end, too.
    posts: VecDeque<PendingPost>,
    /// Which plain grid in the row at the front to ask about: where it is over, so are those before it.
    guess: usize,
}

impl Queue {
    fn new() -> Queue {
        Queue { posts: VecDeque::new(), guess: 1 }
    }

    /// Counts what is over at the front, and writes the posts of plain grids among it. There may be more.
    ///
    /// A question about an event that has completed takes the driver 1.5 µs (H200), a third of a launch. Where grids end
    /// sooner than the host launches others, it would ask about each. So it asks about the second one after it has found
    /// the first one over, then about the fourth, and so on, and about half as far where that one is not over. Where the host
    /// waits for grids, a question in vain takes time of its wait.
    fn ended(&mut self, ends: &dyn Ends) -> usize {
        let row = self.posts.iter().take_while(|out| out.end.is_some());
        let asked = row.take(self.guess).count();
        if asked == 0 {
            let cohorts = self.posts.iter_mut().take_while(|out| out.end.is_none());
            return cohorts.map_while(|out| out.is_back(ends).then_some(())).count();
        }
        let ended = match asked {
            2.. if self.posts[asked - 1].is_back_early(ends) => asked,
            _ => usize::from(self.posts[0].is_back(ends)),
        };
        self.guess = if ended == asked { 2 * asked } else { (asked / 2).max(1) };
        self.posts.iter().take(ended).for_each(PendingPost::write);
        ended
    }
}

impl Watch {
    pub fn new(queues: usize, news: Arc<News>, ends: Arc<dyn Ends>) -> Watch {
        Watch {
            news,
            start: Instant::now(),
            active: AtomicU64::new(0),
            arrivals: Mutex::default(),
            has_arrivals: AtomicBool::new(false),
            has_found: AtomicBool::new(false),
            leaving: AtomicU64::new(0),
            plain: AtomicUsize::new(0),
            ends,
            queues: Mutex::new((0..queues).map(|_| Queue::new()).collect()),
        }
    }

    /// Adds a cohort that was just launched.
    ///
    /// # Safety
    ///
    /// The post lives as long as the watch.
    pub unsafe fn add(&self, queue: u32, post: *const Post, ticket: u32) {
        self.arrive(queue, PendingPost { post, ticket, end: None });
    }

    /// Adds a plain grid that was just launched, with the event behind it.
    ///
    /// # Safety
    ///
    /// As [`add`](Watch::add).
    pub unsafe fn add_plain(&self, queue: u32, post: *const Post, ticket: u32, end: End) {
        // Relaxed: a thread that misses it looks again, because of the activity below.
        self.plain.fetch_add(1, Ordering::Relaxed);
        self.arrive(queue, PendingPost { post, ticket, end: Some(end) });
    }

    /// Notes a word for the cohorts of a queue, and whether it takes all SMs from them.
    pub fn signalled(&self, queue: u32, takes_all: bool) {
        // Relaxed, here and below: this is advice, and orders nothing.
        match takes_all {
            true => self.leaving.fetch_or(queue_bit(queue), Ordering::Relaxed),
            false => self.leaving.fetch_and(!queue_bit(queue), Ordering::Relaxed),
        };
    }

    /// Whether all cohorts that are on the device were told to leave it.
    pub fn all_leave(&self) -> bool {
        let leaving = self.leaving.load(Ordering::Relaxed);
        self.busy_queues().into_iter().all(|queue| leaving & queue_bit(queue) != 0)
    }

    fn arrive(&self, queue: u32, pending: PendingPost) {
        self.signalled(queue, false);
        let mut arrivals = lock(&self.arrivals);
        arrivals.push((queue, pending));
        // Relaxed: a thread that sees the flag takes the lock.
        self.has_arrivals.store(true, Ordering::Relaxed);
        drop(arrivals);
        self.stir();
    }

    /// Whether plain grids are on the device, or have just been over.
    pub fn has_plain(&self) -> bool {
        self.plain.load(Ordering::Relaxed) > 0
    }

    /// Writes the posts of plain grids that are over. If another thread looks just now, that one does, and announces it.
    pub fn find_ends(&self) {
        // The thread that waited has found some, and the turn takes these in. Relaxed: the posts tell the turn, and a look that is
        // left out in vain is made up for by the next one.
        if !self.has_plain() || self.has_found.swap(false, Ordering::Relaxed) {
            return;
        }
        match self.queues.try_lock() {
            Ok(mut queues) => self.look(&mut queues),
            Err(TryLockError::Poisoned(poisoned)) => self.look(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => false,
        };
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

    /// Takes in what was launched. Removes cohorts that have posted from the queues, and announces that. Returns whether there
    /// were any; there may be more then.
    fn look(&self, queues: &mut [Queue]) -> bool {
        if self.has_arrivals.load(Ordering::Relaxed) {
            let mut arrivals = lock(&self.arrivals);
            for (queue, out) in arrivals.drain(..) {
                queues[queue as usize].posts.push_back(out);
            }
            self.has_arrivals.store(false, Ordering::Relaxed);
        }
        let mut is_news = false;
        queues.iter_mut().for_each(|queue| is_news |= self.remove_ended(queue));
        if is_news {
            self.announce();
        }
        is_news
    }

    fn remove_ended(&self, queue: &mut Queue) -> bool {
        let ended = queue.ended(&*self.ends);
        queue.posts.drain(..ended).for_each(|out| self.done_with(out));
        ended > 0
    }

    /// The queues, with nothing in them that had posted before.
    fn all(&self) -> MutexGuard<'_, Vec<Queue>> {
        let mut queues = lock(&self.queues);
        if self.look(&mut queues) {
            // Of what was launched until now, so that it ends.
            queues.iter_mut().for_each(|queue| while self.remove_ended(queue) {});
            self.announce();
        }
        queues
    }

    /// Whether cohorts are on the device.
    pub fn has_pending(&self) -> bool {
        self.all().iter().any(|queue| !queue.posts.is_empty())
    }

    /// The queues with cohorts on the device.
    pub fn busy_queues(&self) -> Vec<u32> {
        let queues = self.all();
        let busy = queues.iter().enumerate().filter(|(_, queue)| !queue.posts.is_empty());
        busy.map(|(queue, _)| queue as u32).collect()
    }

    /// Forgets all cohorts.
    pub fn clear(&self) {
        let mut queues = self.all();
        let posts = queues.iter_mut().flat_map(|queue| queue.posts.drain(..));
        posts.for_each(|out| self.done_with(out));
    }

    fn done_with(&self, out: PendingPost) {
        if let Some(End { event, .. }) = out.end {
            self.plain.fetch_sub(1, Ordering::Relaxed);
            self.ends.give_back(event);
        }
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
            if self.look(&mut lock(&self.queues)) {
                // Relaxed: a thread that misses it looks once more.
                self.has_found.store(true, Ordering::Relaxed);
            }
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

    use crate::error::{DeviceError, Error};

    use super::*;

    /// Events that are free, how many grids are over, and how many questions were asked about them.
    #[derive(Debug, Default)]
    struct Over(Mutex<Vec<Event>>, AtomicUsize, AtomicUsize);

    impl Ends for Over {
        fn is_over(&self, event: &Event) -> Result<bool, Error> {
            self.2.fetch_add(1, Ordering::Relaxed);
            Ok(event.number() < self.1.load(Ordering::Relaxed))
        }

        fn give_up(&self, _: Error) {}

        fn give_back(&self, event: Event) {
            lock(&self.0).push(event);
        }
    }

    #[test]
    fn the_post_of_a_plain_grid_is_written_once_its_event_has_completed() {
        let (posts, ends) = ([Post::default(), Post::default()], Arc::new(Over::default()));
        let watch = Watch::new(1, Arc::default(), ends.clone());
        for (number, out) in posts.iter().enumerate() {
            let word = Post::word(7, Posted { done: 5 + number as u32, amortize: 0 });
            // SAFETY: the posts are kept.
            unsafe { watch.add_plain(0, out, 7, End::new(Event::numbered(number), word)) };
        }
        watch.find_ends();
        assert!(posts.iter().all(|post| post.read(7).is_none()));
        let start = watch.news.mark();
        ends.1.store(1, Ordering::Relaxed);
        watch.find_ends();
        assert_eq!(posts[0].read(7).map(|posted| posted.done), Some(5));
        assert!(posts[1].read(7).is_none() && watch.news.mark() != start);
        assert_eq!(lock(&ends.0).len(), 1, "it is free for another grid");
        ends.1.store(2, Ordering::Relaxed);
        assert!(!watch.has_pending());
        assert_eq!(posts[1].read(7).map(|posted| posted.done), Some(6));
        assert_eq!(lock(&ends.0).len(), 2);
    }

    const GRIDS: usize = 20;

    /// A queue of plain grids, the posts of which are kept.
    fn row(posts: &[Post; GRIDS]) -> (Watch, Arc<Over>) {
        let ends = Arc::new(Over::default());
        let watch = Watch::new(1, Arc::default(), ends.clone());
        for (number, out) in posts.iter().enumerate() {
            let end = End::new(Event::numbered(number), Post::word(1, Posted::default()));
            // SAFETY: the caller keeps the posts.
            unsafe { watch.add_plain(0, out, 1, end) };
        }
        (watch, ends)
    }

    #[test]
    fn of_grids_in_a_row_all_that_are_over_are_found() {
        for over in 0..=GRIDS {
            let posts = std::array::from_fn(|_| Post::default());
            let (watch, ends) = row(&posts);
            ends.1.store(over, Ordering::Relaxed);
            assert_eq!(watch.has_pending(), over < GRIDS);
            let found = posts.iter().map(|post| post.read(1).is_some());
            assert!(found.eq((0..GRIDS).map(|number| number < over)), "{over}");
            assert_eq!(lock(&ends.0).len(), over);
        }
    }

    /// The questions that looks ask, when this many grids of a row are over.
    fn questions(over: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let posts = std::array::from_fn(|_| Post::default());
        let (watch, ends) = row(&posts);
        let look = |over| {
            ends.1.store(over, Ordering::Relaxed);
            watch.find_ends();
            ends.2.swap(0, Ordering::Relaxed)
        };
        over.into_iter().map(look).collect()
    }

    #[test]
    fn few_questions_are_asked_where_many_grids_are_over() {
        assert_eq!(questions([GRIDS; 6]), [1; 5].into_iter().chain([0]).collect::<Vec<_>>());
        // One after the other, each before the next look: the second is asked about in vain.
        assert_eq!(questions([0, 1, 2, 3]), [1, 1, 2, 1]);
        assert_eq!(questions([7, 7, 7, 7, 7]), [1, 1, 1, 2, 2], "7 = 1 + 2 + 4");
    }

    /// The driver fails for grids from this number on; how often the context was given up.
    #[derive(Debug)]
    struct Fails(usize, AtomicUsize);

    impl Ends for Fails {
        fn is_over(&self, event: &Event) -> Result<bool, Error> {
            match event.number() < self.0 {
                true => Ok(false),
                false => Err(Error::Device(DeviceError::ContextLost { message: "gone".into() })),
            }
        }

        fn give_up(&self, _: Error) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }

        fn give_back(&self, _: Event) {}
    }

    #[test]
    fn the_context_is_given_up_for_errors_about_the_first_grid_alone() {
        for (from, expected) in [(0, 1), (1, 0)] {
            let posts = [Post::default(), Post::default()];
            let fails = Arc::new(Fails(from, AtomicUsize::new(0)));
            let watch = Watch::new(1, Arc::default(), fails.clone());
            for (number, out) in posts.iter().enumerate() {
                let end = End::new(Event::numbered(number), Post::word(1, Posted::default()));
                // SAFETY: the posts are kept.
                unsafe { watch.add_plain(0, out, 1, end) };
            }
            let long = GIVE_UP + Duration::from_secs(1);
            for _ in 0..3 {
                lock(&watch.queues)[0].guess = 2;
                watch.find_ends();
                // As if each question had failed for long.
                for out in &mut lock(&watch.queues)[0].posts {
                    let failing = &mut out.end.as_mut().expect("a plain grid").failing;
                    *failing = failing.and_then(|since| since.checked_sub(long)).or(*failing);
                }
            }
            assert_eq!(fails.1.load(Ordering::Relaxed).min(1), expected);
            let mut queues = lock(&watch.queues);
            queues[0].posts.clear();
        }
    }

    #[test]
    fn a_turn_does_not_look_again_for_what_was_found_while_it_was_waited_for() {
        let posts = std::array::from_fn(|_| Post::default());
        let (watch, ends) = row(&posts);
        ends.1.store(1, Ordering::Relaxed);
        watch.wait(watch.news.mark(), Duration::MAX, || false, || ());
        let asked = || ends.2.swap(0, Ordering::Relaxed);
        assert_eq!(asked(), 1);
        watch.find_ends();
        assert_eq!(asked(), 0);
        watch.find_ends();
        assert_ne!(asked(), 0, "the next turn does");
    }

    #[test]
    fn a_cohort_behind_a_plain_grid_is_looked_at_once_that_is_over() {
        let (posts, ends) = ([Post::default(), Post::default()], Arc::new(Over::default()));
        let watch = Watch::new(1, Arc::default(), ends.clone());
        // SAFETY: the posts are kept.
        unsafe {
            watch.add_plain(
                0,
                &raw const posts[0],
                1,
                End::new(Event::numbered(0), Post::word(1, Posted::default())),
            );
            watch.add(0, &raw const posts[1], 1);
        }
        post(&posts[1], 1);
        assert!(watch.has_pending() && posts[0].read(1).is_none());
        ends.1.store(1, Ordering::Relaxed);
        assert!(!watch.has_pending() && posts[0].read(1).is_some());
    }

    #[test]
    fn events_of_forgotten_grids_are_free_again() {
        let (out, ends) = (Post::default(), Arc::new(Over::default()));
        let watch = Watch::new(1, Arc::default(), ends.clone());
        // SAFETY: the post is kept.
        unsafe { watch.add_plain(0, &raw const out, 1, End::new(Event::numbered(0), 1)) };
        watch.clear();
        assert_eq!(lock(&ends.0).len(), 1);
        watch.find_ends();
        assert!(out.read(1).is_none() && !watch.has_pending());
    }

    fn post(post: &Post, ticket: u32) {
        post.word.store(Post::word(ticket, Posted { done: 5, amortize: 1 }), Release);
    }

    fn watch(posts: &[Post], cohorts: &[(u32, usize, u32)]) -> Watch {
        let watch = Watch::new(2, Arc::default(), Arc::<Over>::default());
        for &(queue, index, ticket) in cohorts {
            // SAFETY: the tests keep the posts.
            unsafe { watch.add(queue, &raw const posts[index], ticket) };
        }
        watch
    }

    #[test]
    fn all_leave_that_were_told_last_to_leave() {
        let posts = [Post::default(), Post::default(), Post::default()];
        let watch = watch(&posts, &[(0, 0, 1), (1, 1, 1)]);
        assert!(!watch.all_leave());
        watch.signalled(0, true);
        assert!(!watch.all_leave(), "one of two");
        watch.signalled(1, true);
        assert!(watch.all_leave());
        watch.signalled(1, false);
        assert!(!watch.all_leave(), "it has SMs again");
        post(&posts[1], 1);
        assert!(watch.all_leave());
        // SAFETY: the post is kept.
        unsafe { watch.add(0, &raw const posts[2], 2) };
        assert!(!watch.all_leave(), "one comes behind it");
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
