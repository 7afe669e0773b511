//! Memory of the device: whole buffers, ranges of them, and copies.

use preempt::prelude::*;

#[preemptible(block = 32)]
fn add(n: u32, x: &[u32], out: PerThread<u32>) {
    if let Some(own) = out.own() {
        own.set(x[own.index()] + n);
    }
}

fn main() -> Result<(), preempt::Error> {
    let scheduler = Scheduler::builder().device(Device::cpu()?).build()?;
    let (first, second) = (scheduler.stream(0), scheduler.stream(0));

    let mut x = scheduler.zeroed::<u32>(100)?;
    let mut y = scheduler.zeroed::<u32>(100)?;
    // An upload takes a `Vec` as it is. Of a slice it makes a copy first, because it may run after this call.
    first.upload((0..100).collect::<Vec<u32>>(), &mut x)?.detach();
    // Ranges that do not overlap: these launches may run at the same time. Both wait for the upload, on either stream.
    first.launch(add(1, x.slice(..50)?, y.slice_mut(..50)?).threads(50))?.detach();
    second.launch(add(2, x.slice(50..)?, y.slice_mut(50..)?).threads(50))?.detach();
    // This copy waits for both.
    let sums = first.download(&y)?.wait()?;
    assert!(sums.iter().copied().eq((0..50).map(|i| i + 1).chain((50..100).map(|i| i + 2))));

    // In a scope, copies read and write memory that the host lends.
    let host = [7; 100];
    let mut back = [0; 100];
    scheduler.scope(|scope| {
        scope.upload(&first, &host, &mut x)?.detach();
        first.copy_buffer(&x, &mut y)?.detach();
        scope.download_into(&first, &y, &mut back)?.wait()
    })?;
    assert_eq!(back, host);
    println!("{} elements went up, across and down", back.len());
    Ok(())
}
