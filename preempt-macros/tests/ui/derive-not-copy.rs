use preempt_device::prelude::*;

#[derive(KernelArg)]
#[repr(C)]
struct Params {
    n: u32,
}

fn main() {}
