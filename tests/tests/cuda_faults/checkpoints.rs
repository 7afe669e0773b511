//! Block-tasks that blocks leave at checkpoints, in the device's memory.

use preempt::error::{ConfigurationError, LaunchError};
use preempt::policy::StaticPriority;
use preempt::{Buffer, Device, Error, Preemption, Scheduler, SchedulerBuilder, Stream};
use preempt_test_kernels as kernels;

use crate::device_code;
use crate::workloads::{Found, Run};

const THREADS: u32 = 256;

fn builder(device: &Device) -> SchedulerBuilder {
    let builder = Scheduler::builder().device(device.clone());
    let builder = builder.policy(StaticPriority::whole_device());
    builder.preemption(Preemption::Preemptible).kernels(device_code::module())
}

/// What the kernel with a checkpoint writes: ends and starts of block-tasks, rounds of threads.
struct Counts {
    ends: Buffer<u32>,
    starts: Buffer<u32>,
    done: Buffer<u32>,
}

/// Launches with small urgent ones among them; whether block-tasks were left, and others went on with them.
pub fn run(device: &Device, found: &mut Found) -> bool {
    let mut switches = 0;
    // The memory is enough for all, for few, and none.
    for mebibytes in [8, 1, 0] {
        let built = builder(device).checkpoint_memory(mebibytes).build();
        let Some(scheduler) = found.take(built) else { return false };
        let mut run = Run::new(scheduler, found);
        let streams = [0, 1].map(|priority| run.scheduler.stream(priority));
        for is_cancelled in [false, true, true, false] {
            let of_launch = launch(&mut run, &streams, is_cancelled).unwrap_or_default();
            run.found.expect(mebibytes > 0 || of_launch == 0, || "left in no memory".into());
            switches += of_launch;
        }
    }
    switches > 0
}

/// A launch with urgent ones until it is over, or is cancelled; how often block-tasks were left.
fn launch(run: &mut Run<'_>, [stream, urgent]: &[Stream; 2], is_cancelled: bool) -> Option<u32> {
    let is_fake = std::env::var(crate::CHILD).is_ok_and(|driver| driver == crate::FAKE);
    let rounds = if is_fake { 10 } else { 20_000 };
    let tasks = 16 * run.scheduler.device().properties().sms;
    let lens = [tasks, tasks, tasks * THREADS, tasks * THREADS, 1, 32];
    let buffers = lens.map(|len| run.found.take(run.scheduler.zeroed::<u32>(len as usize)));
    let [ends, starts, out, done, ticks, writes] = buffers;
    let mut counts = Counts { ends: ends?, starts: starts?, done: done? };
    let (mut out, mut ticks, mut writes) = (out?, ticks?, writes?);
    let Counts { ends, starts, done } = &mut counts;
    let call = kernels::rotate_saving(ends, starts, rounds, &mut out, done);
    let launch = run.found.take(stream.launch(call.grid(tasks)))?;
    for _ in 0..3 {
        let call = kernels::count_1d(&mut ticks, &mut writes).grid(1).block(32);
        run.found.take(urgent.launch(call).and_then(|handle| handle.wait()));
    }
    if is_cancelled {
        launch.cancel();
    }
    let finished = match launch.wait() {
        Err(Error::Launch(LaunchError::Cancelled { done, .. })) if is_cancelled => done,
        result => run.found.take(result)?.tasks,
    };
    let download = |run: &mut Run<'_>, buffer| {
        run.found.take(stream.download(buffer).and_then(|copy| copy.wait()))
    };
    let ends = download(run, &counts.ends)?;
    let is_once = ends.iter().all(|&end| end <= 1) && ends.iter().sum::<u32>() == finished;
    run.found.expect(is_once, || format!("{finished} ended: {ends:?}"));
    let starts = download(run, &counts.starts)?;
    let done = download(run, &counts.done)?;
    for (task, done) in done.chunks(THREADS as usize).enumerate() {
        let is_right = done.iter().all(|&done| {
            done <= rounds && (ends[task] == 0 || done == rounds) && (starts[task] > 0 || done == 0)
        });
        run.found.expect(is_right, || format!("block-task {task}: {done:?} of {rounds} rounds"));
    }
    Some(starts.iter().map(|starts| starts.saturating_sub(1)).sum())
}

/// A kernel whose block-tasks are larger than what a launch has for them is refused.
pub fn refused(device: &Device, found: &mut Found) {
    for (mebibytes, is_refused) in [(1, true), (2, false), (0, false), (256, false), (1, true)] {
        let built = builder(device).checkpoint_memory(mebibytes).build();
        let Some(scheduler) = found.take(built) else { return };
        let [Some(x), Some(mut out)] =
            [0, 1].map(|_| found.take(scheduler.zeroed::<u32>(THREADS as usize)))
        else {
            return;
        };
        let stream = scheduler.stream(0);
        // A program is checked, and launches nothing yet.
        let program = stream.program("large", |program| {
            program.launch(kernels::tables_saving(3, &x, &mut out).grid(1)).map(|_| ())
        });
        let refusal = match program {
            Err(Error::Configuration(
                error @ ConfigurationError::CheckpointMemory { bytes, limit, needed, .. },
            )) => {
                let text = error.to_string();
                let says = |number: u64| text.contains(&number.to_string());
                let is_right = (bytes, limit, needed) == (135_168, 130_560, 2);
                found.expect(is_right && says(bytes) && says(limit), || text.clone());
                true
            }
            Err(error) => {
                found.wrong.push(error.to_string());
                false
            }
            Ok(_) => false,
        };
        found.expect(refusal == is_refused, || format!("{mebibytes} MiB: refused {refusal}"));
    }
}
