//! Block-tasks that may be dropped at any yield point, where the block decides together: no thread runs again once one is
//! behind the last of them.

use preempt_device::atomic::{AtomicU32, Ordering::Relaxed};
use preempt_device::prelude::*;
use preempt_device::warp::WarpReductionOp;

use crate::{BINS, ELEMENTS, PAUSE, ROUNDS, SLOW, THREADS};

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
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            let value = *values.add(from + (t + 1) % 32);
            from = 32 - from;
            values.add(from + t).write(value.wrapping_mul(3) + 1);
        }
        y.write(i, values.add(from + t).read());
    }
}

#[preemptible(block = THREADS)]
fn sums(x: &[u32], y: SliceMut<u32>) {
    let part = shared_array![u32; 32];
    let (i, t) = (thread::index_1d() as usize, thread::thread_idx_x() as usize);
    for round in 0..ROUNDS as usize {
        thread::sync_threads();
        yield_point!();
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        // SAFETY: an element for each thread, and barriers around what others read.
        unsafe {
            part.add(t).write(x[(i + round) % ELEMENTS]);
            thread::sync_threads();
            if t == round % 32 {
                let sum: u32 = (0..32).map(|k| *part.add(k)).sum();
                y.write(i, sum);
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
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        // SAFETY: all threads of the warp come here.
        sum = sum.wrapping_add(unsafe { warp::warp_shuffle_xor(warp::FULL_MASK, sum, 1, 32).0 });
        // SAFETY: each thread writes its own element.
        unsafe { y.write(i, sum) };
    }
}

/// In place behind the last yield point of a block that decides together.
#[preemptible(block = THREADS)]
fn adds_in_place_behind_the_last_vote(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    for _ in 0..ROUNDS {
        thread::sync_threads();
        yield_point!();
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
    }
    // SAFETY: each thread has its own element.
    unsafe { y.write(i, y.read(i).wrapping_add(x[i])) };
}

/// The sums of all elements up to each, between two arrays.
#[preemptible(block = THREADS)]
fn scans(x: &[u32], y: SliceMut<u32>) {
    let (from, to) = (shared_array![u32; 32], shared_array![u32; 32]);
    let (i, t) = (thread::index_1d() as usize, thread::thread_idx_x() as usize);
    // SAFETY: an element for each thread, and barriers around what others read. Each thread writes its own element.
    unsafe {
        from.add(t).write(x[i]);
        for step in 0..ROUNDS {
            thread::sync_threads();
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            let before = if t >> (step % 5) > 0 { *from.add(t - (1 << (step % 5))) } else { step };
            to.add(t).write(before.wrapping_add(*from.add(t)));
            thread::sync_threads();
            from.add(t).write(*to.add(t));
        }
        y.write(i, *from.add(t));
    }
}

/// The array is written on each way to where it is read.
#[preemptible(block = THREADS)]
fn fills_in_branches(x: &[u32], y: SliceMut<u32>) {
    let values = shared_array![u32; 32];
    let (i, t) = (thread::index_1d() as usize, thread::thread_idx_x() as usize);
    // SAFETY: an element for each thread, and barriers around what others read. Each thread writes its own element.
    unsafe {
        if x[i].is_multiple_of(2) {
            values.add(t).write(x[i] / 2);
        } else {
            values.add(t).write(x[i] * 3);
        }
        for round in 0..ROUNDS as usize {
            thread::sync_threads();
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            y.write(i, *values.add((t + round) % 32) + 1);
        }
    }
}

/// What is read behind a yield point was written ahead of it.
#[preemptible(block = THREADS)]
fn fills_in_arms(x: &[u32], y: SliceMut<u32>) {
    let values = shared_array![u32; 32];
    let (i, t) = (thread::index_1d() as usize, thread::thread_idx_x() as usize);
    // SAFETY: an element for each thread, and barriers around what others read. Each thread writes its own element.
    unsafe {
        match x[i] % 3 {
            0 => values.add(t).write(7),
            1 => *values.add(t) = x[i],
            _ => values.add(t).write(x[i] ^ 0x55),
        }
        let mut sum = 0u32;
        for round in 0..ROUNDS as usize {
            thread::sync_threads();
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            let other = *values.add((t + 31) % 32);
            thread::sync_threads();
            *values.add(t) += other % 16 + round as u32;
            sum = sum.wrapping_mul(31) ^ other;
        }
        y.write(i, sum | 1);
    }
}

#[preemptible(block = THREADS)]
fn fills_what_the_launch_sized(x: &[u32], y: SliceMut<u32>) {
    let values = shared_slice![u32; x.len() / 8];
    let (i, t) = (thread::index_1d() as usize, thread::thread_idx_x() as usize);
    // SAFETY: an element for each thread, and barriers around what others read. Each thread writes its own element.
    unsafe {
        values.write(t, x[i] + 1);
        for round in 0..ROUNDS as usize {
            thread::sync_threads();
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            y.write(i, values.read((t * 5 + round) % values.len()));
        }
    }
}

#[preemptible(block = THREADS)]
fn counts_behind_the_last_vote(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    let mut value = x[i];
    for _ in 0..ROUNDS {
        thread::sync_threads();
        yield_point!();
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        value = value.wrapping_mul(31) + 1;
    }
    // SAFETY: elements of the buffer, which all threads access atomically.
    let bin = unsafe { AtomicU32::from_ptr(y.as_mut_ptr().add(value as usize % BINS)) };
    bin.fetch_add(value, Relaxed);
}

#[preemptible(block = THREADS)]
fn counts_in_branches_behind_the_last_vote(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    for _ in 0..ROUNDS {
        thread::sync_threads();
        yield_point!();
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
    }
    let bins = y.as_mut_ptr();
    if x[i].is_multiple_of(3) {
        // SAFETY: elements of the buffer, which all threads access atomically.
        unsafe { AtomicU32::from_ptr(bins) }.fetch_sub(x[i], Relaxed);
        return;
    }
    for bin in 0..x[i] as usize % 4 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(bins.add(1 + bin)) }.fetch_xor(x[i] << bin, Relaxed);
    }
}

