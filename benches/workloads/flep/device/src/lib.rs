//! `preempt-device` with FLEP's loop in the preemptible entries, to compare with. A kernels crate gets the loop
//! by depending on this crate under the name `preempt-device`.

#![cfg_attr(target_arch = "nvptx64", no_std)]

pub use preempt_device::*;

pub mod flep;

/// What expansions call.
#[cfg(target_arch = "nvptx64")]
#[doc(hidden)]
pub mod entry {
    use preempt_device::abi::Cohort;
    use preempt_device::entry::with_loop;
    pub use preempt_device::entry::{declare_block, plain, plain_yielding, threads};
    use preempt_device::yields::Yields;

    use crate::flep::run;

    /// # Safety
    ///
    /// As that of `preempt-device`, and as [`run`].
    #[inline(always)]
    pub unsafe fn preemptible(cohort: &Cohort, mut task: impl FnMut()) {
        // SAFETY: the caller's promise.
        unsafe {
            preemptible_yielding(
                cohort,
                #[inline(always)]
                |_| task(),
            )
        }
    }

    /// # Safety
    ///
    /// As that of `preempt-device`, and as [`run`].
    #[inline(always)]
    pub unsafe fn preemptible_yielding(cohort: &Cohort, task: impl FnMut(&mut Yields)) {
        // SAFETY: the caller's promise.
        unsafe {
            with_loop(
                cohort,
                task,
                #[inline(always)]
                |block, cohort, tasks| run(block, cohort, tasks),
            )
        }
    }

    /// No block leaves at a checkpoint of FLEP's.
    pub use preemptible_yielding as preemptible_switching;
}
