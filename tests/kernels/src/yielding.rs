//! Kernels with yield points.

use preempt_device::prelude::*;
use preempt_test_helpers::task_number;

use crate::add;

/// Each thread leaves in `out[thread]` what `rounds` rounds of a generator make of its number:
/// `rounds` times `x * 1664525 + 1013904223` (wrapping), with a yield point in each.
///
/// Thread 0 of the block adds 1 to `starts[task]`, which tells how often the block-task was started
/// and is no result.
#[preemptible(idempotent)]
pub fn spin_yielding(starts: SliceMut<u32>, rounds: u32, out: SliceMut<u32>) {
    if thread::thread_number() == 0 {
        add(starts, task_number(), 1);
    }
    let mut x = thread::index();
    for _ in 0..rounds {
        yield_point!();
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    }
    // SAFETY: each thread writes its own element.
    unsafe { out.write(thread::index() as usize, x) };
}

/// [`spin_yielding`] with barriers: in each round thread `t` goes on with what thread `t + 1` of its block
/// had, the last one with that of the first. A yield point in each round, where the block decides
/// together.
#[preemptible(block = 256, idempotent, yield_in_loops)]
pub fn rotate_yielding(starts: SliceMut<u32>, rounds: u32, out: SliceMut<u32>) {
    let values = shared_array![u32; 512];
    let t = thread::thread_idx_x() as usize;
    if t == 0 {
        add(starts, task_number(), 1);
    }
    // SAFETY: 256 threads, two halves; barriers lie between the writes of one half and its reads.
    unsafe { values.add(t).write(thread::index()) };
    thread::sync_threads();
    let mut from = 0;
    for _ in 0..rounds {
        // SAFETY: as above.
        unsafe {
            let x = values.add(from + (t + 1) % 256).read();
            values
                .add((256 - from) + t)
                .write(x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        }
        from = 256 - from;
        thread::sync_threads();
    }
    // SAFETY: each thread writes its own element.
    unsafe { out.write(thread::index() as usize, values.add(from + t).read()) };
}

/// [`spin_yielding`] in place: adds the result to `out[thread]` at the end, and then 1 to `ends[task]`, which are both done
/// once because no thread drops the block-task when one has come there.
#[preemptible]
pub fn spin_marking(ends: SliceMut<u32>, rounds: u32, out: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    let mut x = i as u32;
    for _ in 0..rounds {
        yield_point!();
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    }
    // SAFETY: each thread has its own element.
    unsafe { out.write(i, out.read(i).wrapping_add(x)) };
    if thread::thread_idx_x() == 0 {
        add(ends, thread::block_idx_x(), 1);
    }
}

/// [`rotate_yielding`] in place, with yield points behind that as well. One thread adds 1 to `ends[task]` between them.
#[preemptible(block = 256)]
pub fn rotate_marking(ends: SliceMut<u32>, rounds: u32, out: SliceMut<u32>) {
    let values = shared_array![u32; 512];
    let (i, t) = (thread::index_1d() as usize, thread::thread_idx_x() as usize);
    // SAFETY: 256 threads, two halves; barriers lie between the writes of one half and its reads.
    unsafe { values.add(t).write(i as u32) };
    let mut from = 0;
    for round in 0..rounds {
        thread::sync_threads();
        yield_point!();
        // SAFETY: as above.
        unsafe {
            let x = values.add(from + (t + 1) % 256).read();
            values
                .add((256 - from) + t)
                .write(x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        }
        from = 256 - from;
        if round == rounds / 2 && t == 77 {
            add(ends, thread::block_idx_x(), 1);
        }
    }
    thread::sync_threads();
    // SAFETY: each thread has its own element.
    unsafe { out.write(i, out.read(i).wrapping_add(values.add(from + t).read())) };
    thread::sync_threads();
    yield_point!();
}

/// [`spin_yielding`], and the block's thread 0 adds 1 to `ends[task]` ahead of its rounds. So only a revoked launch is left in
/// them.
#[preemptible]
pub fn spin_marked(ends: SliceMut<u32>, rounds: u32, out: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    yield_point!();
    if thread::thread_idx_x() == 0 {
        add(ends, thread::block_idx_x(), 1);
    }
    let mut x = i as u32;
    for _ in 0..rounds {
        yield_point!();
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    }
    // SAFETY: each thread has its own element.
    unsafe { out.write(i, x) };
}

/// [`spin_marked`] with barriers, each of them a yield point.
#[preemptible(block = 256)]
pub fn meet_marked(ends: SliceMut<u32>, rounds: u32, out: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    thread::sync_threads();
    yield_point!();
    // Not the one that looks for the block.
    if thread::thread_idx_x() == 77 {
        add(ends, thread::block_idx_x(), 1);
    }
    let mut x = i as u32;
    for _ in 0..rounds {
        thread::sync_threads();
        yield_point!();
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    }
    // SAFETY: each thread has its own element.
    unsafe { out.write(i, x) };
}

/// [`rotate_yielding`] with a checkpoint in each round. Each thread adds 1 to its element of `rounds_done` in each round, and
/// thread 0 of the block adds 1 to `starts[task]` each time that a block begins the block-task or goes on with it, and 1 to
/// `ends[task]` at the end.
#[preemptible(block = 256, idempotent)]
pub fn rotate_saving(
    ends: SliceMut<u32>,
    starts: SliceMut<u32>,
    rounds: u32,
    out: SliceMut<u32>,
    rounds_done: SliceMut<u32>,
) {
    let values = shared_array![u32; 256];
    let (i, t) = (thread::index_1d() as usize, thread::thread_idx_x() as usize);
    // Of the starts alone there may be more than one.
    if t == 0 {
        add(starts, thread::block_idx_x(), 1);
    }
    // SAFETY: 256 threads, and barriers lie between the writes and the reads of others.
    unsafe { values.add(t).write(i as u32) };
    thread::sync_threads();
    checkpoint!(x: u32 = i as u32 => for _ in 0..rounds {
        // SAFETY: as above, and each thread has its own element.
        unsafe {
            x = values.add((t + 1) % 256).read().wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            thread::sync_threads();
            values.add(t).write(x);
            rounds_done.write(i, rounds_done.read(i) + 1);
        }
        thread::sync_threads();
    });
    // SAFETY: each thread writes its own element.
    unsafe { out.write(i, x) };
    if t == 0 {
        add(ends, thread::block_idx_x(), 1);
    }
}

/// Has a table for each thread as the state of its checkpoint, and writes a number made of it at the end.
#[preemptible(block = 256)]
pub fn tables_saving(rounds: u32, x: &[u32], out: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    checkpoint!(table: [u32; 128] = [0; 128] => for round in 0..rounds {
        let at = (x[i] + round) as usize % 128;
        table[at] = table[at].wrapping_mul(31).wrapping_add(round);
    });
    let mut sum = 0_u32;
    for value in table {
        sum = sum.wrapping_mul(31).wrapping_add(value);
    }
    // SAFETY: each thread writes its own element.
    unsafe { out.write(i, sum) };
}
