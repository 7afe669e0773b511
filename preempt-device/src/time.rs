//! Clocks of the SM and of the device.

/// The cycle counter of the SM; on the CPU device, nanoseconds.
#[inline(always)]
pub fn clock64() -> u64 {
    crate::target::clock64()
}

/// The nanoseconds of a clock that all SMs share.
#[inline(always)]
pub fn global_timer() -> u64 {
    crate::target::global_timer()
}

/// Suspends the thread for about `nanos` nanoseconds, at most a millisecond.
#[inline(always)]
pub fn nanosleep(nanos: u32) {
    crate::target::nanosleep(nanos)
}
