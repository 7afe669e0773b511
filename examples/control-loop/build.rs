//! Embeds the kernels' PTX.

fn main() -> Result<(), preempt_build::Error> {
    preempt_build::Kernels::new("kernels").committed("kernels.ptx").build()
}
