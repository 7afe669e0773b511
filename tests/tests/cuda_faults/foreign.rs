//! Kernels of other compilers, on the fake driver.

use preempt::ptx::Options;
use preempt::{Buffer, Call, Device, ForeignKernel, Preemption, Scheduler};
use preempt_test_kernels as kernels;

use crate::device_code;
use crate::workloads::{Found, THREADS};

const TEXT: &str = include_str!("foreign.ptx");

/// Block-tasks, and nanoseconds of each.
const TASKS: u32 = 200;
const TIME: u64 = 100_000;

fn paced(kernel: ForeignKernel, [counts, writes]: &mut [Buffer<u32>; 2]) -> Call<'static> {
    let [a, b] = [counts.len(), writes.len()].map(|len| len as u64);
    // SAFETY: these are the parameters, and both buffers have the lengths that come with them.
    let call = unsafe { kernel.call() }.value(TIME).write(counts).value(a).write(writes).value(b);
    call.block(THREADS).grid(TASKS)
}

fn count(kernel: ForeignKernel, [counts, writes]: &mut [Buffer<u32>; 2]) -> Call<'static> {
    let [a, b] = [counts.len(), writes.len()].map(|len| len as u64);
    // SAFETY: as above.
    let call = unsafe { kernel.call() }.write(counts).value(a).write(writes).value(b);
    call.block(THREADS).grid(TASKS)
}

/// Interrupted, refused and in programs: each block-task runs once. No module is loaded beside a kernel.
pub fn run(device: &Device, found: &mut Found) {
    let builder = Scheduler::builder().device(device.clone()).preemption(Preemption::Preemptible);
    let builder = builder.kernels(device_code::module()).ptx("text", TEXT);
    let builder = builder.ptx_with("long", TEXT, Options::default().yields(true));
    let Some(scheduler) = found.take(builder.build()) else { return };
    let (batch, urgent) = (scheduler.stream(0), scheduler.stream(1));
    let mut foreign = |entry| found.take(scheduler.foreign("text", entry));
    let [Some(accepted), Some(refused)] =
        ["foreign_paced_1d", "foreign_count_1d"].map(&mut foreign)
    else {
        return;
    };
    found.expect(accepted.is_preemptible() && !refused.is_preemptible(), || {
        format!("{accepted:?}, {refused:?}")
    });
    let lens = [TASKS, TASKS * THREADS].map(|len| len as usize);
    let buffers = lens.map(|len| found.take(scheduler.zeroed::<u32>(len)));
    let [Some(counts), Some(writes)] = buffers else { return };
    let mut buffers = [counts, writes];
    let buffers_of_tick = [4, 4 * THREADS as usize].map(|len| scheduler.zeroed::<u32>(len).ok());
    let [Some(mut ticks), Some(mut tick_writes)] = buffers_of_tick else { return };
    let mut tick = || {
        let call = kernels::count_1d(&mut ticks, &mut tick_writes).grid(4).block(THREADS);
        urgent.launch(call).and_then(|handle| handle.wait())
    };
    let (mut expected, mut yields) = (0, 0);
    while yields == 0 && expected < 20 {
        let launched = batch.launch(paced(accepted, &mut buffers));
        let Some(handle) = found.take(launched) else { return };
        for _ in 0..3 {
            found.take(tick());
        }
        let Some(report) = found.take(handle.wait()) else { return };
        found.expect(!report.plain && report.tasks == TASKS, || format!("{report:?}"));
        expected += 1;
        yields += report.yields;
    }
    found.expect(yields > 0, || format!("no yield in {expected} launches"));
    let launched = batch.launch(count(refused, &mut buffers)).and_then(|handle| handle.wait());
    let Some(report) = found.take(launched) else { return };
    found.expect(report.plain && report.tasks == TASKS, || format!("{report:?}"));
    expected += 1;

    for preemption in [Preemption::Preemptible, Preemption::Plain] {
        let program = batch.program("both", |program| {
            program.preemption(preemption);
            program.launch(paced(accepted, &mut buffers))?;
            // Two in a row behind the first one are one graph.
            program.launch(paced(accepted, &mut buffers))?;
            program.launch(paced(accepted, &mut buffers))?;
            program.launch(count(refused, &mut buffers)).map(drop)
        });
        let Some(program) = found.take(program) else { return };
        let Some(handle) = found.take(program.launch()) else { return };
        found.take(tick());
        let Some(report) = found.take(handle.wait()) else { return };
        found.expect(report.tasks == 4 * TASKS, || format!("{preemption:?}: {report:?}"));
        expected += 4;
    }

    let Some(handle) = found.take(batch.launch(paced(accepted, &mut buffers))) else { return };
    let Some(late) = found.take(scheduler.foreign("text", "foreign_late_1d")) else { return };
    found.expect(handle.is_done(), || "a module was loaded beside a kernel".into());
    found.take(handle.wait());
    let launched = batch.launch(paced(late, &mut buffers)).and_then(|handle| handle.wait());
    found.take(launched);
    expected += 2;
    // In the form with yield points, which is in the same module.
    let Some(long) = found.take(scheduler.foreign("long", "foreign_long_1d")) else { return };
    found.expect(long.yield_points() == 1, || format!("{long:?}: {:?}", long.droppable()));
    for launch in 0..3 {
        let Some(handle) = found.take(batch.launch(paced(long, &mut buffers))) else { return };
        found.take(tick());
        let Some(report) = found.take(handle.wait()) else { return };
        found.expect(!report.plain && report.tasks == TASKS, || format!("{launch}: {report:?}"));
        expected += 1;
    }
    for buffer in &buffers {
        let counted = batch.download(buffer).and_then(|copy| copy.wait());
        let Some(counted) = found.take(counted) else { return };
        let wrong = counted.iter().position(|&count| count != expected);
        found.expect(wrong.is_none(), || format!("{expected}: {:?}", wrong.map(|at| counted[at])));
    }
    let plain = accepted.plain();
    let report = batch.launch(paced(plain, &mut buffers)).and_then(|handle| handle.wait());
    let Some(report) = found.take(report) else { return };
    found.expect(report.plain, || format!("{report:?}"));
}
