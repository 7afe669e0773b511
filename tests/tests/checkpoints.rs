//! Kernels whose block-tasks go on where blocks have left them. In a storm of more urgent launches each leaves the same as
//! undisturbed, to the bit, though none of them could run again from its start.

use std::sync::atomic::AtomicU32 as Count;
use std::thread::sleep;
use std::time::Duration;

use preempt::error::LaunchError;
use preempt::{Buffer, Call, Error, NoGrid, Preemption};
use preempt_device::atomic::{AtomicU32, Ordering::Relaxed};
use preempt_device::prelude::*;
use preempt_test_kernels as kernels;
use preempt_test_kit::one_kernel::{Kernel, Storm, inputs};

const TASKS: u32 = 8;
const THREADS: u32 = 32;
const ELEMENTS: usize = (TASKS * THREADS) as usize;

/// Launches of each kernel in the storm.
const LAUNCHES: u32 = 5;

/// Rounds of a thread, each of which starts with a checkpoint.
const ROUNDS: u32 = 60;

/// Nanoseconds of one thread in a round.
const PAUSE: u32 = 30_000;

/// The most between two urgent launches.
const MAX_PAUSE: Duration = Duration::from_micros(800);

/// Of the random numbers.
const SEED: u64 = 5;

/// Starts of block-tasks, which are no results: `starts` sees that block-tasks were left.
static STARTS: Count = Count::new(0);

/// Adds 1 in place in each round.
#[preemptible(block = THREADS)]
fn counts_rounds(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    checkpoint!(sum: u32 = x[i] => for round in 0..ROUNDS {
        if thread::thread_idx_x() == 3 {
            thread::nanosleep(PAUSE);
        }
        // SAFETY: each thread has its own element.
        unsafe { y.write(i, y.read(i) + 1) };
        sum = sum.wrapping_mul(31) ^ round;
    });
    // SAFETY: as above.
    unsafe { y.write(i, y.read(i).wrapping_add(sum)) };
}

/// Goes on with what the neighbour had, in shared memory, and with an atomic operation in each round.
#[preemptible(block = THREADS)]
fn rotates(x: &[u32], y: SliceMut<u32>) {
    let values = shared_array![u32; 32];
    let (i, t) = (thread::index_1d() as usize, thread::thread_idx_x() as usize);
    // SAFETY: an element for each thread, and barriers around what others read.
    unsafe { values.add(t).write(x[i]) };
    thread::sync_threads();
    checkpoint!(own: (u32, u8) = (1, 2) => for round in 5..ROUNDS + 5 {
        if t == 7 {
            thread::nanosleep(PAUSE);
        }
        // SAFETY: as above.
        let value = unsafe { *values.add((t + 1) % 32) };
        thread::sync_threads();
        own.0 = own.0.wrapping_add(value);
        own.1 = own.1.wrapping_mul(5).wrapping_add(round as u8);
        // SAFETY: as above.
        unsafe { values.add(t).write(value.wrapping_mul(3).wrapping_add(own.0) ^ u32::from(own.1)) };
        // SAFETY: an element of the buffer, which all threads access atomically.
        unsafe { AtomicU32::from_ptr(y.as_mut_ptr()) }.fetch_add(1, Relaxed);
        thread::sync_threads();
    });
    if i > 0 {
        // SAFETY: each thread but the first writes its own element.
        unsafe { y.write(i, own.0 ^ u32::from(own.1) ^ values.add(t).read()) };
    }
}

/// A condition that the state decides, which is tested once for each round. The state is no whole number of words.
#[preemptible(block = THREADS)]
fn counts_tests(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    checkpoint!(state: [u8; 5] = [0; 5] => while {
        // SAFETY: each thread has its own element.
        unsafe { y.write(i, y.read(i) + 1) };
        u32::from(state[0]) < ROUNDS
    } {
        if thread::thread_idx_x() == 3 {
            thread::nanosleep(PAUSE);
        }
        state[0] += 1;
        if state[0] == 17 {
            continue;
        }
        state[4] = state[4].wrapping_mul(5).wrapping_add(state[0]);
        // SAFETY: as above.
        unsafe { y.write(i, y.read(i) ^ x[i] ^ u32::from(state[4])) };
    });
}

