//! Policies in virtual time, against results by hand.

use std::time::Duration;

use proptest::prelude::*;
use rustc_hash::FxHashMap;

use super::*;
use crate::policy::{Arrival, DeviceView, Plan, SmRange, StaticPriority};
use crate::vocabulary::LaunchId;

mod programs;

const MS: Duration = Duration::from_millis(1);
const US: Duration = Duration::from_micros(1);

/// Shortest remaining time first, with the whole device.
#[derive(Default)]
struct Shortest(Vec<LaunchId>);

impl Policy for Shortest {
    fn name(&self) -> &str {
        "shortest"
    }

    fn arrived(&mut self, _: Duration, launch: Arrival) {
        self.0.push(launch.id);
    }

    fn departed(&mut self, _: Duration, launch: LaunchId) {
        self.0.retain(|&id| id != launch);
    }

    fn assign(&mut self, _: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        if let Some(&first) = self.0.iter().min_by_key(|&&id| device.remaining(id)) {
            plan.grant(first, SmRange::new(0, device.sms()));
        }
    }
}

fn free(sms: u32) -> Machine {
    Machine::new(sms, Costs::free())
}

fn turnarounds(results: &Results) -> Vec<Duration> {
    assert!(results.policy_error.is_none(), "{:?}", results.policy_error);
    results.launches.iter().map(LaunchResult::turnaround).collect()
}

#[test]
fn without_costs_the_optimum_is_reached_exactly() {
    let mut workload = Workload::new(0);
    let streams = [workload.stream(0), workload.stream(0)];
    workload.launch(streams[0], &KernelModel::new("long", 10 * MS, 1000), Duration::ZERO);
    workload.launch(streams[1], &KernelModel::new("short", 3 * MS, 1000), 2 * MS);
    let shortest = Simulation::new(free(4), Shortest::default()).run(&workload).unwrap();
    assert_eq!(turnarounds(&shortest), [13 * MS, 3 * MS]);
    assert_eq!(shortest.launches.iter().map(|launch| launch.yields).collect::<Vec<_>>(), [1, 0]);
    assert_eq!(shortest.makespan, 13 * MS);
    assert_eq!(shortest.launches[0].sm_time, 4 * 10 * MS);
    let in_order = Simulation::one_at_a_time(free(4)).run(&workload).unwrap();
    assert_eq!(turnarounds(&in_order), [10 * MS, 11 * MS]);
}

#[test]
fn a_launch_with_a_shorter_rest_is_not_interrupted() {
    let mut workload = Workload::new(0);
    let streams = [workload.stream(0), workload.stream(0)];
    workload.launch(streams[0], &KernelModel::new("first", 10 * MS, 1000), Duration::ZERO);
    workload.launch(streams[1], &KernelModel::new("second", 3 * MS, 1000), 8 * MS);
    let results = Simulation::new(free(4), Shortest::default()).run(&workload).unwrap();
    assert_eq!(turnarounds(&results), [10 * MS, 5 * MS]);
}

#[test]
fn a_launch_shares_the_device_with_one_that_leaves_it_room() {
    let mut workload = Workload::new(0);
    let (batch, urgent) = (workload.stream(0), workload.stream(1));
    workload.launch(batch, &KernelModel::new("batch", 10 * MS, 1000), Duration::ZERO);
    workload.launch(urgent, &KernelModel::new("urgent", 2 * MS, 1), 4 * MS);
    let results = Simulation::new(free(4), StaticPriority::new()).run(&workload).unwrap();
    // 4 ms with 4 SMs, 2 ms with 3: 22 of 40 SM-milliseconds. The rest with 4.
    assert_eq!(turnarounds(&results), [10 * MS + MS / 2, 2 * MS]);
    let resumed = results.launches[0].resumes;
    assert_eq!((results.launches[0].yields, resumed), (1, 1));
}

/// Gives each urgent launch the next of these SMs, and all others to the launch that was there first.
struct OneAfterTheOther(std::vec::IntoIter<u32>, Vec<LaunchId>, u32);

impl Policy for OneAfterTheOther {
    fn name(&self) -> &str {
        "one after the other"
    }

