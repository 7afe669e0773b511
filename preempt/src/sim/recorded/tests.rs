//! Recordings of simulations and of the CPU device, played again.

use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};

use preempt_device::prelude::*;

use super::*;
use crate::policy::{Fifo, ShortestRemaining, StaticPriority};
use crate::predict::{Features, Predictor};
use crate::sim::{End, Results, Simulation};
use crate::{CpuLayout, Device, Preemption, Scheduler};

const MS: Duration = Duration::from_millis(1);

/// Launches of many sizes in streams of several priorities, each of which meets others.
fn mixed() -> Workload {
    let mut workload = Workload::new(7);
    for (index, priority) in [0, 2, 1, 2, 0].into_iter().enumerate() {
        let stream = workload.stream(priority);
        for turn in 0..6u32 {
            let number = index as u32 * 6 + turn;
            let tasks = [3, 1000, 17, 40][number as usize % 4];
            let kernel = KernelModel::new(format!("{number}"), (3 + 7 * number % 11) * MS, tasks);
            let kernel = kernel.blocks_per_sm(1 + number % 3);
            workload.launch(stream, &kernel, (number * 5 % 23) * MS + number * MS / 100);
        }
    }
    workload
}

fn recorded(workload: &Workload, machine: Machine) -> Results {
    let simulation = Simulation::new(machine, StaticPriority::new()).recording(true);
    simulation.run(workload).expect("results")
}

/// The kernels' names in the order in which launches are done.
fn order(results: &Results) -> Vec<&str> {
    assert!(results.policy_error.is_none(), "{:?}", results.policy_error);
    let mut launches: Vec<_> = results.launches.iter().collect();
    launches.sort_by_key(|launch| launch.done);
    launches.iter().map(|launch| launch.kernel.as_str()).collect()
}

/// Each launch ran once, and those of a stream in their order.
fn assert_is_valid(results: &Results, original: &Results, costs: Costs) {
    assert_eq!(results.launches.len(), original.launches.len());
    for (launch, original) in results.launches.iter().zip(&original.launches) {
        assert_eq!(launch.kernel, original.kernel);
        assert_eq!((launch.tasks, launch.end), (original.tasks, Some(End::Done)), "{launch:?}");
        // A recording has the time when the host took it in, between two calls at the latest.
        let Costs { call, decision, .. } = costs;
        assert!(launch.queued - original.queued <= 2 * (call + decision), "{launch:?}");
    }
    for (index, launch) in results.launches.iter().enumerate() {
        let later = results.launches[index + 1..].iter();
        let mut later = later.filter(|later| later.stream == launch.stream);
        assert!(later.all(|later| later.done >= launch.done), "{launch:?}");
    }
}

#[test]
fn the_same_policy_gives_the_same_order_and_times() {
    let machine = Machine::new(4, Costs::free());
    let original = recorded(&mixed(), machine);
    assert!(original.launches.iter().map(|launch| launch.yields).sum::<u32>() > 5);
    let recording = original.recording.as_ref().expect("asked for");
    let workload = Workload::from_recording(recording).expect("a workload");
    assert_eq!((workload.len(), workload.streams.len()), (30, 5));
    let again = recorded(&workload, machine);
    assert_is_valid(&again, &original, machine.costs);
    assert_eq!(order(&again), order(&original));
    for (launch, original) in again.launches.iter().zip(&original.launches) {
        let off = launch.done.abs_diff(original.done);
        assert!(off < Duration::from_micros(1), "{launch:?} {original:?}");
        assert_eq!((launch.priority, launch.yields), (original.priority, original.yields));
    }
}

#[test]
fn another_policy_gives_another_order_that_is_valid() {
    let machine = Machine::new(4, Costs::free());
    let original = recorded(&mixed(), machine);
    let recording = original.recording.as_ref().expect("asked for");
    assert!(!recording.replay(Fifo::new()).expect("a replay").is_identical());
    let workload = Workload::from_recording(recording).expect("a workload");
    let fifo = Simulation::new(machine, Fifo::new()).run(&workload).expect("results");
    let shortest = Simulation::new(machine, ShortestRemaining::new());
    let shortest = shortest.run(&workload).expect("results");
    for other in [&fifo, &shortest] {
        assert_is_valid(other, &original, machine.costs);
        assert_ne!(order(other), order(&original));
    }
    // And they are what these policies make of the workload that was recorded.
    let direct = Simulation::new(machine, Fifo::new()).run(&mixed()).expect("results");
    assert_eq!(order(&fifo), order(&direct));
}

