//! Block-tasks that may be dropped at any yield point, where each thread decides for itself: when one stops, others have
//! written all that they write.

use preempt_device::atomic::{AtomicU32, Ordering::Relaxed};
use preempt_device::prelude::*;

use crate::{ELEMENTS, PAUSE, ROUNDS, SLOW, THREADS};

const FACTORS: [u32; 4] = [3, 5, 7, 11];

#[preemptible(block = THREADS)]
fn settles(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    let mut value = x[i];
    for _ in 0..ROUNDS {
        yield_point!();
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        value = value.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    }
    // SAFETY: each thread writes its own element.
    unsafe { y.write(i, value) }
}

#[preemptible(block = THREADS, yield_in_loops)]
fn writes_in_each_round(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    for round in 0..ROUNDS {
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
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
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
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
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
    }
}

#[preemptible(block = THREADS)]
fn sets_its_own(x: &[u32], y: PerThread<u32>) {
    let Some(own) = y.own() else { return };
    own.set(7);
    for round in 0..ROUNDS {
        yield_point!();
        thread::nanosleep(PAUSE * u32::from(own.index().is_multiple_of(SLOW)));
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
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
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
        thread::nanosleep(PAUSE / 4 * u32::from(i.is_multiple_of(SLOW)));
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
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
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
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
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
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        last[round / 8 % 4] = last[(round / 8 + 3) % 4].wrapping_mul(31) ^ value;
    }
    // SAFETY: each thread writes its own element.
    unsafe { y.write(i, last[i % 4]) }
}

#[preemptible(block = THREADS)]
fn writes_through_two_aliases(x: &[u32], y: SliceMut<u32>) {
    let (early, late) = (y, y.as_mut_ptr());
    let i = thread::index_1d() as usize;
    // SAFETY: each thread writes its own element.
    unsafe { early.write(i, 1) };
    for _ in 0..ROUNDS {
        yield_point!();
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
    }
    // SAFETY: as above.
    unsafe { late.add(i).write(x[i] + 2) };
}

#[preemptible(block = THREADS)]
fn writes_through_a_cast_pointer(x: &[u32], y: SliceMut<u32>) {
    let (floats, i) = (y.as_mut_ptr().cast::<f32>(), thread::index_1d() as usize);
    for round in 0..ROUNDS {
        // SAFETY: each thread writes its own element.
        unsafe { *floats.add(i) = x[i] as f32 * 0.5 + round as f32 };
        yield_point!();
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
    }
}

#[preemptible(block = THREADS)]
fn reads_through_reborrowed_slices(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    let rest = &x[5..];
    let (low, high) = x.split_at(ELEMENTS / 2);
    let mut value = 0u32;
    for (a, b) in low.iter().zip(high).step_by(6) {
        yield_point!();
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        value = value.wrapping_mul(31) ^ a ^ (b << 8);
        // SAFETY: each thread writes its own element.
        unsafe { y.write(i, value ^ rest[i % rest.len()]) };
    }
}

#[preemptible(block = THREADS)]
fn writes_through_an_alias_in_a_closure(x: &[u32], y: SliceMut<u32>) {
    let (alias, i) = (y.as_mut_ptr(), thread::index_1d() as usize);
    let put = |value: u32| {
        // SAFETY: each thread writes its own element.
        unsafe { *alias.add(i) = value }
    };
    for round in 0..ROUNDS {
        put(round);
        yield_point!();
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
    }
    put(x[i] ^ 5);
}

/// A round leads back to the yield point behind what it has written, and some threads leave both loops there.
#[preemptible(block = THREADS, yield_in_loops)]
fn writes_where_its_loops_break(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    'rounds: for round in 0..6 {
        for part in 0..4 {
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            // SAFETY: each thread writes its own element.
            unsafe { y.write(i, x[i] * 100 + round * 4 + part) };
            if round * 4 + part > x[i] % 50 {
                break 'rounds;
            }
        }
    }
}

#[preemptible(block = THREADS)]
fn returns_in_some_round(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    for round in 0..ROUNDS {
        yield_point!();
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        if round == x[i] % 32 {
            // SAFETY: each thread writes its own element.
            unsafe { y.write(i, 3) };
            return;
        }
    }
    // SAFETY: each thread writes its own element.
    unsafe { y.write(i, 4) };
}

#[preemptible(block = THREADS)]
fn returns_behind_what_it_writes(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    let Some(value) = x.get(i) else { return };
    // SAFETY: each thread writes its own element.
    unsafe { y.write(i, *value + 1) };
    if value % 5 == 2 {
        return;
    }
    for _ in 0..ROUNDS {
        yield_point!();
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
    }
    // SAFETY: as above.
    unsafe { y.write(i, *value + 2) };
}

#[preemptible(block = THREADS)]
fn yields_in_branches(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    let mut value = x[i];
    for _ in 0..ROUNDS {
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        if value.is_multiple_of(2) {
            yield_point!();
            value = value / 2 + 500;
        } else {
            // SAFETY: each thread writes its own element.
            unsafe { y.write(i, value) };
            yield_point!();
            value = value.wrapping_mul(3) + 1;
        }
    }
}

