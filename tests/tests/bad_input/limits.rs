//! Grids, blocks, shared memory and arguments that exceed what a launch or the device can have.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use preempt::error::{ConfigurationError, LaunchError};
use preempt::policy::Fifo;
use preempt::sim::{Machine, Simulation, Workload};
use preempt::{Call, Costs, Device, Error, NoGrid, Scheduler};
use preempt_device::host::{Args, Dim3};
use preempt_device::prelude::*;
use preempt_test_kernels as kernels;

use super::{BY_HAND, Setup};

#[test]
fn a_grid_has_block_tasks() {
    let mut setup = Setup::new();
    for grid in [Dim3::from(0), Dim3::from((4, 0)), Dim3::from((4, 4, 0))] {
        let call = setup.count().grid(grid).block(32);
        assert_error!(
            setup.refusal(call),
            Error::Configuration(ConfigurationError::EmptyGrid { .. }),
            "at least 1"
        );
    }
    setup.check_unharmed();
}

#[test]
fn a_grid_is_within_the_limits() {
    let mut setup = Setup::new();
    for grid in [
        Dim3::from(1 << 31),
        Dim3::from((1 << 30) + 1),
        Dim3::from((1, 65_536)),
        Dim3::from((1, 1, 65_536)),
        Dim3::from((65_535, 65_535)),
        Dim3::new(u32::MAX, u32::MAX, u32::MAX),
    ] {
        let call = setup.count().grid(grid).block(32);
        assert_error!(
            setup.refusal(call.clone()),
            Error::Configuration(ConfigurationError::GridTooLarge { .. }),
            "split the launch"
        );
        assert_error!(
            setup.refusal(call),
            Error::Configuration(ConfigurationError::GridTooLarge { .. }),
            "at most 1073741824,"
        );
    }
    setup.check_unharmed();
}

