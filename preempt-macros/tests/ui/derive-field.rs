use preempt_device::prelude::*;

#[derive(Clone, Copy, KernelArg)]
#[repr(C)]
struct Params {
    n: u32,
    table: &'static [f32],
}

fn main() {}
