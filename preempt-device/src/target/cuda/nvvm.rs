//! The primitives in terms of rust-cuda's code generator (`rustc_codegen_nvvm`, for NVIDIA's `libnvvm`), of
//! 2025 and later.
//!
//! This crate is tested without that compiler: see the limits in `preempt::guide::from_rust_cuda`. So as little as
//! possible depends on it. Fences and barrier 0 are functions that the generator defines itself. Atomics of
//! the protocol are PTX, so they do not depend on the generator's treatment of Rust's atomics. The worker
//! loop's barrier, votes and shuffles are intrinsics of LLVM since version 7, which `cuda_std` reaches in
//! other ways. If this file does not compile, look at those first.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::sync::atomic::Ordering;

unsafe extern "C" {
    #[link_name = "llvm.nvvm.barrier.n"]
    fn barrier_n(id: u32);
    #[link_name = "llvm.nvvm.barrier0.popc"]
    fn barrier0_popc(predicate: u32) -> u32;
    #[link_name = "llvm.nvvm.barrier0.and"]
    fn barrier0_and(predicate: u32) -> u32;
    #[link_name = "llvm.nvvm.barrier0.or"]
    fn barrier0_or(predicate: u32) -> u32;
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
    // Defined by the code generator, as `bar.sync 0`, `membar.gl` and `membar.sys`.
    fn __nvvm_block_barrier();
    fn __nvvm_device_fence();
    fn __nvvm_system_fence();
}

#[inline(always)]
pub(super) unsafe fn barrier_sync(id: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        match id {
            0 => __nvvm_block_barrier(),
            id => barrier_n(id),
        }
    }
}

/// Counts predicates at barrier 0, the only one with reductions. So threads that disagree about a yield point
/// and a barrier of the body may meet there, where they would hang with other code generators.
#[inline(always)]
pub(super) unsafe fn barrier_popc(_id: u32, predicate: bool) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { barrier0_popc(predicate.into()) }
}

#[inline(always)]
pub(super) unsafe fn barrier_and(_id: u32, predicate: bool) -> bool {
    // SAFETY: the caller's promise.
    unsafe { barrier0_and(predicate.into()) != 0 }
}

#[inline(always)]
pub(super) unsafe fn barrier_or(_id: u32, predicate: bool) -> bool {
    // SAFETY: the caller's promise.
    unsafe { barrier0_or(predicate.into()) != 0 }
}

/// Shared memory: statics that the code generator puts there.
#[cfg(not(preempt_stand_in))]
mod shared_memory {
    use core::cell::UnsafeCell;
    use core::mem::MaybeUninit;

    #[repr(C, align(16))]
    struct Shared<T>(UnsafeCell<MaybeUninit<T>>);

    // SAFETY: its users order the threads of the block.
    unsafe impl<T> Sync for Shared<T> {}

    unsafe extern "C" {
        // The kernel's shared arrays are offsets into this symbol; the launch gives its size.
        #[allow(improper_ctypes, reason = "only this crate gives it a meaning")]
        #[nvvm_internal::addrspace(3)]
        static preempt_smem: Shared<u128>;
    }

    #[nvvm_internal::addrspace(3)]
    #[unsafe(no_mangle)]
    static preempt_slot: Shared<[u128; 7]> = Shared(UnsafeCell::new(MaybeUninit::uninit()));

    #[nvvm_internal::addrspace(3)]
    #[unsafe(no_mangle)]
    static preempt_yields: Shared<u128> = Shared(UnsafeCell::new(MaybeUninit::uninit()));

    #[inline(always)]
    pub(crate) fn shared_base() -> *mut u8 {
        // SAFETY: an address.
        unsafe { preempt_smem.0.get().cast() }
    }

    /// Fourteen words that belong to the worker loop.
    #[inline(always)]
    pub(crate) fn loop_slot() -> *mut u64 {
        preempt_slot.0.get().cast()
    }

    /// A word that belongs to the block's yield points.
    #[inline(always)]
    pub(crate) fn yield_word() -> *mut u64 {
        preempt_yields.0.get().cast()
    }
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
        asm!(
            "{{ .reg .u64 %preempt_to; cvta.to.shared.u64 %preempt_to, {}; \
             cp.async.cg.shared.global [%preempt_to], [{}], 16; }}",
            in(reg64) core::ptr::from_ref(to), in(reg64) core::ptr::from_ref(from),
            options(nostack),
        );
    }
}

