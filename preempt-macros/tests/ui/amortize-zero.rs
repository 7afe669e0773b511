use preempt_device::prelude::*;

const NONE: u32 = 0;

#[preemptible(amortize = 0)]
fn literal() {}

#[preemptible(amortize = NONE)]
fn constant() {}

fn main() {}
