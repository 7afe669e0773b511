//! Shuffles, votes, matches and reductions between the 32 threads of a warp; the names are `cuda_std`'s.
//!
//! Each of them, but for [`lane_id`] and [`activemask`], waits until every thread in `mask` has made the same call, at the
//! same place in the source. On the GPU, a thread in `mask` that returned or waits elsewhere hangs the warp. On the CPU
//! device the launch fails with an error. Threads past the end of the block do not count.
//!
//! ```
//! use preempt_device::prelude::*;
//!
//! /// `sums[w]` becomes the sum of the 32 elements of `x` that warp `w` of the grid has.
//! #[preemptible(block = 256)]
//! pub fn sums(x: &[f32], sums: SliceMut<f32>) {
//!     let i = thread::index_1d() as usize;
//!     // Lanes past the end of `x` take part with 0: the others would wait for them.
//!     let mut sum = if i < x.len() { x[i] } else { 0.0 };
//!     let mut delta = 16;
//!     while delta > 0 {
//!         // SAFETY: all lanes of the warp make this call, with the same mask and width.
//!         let (other, _) = unsafe { warp::warp_shuffle_down(warp::FULL_MASK, sum, delta, 32) };
//!         sum += other;
//!         delta /= 2;
//!     }
//!     // Lane 0 has the sum of all lanes; what the others have is of no use.
//!     if warp::lane_id() == 0 && i / 32 < sums.len() {
//!         // SAFETY: lane 0 of each warp writes an element of its own.
//!         unsafe { sums.write(i / 32, sum) }
//!     }
//! }
//! ```

use crate::target;

/// The mask of all 32 lanes of a warp.
pub const FULL_MASK: u32 = u32::MAX;

/// The lane of the calling thread, 0 to 31.
#[inline(always)]
pub fn lane_id() -> u32 {
    crate::thread::thread_number() % 32
}

/// The lanes that execute this call together, the calling one among them.
///
/// It tells nothing of the lanes that take a branch: a GPU may execute those one after the other, and the CPU device,
/// which runs each thread on its own, always does. For the lanes that take a branch, vote ahead of it
/// ([`warp_vote_ballot`]).
#[doc(alias = "__activemask")]
#[inline(always)]
pub fn activemask() -> u32 {
    target::active_mask()
}

/// Waits until every thread in `mask` has called this. What they wrote before is visible to all of them
/// after.
///
/// # Safety
///
/// The calling thread is in `mask`, and every thread in `mask` passes the same mask.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
#[doc(alias = "__syncwarp")]
pub unsafe fn sync_warp(mask: u32) {
    target::sync_warp(mask)
}

/// A value of 4 or 8 bytes that can be passed between lanes.
pub trait WarpShuffleValue: Copy {
    /// Splits the bits of the value into 32-bit parts, the low one first.
    #[doc(hidden)]
    fn split(self) -> (u32, Option<u32>);
    /// Joins the parts from [`split`](WarpShuffleValue::split).
    #[doc(hidden)]
    fn join(low: u32, high: Option<u32>) -> Self;
}

macro_rules! shuffle_values {
    ($($ty:ty, $split:expr, $join:expr;)*) => {
        $(
            impl WarpShuffleValue for $ty {
                #[inline(always)]
                fn split(self) -> (u32, Option<u32>) {
                    let split: fn($ty) -> (u32, Option<u32>) = $split;
                    split(self)
                }
                #[inline(always)]
                fn join(low: u32, high: Option<u32>) -> $ty {
                    let join: fn(u32, u32) -> $ty = $join;
                    join(low, high.unwrap_or(0))
                }
            }
        )*
    };
}
shuffle_values! {
    u32, |v| (v, None), |low, _| low;
    i32, |v| (v as u32, None), |low, _| low as i32;
    f32, |v| (v.to_bits(), None), |low, _| f32::from_bits(low);
    u64, |v| (v as u32, Some((v >> 32) as u32)), |low, high| (high as u64) << 32 | low as u64;
    i64, |v| (v as u32, Some((v >> 32) as u32)), |low, high| (high as i64) << 32 | low as i64;
    f64, |v| (v.to_bits() as u32, Some((v.to_bits() >> 32) as u32)),
        |low, high| f64::from_bits((high as u64) << 32 | low as u64);
}