#[preemptible(block = THREADS)]
fn writes_in_arms(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    for round in 0..ROUNDS {
        match (x[i] + round) % 4 {
            // SAFETY: each thread writes its own element.
            0 => unsafe { y.write(i, round) },
            part if part > 2 => {
                yield_point!();
                // SAFETY: as above.
                unsafe { y.write(i, part + x[i]) }
            }
            _ => {
                yield_point!();
            }
        }
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
    }
}

#[preemptible(block = THREADS)]
fn calls_functions_that_call_others(x: &[u32], y: SliceMut<u32>) {
    fn mixed(value: u32, at: usize) -> u32 {
        scaled(value ^ OFFSET, at).rotate_left(7)
    }
    fn scaled(value: u32, at: usize) -> u32 {
        value.wrapping_mul(FACTORS[at % 4])
    }
    const OFFSET: u32 = 0x9E37;
    let i = thread::index_1d() as usize;
    let mut value = x[i];
    for round in 0..ROUNDS as usize {
        yield_point!();
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        value = mixed(value, round);
        // SAFETY: each thread writes its own element.
        unsafe { y.write(i, value) };
    }
}

#[preemptible(block = THREADS)]
fn sets_its_own_in_an_arm(x: &[u32], y: PerThread<u32>) {
    let i = thread::index_1d() as usize;
    for round in 0..ROUNDS {
        match y.own() {
            Some(own) if round < x[i] => own.set(round),
            Some(own) => own.set(x[own.index()] + 1),
            None => return,
        }
        yield_point!();
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
    }
}

#[preemptible(block = THREADS)]
fn checks_its_numbers(x: &[u32], y: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    let mut last = Some(1u32);
    for round in 0..ROUNDS {
        assert!(round < ROUNDS && i < x.len(), "{round}");
        yield_point!();
        thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        let (product, is_large) = x[i].overflowing_mul(round << 24);
        last = product.checked_sub(last.unwrap_or(1)).or(Some(u32::from(is_large)));
    }
    if let Some(value) = last {
        // SAFETY: each thread writes its own element.
        unsafe { y.write(i, value + 1) }
    }
}

table! {
    settles writes_in_each_round writes_through_an_alias writes_through_a_pointer sets_its_own
    leaves_early searches scatters calls_a_function_inside keeps_an_array
    writes_through_two_aliases writes_through_a_cast_pointer reads_through_reborrowed_slices
    writes_through_an_alias_in_a_closure writes_where_its_loops_break returns_in_some_round
    returns_behind_what_it_writes yields_in_branches writes_in_arms calls_functions_that_call_others
    sets_its_own_in_an_arm checks_its_numbers
}

/// These are declared, and wrongly.
pub const REFUSED: &[crate::Body] = refused::BODIES;

mod refused {
    use super::*;

    /// In place ahead of all yield points.
    #[preemptible(block = THREADS, idempotent)]
    fn adds_in_place(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        // SAFETY: each thread has its own element.
        unsafe { y.write(i, y.read(i).wrapping_add(x[i] + 1)) };
        for _ in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
    }

    /// A vote leads back to what is in place.
    #[preemptible(block = THREADS, idempotent)]
    fn adds_in_place_together(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        for _ in 0..ROUNDS {
            thread::sync_threads();
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
            // SAFETY: each thread has its own element.
            unsafe { y.write(i, y.read(i).wrapping_add(x[i] + 1)) };
        }
    }

    /// An atomic operation ahead of all yield points.
    #[preemptible(block = THREADS, idempotent)]
    fn counts_at_the_start(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        // SAFETY: an element of the buffer, which all threads access atomically.
        unsafe { AtomicU32::from_ptr(y.as_mut_ptr()) }.fetch_add(x[i] + 1, Relaxed);
        for _ in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
    }

    /// One alias reads and the other one writes.
    #[preemptible(block = THREADS, idempotent)]
    fn adds_in_place_through_aliases(x: &[u32], y: SliceMut<u32>) {
        let (from, to, i) = (y, y.as_mut_ptr(), thread::index_1d() as usize);
        // SAFETY: each thread has its own element.
        unsafe { *to.add(i) = from.read(i) * 3 + x[i] + 1 };
        for _ in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
    }

    /// Through a reference, ahead of all yield points.
    #[preemptible(block = THREADS, idempotent)]
    fn reborrows(x: &[u32], y: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        // SAFETY: each thread has its own element.
        let own = unsafe { &mut *y.as_mut_ptr().add(i) };
        *own += x[i] + 1;
        for _ in 0..ROUNDS {
            yield_point!();
            thread::nanosleep(PAUSE * u32::from(i.is_multiple_of(SLOW)));
        }
    }

    table! {
        adds_in_place adds_in_place_together counts_at_the_start
        adds_in_place_through_aliases reborrows
    }
}