    fn arrived(&mut self, _: Duration, launch: Arrival) {
        if !self.1.is_empty() {
            self.2 = self.0.next().expect("an SM for each");
        }
        self.1.push(launch.id);
    }

    fn departed(&mut self, _: Duration, launch: LaunchId) {
        self.1.retain(|&id| id != launch);
    }

    fn assign(&mut self, _: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        let (sm, sms) = (self.2, device.sms());
        match self.1[..] {
            [batch, urgent] => {
                plan.grant(urgent, SmRange::new(sm, sm + 1));
                plan.grant(batch, SmRange::new((sm + 1) % sms, if sm == 0 { sms } else { sm }));
            }
            [batch] => plan.grant(batch, SmRange::new(0, sms)),
            _ => {}
        }
    }
}

#[test]
fn a_launch_keeps_its_blocks_wherever_it_has_lost_sms_before() {
    let taken = vec![2, 5, 3, 7, 0, 4];
    let mut workload = Workload::new(0);
    let (batch, urgent) = (workload.stream(0), workload.stream(1));
    workload.launch(batch, &KernelModel::new("batch", 16 * MS, 1000), Duration::ZERO);
    let short = KernelModel::new("urgent", MS, 1);
    (1..).zip(&taken).for_each(|(at, _)| workload.launch(urgent, &short, 2 * at * MS));
    let lost = taken.len() as u32;
    let policy = OneAfterTheOther(taken.into_iter(), Vec::new(), 0);
    let results = Simulation::new(free(8), policy).run(&workload).unwrap();
    // It is without one of eight SMs while each urgent launch runs, and has all of them otherwise.
    let expected: Vec<_> =
        std::iter::once(16 * MS + lost * MS / 8).chain((0..lost).map(|_| MS)).collect();
    assert_eq!(turnarounds(&results), expected);
}

#[test]
fn a_launch_of_few_blocks_keeps_those_on_the_sms_that_it_keeps() {
    let mut workload = Workload::new(0);
    let (batch, urgent) = (workload.stream(0), workload.stream(1));
    let kernel = KernelModel::new("batch", 10 * MS, 8).blocks_per_sm(4);
    workload.launch(batch, &kernel, Duration::ZERO);
    workload.launch(urgent, &KernelModel::new("urgent", 2 * MS, 2), 4 * MS);
    let run = |policy| {
        let results = Simulation::new(free(4), policy).run(&workload).unwrap();
        let Results { launches, .. } = &results;
        (turnarounds(&results), launches[0].yields, launches[0].resumes)
    };
    // Two blocks on each of four SMs, and then those on two of them; they are as fast.
    assert_eq!(run(StaticPriority::new()), (vec![10 * MS, 2 * MS], 1, 0));
    // All on two SMs, and the others are free.
    assert_eq!(run(StaticPriority::packed()), (vec![10 * MS, 2 * MS], 0, 0));
}

#[test]
fn a_launch_of_few_blocks_does_no_more_again_than_it_was_doing() {
    let mut workload = Workload::new(0);
    let (batch, urgent) = (workload.stream(0), workload.stream(1));
    // On four SMs, each of which has half of what it holds: two of them do what four do.
    let kernel =
        KernelModel::new("batch", 10 * MS, 8).blocks_per_sm(4).redo(MS).stop(Duration::ZERO);
    workload.launch(batch, &kernel, Duration::ZERO);
    workload.launch(urgent, &KernelModel::new("urgent", 2 * MS, 4), 4 * MS);
    let machine = Machine { free_stops: false, ..free(4) };
    let results = Simulation::new(machine, StaticPriority::whole_device()).run(&workload).unwrap();
    assert_eq!(turnarounds(&results), [13 * MS, 2 * MS]);
}

