//! When the proxy is started, and when it is not: the path of signals, on the fake driver.

use std::time::Duration;

use preempt::policy::FairShare;
use preempt::predict::{Features, Predictor};
use preempt::{Costs, Device, Preemption, Scheduler, SignalPath, Stream};
use preempt_test_kernels as kernels;

use crate::device_code;
use crate::fake;
use crate::workloads::{Found, Run, THREADS};

/// Proxies that were ever launched on an idle device.
fn started() -> u64 {
    fake::proxies()[0]
}

/// Which launches the proxy is started for, on the fake driver.
pub fn starts(device: &Device, found: &mut Found) {
    let long = Costs::free();
    // Nothing lasts a hundred times as long as this.
    let short = Costs { decision: Duration::from_secs(3600), ..Costs::free() };
    let full = 2 * device.properties().sms;
    let ends = |path| (path, short, 4, THREADS);
    // By the path, the costs, block-tasks and threads: proxies for the first launch, whose duration is unknown, and for
    // three more.
    for ((path, costs, tasks, threads), proxies) in [
        (ends(SignalPath::StreamWrite), [0, 0]),
        (ends(SignalPath::Proxy), [1, 3]),
        (ends(SignalPath::Auto), [1, 0]),
        ((SignalPath::Auto, long, 4, THREADS), [1, 3]),
        // Two such blocks have an SM to themselves.
        ((SignalPath::Auto, long, full, 1024), [0, 0]),
        ((SignalPath::Auto, long, full - 1, 1024), [1, 3]),
    ] {
        let builder = Scheduler::builder().device(device.clone()).signal_path(path).costs(costs);
        let builder = builder.preemption(Preemption::Preemptible);
        let built = builder.kernels(device_code::module()).build();
        let Some(scheduler) = found.take(built) else { return };
        let stream = scheduler.stream(0);
        let lens = [tasks as usize, (tasks * threads) as usize];
        let [Some(mut counts), Some(mut writes)] =
            lens.map(|len| found.take(scheduler.zeroed::<u32>(len)))
        else {
            return;
        };
        for (launches, expected) in [1, 3].into_iter().zip(proxies) {
            let before = started();
            for _ in 0..launches {
                let call = kernels::count_1d(&mut counts, &mut writes).grid(tasks).block(threads);
                let report = found.take(stream.launch(call).and_then(|handle| handle.wait()));
                found.expect(report.is_some_and(|report| report.tasks == tasks), || "lost".into());
                // The device is idle, and the proxy ends.
                let _ = found.take(scheduler.synchronize());
            }
            let seen = started() - before;
            found.expect(seen == expected, || {
                format!("{path:?}, {tasks} of {threads}, {launches}: {seen} proxies")
            });
        }
    }
}

/// Says that each launch takes as long.
struct Always(Duration);

impl Predictor for Always {
    fn predict(&self, _launch: &Features<'_>) -> Option<Duration> {
        Some(self.0)
    }

    fn finished(&mut self, _launch: &Features<'_>, _took: Duration) {}
}

/// The proxy is started for launches that take a hundred times as long as the gap before them, and beside a latency limit for
/// those that take ten times as long; on the fake driver.
pub fn starts_for_limits(device: &Device, found: &mut Found) {
    let costs = Costs { report: Duration::from_millis(1), ..Costs::free() };
    let (none, limit) = (None, Some(Duration::from_micros(30)));
    // By the launch's time, the limits of its stream and of another one, and whether the policy has one.
    for (millis, own, limit, policy, expected) in [
        (50, none, none, false, false),
        (101, none, none, false, true),
        (50, none, limit, false, true),
        (50, none, none, true, true),
        (9, none, limit, false, false),
        // It does not leave for its own.
        (50, limit, none, false, false),
        (50, limit, limit, false, true),
        // Blocks do nothing for these.
        (50, none, Some(Duration::ZERO), false, false),
        (50, none, Some(Duration::from_nanos(7)), false, false),
        (50, none, Some(Duration::MAX), false, false),
    ] {
        let builder = Scheduler::builder().device(device.clone()).costs(costs);
        let builder = builder.predictor(Always(Duration::from_millis(millis)));
        let builder = builder.preemption(Preemption::Preemptible);
        let builder = if policy { builder.policy(FairShare::new()) } else { builder };
        let built = builder.kernels(device_code::module()).build();
        let Some(scheduler) = found.take(built) else { return };
        let (stream, other) = (scheduler.stream(0), scheduler.stream(1));
        stream.set_latency_limit(own);
        other.set_latency_limit(limit);
        let lens = [4, 4 * THREADS as usize];
        let buffers = lens.map(|len| found.take(scheduler.zeroed::<u32>(len)));
        let [Some(mut counts), Some(mut writes)] = buffers else { return };
        let before = started();
        let call = kernels::count_1d(&mut counts, &mut writes).grid(4).block(THREADS);
        let report = found.take(stream.launch(call).and_then(|handle| handle.wait()));
        found.expect(report.is_some_and(|report| report.tasks == 4), || "lost".into());
        let seen = started() - before;
        found.expect((seen > 0) == expected, || {
            format!("{millis} ms, {own:?} beside {limit:?}, {policy}: {seen} proxies")
        });
    }
}

/// A run whose launches are all worth a proxy, with a stream for its victim and an urgent one.
fn run<'a>(
    device: &Device,
    path: SignalPath,
    found: &'a mut Found,
) -> Option<(Run<'a>, [Stream; 2])> {
    let builder = Scheduler::builder().device(device.clone()).signal_path(path);
    let builder = builder.preemption(Preemption::Preemptible).costs(Costs::free());
    let scheduler = found.take(builder.kernels(device_code::module()).build())?;
    let streams = [0, 1].map(|priority| scheduler.stream(priority));
    Some((Run::new(scheduler, found), streams))
}