#[test]
fn what_launching_costs_is_in_the_durations() {
    let machine = Machine::new(4, Costs::h200());
    let original = recorded(&mixed(), machine);
    let recording = original.recording.as_ref().expect("asked for");
    let workload = Workload::from_recording(recording).expect("a workload");
    let again = recorded(&workload, Machine::new(4, Costs::free()));
    assert_is_valid(&again, &original, machine.costs);
    assert_eq!(order(&again), order(&original));
}

static GO: AtomicBool = AtomicBool::new(false);

/// Writes when it may.
#[preemptible(block = 1)]
fn produce(out: SliceMut<u32>) {
    while !GO.load(Ordering::Relaxed) {
        hint::spin_loop();
    }
    // SAFETY: there is one thread.
    unsafe { out.write(0, 1) }
}

#[preemptible(block = 1)]
fn consume(x: &[u32], out: SliceMut<u32>) {
    // SAFETY: there is one thread.
    unsafe { out.write(0, x[0]) }
}

#[preemptible(block = 1)]
fn unrelated() {}

#[test]
fn buffers_events_and_priorities_of_a_real_run_count() -> Result<(), Error> {
    let scheduler = Scheduler::builder()
        .device(Device::cpu_with(CpuLayout::sms(1))?)
        .recording(true)
        .build()?;
    let (batch, urgent) = (scheduler.stream(0), scheduler.stream(5));
    let (mut x, mut y) = (scheduler.zeroed::<u32>(1)?, scheduler.zeroed::<u32>(1)?);
    let first = batch.launch(produce(&mut x).grid(1))?;
    // It waits for the buffer, although it is more urgent.
    let second = urgent.launch(consume(&x, &mut y).grid(1))?;
    let third = batch.launch(unrelated().grid(1))?;
    third.set_priority(9);
    let copied = urgent.download(&y)?;
    let cancelled = batch.launch(unrelated().grid(1))?;
    cancelled.cancel();
    let program = batch.program("cancelled", |program| {
        program.preemption(Preemption::Preemptible);
        program.launch(unrelated().grid(1)).map(drop)
    })?;
    let cancelled_program = program.launch()?;
    cancelled_program.cancel();
    GO.store(true, Ordering::Relaxed);
    first.wait()?;
    second.wait()?;
    third.wait()?;
    assert_eq!(copied.wait()?, [1]);
    assert!(cancelled.wait().is_err() && cancelled_program.wait().is_err());
    scheduler.synchronize()?;
    let recording = scheduler.recording().expect("asked for");
    let workload = Workload::from_recording(&recording)?;
    // The cancelled ones never ran, and the download is no launch.
    assert_eq!((recording.launches(), workload.len()), (5, 3));
    let results = Simulation::new(Machine::new(1, Costs::free()), StaticPriority::new());
    let results = results.run(&workload)?;
    let [first, second, third] = &results.launches[..] else { panic!("{results:?}") };
    assert!(second.started >= Some(first.done), "{results:?}");
    assert!(results.launches.iter().all(|launch| launch.end == Some(End::Done)), "{results:?}");
    assert_eq!((first.tasks, second.tasks, third.tasks), (1, 1, 1));
    assert_eq!((first.priority, second.priority), (Priority(0), Priority(5)));
    Ok(())
}

#[preemptible(block = 1)]
fn fails() {
    panic!("as intended");
}

/// Predicts a millisecond.
struct Says;

