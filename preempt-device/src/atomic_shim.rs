//! The atomics of the protocol, replaced by loom's in the model.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};

/// A release fence. System scope on the GPU, where core's fences have no narrower one.
#[inline(always)]
pub(crate) fn fence_release() {
    fence(Ordering::Release);
}

/// An acquire fence. System scope on the GPU.
#[inline(always)]
pub(crate) fn fence_acquire() {
    fence(Ordering::Acquire);
}
