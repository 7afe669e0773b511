//! Kernels that the macro has proved: their block-tasks may be dropped at any yield point. In a storm of more urgent
//! launches each leaves the same as undisturbed, and kernels that are wrongly declared `idempotent` do not.

use preempt::policy::StaticPriority;
use preempt::{Buffer, Call, CpuLayout, Device, NoGrid, Scheduler, Stream};
use preempt_device::prelude::*;
use preempt_test_kernels as kernels;

const TASKS: u32 = 8;
const THREADS: u32 = 32;
const ELEMENTS: usize = (TASKS * THREADS) as usize;

/// Launches of each kernel in the storm.
const LAUNCHES: u32 = 5;

/// Rounds of a thread, each with a yield point.
const ROUNDS: u32 = 40;

/// The thread that takes its time; those with lower numbers have ended when it is stopped, if they wait for no other.
const SLOW: u32 = 16;

/// Nanoseconds of the slow thread in a round.
const PAUSE: u32 = 50_000;

/// What a kernel leaves where it writes nothing.
const UNTOUCHED: u32 = u32::MAX;

#[preemptible(block = THREADS)]
fn settles(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    let mut value = x[i];
    for _ in 0..ROUNDS {
        yield_point!();
        if thread::thread_idx_x() == SLOW {
            thread::nanosleep(PAUSE);
        }
        value = value.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    }
    // SAFETY: each thread writes its own element.
    unsafe { y.write(i, value) }
}

#[preemptible(block = THREADS, yield_in_loops)]
fn writes_in_each_round(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    for round in 0..ROUNDS {
        if thread::thread_idx_x() == SLOW {
            thread::nanosleep(PAUSE);
        }
        // SAFETY: each thread writes its own element.
        unsafe { y.write(i, x[i].wrapping_mul(round)) }
    }
}

#[preemptible(block = THREADS)]
fn writes_through_an_alias(x: &[u32], y: SliceMut<u32>) {
    let (alias, i) = (y.as_mut_ptr(), thread::index_1d() as usize);
    // SAFETY: each thread writes its own element.
    unsafe { alias.add(i).write(1) };
    for _ in 0..ROUNDS {
        yield_point!();
        if thread::thread_idx_x() == SLOW {
            thread::nanosleep(PAUSE);
        }
    }
    // SAFETY: as above.
    unsafe { *alias.add(i) = x[ELEMENTS - 1 - i] };
}

#[preemptible(block = THREADS)]
fn writes_through_a_pointer(x: *const u32, y: *mut u32) {
    let i = thread::index_1d() as usize;
    for round in 0..ROUNDS {
        // SAFETY: both buffers have an element for each thread.
        unsafe { *y.add(i) = *x.add(i) + round };
        yield_point!();
        if thread::thread_idx_x() == SLOW {
            thread::nanosleep(PAUSE);
        }
    }
}

#[preemptible(block = THREADS)]
fn sets_its_own(x: &[u32], y: PerThread<u32>) {
    let Some(own) = y.own() else { return };
    own.set(7);
    for round in 0..ROUNDS {
        yield_point!();
        if thread::thread_idx_x() == SLOW {
            thread::nanosleep(PAUSE);
        }
        if round > ROUNDS / 2 {
            own.set(x[own.index()] ^ round);
        }
    }
}

#[preemptible(block = THREADS)]
fn leaves_early(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    if x[i].is_multiple_of(3) {
        return;
    }
    for _ in 0..ROUNDS {
        yield_point!();
        if thread::thread_idx_x() == SLOW {
            thread::nanosleep(PAUSE);
        }
    }
    // SAFETY: each thread writes its own element.
    unsafe { y.write(i, 1) };
}

#[preemptible(block = THREADS)]
fn searches(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    let mut at = 0;
    while at < x.len() && x[at] != x[i] {
        if at.is_multiple_of(4) {
            yield_point!();
        }
        if thread::thread_idx_x() == SLOW {
            thread::nanosleep(PAUSE / 4);
        }
        at += 1;
    }
    // SAFETY: each thread writes its own element.
    unsafe { y.write(i, at as u32) };
}

