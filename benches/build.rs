//! Embeds the kernels' PTX.

fn main() -> Result<(), preempt::build::Error> {
    for kernels in ["kernels", "suite", "baselines"] {
        preempt::build::Kernels::new(kernels).committed("kernels.ptx").build()?;
    }
    Ok(())
}
