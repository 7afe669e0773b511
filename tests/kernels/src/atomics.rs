//! Atomic operations of each kind and scope.

use preempt_device::atomic::{
    Atomic, AtomicInteger, AtomicValue, Block, Device, Ordering, Scope, System,
};
use preempt_device::prelude::*;

/// The atomic at `index`.
#[inline(always)]
fn at<'a, T: AtomicValue + KernelArg, S: Scope>(
    words: SliceMut<T>,
    index: usize,
) -> &'a Atomic<T, S> {
    assert!(index < words.len());
    // SAFETY: in bounds, and all kernels here access words atomically.
    unsafe { Atomic::from_ptr(words.as_mut_ptr().add(index)) }
}

/// Words that the kernels here leave their results in.
pub const RESULTS: usize = 8;

/// Each thread with its number, below 1024, in each result: their sum, the smallest and the largest; AND, OR and
/// XOR of their bits; a sum by a loop of updates; and the number of some thread.
#[inline(always)]
fn integers<T: AtomicInteger + KernelArg + core::ops::Add<Output = T>, S: Scope>(
    words: SliceMut<T>,
    number: T,
    order: Ordering,
) {
    at::<T, S>(words, 0).fetch_add(number, order);
    at::<T, S>(words, 1).fetch_min(number, order);
    at::<T, S>(words, 2).fetch_max(number, order);
    at::<T, S>(words, 3).fetch_and(number, order);
    at::<T, S>(words, 4).fetch_or(number, order);
    at::<T, S>(words, 5).fetch_xor(number, order);
    let _ = at::<T, S>(words, 6).fetch_update(order, Ordering::Relaxed, |sum| Some(sum + number));
    at::<T, S>(words, 7).swap(number, order);
}

/// As for integers, but for the bits.
#[inline(always)]
fn floats<T: AtomicValue + KernelArg + core::ops::Add<Output = T>, S: Scope>(
    words: SliceMut<T>,
    number: T,
    order: Ordering,
) {
    at::<T, S>(words, 0).fetch_add(number, order);
    at::<T, S>(words, 1).fetch_min(number, order);
    at::<T, S>(words, 2).fetch_max(number, order);
    let _ = at::<T, S>(words, 6).fetch_update(order, Ordering::Relaxed, |sum| Some(sum + number));
    at::<T, S>(words, 7).swap(number, order);
}

macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident = $function:ident $ty:ident, $number:ty, $scope:ident, $order:ident;)*) => {
        $($(#[$doc])*
        #[preemptible]
        pub fn $name(words: SliceMut<$ty>) {
            $function::<$ty, $scope>(words, thread::index() as $number as $ty, Ordering::$order);
        })*
    };
}
kernels! {
    /// The operations for the device, relaxed.
    atomics_u32 = integers u32, u32, Device, Relaxed;
    /// The operations for the device, with all that orders: what is smaller than 0 is so here.
    atomics_i32 = integers i32, i32, Device, SeqCst;
    /// The operations for the block, acquiring and releasing.
    atomics_u64 = integers u64, u64, Block, AcqRel;
    /// The operations for the system.
    atomics_i64 = integers i64, i64, System, Relaxed;
    /// The operations of floating-point numbers.
    atomics_f32 = floats f32, u32, Device, Relaxed;
    /// The operations of floating-point numbers of double precision, for the system.
    atomics_f64 = floats f64, u32, System, Release;
}
