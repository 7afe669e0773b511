//! Tasks of a service and of a batch job on two devices: where a user waits, batch work makes room.

use std::time::Duration;

use preempt::pool::{Class, Elastic, Pool, Task};
use preempt::prelude::*;

#[preemptible(block = 32)]
fn double(x: &[u32], out: PerThread<u32>) {
    if let Some(own) = out.own() {
        own.set(2 * x[own.index()]);
    }
}

/// A task is called with what it has of its device. It may be called again, on another one, so what it captures stays with it.
fn doubled(len: u32) -> Task<Vec<u32>> {
    Task::new("double", move |run| {
        let x = run.buffer(&(0..len).collect::<Vec<u32>>())?;
        let mut out = run.zeroed::<u32>(len as usize)?;
        run.launch(double(&x, &mut out).threads(len))?;
        run.download(&out)
    })
}

fn main() -> Result<(), preempt::Error> {
    // As many devices for the service as keep its answers within 20 ms, and the others for the batch job.
    let sla = Duration::from_millis(20);
    let builder = Pool::builder().device(Device::cpu()?).device(Device::cpu()?);
    let pool = builder.policy(Elastic::new(sla)).build()?;
    let [service, nightly] = [Class::UserFacing, Class::Batch].map(|class| pool.application(class));

    let job = doubled(100_000);
    let jobs: Vec<_> = (0..4).map(|_| nightly.submit(&job)).collect::<Result<_, _>>()?;
    let answer = service.submit(&doubled(3))?.wait()?;
    assert_eq!(answer, [0, 2, 4]);
    for job in jobs {
        assert_eq!(job.wait()?.last(), Some(&199_998));
    }
    println!("{:#?}", pool.stats());
    Ok(())
}
