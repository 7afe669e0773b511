use preempt_device::prelude::*;

/// Says that everything can be a field.
mod lenient {
    pub mod kernel {
        pub use preempt_device::kernel::KernelArg;

        pub mod check {
            pub const fn element<T>() {}
        }
    }
}

#[derive(Clone, Copy, KernelArg)]
#[kernel_arg(crate = lenient)]
#[repr(C)]
struct Params {
    n: u32,
    table: &'static [f32],
}

fn main() {}
