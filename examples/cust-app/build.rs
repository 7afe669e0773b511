//! Embeds the kernels.

fn main() -> Result<(), preempt_build::Error> {
    preempt_build::Kernels::new("kernels").committed("kernels.ptx").build()
}
