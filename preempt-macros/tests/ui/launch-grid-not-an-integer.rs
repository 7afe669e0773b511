use preempt_device::prelude::*;

#[preemptible]
fn kernel() {}

fn main() {
    let _ = kernel().grid(1.5);
    let _ = kernel().grid((1, 1.5));
    let _ = kernel().threads("1000");
    let _ = kernel().grid(1).block([16, 16]);
}
