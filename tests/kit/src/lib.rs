//! Shared by tests and benches: the test kernels, embedded by this package's build script, storms, gates and random
//! numbers.

use preempt::{CpuLayout, Device, Preemption, Scheduler};

mod gate;
pub mod one_kernel;
mod optional;
pub mod storm;

pub use gate::{Gate, gated};
pub use optional::check_optional_buffers;

/// The device code of `preempt-test-kernels`.
pub const KERNELS: preempt::Module = preempt::include_kernels!("preempt_test_kernels");

/// The device code of `preempt-rust-cuda-kernels`, made by the stock compiler.
pub const RUST_CUDA_KERNELS: preempt::Module =
    preempt::include_kernels!("preempt_rust_cuda_kernels");

/// The first GPU, or a quarter of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gpu {
    Whole,
    Part,
}

/// By `PREEMPT_TEST_DEVICE` in the environment, which is `cuda` or `part`.
fn gpu() -> Option<Gpu> {
    let device = std::env::var_os("PREEMPT_TEST_DEVICE")?;
    [("cuda", Gpu::Whole), ("part", Gpu::Part)]
        .into_iter()
        .find(|(name, _)| device == *name)
        .map(|(_, gpu)| gpu)
}

/// Whether tests run on the first GPU: with `PREEMPT_TEST_DEVICE=cuda` in the environment, or with `part` on a part of it. They
/// run one at a time then.
pub fn on_gpu() -> bool {
    gpu().is_some()
}

/// The device that tests run on: the first GPU if they are [told to](on_gpu), and an emulated one with this layout
/// otherwise.
pub fn device(emulated: CpuLayout) -> Device {
    let whole = || Device::cuda(0).expect("a GPU");
    match gpu() {
        None => Device::cpu_with(emulated).expect("a device"),
        Some(Gpu::Whole) => whole(),
        Some(Gpu::Part) => whole().split(4).expect("parts").swap_remove(1),
    }
}

/// A scheduler for [`device`], with the test kernels, whose launches are preemptible unless they say something else.
pub fn scheduler(emulated: CpuLayout) -> Scheduler {
    let builder = Scheduler::builder().device(device(emulated)).kernels(KERNELS);
    builder.preemption(Preemption::Preemptible).build().expect("a scheduler")
}

/// A scheduler for an emulated device, where there are gates, and where kernels may fail.
pub fn emulated(layout: CpuLayout) -> Scheduler {
    let device = Device::cpu_with(layout).expect("a device");
    let builder = Scheduler::builder().device(device).preemption(Preemption::Preemptible);
    builder.build().expect("a scheduler")
}

/// Submits something that the scheduler decides about, and returns once the device has what was decided, if it is an emulated
/// one: the statistics are told between two turns of the scheduler.
pub fn carried_out<T>(scheduler: &Scheduler, submit: impl FnOnce() -> T) -> T {
    let decisions = || scheduler.stats().decisions.count;
    let before = decisions();
    let submitted = submit();
    while decisions() == before {
        std::thread::yield_now();
    }
    // That may have been another decision. The thread that has the core takes in what is submitted before it gives it up.
    for _ in 0..2 {
        decisions();
    }
    submitted
}

/// Resident bytes of the process. They include the stacks of emulated threads, which no allocator counts.
///
/// # Panics
///
/// On systems other than Linux.
pub fn resident_bytes() -> isize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<isize>().ok());
    // The smallest page size.
    pages.expect("the second number is that of resident pages") * 4096
}

/// SplitMix64 (Steele, Lea and Flood 2014): numbers from a seed, the same on every machine.
#[derive(Clone, Debug)]
pub struct Random(
    /// The seed.
    pub u64,
);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        (self.bits() % u64::from(bound)) as u32
    }

    /// A number from -1 up to 1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// The README's example compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
