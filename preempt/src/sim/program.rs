//! What a job of a workload is: a kernel, or a program of several; and what an engine is told of a program.

use std::time::Duration;

use super::machine::{KernelModel, refused};
use crate::engine::{Called, LONGEST_PLAIN, LaunchSpec, MAX_CALLS, is_plain_as_a_whole, whole};
use crate::error::Error;
use crate::vocabulary::MOST_TOGETHER;

/// What is launched as one operation: a kernel, or a program of several.
///
/// A `&KernelModel` is one, so that [`Workload::arrive`](super::Workload::arrive) and
/// [`Workload::repeat`](super::Workload::repeat) take either.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum JobModel {
    /// A kernel.
    Kernel(KernelModel),
    /// Kernels that run one after the other, as [`Workload::program`](super::Workload::program) has them.
    Program {
        /// Its name, for the results.
        name: String,
        /// At least one, and at most 4096.
        kernels: Vec<KernelModel>,
    },
}

impl From<&KernelModel> for JobModel {
    fn from(kernel: &KernelModel) -> JobModel {
        JobModel::Kernel(kernel.clone())
    }
}

impl JobModel {
    /// A program of these kernels, in their order.
    pub fn program(name: impl Into<String>, kernels: &[KernelModel]) -> JobModel {
        JobModel::Program { name: name.into(), kernels: kernels.to_vec() }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            JobModel::Kernel(kernel) => &kernel.name,
            JobModel::Program { name, .. } => name,
        }
    }

    pub(super) fn kernels(&self) -> &[KernelModel] {
        match self {
            JobModel::Kernel(kernel) => std::slice::from_ref(kernel),
            JobModel::Program { kernels, .. } => kernels,
        }
    }

    pub(super) fn kernels_mut(&mut self) -> &mut [KernelModel] {
        match self {
            JobModel::Kernel(kernel) => std::slice::from_mut(kernel),
            JobModel::Program { kernels, .. } => kernels,
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        if let JobModel::Program { name, kernels } = self {
            let count = kernels.len();
            if count == 0 {
                let cure = "give it at least one, or leave it out of the workload";
                return Err(refused(format!("program `{name}` has no kernel; {cure}")));
            }
            if count > MAX_CALLS {
                let cure = "make two programs of it";
                return Err(refused(format!(
                    "program `{name}` has {count} kernels, and {MAX_CALLS} is the most; {cure}"
                )));
            }
        }
        self.kernels().iter().try_for_each(KernelModel::check)
    }
}

/// A program, as an engine is told of it.
pub(super) enum Form {
    /// One plain launch of all kernels.
    Plain(LaunchSpec),
    /// Calls, one after the other.
    Preemptible(Vec<Called>),
}

/// What the form of a program depends on beside its calls.
pub(super) struct Circumstances {
    pub sms: u32,
    /// The time between two kernels of a plain program.
    pub gap: Duration,
    /// Whether the policy goes by order.
    pub goes_by_order: bool,
}

