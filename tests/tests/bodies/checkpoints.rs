//! Block-tasks that go on at the checkpoint where they were left. What they do in rounds and behind them must not be done
//! twice.

use preempt_device::atomic::{AtomicU32, Ordering::Relaxed};
use preempt_device::prelude::*;

use crate::{BINS, PAUSE, ROUNDS, SLOW, THREADS};

bodies! {
    /// The checkpoint follows an atomic operation of what its state starts with.
    #[preemptible(block = THREADS)]
    fn counts_ahead_of_the_first_round(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        checkpoint!(sum: u32 = {
            // SAFETY: elements of the buffer, which all threads access atomically.
            let starts = unsafe { AtomicU32::from_ptr(y.as_mut_ptr()) };
            starts.fetch_add(x[i] + 1, Relaxed);
            x[i]
        } => for round in 0..ROUNDS {
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            sum = sum.wrapping_mul(31) ^ round;
        });
        // SAFETY: elements of the buffer, which all threads access atomically.
        unsafe { AtomicU32::from_ptr(y.as_mut_ptr().add(1)) }.fetch_xor(sum, Relaxed);
    }

    /// Each checkpoint but the first one follows atomic operations.
    #[preemptible(block = THREADS)]
    fn counts_in_each_round(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        checkpoint!(value: u32 = x[i] => for round in 0..ROUNDS {
            // SAFETY: elements of the buffer, which all threads access atomically.
            unsafe { AtomicU32::from_ptr(y.as_mut_ptr().add(value as usize % BINS)) }.fetch_add(1, Relaxed);
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            value = value.wrapping_mul(1_664_525).wrapping_add(round);
        });
    }

    #[preemptible(block = THREADS)]
    fn counts_in_branches_of_rounds(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        checkpoint!(seen: (u32, u32) = (0, x[i]) => for round in 0..ROUNDS {
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            seen.1 = seen.1.rotate_left(5) ^ round;
            if seen.1 % 3 == 1 {
                seen.0 += 1;
                // SAFETY: elements of the buffer, which all threads access atomically.
                unsafe { AtomicU32::from_ptr(y.as_mut_ptr()) }.fetch_add(seen.0, Relaxed);
            }
            if round % 5 == 2 {
                continue;
            }
            seen.1 = seen.1.wrapping_mul(5);
        });
    }

    #[preemptible(block = THREADS)]
    fn changes_in_place_behind_the_rounds(x: &[u32], y: *mut u32) {
        let i = thread::index_1d() as usize;
        checkpoint!(sum: u32 = 1 => for round in 0..ROUNDS {
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            sum = sum.wrapping_mul(31) ^ x[(i + round as usize) % x.len()];
        });
        // SAFETY: each thread has its own element.
        unsafe { *y.add(i) = (*y.add(i)).wrapping_add(sum) };
    }

    /// One alias reads what the other one has written in the round before.
    #[preemptible(block = THREADS)]
    fn changes_in_place_through_aliases(x: &[u32], y: SliceMut<u32>) {
        let (alias, i) = (y.as_mut_ptr(), thread::index_1d() as usize);
        checkpoint!(last: u32 = 0 => for round in 0..ROUNDS {
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            // SAFETY: each thread has its own element.
            unsafe { *alias.add(i) = y.read(i).wrapping_mul(3) + x[i] + round };
            last = round;
        });
        // SAFETY: as above.
        unsafe { y.write(i, y.read(i) + last) };
    }

    #[preemptible(block = THREADS)]
    fn reborrows_in_rounds(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        checkpoint!(factor: u32 = 3 => for round in 0..ROUNDS {
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            // SAFETY: each thread has its own element.
            let own = unsafe { core::slice::from_raw_parts_mut(y.as_mut_ptr().add(i), 1) };
            for element in own {
                *element = element.wrapping_mul(factor) + x[i] + round;
            }
            factor += 2;
        });
    }

    #[preemptible(block = THREADS)]
    fn passes_memory_on_in_rounds(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        checkpoint!(value: u32 = x[i] => for round in 0..ROUNDS {
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            crate::add(y, i, value);
            value = value % 100 + round;
        });
        crate::add(y, i, 1);
    }

    #[preemptible(block = THREADS)]
    fn breaks_out_of_its_rounds(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        checkpoint!(sum: u32 = 0 => for round in 0..100 {
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            sum += x[i] + round;
            // SAFETY: each thread has its own element.
            unsafe { y.write(i, y.read(i) + 1) };
            if round == 15 + thread::block_idx_x() {
                break;
            }
        });
        // SAFETY: each thread has its own element.
        unsafe { y.write(i, y.read(i).wrapping_mul(1000) + sum) };
    }

    #[preemptible(block = THREADS)]
    fn returns_behind_its_rounds(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        checkpoint!(value: u32 = x[i] + 1 => for _ in 0..ROUNDS {
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            value = value * 5 % 257;
        });
        if value.is_multiple_of(2) {
            return;
        }
        // SAFETY: elements of the buffer, which all threads access atomically.
        unsafe { AtomicU32::from_ptr(y.as_mut_ptr().add(value as usize % BINS)) }.fetch_add(value, Relaxed);
    }

    /// What a block has counted in shared memory goes on with the block-task.
    #[preemptible(block = THREADS)]
    fn keeps_counts_in_shared_memory(x: &[u32], y: SliceMut<u32>) {
        let counts = shared_array![u32; 32];
        let (i, t) = (thread::index_1d() as usize, thread::thread_idx_x() as usize);
        // SAFETY: an element for each thread, which all access atomically behind a barrier.
        unsafe { counts.add(t).write(0) };
        thread::sync_threads();
        checkpoint!(value: u32 = x[i] => for round in 0..ROUNDS {
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            value = value.wrapping_mul(31) ^ round;
            // SAFETY: as above.
            unsafe { AtomicU32::from_ptr(counts.add(value as usize % 32)) }.fetch_add(1, Relaxed);
            // SAFETY: each thread has its own element.
            unsafe { y.write(i, y.read(i) + value % 7) };
        });
        thread::sync_threads();
        // SAFETY: as above, and the counts are not changed any more.
        unsafe { y.write(i, y.read(i) + *counts.add(t) + 1) };
    }

    /// Shared memory that is read in the round after it was written, and rounds that end with a barrier.
    #[preemptible(block = THREADS)]
    fn passes_shared_memory_round(x: &[u32], y: SliceMut<u32>) {
        let values = shared_slice![u32; 2 * THREADS];
        let (i, t) = (thread::index_1d() as usize, thread::thread_idx_x() as usize);
        // SAFETY: an element for each thread in one half, and barriers ahead of what others read there.
        unsafe { values.write(t, x[i]) };
        thread::sync_threads();
        checkpoint!(from: usize = 0 => while from < 32 * ROUNDS as usize {
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            let (here, there) = (from % 64, (from + 32) % 64);
            // SAFETY: as above. Each thread has its own element of the buffer.
            unsafe {
                let value = values.read(here + (t + 1) % 32);
                values.write(there + t, value.wrapping_mul(3) + 1);
                y.write(i, y.read(i).wrapping_add(value));
            }
            from += 32;
            thread::sync_threads();
        });
    }

    #[preemptible(block = THREADS)]
    fn shuffles_and_changes_in_place(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        checkpoint!(sum: (u32, [u8; 3]) = (x[i], [1, 2, 3]) => for round in 0..ROUNDS {
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            // SAFETY: all threads of the warp come here, and each has its own element.
            unsafe {
                let other = warp::warp_shuffle_xor(warp::FULL_MASK, sum.0, 1 << (round % 5), 32).0;
                sum.0 = sum.0.wrapping_mul(3) ^ other;
                y.write(i, y.read(i).wrapping_add(sum.0));
            }
            sum.1[round as usize % 3] ^= sum.0 as u8;
        });
        // SAFETY: as above.
        unsafe { y.write(i, y.read(i) ^ u32::from(sum.1[0]) ^ u32::from(sum.1[1]) << 8) };
    }
}
