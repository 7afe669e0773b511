use preempt_device::prelude::*;

#[preemptible]
async fn kernel() {}

fn main() {}