#[test]
fn a_stop_costs_what_the_machine_and_the_kernel_say() {
    let costs = Costs { launch: 7 * US, stop: 20 * US, report: 2 * US, ..Costs::free() };
    let latency = |kernel: KernelModel| {
        let mut workload = Workload::new(0);
        let (batch, urgent) = (workload.stream(0), workload.stream(1));
        workload.launch(batch, &kernel, Duration::ZERO);
        workload.launch(urgent, &KernelModel::new("urgent", MS, 4), 5 * MS);
        let machine = Machine::new(4, costs);
        let results = Simulation::new(machine, StaticPriority::new()).run(&workload).unwrap();
        turnarounds(&results)
    };
    let batch = KernelModel::new("batch", 10 * MS, 1000);
    // The batch works until it is out. It is told that the urgent one is done 2 µs later, and resumes 7 µs later.
    assert_eq!(latency(batch.clone()), [11 * MS + 7 * US + 9 * US + 2 * US, MS + 22 * US]);
    assert_eq!(latency(batch.clone().stop(100 * US))[1], MS + 102 * US);
    assert_eq!(latency(batch.redo(50 * US))[0], 11 * MS + 18 * US + 50 * US);
}

#[test]
fn blocks_that_ran_for_less_than_a_block_task_drop_what_they_did() {
    let end = |at: Duration| {
        let mut workload = Workload::new(0);
        let (batch, urgent) = (workload.stream(0), workload.stream(1));
        // One block-task on each SM, 10 ms long.
        let kernel = KernelModel::new("batch", 10 * MS, 4).stop(Duration::ZERO).redo(5 * MS);
        workload.launch(batch, &kernel, Duration::ZERO);
        workload.launch(urgent, &KernelModel::new("urgent", MS, 4), at);
        let machine = Machine { free_stops: false, ..free(4) };
        let results = Simulation::new(machine, StaticPriority::new()).run(&workload).unwrap();
        turnarounds(&results)[0]
    };
    assert_eq!([2, 9].map(|at| end(at * MS)), [13 * MS, 20 * MS]);
}

#[test]
fn a_plain_grid_takes_its_own_time() {
    let took = |plain, form: fn(KernelModel) -> KernelModel| {
        let mut workload = Workload::new(0);
        let kernel = KernelModel::new("k", 10 * MS, 1000).plain_duration(plain * MS);
        let stream = workload.stream(0);
        workload.launch(stream, &form(kernel), Duration::ZERO);
        let results = Simulation::new(free(4), StaticPriority::new()).run(&workload).unwrap();
        assert_eq!(results.launches[0].alone, turnarounds(&results)[0]);
        turnarounds(&results)[0]
    };
    assert_eq!(took(8, |kernel| kernel), 10 * MS);
    assert_eq!(took(8, |kernel| kernel.plain(true)), 8 * MS);
    // The form that is faster.
    assert_eq!(took(8, |kernel| kernel.auto(true)), 8 * MS);
    assert_eq!(took(12, |kernel| kernel.auto(true)), 10 * MS);
}

#[test]
fn a_larger_launch_takes_longer_in_either_form() {
    let mut workload = Workload::new(1);
    let stream = workload.stream(0);
    let kernel = KernelModel::new("k", 10 * MS, 1000).plain_duration(8 * MS).plain(true);
    let (arrivals, sizes) = (Arrivals::Periodic(100 * MS), Sizes::Pareto { shape: 1.1, most: 9.0 });
    workload.arrive(stream, &kernel, &arrivals, sizes, 1000 * MS).unwrap();
    let results = Simulation::new(free(4), StaticPriority::new()).run(&workload).unwrap();
    assert!(results.launches.iter().any(|launch| launch.tasks > 1000));
    for launch in &results.launches {
        let expected = 8e-6 * f64::from(launch.tasks);
        assert!((launch.alone.as_secs_f64() / expected - 1.0).abs() < 1e-3, "{launch:?}");
    }
}

