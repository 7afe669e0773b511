//! A policy decides which launch has which SMs: here the one whose deadline comes first.

use std::time::Duration;

use preempt::policy::EarliestDeadline;
use preempt::prelude::*;

/// Some work: the sum of the numbers below `n`.
#[preemptible(block = 32)]
fn work(n: u32, out: PerThread<u32>) {
    let Some(own) = out.own() else { return };
    let mut sum = 0_u32;
    for i in 0..n {
        yield_point!();
        sum = sum.wrapping_add(i);
    }
    own.set(sum);
}

fn main() -> Result<(), preempt::Error> {
    let scheduler = Scheduler::builder()
        .device(Device::cpu_with(preempt::CpuLayout::sms(1))?)
        .policy(EarliestDeadline::new())
        .build()?;
    // The default policy goes by the priorities of streams. This one goes by the deadlines of launches.
    let due = [4000, 500].map(Duration::from_millis);
    let streams = due.map(|due| {
        let stream = scheduler.stream(0);
        stream.set_deadline(Some(due));
        stream
    });

    let [mut large, mut small] = [scheduler.zeroed::<u32>(256)?, scheduler.zeroed::<u32>(256)?];
    let handles = [
        streams[0].launch(work(100_000, &mut large).threads(256))?,
        streams[1].launch(work(10_000, &mut small).threads(256))?,
    ];
    let reports = [handles[0].wait()?, handles[1].wait()?];
    for (report, due) in reports.iter().zip(due) {
        println!("due after {due:?}, over after {:?}", report.turnaround());
    }
    // The launch that came second took the SM from the first one.
    assert!(reports[1].done < reports[0].done);
    Ok(())
}
