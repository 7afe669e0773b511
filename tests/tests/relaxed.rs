//! Kernels whose block-tasks may be dropped until one of their threads gets to a marker. In a storm of more urgent launches
//! each leaves the same as undisturbed, to the bit, though each does at its end what must not be done twice.

use std::collections::HashMap;
use std::thread::sleep;
use std::time::Duration;

use preempt::policy::StaticPriority;
use preempt::{Buffer, Call, CpuLayout, Device, NoGrid, Scheduler, Stream};
use preempt_device::atomic::{AtomicF32, AtomicU32, Ordering::Relaxed};
use preempt_device::prelude::*;
use preempt_device::yields;
use preempt_test_kernels as kernels;
use preempt_test_kit::Random;

const TASKS: u32 = 8;
const THREADS: u32 = 32;
const ELEMENTS: usize = (TASKS * THREADS) as usize;

/// Launches of each kernel in the storm.
const LAUNCHES: usize = 8;

/// Rounds of a thread, each with a yield point.
const ROUNDS: u32 = 24;

/// The number of the thread that takes its time, in the second block-task; none, twice, and so on of it in the others. Threads
/// with lower numbers have passed their markers when it is stopped, if they wait for no other.
const SLOW: u32 = 4;

/// Nanoseconds of a slow thread in a round.
const PAUSE: u32 = 30_000;

/// Microseconds between two urgent launches, at most: most block-tasks are dropped in the first storms, and come to their
/// markers in the second ones.
const MAX_DELAYS: [u32; 2] = [800, 6_000];

const BINS: usize = 16;

/// A histogram at the end of a long body.
#[preemptible(block = THREADS)]
fn counts_at_the_end(x: &[u32], y: SliceMut<u32>) {
    let mut value = x[thread::index_1d() as usize];
    for _ in 0..ROUNDS {
        yield_point!();
        if thread::thread_idx_x() == thread::block_idx_x() * SLOW {
            thread::nanosleep(PAUSE);
        }
        value = value.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    }
    // SAFETY: elements of the buffer, which all threads access atomically.
    let bin = unsafe { AtomicU32::from_ptr(y.as_mut_ptr().add(value as usize % BINS)) };
    bin.fetch_add(1, Relaxed);
}

#[preemptible(block = THREADS)]
fn adds_in_place_at_the_end(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    let mut value = x[i];
    for _ in 0..ROUNDS {
        yield_point!();
        if thread::thread_idx_x() == thread::block_idx_x() * SLOW {
            thread::nanosleep(PAUSE);
        }
        value = value.wrapping_mul(31) + 1;
    }
    // SAFETY: each thread has its own element.
    unsafe { y.write(i, y.read(i).wrapping_mul(3).wrapping_add(value)) };
}

/// Some threads count, in one of two branches and in another round each. Others pass no marker.
#[preemptible(block = THREADS)]
fn counts_in_a_branch(x: &[u32], y: SliceMut<u32>) {
    let (t, mut value) = (thread::thread_idx_x(), x[thread::index_1d() as usize]);
    for round in 0..ROUNDS {
        yield_point!();
        if thread::thread_idx_x() == thread::block_idx_x() * SLOW {
            thread::nanosleep(PAUSE);
        }
        value = value.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if t % 4 == 1 && round == t / 2 {
            // SAFETY: elements of the buffer, which all threads access atomically.
            unsafe { AtomicU32::from_ptr(y.as_mut_ptr()) }.fetch_add(value, Relaxed);
        } else if t % 4 == 3 && round == 20 {
            // SAFETY: as above.
            unsafe { AtomicU32::from_ptr(y.as_mut_ptr().add(1)) }.fetch_xor(value, Relaxed);
        }
    }
}

/// The loop leads back to its yield point from an atomic operation in its later rounds.
#[preemptible(block = THREADS)]
fn counts_in_a_loop(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    for round in 0..ROUNDS as usize {
        yield_point!();
        if thread::thread_idx_x() == thread::block_idx_x() * SLOW {
            thread::nanosleep(PAUSE);
        }
        if round > 10 {
            for k in 0..3 {
                // SAFETY: elements of the buffer, which all threads access atomically.
                let bin =
                    unsafe { AtomicU32::from_ptr(y.as_mut_ptr().add((x[i] as usize + k) % BINS)) };
                bin.fetch_add(1, Relaxed);
            }
        }
    }
}

