//! Embeds the test kernels, as an application would.

fn main() -> Result<(), preempt_build::Error> {
    for kernels in ["../kernels", "../rust-cuda-kernels"] {
        preempt_build::Kernels::new(kernels).committed("kernels.ptx").build()?;
    }
    Ok(())
}
