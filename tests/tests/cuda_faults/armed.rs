//! Armed programs, whose gates are kernels of the driver's.

use std::time::Duration;

use preempt::{Device, Preemption, Scheduler, faults};
use preempt_test_kernels as kernels;

use crate::device_code;
use crate::workloads::{Found, Run, THREADS};

const ROUNDS: u32 = 12;
const TASKS: u32 = 4;

/// A program that is armed and launched, in time and too late, beside a victim; whether this thread opened a gate.
pub fn run(device: &Device, found: &mut Found) -> bool {
    let limit = Duration::from_millis(20);
    let builder = Scheduler::builder().device(device.clone()).armed_for(limit);
    let builder = builder.preemption(Preemption::Preemptible).kernels(device_code::module());
    let Some(scheduler) = found.take(builder.build()) else { return false };
    let mut run = Run::new(scheduler, found);
    let streams = [0, 1].map(|priority| run.scheduler.stream(priority));
    let victim = run.victim(&streams[0], 400_000);
    let began_armed = launches(&mut run, &streams[1]).unwrap_or_default();
    run.check_victim(victim, &streams[0]);
    began_armed
}

fn launches(run: &mut Run<'_>, stream: &preempt::Stream) -> Option<bool> {
    let lens = [TASKS as usize, (TASKS * THREADS) as usize];
    let [counts, writes] = lens.map(|len| run.found.take(run.scheduler.zeroed::<u32>(len)));
    let (mut counts, mut writes) = (counts?, writes?);
    let program = stream.program("armed", |program| {
        for _ in 0..2 {
            let call = kernels::count_1d(&mut counts, &mut writes).grid(TASKS).block(THREADS);
            program.launch(call)?;
        }
        Ok(())
    });
    let program = run.found.take(program)?;
    let idle = run.scheduler.stream(0);
    let (mut launched, mut opened) = (0, 0);
    for round in 0..ROUNDS {
        run.found.take(program.arm())?;
        // With its gate, or at once, or after it has left.
        let waits = [2, 0, 30][round as usize % 3];
        if waits > 0 {
            std::thread::sleep(Duration::from_millis(waits));
            // A launch takes in what was submitted before it: now the core knows all of it.
            run.found.take(idle.synchronize());
        }
        let before = faults::calls_of_thread();
        let handle = run.found.take(program.launch())?;
        // None where no gate was there yet: then a thread whose turn puts it opens it, this one or another.
        let calls = faults::calls_before_gate(before).and_then(|calls| calls.checked_sub(before));
        let report = run.found.take(handle.wait())?;
        // Where a call has failed, there may be news of it, which a launch takes in before.
        let is_quiet = waits > 0 && faults::failures() == 0;
        if let Some(calls) = calls.filter(|_| report.armed && is_quiet) {
            run.found.expect(calls == 0, || format!("{calls} calls before the gate opens"));
            opened += 1;
        }
        launched += 1;
        run.found.expect(report.tasks == 2 * TASKS, || format!("{report:?}"));
    }
    let counted = run.found.take(stream.download(&counts).and_then(|copy| copy.wait()))?;
    let is_right = counted == [2 * launched; TASKS as usize];
    run.found.expect(is_right, || format!("after {launched} launches: {counted:?}"));
    Some(opened > 0)
}