/// The form of a program of these calls, each with its name; those without a launch are copies. A plain kernel in a
/// preemptible program stands for work of another library, which is not interrupted.
pub(super) fn form(
    calls: &[(&'static str, Option<LaunchSpec>)],
    is_auto: bool,
    Circumstances { sms, gap, goes_by_order }: Circumstances,
) -> Form {
    let specs = || calls.iter().filter_map(|(_, spec)| *spec);
    // On the device, the gaps are a part of it.
    let gaps = gap * (specs().count().max(1) - 1) as u32;
    let predicted = specs().try_fold(gaps, |sum, spec| Some(sum.saturating_add(spec.predicted?)));
    let may_be_plain =
        is_auto && goes_by_order && is_plain_as_a_whole(specs(), predicted, LONGEST_PLAIN);
    if may_be_plain || specs().all(|spec| spec.plain) {
        return Form::Plain(LaunchSpec {
            predicted,
            // A scheduler knows of no stop of a whole program.
            yield_overhead: Duration::ZERO,
            requeued: Duration::ZERO,
            hardware_stop: None,
            ..whole(specs(), sms)
        });
    }
    let together = together(calls);
    let calls = calls.iter().zip(together).map(|(&(name, spec), together)| {
        let launch = spec.map(|spec| LaunchSpec { hardware_stop: None, ..spec });
        // In the model, plain calls are captured work.
        Called { name, launch, together, is_plain_kernel: false }
    });
    Form::Preemptible(calls.collect())
}

/// Of each call, how many the device takes together from this one on. As on a GPU, these are preemptible kernels in a
/// row, from the second one on: behind anything else the host launches the next one.
fn together(calls: &[(&'static str, Option<LaunchSpec>)]) -> Vec<u32> {
    let mut together = vec![1; calls.len()];
    let is_kernel = |index: usize| calls[index].1.is_some_and(|spec| !spec.plain);
    let mut index = 1;
    while index < calls.len() {
        let row = (index..calls.len()).take(MOST_TOGETHER).take_while(|&call| is_kernel(call));
        let length = if is_kernel(index - 1) { row.count() } else { 0 };
        together[index] = length.max(1) as u32;
        index += length.max(1);
    }
    together
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::of_unknown_size;

    fn calls(kinds: &str) -> Vec<(&'static str, Option<LaunchSpec>)> {
        let spec = |kind| match kind {
            'k' => Some(LaunchSpec { plain: false, ..of_unknown_size(4) }),
            'p' => Some(of_unknown_size(4)),
            _ => None,
        };
        kinds.chars().map(|kind| ("call", spec(kind))).collect()
    }

    #[test]
    fn the_device_takes_rows_of_kernels_together() {
        assert!(together(&calls("")).is_empty());
        assert_eq!(together(&calls("k")), [1]);
        assert_eq!(together(&calls("kk")), [1, 1]);
        assert_eq!(together(&calls("kkkk")), [1, 3, 1, 1]);
        assert_eq!(together(&calls("kkk-kpkkk")), [1, 2, 1, 1, 1, 1, 1, 2, 1]);
        let many = together(&calls(&"k".repeat(40)));
        assert_eq!((many[1], many[32], many.iter().sum::<u32>()), (31, 8, 40 + 30 + 7));
    }

    #[test]
    fn a_program_is_as_wide_as_its_widest_kernel_and_as_long_as_all() {
        let ms = Duration::from_millis(1);
        let spec = |tasks, predicted| {
            Some(LaunchSpec { predicted, yield_overhead: ms, ..of_unknown_size(tasks) })
        };
        let form = |calls: &[_]| {
            let circumstances = Circumstances { sms: 8, gap: ms / 10, goes_by_order: false };
            match form(calls, false, circumstances) {
                Form::Plain(LaunchSpec { tasks, predicted, yield_overhead, .. }) => {
                    (tasks, predicted, yield_overhead)
                }
                Form::Preemptible(_) => panic!("all its kernels are plain"),
            }
        };
        let (few, many) = (("few", spec(3, Some(ms))), ("many", spec(5, Some(2 * ms))));
        assert_eq!(form(&[few, many, few]), (5, Some(4 * ms + ms / 5), Duration::ZERO));
        assert_eq!(form(&[few, ("copy", None)]), (3, Some(ms), Duration::ZERO));
        assert_eq!(form(&[few, ("unknown", spec(5, None))]), (5, None, Duration::ZERO));
        let endless = spec(5, Some(Duration::MAX));
        assert_eq!(form(&[few, ("endless", endless)]), (5, Some(Duration::MAX), Duration::ZERO));
    }

    #[test]
    fn its_form_follows_from_those_of_its_kernels() {
        let short = LaunchSpec {
            plain: false,
            predicted: Some(LONGEST_PLAIN / 2),
            hardware_stop: Some(Duration::from_micros(5)),
            ..of_unknown_size(4)
        };
        let is_plain = |specs: &[LaunchSpec], is_auto, goes_by_order| {
            let calls: Vec<_> = specs.iter().map(|spec| ("call", Some(*spec))).collect();
            let circumstances = Circumstances { sms: 4, gap: Duration::ZERO, goes_by_order };
            matches!(form(&calls, is_auto, circumstances), Form::Plain(_))
        };
        let plain = LaunchSpec { plain: true, hardware_stop: None, ..short };
        let never = LaunchSpec { hardware_stop: None, ..short };
        assert!(is_plain(&[short, short], true, true));
        assert!(!is_plain(&[short, short], true, false) && !is_plain(&[short, short], false, true));
        assert!(!is_plain(&[short, short, short], true, true), "it takes too long as a whole");
        assert!(!is_plain(&[short, never], true, true) && is_plain(&[short, plain], true, true));
        assert!(
            is_plain(&[plain, plain], false, false) && !is_plain(&[plain, never], false, false)
        );
    }
}
