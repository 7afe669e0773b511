//! A kernel, buffers, and a launch that is waited for.

use preempt::prelude::*;

/// `y[i] = a * x[i] + y[i]`. It is written for one thread, which has one element.
#[preemptible(block = 128)]
fn saxpy(a: f32, x: &[f32], y: PerThread<f32>) {
    // The last block may have more threads than there are elements left.
    if let Some(own) = y.own() {
        own.set(a * x[own.index()] + own.get());
    }
}

fn main() -> Result<(), preempt::Error> {
    let scheduler = Scheduler::builder().device(Device::cpu()?).build()?;
    let stream = scheduler.stream(0);

    let x = scheduler.buffer(&[1.0_f32; 1000])?;
    let mut y = scheduler.buffer(&[2.0_f32; 1000])?;
    // The call keeps its buffers, and borrows nothing. The handle stands for the launch.
    let handle = stream.launch(saxpy(3.0, &x, &mut y).threads(1000))?;
    let report = handle.wait()?;
    // A copy runs behind the launch, which wrote what it reads.
    assert_eq!(stream.download(&y)?.wait()?, vec![5.0; 1000]);

    println!("{} block-tasks of 128 threads in {:?}", report.tasks, report.running());
    Ok(())
}
