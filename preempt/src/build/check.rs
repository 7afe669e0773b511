//! What has to hold for the text of a PTX file, whatever compiled it.
//!
//! A kernel `k` is preemptible if the file has an entry `k` and an entry `k__plain`. Only the
//! plain one may look at the block index of the hardware.

use super::error::Error;
use crate::ptx::{Functions, PLAIN, Reach, blanked, functions, is_of_name};

/// Starts the names of the registers that hold the task's indices (`preempt-device`).
const TASK_REGISTER: &str = "%preempt_";
/// Special registers that tell where the hardware put the block.
const HARDWARE_INDEX: [&str; 4] = ["%ctaid", "%nctaid", "%clusterid", "%nclusterid"];

/// What is in a PTX file that passed [`check`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The `.target`, such as `sm_80`.
    pub target: String,
    /// Kernels with a preemptible and a plain entry.
    pub preemptible: Vec<String>,
    /// Every other entry.
    pub native: Vec<String>,
}

/// Refuses PTX whose preemptible kernels would compute something else than they do in an
/// ordinary grid.
///
/// ```
/// let ptx = "
///     .version 7.0
///     .target sm_80
///     .address_size 64
///     .visible .entry k() { ret; }
///     .visible .entry k__plain() { ret; }
/// ";
/// let report = preempt::build::check(ptx)?;
/// assert_eq!(report.preemptible, ["k"]);
/// # Ok::<(), preempt::build::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::HardwareIndex`] if a preemptible kernel, or a function that it calls, reads the
/// hardware's block index or grid dimensions; [`Error::IndirectCall`] if that cannot be told;
/// [`Error::NotInlined`] if a function reads the task's and is not part of a kernel;
/// [`Error::NotPtx`].
pub fn check(ptx: &str) -> Result<Report, Error> {
    let text = blanked(ptx);
    let target = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(".target"))
        .and_then(|names| names.split([',', ' ', '\t']).find(|name| !name.is_empty()))
        .ok_or(Error::NotPtx { what: "it has no `.target`" })?;

    let functions = functions(&text);
    for (name, function) in &functions {
        if !function.is_entry && function.body.contains(TASK_REGISTER) {
            return Err(Error::NotInlined { function: readable(name) });
        }
    }
    let entries = || functions.iter().filter(|(_, function)| function.is_entry);
    let is_entry = |name: &str| functions.get(name).is_some_and(|function| function.is_entry);
    let mut report =
        Report { target: target.to_owned(), preemptible: Vec::new(), native: Vec::new() };
    for (name, _) in entries() {
        if is_entry(&format!("{name}{PLAIN}")) {
            check_preemptible(name, &functions)?;
            report.preemptible.push((*name).to_owned());
        } else if !name.strip_suffix(PLAIN).is_some_and(is_entry) {
            report.native.push((*name).to_owned());
        }
    }
    Ok(report)
}

/// Refuses an entry that reads the hardware's block index, itself or in what it calls.
fn check_preemptible(entry: &str, functions: &Functions<'_>) -> Result<(), Error> {
    let reach = Reach::of(entry, functions);
    for name in reach.functions {
        if let Some(register) = hardware_index(functions[name].body) {
            return Err(Error::HardwareIndex {
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
            Err(Error::IndirectCall { entry: entry.to_owned(), function })
        }
    }
}

/// The first special register in `body` that tells the hardware's block index.
fn hardware_index(body: &str) -> Option<&str> {
    body.match_indices('%').find_map(|(at, _)| {
        let end = body[at + 1..].find(|c| !is_of_name(c)).map_or(body.len(), |len| at + 1 + len);
        let axis = body[end..].starts_with(['.']).then(|| end + 2).filter(|&end| end <= body.len());
        HARDWARE_INDEX.contains(&&body[at..end]).then(|| &body[at..axis.unwrap_or(end)])
    })
}

/// A Rust path where the symbol is one.
fn readable(symbol: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(symbol))
}

#[cfg(test)]
mod tests;
