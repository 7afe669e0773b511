use preempt_device::prelude::*;

#[preemptible]
fn kernel(n: u32) {
    use preempt_device::thread::sync_threads as wait;
    let step = || wait();
    if thread::index_1d() >= n {
        return;
    }
    step();
}

fn main() {}
