use preempt_device::host::{Call, HasGrid};
use preempt_device::prelude::*;

#[preemptible(block = 256)]
fn kernel() {}

/// As a stream does.
fn launch<G: HasGrid>(_call: Call<'static, G>) {}

fn helper() -> Call<'static> {
    kernel().block(256)
}

fn main() {
    launch(kernel());
    launch(helper());
}
