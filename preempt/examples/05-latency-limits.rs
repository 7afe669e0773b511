//! A latency limit: blocks that are nearly done end their work, and others leave.

use std::time::Duration;

use preempt::prelude::*;

#[preemptible(block = 32)]
fn long(out: PerThread<u32>) {
    let Some(own) = out.own() else { return };
    let mut x = own.index() as u32;
    for _ in 0..5_000 {
        yield_point!();
        x = x.wrapping_mul(1_664_525).wrapping_add(1);
    }
    own.set(x);
}

#[preemptible(block = 32)]
fn control(out: PerThread<u32>) {
    if let Some(own) = out.own() {
        own.set(1);
    }
}

fn main() -> Result<(), preempt::Error> {
    let device = Device::cpu_with(preempt::CpuLayout::sms(2))?;
    let scheduler = Scheduler::builder().device(device).build()?;
    let (batch, urgent) = (scheduler.stream(0), scheduler.stream(10));
    // Without it, blocks leave at their next yield point, and what their block-task did until then is lost. With it, blocks
    // whose rest would take longer do so, and all of them as long as no block-task's time is known.
    urgent.set_latency_limit(Some(Duration::from_millis(50)));

    let mut out = scheduler.zeroed::<u32>(8192)?;
    let mut command = scheduler.zeroed::<u32>(32)?;
    let batch = batch.launch(long(&mut out).threads(8192))?;
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(3));
        urgent.launch(control(&mut command).threads(32))?.wait()?;
    }
    assert_eq!(batch.wait()?.tasks, 256);

    let stops = scheduler.stats().stops;
    println!("{} stops, {} of them longer than the limit", stops.count, stops.violations);
    println!("{} blocks ended their block-task, {} dropped it", stops.drained, stops.requeued);
    Ok(())
}
