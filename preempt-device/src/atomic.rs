//! Atomic operations on memory that threads share.
//!
//! [`Atomic<T, S>`](Atomic) has the methods of core's atomics, for integers and for floating-point numbers. `S` is
//! its [`Scope`]: the threads that see its operations as atomic and in order.
//!
//! | scope | the threads | in PTX |
//! | --- | --- | --- |
//! | [`Block`] | of the block-task | relaxed operations for the device, fences of `.cta` |
//! | [`Device`], the default | of the device | relaxed operations and fences of `.gpu` |
//! | [`System`] | of all devices, and of the host | loads, stores and loops of compare-exchange, and fences, of `.sys` |
//!
//! The default is the device, as for CUDA's `atomicAdd`: all threads that can reach a buffer while a launch runs are on
//! its device, and what the host reads afterwards is ordered by the end of the launch. Fences for the system take
//! several times as long. All accesses to one place that may happen at the same time need scopes that include each
//! other's threads.
//!
//! The orderings are those that are named, on every device: a read-modify-write is relaxed in itself, and `Acquire`,
//! `Release`, `AcqRel` and `SeqCst` add the fences that they stand for. That is why these are not core's atomics.
//! Core's are for the system. Their read-modify-writes are relaxed for the GPU, whatever ordering they name, with
//! compilers before 1.99, which also take the device for the system.
//!
//! On the CPU device all scopes are the system's, which is stronger and never wrong.
//!
//! ```
//! use preempt_device::atomic::{AtomicF32, Ordering::Relaxed};
//! use preempt_device::prelude::*;
//!
//! /// `largest[0]` becomes the largest of itself and all of `x`.
//! #[preemptible(block = 256)]
//! pub fn largest(x: &[f32], largest: SliceMut<f32>) {
//!     let i = thread::index_1d() as usize;
//!     if i < x.len() && !largest.is_empty() {
//!         // SAFETY: valid, and all threads access it by atomics.
//!         unsafe { AtomicF32::from_ptr(largest.as_mut_ptr()) }.fetch_max(x[i], Relaxed);
//!     }
//! }
//! ```

use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;

pub use core::sync::atomic::Ordering;

use Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

mod values;

use values::Operation;
pub use values::{AtomicInteger, AtomicValue};

/// The threads that see the operations of an [`Atomic`] as atomic, and in their order.
pub trait Scope: sealed::Scope + fmt::Debug + 'static {
    #[doc(hidden)]
    const REACH: Reach;
}

/// A scope, as a value.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    Block,
    Device,
    System,
}

mod sealed {
    pub trait Scope {}
    pub trait Value {}
}