#[test]
fn no_number_of_blocks_or_threads_wraps() {
    let mut setup = Setup::new();
    let mut refusal = |shape: fn(Call<'static, NoGrid>) -> Call<'static>| {
        let call = shape(setup.count());
        setup.refusal(call)
    };
    macro_rules! assert_refused {
        ($shape:expr, $pattern:pat, $hint:literal) => {
            assert_error!(refusal($shape), $pattern, $hint);
        };
    }
    assert_refused!(
        |call| call.grid(-1).block(32),
        Error::Configuration(ConfigurationError::EmptyGrid { .. }),
        "-1x1x1"
    );
    assert_refused!(
        |call| call.grid((-1, -1)).block(32),
        Error::Configuration(ConfigurationError::EmptyGrid { .. }),
        "at least 1"
    );
    assert_refused!(
        |call| call.grid(0).block(32),
        Error::Configuration(ConfigurationError::EmptyGrid { .. }),
        "leave the launch out"
    );
    assert_refused!(
        |call| call.threads(0).block(32),
        Error::Configuration(ConfigurationError::EmptyGrid { .. }),
        "0x1x1"
    );
    assert_refused!(
        |call| call.threads(-33).block(32),
        Error::Configuration(ConfigurationError::EmptyGrid { .. }),
        "-1x1x1"
    );
    assert_refused!(
        |call| call.threads(i64::MIN).block(32),
        Error::Configuration(ConfigurationError::EmptyGrid { .. }),
        "at least 1"
    );
    // Their lower 32 bits would be valid.
    assert_refused!(
        |call| call.grid((1usize << 32) + 1).block(32),
        Error::Configuration(ConfigurationError::GridTooLarge { .. }),
        "4294967297x1x1 is too large; x and the product are at most 1073741824,"
    );
    assert_refused!(
        |call| call.grid(1usize << 40).block(32),
        Error::Configuration(ConfigurationError::GridTooLarge { .. }),
        "1099511627776x1x1"
    );
    assert_refused!(
        |call| call.grid((1, 1 << 20)).block(32),
        Error::Configuration(ConfigurationError::GridTooLarge { .. }),
        "1x1048576x1 is too large; x and the product are at most 1073741824, y and z at most 65535"
    );
    assert_refused!(
        |call| call.grid((u64::MAX, u64::MAX, u64::MAX)).block(32),
        Error::Configuration(ConfigurationError::GridTooLarge { .. }),
        "18446744073709551615x18446744073709551615x18446744073709551615"
    );
    assert_refused!(
        |call| call.threads(usize::MAX).block(1),
        Error::Configuration(ConfigurationError::GridTooLarge { .. }),
        "18446744073709551615x1x1"
    );
    assert_refused!(
        |call| call.threads(usize::MAX).block(32),
        Error::Configuration(ConfigurationError::GridTooLarge { .. }),
        "576460752303423488x1x1"
    );
    assert_refused!(
        |call| call.grid(7).block(-32),
        Error::Configuration(ConfigurationError::BadBlock { .. }),
        "-32x1x1 threads"
    );
    assert_refused!(
        |call| call.grid(7).block(2048),
        Error::Configuration(ConfigurationError::BadBlock { .. }),
        "1 to 1024 threads"
    );
    assert_refused!(
        |call| call.grid(7).block((1u64 << 32) + 32),
        Error::Configuration(ConfigurationError::BadBlock { .. }),
        "4294967328x1x1 threads"
    );
    // The number of block-tasks of these grids is not known.
    assert_refused!(
        |call| call.threads(7).block(0),
        Error::Configuration(ConfigurationError::BadBlock { .. }),
        "1 to 1024 threads"
    );
    assert_refused!(
        |call| call.threads(7),
        Error::Configuration(ConfigurationError::NoBlock { .. }),
        ".block(..)"
    );
    let block = -128;
    let mut out = setup.scheduler.zeroed(8).expect("memory");
    let input = setup.scheduler.zeroed(8).expect("memory");
    let call = kernels::guard_sync_guard(&input, &mut out).threads(8).block(block);
    assert_error!(
        setup.refusal(call),
        Error::Configuration(ConfigurationError::OtherBlock { .. }),
        "128x1x1, not -128x1x1"
    );
    setup.check_unharmed();
}

#[test]
fn a_block_is_within_the_limits() {
    let mut setup = Setup::new();
    for block in [Dim3::from(0), Dim3::from(1025), Dim3::from((32, 33)), Dim3::from((1, 1, 65))] {
        let call = setup.count().grid(7).block(block);
        assert_error!(
            setup.refusal(call),
            Error::Configuration(ConfigurationError::BadBlock { .. }),
            "1 to 1024 threads"
        );
    }
    let call = setup.count().grid(7);
    assert_error!(
        setup.refusal(call),
        Error::Configuration(ConfigurationError::NoBlock { .. }),
        ".block(..)"
    );
    let mut out = setup.scheduler.zeroed(8).expect("memory");
    let input = setup.scheduler.zeroed(8).expect("memory");
    let call = kernels::guard_sync_guard(&input, &mut out).grid(1).block(64);
    assert_error!(
        setup.refusal(call),
        Error::Configuration(ConfigurationError::OtherBlock { .. }),
        "128x1x1"
    );
    setup.check_unharmed();
}

/// Takes more shared memory than any GPU has.
#[preemptible(block = 32)]
fn greedy(out: SliceMut<u32>) {
    let array = shared_array![u32; 100_000];
    // SAFETY: in bounds; one thread alone.
    unsafe { out.write(0, array.read()) };
}

#[test]
fn shared_memory_is_within_what_the_device_has() {
    let mut setup = Setup::new();
    let call = greedy(&mut setup.counts).grid(1);
    assert_error!(
        setup.refusal(call),
        Error::Configuration(ConfigurationError::SharedMemory { bytes: 400_000, .. }),
        "smaller"
    );
    setup.check_unharmed();
}

/// Takes as much shared memory as it is told.
#[preemptible(block = 32)]
fn sized(n: i64, out: SliceMut<u32>) {
    let (first, second) = (shared_slice![u32; n], shared_slice![u64; n]);
    // SAFETY: one thread alone.
    unsafe { out.write(0, (first.len() + second.len()) as u32) };
}

#[test]
fn shared_memory_of_a_launch_is_within_what_the_device_has() {
    let mut setup = Setup::new();
    // Just too much, more than 32 bits can say, and so much that the bytes overflow 64 bits.
    for (n, bytes) in
        [(20_000, 240_000), (1 << 31, 12 << 31), (i64::MAX / 16, i64::MAX as u64 / 16 * 12)]
    {
        let call = sized(n, &mut setup.counts).grid(1);
        assert_eq!(call.shared_bytes() / 16, bytes / 16);
        assert_error!(
            setup.refusal(call),
            Error::Configuration(ConfigurationError::SharedMemory { .. }),
            "make its `shared_array!`s and `shared_slice!`s smaller"
        );
    }
    for n in [-1, i64::MIN, i64::MAX] {
        let call = sized(n, &mut setup.counts).grid(1);
        assert_error!(
            setup.refusal(call),
            Error::Configuration(ConfigurationError::SharedLength { kernel: "sized" }),
            "is negative or overflows"
        );
    }
    setup.check_unharmed();
}

/// The length of its slice is another at each evaluation.
#[preemptible(block = 1)]
fn unsteady(out: SliceMut<u32>) {
    let tile = shared_slice![u32; next()];
    // SAFETY: one thread alone.
    unsafe { tile.write(tile.len() - 1, out.len() as u32) };
}

fn next() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[test]
fn the_length_of_a_slice_stays_what_it_was_at_the_launch() {
    let setup = Setup::new();
    let mut out = setup.zeroed();
    let call = unsteady(&mut out).grid(1);
    let error = setup.stream.launch(call).expect("accepted").wait().expect_err("it fails");
    assert_error!(
        error,
        Error::Launch(LaunchError::KernelFailed { .. }),
        "compute it from parameters and constants alone"
    );
    setup.check_unharmed();
}

#[test]
fn arguments_fit_a_launch() {
    let setup = Setup::new();
    // By hand, because a kernel that takes this does not compile.
    let mut args = Args::default();
    args.push_value([0u32; 2000]);
    // SAFETY: the kernel takes no arguments.
    let call = unsafe { Call::new(&BY_HAND, args) }.grid(1);
    assert_error!(
        setup.refusal(call),
        Error::Configuration(ConfigurationError::ArgumentSize { .. }),
        "buffer"
    );
    setup.check_unharmed();
}

#[test]
fn an_amortizing_factor_is_at_least_one() {
    let mut setup = Setup::new();
    let call = setup.count().grid(7).block(32).amortize(0);
    assert_error!(
        setup.refusal(call),
        Error::Configuration(ConfigurationError::NoAmortizing { .. }),
        "at least 1"
    );
    setup.check_unharmed();
}

#[test]
fn costs_are_less_than_a_day() {
    for cost in [Duration::MAX, Duration::from_secs(24 * 3600 + 1)] {
        let costs = Costs { absence: cost, ..Costs::h200() };
        let builder = Scheduler::builder().device(Device::cpu().expect("a device"));
        assert_error!(
            builder.costs(costs).build().expect_err("refused"),
            Error::Configuration(ConfigurationError::Cost { .. }),
            "longer than a day"
        );
        let simulation = Simulation::new(Machine::new(4, costs), Fifo::new());
        let error = simulation.run(&Workload::new(0)).expect_err("refused");
        assert!(error.to_string().contains("longer than a day"), "{error}");
    }
}
