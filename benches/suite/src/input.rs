//! Inputs from a seed, the same on host and device, and what outputs hold before a run.

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
