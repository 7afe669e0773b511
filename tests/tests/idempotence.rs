//! The table in `#[preemptible]`'s documentation of the code that keeps the promise of `idempotent`: each row, while
//! each block-task is requeued at one of its yield points at random.

use std::time::Duration;

use preempt::policy::StaticPriority;
use preempt::{Buffer, Call, CpuLayout, Device, Idempotence, NoGrid, Scheduler, Stream};
use preempt_device::atomic::{AtomicU32, Ordering::Relaxed};
use preempt_device::prelude::*;
use preempt_test_kernels as kernels;

const TASKS: u32 = 16;
const THREADS: u32 = 32;

/// Launches of each kernel.
const LAUNCHES: u32 = 10;

/// Rounds of a thread, each with a yield point.
const ROUNDS: u32 = 20;

/// Yield points at which a block that decides together waits, since what it has read may not decide how many these are.
/// Between them is a millisecond: after two seconds it counts as not requeued.
const HOLDS: u32 = 2_000;

/// The thread and the round in which a block-task waits at its first start until it is requeued.
type Stop = [u32; 2];

/// Counts a start of a block-task, which is no result.
fn start(starts: SliceMut<u32>) {
    if thread::thread_idx_x() == 0 {
        count(starts).fetch_add(1, Relaxed);
    }
}

/// Starts of this thread's block-task.
fn count<'a>(starts: SliceMut<u32>) -> &'a AtomicU32 {
    let task = thread::block_idx_x() as usize;
    // SAFETY: an element for each block-task, accessed atomically, in a buffer that outlives the launch.
    unsafe { AtomicU32::from_ptr(starts.as_mut_ptr().add(task)) }
}

/// Whether this thread waits in this round, while others go on.
fn waits(starts: SliceMut<u32>, stop: Stop, round: u32) -> bool {
    let is_to_wait = stop == [thread::thread_idx_x(), round] && count(starts).load(Relaxed) < 2;
    if is_to_wait {
        std::thread::yield_now();
    }
    is_to_wait
}

/// Takes a millisecond at the first start of a block-task.
fn hold(starts: SliceMut<u32>) {
    if thread::thread_idx_x() == 0 && count(starts).load(Relaxed) < 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn step(x: u32) -> u32 {
    x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)
}

/// The value of element `i`, which holds its number, after `steps` steps.
fn end(i: u32, steps: u32) -> u32 {
    (0..steps).fold(i, |x, _| step(x))
}

#[preemptible(block = THREADS, idempotent)]
fn adds_in_place(starts: SliceMut<u32>, stop: Stop, x: SliceMut<u32>) {
    start(starts);
    let i = thread::index_1d() as usize;
    // SAFETY: each thread has its own element.
    unsafe { x.write(i, x.read(i) + 1) };
    for round in 0..ROUNDS {
        yield_point!();
        while waits(starts, stop, round) {
            yield_point!();
        }
    }
}

#[preemptible(block = THREADS, idempotent)]
fn adds_elsewhere(starts: SliceMut<u32>, stop: Stop, x: &[u32], y: SliceMut<u32>) {
    start(starts);
    let i = thread::index_1d() as usize;
    // SAFETY: each thread has its own element.
    unsafe { y.write(i, x[i] + 1) };
    for round in 0..ROUNDS {
        yield_point!();
        while waits(starts, stop, round) {
            yield_point!();
        }
    }
}

#[preemptible(block = THREADS, idempotent)]
fn counts(starts: SliceMut<u32>, stop: Stop, total: SliceMut<u32>) {
    start(starts);
    // SAFETY: one element, which all threads access atomically.
    unsafe { AtomicU32::from_ptr(total.as_mut_ptr()) }.fetch_add(1, Relaxed);
    for round in 0..ROUNDS {
        yield_point!();
        while waits(starts, stop, round) {
            yield_point!();
        }
    }
}

#[preemptible(block = THREADS, idempotent)]
fn notes(starts: SliceMut<u32>, stop: Stop, parts: SliceMut<u32>) {
    start(starts);
    // SAFETY: each thread has its own element.
    unsafe { parts.write(thread::index_1d() as usize, 1) };
    for round in 0..ROUNDS {
        yield_point!();
        while waits(starts, stop, round) {
            yield_point!();
        }
    }
}

#[preemptible(block = 1)]
fn sums(parts: &[u32], total: SliceMut<u32>) {
    // SAFETY: one thread.
    unsafe { total.write(0, parts.iter().sum()) };
}

