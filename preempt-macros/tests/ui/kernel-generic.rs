use preempt_device::prelude::*;

#[preemptible]
fn of_a_type<T>(value: T)
where
    T: KernelArg,
{
}

#[preemptible]
fn of_a_constant<const N: usize>(out: SliceMut<u32>) {}

#[preemptible]
fn of_a_lifetime<'a>(a: &'a [f32]) {}

#[preemptible]
fn of_an_argument(value: impl KernelArg) {}

fn main() {}
