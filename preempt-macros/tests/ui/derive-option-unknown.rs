use preempt_device::prelude::*;

#[derive(Clone, Copy, KernelArg)]
#[kernel_arg(krate = preempt_device)]
#[repr(C)]
struct Params {
    n: u32,
}

fn main() {}
