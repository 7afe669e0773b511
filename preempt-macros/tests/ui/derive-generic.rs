use preempt_device::prelude::*;

#[derive(Clone, Copy, KernelArg)]
#[repr(C)]
struct Pair<T> {
    a: T,
    b: T,
}

fn main() {}
