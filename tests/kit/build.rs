//! Embeds the test kernels, as an application would.

fn main() -> Result<(), preempt::build::Error> {
    for kernels in ["../kernels", "../rust-cuda-kernels"] {
        preempt::build::Kernels::new(kernels).committed("kernels.ptx").build()?;
    }
    Ok(())
}
