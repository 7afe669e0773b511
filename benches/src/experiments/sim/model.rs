//! Programs and costs as the simulator knows them.

use std::time::Duration;

use anyhow::Result;
use preempt::sim::{Costs, KernelModel};
use preempt::{Call, Handle, LaunchReport, Preemption, Timestamp};
use preempt_microkernels::empty;

use super::watch::Note;
use crate::experiments::corun::DeviceTestbed;
use crate::samples::Samples;

/// Launches of an empty kernel on an idle device, and streams of it.
const LAUNCHES: u32 = 200;
const STREAMS: u32 = 20;

/// Measured costs, from launches of an empty kernel and from the scheduler's own account of its decisions. `stop` is
/// for launches that have not yielded.
///
/// # Errors
///
/// Errors of the scheduler. Wrong reports go to the tally.
pub fn costs(testbed: &mut DeviceTestbed, is_gpu: bool) -> Result<Costs> {
    let stream = testbed.scheduler.stream(0);
    let call = || empty().grid(1).block(1).preemption(Preemption::Preemptible);
    let (mut launch, mut follow) = (Samples::default(), Samples::default());
    let mut take = |handle: Handle<LaunchReport>| -> Result<LaunchReport> {
        let report = handle.wait()?;
        testbed.tally.report(&report);
        testbed.tally.count("an empty kernel's report", &[report.tasks], &[1]);
        Ok(report)
    };
    for _ in 0..LAUNCHES {
        testbed.scheduler.synchronize()?;
        let report = take(stream.launch(call())?)?;
        launch.push(report.running());
    }
    for _ in 0..STREAMS {
        testbed.scheduler.synchronize()?;
        let handles = (0..DeviceTestbed::AHEAD).map(|_| stream.launch(call()));
        let handles = handles.collect::<Result<Vec<_>, _>>()?;
        let reports = handles.into_iter().map(&mut take).collect::<Result<Vec<_>>>()?;
        if let [first, .., last] = &reports[..] {
            follow.push((last.done - first.done) / (reports.len() as u32 - 1));
        }
    }
    let decision = testbed.scheduler.stats().decisions.mean;
    // From here it cannot be told from `launch`. On the CPU device it is a store to memory.
    let report = if is_gpu { Costs::h200().report } else { Duration::ZERO };
    Ok(Costs {
        launch: launch.p50().saturating_sub(decision + report),
        follow: follow.p50(),
        stop: Costs::h200().stop,
        report,
        decision,
        call: if is_gpu { Costs::h200().call } else { Duration::ZERO },
        ..Costs::h200()
    })
}

/// A program: its launches, each as long in each form as it was in a run of the program alone in that form.
///
/// Of the first launch, the cost of launching is taken off; of each further one, the cost of following its predecessor
/// in the stream: what the simulator adds, whatever the form. `notes` are of launches of the program's stream, as far as
/// there are any.
pub fn launch_models(
    steps: &[Call<'static>],
    looped: &[LaunchReport],
    plain: &[LaunchReport],
    notes: &[Note],
    costs: &Costs,
    sms: u32,
) -> Vec<KernelModel> {
    let (looped, plain) = (durations(looped, costs), durations(plain, costs));
    let models = steps.iter().zip(looped).zip(plain).map(|((call, looped), plain)| {
        let tasks = call.grid_dim().count() as u32;
        let model = KernelModel::new(call.kernel().name, looped, tasks).plain_duration(plain);
        // The latest notes know most yields.
        let Some(note) = notes.iter().rev().find(|note| note.tasks == tasks) else {
            return model;
        };
        // A launch with fewer block-tasks than its SMs could hold has several on one.
        let blocks_per_sm = if note.need < sms { tasks.div_ceil(note.need) } else { 1 };
        let stop = note.stop.saturating_sub(costs.decision + costs.report);
        model.blocks_per_sm(blocks_per_sm).stop(stop).redo(note.requeued)
    });
    models.collect()
}

/// How long each launch of a program took alone, without the costs of launching.
fn durations(alone: &[LaunchReport], costs: &Costs) -> Vec<Duration> {
    let mut before: Option<Timestamp> = None;
    let durations = alone.iter().map(|report| {
        let (start, cost) = match before.replace(report.done) {
            None => (report.started, costs.decision + costs.launch + costs.report),
            Some(before) => (before, costs.follow),
        };
        (report.done - start).saturating_sub(cost)
    });
    durations.collect()
}

#[cfg(test)]
mod tests {
    use preempt::policy::Hpf;
    use preempt::sim::Machine;

    use super::*;
    use crate::experiments::corun::{Simulated, simulate};

    const US: Duration = Duration::from_micros(1);

    fn costs() -> Costs {
        let (launch, follow, decision) = (8 * US, 3 * US, US);
        Costs { launch, follow, stop: 10 * US, report: US, decision, ..Costs::free() }
    }

    fn report(tasks: u32, started: Duration, done: Duration) -> LaunchReport {
        let mut report = LaunchReport::default();
        report.tasks = tasks;
        (report.started, report.done) =
            (Timestamp::after_start(started), Timestamp::after_start(done));
        report
    }

    #[test]
    fn a_program_alone_takes_as_long_as_it_took() {
        let steps = [empty().grid(1000).block(1), empty().grid(6).block(1)];
        let alone = [report(1000, 5 * US, 115 * US), report(6, 115 * US, 168 * US)];
        let plain = [report(1000, 5 * US, 110 * US), report(6, 110 * US, 123 * US)];
        let note = Note { stream: 0, tasks: 6, need: 2, stop: 22 * US, requeued: US };
        let models = launch_models(&steps, &alone, &plain, &[note], &costs(), 132);
        let durations: Vec<_> = models.iter().map(|model| model.duration).collect();
        assert_eq!(durations, [100 * US, 50 * US]);
        let plain: Vec<_> = models.iter().filter_map(|model| model.plain_duration).collect();
        assert_eq!(plain, [95 * US, 10 * US]);
        assert_eq!(models[0].stop, None);
        assert_eq!((models[1].blocks_per_sm, models[1].stop), (3, Some(20 * US)));
        assert_eq!(models[1].redo, US);

        let machine = Machine::new(132, costs());
        let found = simulate(machine, Box::new(Hpf::by_stream()), &[(&models, 7 * US, 0)]);
        let found = found.expect("simulated");
        assert_eq!(found.turnaround[0].as_micros(), 163);
    }

    #[test]
    fn an_urgent_program_stops_a_long_one() {
        let long = [KernelModel::new("long", 10_000 * US, 100_000).stop(20 * US)];
        let urgent = [KernelModel::new("urgent", 100 * US, 1000)];
        let programs = [(&long[..], Duration::ZERO, 0), (&urgent[..], 500 * US, 1)];
        let machine = Machine::new(132, costs());
        let found = simulate(machine, Box::new(Hpf::by_stream()), &programs);
        let Simulated { turnaround, yields, .. } = found.expect("simulated");
        assert_eq!(yields, 1);
        assert!((110 * US..140 * US).contains(&turnaround[1]), "{turnaround:?}");
        assert!(turnaround[0] > 10_100 * US, "{turnaround:?}");
    }
}
