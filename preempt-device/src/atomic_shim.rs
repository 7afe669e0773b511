//! The atomics of the protocol, replaced by loom's in the model.

#[cfg(all(target_arch = "nvptx64", feature = "cuda-std"))]
pub(crate) use crate::target::{ProtocolU32 as AtomicU32, ProtocolU64 as AtomicU64};
#[cfg(not(all(test, loom)))]
pub(crate) use core::sync::atomic::Ordering;
#[cfg(not(any(all(test, loom), target_arch = "nvptx64")))]
pub(crate) use core::sync::atomic::fence;
#[cfg(not(any(all(test, loom), all(target_arch = "nvptx64", feature = "cuda-std"))))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64};
#[cfg(all(test, loom))]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A release fence, for the blocks of this device.
#[inline(always)]
pub(crate) fn fence_release() {
    #[cfg(target_arch = "nvptx64")]
    crate::target::device_fence_acq_rel();
    #[cfg(not(target_arch = "nvptx64"))]
    fence(Ordering::Release);
}

/// An acquire fence, for the blocks of this device.
#[inline(always)]
pub(crate) fn fence_acquire() {
    #[cfg(target_arch = "nvptx64")]
    crate::target::device_fence_acq_rel();
    #[cfg(not(target_arch = "nvptx64"))]
    fence(Ordering::Acquire);
}

/// An acquire and release fence for all blocks and the host.
#[inline(always)]
pub(crate) fn fence_acq_rel_to_host() {
    #[cfg(target_arch = "nvptx64")]
    crate::target::system_fence_acq_rel();
    #[cfg(not(target_arch = "nvptx64"))]
    fence(Ordering::AcqRel);
}

/// Lets other threads run, in a loop that waits for one of them.
#[inline(always)]
pub(crate) fn pause() {
    #[cfg(all(test, loom))]
    loom::thread::yield_now();
    // On the CPU device, the thread that this one waits for may have lost its processor.
    #[cfg(not(any(all(test, loom), target_arch = "nvptx64")))]
    std::thread::yield_now();
    #[cfg(target_arch = "nvptx64")]
    core::hint::spin_loop();
}