/// No proxy comes beside a launch that leaves it no place, whatever follows; on the fake driver.
pub fn beside_a_full_device(device: &Device, found: &mut Found) {
    let Some((mut run, streams)) = run(device, SignalPath::Auto, found) else { return };
    let full = 2 * device.properties().sms;
    let shapes = [(4, THREADS), (full, 1024), (4, THREADS)];
    // A victim may be over by then, or the device idle for a moment between two launches, where this process has no processor
    // for a while. Then a proxy is right, and the attempt shows nothing.
    let mut attempts = Vec::new();
    for _ in 0..20 {
        let before = started();
        // It fills the device.
        let Some(victim) = run.victim(&streams[0], 4_000_000) else { return };
        for (tasks, threads) in shapes {
            let lens = [tasks as usize, (tasks * threads) as usize];
            let buffers = lens.map(|len| run.found.take(run.scheduler.zeroed::<u32>(len)));
            let [Some(mut counts), Some(mut writes)] = buffers else { return };
            let call = kernels::count_1d(&mut counts, &mut writes).grid(tasks).block(threads);
            run.found.take(streams[1].launch(call).and_then(|handle| handle.wait()));
            let counted = streams[1].download(&counts).and_then(|copy| copy.wait());
            if let Some(counted) = run.found.take(counted) {
                let once = counted.iter().all(|&count| count == 1);
                run.found.expect(once, || format!("{counted:?}"));
            }
        }
        let (seen, is_over) = (started() - before, victim.handle.is_done());
        run.check_victim(Some(victim), &streams[0]);
        // The next victim finds the device idle, and no proxy.
        let _ = run.found.take(run.scheduler.synchronize());
        if !is_over && seen == 0 {
            return;
        }
        attempts.push((seen, is_over));
    }
    run.found.expect(false, || format!("proxies, and whether the victim was over: {attempts:?}"));
}

/// Proxies follow each other while a kernel runs, and signals arrive by them and between two of them; on the fake driver.
pub fn one_after_the_other(device: &Device, found: &mut Found) {
    // With it, the first launch waits for the proxy for long.
    let path = SignalPath::Proxy;
    let Some((mut run, streams)) = run(device, path, found) else { return };
    let lens = [4, 4 * THREADS as usize];
    let buffers = lens.map(|len| run.found.take(run.scheduler.zeroed::<u32>(len)));
    let [Some(mut counts), Some(mut writes)] = buffers else { return };
    let before = fake::proxies()[1];
    // It leaves a place.
    let tasks = 2 * run.scheduler.device().properties().sms - 1;
    let (mut launches, mut victims, mut overtook) = (0, 0, 0);
    while overtook == 0 && victims < 20 {
        let Some(victim) = run.victim_of(tasks, &streams[0], 4_000_000) else { return };
        while !victim.handle.is_done() {
            let call = kernels::count_1d(&mut counts, &mut writes).grid(4).block(THREADS);
            let launched = streams[1].launch(call).and_then(|handle| handle.wait());
            if run.found.take(launched).is_none() {
                return;
            }
            launches += 1;
            let is_by_next = fake::proxies()[1] > before;
            overtook += u32::from(is_by_next && !victim.handle.is_done());
        }
        run.check_victim(Some(victim), &streams[0]);
        victims += 1;
    }
    let counted = streams[1].download(&counts).and_then(|copy| copy.wait());
    if let Some(counted) = run.found.take(counted) {
        run.found.expect(counted == [launches; 4], || format!("{launches}: {counted:?}"));
    }
    run.found.expect(overtook > 0, || format!("no signal arrived later, of {victims} victims"));
}
