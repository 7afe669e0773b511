//! Kernels whose results the host knows to the bit, for long runs.

use preempt_device::prelude::*;

/// What each of these kernels makes of an element: `rounds` rounds with a key.
pub fn hashed(x: u32, rounds: u32, key: u32) -> u32 {
    (0..rounds).fold(x, |x, _| (x ^ key).wrapping_mul(0x9E37_79B1).rotate_left(13))
}

/// `y[i]` is the [hash](hashed) of `x[i]`. With a yield point in each round.
#[preemptible(block = 32)]
pub fn hash_yielding(rounds: u32, key: u32, x: &[u32], y: PerThread<u32>) {
    let Some(own) = y.own() else { return };
    let mut value = x[own.index()];
    for _ in 0..rounds {
        yield_point!();
        value = (value ^ key).wrapping_mul(0x9E37_79B1).rotate_left(13);
    }
    own.set(value);
}

/// The same in place, with a checkpoint in each round.
#[preemptible(block = 32)]
pub fn hash_in_place(rounds: u32, key: u32, x: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    // SAFETY: each thread has its own element.
    checkpoint!(value: u32 = if i < x.len() { unsafe { x.read(i) } } else { 0 } => for _round in 0..rounds {
        value = (value ^ key).wrapping_mul(0x9E37_79B1).rotate_left(13);
    });
    if i < x.len() {
        // SAFETY: as above.
        unsafe { x.write(i, value) }
    }
}

/// The same without a place to stop at.
#[preemptible(block = 32)]
pub fn hash_whole(rounds: u32, key: u32, x: &[u32], y: PerThread<u32>) {
    if let Some(own) = y.own() {
        own.set(hashed(x[own.index()], rounds, key));
    }
}

/// Panics in one of its threads.
#[preemptible(block = 32)]
pub fn fails(at: u32, y: PerThread<u32>) {
    if let Some(own) = y.own() {
        assert!(own.index() != at as usize, "on purpose");
        own.set(1);
    }
}
