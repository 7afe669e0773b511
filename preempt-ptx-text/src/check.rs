//! The rules for the text of a PTX file of any compiler.
//!
//! Of a preemptible kernel's two entries, only the plain one may look at the block index of the
//! hardware.

use super::text::{Functions, Reach, blanked, functions, is_of_name, kernels, word_after};

/// Why the PTX of a kernels crate is refused: a kernel would compute something else than in a plain grid, or it
/// cannot be told whether it would.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelFault {
    /// The text is not PTX.
    #[error("not PTX: {what}; rebuild it with `preempt-ptx`")]
    NotPtx {
        /// What is missing.
        what: &'static str,
    },

    /// A preemptible kernel reads the hardware's block index or grid dimensions.
    #[error(
        "the preemptible kernel `{entry}` reads `{register}` in `{function}`{}. A block that runs \
         it works on many block-tasks, so the hardware's block index is not the task's: use \
         `preempt_device::thread::block_idx_*` and `grid_dim_*` there",
        if entry == function { ", or in a helper that was inlined into it" } else { "" }
    )]
    HardwareIndex {
        /// The kernel.
        entry: String,
        /// The kernel, or a function it calls.
        function: String,
        /// The special register.
        register: String,
    },

    /// A function reads the block-task's index but is not part of the kernel that sets it.
    #[error(
        "helper `{function}` reads block indices or grid dimensions and was not inlined into its \
         kernel: mark it `#[inline(always)]`, and the helpers between it and the kernel too"
    )]
    NotInlined {
        /// The function.
        function: String,
    },

    /// A preemptible kernel calls through a pointer, so the callee cannot be checked.
    #[error(
        "the preemptible kernel `{entry}` calls a function that it chooses at run time, in `{function}`: through a \
         `fn` pointer, a table of them, or `dyn`. Such a function cannot be inlined or checked. Choose by a number \
         and call each function by its name, `match which {{ 0 => first(x), _ => second(x) }}`, or pass the function as \
         a generic `impl Fn`"
    )]
    IndirectCall {
        /// The kernel.
        entry: String,
        /// The kernel, or a function it calls.
        function: String,
    },
}

/// Starts the names of the registers that hold the task's indices (`preempt-device`).
const TASK_REGISTER: &str = "%preempt_";
/// Special registers that tell where the hardware put the block.
const HARDWARE_INDEX: [&str; 4] = ["%ctaid", "%nctaid", "%clusterid", "%nclusterid"];
/// The text before the hardware's block index where the worker loop reads it (`preempt-device`).
const BLOCK_NUMBER: &str = "mov.u32 %preempt_number, ";

/// The contents of a PTX file that passed [`check`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The `.target`, such as `sm_80`.
    pub target: String,
    /// Kernels with a preemptible and a plain entry.
    pub preemptible: Vec<String>,
    /// Every other entry.
    pub plain: Vec<String>,
}

/// Refuses PTX whose preemptible kernels would compute something else than in a plain grid. A scheduler checks the
/// PTX that it is given by itself.
///
/// ```
/// let ptx = "
///     .version 7.0
///     .target sm_80
///     .address_size 64
///     .visible .entry k() { ret; }
///     .visible .entry k__plain() { ret; }
/// ";
/// let report = preempt_ptx_text::check(ptx)?;
/// assert_eq!(report.preemptible, ["k"]);
/// # Ok::<(), preempt_ptx_text::KernelFault>(())
/// ```
///
/// # Errors
///
/// [`KernelFault::HardwareIndex`] if a preemptible kernel, or a function that it calls, reads the
/// hardware's block index or grid dimensions; [`KernelFault::IndirectCall`] if that cannot be told;
/// [`KernelFault::NotInlined`] if a function reads the task's and is not part of a kernel;
/// [`KernelFault::NotPtx`].
pub fn check(ptx: &str) -> Result<Report, KernelFault> {
    let text = blanked(ptx);
    check_functions(&text, &functions(&text))
}

/// [`check`] of `text`, which is [`blanked`] and defines `functions`.
pub fn check_functions(text: &str, functions: &Functions<'_>) -> Result<Report, KernelFault> {
    let (_, target) = word_after(text, ".target")
        .filter(|(_, name)| !name.is_empty())
        .ok_or(KernelFault::NotPtx { what: "it has no `.target`" })?;

    for (name, function) in functions {
        if !function.is_entry && function.body.contains(TASK_REGISTER) {
            return Err(KernelFault::NotInlined { function: readable(name) });
        }
    }
    let kernels = kernels(functions);
    for kernel in &kernels {
        check_preemptible(kernel.preemptible, functions)?;
    }
    let of_kernel = |name| kernels.iter().any(|k| k.preemptible == name || k.plain == name);
    let entries = functions.iter().filter(|(_, function)| function.is_entry);
    let plain = entries.map(|(&name, _)| name).filter(|name| !of_kernel(*name));
    let report = Report {
        target: target.to_owned(),
        preemptible: kernels.iter().map(|kernel| kernel.name.to_owned()).collect(),
        plain: plain.map(str::to_owned).collect(),
    };
    Ok(report)
}

/// Refuses an entry that reads the hardware's block index, itself or in what it calls.
fn check_preemptible(entry: &str, functions: &Functions<'_>) -> Result<(), KernelFault> {
    let reach = Reach::of(entry, functions);
    for name in reach.functions {
        if let Some(register) = hardware_index(functions[name].body) {
            return Err(KernelFault::HardwareIndex {
                entry: entry.to_owned(),
                function: readable(name),
                register: register.to_owned(),
            });
        }
    }
    match reach.indirect {
        None => Ok(()),
        Some(name) => {
            let function = readable(name);
            Err(KernelFault::IndirectCall { entry: entry.to_owned(), function })
        }
    }
}

/// The first special register in `body` that tells the hardware's block index, but for where the worker loop reads
/// its block's number.
fn hardware_index(body: &str) -> Option<&str> {
    body.match_indices('%').filter(|&(at, _)| !body[..at].ends_with(BLOCK_NUMBER)).find_map(
        |(at, _)| {
            let end =
                body[at + 1..].find(|c| !is_of_name(c)).map_or(body.len(), |len| at + 1 + len);
            let axis = body[end..]
                .starts_with(['.'])
                .then(|| end + 2)
                .filter(|&end| body.is_char_boundary(end));
            HARDWARE_INDEX.contains(&&body[at..end]).then(|| &body[at..axis.unwrap_or(end)])
        },
    )
}

/// A Rust path where the symbol is one.
pub(crate) fn readable(symbol: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(symbol))
}

#[cfg(test)]
mod tests;