impl Predictor for Says {
    fn predict(&self, _: &Features<'_>) -> Option<Duration> {
        Some(MS)
    }
    fn finished(&mut self, _: &Features<'_>, _: Duration) {}
}

/// What is predicted is for launches that the policy did not admit.
#[test]
fn calls_behind_one_that_fails_never_ran() -> Result<(), Error> {
    let builder = Scheduler::builder().device(Device::cpu_with(CpuLayout::sms(1))?);
    let scheduler = builder.predictor(Says).recording(true).build()?;
    let stream = scheduler.stream(0);
    let mut x = scheduler.zeroed::<u32>(1)?;
    let program = stream.program("program", |program| {
        program.preemption(Preemption::Preemptible);
        program.launch(unrelated().grid(1))?;
        // Nothing is queued ahead of a copy.
        program.fill(&mut x, 1)?;
        program.launch(fails().grid(1))?;
        program.fill(&mut x, 2)?;
        program.launch(unrelated().grid(1)).map(drop)
    })?;
    assert!(program.launch()?.wait().is_err());
    scheduler.synchronize()?;
    let recording = scheduler.recording().expect("asked for");
    let workload = Workload::from_recording(&recording)?;
    let kernels = workload.jobs[0].calls().map(|(kernel, takes_time)| (&*kernel.name, takes_time));
    let (copy, last) = (("a copy", false), ("unrelated", false));
    let expected = [("unrelated", true), copy, ("fails", true), copy, last];
    assert_eq!(kernels.collect::<Vec<_>>(), expected);
    let results = Simulation::new(Machine::new(1, Costs::free()), StaticPriority::new());
    let results = results.run(&workload)?.launches;
    let [program] = &results[..] else { panic!("{results:?}") };
    let found = (&*program.kernel, program.tasks, program.alone, program.end);
    let ran = workload.jobs[0].calls().filter(|(_, takes_time)| *takes_time);
    let alone = ran.map(|(kernel, _)| kernel.duration).sum();
    assert_eq!(found, ("program", 2, alone, Some(End::Done)));
    // What takes no time is in no trace.
    let again = Workload::from_trace(&workload.trace())?;
    let names = again.jobs[0].model.kernels().iter().map(|kernel| &*kernel.name);
    assert_eq!(names.collect::<Vec<_>>(), ["unrelated", "fails"]);
    Ok(())
}

/// A preemptible program, which is interrupted, and a plain one, which is not: how long that works for others while it
/// has no SM is not known.
#[test]
fn programs_are_programs_again() {
    let machine = Machine::new(4, Costs::free());
    let kernel = |name, ms, tasks| KernelModel::new(name, ms * MS, tasks);
    let kernels = [kernel("a", 3, 1_000_000), kernel("b", 5, 700_000), kernel("c", 2, 4)];
    let mut workload = Workload::new(7);
    let [batch, plain, urgent] = [0, 2, 1].map(|priority| workload.stream(priority));
    workload.program(batch, "preemptible", &kernels, Duration::ZERO);
    workload.launch(batch, &kernel("behind", 1, 1000), Duration::ZERO);
    workload.program(plain, "plain", &kernels.map(|kernel| kernel.plain(true)), 6 * MS);
    workload.repeat(urgent, &kernel("urgent", 1, 1000), 2 * MS, 4 * MS, 20 * MS);
    let original = recorded(&workload, machine);
    let recording = original.recording.as_ref().expect("asked for");
    let workload = Workload::from_recording(recording).expect("a workload");
    assert_eq!(workload.len(), original.launches.len());
    let again = recorded(&workload, machine);
    assert_eq!(order(&again), order(&original));
    for (launch, original) in again.launches.iter().zip(&original.launches) {
        let off = launch.done.abs_diff(original.done);
        assert!(off < Duration::from_micros(1), "{launch:?} {original:?}");
        assert_eq!((launch.end, launch.yields), (original.end, original.yields));
        // Of a plain program, the widest kernel is known.
        let tasks = if launch.kernel == "plain" { 1_000_000 } else { original.tasks };
        assert_eq!((&launch.kernel, launch.tasks), (&original.kernel, tasks));
    }
    assert_eq!(again.launches[0].yields, 2);
}

#[test]
fn recordings_that_cannot_have_happened_are_refused() {
    let original = recorded(&mixed(), Machine::new(4, Costs::free()));
    let recording = original.recording.expect("asked for");
    let text = serde_json::to_string(&recording.0).expect("text");
    let refuse = |from: &str, to: &str| {
        let changed = text.replace(from, to);
        assert_ne!(changed, text);
        let changed = Recording(serde_json::from_str(&changed).expect("a recording"));
        Workload::from_recording(&changed).expect_err("it cannot have happened").to_string()
    };
    let error = refuse("\"sms\":4", "\"sms\":0");
    assert!(error.contains("not 0"), "{error}");
    let error = refuse("\"blocks_per_sm\":2", "\"blocks_per_sm\":0");
    assert!(error.contains("an SM holds 1 to"), "{error}");
    // An SM that no device has.
    let plans = text.replace("\"plans\":[[[", "\"plans\":[[[1,4000000000,4000000001],[");
    let changed = Recording(serde_json::from_str(&plans).expect("a recording"));
    Workload::from_recording(&changed).expect("launches that there are not are ignored");
}
