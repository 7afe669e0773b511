//! The test kernels, embedded by this package's build script; the tests are in `tests/`.

/// The device code of `preempt-test-kernels`.
pub const KERNELS: preempt::Module = preempt::include_kernels!("preempt_test_kernels");
