use preempt_device::prelude::*;

#[preemptible]
#[inline(never)]
fn inline() {}

#[preemptible]
#[unsafe(no_mangle)]
fn symbol() {}

fn main() {}
