//! Block-tasks that take long give their SM away in their midst: at a yield point, and at a checkpoint.

use preempt::prelude::*;

const ROUNDS: u32 = 50_000;

/// A block-task that is stopped at the yield point runs again from its start. It may, because it reads nothing that it writes.
#[preemptible(block = 32)]
fn again(seeds: &[u32], out: PerThread<u32>) {
    let Some(own) = out.own() else { return };
    let mut x = seeds[own.index()];
    for _ in 0..ROUNDS {
        yield_point!();
        x = x.wrapping_mul(1_664_525).wrapping_add(1);
    }
    own.set(x);
}

/// A block-task that is stopped at the checkpoint goes on from there. Its state is saved, which is `x` and the number of the
/// round. All threads of a block come to a checkpoint, so none returns before.
#[preemptible(block = 32)]
fn goes_on(seeds: &[u32], out: PerThread<u32>) {
    let i = thread::index_1d() as usize;
    checkpoint!(x: u32 = if i < seeds.len() { seeds[i] } else { 0 } => for _round in 0..ROUNDS {
        x = x.wrapping_mul(1_664_525).wrapping_add(1);
    });
    if let Some(own) = out.own() {
        own.set(x);
    }
}

#[preemptible(block = 32)]
fn urgent(out: PerThread<u32>) {
    if let Some(own) = out.own() {
        own.set(7);
    }
}

fn main() -> Result<(), preempt::Error> {
    // Two SMs, which either kernel fills.
    let device = Device::cpu_with(preempt::CpuLayout::sms(2))?;
    let scheduler = Scheduler::builder().device(device).build()?;
    let (batch, service) = (scheduler.stream(0), scheduler.stream(10));

    let host: Vec<u32> = (0..256).collect();
    let seeds = scheduler.buffer(&host)?;
    let rounds =
        |seed| (0..ROUNDS).fold(seed, |x: u32, _| x.wrapping_mul(1_664_525).wrapping_add(1));
    let expected: Vec<_> = host.iter().copied().map(rounds).collect();
    let mut answer = scheduler.zeroed::<u32>(32)?;
    for name in ["again", "goes_on"] {
        let mut out = scheduler.zeroed::<u32>(host.len())?;
        let long = match name {
            "again" => batch.launch(again(&seeds, &mut out).threads(256))?,
            _ => batch.launch(goes_on(&seeds, &mut out).threads(256))?,
        };
        for _ in 0..3 {
            service.launch(urgent(&mut answer).threads(32))?.wait()?;
        }
        let report = long.wait()?;
        assert_eq!(batch.download(&out)?.wait()?, expected);
        println!("`{name}` was interrupted {} times, and each result is right", report.yields);
    }
    Ok(())
}