#[preemptible(block = THREADS, idempotent)]
fn changes_in_place(starts: SliceMut<u32>, stop: Stop, x: SliceMut<u32>) {
    start(starts);
    let i = thread::index_1d() as usize;
    // SAFETY: each thread has its own element.
    let mut value = unsafe { x.read(i) };
    for round in 0..ROUNDS {
        yield_point!();
        while waits(starts, stop, round) {
            yield_point!();
        }
        value = step(value);
    }
    // SAFETY: as above.
    unsafe { x.write(i, value) };
}

#[preemptible(block = THREADS, idempotent)]
fn changes_elsewhere(starts: SliceMut<u32>, stop: Stop, x: &[u32], y: SliceMut<u32>) {
    start(starts);
    let i = thread::index_1d() as usize;
    let mut value = x[i];
    for round in 0..ROUNDS {
        yield_point!();
        while waits(starts, stop, round) {
            yield_point!();
        }
        value = step(value);
    }
    // SAFETY: each thread has its own element.
    unsafe { y.write(i, value) };
}

/// Each element becomes the result of the steps on its neighbour. No thread writes before the block's last yield point,
/// at which all have read.
#[preemptible(block = THREADS, idempotent)]
fn changes_in_place_together(starts: SliceMut<u32>, stop: u32, x: SliceMut<u32>) {
    start(starts);
    let (i, t) = (thread::index_1d() as usize, thread::thread_idx_x());
    let neighbour = i - t as usize + ((t + 1) % THREADS) as usize;
    // SAFETY: no thread writes the block's elements before the last barrier.
    let mut value = unsafe { x.read(neighbour) };
    for round in 0..ROUNDS {
        thread::sync_threads();
        yield_point!();
        if round == stop {
            for _ in 0..HOLDS {
                hold(starts);
                thread::sync_threads();
                yield_point!();
            }
        }
        value = step(value);
    }
    // SAFETY: each thread has its own element, and all have read.
    unsafe { x.write(i, value) };
}

/// A block-task with yield points after the writes, which breaks the promise.
#[preemptible(block = THREADS, idempotent)]
fn changes_in_place_too_soon(starts: SliceMut<u32>, stop: u32, x: SliceMut<u32>) {
    start(starts);
    let i = thread::index_1d() as usize;
    for round in 0..ROUNDS {
        thread::sync_threads();
        yield_point!();
        if round == stop {
            for _ in 0..HOLDS {
                hold(starts);
                thread::sync_threads();
                yield_point!();
            }
        }
        // SAFETY: each thread has its own element.
        unsafe { x.write(i, step(x.read(i))) };
    }
}

/// A device whose SMs are all taken from a launch again and again.
struct Storm {
    scheduler: Scheduler,
    stream: Stream,
    urgent: Stream,
}

impl Storm {
    fn new() -> Storm {
        let device = Device::cpu_with(CpuLayout::sms(2)).expect("a device");
        let builder = Scheduler::builder().device(device).policy(StaticPriority::whole_device());
        let scheduler = builder.build().expect("a scheduler");
        let (stream, urgent) = (scheduler.stream(0), scheduler.stream(1));
        Storm { scheduler, stream, urgent }
    }

    fn zeroed(&self, len: u32) -> Buffer<u32> {
        self.scheduler.zeroed(len as usize).expect("memory")
    }

    /// Elements that hold their numbers.
    fn numbers(&self) -> Buffer<u32> {
        self.scheduler.buffer(&(0..TASKS * THREADS).collect::<Vec<_>>()).expect("memory")
    }

    /// Launches a kernel, and small ones that are more urgent until it is done.
    fn run(&self, call: Call<'static, NoGrid>) {
        let (mut ticks, mut writes) = (self.zeroed(1), self.zeroed(1));
        let launch = self.stream.launch(call.grid(TASKS).amortize(1)).expect("accepted");
        while !launch.is_done() {
            let call = kernels::count_1d(&mut ticks, &mut writes).grid(1).block(1);
            self.urgent.launch(call).expect("accepted").wait().expect("it runs");
        }
        launch.wait().expect("it runs");
    }

    fn found(&self, buffer: &Buffer<u32>) -> Vec<u32> {
        self.stream.download(buffer).and_then(|copy| copy.wait()).expect("copied")
    }
}

/// The number of launches with a mistake. `launch` counts the starts of each block-task, and returns its result and the
/// expected one.
fn mistakes(launch: impl Fn(&Storm, &mut Buffer<u32>, Stop) -> (Vec<u32>, Vec<u32>)) -> u32 {
    let storm = Storm::new();
    let is_wrong = |n: &u32| {
        let mut starts = storm.zeroed(TASKS);
        let (found, expected) = launch(&storm, &mut starts, [n * 7 % THREADS, n * 3 % ROUNDS]);
        let starts = storm.found(&starts);
        assert!(starts.iter().all(|starts| *starts >= 2), "not all were requeued: {starts:?}");
        found != expected
    };
    (0..LAUNCHES).filter(is_wrong).count() as u32
}