#[test]
fn launches_of_a_stream_follow_one_another_on_the_device() {
    let costs = Costs { launch: 50 * US, follow: 3 * US, report: 2 * US, ..Costs::free() };
    // As long as the host may be elsewhere, work is queued.
    let costs = Costs { absence: 75 * US, ..costs };
    let mut workload = Workload::new(0);
    let stream = workload.stream(0);
    for _ in 0..100 {
        workload.launch(stream, &KernelModel::new("small", 10 * US, 4), Duration::ZERO);
    }
    let machine = Machine::new(4, costs);
    let results = Simulation::new(machine, StaticPriority::new()).run(&workload).unwrap();
    // A few are launched by the host where none was queued in time.
    assert!(results.makespan < 100 * 13 * US + 300 * US, "{:?}", results.makespan);
    let plain = Simulation::submission_order(machine).run(&workload).unwrap();
    assert!(plain.makespan < 100 * 13 * US + 300 * US, "{:?}", plain.makespan);
}

#[test]
fn an_urgent_launch_does_not_wait_until_a_burst_is_taken_in() {
    let costs = Costs { take_in: 2 * US, stop: 12 * US, launch: 6 * US, ..Costs::free() };
    let started = |behind: usize, of: [i32; 2]| {
        let mut workload = Workload::new(0);
        let (batch, urgent) = (workload.stream(of[0]), workload.stream(of[1]));
        for _ in 0..behind {
            workload.launch(batch, &KernelModel::new("batch", MS, 400), Duration::ZERO);
        }
        workload.launch(urgent, &KernelModel::new("urgent", 10 * US, 400), Duration::ZERO);
        let policy = StaticPriority::new();
        let results = Simulation::new(Machine::new(4, costs), policy).run(&workload).unwrap();
        let mut urgent = results.launches.iter().filter(|launch| launch.kernel == "urgent");
        urgent.next().and_then(|launch| launch.started).expect("it ran")
    };
    for behind in [1, 5, 15, 30] {
        assert_eq!(started(behind, [0, 1]), 8 * US, "behind {behind}");
    }
    assert!(started(5, [1, 0]) > 5 * MS, "it is less urgent");
}

#[test]
fn plain_grids_fill_the_sms_that_earlier_ones_leave_free() {
    let mut workload = Workload::new(0);
    let streams = [0; 3].map(|_| workload.stream(0));
    workload.launch(streams[0], &KernelModel::new("first", 4 * MS, 3), Duration::ZERO);
    workload.launch(streams[1], &KernelModel::new("second", 4 * MS, 400), Duration::ZERO);
    workload.launch(streams[2], &KernelModel::new("third", MS, 4), MS);
    let results = Simulation::submission_order(free(4)).run(&workload).unwrap();
    // The second one has one SM for 4 ms, and then all: it has 16 SM-milliseconds to do. The third one waits for both.
    assert_eq!(turnarounds(&results), [4 * MS, 7 * MS, 7 * MS]);
    assert_eq!(results.launches.iter().map(|launch| launch.yields).sum::<u32>(), 0);
}

#[test]
fn an_urgent_launch_waits_for_the_blocks_of_a_plain_grid_that_run() {
    let mut workload = Workload::new(0);
    let (batch, urgent) = (workload.stream(0), workload.stream(1));
    workload.launch(batch, &KernelModel::new("batch", 10 * MS, 1000), Duration::ZERO);
    workload.launch(urgent, &KernelModel::new("urgent", MS, 4), MS);
    let simulation = Simulation::new(free(4), StaticPriority::new()).plain(true);
    // For a block: four of a thousand run at a time.
    let block = 40 * US;
    assert_eq!(turnarounds(&simulation.run(&workload).unwrap()), [11 * MS, MS + block]);
}

#[test]
fn the_form_of_a_launch_follows_from_what_its_blocks_take() {
    let plain = |duration: Duration, tasks, redo, other| {
        let mut workload = Workload::new(0);
        let (stream, _) = (workload.stream(0), workload.stream(other));
        let kernel = KernelModel::new("k", duration, tasks).stop(20 * US).redo(redo).auto(true);
        workload.launch(stream, &kernel, Duration::ZERO);
        let machine = Machine::new(4, Costs::h200());
        let simulation = Simulation::new(machine, StaticPriority::new()).recording(true);
        let recording = simulation.run(&workload).unwrap().recording.unwrap();
        let input = recording.steps().iter().find_map(|step| match &step.input {
            crate::engine::Input::Submit { launch, .. } => launch.clone(),
            _ => None,
        });
        input.unwrap().hardware_stop.is_some()
    };
    assert!(plain(MS, 1000, Duration::ZERO, 1), "blocks of 4 µs");
    assert!(plain(MS, 1000, US, 1) && !plain(MS, 100, US, 1), "of 40 µs, and yield points");
    assert!(plain(MS, 100, US, -1), "no stream can preempt it");
    assert!(!plain(11 * MS, 100_000, Duration::ZERO, 1), "too long to be waited for");
}

