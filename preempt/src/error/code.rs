use std::sync::Arc;

use preempt_ptx_text::{KernelFault, TransformError};

/// Device code that is missing, stale or refused.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CodeError {
    /// The driver does not take PTX.
    #[error(
        "the NVIDIA driver does not load the PTX of `{module}`: {message}; a newer driver may, or PTX \
         for this GPU (`preempt_build::Kernels::target_cpu`, `-arch` of nvcc)"
    )]
    NotLoaded {
        /// The kernels crate, or the name of the PTX.
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
    #[error("kernel `{kernel}` of `{module}` has no device code here: {what_to_do}")]
    Missing {
        /// The kernel's name.
        kernel: &'static str,
        /// The kernels crate, or the name of the PTX.
        module: &'static str,
        /// What to do about it.
        what_to_do: &'static str,
    },
    /// Two texts of PTX with one name.
    #[error("the builder was given PTX named `{module}` twice; give each text a name of its own")]
    SameName {
        /// The name.
        module: Arc<str>,
    },
    /// A name that no text of PTX has.
    #[error(
        "the scheduler has no PTX named `{module}`, it has {known}; give its builder the text by `.ptx(\"{module}\", text)`"
    )]
    NoPtx {
        /// The name.
        module: Arc<str>,
        /// The names that there are.
        known: Arc<str>,
    },
    /// PTX that is not understood, or lacks the entry.
    #[error("the PTX named `{module}`: {fault}")]
    NotTransformed {
        /// The name of the PTX.
        module: Arc<str>,
        /// What is wrong with it.
        #[source]
        fault: Arc<TransformError>,
    },
    /// An entry that relies on what no launch of a scheduler has.
    #[error(
        "the entry `{entry}` needs {need}, which launches of a scheduler do not have; launch it by other code, in \
         `Stream::opaque`"
    )]
    LaunchNeed {
        /// The entry.
        entry: Arc<str>,
        /// What it needs.
        need: &'static str,
    },
    /// An entry of a GPU's code on the CPU device.
    #[error(
        "the entry `{entry}` of the PTX `{module}` runs on GPUs alone; build the scheduler on `Device::cuda(0)?`. \
         `preempt::ptx::transform` gives its verdict without a GPU"
    )]
    NoHostCode {
        /// The entry.
        entry: Arc<str>,
        /// The name of the PTX.
        module: Arc<str>,
    },
    /// A kernel that has one form, where both are to be compared.
    #[error(
        "kernel `{kernel}` runs plain alone, so there is nothing to compare; `ForeignKernel::verdict` says why it was refused"
    )]
    PlainAlone {
        /// The kernel's name.
        kernel: &'static str,
    },
}
