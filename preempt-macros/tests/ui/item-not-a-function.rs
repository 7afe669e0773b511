use preempt_device::prelude::*;

#[preemptible]
struct Kernel;

fn main() {}
