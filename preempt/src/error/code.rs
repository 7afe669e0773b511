use std::sync::Arc;

use preempt_ptx_text::KernelFault;

/// Device code that is missing, stale or refused.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CodeError {
    /// The driver does not take the PTX of a kernels crate.
    #[error(
        "the NVIDIA driver does not load the PTX of `{module}`: {message}; a newer driver may, or PTX \
         for this GPU (`preempt_build::Kernels::target_cpu`)"
    )]
    NotLoaded {
        /// The kernels crate.
        module: Arc<str>,
        /// What the driver said.
        message: Arc<str>,
    },
    /// A kernel that would compute something else than in a plain launch.
    #[error("the PTX of `{module}` is refused: {fault}")]
    Refused {
        /// The kernels crate.
        module: &'static str,
        /// What is wrong with it.
        #[source]
        fault: KernelFault,
    },
    /// PTX that was compiled with another `preempt-device`.
    #[error(
        "the PTX of `{module}` was compiled with another version of `preempt-device`; compile it anew \
         with the version that this application has"
    )]
    Stale {
        /// The kernels crate.
        module: &'static str,
    },
    /// A kernel that a GPU cannot run, because its PTX is not there.
    #[error("kernel `{kernel}` of the crate `{module}` has no device code here: {what_to_do}")]
    Missing {
        /// The kernel's name.
        kernel: &'static str,
        /// The kernels crate.
        module: &'static str,
        /// What to do about it.
        what_to_do: &'static str,
    },
}
