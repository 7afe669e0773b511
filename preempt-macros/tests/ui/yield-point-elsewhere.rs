use preempt_device::prelude::*;

fn helper() {
    yield_point!();
}

#[preemptible(idempotent)]
fn kernel() {
    fn inside() {
        yield_point!();
    }
    helper();
    inside();
}

fn main() {}
