//! The numbers that can be atomic, and their instructions.

use super::sealed;

/// A read-modify-write.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    Swap,
    Add,
    And,
    Or,
    Xor,
    Min,
    Max,
}

/// A number of 4 or 8 bytes, which an [`Atomic`](super::Atomic) can hold.
pub trait AtomicValue: sealed::Value + Copy + PartialOrd + 'static {
    /// Whether both have the same bits.
    #[doc(hidden)]
    fn is_same(self, other: Self) -> bool;

    /// The number which, added, takes `self` away.
    #[doc(hidden)]
    fn negated(self) -> Self;

    /// What `operation` with `value` makes of `self`.
    #[doc(hidden)]
    fn after(self, operation: Operation, value: Self) -> Self;

    /// A relaxed read, for the system or for the device.
    ///
    /// # Safety
    ///
    /// Here and below, `ptr` is aligned and valid, and concurrent accesses are atomic.
    #[doc(hidden)]
    unsafe fn load(ptr: *mut Self, system: bool) -> Self;

    /// A relaxed write.
    ///
    /// # Safety
    ///
    /// As [`load`](AtomicValue::load).
    #[doc(hidden)]
    unsafe fn store(ptr: *mut Self, value: Self, system: bool);

    /// A relaxed compare-exchange; returns the previous value.
    ///
    /// # Safety
    ///
    /// As [`load`](AtomicValue::load).
    #[doc(hidden)]
    unsafe fn compare_exchange(ptr: *mut Self, current: Self, new: Self, system: bool) -> Self;

    /// A relaxed read-modify-write for the device, if there is an instruction; returns the previous value.
    ///
    /// # Safety
    ///
    /// As [`load`](AtomicValue::load).
    #[doc(hidden)]
    unsafe fn modify(ptr: *mut Self, operation: Operation, value: Self) -> Option<Self>;
}

/// An integer of 4 or 8 bytes.
pub trait AtomicInteger: AtomicValue {}

macro_rules! accesses {
    ($bits:ty, $to_bits:expr, $from_bits:expr, $load:ident $store:ident $cas:ident) => {
        #[inline(always)]
        fn is_same(self, other: Self) -> bool {
            $to_bits(self) == $to_bits(other)
        }

        #[inline(always)]
        unsafe fn load(ptr: *mut Self, system: bool) -> Self {
            // SAFETY: the caller's promise.
            $from_bits(unsafe { crate::target::$load(ptr.cast(), system) })
        }

        #[inline(always)]
        unsafe fn store(ptr: *mut Self, value: Self, system: bool) {
            // SAFETY: the caller's promise.
            unsafe { crate::target::$store(ptr.cast(), $to_bits(value), system) }
        }

        #[inline(always)]
        unsafe fn compare_exchange(ptr: *mut Self, current: Self, new: Self, system: bool) -> Self {
            let (current, new) = ($to_bits(current), $to_bits(new));
            // SAFETY: the caller's promise.
            $from_bits(unsafe { crate::target::$cas(ptr.cast(), current, new, system) })
        }
    };
}

macro_rules! integers {
    ($(
        $ty:ty as $bits:ty: $load:ident $store:ident $cas:ident
        $xchg:ident $add:ident $and:ident $or:ident $xor:ident $min:ident $max:ident;
    )*) => {
        $(
            impl sealed::Value for $ty {}

            impl AtomicInteger for $ty {}

            impl AtomicValue for $ty {
                accesses!($bits, |value: $ty| value as $bits, |bits: $bits| bits as $ty, $load $store $cas);

                #[inline(always)]
                fn negated(self) -> Self {
                    self.wrapping_neg()
                }

                #[inline(always)]
                fn after(self, operation: Operation, value: Self) -> Self {
                    match operation {
                        Operation::Swap => value,
                        Operation::Add => self.wrapping_add(value),
                        Operation::And => self & value,
                        Operation::Or => self | value,
                        Operation::Xor => self ^ value,
                        Operation::Min => self.min(value),
                        Operation::Max => self.max(value),
                    }
                }

                #[inline(always)]
                unsafe fn modify(ptr: *mut Self, operation: Operation, value: Self) -> Option<Self> {
                    use crate::target;
                    let (ptr, value) = (ptr.cast(), value as $bits);
                    // SAFETY: the caller's promise.
                    let before = unsafe {
                        match operation {
                            Operation::Swap => target::$xchg(ptr, value),
                            Operation::Add => target::$add(ptr, value),
                            Operation::And => target::$and(ptr, value),
                            Operation::Or => target::$or(ptr, value),
                            Operation::Xor => target::$xor(ptr, value),
                            Operation::Min => target::$min(ptr, value),
                            Operation::Max => target::$max(ptr, value),
                        }
                    };
                    Some(before as $ty)
                }
            }
        )*
    };
    (32: $($ty:ty, $min:ident $max:ident;)*) => {
        integers! { $(
            $ty as u32: atomic_load_32 atomic_store_32 atomic_cas_32
            atomic_xchg_32 atomic_add_32 atomic_and_32 atomic_or_32 atomic_xor_32 $min $max;
        )* }
    };
    (64: $($ty:ty, $min:ident $max:ident;)*) => {
        integers! { $(
            $ty as u64: atomic_load_64 atomic_store_64 atomic_cas_64
            atomic_xchg_64 atomic_add_64 atomic_and_64 atomic_or_64 atomic_xor_64 $min $max;
        )* }
    };
}
integers! { 32:
    u32, atomic_umin_32 atomic_umax_32;
    i32, atomic_min_32 atomic_max_32;
}
integers! { 64:
    u64, atomic_umin_64 atomic_umax_64;
    i64, atomic_min_64 atomic_max_64;
}
#[cfg(target_pointer_width = "64")]
integers! { 64: usize, atomic_umin_64 atomic_umax_64; }

macro_rules! floats {
    ($($ty:ident as $bits:ty: $load:ident $store:ident $cas:ident $xchg:ident $add:ident;)*) => {
        $(
            impl sealed::Value for $ty {}

            impl AtomicValue for $ty {
                accesses!($bits, $ty::to_bits, $ty::from_bits, $load $store $cas);

                #[inline(always)]
                fn negated(self) -> Self {
                    -self
                }

                #[inline(always)]
                fn after(self, operation: Operation, value: Self) -> Self {
                    match operation {
                        Operation::Add => self + value,
                        Operation::Min => self.min(value),
                        Operation::Max => self.max(value),
                        // The bitwise ones are those of integers alone.
                        _ => value,
                    }
                }

                #[inline(always)]
                unsafe fn modify(ptr: *mut Self, operation: Operation, value: Self) -> Option<Self> {
                    // SAFETY: the caller's promise.
                    unsafe {
                        match operation {
                            Operation::Swap => {
                                let before = crate::target::$xchg(ptr.cast(), value.to_bits());
                                Some($ty::from_bits(before))
                            }
                            Operation::Add => Some(crate::target::$add(ptr, value)),
                            _ => None,
                        }
                    }
                }
            }
        )*
    };
}
floats! {
    f32 as u32: atomic_load_32 atomic_store_32 atomic_cas_32 atomic_xchg_32 atomic_add_f32;
    f64 as u64: atomic_load_64 atomic_store_64 atomic_cas_64 atomic_xchg_64 atomic_add_f64;
}
