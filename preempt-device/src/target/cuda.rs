//! The primitives on the GPU.
//!
//! Barriers, votes and shuffles are LLVM intrinsics. Inline assembly would not be convergent, and LLVM would
//! duplicate it into divergent branches.
//!
//! Code that depends on the code generator is in `llvm.rs`, for the stock compiler's, and `nvvm.rs`, for
//! rust-cuda's.
//!
//! Block index and grid dimensions are those of the *block-task*. Each entry declares named PTX registers for
//! them, and the functions here read those. `ptxas` rejects a function that was not inlined into an entry, so
//! such a function cannot be silently wrong.

use core::arch::asm;
use core::arch::nvptx;

use crate::warp::Reduction;

pub(crate) use generator::{
    atomic_add_32, atomic_add_64, atomic_add_f32, atomic_add_f64, atomic_and_32, atomic_and_64,
    atomic_cas_32, atomic_cas_64, atomic_load_32, atomic_load_64, atomic_max_32, atomic_max_64,
    atomic_min_32, atomic_min_64, atomic_or_32, atomic_or_64, atomic_store_32, atomic_store_64,
    atomic_umax_32, atomic_umax_64, atomic_umin_32, atomic_umin_64, atomic_xchg_32, atomic_xchg_64,
    atomic_xor_32, atomic_xor_64, block_fence, block_fence_acq_rel, ceil, ceilf, device_fence,
    device_fence_acq_rel, floor, floorf, fma, fmaf, global, loop_slot, rint, rintf, shared_base,
    sqrt, sqrtf, start_copy, system_fence, system_fence_acq_rel, trunc, truncf, yield_word,
};

#[cfg(not(feature = "cuda-std"))]
mod llvm;
#[cfg(not(feature = "cuda-std"))]
use llvm as generator;
#[cfg(feature = "cuda-std")]
mod nvvm;
#[cfg(feature = "cuda-std")]
use nvvm as generator;

#[cfg(feature = "cuda-std")]
pub(crate) use generator::{ProtocolU32, ProtocolU64};
use generator::{
    bar_warp_sync, barrier_and, barrier_or, barrier_popc, barrier_sync, match_all_32, match_all_64,
    match_any_32, match_any_64, redux_add, redux_and, redux_max, redux_min, redux_or, redux_umax,
    redux_umin, redux_xor, shfl_bfly, shfl_down, shfl_idx, shfl_up, vote_ballot,
};

macro_rules! approximations {
    ($($name:ident($($argument:ident),*) = $instruction:literal;)*) => {
        $(#[inline(always)]
        pub(crate) fn $name($($argument: f32),*) -> f32 {
            let result: f32;
            // SAFETY: arithmetic.
            unsafe {
                asm!($instruction, out(reg32) result, $(in(reg32) $argument,)*
                    options(pure, nomem, nostack, preserves_flags));
            }
            result
        })*
    };
}
approximations! {
    // Without `.ftz`, because `f32` has subnormal numbers on every target.
    ex2_approx(x) = "ex2.approx.f32 {}, {};";
    lg2_approx(x) = "lg2.approx.f32 {}, {};";
    sin_approx(x) = "sin.approx.f32 {}, {};";
    cos_approx(x) = "cos.approx.f32 {}, {};";
    tanh_approx(x) = "tanh.approx.f32 {}, {};";
    sqrt_approx(x) = "sqrt.approx.f32 {}, {};";
    rsqrt_approx(x) = "rsqrt.approx.f32 {}, {};";
    rcp_approx(x) = "rcp.approx.f32 {}, {};";
    div_approx(x, y) = "div.approx.f32 {}, {}, {};";
}

#[cfg(feature = "half")]
macro_rules! conversions {
    ($($name:ident($from:ty, $in:ident) -> $to:ty, $out:ident = $instruction:literal;)*) => {
        $(#[inline(always)]
        pub(crate) fn $name(value: $from) -> $to {
            let result: $to;
            // SAFETY: arithmetic.
            unsafe {
                asm!($instruction, out($out) result, in($in) value,
                    options(pure, nomem, nostack, preserves_flags));
            }
            result
        })*
    };
}
#[cfg(feature = "half")]
conversions! {
    f16_to_f32(u16, reg16) -> f32, reg32 = "cvt.f32.f16 {}, {};";
    f32_to_f16(f32, reg32) -> u16, reg16 = "cvt.rn.f16.f32 {}, {};";
    f32_to_bf16(f32, reg32) -> u16, reg16 = "cvt.rn.bf16.f32 {}, {};";
}

