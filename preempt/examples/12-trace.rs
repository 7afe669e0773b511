//! A timeline of which launch had which SMs, for Perfetto.

use std::path::PathBuf;

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
fn short(out: PerThread<u32>) {
    if let Some(own) = out.own() {
        own.set(1);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::cpu_with(preempt::CpuLayout::sms(4))?;
    // Of the last 10,000 entries.
    let scheduler = Scheduler::builder().device(device).trace(10_000).build()?;
    let (batch, urgent) = (scheduler.stream(0), scheduler.stream(10));
    let mut out = scheduler.zeroed::<u32>(4096)?;
    let mut answer = scheduler.zeroed::<u32>(64)?;
    let batch = batch.launch(long(&mut out).threads(4096))?;
    for _ in 0..5 {
        urgent.launch(short(&mut answer).threads(64))?.wait()?;
    }
    batch.wait()?;

    // `cargo run --example 12-trace -- trace.json` keeps the file.
    let kept = std::env::args().nth(1).map(PathBuf::from);
    let name = format!("preempt-{}.json", std::process::id());
    let path = kept.clone().unwrap_or_else(|| std::env::temp_dir().join(name));
    scheduler.write_trace(&path)?;
    let trace = std::fs::read_to_string(&path)?;
    assert!(trace.contains("long") && trace.contains("short"));
    println!("{}: {} bytes, for https://ui.perfetto.dev", path.display(), trace.len());
    if kept.is_none() {
        std::fs::remove_file(path)?;
    }
    Ok(())
}
