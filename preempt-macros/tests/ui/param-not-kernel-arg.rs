use preempt_device::prelude::*;

#[derive(Clone, Copy)]
struct Plain {
    n: u32,
}

struct NotCopy(u32);

#[preemptible]
fn by_value(_plain: Plain) {}

#[preemptible]
fn not_copy(_value: NotCopy) {}

#[preemptible]
fn elements(_texts: &[String]) {}

fn main() {}
