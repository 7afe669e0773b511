use preempt_device::prelude::*;

const ROWS: u32 = 64;

#[preemptible(block = (ROWS, ROWS))]
fn kernel() {}

fn main() {}
