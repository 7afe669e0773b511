//! Programs whose calls fail, that are changed, and that are dropped beside a kernel.

use std::ffi::c_void;

use cudarc::driver::sys;
use preempt::{Device, Opaque, Preemption, RawStream, SignalPath, Stream, faults};
use preempt_test_kernels as kernels;

use crate::fake;
use crate::workloads::{Found, Run, THREADS, first_difference, start};

/// Kernels in a row in a program.
const ROW: u32 = 5;

/// Has a stream fill memory, which a library might do.
fn fill_in(
    stream: RawStream,
    address: u64,
    value: u32,
    len: usize,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    type Fill = unsafe extern "C" fn(u64, u32, usize, *mut c_void) -> u32;
    let stream = stream.as_raw().ok_or("no stream")?;
    let name = "cuMemsetD32Async";
    let is_fake = std::env::var(crate::CHILD).is_ok_and(|driver| driver == crate::FAKE);
    let code = match fake::find(name).filter(|_| is_fake) {
        // SAFETY: the function of this name has this signature.
        Some(fill) => unsafe {
            std::mem::transmute::<*const c_void, Fill>(fill)(address, value, len, stream)
        },
        // SAFETY: the stream is the scheduler's, and the memory a buffer's.
        None => unsafe { sys::cuMemsetD32Async(address, value, len, stream.cast()) as u32 },
    };
    if code == 0 { Ok(()) } else { Err(format!("{name}: {code}").into()) }
}

impl Run<'_> {
    /// A program with every kind of call, whose launches count, and one of which counts somewhere else from the second
    /// launch on.
    fn program(&mut self, stream: &Stream, seed: u32) -> Option<()> {
        let (before, tasks) = (self.found.errors, 4 + seed);
        let lens = [tasks as usize, (tasks * THREADS) as usize];
        let mut count = || {
            let [first, second] = lens.map(|len| self.scheduler.zeroed::<u32>(len));
            Some((self.found.take(first)?, self.found.take(second)?))
        };
        let ((mut counts, mut writes), (mut others, mut other_writes)) = (count()?, count()?);
        let (mut copied, mut filled) = count()?;
        let mut place = None;
        let form = [Preemption::Plain, Preemption::Preemptible][seed as usize % 2];
        let program = stream.program("counts", |program| {
            program.preemption(form);
            program.fill(&mut writes, 5 << 16 | 3)?;
            let call = kernels::count_1d(&mut counts, &mut writes).grid(tasks).block(THREADS);
            place = Some(program.launch(call)?);
            program.copy_buffer(&counts, &mut copied)?;
            let (address, len) = (filled.address(), filled.len());
            program.capture(Opaque::new("a fill").writes(&mut filled), move |raw| {
                fill_in(raw, address, 7 + seed, len)
            })?;
            // A row of kernels, which a GPU takes together.
            for _ in 0..ROW {
                let call = kernels::count_1d(&mut counts, &mut writes).grid(tasks).block(THREADS);
                program.launch(call)?;
            }
            Ok(())
        });
        let mut program = self.found.take(program)?;
        let first = program.launch();
        let call = kernels::count_1d(&mut others, &mut other_writes).grid(tasks).block(THREADS);
        self.found.take(program.set(place?, call))?;
        let handles = [first, program.launch(), program.launch()];
        // Its launches are under way.
        drop(program);
        for handle in handles {
            if let Some(report) = self.found.take(handle.and_then(|handle| handle.wait())) {
                self.found.expect(report.tasks == (1 + ROW) * tasks, || format!("{report:?}"));
            }
        }
        let expected = [
            (&counts, 1 + 3 * ROW),
            (&writes, (5 << 16) | (3 + ROW)),
            (&others, 2),
            (&copied, 1 + 2 * ROW),
            (&filled, 7 + seed),
        ];
        for (buffer, count) in expected {
            let found = stream.download(buffer).and_then(|copy| copy.wait());
            let found = self.found.take(found).filter(|_| self.found.errors == before);
            if let Some(values) = found {
                let difference = first_difference(&values, &vec![count; buffer.len()]);
                self.found.expect(difference.is_none(), || format!("a program: {difference:?}"));
            }
        }
        // At once: what is still under way would be written into the next owner's memory.
        drop((counts, writes, others, other_writes, copied));
        if self.found.errors > before {
            lens.into_iter().for_each(|len| self.canary(len));
        }
        Some(())
    }
}

/// Programs that are launched, changed and dropped beside a kernel that runs.
pub fn changed(device: &Device, found: &mut Found) {
    for path in [SignalPath::StreamWrite, SignalPath::Proxy, SignalPath::Auto] {
        let Some(mut run) = start(device, path, found) else { continue };
        let streams = [0, 1].map(|priority| run.scheduler.stream(priority));
        let victim = run.victim(&streams[0], 200_000);
        for seed in 0..4 {
            run.program(&streams[1], seed);
        }
        run.check_victim(victim, &streams[0]);
        run.check_canaries();
    }
}