/// The contents of a buffer after a kernel, and the expected ones.
fn in_place(
    kernel: impl Fn(&mut Buffer<u32>, Stop, &mut Buffer<u32>) -> Call<'static, NoGrid>,
    expected: fn(u32) -> u32,
) -> u32 {
    mistakes(|storm, starts, stop| {
        let mut x = storm.numbers();
        storm.run(kernel(starts, stop, &mut x));
        (storm.found(&x), (0..TASKS * THREADS).map(expected).collect())
    })
}

/// The output of a kernel for one buffer in another, and the expected one.
fn elsewhere(
    kernel: impl Fn(&mut Buffer<u32>, Stop, &Buffer<u32>, &mut Buffer<u32>) -> Call<'static, NoGrid>,
    expected: fn(u32) -> u32,
) -> u32 {
    mistakes(|storm, starts, stop| {
        let (x, mut y) = (storm.numbers(), storm.zeroed(TASKS * THREADS));
        storm.run(kernel(starts, stop, &x, &mut y));
        (storm.found(&y), (0..TASKS * THREADS).map(expected).collect())
    })
}

#[test]
fn additions_go_to_another_buffer() {
    assert_eq!(elsewhere(|s, at, x, y| adds_elsewhere(s, at, x, y), |i| i + 1), 0);
    assert!(in_place(|s, at, x| adds_in_place(s, at, x), |i| i + 1) > 0);
}

#[test]
fn counts_are_summed_by_another_kernel() {
    let all = vec![TASKS * THREADS];
    let wrong = mistakes(|storm, starts, stop| {
        let (mut parts, mut total) = (storm.zeroed(TASKS * THREADS), storm.zeroed(1));
        storm.run(notes(starts, stop, &mut parts));
        let sum = storm.stream.launch(sums(&parts, &mut total).grid(1)).expect("accepted");
        sum.wait().expect("it runs");
        (storm.found(&total), all.clone())
    });
    assert_eq!(wrong, 0);
    let wrong = mistakes(|storm, starts, stop| {
        let mut total = storm.zeroed(1);
        storm.run(counts(starts, stop, &mut total));
        (storm.found(&total), all.clone())
    });
    assert!(wrong > 0);
}

#[test]
fn what_changes_goes_to_another_buffer() {
    assert_eq!(elsewhere(|s, at, x, y| changes_elsewhere(s, at, x, y), |i| end(i, ROUNDS)), 0);
    assert!(in_place(|s, at, x| changes_in_place(s, at, x), |i| end(i, ROUNDS)) > 0);
}

#[test]
fn where_the_block_decides_together_it_may_be_written_in_place_behind_the_last_yield_point() {
    let expected = |i: u32| end(i / THREADS * THREADS + (i + 1) % THREADS, ROUNDS);
    assert_eq!(in_place(|s, at, x| changes_in_place_together(s, at[1], x), expected), 0);
    assert!(in_place(|s, at, x| changes_in_place_too_soon(s, at[1], x), |i| end(i, ROUNDS)) > 0);
}

/// Sums up `x` in front of the first element.
#[preemptible(block = THREADS)]
fn sums_in_place(x: SliceMut<u32>) {
    let mut sum = 0;
    for i in 0..x.len() {
        yield_point!();
        // SAFETY: the index is in bounds.
        sum += unsafe { x.read(i) };
    }
    if thread::index_1d() == 0 {
        // SAFETY: one thread writes it.
        unsafe { x.write(0, sum) };
    }
}

#[test]
fn a_report_says_what_is_known_of_block_tasks_that_run_again() {
    let storm = Storm::new();
    let (x, mut y, mut starts) =
        (storm.numbers(), storm.zeroed(TASKS * THREADS), storm.zeroed(TASKS));
    let known = |call: Call<'static, NoGrid>| {
        let kernel = call.kernel();
        let report = storm.stream.launch(call.grid(1)).expect("accepted").wait().expect("it runs");
        assert_eq!(report.idempotence, kernel.idempotence);
        (report.idempotence, kernel.reason)
    };
    assert_eq!(known(sums(&x, &mut y)), (Idempotence::NotNeeded, ""));
    let (declared, why) = known(adds_elsewhere(&mut starts, [THREADS, 0], &x, &mut y));
    assert_eq!(declared, Idempotence::Declared);
    assert!(why.contains("is not seen"), "{why}");
    let (relaxed, why) = known(sums_in_place(&mut y));
    assert_eq!(relaxed, Idempotence::Relaxed);
    assert!(why.contains("until one of its threads gets to line"), "{why}");
}
