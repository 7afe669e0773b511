//! Inputs from a seed, the same on host and device, and what outputs hold before a run.

use preempt_device::atomic::{AtomicU64, Ordering::Relaxed};
use preempt_device::prelude::*;

/// Threads of the blocks of all kernels here.
pub const BLOCK: u32 = 256;

/// Random number `i` of the sequence `seed`: the finalizer of MurmurHash3.
#[inline(always)]
pub const fn hash(seed: u32, i: u32) -> u32 {
    let mut bits = i ^ seed.wrapping_mul(0x9E37_79B9);
    bits = (bits ^ bits >> 16).wrapping_mul(0x85EB_CA6B);
    bits = (bits ^ bits >> 13).wrapping_mul(0xC2B2_AE35);
    bits ^ bits >> 16
}

/// Random number `i` of the sequence `seed`, from 0 up to 1.
#[inline(always)]
pub const fn unit(seed: u32, i: u32) -> f32 {
    (hash(seed, i) >> 8) as f32 / (1 << 24) as f32
}

/// `out[i] = low + (high - low) * unit(seed, i)`. The grid may be larger than `out`.
#[preemptible(block = 256)]
pub fn fill_f32(seed: u32, low: f32, high: f32, out: SliceMut<f32>) {
    let i = thread::index_1d();
    if (i as usize) < out.len() {
        // SAFETY: each thread writes its own element.
        unsafe { out.write(i as usize, between(seed, i, low, high)) }
    }
}

/// What [`fill_f32`] writes.
#[inline(always)]
pub fn between(seed: u32, i: u32, low: f32, high: f32) -> f32 {
    low + (high - low) * unit(seed, i)
}

/// Elements that a thread of [`digest_f32`] and [`digest_u32`] takes in.
pub const DIGESTED: u32 = 64;

/// Adds to `sum[0]` a number that depends on each element and its place, in whichever order the threads come.
#[inline(always)]
fn digest(length: usize, bits: impl Fn(usize) -> u32, sum: SliceMut<u64>) {
    let threads = (thread::grid_dim_x() * BLOCK) as usize;
    let mut i = thread::index_1d() as usize;
    let mut own = 0u64;
    while i < length {
        let mixed = (u64::from(bits(i)) << 32 | i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        own = own.wrapping_add((mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9));
        i += threads;
    }
    assert!(!sum.is_empty());
    // SAFETY: not empty, and all threads add atomically.
    unsafe { AtomicU64::from_ptr(sum.as_mut_ptr()) }.fetch_add(own, Relaxed);
}

/// Adds a digest of all bits of `data` to `sum[0]`.
#[preemptible(block = 256)]
pub fn digest_f32(data: &[f32], sum: SliceMut<u64>) {
    digest(data.len(), |i| data[i].to_bits(), sum);
}

/// Adds a digest of all bits of `data` to `sum[0]`.
#[preemptible(block = 256)]
pub fn digest_u32(data: &[u32], sum: SliceMut<u64>) {
    digest(data.len(), |i| data[i], sum);
}

/// `out[i] = hash(seed, i) % bound`; the grid may be larger than `out`.
#[preemptible(block = 256)]
pub fn fill_u32(seed: u32, bound: u32, out: SliceMut<u32>) {
    let i = thread::index_1d();
    if (i as usize) < out.len() {
        // SAFETY: each thread writes its own element.
        unsafe { out.write(i as usize, hash(seed, i) % bound) }
    }
}

/// `out[i] = value`; the grid may be larger than `out`.
#[preemptible(block = 256)]
pub fn set_u32(value: u32, out: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    if i < out.len() {
        // SAFETY: each thread writes its own element.
        unsafe { out.write(i, value) }
    }
}

/// `out[i] = value`; the grid may be larger than `out`.
#[preemptible(block = 256)]
pub fn set_f32(value: f32, out: SliceMut<f32>) {
    let i = thread::index_1d() as usize;
    if i < out.len() {
        // SAFETY: each thread writes its own element.
        unsafe { out.write(i, value) }
    }
}

/// `to[i] = from[i]`, and 0 behind the end of `from`; the grid may be larger than `to`.
#[preemptible(block = 256)]
pub fn copy_f32(from: &[f32], to: SliceMut<f32>) {
    let i = thread::index_1d() as usize;
    if i < to.len() {
        // SAFETY: each thread writes its own element.
        unsafe { to.write(i, if i < from.len() { from[i] } else { 0.0 }) }
    }
}