/// What an operation returns decides where the thread writes, so the places of two threads may be exchanged, but each is
/// written once.
#[preemptible(block = THREADS)]
fn appends(x: &[u32], y: SliceMut<u32>) {
    let mut value = x[thread::index_1d() as usize];
    for _ in 0..ROUNDS {
        yield_point!();
        if thread::thread_idx_x() == thread::block_idx_x() * SLOW {
            thread::nanosleep(PAUSE);
        }
        value = value.wrapping_mul(31) + 1;
    }
    if !value.is_multiple_of(4) {
        // SAFETY: elements of the buffer, and of it the one whose number no other thread has.
        unsafe {
            let used = AtomicU32::from_ptr(y.as_mut_ptr());
            let at = 1 + used.fetch_add(1, Relaxed);
            y.write(at as usize, 1);
        }
    }
}

/// Whole numbers, so that the order does not matter.
#[preemptible(block = THREADS)]
fn sums_floats(x: &[u32], y: SliceMut<u32>) {
    let mut value = x[thread::index_1d() as usize] + 150;
    while value > 100 {
        yield_point!();
        value -= 7;
        if thread::thread_idx_x() == thread::block_idx_x() * SLOW {
            thread::nanosleep(PAUSE);
        }
    }
    // SAFETY: an element of the buffer, which all threads access atomically.
    unsafe { AtomicF32::from_ptr(y.as_mut_ptr().cast()) }.fetch_add(value as f32, Relaxed);
}

fn add(y: SliceMut<u32>, i: usize, value: u32) {
    // SAFETY: the caller has its own element.
    unsafe { y.write(i, y.read(i) + value) }
}

#[preemptible(block = THREADS)]
fn passes_memory_on(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    for _ in 0..ROUNDS {
        yield_point!();
        if thread::thread_idx_x() == thread::block_idx_x() * SLOW {
            thread::nanosleep(PAUSE);
        }
    }
    add(y, i, x[i]);
}

#[preemptible(block = THREADS)]
fn changes_its_own(x: &[u32], y: PerThread<u32>) {
    let Some(own) = y.own() else { return };
    for round in 0..ROUNDS {
        yield_point!();
        if thread::thread_idx_x() == thread::block_idx_x() * SLOW {
            thread::nanosleep(PAUSE);
        }
        match x[own.index()] % 3 {
            // Of some threads it is the marker in the middle that is in time.
            0 if round == 12 => {
                own.set(own.get() + 2);
                return;
            }
            _ => {}
        }
    }
    own.set(own.get() * 2 + 3);
}

/// In place, and yield points before and after that. The block decides together.
#[preemptible(block = THREADS)]
fn adds_between_votes(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    for _ in 0..ROUNDS {
        thread::sync_threads();
        yield_point!();
        if thread::thread_idx_x() == thread::block_idx_x() * SLOW {
            thread::nanosleep(PAUSE);
        }
    }
    // Of one thread alone: the others have to heed its marker.
    if thread::thread_idx_x() == 5 {
        // SAFETY: each thread has its own element.
        unsafe { y.write(i, y.read(i).wrapping_mul(5).wrapping_add(x[i])) };
    }
    for _ in 0..ROUNDS {
        yield_point!();
        thread::sync_threads();
        if thread::thread_idx_x() == thread::block_idx_x() * SLOW {
            thread::nanosleep(PAUSE);
        }
    }
}

/// A sum of each block in shared memory, added to one element in each of the later rounds.
#[preemptible(block = THREADS)]
fn sums_in_later_rounds(x: &[u32], y: SliceMut<u32>) {
    let (part, t) = (shared_array![u32; 32], thread::thread_idx_x() as usize);
    for round in 0..ROUNDS as usize {
        thread::sync_threads();
        yield_point!();
        if thread::thread_idx_x() == thread::block_idx_x() * SLOW {
            thread::nanosleep(PAUSE);
        }
        // SAFETY: an element for each thread, and barriers around what others read.
        unsafe {
            part.add(t).write(x[(thread::index_1d() as usize + round) % ELEMENTS]);
            thread::sync_threads();
            if t == round && round > 12 {
                let sum: u32 = (0..32).map(|k| *part.add(k)).sum();
                AtomicU32::from_ptr(y.as_mut_ptr()).fetch_add(sum, Relaxed);
            }
        }
    }
}

