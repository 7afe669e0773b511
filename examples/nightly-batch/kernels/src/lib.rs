//! The kernels of the example. Each thread writes one number, computed from `data` and `seed` in `rounds` equal rounds.
//! The length of `data` is a power of two.
//!
//! | kernel | needs |
//! | --- | --- |
//! | [`multiply`], [`monte_carlo`] | arithmetic units of all SMs |
//! | [`triad`] | bandwidth of memory |
//! | [`stencil`] | bandwidth of caches |
//! | [`histogram`] | atomic operations in shared memory |
//! | [`chains`], [`sort`] | few block-tasks: an SM each, for long |
#![no_std]

use preempt_device::atomic::{AtomicU32, Ordering::Relaxed};
use preempt_device::prelude::*;

/// Threads in a block.
pub const THREADS: usize = 256;

/// An element of the matrix product of `rounds` columns by `rounds` rows.
#[preemptible(block = THREADS as u32)]
pub fn multiply(data: &[u32], seed: u32, rounds: u32, out: PerThread<u32>) {
    let mut row = thread::block_idx_x().wrapping_mul(rounds).wrapping_add(seed);
    let mut column = thread::thread_idx_x();
    let mut sum = 0u32;
    for _ in 0..rounds {
        sum = sum.wrapping_add(at(data, row).wrapping_mul(at(data, column)));
        row = row.wrapping_add(1);
        column = column.wrapping_add(THREADS as u32);
    }
    set(out, sum);
}

/// Random points within a quarter of a circle, of `rounds` points.
#[preemptible(block = THREADS as u32)]
pub fn monte_carlo(_data: &[u32], seed: u32, rounds: u32, out: PerThread<u32>) {
    set(out, points_inside(mix(thread::index_1d() ^ seed), rounds));
}

/// One vector plus multiples of `rounds` others, each as long as the grid.
#[preemptible(block = THREADS as u32)]
pub fn triad(data: &[u32], seed: u32, rounds: u32, out: PerThread<u32>) {
    let threads = thread::grid_dim_x() * THREADS as u32;
    let mut place = seed.wrapping_add(thread::index_1d());
    let mut sum = 0u32;
    for factor in 1..=rounds {
        sum = sum.wrapping_add(factor.wrapping_mul(at(data, place)));
        place = place.wrapping_add(threads);
    }
    set(out, sum);
}

/// Neighbours up to `rounds` away, weighted by their distance.
#[preemptible(block = THREADS as u32)]
pub fn stencil(data: &[u32], seed: u32, rounds: u32, out: PerThread<u32>) {
    let centre = seed.wrapping_add(thread::index_1d());
    let mut sum = at(data, centre).wrapping_mul(rounds);
    for distance in 1..=rounds {
        let both = at(data, centre.wrapping_sub(distance))
            .wrapping_add(at(data, centre.wrapping_add(distance)));
        sum = sum.wrapping_add(both.wrapping_mul(rounds - distance));
    }
    set(out, sum);
}

/// For each byte, how many of `rounds` times [`THREADS`] numbers end with it.
#[preemptible(block = THREADS as u32)]
pub fn histogram(data: &[u32], seed: u32, rounds: u32, out: PerThread<u32>) {
    let bins = shared_array![u32; THREADS];
    let thread = thread::thread_idx_x();
    // SAFETY: one thread for each bin.
    unsafe { bins.add(thread as usize).write(0) };
    thread::sync_threads();
    let numbers = rounds.wrapping_mul(THREADS as u32);
    let mut place = thread::block_idx_x().wrapping_mul(numbers).wrapping_add(seed + thread);
    for _ in 0..rounds {
        let byte = at(data, place) % THREADS as u32;
        place = place.wrapping_add(THREADS as u32);
        // SAFETY: there is a bin for each byte, and all threads access it by atomics.
        unsafe { AtomicU32::from_ptr(bins.add(byte as usize)) }.fetch_add(1, Relaxed);
    }
    thread::sync_threads();
    // SAFETY: in bounds, and written before the barrier.
    set(out, unsafe { bins.add(thread as usize).read() });
}

/// A chain of `rounds` lookups, each at the place that the one before says.
#[preemptible(block = THREADS as u32)]
pub fn chains(data: &[u32], seed: u32, rounds: u32, out: PerThread<u32>) {
    let mut link = mix(thread::index_1d() ^ seed);
    for _ in 0..rounds {
        link = mix(link ^ at(data, link));
    }
    set(out, link);
}

/// The sum of what is at a thread's place in `rounds` runs of [`THREADS`] numbers, each sorted by Batcher's bitonic
/// network.
#[preemptible(block = THREADS as u32)]
pub fn sort(data: &[u32], seed: u32, rounds: u32, out: PerThread<u32>) {
    let keys = shared_array![u32; THREADS];
    let thread = thread::thread_idx_x() as usize;
    let numbers = rounds.wrapping_mul(THREADS as u32);
    let mut place = thread::block_idx_x().wrapping_mul(numbers).wrapping_add(seed + thread as u32);
    let mut sum = 0u32;
    for _ in 0..rounds {
        // SAFETY: each thread writes its own key, which is read by others after the barrier.
        unsafe { keys.add(thread).write(at(data, place)) };
        place = place.wrapping_add(THREADS as u32);
        thread::sync_threads();
        let mut size = 2;
        while size <= THREADS {
            let mut distance = size / 2;
            while distance > 0 {
                let other = thread ^ distance;
                // SAFETY: in bounds; of each pair of keys, the thread of the lower one alone accesses them.
                unsafe {
                    if other > thread {
                        let (a, b) = (keys.add(thread).read(), keys.add(other).read());
                        if (a > b) == (thread & size == 0) {
                            keys.add(thread).write(b);
                            keys.add(other).write(a);
                        }
                    }
                }
                thread::sync_threads();
                distance /= 2;
            }
            size *= 2;
        }
        // SAFETY: in bounds, and written before the barrier.
        sum = sum.wrapping_add(unsafe { keys.add(thread).read() });
        thread::sync_threads();
    }
    set(out, sum);
}

/// Points within a quarter of a circle, of `rounds` points that follow from this one.
#[inline]
pub fn points_inside(mut point: u32, rounds: u32) -> u32 {
    let mut inside = 0;
    for _ in 0..rounds {
        point = mix(point);
        let (x, y) = (point >> 16, point & 0xFFFF);
        let is_inside = u64::from(x * x) + u64::from(y * y) < 1 << 32;
        inside += u32::from(is_inside);
    }
    inside
}

/// A number that looks random: `lowbias32` by C. Wellons.
#[inline]
pub fn mix(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7FEB_352D);
    x = (x ^ (x >> 15)).wrapping_mul(0x846C_A68B);
    x ^ (x >> 16)
}

/// The number at a place that may be beyond the end, and then counts from the start again.
#[inline]
fn at(data: &[u32], place: u32) -> u32 {
    data[place as usize & (data.len() - 1)]
}

#[inline]
fn set(out: PerThread<u32>, value: u32) {
    if let Some(own) = out.own() {
        own.set(value);
    }
}
