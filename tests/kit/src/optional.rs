//! Buffers without elements, where a kernel takes pointers.

use preempt::{Preemption, Scheduler};
use preempt_test_kernels as kernels;

/// Runs [`optional`](kernels::optional) with and without each of its buffers, in both forms.
///
/// # Panics
///
/// If the kernel finds null in place of a buffer, or something else in place of none.
pub fn check_optional_buffers(scheduler: &Scheduler) {
    const THREADS: usize = 100;
    let stream = scheduler.stream(0);
    for preemption in [Preemption::Preemptible, Preemption::Plain] {
        for (has_input, has_output) in [(false, false), (false, true), (true, false), (true, true)]
        {
            let len = |is_there: bool| if is_there { THREADS } else { 0 };
            let input = scheduler.buffer(&vec![7u32; len(has_input)]).expect("memory");
            let mut out = scheduler.buffer(&vec![10u32; len(has_output)]).expect("memory");
            let mut seen = scheduler.buffer(&[u32::MAX; THREADS]).expect("memory");
            let call = kernels::optional(&input, &mut out, &mut seen);
            let call = call.threads(THREADS).block(20).preemption(preemption);
            stream.launch(call).and_then(|handle| handle.wait()).expect("runs");
            let download = |buffer| stream.download(buffer).and_then(|copy| copy.wait());
            let expected = u32::from(has_input) + 2 * u32::from(has_output);
            assert_eq!(download(&seen).expect("copied"), [expected; THREADS]);
            let expected = if has_input { 17 } else { 11 };
            assert_eq!(download(&out).expect("copied"), vec![expected; len(has_output)]);
        }
    }
}