#[preemptible(block = THREADS)]
fn scatters(x: &[u32], y: SliceMut<u32>) {
    // A permutation: 5 and the number of elements have no divisor in common.
    let put = |from: usize, value: u32| {
        // SAFETY: each thread writes the one element that no other has.
        unsafe { y.write(from * 5 % ELEMENTS, value) }
    };
    let i = thread::index_1d() as usize;
    put(i, 0);
    for _ in 0..ROUNDS {
        yield_point!();
        if thread::thread_idx_x() == SLOW {
            thread::nanosleep(PAUSE);
        }
    }
    put(i, x[i] + 1);
}

#[preemptible(block = THREADS)]
fn calls_a_function_inside(x: &[u32], y: SliceMut<u32>) {
    fn stride(mut x: u32) -> u32 {
        for _ in 0..8 {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
        }
        x
    }
    let i = thread::index_1d() as usize;
    let mut value = x[i] + 1;
    for _ in 0..ROUNDS {
        yield_point!();
        if thread::thread_idx_x() == SLOW {
            thread::nanosleep(PAUSE);
        }
        value = stride(value);
    }
    // SAFETY: each thread writes its own element.
    unsafe { y.write(i, value) }
}

#[preemptible(block = THREADS)]
fn keeps_an_array(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    let mut last = [0u32; 4];
    for (round, value) in x.iter().enumerate().step_by(8) {
        yield_point!();
        if thread::thread_idx_x() == SLOW {
            thread::nanosleep(PAUSE);
        }
        last[round / 8 % 4] = last[(round / 8 + 3) % 4].wrapping_mul(31) ^ value;
    }
    // SAFETY: each thread writes its own element.
    unsafe { y.write(i, last[i % 4]) }
}

/// Each thread goes on with what its neighbour had. The block decides together.
#[preemptible(block = THREADS)]
fn rotates(x: &[u32], y: SliceMut<u32>) {
    let values = shared_array![u32; 64];
    let (i, t) = (thread::index_1d() as usize, thread::thread_idx_x() as usize);
    // SAFETY: two halves of 32, and barriers between the writes of one and its reads. Each thread writes its own element.
    unsafe {
        values.add(t).write(x[i]);
        let mut from = 0;
        for _ in 0..ROUNDS {
            thread::sync_threads();
            yield_point!();
            if thread::thread_idx_x() == SLOW {
                thread::nanosleep(PAUSE);
            }
            let value = *values.add(from + (t + 1) % 32);
            from = 32 - from;
            values.add(from + t).write(value.wrapping_mul(3) + 1);
        }
        y.write(i, values.add(from + t).read());
    }
}

#[preemptible(block = THREADS)]
fn sums(x: &[u32], y: SliceMut<u32>) {
    let (part, t) = (shared_array![u32; 32], thread::thread_idx_x() as usize);
    for round in 0..ROUNDS as usize {
        thread::sync_threads();
        yield_point!();
        if thread::thread_idx_x() == SLOW {
            thread::nanosleep(PAUSE);
        }
        // SAFETY: an element for each thread, and barriers around what others read.
        unsafe {
            part.add(t).write(x[(thread::index_1d() as usize + round) % ELEMENTS]);
            thread::sync_threads();
            if t == round % 32 {
                let sum: u32 = (0..32).map(|k| *part.add(k)).sum();
                y.write(thread::index_1d() as usize, sum);
            }
        }
    }
}

#[preemptible(block = THREADS)]
fn adds_in_a_warp(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    let mut sum = x[i];
    for _ in 0..ROUNDS {
        yield_point!();
        if thread::thread_idx_x() == SLOW {
            thread::nanosleep(PAUSE);
        }
        // SAFETY: all threads of the warp come here.
        sum = sum.wrapping_add(unsafe { warp::warp_shuffle_xor(warp::FULL_MASK, sum, 1, 32).0 });
        // SAFETY: each thread writes its own element.
        unsafe { y.write(i, sum) };
    }
}