/// The sum of the block, from shared memory that each run has written, goes to the next place that is free.
#[preemptible(block = THREADS)]
fn appends_a_sum_behind_the_last_vote(x: &[u32], y: SliceMut<u32>) {
    let part = shared_array![u32; 32];
    let (i, t) = (thread::index_1d() as usize, thread::thread_idx_x() as usize);
    // SAFETY: an element for each thread, and barriers ahead of what others read.
    unsafe { part.add(t).write(x[i] % 2) };
    for _ in 0..ROUNDS {
        thread::sync_threads();
        yield_point!();
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
    }
    if t == 0 {
        // SAFETY: the elements of the array are not written any more. Of the buffer, those below `BINS` are accessed
        // atomically, and no other thread has the number of the element that is written.
        unsafe {
            let sum: u32 = (0..32).map(|k| *part.add(k)).sum();
            AtomicU32::from_ptr(y.as_mut_ptr().add(1)).fetch_add(sum, Relaxed);
            let at = AtomicU32::from_ptr(y.as_mut_ptr()).fetch_add(1, Relaxed);
            y.write(BINS + at as usize, 1);
        }
    }
}

#[preemptible(block = THREADS)]
fn passes_memory_on_behind_the_last_vote(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    for _ in 0..ROUNDS {
        thread::sync_threads();
        yield_point!();
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
    }
    crate::add(y, i, x[i]);
}

#[preemptible(block = THREADS)]
fn reborrows_behind_the_last_vote(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    for _ in 0..ROUNDS {
        thread::sync_threads();
        yield_point!();
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
    }
    // SAFETY: each thread has its own element.
    let own = unsafe { core::slice::from_raw_parts_mut(y.as_mut_ptr().add(i), 1) };
    for element in own {
        *element = element.wrapping_mul(3) + x[i] + 1;
    }
}

#[preemptible(block = THREADS)]
fn reduces_in_warps(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    let mut value = x[i];
    for round in 0..ROUNDS {
        yield_point!();
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        // SAFETY: all threads of the warp come here, and each writes its own element.
        unsafe {
            let most = warp::warp_reduce(warp::FULL_MASK, value, WarpReductionOp::Max);
            let odd = warp::warp_vote_ballot(warp::FULL_MASK, value % 2 == 1);
            value = (value ^ odd.rotate_left(round)).wrapping_add(most);
            y.write(i, value);
        }
    }
}

table! {
    rotates sums adds_in_a_warp adds_in_place_behind_the_last_vote scans fills_in_branches
    fills_in_arms fills_what_the_launch_sized counts_behind_the_last_vote
    counts_in_branches_behind_the_last_vote appends_a_sum_behind_the_last_vote
    passes_memory_on_behind_the_last_vote reborrows_behind_the_last_vote reduces_in_warps
}