/// The replacement that `.ci/ptx` compiles, so that the stock compiler checks the rest of this file.
#[cfg(preempt_stand_in)]
mod shared_memory {
    macro_rules! addresses {
        ($($name:ident = $function:ident: $ty:ty;)*) => {
            unsafe extern "C" {
                $(fn $function() -> *mut $ty;)*
            }
            $(pub(crate) fn $name() -> *mut $ty {
                // SAFETY: an address.
                unsafe { $function() }
            })*
        };
    }
    addresses! {
        shared_base = preempt_shared_base: u8;
        loop_slot = preempt_loop_slot: u64;
        yield_word = preempt_yield_word: u64;
    }
}

pub(crate) use shared_memory::{loop_slot, shared_base, yield_word};

/// Returns `ptr`: this code generator cannot be told which memory it points to.
#[inline(always)]
pub(crate) fn global<T>(ptr: *const T) -> *const T {
    ptr
}

#[inline(always)]
pub(crate) fn device_fence() {
    // SAFETY: a fence.
    unsafe { __nvvm_device_fence() }
}

/// A fence for the device: `membar.gl`, which is `fence.sc.gpu` and stronger than needed.
#[inline(always)]
pub(crate) fn device_fence_acq_rel() {
    device_fence()
}

#[inline(always)]
pub(crate) fn system_fence() {
    // SAFETY: a fence.
    unsafe { __nvvm_system_fence() }
}

/// A fence for device and host: `membar.sys`, which is `fence.sc.sys` and stronger than needed.
#[inline(always)]
pub(crate) fn system_fence_acq_rel() {
    system_fence()
}

