//! The primitives in terms of the stock compiler's code generator, LLVM.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.all"]
    pub(super) fn barrier_sync(id: u32);
    #[link_name = "llvm.nvvm.barrier.cta.red.popc.aligned.all"]
    pub(super) fn barrier_popc(id: u32, predicate: bool) -> u32;
    #[link_name = "llvm.nvvm.barrier.cta.red.and.aligned.all"]
    pub(super) fn barrier_and(id: u32, predicate: bool) -> bool;
    #[link_name = "llvm.nvvm.barrier.cta.red.or.aligned.all"]
    pub(super) fn barrier_or(id: u32, predicate: bool) -> bool;
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    pub(super) fn bar_warp_sync(mask: u32);
    #[link_name = "llvm.nvvm.vote.ballot.sync"]
    pub(super) fn vote_ballot(mask: u32, predicate: bool) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.down.i32"]
    pub(super) fn shfl_down(mask: u32, value: u32, delta: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.up.i32"]
    pub(super) fn shfl_up(mask: u32, value: u32, delta: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    pub(super) fn shfl_bfly(mask: u32, value: u32, xor: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    pub(super) fn shfl_idx(mask: u32, value: u32, index: u32, clamp: u32) -> u32;
}

// Defined in `intrinsics.ll`, which the build links in.
unsafe extern "C" {
    pub(super) fn preempt_shared_base() -> *mut u8;
    pub(super) fn preempt_loop_slot() -> *mut u64;
    pub(super) fn preempt_yield_word() -> *mut u64;
    pub(super) fn preempt_start_copy(from: *const u8, to: *mut u8);
    pub(super) fn preempt_global(address: u64) -> *const u8;
    pub(super) fn preempt_atomic_add_f32(ptr: *mut f32, value: f32) -> f32;
    pub(super) fn preempt_atomic_add_f64(ptr: *mut f64, value: f64) -> f64;
    pub(super) fn preempt_device_fence();
    pub(super) fn preempt_device_fence_acq_rel();
}

#[inline(always)]
pub(crate) fn shared_base() -> *mut u8 {
    // SAFETY: returns an address.
    unsafe { preempt_shared_base() }
}

/// Ten words of shared memory that belong to the worker loop.
#[inline(always)]
pub(crate) fn loop_slot() -> *mut u64 {
    // SAFETY: returns an address.
    unsafe { preempt_loop_slot() }
}

/// A word of shared memory that belongs to the block's yield points.
#[inline(always)]
pub(crate) fn yield_word() -> *mut u64 {
    // SAFETY: returns an address.
    unsafe { preempt_yield_word() }
}

/// Starts to copy 16 bytes of global memory to shared memory, past the L1 cache, without waiting for them.
///
/// # Safety
///
/// Source and target are aligned to 16 bytes, and alive until [`await_copies`](super::await_copies) returns
/// on this thread. The target is read by volatile loads in between.
#[inline(always)]
pub(crate) unsafe fn start_copy<T, U>(from: &T, to: &U) {
    // SAFETY: the caller's promise.
    unsafe {
        preempt_start_copy(
            core::ptr::from_ref(from).cast(),
            core::ptr::from_ref(to).cast_mut().cast(),
        )
    }
}

/// Returns `ptr`, and tells the compiler that it points to global memory (device memory, or mapped host
/// memory).
#[inline(always)]
pub(crate) fn global<T>(ptr: *const T) -> *const T {
    // SAFETY: returns an address.
    unsafe { preempt_global(ptr as u64).cast() }
}

/// A sequentially consistent fence for the device and the host, as core's fences are.
#[inline(always)]
pub(crate) fn system_fence() {
    fence(Ordering::SeqCst)
}

#[inline(always)]
pub(crate) fn system_fence_acq_rel() {
    fence(Ordering::AcqRel)
}

#[inline(always)]
pub(crate) fn atomic_add_f32(atomic: &AtomicU32, value: f32) -> f32 {
    // SAFETY: the reference is valid for atomic access.
    unsafe { preempt_atomic_add_f32(atomic.as_ptr().cast(), value) }
}

#[inline(always)]
pub(crate) fn atomic_add_f64(atomic: &AtomicU64, value: f64) -> f64 {
    // SAFETY: the reference is valid for atomic access.
    unsafe { preempt_atomic_add_f64(atomic.as_ptr().cast(), value) }
}

#[inline(always)]
pub(crate) fn device_fence() {
    // SAFETY: a fence.
    unsafe { preempt_device_fence() }
}

#[inline(always)]
pub(crate) fn device_fence_acq_rel() {
    // SAFETY: a fence.
    unsafe { preempt_device_fence_acq_rel() }
}

macro_rules! functions {
    ($($name:ident($($argument:ident),*) $float:ident = $intrinsic:literal;)*) => {
        $(#[inline(always)]
        pub(crate) fn $name($($argument: $float),*) -> $float {
            unsafe extern "unadjusted" {
                #[link_name = $intrinsic]
                fn intrinsic($($argument: $float),*) -> $float;
            }
            // SAFETY: arithmetic.
            unsafe { intrinsic($($argument),*) }
        })*
    };
}
functions! {
    fmaf(x, a, b) f32 = "llvm.fma.f32";
    fma(x, a, b) f64 = "llvm.fma.f64";
    sqrtf(x) f32 = "llvm.sqrt.f32";
    sqrt(x) f64 = "llvm.sqrt.f64";
    floorf(x) f32 = "llvm.floor.f32";
    floor(x) f64 = "llvm.floor.f64";
    ceilf(x) f32 = "llvm.ceil.f32";
    ceil(x) f64 = "llvm.ceil.f64";
    truncf(x) f32 = "llvm.trunc.f32";
    trunc(x) f64 = "llvm.trunc.f64";
    rintf(x) f32 = "llvm.roundeven.f32";
    rint(x) f64 = "llvm.roundeven.f64";
}