#[test]
fn a_plain_grid_runs_where_there_is_room_whatever_the_policy_planned() {
    let mut workload = Workload::new(0);
    let (batch, urgent) = (workload.stream(0), workload.stream(1));
    workload.launch(batch, &KernelModel::new("batch", MS, 1), Duration::ZERO);
    workload.launch(urgent, &KernelModel::new("urgent", MS, 1), 6 * US);
    // The urgent one comes while the batch is being launched, in the only queue.
    let queues = DeviceQueues { normal: 1, urgent: 0, levels: 0, chains: 1 };
    let costs = Costs { launch: 10 * US, ..Costs::free() };
    let machine = Machine { queues, ..Machine::new(1, costs) };
    let simulation = Simulation::new(machine, StaticPriority::new()).plain(true);
    let results = simulation.run(&workload).unwrap();
    assert_eq!(turnarounds(&results), [MS + 10 * US, 2 * MS + 20 * US - 6 * US]);
}

#[test]
fn a_closed_loop_goes_on_until_its_time() {
    let mut workload = Workload::new(0);
    let stream = workload.stream(0);
    let kernel = KernelModel::new("k", 2 * MS, 100);
    workload.repeat(stream, &kernel, MS, 3 * MS, 20 * MS);
    let results = Simulation::new(free(4), StaticPriority::new()).run(&workload).unwrap();
    let queued: Vec<_> = results.of(stream).map(|launch| launch.queued).collect();
    assert_eq!(queued, [1, 6, 11, 16].map(|time| time * MS));
}

#[test]
fn a_simulation_that_stops_says_how_far_it_is() {
    let mut workload = Workload::new(0);
    let streams = [0, 1].map(|priority| workload.stream(priority));
    workload.launch(streams[0], &KernelModel::new("long", 10 * MS, 1000), Duration::ZERO);
    workload.repeat(streams[1], &KernelModel::new("short", MS, 100), MS, MS, 100 * MS);
    let simulation = Simulation::new(free(4), StaticPriority::new()).until(4 * MS + MS / 2);
    let results = simulation.run(&workload).unwrap();
    let found: Vec<_> = results.launches.iter().map(|one| (one.tasks, one.end, one.done)).collect();
    let end = 4 * MS + MS / 2;
    // Two times one millisecond for the urgent ones. The third one comes in half a millisecond.
    let expected =
        [(250, None, end), (100, Some(End::Done), 2 * MS), (100, Some(End::Done), 4 * MS)];
    assert_eq!((found, results.makespan), (expected.to_vec(), end));
}

#[test]
fn one_kernel_can_be_a_plain_grid() {
    let mut workload = Workload::new(0);
    let streams = [0, 1, 2].map(|priority| workload.stream(priority));
    let kernel = |name| KernelModel::new(name, 4 * MS, 1000);
    workload.launch(streams[0], &kernel("yields"), Duration::ZERO);
    workload.launch(streams[1], &kernel("does not").plain(true), MS);
    workload.launch(streams[2], &kernel("urgent"), 2 * MS);
    let results = Simulation::new(free(4), StaticPriority::new()).run(&workload).unwrap();
    // The urgent one waits for blocks that take 16 µs.
    assert_eq!(turnarounds(&results), [12 * MS, 8 * MS, 4 * MS + 16 * US]);
}