macro_rules! shuffles {
    ($($(#[$doc:meta])* $name:ident $lane:ident;)*) => {
        $(
            $(#[$doc])*
            ///
            /// `width` splits the warp into groups of as many lanes. It is 1, 2, 4, 8, 16 or 32; with another width the
            /// launch fails on the CPU device.
            ///
            /// # Safety
            ///
            /// The calling thread is in `mask`, every thread in `mask` calls with the same mask
            /// and width, and the source lane is in `mask`.
            #[inline(always)]
            #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
            pub unsafe fn $name<T: WarpShuffleValue>(
                mask: u32,
                value: T,
                $lane: u32,
                width: u32,
            ) -> (T, bool) {
                let (low, high) = value.split();
                let (low, inside) = target::$name(mask, low, $lane, width);
                // Not in a closure: the call's place would be the closure's and not the caller's.
                let Some(high) = high else { return (T::join(low, None), inside) };
                let (high, _) = target::$name(mask, high, $lane, width);
                (T::join(low, Some(high)), inside)
            }
        )*
    };
}
shuffles! {
    /// The value of the lane whose number is larger by `delta`, and whether that lane lies within the group. If it does not,
    /// the value is the thread's own. `delta` is below 32.
    #[doc(alias = "__shfl_down_sync")]
    warp_shuffle_down delta;
    /// The value of the lane whose number is smaller by `delta`, and whether that lane lies within the group. If it does not,
    /// the value is the thread's own. `delta` is below 32.
    #[doc(alias = "__shfl_up_sync")]
    warp_shuffle_up delta;
    /// The value of the lane whose number is the caller's XOR `lane_mask`, and whether that lane lies within the group, or
    /// within one of smaller lanes, which can be read, too. If it does not, the value is the thread's own. `lane_mask` is
    /// below 32.
    #[doc(alias = "__shfl_xor_sync")]
    warp_shuffle_xor lane_mask;
    /// The value of lane `index` of the group, and `true`: the index counts modulo `width`, so the lane always lies within the
    /// group.
    #[doc(alias = "__shfl_sync")]
    warp_shuffle_idx index;
}

/// Whether `predicate` holds in every thread in `mask`.
///
/// # Safety
///
/// The calling thread is in `mask`, and every thread in `mask` passes the same mask.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
#[doc(alias = "__all_sync")]
pub unsafe fn warp_vote_all(mask: u32, predicate: bool) -> bool {
    // SAFETY: the caller's promise.
    unsafe { warp_vote_ballot(mask, !predicate) == 0 }
}

/// Whether `predicate` holds in some thread in `mask`.
///
/// # Safety
///
/// The calling thread is in `mask`, and every thread in `mask` passes the same mask.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
#[doc(alias = "__any_sync")]
pub unsafe fn warp_vote_any(mask: u32, predicate: bool) -> bool {
    // SAFETY: the caller's promise.
    unsafe { warp_vote_ballot(mask, predicate) != 0 }
}

/// One bit for each thread in `mask` in which `predicate` holds.
///
/// # Safety
///
/// The calling thread is in `mask`, and every thread in `mask` passes the same mask.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
#[doc(alias = "__ballot_sync")]
pub unsafe fn warp_vote_ballot(mask: u32, predicate: bool) -> u32 {
    target::warp_vote_ballot(mask, predicate)
}

/// The lanes in `mask` whose `value` has the same bits as the caller's.
///
/// # Safety
///
/// The calling thread is in `mask`, and every thread in `mask` passes the same mask.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
#[doc(alias = "__match_any_sync")]
pub unsafe fn warp_match_any<T: WarpShuffleValue>(mask: u32, value: T) -> u32 {
    let (bits, count) = bits(value);
    target::warp_match_any(mask, bits, count)
}

/// The lanes in `mask`, if the `value`s of all of them have the same bits.
///
/// # Safety
///
/// The calling thread is in `mask`, and every thread in `mask` passes the same mask.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
#[doc(alias = "__match_all_sync")]
pub unsafe fn warp_match_all<T: WarpShuffleValue>(mask: u32, value: T) -> Option<u32> {
    let (bits, count) = bits(value);
    let lanes = target::warp_match_all(mask, bits, count);
    // The caller is one of the lanes.
    (lanes != 0).then_some(lanes)
}

/// The bits of a value, and their number.
#[inline(always)]
fn bits(value: impl WarpShuffleValue) -> (u64, u32) {
    match value.split() {
        (low, None) => (low.into(), 32),
        (low, Some(high)) => (u64::from(high) << 32 | u64::from(low), 64),
    }
}

/// What [`warp_reduce`] makes of two values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WarpReductionOp {
    /// Their sum, which wraps around.
    Add,
    /// The smaller one.
    Min,
    /// The larger one.
    Max,
    /// Their bitwise AND.
    And,
    /// Their bitwise OR.
    Or,
    /// Their bitwise XOR.
    Xor,
}

/// A reduction of 32-bit words, as an instruction of its own.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reduction {
    Add,
    Min,
    Max,
    SignedMin,
    SignedMax,
    And,
    Or,
    Xor,
}

impl Reduction {
    /// The reduction of two words.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn of(self, a: u32, b: u32) -> u32 {
        match self {
            Reduction::Add => a.wrapping_add(b),
            Reduction::Min => a.min(b),
            Reduction::Max => a.max(b),
            Reduction::SignedMin => a.cast_signed().min(b.cast_signed()).cast_unsigned(),
            Reduction::SignedMax => a.cast_signed().max(b.cast_signed()).cast_unsigned(),
            Reduction::And => a & b,
            Reduction::Or => a | b,
            Reduction::Xor => a ^ b,
        }
    }
}

/// A value that the lanes of a warp can reduce: `u32` and `i32`, for which there are instructions.
pub trait WarpReduceValue: WarpShuffleValue {
    #[doc(hidden)]
    fn reduction(op: WarpReductionOp) -> Reduction;
}

macro_rules! reduce_values {
    ($($ty:ident $min:ident $max:ident;)*) => {
        $(impl WarpReduceValue for $ty {
            #[inline(always)]
            fn reduction(op: WarpReductionOp) -> Reduction {
                match op {
                    WarpReductionOp::Add => Reduction::Add,
                    WarpReductionOp::Min => Reduction::$min,
                    WarpReductionOp::Max => Reduction::$max,
                    WarpReductionOp::And => Reduction::And,
                    WarpReductionOp::Or => Reduction::Or,
                    WarpReductionOp::Xor => Reduction::Xor,
                }
            }
        })*
    };
}
reduce_values! {
    u32 Min Max;
    i32 SignedMin SignedMax;
}

/// The reduction of the `value`s of all threads in `mask`, in each of them: one instruction, `redux.sync`, on
/// devices of compute capability 8.0 and later.
///
/// # Safety
///
/// The calling thread is in `mask`, and every thread in `mask` passes the same mask and the same operation.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
#[doc(alias = "__reduce_add_sync")]
pub unsafe fn warp_reduce<T: WarpReduceValue>(mask: u32, value: T, op: WarpReductionOp) -> T {
    let (word, _) = value.split();
    T::join(target::warp_reduce(mask, word, T::reduction(op)), None)
}
