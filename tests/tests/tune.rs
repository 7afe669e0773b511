//! The tuner of the amortizing factor: its launches, its cache, its errors.

use std::fs;
use std::path::{Path, PathBuf};

use preempt::error::{ConfigurationError, LaunchError, TuningError};
use preempt::tune::Tuner;
use preempt::{Buffer, Call, CpuLayout, Device, Error, Scheduler};
use preempt_test_kernels as kernels;

/// Block-tasks of the launch: on a device with room for one block, factors of 1, 2, 4 and 8 differ.
const TASKS: u32 = 8;
const SAMPLES: u32 = 3;

/// Launches in both forms, before anything is measured.
const WARM_UP: u32 = 2;

fn scheduler() -> Scheduler {
    let device = Device::cpu_with(CpuLayout::sms(1)).expect("a device");
    Scheduler::builder().device(device).build().expect("a scheduler")
}

fn tuner(scheduler: &Scheduler) -> Tuner<'_> {
    Tuner::new(scheduler).samples(SAMPLES)
}

/// The path of a file that does not exist.
fn file(test: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tune-{test}.tsv"));
    match fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{error}"),
        _ => path,
    }
}

/// A launch that counts its runs.
struct Counting {
    counts: Buffer<u32>,
    call: Call<'static>,
}

impl Counting {
    fn new(scheduler: &Scheduler) -> Counting {
        let mut counts = scheduler.zeroed(TASKS as usize).expect("memory");
        let mut writes = scheduler.zeroed(TASKS as usize).expect("memory");
        let call = kernels::count_1d(&mut counts, &mut writes).grid(TASKS).block(1);
        Counting { counts, call }
    }

    /// The runs of the launch, which are also those of each of its block-tasks.
    fn runs(&self, scheduler: &Scheduler) -> u32 {
        let copy = scheduler.stream(0).download(&self.counts).expect("accepted");
        let counts = copy.wait().expect("copied");
        assert_eq!(counts, vec![counts[0]; TASKS as usize]);
        counts[0]
    }
}

/// Runs of a launch that is tuned over this number of factors.
fn runs_for(factors: u32) -> u32 {
    WARM_UP + 2 * SAMPLES * factors
}

#[test]
fn factors_are_tried_until_one_is_good_enough() {
    let scheduler = scheduler();
    let counting = Counting::new(&scheduler);
    let any = tuner(&scheduler).overhead(f64::INFINITY);
    let tuned = any.tune("", || counting.call.clone()).expect("it runs");
    assert_eq!((tuned.amortize, tuned.cached), (1, false));
    assert_eq!(counting.runs(&scheduler), runs_for(1));

    let counting = Counting::new(&scheduler);
    let none = tuner(&scheduler).overhead(-1.0);
    let tuned = none.tune("", || counting.call.clone()).expect("it runs");
    assert!([1, 2, 4, 8].contains(&tuned.amortize), "{tuned:?}");
    assert!(tuned.overhead > -1.0 && tuned.overhead.is_finite(), "{tuned:?}");
    assert_eq!(counting.runs(&scheduler), runs_for(4));
}

#[test]
fn the_factor_in_the_callers_launch_does_not_count() {
    let scheduler = scheduler();
    let counting = Counting::new(&scheduler);
    let refused = || counting.call.clone().amortize(0);
    let any = tuner(&scheduler).overhead(f64::INFINITY);
    assert_eq!(any.tune("", refused).expect("it is overruled").amortize, 1);
}

#[test]
fn what_was_found_is_not_measured_again() {
    let scheduler = scheduler();
    let counting = Counting::new(&scheduler);
    // All factors are measured, so that the number of runs is known.
    let tuner = tuner(&scheduler).overhead(-1.0).cache(file("cached"));
    let first = tuner.tune("one input", || counting.call.clone()).expect("it runs");
    assert!(!first.cached);
    assert_eq!(counting.runs(&scheduler), runs_for(4));

    let mut second = tuner.tune("one input", || counting.call.clone()).expect("it is kept");
    assert!(second.cached);
    second.cached = false;
    assert_eq!(second, first);
    assert_eq!(counting.runs(&scheduler), runs_for(4), "nothing was launched");

    let other = tuner.tune("another input", || counting.call.clone()).expect("it runs");
    assert!(!other.cached);
    assert_eq!(counting.runs(&scheduler), 2 * runs_for(4));
    let grid = || counting.call.clone().grid(TASKS / 2);
    assert!(!tuner.tune("one input", grid).expect("it runs").cached);
    let limit = tuner.clone().overhead(f64::INFINITY);
    assert!(!limit.tune("one input", || counting.call.clone()).expect("it runs").cached);

    assert!(tuner.tune("one input", || counting.call.clone()).expect("it is kept").cached);
    assert!(tuner.tune("another input", || counting.call.clone()).expect("it is kept").cached);
    let uncached = Tuner::new(&scheduler).samples(1).overhead(-1.0);
    assert!(!uncached.tune("one input", || counting.call.clone()).expect("it runs").cached);
}

#[test]
fn a_launch_that_fails_is_the_error_and_nothing_is_kept() {
    let scheduler = scheduler();
    let path = file("fails");
    let tuner = tuner(&scheduler).cache(&path);
    let mut out = scheduler.zeroed::<u32>(1).expect("memory");
    let call = kernels::panics(0, &mut out).grid(1).block(1);
    let error = tuner.tune("", || call.clone()).expect_err("the kernel panics");
    assert!(
        matches!(error, Error::Launch(LaunchError::KernelFailed { kernel: "panics", .. })),
        "{error}"
    );

    let counting = Counting::new(&scheduler);
    let error = tuner.tune("", || counting.call.clone().grid(0)).expect_err("it is refused");
    assert!(matches!(error, Error::Configuration(ConfigurationError::EmptyGrid { .. })), "{error}");
    assert!(!path.exists());
}

#[test]
fn a_file_that_cannot_be_written_does_not_lose_the_result() {
    let scheduler = scheduler();
    let counting = Counting::new(&scheduler);
    let path = file("no-folder").join("tuned.tsv");
    let tuner = tuner(&scheduler).overhead(f64::INFINITY).cache(&path);
    match tuner.tune("", || counting.call.clone()).expect_err("there is no folder") {
        error @ Error::Tuning(TuningError::NotKept { tuned, .. }) => {
            assert_eq!((tuned.amortize, tuned.cached), (1, false));
            assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        }
        other => panic!("{other}"),
    }
    assert_eq!(counting.runs(&scheduler), runs_for(1));
}

#[test]
fn a_file_of_something_else_is_an_error_before_anything_runs() {
    let scheduler = scheduler();
    let counting = Counting::new(&scheduler);
    let path = file("foreign");
    fs::write(&path, "my notes\n").expect("written");
    let error = tuner(&scheduler).cache(&path).tune("", || counting.call.clone());
    let error = error.expect_err("it is none of ours");
    assert!(matches!(error, Error::Tuning(TuningError::NotRead { .. })), "{error}");
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    assert_eq!(counting.runs(&scheduler), 0);
    assert_eq!(fs::read_to_string(&path).expect("a file"), "my notes\n");
}