/// A preemptible program of many kernels in a row, and a plain one of a single kernel, on the fake driver: few calls of the
/// driver.
pub fn chains(device: &Device, found: &mut Found) {
    let Some(run) = start(device, SignalPath::StreamWrite, found) else { return };
    let Run { scheduler, found, .. } = run;
    let stream = scheduler.stream(0);
    let calls = |names: &[&str]| {
        let all = faults::calls().into_iter().filter(|(name, _)| names.contains(name));
        all.map(|(_, calls)| calls).sum::<u64>()
    };
    let lens = [4, 4 * THREADS as usize];
    let [Some(mut counts), Some(mut writes)] =
        lens.map(|len| found.take(scheduler.zeroed::<u32>(len)))
    else {
        return;
    };
    let program = stream.program("a row", |program| {
        program.preemption(Preemption::Preemptible);
        for _ in 0..60 {
            let call = kernels::count_1d(&mut counts, &mut writes).grid(4).block(THREADS);
            program.launch(call)?;
        }
        Ok(())
    });
    let Some(program) = found.take(program) else { return };
    let before = [calls(&["cuGraphLaunch"]), calls(&["cuLaunchKernel", "cuLaunchKernelEx"])];
    for _ in 0..20 {
        if let Some(report) = found.take(program.launch().and_then(|handle| handle.wait())) {
            found.expect(report.tasks == 240, || format!("{report:?}"));
        }
    }
    let graphs = calls(&["cuGraphLaunch"]) - before[0];
    let launches = calls(&["cuLaunchKernel", "cuLaunchKernelEx"]) - before[1];
    // Two chains, of 31 and 28. What ends before the next is queued behind it is launched by itself.
    found.expect(graphs >= 20, || format!("{graphs} graphs were launched"));
    found.expect(launches + 27 * graphs <= 20 * 60, || format!("{launches} launches, {graphs}"));
    let counted = stream.download(&counts).and_then(|copy| copy.wait());
    if let Some(counted) = found.take(counted) {
        found.expect(counted == [20 * 60; 4], || format!("a row: {counted:?}"));
    }
    let program = stream.program("one kernel", |program| {
        program.preemption(Preemption::Plain);
        let call = kernels::count_1d(&mut counts, &mut writes).grid(4).block(THREADS);
        program.launch(call).map(drop)
    });
    let Some(program) = found.take(program) else { return };
    let before = calls(&["cuGraphLaunch"]);
    found.take(program.launch().and_then(|handle| handle.wait()));
    let graphs = calls(&["cuGraphLaunch"]) - before;
    found.expect(graphs == 0, || "a program of one kernel is launched as a graph".into());
    let counted = stream.download(&counts).and_then(|copy| copy.wait());
    if let Some(counted) = found.take(counted) {
        found.expect(counted == [20 * 60 + 1; 4], || format!("one kernel: {counted:?}"));
    }
}

/// Programs that are dropped beside a kernel, until the thread that makes another one destroys their graphs. A turn destroys
/// none, because the driver would wait for the kernel.
pub fn unused_graphs(device: &Device, found: &mut Found) {
    // More than are kept.
    const PROGRAMS: u32 = 70;
    let Some(mut run) = start(device, SignalPath::StreamWrite, found) else { return };
    let lens = [4, 4 * THREADS as usize];
    let [Some(mut counts), Some(mut writes)] =
        lens.map(|len| run.found.take(run.scheduler.zeroed::<u32>(len)))
    else {
        return;
    };
    let [stream, other] = [0, 1].map(|priority| run.scheduler.stream(priority));
    let mut make = || {
        stream.program("short-lived", |program| {
            program.preemption(Preemption::Plain);
            let call = kernels::count_1d(&mut counts, &mut writes).grid(4).block(THREADS);
            program.launch(call.clone())?;
            program.launch(call).map(drop)
        })
    };
    let programs: Vec<_> = (0..PROGRAMS).filter_map(|_| run.found.take(make())).collect();
    let victim = run.victim_of(1, &other, 200_000_000);
    let destroyed = |calls: Vec<(&str, u64)>| {
        let calls = calls.into_iter().filter(|(name, _)| *name == "cuGraphExecDestroy");
        calls.map(|(_, made)| made).sum::<u64>()
    };
    let all = || destroyed(faults::calls());
    let before = all();
    let Some(mut buffer) = run.found.take(run.scheduler.zeroed::<u32>(100)) else { return };
    for program in programs {
        drop(program);
        run.found.take(stream.upload(vec![7; 100], &mut buffer).and_then(|copy| copy.wait()));
    }
    let is_over = victim.as_ref().is_none_or(|victim| victim.handle.is_done());
    run.found.expect(!is_over, || "the kernel was to run until now".into());
    run.found.expect(all() == before, || "a turn destroys graphs beside a kernel".into());
    let here = destroyed(faults::calls_here());
    let last = run.found.take(make());
    let by_this_thread = destroyed(faults::calls_here()) - here;
    run.found.expect(by_this_thread == u64::from(PROGRAMS), || {
        format!("the thread that makes a program destroys {by_this_thread} graphs")
    });
    run.check_victim(victim, &other);
    drop(last);
}