/// In place behind the last yield point of a block that decides together.
#[preemptible(block = THREADS)]
fn adds_in_place_at_the_end(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    for _ in 0..ROUNDS {
        thread::sync_threads();
        yield_point!();
        if thread::thread_idx_x() == SLOW {
            thread::nanosleep(PAUSE);
        }
    }
    // SAFETY: each thread has its own element.
    unsafe { y.write(i, y.read(i).wrapping_add(x[i])) };
}

/// The macro refuses this without the word.
#[preemptible(block = THREADS, idempotent)]
fn adds_in_place(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    // SAFETY: each thread has its own element.
    unsafe { y.write(i, y.read(i).wrapping_add(x[i] + 1)) };
    for _ in 0..ROUNDS {
        yield_point!();
        if thread::thread_idx_x() == SLOW {
            thread::nanosleep(PAUSE);
        }
    }
}

/// And this.
#[preemptible(block = THREADS, idempotent)]
fn adds_in_place_together(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    for _ in 0..ROUNDS {
        thread::sync_threads();
        yield_point!();
        if thread::thread_idx_x() == SLOW {
            thread::nanosleep(PAUSE);
        }
        // SAFETY: each thread has its own element.
        unsafe { y.write(i, y.read(i).wrapping_add(x[i] + 1)) };
    }
}

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

    /// What a kernel leaves, with urgent launches until it is done if it is `disturbed`.
    fn left(&self, kernel: Kernel, disturbed: bool) -> Vec<u32> {
        let x: Vec<u32> = (0..ELEMENTS as u32).map(|i| i * i % 251).collect();
        let x = self.scheduler.buffer(&x).expect("memory");
        let mut y = self.scheduler.buffer(&[UNTOUCHED; ELEMENTS]).expect("memory");
        let (mut ticks, mut writes) = (self.zeroed(), self.zeroed());
        let call = kernel(&x, &mut y).grid(TASKS).amortize(1);
        let launch = self.stream.launch(call).expect("accepted");
        while disturbed && !launch.is_done() {
            let call = kernels::count_1d(&mut ticks, &mut writes).grid(1).block(1);
            self.urgent.launch(call).expect("accepted").wait().expect("it runs");
        }
        let report = launch.wait().expect("it runs");
        assert!(!disturbed || report.yields > 0, "nothing was stopped");
        self.stream.download(&y).and_then(|copy| copy.wait()).expect("copied")
    }

    fn zeroed(&self) -> Buffer<u32> {
        self.scheduler.zeroed(1).expect("memory")
    }
}

type Kernel = fn(&Buffer<u32>, &mut Buffer<u32>) -> Call<'static, NoGrid>;

/// Launches in the storm that leave something else than an undisturbed one.
fn mistakes(kernel: Kernel) -> usize {
    let storm = Storm::new();
    let expected = storm.left(kernel, false);
    assert!(expected.iter().any(|value| *value != UNTOUCHED));
    (0..LAUNCHES).filter(|_| storm.left(kernel, true) != expected).count()
}

macro_rules! proved {
    ($($test:ident: $kernel:ident;)*) => {
        $(#[test] fn $test() { assert_eq!(mistakes(|x, y| $kernel(x, y)), 0); })*
    };
}

proved! {
    values_in_registers: settles;
    writes_in_loops: writes_in_each_round;
    aliases: writes_through_an_alias;
    pointers: writes_through_a_pointer;
    elements_of_a_thread: sets_its_own;
    early_returns: leaves_early;
    loops_that_data_end: searches;
    closures_that_write: scatters;
    functions_inside: calls_a_function_inside;
    local_arrays: keeps_an_array;
    shared_memory_that_is_written_first: rotates;
    shared_memory_that_is_written_in_each_round: sums;
    warp_operations: adds_in_a_warp;
    writes_behind_the_last_yield_point: adds_in_place_at_the_end;
}

#[test]
fn the_storm_finds_what_is_wrongly_declared() {
    assert!(mistakes(|x, y| adds_in_place(x, y)) > 0);
    assert!(mistakes(|x, y| adds_in_place_together(x, y)) > 0);
}
