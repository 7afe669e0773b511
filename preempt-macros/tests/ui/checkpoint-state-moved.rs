use preempt_device::prelude::*;

struct Position(u32);

#[preemptible(block = 32)]
fn keeps_what_is_not_copied(n: u32, out: SliceMut<u32>) {
    checkpoint!(position: Position = Position(0) => for _ in 0..n {
        position = Position(position.0 + 1);
    });
    unsafe { out.write(0, position.0) };
}

fn main() {}