macro_rules! scopes {
    ($($(#[$doc:meta])* $name:ident)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug)]
            pub enum $name {}

            impl sealed::Scope for $name {}

            impl Scope for $name {
                const REACH: Reach = Reach::$name;
            }
        )*
    };
}
scopes! {
    /// The threads of one block-task.
    Block
    /// All threads of the device.
    Device
    /// All threads of all devices, and those of the host.
    System
}

impl Reach {
    /// A fence of release and acquire for these threads.
    #[inline(always)]
    fn fence(self) {
        match self {
            Reach::Block => crate::target::block_fence_acq_rel(),
            Reach::Device => crate::target::device_fence_acq_rel(),
            Reach::System => crate::target::system_fence_acq_rel(),
        }
    }

    /// A sequentially consistent fence for these threads.
    #[inline(always)]
    fn fence_seq_cst(self) {
        match self {
            Reach::Block => crate::target::block_fence(),
            Reach::Device => crate::target::device_fence(),
            Reach::System => crate::target::system_fence(),
        }
    }

    /// What makes a relaxed operation after it one of `order`.
    #[inline(always)]
    fn before(self, order: Ordering) {
        match order {
            Release | AcqRel => self.fence(),
            SeqCst => self.fence_seq_cst(),
            _ => {}
        }
    }

    /// What makes a relaxed operation before it one of `order`.
    #[inline(always)]
    fn after(self, order: Ordering) {
        if let Acquire | AcqRel | SeqCst = order {
            self.fence()
        }
    }
}

/// A number that threads read and write atomically. Its layout is the number's.
///
/// `S` is the [`Scope`]; see the [module](self).
///
/// ```
/// use preempt_device::atomic::{Atomic, AtomicU32, Block, Ordering::Relaxed};
/// use preempt_device::prelude::*;
///
/// /// Adds to `counts[n]` how often `n` is in `x`, for 256 values.
/// #[preemptible(block = 256)]
/// pub fn histogram(x: &[u8], counts: SliceMut<u32>) {
///     let own = shared_array![u32; 256];
///     let (i, t) = (thread::index_1d() as usize, thread::thread_idx_x() as usize);
///     // SAFETY: `t` is below 256, and each thread writes its own element before the barrier.
///     unsafe { own.add(t).write(0) }
///     thread::sync_threads();
///     if i < x.len() {
///         // SAFETY: the address is in shared memory; between the barriers all accesses are atomic, by this block alone.
///         let count = unsafe { Atomic::<u32, Block>::from_ptr(own.add(x[i] as usize)) };
///         count.fetch_add(1, Relaxed);
///     }
///     thread::sync_threads();
///     if t < counts.len() {
///         // SAFETY: `t` is below both lengths; all blocks access `counts` by atomics for the device.
///         let (count, all) = unsafe { (own.add(t).read(), AtomicU32::from_ptr(counts.as_mut_ptr().add(t))) };
///         all.fetch_add(count, Relaxed);
///     }
/// }
/// ```
#[repr(transparent)]
pub struct Atomic<T, S = Device> {
    value: UnsafeCell<T>,
    scope: PhantomData<S>,
}

// SAFETY: all access through a shared reference is atomic.
unsafe impl<T: AtomicValue, S: Scope> Sync for Atomic<T, S> {}

macro_rules! names {
    ($($name:ident $ty:ty)*) => {
        $(
            #[doc = concat!("An atomic `", stringify!($ty), "` for the threads of the device.")]
            pub type $name = Atomic<$ty>;
        )*
    };
}
names!(AtomicU32 u32 AtomicI32 i32 AtomicU64 u64 AtomicI64 i64 AtomicUsize usize AtomicF32 f32 AtomicF64 f64);

impl<T: AtomicValue, S: Scope> Atomic<T, S> {
    /// An atomic that holds `value`.
    pub const fn new(value: T) -> Self {
        Atomic { value: UnsafeCell::new(value), scope: PhantomData }
    }

    /// The atomic at `ptr`.
    ///
    /// # Safety
    ///
    /// `ptr` is aligned and valid for `'a`, and all accesses at the same time are atomic, of scopes that include each
    /// other's threads.
    #[inline(always)]
    pub const unsafe fn from_ptr<'a>(ptr: *mut T) -> &'a Self {
        // SAFETY: the same layout; the caller's promise.
        unsafe { &*ptr.cast::<Self>() }
    }

    /// The address of the value.
    #[inline(always)]
    pub const fn as_ptr(&self) -> *mut T {
        self.value.get()
    }

    /// Reads the value.
    ///
    /// # Panics
    ///
    /// If `order` is `Release` or `AcqRel`.
    #[inline(always)]
    pub fn load(&self, order: Ordering) -> T {
        assert!(!matches!(order, Release | AcqRel), "a load has no release ordering");
        S::REACH.before(order);
        // SAFETY: the address is valid.
        let value = unsafe { T::load(self.as_ptr(), Self::IS_SYSTEM) };
        S::REACH.after(order);
        value
    }

    /// Sets the value.
    ///
    /// # Panics
    ///
    /// If `order` is `Acquire` or `AcqRel`.
    #[inline(always)]
    pub fn store(&self, value: T, order: Ordering) {
        assert!(!matches!(order, Acquire | AcqRel), "a store has no acquire ordering");
        S::REACH.before(order);
        // SAFETY: the address is valid.
        unsafe { T::store(self.as_ptr(), value, Self::IS_SYSTEM) }
    }

    /// Stores `new` if the value is `current`, bit by bit. Returns the previous value: in `Ok` if it was `current`.
    ///
    /// # Panics
    ///
    /// If `failure` is `Release` or `AcqRel`.
    #[inline(always)]
    pub fn compare_exchange(
        &self,
        current: T,
        new: T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<T, T> {
        assert!(!matches!(failure, Release | AcqRel), "a load has no release ordering");
        S::REACH.before(if failure == SeqCst { SeqCst } else { success });
        // SAFETY: the address is valid.
        let before = unsafe { T::compare_exchange(self.as_ptr(), current, new, Self::IS_SYSTEM) };
        if before.is_same(current) {
            S::REACH.after(success);
            Ok(before)
        } else {
            S::REACH.after(failure);
            Err(before)
        }
    }

    /// [`compare_exchange`](Atomic::compare_exchange), which fails on no device without cause; under this name for
    /// code that was written for core's atomics.
    #[inline(always)]
    pub fn compare_exchange_weak(
        &self,
        current: T,
        new: T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<T, T> {
        self.compare_exchange(current, new, success, failure)
    }

    /// Stores what `update` makes of the value, again and again until no other thread has changed the value in
    /// between. Returns the previous value: in `Err` if `update` gives `None`.
    ///
    /// ```
    /// use preempt_device::atomic::{AtomicU32, Ordering::Relaxed};
    ///
    /// // One slot is left, and is taken once.
    /// let slots = AtomicU32::new(1);
    /// let take = || slots.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
    /// assert_eq!([take(), take()], [Ok(1), Err(0)]);
    /// ```
    ///
    /// # Panics
    ///
    /// If `fetch_order` is `Release` or `AcqRel`.
    #[inline(always)]
    pub fn fetch_update(
        &self,
        set_order: Ordering,
        fetch_order: Ordering,
        mut update: impl FnMut(T) -> Option<T>,
    ) -> Result<T, T> {
        let mut before = self.load(fetch_order);
        while let Some(new) = update(before) {
            match self.compare_exchange(before, new, set_order, fetch_order) {
                Ok(before) => return Ok(before),
                Err(other) => before = other,
            }
        }
        Err(before)
    }

    /// Sets the value, and returns the previous one.
    #[inline(always)]
    pub fn swap(&self, value: T, order: Ordering) -> T {
        self.modify(Operation::Swap, value, order)
    }

    /// Adds `value`, and returns the previous value. Integers wrap around.
    ///
    /// Of `f32` in the memory of a GPU, subnormal numbers are taken for 0, as they are by CUDA's `atomicAdd`.
    #[inline(always)]
    pub fn fetch_add(&self, value: T, order: Ordering) -> T {
        self.modify(Operation::Add, value, order)
    }

    /// Subtracts `value`, and returns the previous value. Integers wrap around.
    #[inline(always)]
    pub fn fetch_sub(&self, value: T, order: Ordering) -> T {
        self.modify(Operation::Add, value.negated(), order)
    }

    /// Sets the value to the smaller of itself and `value`, and returns the previous value. A NaN loses against any
    /// number.
    ///
    /// Floating-point numbers have no such instruction. A thread whose `value` changes nothing only reads, unless
    /// `order` includes `Release`; the others exchange in a loop.
    #[inline(always)]
    pub fn fetch_min(&self, value: T, order: Ordering) -> T {
        self.modify(Operation::Min, value, order)
    }

    /// Sets the value to the larger of itself and `value`, and returns the previous value. As
    /// [`fetch_min`](Atomic::fetch_min) in all else.
    #[inline(always)]
    pub fn fetch_max(&self, value: T, order: Ordering) -> T {
        self.modify(Operation::Max, value, order)
    }

    const IS_SYSTEM: bool = matches!(S::REACH, Reach::System);

    /// A read-modify-write: one instruction where there is one of this scope.
    #[inline(always)]
    fn modify(&self, operation: Operation, value: T, order: Ordering) -> T {
        S::REACH.before(order);
        let before = match Self::IS_SYSTEM {
            // LLVM before 23 takes the device for the system in all but compare-exchange.
            true => None,
            // SAFETY: the address is valid.
            false => unsafe { T::modify(self.as_ptr(), operation, value) },
        };
        let before = match before {
            Some(before) => before,
            None => self.modify_by_exchange(operation, value, order),
        };
        S::REACH.after(order);
        before
    }

    /// A relaxed read-modify-write, by compare-exchange.
    #[inline(always)]
    fn modify_by_exchange(&self, operation: Operation, value: T, order: Ordering) -> T {
        let mut before = self.load(Relaxed);
        loop {
            let new = before.after(operation, value);
            // A write that changes nothing is only needed where another thread may synchronize with it: otherwise
            // no thread can tell it from a read that comes directly after the write that it read.
            if new.is_same(before) && !matches!(order, Release | AcqRel | SeqCst) {
                return before;
            }
            match self.compare_exchange(before, new, Relaxed, Relaxed) {
                Ok(before) => return before,
                Err(other) => before = other,
            }
        }
    }
}

impl<T: AtomicInteger, S: Scope> Atomic<T, S> {
    /// Sets the value to its AND with `value`, and returns the previous value.
    #[inline(always)]
    pub fn fetch_and(&self, value: T, order: Ordering) -> T {
        self.modify(Operation::And, value, order)
    }

    /// Sets the value to its OR with `value`, and returns the previous value.
    #[inline(always)]
    pub fn fetch_or(&self, value: T, order: Ordering) -> T {
        self.modify(Operation::Or, value, order)
    }

    /// Sets the value to its XOR with `value`, and returns the previous value.
    #[inline(always)]
    pub fn fetch_xor(&self, value: T, order: Ordering) -> T {
        self.modify(Operation::Xor, value, order)
    }
}

impl<T: AtomicValue + fmt::Debug, S: Scope> fmt::Debug for Atomic<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.load(Relaxed).fmt(f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
