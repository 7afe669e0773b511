//! Embeds the kernels' PTX, which is not committed.

fn main() -> Result<(), preempt::build::Error> {
    for kernels in ["microkernels", "workloads/kernels", "workloads/flep"] {
        preempt::build::Kernels::new(kernels).committed("kernels.ptx").build()?;
    }
    Ok(())
}
