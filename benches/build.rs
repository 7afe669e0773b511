//! Compiles the kernels to PTX, which is not committed, and embeds it. Without a toolchain for it, a warning says so,
//! and the suites run on the CPU device.

fn main() -> Result<(), preempt_build::Error> {
    for kernels in ["microkernels", "workloads/kernels", "workloads/flep"] {
        preempt_build::Kernels::new(kernels).build()?;
    }
    Ok(())
}