macro_rules! protocol_words {
    ($($(#[$doc:meta])* $name:ident $word:ident $reg:ident $load:literal $store:literal;)*) => {
        $(
            $(#[$doc])*
            #[derive(Default)]
            #[repr(transparent)]
            pub struct $name(UnsafeCell<$word>);

            // SAFETY: all access is atomic.
            unsafe impl Sync for $name {}
            // SAFETY: a number.
            unsafe impl Send for $name {}

            impl core::fmt::Debug for $name {
                fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                    self.load(Ordering::Relaxed).fmt(f)
                }
            }

            impl $name {
                #[inline(always)]
                pub const fn new(value: $word) -> Self {
                    $name(UnsafeCell::new(value))
                }

                #[inline(always)]
                pub fn load(&self, _: Ordering) -> $word {
                    let value: $word;
                    // SAFETY: the reference is valid.
                    unsafe {
                        asm!(concat!($load, " {}, [{}];"), out($reg) value,
                            in(reg64) self.0.get(), options(nostack));
                    }
                    value
                }

                #[inline(always)]
                pub fn store(&self, value: $word, _: Ordering) {
                    // SAFETY: the reference is valid.
                    unsafe {
                        asm!(concat!($store, " [{}], {};"), in(reg64) self.0.get(),
                            in($reg) value, options(nostack));
                    }
                }
            }
        )*
    };
}
protocol_words! {
    /// The 64-bit word of control blocks, signals, posts and lists, under the names of core's atomic. All
    /// orderings are fences, so accesses are relaxed.
    ProtocolU64 u64 reg64 "ld.relaxed.sys.u64" "st.relaxed.sys.u64";
    /// The 32-bit word of claims, lists and watches.
    ProtocolU32 u32 reg32 "ld.relaxed.sys.u32" "st.relaxed.sys.u32";
}

macro_rules! protocol_operations {
    ($($atomic:ident $word:ident $reg:ident: $($name:ident $instruction:literal),*; $cas:literal;)*) => {
        $(impl $atomic {
            $(#[inline(always)]
            pub fn $name(&self, value: $word, _: Ordering) -> $word {
                let before: $word;
                // SAFETY: the reference is valid.
                unsafe {
                    asm!(concat!($instruction, " {}, [{}], {};"), out($reg) before,
                        in(reg64) self.0.get(), in($reg) value, options(nostack));
                }
                before
            })*

            #[inline(always)]
            pub fn compare_exchange(
                &self,
                current: $word,
                new: $word,
                _: Ordering,
                _: Ordering,
            ) -> Result<$word, $word> {
                let before: $word;
                // SAFETY: the reference is valid.
                unsafe {
                    asm!(concat!($cas, " {}, [{}], {}, {};"), out($reg) before,
                        in(reg64) self.0.get(), in($reg) current, in($reg) new, options(nostack));
                }
                if before == current { Ok(before) } else { Err(before) }
            }
        })*
    };
}
protocol_operations! {
    ProtocolU64 u64 reg64:
        fetch_add "atom.relaxed.gpu.add.u64",
        swap "atom.relaxed.gpu.exch.b64";
        "atom.relaxed.gpu.cas.b64";
    ProtocolU32 u32 reg32:
        fetch_add "atom.relaxed.gpu.add.u32",
        fetch_or "atom.relaxed.gpu.or.b32",
        fetch_and "atom.relaxed.gpu.and.b32",
        fetch_max "atom.relaxed.gpu.max.u32",
        swap "atom.relaxed.gpu.exch.b32";
        "atom.relaxed.gpu.cas.b32";
}

impl ProtocolU32 {
    #[inline(always)]
    pub fn fetch_sub(&self, value: u32, order: Ordering) -> u32 {
        self.fetch_add(value.wrapping_neg(), order)
    }
}

macro_rules! atomics {
    ($(
        $bits:ty, $reg:ident: $load:ident $store:ident $cas:ident = $suffix:literal;
        { $($name:ident = $operation:literal;)* }
    )*) => {
        $(
            #[inline(always)]
            pub(crate) unsafe fn $load(ptr: *mut $bits, system: bool) -> $bits {
                let value: $bits;
                // SAFETY: the caller's promise.
                unsafe {
                    match system {
                        true => asm!(concat!("ld.relaxed.sys.", $suffix, " {}, [{}];"), out($reg) value,
                            in(reg64) ptr, options(nostack)),
                        false => asm!(concat!("ld.relaxed.gpu.", $suffix, " {}, [{}];"), out($reg) value,
                            in(reg64) ptr, options(nostack)),
                    }
                }
                value
            }

            #[inline(always)]
            pub(crate) unsafe fn $store(ptr: *mut $bits, value: $bits, system: bool) {
                // SAFETY: the caller's promise.
                unsafe {
                    match system {
                        true => asm!(concat!("st.relaxed.sys.", $suffix, " [{}], {};"), in(reg64) ptr,
                            in($reg) value, options(nostack)),
                        false => asm!(concat!("st.relaxed.gpu.", $suffix, " [{}], {};"), in(reg64) ptr,
                            in($reg) value, options(nostack)),
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
                let before: $bits;
                // SAFETY: the caller's promise.
                unsafe {
                    match system {
                        true => asm!(concat!("atom.relaxed.sys.cas.", $suffix, " {}, [{}], {}, {};"),
                            out($reg) before, in(reg64) ptr, in($reg) current, in($reg) new,
                            options(nostack)),
                        false => asm!(concat!("atom.relaxed.gpu.cas.", $suffix, " {}, [{}], {}, {};"),
                            out($reg) before, in(reg64) ptr, in($reg) current, in($reg) new,
                            options(nostack)),
                    }
                }
                before
            }

            $(#[inline(always)]
            pub(crate) unsafe fn $name(ptr: *mut $bits, value: $bits) -> $bits {
                let before: $bits;
                // SAFETY: the caller's promise.
                unsafe {
                    asm!(concat!("atom.relaxed.gpu.", $operation, " {}, [{}], {};"), out($reg) before,
                        in(reg64) ptr, in($reg) value, options(nostack));
                }
                before
            })*
        )*
    };
}
atomics! {
    u32, reg32: atomic_load_32 atomic_store_32 atomic_cas_32 = "b32";
    {
        atomic_xchg_32 = "exch.b32";
        atomic_add_32 = "add.u32";
        atomic_and_32 = "and.b32";
        atomic_or_32 = "or.b32";
        atomic_xor_32 = "xor.b32";
        atomic_min_32 = "min.s32";
        atomic_max_32 = "max.s32";
        atomic_umin_32 = "min.u32";
        atomic_umax_32 = "max.u32";
    }
    u64, reg64: atomic_load_64 atomic_store_64 atomic_cas_64 = "b64";
    {
        atomic_xchg_64 = "exch.b64";
        atomic_add_64 = "add.u64";
        atomic_and_64 = "and.b64";
        atomic_or_64 = "or.b64";
        atomic_xor_64 = "xor.b64";
        atomic_min_64 = "min.s64";
        atomic_max_64 = "max.s64";
        atomic_umin_64 = "min.u64";
        atomic_umax_64 = "max.u64";
    }
}

macro_rules! atomic_adds {
    ($($name:ident $float:ident $reg:ident $instruction:literal;)*) => {
        $(#[inline(always)]
        pub(crate) unsafe fn $name(ptr: *mut $float, value: $float) -> $float {
            let before: $float;
            // SAFETY: the caller's promise.
            unsafe {
                asm!(concat!($instruction, " {}, [{}], {};"), out($reg) before, in(reg64) ptr,
                    in($reg) value, options(nostack));
            }
            before
        })*
    };
}
atomic_adds! {
    atomic_add_f32 f32 reg32 "atom.relaxed.gpu.add.f32";
    atomic_add_f64 f64 reg64 "atom.relaxed.gpu.add.f64";
}

#[inline(always)]
pub(crate) fn block_fence() {
    // SAFETY: a fence.
    unsafe { asm!("fence.sc.cta;", options(nostack)) }
}

#[inline(always)]
pub(crate) fn block_fence_acq_rel() {
    // SAFETY: a fence.
    unsafe { asm!("fence.acq_rel.cta;", options(nostack)) }
}

/// The lanes in the mask, if all of them have the same value, else 0. By two operations, because a pair as a result
/// may be passed in another way by each compiler.
#[inline(always)]
pub(super) unsafe fn match_all_32(mask: u32, value: u32) -> u32 {
    // SAFETY: the caller's promise.
    let (same, all) = unsafe { (match_any_32(mask, value), vote_ballot(mask, true)) };
    if same == all { all } else { 0 }
}

#[inline(always)]
pub(super) unsafe fn match_all_64(mask: u32, value: u64) -> u32 {
    // SAFETY: the caller's promise.
    let (same, all) = unsafe { (match_any_64(mask, value), vote_ballot(mask, true)) };
    if same == all { all } else { 0 }
}

#[inline(always)]
pub(super) unsafe fn active_mask() -> u32 {
    let mask: u32;
    // SAFETY: reads which threads are active.
    unsafe { asm!("activemask.b32 {};", out(reg32) mask, options(nomem, nostack)) }
    mask
}

macro_rules! functions {
    ($($name:ident($($argument:ident),*) $float:ident $reg:ident $instruction:literal;)*) => {
        $(#[inline(always)]
        pub(crate) fn $name($($argument: $float),*) -> $float {
            let result: $float;
            // SAFETY: arithmetic.
            unsafe {
                asm!(concat!($instruction, " {}" $(, functions!(@place $argument))*, ";"), out($reg) result, $(in($reg) $argument,)* options(nomem, nostack));
            }
            result
        })*
    };
    (@place $argument:ident) => { ", {}" };
}
functions! {
    fmaf(x, a, b) f32 reg32 "fma.rn.f32";
    fma(x, a, b) f64 reg64 "fma.rn.f64";
    sqrtf(x) f32 reg32 "sqrt.rn.f32";
    sqrt(x) f64 reg64 "sqrt.rn.f64";
    floorf(x) f32 reg32 "cvt.rmi.f32.f32";
    floor(x) f64 reg64 "cvt.rmi.f64.f64";
    ceilf(x) f32 reg32 "cvt.rpi.f32.f32";
    ceil(x) f64 reg64 "cvt.rpi.f64.f64";
    truncf(x) f32 reg32 "cvt.rzi.f32.f32";
    trunc(x) f64 reg64 "cvt.rzi.f64.f64";
    rintf(x) f32 reg32 "cvt.rni.f32.f32";
    rint(x) f64 reg64 "cvt.rni.f64.f64";
}
