//! The primitives on the GPU.
//!
//! Barriers, votes and shuffles go through LLVM intrinsics: written as inline assembly they
//! would not be convergent, and LLVM would duplicate them into divergent branches.
//!
//! Block index and grid dimensions are the *task's*. Each entry declares named PTX registers
//! for them and the functions here read those, so a function that was not inlined into an
//! entry is rejected by `ptxas` and cannot be silently wrong.

use core::arch::asm;
use core::arch::nvptx;
use core::sync::atomic::{AtomicU32, AtomicU64};

unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.all"]
    fn barrier_sync(id: u32);
    #[link_name = "llvm.nvvm.barrier.cta.red.popc.aligned.all"]
    fn barrier_popc(id: u32, predicate: bool) -> u32;
    #[link_name = "llvm.nvvm.barrier.cta.red.and.aligned.all"]
    fn barrier_and(id: u32, predicate: bool) -> bool;
    #[link_name = "llvm.nvvm.barrier.cta.red.or.aligned.all"]
    fn barrier_or(id: u32, predicate: bool) -> bool;
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn bar_warp_sync(mask: u32);
    #[link_name = "llvm.nvvm.vote.ballot.sync"]
    fn vote_ballot(mask: u32, predicate: bool) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.down.i32"]
    fn shfl_down(mask: u32, value: u32, delta: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.up.i32"]
    fn shfl_up(mask: u32, value: u32, delta: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    fn shfl_bfly(mask: u32, value: u32, xor: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    fn shfl_idx(mask: u32, value: u32, index: u32, clamp: u32) -> u32;
    #[link_name = "llvm.fma.f32"]
    fn llvm_fma_f32(a: f32, b: f32, c: f32) -> f32;
    #[link_name = "llvm.fma.f64"]
    fn llvm_fma_f64(a: f64, b: f64, c: f64) -> f64;
    #[link_name = "llvm.sqrt.f32"]
    fn llvm_sqrt_f32(x: f32) -> f32;
    #[link_name = "llvm.sqrt.f64"]
    fn llvm_sqrt_f64(x: f64) -> f64;
}

// Defined in `intrinsics.ll`, which the build links in.
unsafe extern "C" {
    fn preempt_shared_base() -> *mut u8;
    fn preempt_loop_slot() -> *mut u64;
    fn preempt_yield_word() -> *mut u32;
    fn preempt_global(address: u64) -> *const u8;
    fn preempt_atomic_add_f32(ptr: *mut f32, value: f32) -> f32;
    fn preempt_atomic_add_f64(ptr: *mut f64, value: f64) -> f64;
    fn preempt_device_fence();
    fn preempt_device_fence_acq_rel();
}

/// The barrier of the worker loop; kernels' own code uses barrier 0.
const LOOP_BARRIER: u32 = 1;

macro_rules! special_registers {
    ($($name:ident = $intrinsic:ident;)*) => {
        $(#[inline(always)]
        pub(crate) fn $name() -> u32 {
            // SAFETY: reads a special register.
            unsafe { nvptx::$intrinsic() as u32 }
        })*
    };
}
special_registers! {
    thread_idx_x = _thread_idx_x; thread_idx_y = _thread_idx_y; thread_idx_z = _thread_idx_z;
    block_dim_x = _block_dim_x; block_dim_y = _block_dim_y; block_dim_z = _block_dim_z;
    hardware_block_x = _block_idx_x; hardware_block_y = _block_idx_y; hardware_block_z = _block_idx_z;
    hardware_grid_x = _grid_dim_x; hardware_grid_y = _grid_dim_y; hardware_grid_z = _grid_dim_z;
}

macro_rules! task_registers {
    ($($name:ident = $register:literal;)*) => {
        $(#[inline(always)]
        pub(crate) fn $name() -> u32 {
            let value: u32;
            // SAFETY: reads a register that every entry declares. Not `pure`: the value changes
            // with each task.
            unsafe {
                asm!(concat!("mov.u32 {}, ", $register, ";"), out(reg32) value,
                    options(nomem, nostack, preserves_flags));
            }
            value
        })*
    };
}
task_registers! {
    block_idx_x = "%preempt_block_x"; block_idx_y = "%preempt_block_y"; block_idx_z = "%preempt_block_z";
    grid_dim_x = "%preempt_grid_x"; grid_dim_y = "%preempt_grid_y"; grid_dim_z = "%preempt_grid_z";
}

/// Declares the registers that hold the task's block index and grid dimensions. Once in each
/// entry, before anything else.
#[inline(always)]
pub(crate) fn declare_task_registers(grid: [u32; 3]) {
    // SAFETY: declares and sets registers of our own.
    unsafe {
        asm!(
            ".reg .u32 %preempt_block_x, %preempt_block_y, %preempt_block_z;",
            ".reg .u32 %preempt_grid_x, %preempt_grid_y, %preempt_grid_z;",
            "mov.u32 %preempt_grid_x, {};",
            "mov.u32 %preempt_grid_y, {};",
            "mov.u32 %preempt_grid_z, {};",
            in(reg32) grid[0], in(reg32) grid[1], in(reg32) grid[2],
            options(nomem, nostack, preserves_flags),
        );
    }
}

/// Sets the block index that the task sees.
#[inline(always)]
pub(crate) fn set_block_idx(block: [u32; 3]) {
    // SAFETY: sets registers of our own.
    unsafe {
        asm!(
            "mov.u32 %preempt_block_x, {};",
            "mov.u32 %preempt_block_y, {};",
            "mov.u32 %preempt_block_z, {};",
            in(reg32) block[0], in(reg32) block[1], in(reg32) block[2],
            options(nomem, nostack, preserves_flags),
        );
    }
}

#[inline(always)]
pub(crate) fn sm_id() -> u32 {
    let sm: u32;
    // SAFETY: reads a special register. Not `pure`: it may change when a debugger moves the block.
    unsafe { asm!("mov.u32 {}, %smid;", out(reg32) sm, options(nomem, nostack, preserves_flags)) }
    sm
}

#[inline(always)]
pub(crate) fn shared_base() -> *mut u8 {
    // SAFETY: returns an address.
    unsafe { preempt_shared_base() }
}

/// Two words of shared memory that belong to the worker loop.
#[inline(always)]
pub(crate) fn loop_slot() -> *mut u64 {
    // SAFETY: returns an address.
    unsafe { preempt_loop_slot() }
}

/// A word of shared memory that belongs to the block's yield points.
#[inline(always)]
pub(crate) fn yield_word() -> *mut u32 {
    // SAFETY: returns an address.
    unsafe { preempt_yield_word() }
}

/// The same pointer, of which the compiler knows that it points to global memory (device
/// memory or host memory that is mapped).
#[inline(always)]
pub(crate) fn global<T>(ptr: *const T) -> *const T {
    // SAFETY: returns an address.
    unsafe { preempt_global(ptr as u64).cast() }
}

#[inline(always)]
pub(crate) fn loop_barrier() {
    // SAFETY: every thread of the block calls it.
    unsafe { barrier_sync(LOOP_BARRIER) }
}

#[inline(always)]
pub(crate) fn loop_barrier_or(predicate: bool) -> bool {
    // SAFETY: every thread of the block calls it.
    unsafe { barrier_or(LOOP_BARRIER, predicate) }
}

#[inline(always)]
pub(crate) fn sync_threads() {
    // SAFETY: a barrier; threads that disagree hang, which is not undefined.
    unsafe { barrier_sync(0) }
}

#[inline(always)]
pub(crate) fn sync_threads_count(predicate: u32) -> u32 {
    // SAFETY: as above.
    unsafe { barrier_popc(0, predicate != 0) }
}

#[inline(always)]
pub(crate) fn sync_threads_and(predicate: u32) -> u32 {
    // SAFETY: as above.
    unsafe { barrier_and(0, predicate != 0) as u32 }
}

#[inline(always)]
pub(crate) fn sync_threads_or(predicate: u32) -> u32 {
    // SAFETY: as above.
    unsafe { barrier_or(0, predicate != 0) as u32 }
}

#[inline(always)]
pub(crate) fn sync_warp(mask: u32) {
    // SAFETY: the public function's contract.
    unsafe { bar_warp_sync(mask) }
}

#[inline(always)]
pub(crate) fn warp_vote_ballot(mask: u32, predicate: bool) -> u32 {
    // SAFETY: the public function's contract.
    unsafe { vote_ballot(mask, predicate) }
}

/// The `c` operand of `shfl.sync` (PTX ISA): segment mask in bits 8 to 12, clamp in bits 0 to 4.
#[inline(always)]
fn segment(width: u32) -> u32 {
    (32 - width) << 8
}

/// The first lane of this lane's group.
#[inline(always)]
fn group(width: u32) -> u32 {
    crate::warp::lane_id() & !(width - 1)
}

#[inline(always)]
pub(crate) fn warp_shuffle_down(mask: u32, value: u32, delta: u32, width: u32) -> (u32, bool) {
    let inside = (crate::warp::lane_id() - group(width)).saturating_add(delta) < width;
    // SAFETY: the public function's contract.
    (unsafe { shfl_down(mask, value, delta, segment(width) | 31) }, inside)
}

#[inline(always)]
pub(crate) fn warp_shuffle_up(mask: u32, value: u32, delta: u32, width: u32) -> (u32, bool) {
    let inside = crate::warp::lane_id() - group(width) >= delta;
    // SAFETY: the public function's contract.
    (unsafe { shfl_up(mask, value, delta, segment(width)) }, inside)
}

#[inline(always)]
pub(crate) fn warp_shuffle_xor(mask: u32, value: u32, xor: u32, width: u32) -> (u32, bool) {
    let inside = (crate::warp::lane_id() ^ xor) < group(width) + width;
    // SAFETY: the public function's contract.
    (unsafe { shfl_bfly(mask, value, xor, segment(width) | 31) }, inside)
}

#[inline(always)]
pub(crate) fn warp_shuffle_idx(mask: u32, value: u32, index: u32, width: u32) -> (u32, bool) {
    // SAFETY: the public function's contract.
    (unsafe { shfl_idx(mask, value, index, segment(width) | 31) }, true)
}

/// The lower half of [`clock64`], which is cheaper to read.
#[inline(always)]
pub(crate) fn clock() -> u32 {
    let clock: u32;
    // SAFETY: reads a special register.
    unsafe { asm!("mov.u32 {}, %clock;", out(reg32) clock, options(nomem, nostack)) }
    clock
}

#[inline(always)]
pub(crate) fn clock64() -> u64 {
    let clock: u64;
    // SAFETY: reads a special register.
    unsafe { asm!("mov.u64 {}, %clock64;", out(reg64) clock, options(nomem, nostack)) }
    clock
}

#[inline(always)]
pub(crate) fn global_timer() -> u64 {
    let nanos: u64;
    // SAFETY: reads a special register.
    unsafe { asm!("mov.u64 {}, %globaltimer;", out(reg64) nanos, options(nomem, nostack)) }
    nanos
}

#[inline(always)]
pub(crate) fn nanosleep(nanos: u32) {
    // SAFETY: suspends the thread.
    unsafe { asm!("nanosleep.u32 {};", in(reg32) nanos, options(nomem, nostack)) }
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

/// Where a kernel waits for the grid before it, if it was launched early. The instruction is not
/// there before `sm_90`, so this is a comment, and whoever loads the PTX onto such a device puts
/// the instruction in its place (`preempt::device::cuda`).
#[inline(always)]
pub(crate) fn await_previous() {
    // SAFETY: a comment, or a wait. Memory is not to be touched ahead of it.
    unsafe { asm!("// preempt.griddepcontrol.wait", options(nostack, preserves_flags)) }
}

/// Where a kernel lets the grid after it start, if that was launched early; a comment, as above.
#[inline(always)]
pub(crate) fn release_next() {
    // SAFETY: a comment, or a hint.
    unsafe {
        asm!("// preempt.griddepcontrol.launch_dependents", options(nostack, preserves_flags))
    }
}

#[inline(always)]
pub(crate) fn fmaf(x: f32, a: f32, b: f32) -> f32 {
    // SAFETY: arithmetic.
    unsafe { llvm_fma_f32(x, a, b) }
}

#[inline(always)]
pub(crate) fn fma(x: f64, a: f64, b: f64) -> f64 {
    // SAFETY: arithmetic.
    unsafe { llvm_fma_f64(x, a, b) }
}

#[inline(always)]
pub(crate) fn sqrtf(x: f32) -> f32 {
    // SAFETY: arithmetic.
    unsafe { llvm_sqrt_f32(x) }
}

#[inline(always)]
pub(crate) fn sqrt(x: f64) -> f64 {
    // SAFETY: arithmetic.
    unsafe { llvm_sqrt_f64(x) }
}
