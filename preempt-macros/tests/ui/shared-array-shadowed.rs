use preempt_device::prelude::*;

const N: usize = 4;

mod wide {
    pub const N: usize = 64;
}

#[preemptible]
fn by_a_constant() {
    const N: usize = 64;
    let _tile = shared_array![u32; N];
}

#[preemptible]
fn by_nothing_outside() {
    const M: usize = 64;
    struct Cell(#[allow(dead_code)] u32);
    let _tile = shared_array![[Cell; 2]; 2 * M];
}

#[preemptible]
fn by_an_import() {
    use wide::N;
    let _also = [0; N];
    let _tile = shared_array![u32; N];
}

#[preemptible]
fn by_what_a_glob_brings() {
    use wide::*;
    let _tile = shared_array![u32; N];
}

fn main() {}