/// Takes the neighbour's value in each round but some, and ends rounds with a barrier, which others' reads need behind the loop,
/// too.
#[preemptible(block = THREADS)]
fn passes_on(rounds: u32, x: &[u32], y: SliceMut<u32>) {
    let values = shared_array![u32; 32];
    let (i, t) = (thread::index_1d() as usize, thread::thread_idx_x() as usize);
    // SAFETY: an element for each thread, and barriers around what others read.
    unsafe { values.add(t).write(x[i]) };
    thread::sync_threads();
    checkpoint!(own: u32 = x[i] => for round in 0..rounds {
        if round % 3 == 1 {
            continue;
        }
        // SAFETY: as above.
        own = unsafe { values.add((t + 1) % 32).read() } + 1;
        thread::sync_threads();
        // SAFETY: as above.
        unsafe { values.add(t).write(own) };
        thread::sync_threads();
    });
    // SAFETY: as above, and each thread writes its own element.
    unsafe { y.write(i, own ^ values.add((t + 5) % 32).read()) };
}

/// What is called at the end of a round of [`passes_on_by_another_name`] anywhere but there.
#[expect(dead_code)]
fn meet() {}

/// The same, where the barrier that ends a round has a name that is another function's outside of the loop.
#[preemptible(block = THREADS)]
fn passes_on_by_another_name(rounds: u32, x: &[u32], y: SliceMut<u32>) {
    let values = shared_array![u32; 32];
    let (i, t) = (thread::index_1d() as usize, thread::thread_idx_x() as usize);
    // SAFETY: as in `passes_on`.
    unsafe { values.add(t).write(x[i]) };
    thread::sync_threads();
    checkpoint!(own: u32 = x[i] => for round in 0..rounds {
        let meet = thread::sync_threads;
        if round % 3 == 1 {
            continue;
        }
        // SAFETY: as above.
        own = unsafe { values.add((t + 1) % 32).read() } + 1;
        meet();
        // SAFETY: as above.
        unsafe { values.add(t).write(own) };
        meet();
    });
    // SAFETY: as above.
    unsafe { y.write(i, own ^ values.add((t + 5) % 32).read()) };
}

/// As `counts_rounds`, with a yield point in the place of the checkpoint by a word that is wrong.
#[preemptible(block = THREADS, idempotent)]
fn counts_rounds_again(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    for _ in 0..ROUNDS {
        thread::sync_threads();
        yield_point!();
        if thread::thread_idx_x() == 3 {
            thread::nanosleep(PAUSE);
        }
        // SAFETY: each thread has its own element.
        unsafe { y.write(i, y.read(i) + 1 + x[i] / 1000) };
    }
}

