//! Programs and costs as the simulator knows them.

use std::time::Duration;

use anyhow::Result;
use preempt::sim::{Costs, KernelModel};
use preempt::{Call, Handle, LaunchReport, Preemption};
use preempt_microkernels::{empty, occupy};

use super::watch::Note;
use crate::experiments::corun::DeviceTestbed;
use crate::samples::Samples;

/// Launches of an empty kernel on an idle device, and streams of a kernel that takes `LASTING`.
const LAUNCHES: u32 = 200;
const STREAMS: u32 = 20;

/// Longer than what the host needs for a launch, so that the device never waits for it: `Costs::follow` is the device's
/// time alone, and the simulator adds the host's.
const LASTING: Duration = Duration::from_micros(20);

/// Measured costs, from launches of small kernels and from the scheduler's own account of its decisions. `stop` is
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
        testbed.tally.count("a small kernel's report", &[report.tasks], &[1]);
        Ok(report)
    };
    for _ in 0..LAUNCHES {
        testbed.scheduler.synchronize()?;
        let report = take(stream.launch(call())?)?;
        launch.push(report.running());
    }
    let mut counts = testbed.scheduler.zeroed::<u32>(1)?;
    for _ in 0..STREAMS {
        testbed.scheduler.synchronize()?;
        let handles = (0..DeviceTestbed::AHEAD).map(|_| {
            let call = occupy(&mut counts, LASTING.as_nanos() as u64).grid(1).block(1);
            stream.launch(call.preemption(Preemption::Preemptible))
        });
        let handles = handles.collect::<Result<Vec<_>, _>>()?;
        let reports = handles.into_iter().map(&mut take).collect::<Result<Vec<_>>>()?;
        if let [first, .., last] = &reports[..] {
            let each = (last.done - first.done) / (reports.len() as u32 - 1);
            follow.push(each.saturating_sub(LASTING));
        }
    }
    let ran = stream.download(&counts)?.wait()?;
    testbed.tally.count("the kernel in a row", &ran, &[STREAMS * DeviceTestbed::AHEAD as u32]);
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

/// A program's runs alone: in the worker loop, as plain grids, and in the forms that the scheduler chose, if it has such a run.
#[derive(Clone, Copy, Default)]
pub struct Runs<'a> {
    pub looped: &'a [LaunchReport],
    pub plain: &'a [LaunchReport],
    pub chosen: &'a [LaunchReport],
}

/// A program: its launches, each as long in each form as it was in a run of the program alone in that form. In the form that
/// was chosen for it, it is as long as in the run of the chosen forms: a launch whose blocks were queued behind another has
/// to claim all of its block-tasks, and can take longer than the same one behind a launch of the other form.
///
/// The costs of launching are taken off, which the simulator adds. `notes` are of launches of the program's stream, as far as
/// there are any.
pub fn launch_models(
    steps: &[Call<'static>],
    runs: Runs<'_>,
    notes: &[Note],
    costs: &Costs,
    sms: u32,
) -> Vec<KernelModel> {
    let (mut looped, mut plain) = (durations(runs.looped, costs), durations(runs.plain, costs));
    for (launch, (report, took)) in
        runs.chosen.iter().zip(durations(runs.chosen, costs)).enumerate()
    {
        let of_form = if report.plain { &mut plain } else { &mut looped };
        if let Some(known) = of_form.get_mut(launch) {
            *known = took;
        }
    }
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

/// How long each launch of a program took alone, without what it costs to launch the first one, and those behind a launch of
/// the other form, and to follow for all others.
fn durations(alone: &[LaunchReport], costs: &Costs) -> Vec<Duration> {
    let launch = costs.decision + costs.launch + costs.report;
    let mut before: Option<&LaunchReport> = None;
    let durations = alone.iter().map(|report| {
        let (start, cost) = match before.replace(report) {
            None => (report.started, launch),
            Some(before) if before.plain != report.plain => (before.done, launch),
            Some(before) => (before.done, costs.follow),
        };
        (report.done - start).saturating_sub(cost)
    });
    durations.collect()
}

#[cfg(test)]
mod tests {
    use preempt::Timestamp;
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
        let runs = Runs { looped: &alone, plain: &plain, chosen: &[] };
        let models = launch_models(&steps, runs, &[note], &costs(), 132);
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
    fn launches_are_as_long_as_in_the_forms_that_were_chosen() {
        let steps = [empty().grid(1000).block(1), empty().grid(6).block(1)];
        let looped = [report(1000, 5 * US, 115 * US), report(6, 115 * US, 168 * US)];
        let plain = [report(1000, 5 * US, 110 * US), report(6, 110 * US, 123 * US)];
        let mut chosen = [report(1000, 5 * US, 109 * US), report(6, 109 * US, 149 * US)];
        chosen[0].plain = true;
        let runs = Runs { looped: &looped, plain: &plain, chosen: &chosen };
        let models = launch_models(&steps, runs, &[], &costs(), 132);
        let found = models.iter().map(|model| (model.duration, model.plain_duration));
        // It costs 10 µs to launch, and 3 µs to follow.
        let expected = [(100 * US, Some(94 * US)), (30 * US, Some(10 * US))];
        assert_eq!(found.collect::<Vec<_>>(), expected);
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
