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
    #[link_name = "llvm.nvvm.match.any.sync.i32"]
    pub(super) fn match_any_32(mask: u32, value: u32) -> u32;
    #[link_name = "llvm.nvvm.match.any.sync.i64"]
    pub(super) fn match_any_64(mask: u32, value: u64) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.add"]
    pub(super) fn redux_add(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.min"]
    pub(super) fn redux_min(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.max"]
    pub(super) fn redux_max(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.umin"]
    pub(super) fn redux_umin(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.umax"]
    pub(super) fn redux_umax(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.and"]
    pub(super) fn redux_and(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.or"]
    pub(super) fn redux_or(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.xor"]
    pub(super) fn redux_xor(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.activemask"]
    pub(super) fn active_mask() -> u32;
}

// Defined in `intrinsics.ll`, which the build links in.
unsafe extern "C" {
    pub(super) fn preempt_shared_base() -> *mut u8;
    pub(super) fn preempt_loop_slot() -> *mut u64;
    pub(super) fn preempt_yield_word() -> *mut u64;
    pub(super) fn preempt_start_copy(from: *const u8, to: *mut u8);
    pub(super) fn preempt_global(address: u64) -> *const u8;
    #[link_name = "preempt_atomic_add_f32"]
    pub(crate) fn atomic_add_f32(ptr: *mut f32, value: f32) -> f32;
    #[link_name = "preempt_atomic_add_f64"]
    pub(crate) fn atomic_add_f64(ptr: *mut f64, value: f64) -> f64;
    fn preempt_match_all_32(mask: u32, value: u32) -> u32;
    fn preempt_match_all_64(mask: u32, value: u64) -> u32;
    fn preempt_block_fence();
    fn preempt_block_fence_acq_rel();
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

macro_rules! atomics {
    ($(
        $atomic:ident $bits:ty: $load:ident $store:ident $cas:ident =
            $device_load:literal $device_store:literal $device_cas:literal;
        { $($name:ident = $function:literal;)* }
    )*) => {
        unsafe extern "C" {
            $($(#[link_name = $function]
            pub(crate) fn $name(ptr: *mut $bits, value: $bits) -> $bits;)*)*
        }
        $(
            #[inline(always)]
            pub(crate) unsafe fn $load(ptr: *mut $bits, system: bool) -> $bits {
                unsafe extern "C" {
                    #[link_name = $device_load]
                    fn load(ptr: *mut $bits) -> $bits;
                }
                // SAFETY: the caller's promise. Core's loads, stores and compare-exchanges are the system's.
                unsafe {
                    match system {
                        true => $atomic::from_ptr(ptr).load(Ordering::Relaxed),
                        false => load(ptr),
                    }
                }
            }

            #[inline(always)]
            pub(crate) unsafe fn $store(ptr: *mut $bits, value: $bits, system: bool) {
                unsafe extern "C" {
                    #[link_name = $device_store]
                    fn store(ptr: *mut $bits, value: $bits);
                }
                // SAFETY: as above.
                unsafe {
                    match system {
                        true => $atomic::from_ptr(ptr).store(value, Ordering::Relaxed),
                        false => store(ptr, value),
                    }
                }
            }

            #[inline(always)]
            pub(crate) unsafe fn $cas(
                ptr: *mut $bits,
                current: $bits,
                new: $bits,
                system: bool,
            ) -> $bits {
                unsafe extern "C" {
                    #[link_name = $device_cas]
                    fn cas(ptr: *mut $bits, current: $bits, new: $bits) -> $bits;
                }
                // SAFETY: as above.
                unsafe {
                    if !system {
                        return cas(ptr, current, new);
                    }
                    let (yes, no) = (Ordering::Relaxed, Ordering::Relaxed);
                    match $atomic::from_ptr(ptr).compare_exchange(current, new, yes, no) {
                        Ok(before) | Err(before) => before,
                    }
                }
            }
        )*
    };
}
atomics! {
    AtomicU32 u32: atomic_load_32 atomic_store_32 atomic_cas_32 =
        "preempt_atomic_load_32" "preempt_atomic_store_32" "preempt_atomic_cas_32";
    {
        atomic_xchg_32 = "preempt_atomic_xchg_32";
        atomic_add_32 = "preempt_atomic_add_32";
        atomic_and_32 = "preempt_atomic_and_32";
        atomic_or_32 = "preempt_atomic_or_32";
        atomic_xor_32 = "preempt_atomic_xor_32";
        atomic_min_32 = "preempt_atomic_min_32";
        atomic_max_32 = "preempt_atomic_max_32";
        atomic_umin_32 = "preempt_atomic_umin_32";
        atomic_umax_32 = "preempt_atomic_umax_32";
    }
    AtomicU64 u64: atomic_load_64 atomic_store_64 atomic_cas_64 =
        "preempt_atomic_load_64" "preempt_atomic_store_64" "preempt_atomic_cas_64";
    {
        atomic_xchg_64 = "preempt_atomic_xchg_64";
        atomic_add_64 = "preempt_atomic_add_64";
        atomic_and_64 = "preempt_atomic_and_64";
        atomic_or_64 = "preempt_atomic_or_64";
        atomic_xor_64 = "preempt_atomic_xor_64";
        atomic_min_64 = "preempt_atomic_min_64";
        atomic_max_64 = "preempt_atomic_max_64";
        atomic_umin_64 = "preempt_atomic_umin_64";
        atomic_umax_64 = "preempt_atomic_umax_64";
    }
}

#[inline(always)]
pub(crate) fn block_fence() {
    // SAFETY: a fence.
    unsafe { preempt_block_fence() }
}

#[inline(always)]
pub(crate) fn block_fence_acq_rel() {
    // SAFETY: a fence.
    unsafe { preempt_block_fence_acq_rel() }
}

#[inline(always)]
pub(super) unsafe fn match_all_32(mask: u32, value: u32) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { preempt_match_all_32(mask, value) }
}

#[inline(always)]
pub(super) unsafe fn match_all_64(mask: u32, value: u64) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { preempt_match_all_64(mask, value) }
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