/// Barrier numbers: the barrier of the worker loop. The code of kernels uses barrier 0.
const LOOP_BARRIER: u32 = 1;
/// The barrier of yield points in bodies with barriers.
const YIELD_BARRIER: u32 = 2;

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
    block_dim_x = _block_dim_x; block_dim_y = _block_dim_y; block_dim_z = _block_dim_z;
    hardware_block_x = _block_idx_x; hardware_block_y = _block_idx_y; hardware_block_z = _block_idx_z;
    hardware_grid_x = _grid_dim_x; hardware_grid_y = _grid_dim_y; hardware_grid_z = _grid_dim_z;
}

macro_rules! task_registers {
    ($($name:ident = $register:literal;)*) => {
        $(#[inline(always)]
        pub(crate) fn $name() -> u32 {
            let value: u32;
            // SAFETY: reads a special register, or a register of every entry. Not `pure`: the value changes
            // with each task. The thread's index does not. But values that the compiler derives from it once
            // for all tasks would occupy registers, which the plain entry does not need.
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
    thread_idx_x = "%tid.x"; thread_idx_y = "%tid.y"; thread_idx_z = "%tid.z";
}

/// Declares the registers that hold the task's block index and grid dimensions. Called once in each entry,
/// before anything else.
#[inline(always)]
pub(crate) fn declare_task_registers(grid: [u32; 3]) {
    // SAFETY: declares and sets registers that only this crate uses.
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

/// Records in the PTX how many threads every block of an entry has. It is a comment, which the loader of the
/// PTX reads (`preempt::ptx`). The assembler would heed the directive `.reqntid` when it allocates registers
/// to an entry, so this is not used.
#[inline(always)]
pub(crate) fn declare_block<const THREADS: u32>() {
    // SAFETY: a comment. Not `pure`, so that the compiler keeps it.
    unsafe {
        asm!("// preempt.block {}", const THREADS, options(nomem, nostack, preserves_flags));
    }
}

/// Records in the PTX that an entry has a checkpoint, so that the device reserves memory for what blocks leave there. It is
/// a comment, which the loader of the PTX looks for.
#[inline(always)]
pub(crate) fn declare_checkpoint() {
    // SAFETY: a comment. Not `pure`, so that the compiler keeps it.
    unsafe { asm!("// preempt.checkpoint", options(nomem, nostack, preserves_flags)) }
}

/// Sets the block index of the task.
#[inline(always)]
pub(crate) fn set_block_idx(block: [u32; 3]) {
    // SAFETY: sets registers that only this crate uses.
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

/// Marks where a preemptible entry starts a block-task, with the task's index. It is a comment. The loader of the
/// PTX makes the register of it that a panic reads (`preempt_ptx_text::with_panic_records`).
#[inline(always)]
pub(crate) fn mark_task(index: u32) {
    // SAFETY: a comment.
    unsafe {
        asm!("// preempt.task {}", in(reg32) index, options(nomem, nostack, preserves_flags));
    }
}

/// Bytes of shared memory that the launch gives each block.
#[inline(always)]
pub(crate) fn dynamic_shared_bytes() -> u32 {
    let bytes: u32;
    // SAFETY: reads a special register.
    unsafe {
        asm!("mov.u32 {}, %dynamic_smem_size;", out(reg32) bytes, options(nomem, nostack, preserves_flags));
    }
    bytes
}

/// The thread's lane, in a form that the compiler cannot compute by itself.
#[inline(always)]
pub(crate) fn lane_id() -> u32 {
    let lane: u32;
    // SAFETY: reads a special register.
    unsafe { asm!("mov.u32 {}, %laneid;", out(reg32) lane, options(nomem, nostack)) }
    lane
}

/// Whether this is thread 0 of its block. Unlike the thread's index, this is worth a register for the whole
/// kernel: it is one predicate.
#[inline(always)]
pub(crate) fn is_first_thread() -> bool {
    // SAFETY: reads special registers.
    unsafe { nvptx::_thread_idx_x() | nvptx::_thread_idx_y() | nvptx::_thread_idx_z() == 0 }
}

/// The number of the block in the hardware's grid. The register's name tells the checker of the PTX that the
/// worker loop reads it (`preempt::ptx`).
#[inline(always)]
pub(crate) fn block_number() -> u32 {
    let number: u32;
    // SAFETY: reads a special register.
    unsafe {
        asm!(
            // In one line, because the checker reads PTX line by line and takes a brace on a line of its own
            // for the entry's.
            "{{ .reg .u32 %preempt_number; mov.u32 %preempt_number, %ctaid.x; mov.u32 {}, %preempt_number; }}",
            out(reg32) number,
            options(nomem, nostack),
        );
    }
    number
}

/// Returns `value`, in a form that hides from the compiler that it is unchanged.
///
/// So what is computed from it is computed there. Otherwise the compiler computes what stays the same once, ahead of the loop,
/// and has it in a register while the kernel's body runs, for all threads. A body that just fits into its registers then waits
/// for one load before it starts the next one.
#[inline(always)]
pub(crate) fn opaque(value: u32) -> u32 {
    let same: u32;
    // SAFETY: a move between registers.
    unsafe { asm!("mov.u32 {}, {};", out(reg32) same, in(reg32) value, options(nomem, nostack)) }
    same
}

#[inline(always)]
pub(crate) fn sm_id() -> u32 {
    let sm: u32;
    // SAFETY: reads a special register. Not `pure`: it may change when a debugger moves the block.
    unsafe { asm!("mov.u32 {}, %smid;", out(reg32) sm, options(nomem, nostack, preserves_flags)) }
    sm
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
pub(crate) fn yield_vote(taken: bool) -> bool {
    // SAFETY: every thread of the block calls it.
    unsafe { barrier_or(YIELD_BARRIER, taken) }
}

#[inline(always)]
pub(crate) fn yield_vote_all(drops: bool) -> bool {
    // SAFETY: every thread of the block calls it.
    unsafe { barrier_and(YIELD_BARRIER, drops) }
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

#[inline(always)]
pub(crate) fn warp_match_any(mask: u32, value: u64, bits: u32) -> u32 {
    // SAFETY: the public function's contract.
    unsafe {
        match bits {
            32 => match_any_32(mask, value as u32),
            _ => match_any_64(mask, value),
        }
    }
}

#[inline(always)]
pub(crate) fn warp_match_all(mask: u32, value: u64, bits: u32) -> u32 {
    // SAFETY: the public function's contract.
    unsafe {
        match bits {
            32 => match_all_32(mask, value as u32),
            _ => match_all_64(mask, value),
        }
    }
}

#[inline(always)]
pub(crate) fn warp_reduce(mask: u32, value: u32, reduction: Reduction) -> u32 {
    // SAFETY: the public function's contract.
    unsafe {
        match reduction {
            Reduction::Add => redux_add(value, mask),
            Reduction::Min => redux_umin(value, mask),
            Reduction::Max => redux_umax(value, mask),
            Reduction::SignedMin => redux_min(value, mask),
            Reduction::SignedMax => redux_max(value, mask),
            Reduction::And => redux_and(value, mask),
            Reduction::Or => redux_or(value, mask),
            Reduction::Xor => redux_xor(value, mask),
        }
    }
}

#[inline(always)]
pub(crate) fn active_mask() -> u32 {
    // SAFETY: reads which threads are active.
    unsafe { generator::active_mask() }
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

/// Waits for the copies that this thread has started.
#[inline(always)]
pub(crate) fn await_copies() {
    // SAFETY: a wait.
    unsafe { asm!("cp.async.wait_all;", options(nostack)) }
}

/// Whether this is the first of the threads of its warp that execute this together. A warp may have several
/// such groups.
#[inline(always)]
pub(crate) fn is_leader() -> bool {
    let (active, lower): (u32, u32);
    // SAFETY: reads the masks of active threads and of lower lanes.
    unsafe {
        asm!("activemask.b32 {}; mov.u32 {}, %lanemask_lt;", out(reg32) active, out(reg32) lower,
            options(nomem, nostack));
    }
    active & lower == 0
}

/// The lower half of [`clock64`], which is cheaper to read than both halves.
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

/// Waits for the preceding grid, if this one was launched early. Devices before `sm_90` lack the instruction,
/// so this is a comment, and the loader of the PTX replaces it where the device has it
/// (`preempt::device::cuda`).
#[inline(always)]
pub(crate) fn await_previous() {
    // SAFETY: a comment, or a wait, ahead of which the compiler moves no memory access.
    unsafe { asm!("// preempt.griddepcontrol.wait", options(nostack, preserves_flags)) }
}

/// Lets the following grid start, if that was launched early; a comment, as in [`await_previous`].
#[inline(always)]
pub(crate) fn release_next() {
    // SAFETY: a comment, or a hint.
    unsafe {
        asm!("// preempt.griddepcontrol.launch_dependents", options(nostack, preserves_flags))
    }
}
