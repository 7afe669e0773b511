use preempt_device::prelude::*;

mod own {
    pub fn block_idx_x() -> u32 {
        std::process::id()
    }
}

#[preemptible(block = 32)]
fn kernel(out: SliceMut<u32>) {
    yield_point!();
    unsafe { out.write(own::block_idx_x() as usize, 1) };
}

fn main() {}