/// Counts the runs of block-tasks ahead of a checkpoint.
#[preemptible(block = THREADS, idempotent)]
fn counts_starts(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    if thread::thread_idx_x() == 0 {
        STARTS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    checkpoint!(sum: u32 = x[i] => for _ in 0..ROUNDS {
        if thread::thread_idx_x() == 3 {
            thread::nanosleep(PAUSE);
        }
        sum += 1;
    });
    // SAFETY: each thread has its own element.
    unsafe { y.write(i, y.read(i) + sum) };
}

/// What a kernel leaves, with urgent launches until it is done if it is `disturbed`.
fn left(storm: &mut Storm, kernel: Kernel, disturbed: bool) -> Vec<u32> {
    let pause = disturbed.then_some(MAX_PAUSE);
    let left = storm.left(|x, y| kernel(x, y).grid(TASKS), ELEMENTS, &[0; ELEMENTS], pause);
    let (left, report) = left.expect("it runs");
    assert!(!disturbed || report.yields > 0, "nothing was stopped");
    left
}

/// Launches in the storm that leave something else than an undisturbed one.
fn mistakes(kernel: Kernel) -> usize {
    let mut storm = Storm::new(SEED);
    let expected = left(&mut storm, kernel, false);
    assert!(expected.iter().any(|value| *value != 0));
    (0..LAUNCHES).filter(|_| left(&mut storm, kernel, true) != expected).count()
}

#[test]
fn changes_in_place_in_each_round() {
    assert_eq!(mistakes(|x, y| counts_rounds(x, y)), 0);
}

#[test]
fn shared_memory_and_atomic_operations() {
    assert_eq!(mistakes(|x, y| rotates(x, y)), 0);
}

#[test]
fn conditions_that_change_memory() {
    assert_eq!(mistakes(|x, y| counts_tests(x, y)), 0);
}

#[test]
fn a_cancelled_launch_leaves_nothing_to_the_next_one() {
    let mut storm = Storm::new(SEED);
    let kernel: Kernel = |x, y| counts_rounds(x, y);
    let expected = left(&mut storm, kernel, false);
    let x = storm.scheduler.buffer(&[1; ELEMENTS]).expect("memory");
    let (mut ticks, mut writes) = (storm.zeroed(1), storm.zeroed(1));
    for round in 0..10 {
        let mut y = storm.zeroed(ELEMENTS);
        let launch = storm.stream.launch(kernel(&x, &mut y).grid(TASKS)).expect("accepted");
        // Its first block-tasks are left, and it is cancelled while they wait, or while they go on.
        sleep(Duration::from_micros(400));
        let call = kernels::count_1d(&mut ticks, &mut writes).grid(1).block(1);
        let urgent = storm.urgent.launch(call).expect("accepted");
        if round % 2 == 0 {
            urgent.wait().expect("it runs");
        }
        launch.cancel();
        match launch.wait() {
            Err(Error::Launch(LaunchError::Cancelled { done, tasks: TASKS })) => {
                assert!(done < TASKS)
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(left(&mut storm, kernel, true), expected);
    }
}

#[test]
fn the_storm_finds_what_runs_again() {
    assert!(mistakes(|x, y| counts_rounds_again(x, y)) > 0);
}

#[test]
fn a_block_task_is_left_again_and_again() {
    let mut storm = Storm::new(SEED);
    let expected = left(&mut storm, |x, y| counts_starts(x, y), false);
    let before = STARTS.load(Relaxed);
    assert_eq!(left(&mut storm, |x, y| counts_starts(x, y), true), expected);
    let starts = STARTS.load(Relaxed) - before;
    // Where block-tasks are dropped, each has three runs at most.
    assert!(starts > 3 * TASKS, "{starts} starts of {TASKS} block-tasks");
}

#[test]
fn a_barrier_ends_each_round_whatever_name_it_has() {
    let mut storm = Storm::new(SEED);
    let inputs = inputs(ELEMENTS);
    for rounds in [0, 1, 2, 5, 7] {
        let expected: Vec<u32> = inputs
            .chunks(32)
            .flat_map(|of_block| {
                let mut values = of_block.to_vec();
                for _ in (0..rounds).filter(|round| round % 3 != 1) {
                    values = (0..32).map(|t| values[(t + 1) % 32] + 1).collect();
                }
                (0..32).map(|t| values[t] ^ values[(t + 5) % 32]).collect::<Vec<_>>()
            })
            .collect();
        for form in [Preemption::Plain, Preemption::Preemptible] {
            for pause in [None, Some(MAX_PAUSE)] {
                let mut left =
                    |call: fn(u32, &Buffer<u32>, &mut Buffer<u32>) -> Call<'static, NoGrid>| {
                        let call =
                            |x: &_, y: &mut _| call(rounds, x, y).grid(TASKS).preemption(form);
                        storm.left(call, ELEMENTS, &[0; ELEMENTS], pause).expect("it runs").0
                    };
                assert_eq!(left(|n, x, y| passes_on(n, x, y)), expected, "{form:?}, {rounds}");
                let other = left(|n, x, y| passes_on_by_another_name(n, x, y));
                assert_eq!(other, expected, "{form:?}, {rounds}, by another name");
            }
        }
    }
}
