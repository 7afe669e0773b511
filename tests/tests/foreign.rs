//! Kernels of other compilers, as far as no GPU is needed: verdicts, and what is wrong with texts, names and entries.

use std::sync::atomic::{AtomicU32, Ordering};

use preempt::error::CodeError;
use preempt::ptx::{Rule, Verdict, transform};
use preempt::{CpuLayout, Device, Error, Scheduler, SchedulerBuilder};
use preempt_device::prelude::*;
use preempt_test_kernels as kernels;

const SAMPLES: &str = include_str!("../foreign/samples.ptx");

fn builder() -> SchedulerBuilder {
    let device = Device::cpu_with(CpuLayout::sms(2)).expect("a device");
    Scheduler::builder().device(device)
}

fn scheduler() -> Scheduler {
    builder().ptx("samples", SAMPLES).build().expect("it is PTX")
}

#[test]
fn verdicts_need_no_device() {
    let accepted: [(&str, &[Rule]); 7] = [
        ("elementwise", &[]),
        ("block_sums", &[]),
        ("early_exit", &[Rule::EarlyExit]),
        ("reversed", &[Rule::SlotBehindDynamicShared, Rule::SharedSize]),
        ("histogram", &[]),
        ("rows", &[]),
        ("waits", &[]),
    ];
    for (entry, rules) in accepted {
        let transformed = transform(SAMPLES, &[entry]).expect("it is there");
        let kernel = &transformed.kernels[0];
        let Verdict::Accepted(accepted) = &kernel.verdict else {
            panic!("{entry}: {}", kernel.verdict)
        };
        assert_eq!(accepted.rules, rules.iter().copied().collect(), "{entry}");
        assert_eq!(accepted.whole_rows, entry == "rows");
        assert!(transformed.ptx.contains(&format!(".entry {entry}__preemptible(")));
    }
    let transformed = transform(SAMPLES, &["numbered"]).expect("it is there");
    let Verdict::Refused(reasons) = &transformed.kernels[0].verdict else {
        panic!("a cohort has another number")
    };
    let line = SAMPLES.lines().position(|line| line.contains("%gridid")).expect("it reads it") + 1;
    assert_eq!(reasons[0].place.line, line, "{}", reasons[0]);
}

#[test]
fn texts_need_names_of_their_own_and_to_be_ptx() {
    let error = builder().ptx("a", SAMPLES).ptx("b", SAMPLES).ptx("a", "").build();
    let error = error.expect_err("two have one name");
    assert!(matches!(&error, Error::Code(CodeError::SameName { module }) if &**module == "a"));
    let error = builder().ptx("a", "// not PTX").build().expect_err("it has no version");
    let Error::Code(CodeError::NotTransformed { module, .. }) = &error else { panic!("{error:?}") };
    assert_eq!(&**module, "a");
    let message = error.to_string();
    assert!(
        message.contains(".version") && message.contains("as the compiler wrote it"),
        "{message}"
    );
}

#[test]
fn names_that_are_not_there_are_told_with_those_that_are() {
    let error = scheduler().foreign("other", "elementwise").expect_err("there is no such text");
    let message = error.to_string();
    assert!(matches!(error, Error::Code(CodeError::NoPtx { .. })), "{message}");
    assert!(message.contains("`samples`") && message.contains(".ptx(\"other\""), "{message}");
    let none = builder().build().expect("a scheduler").foreign("other", "elementwise");
    assert!(none.expect_err("no text").to_string().contains("it has none"));
    let message = scheduler().foreign("samples", "sum").expect_err("no such entry").to_string();
    assert!(message.contains("`sum`") && message.contains("block_sums, early_exit"), "{message}");
}

#[test]
fn what_no_launch_of_a_scheduler_has_is_told() {
    let error = scheduler().foreign("samples", "grid_wide").expect_err("a barrier of the grid");
    let Error::Code(CodeError::LaunchNeed { entry, need }) = &error else { panic!("{error:?}") };
    assert_eq!((&**entry, need.contains("cooperative")), ("grid_wide", true), "{error}");
}

#[test]
fn the_cpu_device_says_that_it_runs_none() {
    for entry in ["elementwise", "numbered"] {
        let error = scheduler().foreign("samples", entry).expect_err("it has no code for this");
        let Error::Code(CodeError::NoHostCode { entry: of, module }) = &error else {
            panic!("{error:?}")
        };
        assert_eq!((&**of, &**module), (entry, "samples"));
        assert!(error.to_string().contains("Device::cuda"), "{error}");
    }
}

#[test]
fn both_forms_of_a_kernel_are_compared_on_copies() {
    let scheduler = builder().build().expect("a scheduler");
    let stream = scheduler.stream(0);
    let mut counts = scheduler.buffer(&[7u32; 3000]).expect("memory");
    let mut writes = scheduler.zeroed::<u32>(3000 * 8).expect("memory");
    let call = kernels::paced_1d(10_000, &mut counts, &mut writes).grid(3000).block(8);
    let found = scheduler.verify(call).expect("runs");
    assert!(found.is_equal() && found.unstable.is_none(), "{found:?}");
    assert!(found.yields > 0 && found.runs > 0, "{found:?}");
    let counts = stream.download(&counts).and_then(|copy| copy.wait()).expect("copied");
    assert_eq!(counts, [7; 3000], "the buffers of the call are as they were");
}

/// Another value in each run, which no kernel of a GPU could have.
#[preemptible(block = 1)]
fn differs(first: SliceMut<u32>, out: SliceMut<u32>) {
    static RUN: AtomicU32 = AtomicU32::new(0);
    // SAFETY: one thread writes.
    unsafe { first.write(0, 1) }
    // SAFETY: as above.
    unsafe { out.write(1, RUN.fetch_add(1 << 8, Ordering::Relaxed)) }
}

#[test]
fn a_difference_is_told_with_its_place() {
    let scheduler = builder().build().expect("a scheduler");
    let mut first = scheduler.zeroed::<u32>(1).expect("memory");
    let mut out = scheduler.zeroed::<u32>(2).expect("memory");
    let found = scheduler.verify(differs(&mut first, &mut out).grid(1)).expect("runs");
    assert!(!found.is_equal());
    for difference in [found.difference, found.unstable] {
        let difference = difference.expect("each run differs");
        assert_eq!((difference.buffer, difference.byte), (1, 5), "{found:?}");
    }
}
