//! Jobs two at a time, where two together take less time than one after the other: a plan, and its execution.

use preempt::coschedule::{CoSchedule, Job, Sharing, Speeds};
use preempt::prelude::*;

#[preemptible(block = 32)]
fn work(out: PerThread<u32>) {
    let Some(own) = out.own() else { return };
    own.set((0..200).fold(own.index() as u32, |x, _| x.wrapping_mul(1_664_525).wrapping_add(1)));
}

fn main() -> Result<(), preempt::Error> {
    // Beside another job, a job has half of the SMs, and this part of its speed alone.
    let speeds = [[1.0, 0.8, 0.6], [0.7, 1.0, 0.6], [0.6, 0.5, 1.0]];
    let speeds = Speeds::from_fn(Sharing::split(1, 2), 3, |job, beside| speeds[job][beside])?;
    let jobs = [Job::new("sort", 0.004), Job::new("blur", 0.003), Job::new("sum", 0.002)];
    let plan = CoSchedule::plan(&jobs, &speeds)?;
    let alone: f64 = jobs.iter().map(|job| job.seconds).sum();
    println!("{plan}");
    assert!(plan.makespan() < alone, "jobs gain by each other");

    // The plan is a policy. Streams are bound to its jobs.
    let execution = plan.execution();
    let device = Device::cpu_with(preempt::CpuLayout::sms(4))?;
    let scheduler = Scheduler::builder().device(device).policy(execution.clone()).build()?;
    let mut outs = Vec::new();
    for job in 0..jobs.len() {
        let (stream, mut out) = (scheduler.stream(0), scheduler.zeroed::<u32>(32_000)?);
        execution.bind(job, stream.id())?;
        stream.launch(work(&mut out).threads(32_000))?.detach();
        outs.push(stream.download(&out)?);
    }
    for out in outs {
        assert_eq!(out.wait()?.len(), 32_000);
    }
    println!("{}", execution.executed());
    Ok(())
}
