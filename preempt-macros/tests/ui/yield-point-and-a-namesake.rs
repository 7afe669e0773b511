use preempt_device::prelude::*;

mod own {
    pub fn block_idx_x() -> u32 {
        preempt_device::thread::thread_idx_x()
    }
}

#[preemptible(idempotent)]
fn kernel(rounds: u32) {
    for _ in 0..rounds.min(own::block_idx_x()) {
        thread::sync_threads();
        yield_point!();
    }
}

fn main() {}
