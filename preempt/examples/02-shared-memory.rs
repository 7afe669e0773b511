//! A block's threads work together, through shared memory and barriers.

use preempt::prelude::*;

const THREADS: usize = 64;

/// `sums[b]` is the sum of the elements of block `b`. In each round half as many threads add.
#[preemptible(block = 64)]
fn sums(x: &[u32], sums: SliceMut<u32>) {
    let partial = shared_array![u32; THREADS];
    let (i, t) = (thread::index_1d() as usize, thread::thread_idx_x() as usize);
    // SAFETY: each thread writes its own element, and reads others' behind a barrier.
    unsafe { partial.add(t).write(if i < x.len() { x[i] } else { 0 }) };
    thread::sync_threads();
    let mut half = THREADS / 2;
    while half > 0 {
        if t < half {
            // SAFETY: as above; the upper half is not written in this round.
            unsafe { *partial.add(t) += *partial.add(t + half) };
        }
        // All threads of the block meet here, those that add nothing too.
        thread::sync_threads();
        half /= 2;
    }
    if t == 0 {
        // SAFETY: one thread of each block writes the block's element.
        unsafe { sums.write(thread::block_idx_x() as usize, *partial) };
    }
}

fn main() -> Result<(), preempt::Error> {
    let scheduler = Scheduler::builder().device(Device::cpu()?).build()?;
    let stream = scheduler.stream(0);

    let host: Vec<u32> = (0..1000).collect();
    let blocks = host.len().div_ceil(THREADS);
    let x = scheduler.buffer(&host)?;
    let mut out = scheduler.zeroed::<u32>(blocks)?;
    stream.launch(sums(&x, &mut out).grid(blocks as u32))?.wait()?;

    let of_blocks = stream.download(&out)?.wait()?;
    assert!(
        of_blocks.iter().copied().eq(host.chunks(THREADS).map(|block| block.iter().sum::<u32>()))
    );
    println!("{blocks} sums, {} in all", of_blocks.iter().sum::<u32>());
    Ok(())
}
