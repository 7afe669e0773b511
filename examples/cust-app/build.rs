//! Embeds the kernels.

fn main() -> Result<(), preempt::build::Error> {
    preempt::build::Kernels::new("kernels").committed("kernels.ptx").build()
}
