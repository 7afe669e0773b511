//! Block-tasks that may be dropped until a thread gets to a marker, where the block decides together. Yield points follow what
//! must not be done twice, or a loop leads back to them.

use preempt_device::atomic::{AtomicU32, Ordering::Relaxed};
use preempt_device::prelude::*;
use preempt_device::warp::WarpReductionOp;

use crate::{BINS, ELEMENTS, PAUSE, ROUNDS, SLOW, THREADS};

bodies! {
    /// In place, and yield points before and after that. The block decides together.
    #[preemptible(block = THREADS)]
    fn adds_between_votes(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for _ in 0..ROUNDS {
            thread::sync_threads();
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        // Of one thread alone: the others have to heed its marker.
        if thread::thread_idx_x() == 5 {
            // SAFETY: each thread has its own element.
            unsafe { y.write(i, y.read(i).wrapping_mul(5).wrapping_add(x[i])) };
        }
        for _ in 0..ROUNDS {
            yield_point!();
            thread::sync_threads();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
    }

    /// A sum of each block in shared memory, added to one element in each of the later rounds.
    #[preemptible(block = THREADS)]
    fn sums_in_later_rounds(x: &[u32], y: SliceMut<u32>) {
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
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            // SAFETY: all threads of the warp come here.
            sum = sum.wrapping_add(unsafe { warp::warp_shuffle_xor(warp::FULL_MASK, sum, 1, 32).0 });
            if round > 12 {
                // SAFETY: each thread has its own element.
                unsafe { y.write(i, y.read(i).rotate_left(3) ^ sum) };
            }
        }
    }

    /// What the threads pass on in shared memory decides what is changed in place, in later rounds.
    #[preemptible(block = THREADS)]
    fn rotates_and_adds(x: &[u32], y: SliceMut<u32>) {
        let values = shared_array![u32; 64];
        let (i, t) = (thread::index_1d() as usize, thread::thread_idx_x() as usize);
        // SAFETY: an element for each thread, and barriers around what others read. Each thread has its own element.
        unsafe {
            values.add(t).write(x[i]);
            let mut from = 0;
            for round in 0..ROUNDS {
                thread::sync_threads();
                yield_point!();
                thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
                let value = *values.add(from + (t + 1) % 32);
                from = 32 - from;
                values.add(from + t).write(value.wrapping_mul(3) + 1);
                if round > 10 && t == 3 {
                    y.write(i, y.read(i) ^ value);
                }
            }
        }
    }

    #[preemptible(block = THREADS)]
    fn counts_in_shared_memory_and_adds(x: &[u32], y: SliceMut<u32>) {
        let part = shared_slice![u32; THREADS];
        let (i, t) = (thread::index_1d() as usize, thread::thread_idx_x() as usize);
        // SAFETY: an element for each thread, and barriers around what others read. Each thread has its own element.
        unsafe {
            for round in 0..ROUNDS as usize {
                part.write(t, x[(i * 3 + round) % ELEMENTS]);
                thread::sync_threads();
                yield_point!();
                thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
                let other = part.read((t + round) % 32);
                thread::sync_threads();
                if round > 12 {
                    y.write(i, y.read(i).wrapping_mul(3) + other + 1);
                }
            }
        }
    }

    /// Votes follow the atomic operations of a few threads, of which the first one is none.
    #[preemptible(block = THREADS)]
    fn counts_between_votes(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for _ in 0..ROUNDS {
            thread::sync_threads();
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        if x[i] % 7 == 1 {
            // SAFETY: elements of the buffer, which all threads access atomically.
            unsafe { AtomicU32::from_ptr(y.as_mut_ptr()) }.fetch_add(x[i], Relaxed);
        }
        for _ in 0..ROUNDS {
            thread::sync_threads();
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
    }

    #[preemptible(block = THREADS)]
    fn counts_in_one_of_two_branches_of_the_block(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for _ in 0..ROUNDS {
            thread::sync_threads();
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        if thread::block_idx_x() > 3 {
            // SAFETY: elements of the buffer, which all threads access atomically.
            unsafe { AtomicU32::from_ptr(y.as_mut_ptr()) }.fetch_add(x[i] + 1, Relaxed);
        } else {
            // SAFETY: each thread has its own element.
            unsafe { y.write(BINS + i, y.read(BINS + i) * 3 + x[i] + 1) };
        }
        for _ in 0..ROUNDS {
            thread::sync_threads();
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
    }

    #[preemptible(block = THREADS)]
    fn counts_in_a_branch_of_the_block(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for round in 0..ROUNDS as usize {
            thread::sync_threads();
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            if x[thread::block_idx_x() as usize + round] > 90 && round > 6 {
                thread::sync_threads();
                if thread::thread_idx_x() == 0 {
                    // SAFETY: elements of the buffer, which all threads access atomically.
                    unsafe { AtomicU32::from_ptr(y.as_mut_ptr().add(round % BINS)) }.fetch_add(1, Relaxed);
                }
            }
        }
    }

    #[preemptible(block = THREADS)]
    fn passes_memory_on_between_votes(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for _ in 0..ROUNDS {
            thread::sync_threads();
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        crate::add(y, i, x[i] + 1);
        for _ in 0..ROUNDS {
            thread::sync_threads();
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
    }

    #[preemptible(block = THREADS)]
    fn reborrows_between_votes(x: &[u32], y: *mut u32) {
        let i = thread::index_1d() as usize;
        for _ in 0..ROUNDS {
            thread::sync_threads();
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        // SAFETY: each thread has its own element.
        let own = unsafe { &mut *y.add(i) };
        for round in 0..ROUNDS {
            thread::sync_threads();
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            *own = own.wrapping_mul(5) + x[i] + round;
        }
    }

    #[preemptible(block = THREADS)]
    fn changes_through_an_alias_between_votes(x: &[u32], y: SliceMut<u32>) {
        let (alias, i) = (y.as_mut_ptr(), thread::index_1d() as usize);
        for _ in 0..ROUNDS {
            thread::sync_threads();
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        // SAFETY: each thread has its own element.
        unsafe { *alias.add(i) = y.read(i).wrapping_mul(3) + x[i] + 1 };
        thread::sync_threads();
        for _ in 0..ROUNDS {
            thread::sync_threads();
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
    }

    /// In place behind the votes of a round, and ahead of those of the next one.
    #[preemptible(block = THREADS)]
    fn carries_writes_back_to_inner_votes(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for round in 0..4 {
            for _ in 0..6 {
                thread::sync_threads();
                yield_point!();
                thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            }
            // SAFETY: each thread has its own element.
            unsafe { y.write(i, y.read(i).wrapping_mul(31) + x[i] + round + 1) };
        }
    }

    #[preemptible(block = THREADS)]
    fn appends_between_votes(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for _ in 0..ROUNDS {
            thread::sync_threads();
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        if x[i].is_multiple_of(4) {
            // SAFETY: elements of the buffer, and of it the one whose number no other thread has.
            unsafe {
                let at = 1 + AtomicU32::from_ptr(y.as_mut_ptr()).fetch_add(1, Relaxed);
                y.write(at as usize, 1);
            }
        }
        thread::sync_threads();
        yield_point!();
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        thread::sync_threads();
        yield_point!();
    }

    #[preemptible(block = THREADS)]
    fn adds_what_a_warp_has_reduced(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for round in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            // SAFETY: all threads of the warp come here. The element of the buffer is accessed atomically.
            unsafe {
                let sum = warp::warp_reduce(warp::FULL_MASK, x[i] + round, WarpReductionOp::Add);
                if round % 6 == 5 && warp::lane_id() == 9 {
                    AtomicU32::from_ptr(y.as_mut_ptr()).fetch_add(sum, Relaxed);
                }
            }
        }
    }

    /// What the last thread does needs a marker, and what most do at the end does not.
    #[preemptible(block = THREADS)]
    fn returns_behind_the_last_vote(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for _ in 0..ROUNDS {
            thread::sync_threads();
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        if i % 32 == 31 {
            // SAFETY: elements of the buffer, which all threads access atomically.
            unsafe { AtomicU32::from_ptr(y.as_mut_ptr().add(1)) }.fetch_add(x[i] + 1, Relaxed);
        }
        for _ in 0..ROUNDS {
            thread::sync_threads();
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        if x[i].is_multiple_of(3) {
            return;
        }
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(y.as_mut_ptr()) }.fetch_add(x[i], Relaxed);
    }
}
