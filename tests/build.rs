//! Embeds the test kernels, as an application would.

fn main() -> Result<(), preempt::build::Error> {
    preempt::build::Kernels::new("kernels").committed("kernels.ptx").build()
}
