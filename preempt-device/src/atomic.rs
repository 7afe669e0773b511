//! Atomic operations. Integers are `core::sync::atomic`'s; floating-point addition is here.
//!
//! On the GPU a read-modify-write is always relaxed, whatever ordering it names: put
//! [`device_fence`](crate::thread::device_fence) around it where the order matters.

pub use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

macro_rules! atomic_float {
    ($(#[$doc:meta])* $name:ident $float:ident $bits:ident $add:ident) => {
        $(#[$doc])*
        #[derive(Default)]
        #[repr(transparent)]
        pub struct $name($bits);

        impl $name {
            /// An atomic that holds `value`.
            pub const fn new(value: $float) -> Self {
                Self($bits::new(value.to_bits()))
            }

            /// The atomic at `ptr`.
            ///
            /// # Safety
            ///
            /// `ptr` is aligned and valid for `'a`, and all concurrent accesses are atomic.
            #[inline(always)]
            pub const unsafe fn from_ptr<'a>(ptr: *mut $float) -> &'a Self {
                // SAFETY: the same layout; the caller's promise.
                unsafe { &*ptr.cast::<Self>() }
            }

            /// Reads the value.
            #[inline(always)]
            pub fn load(&self, order: Ordering) -> $float {
                $float::from_bits(self.0.load(order))
            }

            /// Sets the value.
            #[inline(always)]
            pub fn store(&self, value: $float, order: Ordering) {
                self.0.store(value.to_bits(), order)
            }

            /// Adds `value`, relaxed whatever `order` says, and returns the previous value.
            #[inline(always)]
            pub fn fetch_add(&self, value: $float, _order: Ordering) -> $float {
                crate::target::$add(&self.0, value)
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                self.load(Ordering::Relaxed).fmt(f)
            }
        }
    };
}
atomic_float!(
    /// An `f32` that threads can add to.
    AtomicF32 f32 AtomicU32 atomic_add_f32
);
atomic_float!(
    /// An `f64` that threads can add to.
    AtomicF64 f64 AtomicU64 atomic_add_f64
);
