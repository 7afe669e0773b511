use preempt_device::prelude::*;

#[derive(Clone, Copy, KernelArg)]
struct NoRepr {
    n: u32,
}

#[derive(Clone, Copy, KernelArg)]
#[repr(align(8))]
struct OnlyAligned {
    n: u32,
}

fn main() {}