#[test]
fn launches_take_the_same_time_under_every_policy() {
    let mut workload = Workload::new(7);
    for stream in 0..3 {
        let kernel = KernelModel::new("k", MS, 100).variation(0.5);
        let stream = workload.stream(stream);
        workload.repeat(stream, &kernel, Duration::ZERO, Duration::ZERO, 30 * MS);
    }
    let alone = |simulation: Simulation| {
        let results = simulation.run(&workload).unwrap();
        let times = results.launches.iter().map(|launch| ((launch.job, launch.turn), launch.alone));
        times.collect::<FxHashMap<_, _>>()
    };
    let preempted = alone(Simulation::new(Machine::h200(), StaticPriority::new()));
    let queued = alone(Simulation::one_at_a_time(Machine::h200()));
    let both: Vec<_> = preempted.iter().filter(|(which, _)| queued.contains_key(which)).collect();
    assert!(both.len() > 10 && both.iter().all(|(which, alone)| queued[which] == **alone));
    let first = both[0].1;
    assert!(both.iter().any(|(_, alone)| *alone != first), "they vary");
}

#[test]
fn a_launch_that_is_not_admitted_is_over_at_once() {
    struct Choosy(StaticPriority);
    impl Policy for Choosy {
        fn name(&self) -> &str {
            "choosy"
        }
        fn admits(&mut self, _: Duration, launch: &Arrival, _: &dyn DeviceView) -> bool {
            launch.tasks < 500
        }
        fn arrived(&mut self, now: Duration, launch: Arrival) {
            self.0.arrived(now, launch);
        }
        fn departed(&mut self, now: Duration, launch: LaunchId) {
            self.0.departed(now, launch);
        }
        fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
            self.0.assign(now, device, plan);
        }
    }
    let mut workload = Workload::new(0);
    let stream = workload.stream(StreamModel::new(0).due(5 * MS));
    workload.launch(stream, &KernelModel::new("large", MS, 500), MS);
    workload.launch(stream, &KernelModel::new("small", MS, 499), MS);
    let policy = Choosy(StaticPriority::new());
    let results = Simulation::new(free(4), policy).run(&workload).unwrap();
    let ends: Vec<_> = results.launches.iter().map(|launch| launch.end).collect();
    assert_eq!(ends, [Some(End::NotAdmitted), Some(End::Done)]);
    assert_eq!(turnarounds(&results), [Duration::ZERO, MS]);
    let in_time: Vec<_> = results.launches.iter().map(LaunchResult::is_in_time).collect();
    assert_eq!(in_time, [false, true]);
}

#[test]
fn a_policy_that_lets_no_launch_run_is_named() {
    /// Takes the device from one launch to give it to the other, whenever it is asked.
    struct Mad(Vec<LaunchId>, Duration);
    impl Policy for Mad {
        fn name(&self) -> &str {
            "mad"
        }
        fn arrived(&mut self, _: Duration, launch: Arrival) {
            self.0.push(launch.id);
        }
        fn departed(&mut self, _: Duration, launch: LaunchId) {
            self.0.retain(|&id| id != launch);
        }
        fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
            self.0.rotate_left(1);
            self.1 = now + 10 * US;
            if let Some(&first) = self.0.first() {
                plan.grant(first, SmRange::new(0, device.sms()));
            }
        }
        fn wake(&self) -> Option<Duration> {
            Some(self.1)
        }
    }
    let mut workload = Workload::new(0);
    for _ in 0..2 {
        let stream = workload.stream(0);
        workload.launch(stream, &KernelModel::new("k", MS, 1000).redo(MS), Duration::ZERO);
    }
    let simulation = Simulation::new(Machine::new(4, Costs::h200()), Mad(Vec::new(), MS));
    let error = simulation.run(&workload).unwrap_err();
    assert!(error.to_string().contains("to and fro"), "{error}");
}

