//! Block-tasks that may be dropped until a thread gets to a marker, where each thread decides for itself. At their ends they
//! do what must not be done twice.

use preempt_device::atomic::{AtomicF32, AtomicU32, Ordering::Relaxed};
use preempt_device::prelude::*;

use crate::{BINS, PAUSE, ROUNDS, SLOW, THREADS};

bodies! {
    /// A histogram at the end of a long body.
    #[preemptible(block = THREADS)]
    fn counts_at_the_end(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        let mut value = x[i];
        for _ in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
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
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            value = value.wrapping_mul(31) + 1;
        }
        // SAFETY: each thread has its own element.
        unsafe { y.write(i, y.read(i).wrapping_mul(3).wrapping_add(value)) };
    }

    /// Some threads count, in one of two branches and in another round each. Others pass no marker.
    #[preemptible(block = THREADS)]
    fn counts_in_a_branch(x: &[u32], y: SliceMut<u32>) {
        let (i, t) = (thread::index_1d() as usize, thread::thread_idx_x());
        let mut value = x[i];
        for round in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
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
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
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
        let i = thread::index_1d() as usize;
        let mut value = x[i];
        for _ in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            value = value.wrapping_mul(31) + 1;
        }
        if !value.is_multiple_of(4) {
            // SAFETY: elements of the buffer, and of it the one whose number no other thread has.
            unsafe {
                let used = AtomicU32::from_ptr(y.as_mut_ptr());
                let at = 1 + used.fetch_add(1, Relaxed);
                if (at as usize) < y.len() {
                    y.write(at as usize, 1);
                }
            }
        }
    }

    /// Whole numbers, so that the order does not matter.
    #[preemptible(block = THREADS)]
    fn sums_floats(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        let mut value = x[i] + 150;
        while value > 100 {
            yield_point!();
            value -= 7;
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        // SAFETY: an element of the buffer, which all threads access atomically.
        unsafe { AtomicF32::from_ptr(y.as_mut_ptr().cast()) }.fetch_add(value as f32, Relaxed);
    }

    #[preemptible(block = THREADS)]
    fn passes_memory_on(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for _ in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        crate::add(y, i, x[i]);
    }

    #[preemptible(block = THREADS)]
    fn changes_its_own(x: &[u32], y: PerThread<u32>) {
        let Some(own) = y.own() else { return };
        for round in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(own.index().is_multiple_of(SLOW)));
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

    #[preemptible(block = THREADS)]
    fn adds_through_an_alias(x: &[u32], y: SliceMut<u32>) {
        let (alias, i) = (y, thread::index_1d() as usize);
        // SAFETY: each thread has its own element.
        let value = unsafe { alias.read(i) } * 3 + x[i];
        for _ in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        // SAFETY: as above.
        unsafe { y.write(i, value + 1 + y.read(i)) };
    }

    #[preemptible(block = THREADS)]
    fn adds_through_two_pointers(x: &[u32], y: *mut u32) {
        let (from, to) = (y, y.cast::<u32>());
        let i = thread::index_1d() as usize;
        for _ in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        // SAFETY: each thread has its own element.
        unsafe { to.add(i).write((*from.add(i)).wrapping_mul(5) + x[i] + 1) };
    }

    #[preemptible(block = THREADS)]
    fn assigns_in_place(x: &[u32], y: *mut u32) {
        let i = thread::index_1d() as usize;
        let mut value = x[i];
        while value < 230 {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            value += 9;
        }
        // SAFETY: each thread has its own element.
        unsafe { *y.add(i) += value };
    }

    #[preemptible(block = THREADS)]
    fn adds_floats_in_place(x: &[u32], y: SliceMut<u32>) {
        let (floats, i) = (y.as_mut_ptr().cast::<f32>(), thread::index_1d() as usize);
        for _ in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        // SAFETY: each thread has its own element.
        unsafe { *floats.add(i) = *floats.add(i) * 2.0 + x[i] as f32 + 1.0 };
    }

    #[preemptible(block = THREADS)]
    fn reborrows_its_element(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for _ in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        // SAFETY: each thread has its own element.
        let own = unsafe { &mut *y.as_mut_ptr().add(i) };
        *own = own.rotate_left(3) + x[i] + 1;
    }

    #[preemptible(block = THREADS)]
    fn writes_through_a_reborrowed_slice(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for _ in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        // SAFETY: each thread has its own element.
        let own = unsafe { core::slice::from_raw_parts_mut(y.as_mut_ptr().add(i), 1) };
        let again = &mut own[..];
        again[0] += x[i] + 1;
    }

    /// The marker is where the reference is made, ahead of all writes.
    #[preemptible(block = THREADS)]
    fn reborrows_ahead_of_yield_points(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for _ in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        // SAFETY: each thread has its own element.
        let own = unsafe { &mut *y.as_mut_ptr().add(i) };
        for round in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            *own = own.wrapping_mul(3) + x[i] + round;
        }
    }

    /// The loop leads from a change in place to its yield point.
    #[preemptible(block = THREADS)]
    fn carries_writes_back(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for round in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            if round > 10 {
                // SAFETY: each thread has its own element.
                unsafe { y.write(i, y.read(i).wrapping_mul(3) + x[i] + 1) };
            }
        }
    }

    /// The outer loop leads back to the yield point of the inner one.
    #[preemptible(block = THREADS)]
    fn carries_writes_back_to_an_inner_loop(x: &[u32], y: *mut u32) {
        let i = thread::index_1d() as usize;
        for round in 0..3 {
            for _ in 0..8 {
                yield_point!();
                thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            }
            // SAFETY: each thread has its own element.
            unsafe { *y.add(i) = (*y.add(i)).wrapping_mul(31) + x[i] + round + 1 };
        }
    }

    /// The condition reads what the round writes.
    #[preemptible(block = THREADS)]
    fn carries_writes_back_in_a_while(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        let mut round = 0;
        // SAFETY: each thread has its own element.
        while round < ROUNDS && unsafe { y.read(i) } < 100_000 {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            round += 1;
            if round > 10 {
                // SAFETY: as above.
                unsafe { y.write(i, y.read(i) * 3 / 2 + x[i] + 1) };
            }
        }
    }

    /// The threads of the first branch come too late for those of the second one.
    #[preemptible(block = THREADS)]
    fn counts_in_both_branches(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for _ in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        if i % 32 > 15 {
            // SAFETY: elements of the buffer, which all threads access atomically.
            unsafe { AtomicU32::from_ptr(y.as_mut_ptr()) }.fetch_add(x[i] + 1, Relaxed);
        } else {
            // SAFETY: as above.
            unsafe { AtomicU32::from_ptr(y.as_mut_ptr().add(1)) }.fetch_sub(x[i] + 1, Relaxed);
        }
    }

    /// The marker is ahead of the closure that an arm calls.
    #[preemptible(block = THREADS)]
    fn counts_in_arms(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for _ in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        let counter = |bin: usize| {
            // SAFETY: elements of the buffer, which all threads access atomically.
            unsafe { AtomicU32::from_ptr(y.as_mut_ptr().add(bin)) }
        };
        match x[i] % 5 {
            0 => counter(0).fetch_add(1, Relaxed),
            1 => counter(1).fetch_xor(x[i] + 1, Relaxed),
            2 => 0,
            part => counter(2).fetch_add(part, Relaxed),
        };
    }

    #[preemptible(block = THREADS)]
    fn counts_in_a_condition(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for round in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            if round > 8 && {
                // SAFETY: elements of the buffer, which all threads access atomically.
                let rounds = unsafe { AtomicU32::from_ptr(y.as_mut_ptr()) };
                rounds.fetch_add(x[i], Relaxed) == u32::MAX
            } {
                return;
            }
        }
    }

    /// Each change is a number that was there, times 3, plus 1, so the order does not matter.
    #[preemptible(block = THREADS)]
    fn counts_by_comparing(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for _ in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        // SAFETY: elements of the buffer, which all threads access atomically.
        let product = unsafe { AtomicU32::from_ptr(y.as_mut_ptr().add(x[i] as usize % BINS)) };
        let mut seen = product.load(Relaxed);
        loop {
            let next = seen.wrapping_mul(3).wrapping_add(1);
            match product.compare_exchange(seen, next, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(other) => seen = other,
            }
        }
    }

    #[preemptible(block = THREADS)]
    fn changes_in_a_closure(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for _ in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        let change = |value: u32| {
            // SAFETY: each thread has its own element.
            unsafe { y.write(i, y.read(i).wrapping_mul(7) + value) }
        };
        for value in [1, x[i], 3] {
            change(value);
        }
    }

    #[preemptible(block = THREADS)]
    fn returns_ahead_of_its_marker(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for round in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            if round == 5 && x[i].is_multiple_of(3) {
                return;
            }
        }
        let Some(value) = x.get(i + 1) else { return };
        // SAFETY: each thread has its own element.
        unsafe { y.write(i, y.read(i) + value + 1) };
    }

    #[preemptible(block = THREADS)]
    fn returns_behind_its_marker(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for round in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            if round == x[i] % 16 {
                // SAFETY: each thread has its own element.
                unsafe { y.write(i, y.read(i) + round + 1) };
                if i.is_multiple_of(2) {
                    return;
                }
            }
        }
    }

    #[preemptible(block = THREADS)]
    fn leaves_a_block_ahead_of_its_marker(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for _ in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        'counted: {
            if x[i] > 200 {
                break 'counted;
            }
            // SAFETY: elements of the buffer, which all threads access atomically.
            unsafe { AtomicU32::from_ptr(y.as_mut_ptr()) }.fetch_add(1, Relaxed);
        }
    }

    /// Yield points follow the atomic operation, where the slow thread itself could stop.
    #[preemptible(block = THREADS)]
    fn counts_between_yield_points(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for _ in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        if x[i].is_multiple_of(2) {
            // SAFETY: elements of the buffer, which all threads access atomically.
            unsafe { AtomicU32::from_ptr(y.as_mut_ptr().add(x[i] as usize % BINS)) }.fetch_add(1, Relaxed);
        }
        for _ in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
    }

    /// The first of two markers is in time for both.
    #[preemptible(block = THREADS)]
    fn changes_twice(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for _ in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        // SAFETY: each thread has its own element.
        unsafe { y.write(i, y.read(i) * 3 + x[i] + 1) };
        for _ in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        // SAFETY: as above.
        unsafe { y.write(i, y.read(i) * 5 + x[i]) };
    }

    #[preemptible(block = THREADS)]
    fn passes_its_own_on(x: &[u32], y: PerThread<u32>) {
        let i = thread::index_1d() as usize;
        for _ in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
        crate::triple(y.own(), x[i] + 1);
    }

    #[preemptible(block = THREADS)]
    fn passes_a_pointer_on_in_later_rounds(x: &[u32], y: *mut u32) {
        let i = thread::index_1d() as usize;
        for round in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            if round % 8 == 7 {
                // SAFETY: each thread has its own element.
                unsafe { crate::change(y.add(i), x[i] + round) };
            }
        }
    }

    #[preemptible(block = THREADS, yield_in_loops)]
    fn changes_at_the_end_of_loops_with_added_yield_points(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        let mut value = x[i];
        for round in 0..4 {
            for part in 0..6 {
                thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
                value = value.wrapping_mul(31) ^ (round * 6 + part);
            }
        }
        // SAFETY: each thread has its own element.
        unsafe { y.write(i, y.read(i).wrapping_mul(3) ^ value) };
    }
}