#[preemptible(block = THREADS, yield_in_loops)]
fn rotates_in_place_after_a_shuffle(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    let mut sum = x[i];
    for round in 0..ROUNDS {
        if thread::thread_idx_x() == thread::block_idx_x() * SLOW {
            thread::nanosleep(PAUSE);
        }
        // SAFETY: all threads of the warp come here.
        sum = sum.wrapping_add(unsafe { warp::warp_shuffle_xor(warp::FULL_MASK, sum, 1, 32).0 });
        if round > 12 {
            // SAFETY: each thread has its own element.
            unsafe { y.write(i, y.read(i).rotate_left(3) ^ sum) };
        }
    }
}

/// As `adds_in_place_at_the_end`, without markers by a word that is wrong.
#[preemptible(block = THREADS, idempotent)]
fn adds_in_place_without_markers(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    for _ in 0..ROUNDS {
        yield_point!();
        if thread::thread_idx_x() == thread::block_idx_x() * SLOW {
            thread::nanosleep(PAUSE);
        }
    }
    // SAFETY: each thread has its own element.
    unsafe { y.write(i, y.read(i).wrapping_mul(3).wrapping_add(x[i])) };
}

struct Storm {
    scheduler: Scheduler,
    stream: Stream,
    urgent: Stream,
    random: Random,
}

impl Storm {
    fn new() -> Storm {
        let device = Device::cpu_with(CpuLayout::sms(2)).expect("a device");
        let builder = Scheduler::builder().device(device).policy(StaticPriority::whole_device());
        let scheduler = builder.build().expect("a scheduler");
        let (stream, urgent) = (scheduler.stream(0), scheduler.stream(1));
        Storm { scheduler, stream, urgent, random: Random(7) }
    }

    /// What a kernel leaves, with urgent launches until it is done, if there is a `delay` between them: the longest one.
    fn left(&mut self, kernel: Kernel, delay: Option<u32>) -> Vec<u32> {
        let x: Vec<u32> = (0..ELEMENTS as u32).map(|i| i * i % 251).collect();
        let x = self.scheduler.buffer(&x).expect("memory");
        let mut y = self.scheduler.buffer(&[0; ELEMENTS + 1]).expect("memory");
        let (mut ticks, mut writes) = (self.zeroed(), self.zeroed());
        let call = kernel(&x, &mut y).grid(TASKS).amortize(1);
        let launch = self.stream.launch(call).expect("accepted");
        while let Some(delay) = delay.filter(|_| !launch.is_done()) {
            sleep(Duration::from_micros(self.random.below(delay).into()));
            let call = kernels::count_1d(&mut ticks, &mut writes).grid(1).block(1);
            self.urgent.launch(call).expect("accepted").wait().expect("it runs");
        }
        launch.wait().expect("it runs");
        self.stream.download(&y).and_then(|copy| copy.wait()).expect("copied")
    }

    fn zeroed(&self) -> Buffer<u32> {
        self.scheduler.zeroed(1).expect("memory")
    }
}

type Kernel = fn(&Buffer<u32>, &mut Buffer<u32>) -> Call<'static, NoGrid>;

/// Launches in the storm that leave something else than an undisturbed one.
fn mistakes(kernel: Kernel) -> usize {
    let mut storm = Storm::new();
    let expected = storm.left(kernel, None);
    assert!(expected.iter().any(|value| *value != 0));
    let delays = MAX_DELAYS.into_iter().cycle().take(LAUNCHES);
    delays.filter(|delay| storm.left(kernel, Some(*delay)) != expected).count()
}

macro_rules! kernels {
    ($($kernel:ident)*) => { [$((stringify!($kernel), (|x, y| $kernel(x, y)) as Kernel),)*] };
}

/// One test, because drops and markers are counted for the whole process.
#[test]
fn what_must_not_be_done_twice_is_done_once() {
    let kernels = kernels! {
        counts_at_the_end adds_in_place_at_the_end counts_in_a_branch counts_in_a_loop appends sums_floats
        passes_memory_on changes_its_own adds_between_votes sums_in_later_rounds rotates_in_place_after_a_shuffle
    };
    let mut faults = HashMap::new();
    for (name, kernel) in kernels {
        let [marks_before, drops_before] = yields::counts();
        let wrong = mistakes(kernel);
        let [marks, drops] = yields::counts();
        let (marks, drops) = (marks - marks_before, drops - drops_before);
        println!("{name}: {drops} drops, {marks} markers");
        if wrong > 0 || marks == 0 || drops == 0 {
            faults.insert(name, (wrong, marks, drops));
        }
    }
    assert!(faults.is_empty(), "wrong launches, markers and drops: {faults:?}");
    assert!(mistakes(|x, y| adds_in_place_without_markers(x, y)) > 0, "the storm finds nothing");
}
