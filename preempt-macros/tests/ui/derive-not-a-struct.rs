use preempt_device::prelude::*;

#[derive(Clone, Copy, KernelArg)]
#[repr(C)]
enum Mode {
    Fast,
    Exact,
}

#[derive(Clone, Copy, KernelArg)]
#[repr(C)]
union Bits {
    float: f32,
    int: u32,
}

fn main() {}