#[test]
fn impossible_machines_and_kernels_are_refused() {
    let run = |sms, kernel: KernelModel| {
        let mut workload = Workload::new(0);
        let stream = workload.stream(0);
        workload.launch(stream, &kernel, MS);
        Simulation::new(free(sms), StaticPriority::new()).run(&workload).map(|_| ())
    };
    assert!(run(4, KernelModel::new("k", MS, 1)).is_ok());
    assert!(run(4, KernelModel::new("k", Duration::ZERO, 1)).is_ok(), "a nanosecond or so");
    assert!(run(0, KernelModel::new("k", MS, 1)).is_err());
    assert!(run(4, KernelModel::new("k", MS, 0)).is_err());
    assert!(run(4, KernelModel::new("k", Duration::MAX, 1)).is_err());
    assert!(run(4, KernelModel::new("k", MS, 1).blocks_per_sm(0)).is_err());
    assert!(run(4, KernelModel::new("k", MS, 1).variation(f64::NAN)).is_err());
}

fn machines() -> impl Strategy<Value = Machine> {
    (1u32..9, any::<bool>(), 1u32..4, 0u32..3).prop_map(|(sms, is_free, normal, urgent)| {
        let costs = if is_free { Costs::free() } else { Costs::h200() };
        let queues = DeviceQueues { normal, urgent: 1, levels: urgent, chains: 2 };
        Machine { queues, ..Machine::new(sms, costs) }
    })
}

/// Streams, kernels and arrivals.
fn workloads() -> impl Strategy<Value = Workload> {
    let job = (0usize..4, 1u64..500, 1u32..60, 1u32..4, 0u64..2000, 0u64..60, 0..3);
    (any::<u64>(), prop::collection::vec(job, 1..40)).prop_map(|(seed, jobs)| {
        let mut workload = Workload::new(seed);
        let streams = [0, 1, 2, 1].map(|priority| workload.stream(priority));
        for (stream, duration, tasks, blocks_per_sm, at, redo, form) in jobs {
            let kernel = KernelModel::new("k", Duration::from_micros(duration), tasks)
                .blocks_per_sm(blocks_per_sm)
                .redo(Duration::from_micros(redo))
                .variation(0.3)
                .plain(form == 0)
                .auto(form == 1);
            workload.launch(streams[stream], &kernel, Duration::from_micros(at));
        }
        workload
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The engine checks that block-tasks add up.
    #[test]
    fn every_launch_comes_to_its_end_at_a_possible_time(
        machine in machines(), workload in workloads(), plain in any::<bool>(), whole in any::<bool>(),
    ) {
        let policy = || if whole { StaticPriority::whole_device() } else { StaticPriority::new() };
        let run = || Simulation::new(machine, policy()).plain(plain).run(&workload).unwrap();
        let results = run();
        prop_assert!(results.policy_error.is_none(), "{:?}", results.policy_error);
        let mut last = FxHashMap::default();
        for launch in &results.launches {
            prop_assert_eq!(launch.end, Some(End::Done));
            let started = launch.started.unwrap();
            prop_assert!(launch.queued <= started);
            prop_assert!(started + launch.alone <= launch.done, "{:?}", launch);
            let before = last.insert(launch.stream, launch.done).unwrap_or_default();
            prop_assert!(before <= launch.done, "a stream runs in order");
        }
        let work = |launch: &LaunchResult| {
            let kernel = &workload.jobs[launch.job].model.kernels()[0];
            launch.alone * kernel.tasks.div_ceil(kernel.blocks_per_sm).min(machine.sms)
        };
        let least: Duration = results.launches.iter().map(work).sum();
        prop_assert!(results.makespan * machine.sms >= least, "no SM did more than it can");
        prop_assert_eq!(&run().launches, &results.launches, "the same every time");
    }

    /// Blocks that leave at no cost lose nothing: with the whole device for one at a time, it is never idle.
    #[test]
    fn a_policy_that_keeps_the_device_busy_has_the_least_makespan(workload in workloads(), sms in 1u32..4) {
        let mut workload = workload;
        for job in &mut workload.jobs {
            // Each fills the device, and all are there at once.
            job.at = Duration::ZERO;
            let kernel = &mut job.model.kernels_mut()[0];
            (kernel.tasks, kernel.blocks_per_sm) = (60, 1);
        }
        let results = Simulation::new(free(sms), Shortest::default()).run(&workload).unwrap();
        let work: Duration = results.launches.iter().map(|launch| launch.alone).sum();
        prop_assert_eq!(results.makespan, work);
    }
}
