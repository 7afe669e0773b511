use preempt_device::prelude::*;

#[derive(Clone, Copy, KernelArg)]
#[repr(C)]
struct Nothing;

#[preemptible]
fn kernel(_nothing: Nothing) {}

fn main() {}
