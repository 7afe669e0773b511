//! Programs: jobs of several kernels.

use super::*;
use crate::engine::Input;
use crate::policy::Fifo;

/// The calls of preemptible programs in a recorded run: of each, its name, its block-tasks, and those that cohorts
/// reported.
fn counted(results: &Results) -> Vec<(String, u32, u32)> {
    let mut calls: Vec<(u64, String, u32, u32)> = Vec::new();
    for step in results.recording.as_ref().unwrap().steps() {
        match &step.input {
            Input::Submit { calls: told, .. } => {
                calls.extend(told.iter().map(|call| {
                    (call.op, call.name.clone(), call.launch.as_ref().unwrap().tasks, 0)
                }))
            }
            Input::CohortOut { op, done, .. } => {
                calls.iter_mut().filter(|(call, ..)| call == op).for_each(|call| call.3 += done);
            }
            _ => {}
        }
    }
    calls.into_iter().map(|(_, name, tasks, done)| (name, tasks, done)).collect()
}

/// Block-tasks of `five`.
const TASKS: u32 = 1_271_001;

/// Kernels of different lengths and numbers of block-tasks, each of which fills four SMs, also when it is nearly over.
fn five() -> [KernelModel; 5] {
    let kernels = [(3, 100_000), (1, 1_000_000), (4, 40_000), (2, 70_001), (5, 61_000)];
    kernels.map(|(ms, tasks)| {
        KernelModel::new(format!("{tasks}"), ms * MS, tasks).stop(10 * US).redo(5 * US)
    })
}

fn whole(machine: Machine) -> Simulation {
    Simulation::new(machine, StaticPriority::whole_device()).recording(true)
}

#[test]
fn calls_follow_one_another_as_one_launch() {
    let mut workload = Workload::new(0);
    let stream = workload.stream(3);
    workload.program(stream, "five", &five(), MS);
    workload.launch(stream, &KernelModel::new("behind", MS, 4), MS);
    let results = whole(free(4)).run(&workload).unwrap();
    let [five, behind] = &results.launches[..] else { panic!("two launches: {results:?}") };
    assert_eq!((&*five.kernel, five.tasks, five.alone), ("five", TASKS, 15 * MS));
    assert_eq!((five.queued, five.started, five.done), (MS, Some(MS), 16 * MS));
    assert_eq!((five.end, five.priority, five.sm_time), (Some(End::Done), 3.into(), 60 * MS));
    assert_eq!((behind.started, behind.done), (Some(16 * MS), 17 * MS));
}

#[test]
fn a_program_of_one_kernel_is_as_the_launch_of_that_kernel() {
    let batch = KernelModel::new("batch", 3 * MS, 1000).variation(0.2).redo(20 * US);
    for kernel in [batch.clone(), batch.clone().plain(true), batch.auto(true)] {
        for (at, machine) in [(MS, Machine::h200()), (2 * MS, free(4)), (4 * MS, free(1000))] {
            let results = |is_program: bool| {
                let mut workload = Workload::new(3);
                let (stream, urgent) = (workload.stream(0), workload.stream(1));
                for _ in 0..2 {
                    match is_program {
                        true => {
                            let kernels = std::slice::from_ref(&kernel);
                            workload.program(stream, "batch", kernels, Duration::ZERO);
                        }
                        false => workload.launch(stream, &kernel, Duration::ZERO),
                    }
                }
                workload.repeat(urgent, &KernelModel::new("urgent", MS, 264), at, MS, 9 * MS);
                let simulation = Simulation::new(machine, StaticPriority::new());
                simulation.run(&workload).unwrap().launches
            };
            assert_eq!(results(true), results(false), "{kernel:?}");
        }
    }
}

#[test]
fn an_urgent_launch_takes_the_sms_of_each_call() {
    let costs = Costs { launch: 7 * US, report: 2 * US, ..Costs::free() };
    let machine = Machine::new(4, costs);
    for at in (1..15).map(|ms| ms * MS + MS / 3) {
        let mut workload = Workload::new(0);
        let (batch, urgent) = (workload.stream(0), workload.stream(1));
        workload.program(batch, "five", &five(), Duration::ZERO);
        workload.launch(urgent, &KernelModel::new("urgent", MS, 4), at);
        let results = whole(machine).run(&workload).unwrap();
        let [five, urgent] = &results.launches[..] else { panic!("two launches: {results:?}") };
        assert_eq!(urgent.turnaround(), MS + 12 * US, "at {at:?}: the stop, and the report");
        assert_eq!((five.yields, five.resumes, five.tasks), (1, 1, TASKS), "at {at:?}");
        // It does not work from its stop until the host knows that the urgent one is over, and has launched it again.
        let least = 15 * MS + 7 * US + 2 * US + (MS + 2 * US + 7 * US) + 5 * US;
        assert!(five.done >= least && five.done < least + 2 * US, "at {at:?}: {five:?}");
        let whole = counted(&results).into_iter().all(|(_, tasks, done)| tasks == done);
        assert!(whole, "at {at:?}: {:?}", counted(&results));
    }
}

#[test]
fn kernels_of_a_plain_program_follow_with_the_gap_of_a_graph() {
    let costs = Costs { launch: 7 * US, follow: 50 * US, report: 2 * US, ..Costs::free() };
    let costs = Costs { graph: 3 * US, call: 4 * US, ..costs };
    let run = |plain| {
        let mut workload = Workload::new(0);
        let stream = workload.stream(0);
        workload.program(stream, "five", &five().map(|kernel| kernel.plain(plain)), Duration::ZERO);
        let results = whole(Machine::new(4, costs)).run(&workload).unwrap();
        let [five] = &results.launches[..] else { panic!("a launch: {results:?}") };
        assert_eq!((five.tasks, five.alone, five.yields), (TASKS, 15 * MS, 0));
        (five.started, five.done)
    };
    let end = 15 * MS + 7 * US + 2 * US;
    assert_eq!(run(true), (Some(7 * US), end + 4 * 3 * US));
    // Behind each other in their queue.
    assert_eq!(run(false), (Some(7 * US), end + 4 * 50 * US));
}

#[test]
fn an_urgent_launch_waits_for_blocks_of_the_kernel_of_a_plain_program_that_runs() {
    let run = |at| {
        let mut workload = Workload::new(0);
        let (batch, urgent) = (workload.stream(0), workload.stream(1));
        // Blocks of 16 µs, and then of 400 µs.
        let kernels = [("short", 1000), ("long", 40)];
        let kernels =
            kernels.map(|(name, tasks)| KernelModel::new(name, 4 * MS, tasks).plain(true));
        workload.program(batch, "both", &kernels, Duration::ZERO);
        workload.launch(urgent, &KernelModel::new("urgent", MS, 4), at);
        let results = Simulation::new(free(4), StaticPriority::new()).run(&workload).unwrap();
        assert_eq!(results.launches[0].tasks, 1040);
        turnarounds(&results)
    };
    assert_eq!(run(MS), [9 * MS, MS + 16 * US]);
    assert_eq!(run(5 * MS), [9 * MS, MS + 400 * US]);
    // The kernel is over before another block of it would be.
    assert_eq!(run(4 * MS - 5 * US), [9 * MS, MS + 5 * US]);
    assert_eq!(run(8 * MS - 5 * US), [8 * MS, MS + 5 * US]);
}

#[test]
fn the_next_kernel_of_a_plain_program_gives_way_when_its_own_blocks_end() {
    let mut workload = Workload::new(0);
    let streams = [0, 1, 2].map(|priority| workload.stream(priority));
    // Blocks of both take 400 µs.
    let kernels = [(); 2].map(|()| KernelModel::new("k", 4 * MS, 40).plain(true));
    workload.program(streams[0], "both", &kernels, Duration::ZERO);
    // It waits for blocks of the first kernel, which is over before they are.
    workload.launch(streams[1], &KernelModel::new("urgent", 2 * MS, 100_000), 4 * MS - 10 * US);
    workload.launch(streams[2], &KernelModel::new("most urgent", 100 * US, 2), 4 * MS - 5 * US);
    let costs = Costs { report: 2 * US, ..Costs::free() };
    let results = Simulation::new(Machine::new(4, costs), StaticPriority::new());
    let results = results.run(&workload).unwrap();
    // The second kernel has two SMs when the most urgent one is over, and leaves them a block later. Until then, the
    // urgent one has two.
    let leaves = 102 * US + 400 * US;
    let urgent = leaves + (8 * MS - 2 * leaves) / 4;
    assert_eq!(results.launches[1].done, 4 * MS + urgent + 2 * US);
}

#[test]
fn sms_are_free_between_two_kernels_of_a_plain_program() {
    let mut workload = Workload::new(0);
    let streams = [1, 0, 2].map(|priority| workload.stream(priority));
    workload.launch(streams[0], &KernelModel::new("beside", 20 * MS, 2), Duration::ZERO);
    let kernels = [(); 2].map(|()| KernelModel::new("k", 4 * MS, 4000).plain(true));
    workload.program(streams[1], "both", &kernels, Duration::ZERO);
    // The first kernel takes 8 ms with two SMs, and has blocks that wait for the others.
    workload.launch(streams[2], &KernelModel::new("urgent", MS / 2, 2), 8 * MS + MS / 5);
    let costs = Costs { graph: MS, ..Costs::free() };
    let results = Simulation::new(Machine::new(4, costs), StaticPriority::new());
    assert_eq!(turnarounds(&results.run(&workload).unwrap()), [20 * MS, 17 * MS, MS / 2]);
}

#[test]
fn a_narrow_kernel_of_a_plain_program_leaves_sms_to_others() {
    let mut workload = Workload::new(0);
    let (batch, urgent) = (workload.stream(0), workload.stream(1));
    workload.launch(batch, &KernelModel::new("batch", 3 * MS, 400), Duration::ZERO);
    let kernels = [KernelModel::new("narrow", 2 * MS, 1), KernelModel::new("wide", 2 * MS, 400)];
    workload.program(urgent, "both", &kernels, MS);
    let simulation = Simulation::new(free(4), StaticPriority::new()).plain(true);
    let results = simulation.run(&workload).unwrap();
    // Blocks of the batch take 30 µs. It has three SMs beside the narrow kernel, and beside the wide one for that time.
    let wide = 30 * US + (8 * MS - 30 * US) / 4;
    // All SMs are busy all the time.
    assert_eq!(turnarounds(&results), [22 * MS / 4, 30 * US + 2 * MS + wide]);
}

#[test]
fn kernels_that_are_queued_in_a_row_cost_the_host_one_call() {
    let costs = Costs { call: 20 * US, launch: 20 * US, follow: US, report: US, ..Costs::free() };
    let costs = Costs { absence: 50 * US, ..costs };
    let mut workload = Workload::new(0);
    let stream = workload.stream(0);
    let kernel = KernelModel::new("small", US, 4);
    workload.program(stream, "many", &vec![kernel.clone(); 97], Duration::ZERO);
    let together = Simulation::new(Machine::new(4, costs), StaticPriority::new());
    let together = together.run(&workload).unwrap().makespan;
    // The first, three times 31, and three.
    assert!(together < 97 * 2 * US + 4 * 20 * US + 50 * US, "{together:?}");
    let mut workload = Workload::new(0);
    let stream = workload.stream(0);
    (0..97).for_each(|_| workload.launch(stream, &kernel, Duration::ZERO));
    let singly = Simulation::new(Machine::new(4, costs), StaticPriority::new());
    assert!(singly.run(&workload).unwrap().makespan > 97 * 20 * US);
}

#[test]
fn a_plain_kernel_of_a_preemptible_program_runs_to_its_end() {
    let run = |at| {
        let mut workload = Workload::new(0);
        let (batch, urgent) = (workload.stream(0), workload.stream(1));
        let kernel = |name| KernelModel::new(name, 4 * MS, 40);
        let kernels = [kernel("before"), kernel("library").plain(true), kernel("behind")];
        workload.program(batch, "mixed", &kernels, Duration::ZERO);
        workload.launch(urgent, &KernelModel::new("urgent", MS, 4), at);
        let results = Simulation::new(free(4), StaticPriority::new()).run(&workload).unwrap();
        assert_eq!(results.launches[0].tasks, 120);
        turnarounds(&results)
    };
    assert_eq!(run(MS), [13 * MS, MS]);
    // Room is made for it at the end of a block.
    assert_eq!(run(5 * MS), [13 * MS, MS + 400 * US]);
    assert_eq!(run(9 * MS), [13 * MS, MS]);
}

#[test]
fn a_program_whose_form_is_chosen_is_one_launch_where_the_policy_goes_by_order() {
    let is_plain = |kernels: &[KernelModel], policy: Box<dyn Policy>| {
        let mut workload = Workload::new(0);
        let stream = workload.stream(0);
        workload.program(stream, "auto", kernels, Duration::ZERO);
        let simulation = Simulation::boxed(Machine::h200(), policy).recording(true);
        counted(&simulation.run(&workload).unwrap()).is_empty()
    };
    let short = KernelModel::new("short", MS, 100_000).auto(true);
    let long = KernelModel::new("long", 20 * MS, 100_000).auto(true);
    assert!(is_plain(&[short.clone(), short.clone()], Box::new(Fifo::new())));
    assert!(!is_plain(&[short.clone(), short.clone()], Box::<Shortest>::default()));
    assert!(!is_plain(&[short.clone(), long], Box::new(Fifo::new())));
    assert!(!is_plain(&[short.clone(), short.auto(false)], Box::new(Fifo::new())));
}

#[test]
fn a_simulation_that_stops_counts_the_calls_that_are_done() {
    for plain in [false, true] {
        let mut workload = Workload::new(0);
        let stream = workload.stream(0);
        let kernels = [100, 200, 400].map(|tasks| KernelModel::new("k", 4 * MS, tasks));
        workload.program(stream, "three", &kernels, Duration::ZERO);
        let simulation = Simulation::new(free(4), StaticPriority::new()).plain(plain);
        let results = simulation.until(6 * MS).run(&workload).unwrap();
        let [three] = &results.launches[..] else { panic!("a launch: {results:?}") };
        assert_eq!((three.tasks, three.end, three.done), (200, None, 6 * MS), "{plain}");
    }
}

#[test]
fn programs_arrive_and_are_repeated() {
    let kernels = [KernelModel::new("a", MS, 100), KernelModel::new("b", MS, 10)];
    let model = JobModel::program("both", &kernels);
    let mut workload = Workload::new(0);
    let (repeated, arriving) = (workload.stream(0), workload.stream(0));
    workload.repeat(repeated, model.clone(), MS, 3 * MS, 20 * MS);
    let arrivals = Arrivals::Periodic(10 * MS);
    let sizes = Sizes::Pareto { shape: 1.0, most: 4.0 };
    workload.arrive(arriving, model, &arrivals, sizes, 30 * MS).unwrap();
    assert_eq!(workload.len(), 4);
    for job in &workload.jobs[1..] {
        let [a, b] = job.model.kernels() else { panic!("two kernels: {job:?}") };
        assert_eq!((a.duration, b.tasks), (b.duration, a.tasks / 10), "of one size: {job:?}");
    }
    let results = Simulation::new(free(1000), StaticPriority::new()).run(&workload).unwrap();
    let queued: Vec<_> = results.of(repeated).map(|launch| launch.queued).collect();
    assert_eq!(queued, [1, 6, 11, 16].map(|time| time * MS));
    assert!(results.launches.iter().all(|launch| launch.kernel == "both"));
}

#[test]
fn a_program_that_is_not_admitted_is_over_at_once() {
    struct None(Fifo);
    impl Policy for None {
        fn name(&self) -> &str {
            "none"
        }
        fn admits(&mut self, _: Duration, _: &Arrival, _: &dyn DeviceView) -> bool {
            false
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
    for plain in [false, true] {
        let mut workload = Workload::new(0);
        let stream = workload.stream(0);
        workload.program(stream, "five", &five(), MS);
        let simulation = Simulation::new(free(4), None(Fifo::new())).plain(plain);
        let results = simulation.run(&workload).unwrap();
        let [five] = &results.launches[..] else { panic!("a launch: {results:?}") };
        let found = (five.end, five.tasks, five.started, five.turnaround());
        assert_eq!(found, (Some(End::NotAdmitted), 0, Option::None, Duration::ZERO));
    }
}

#[test]
fn programs_that_cannot_be_are_refused_in_words() {
    let run = |kernels: &[KernelModel]| {
        let mut workload = Workload::new(0);
        let stream = workload.stream(0);
        workload.program(stream, "p", kernels, Duration::ZERO);
        let result = Simulation::new(free(4), StaticPriority::new()).run(&workload);
        result.map(|results| results.launches.len()).map_err(|error| error.to_string())
    };
    let kernel = KernelModel::new("k", US, 1);
    let empty = run(&[]).unwrap_err();
    assert!(empty.contains("program `p` has no kernel; give it at least one"), "{empty}");
    let large = run(&vec![kernel.clone(); 4097]).unwrap_err();
    assert!(large.contains("4097 kernels, and 4096 is the most; make two"), "{large}");
    let bad = run(&[kernel.clone(), KernelModel::new("bad", MS, 0)]).unwrap_err();
    assert!(bad.contains("kernel `bad`: a launch has 1 to"), "{bad}");
    assert_eq!(run(&vec![kernel; 4096]), Ok(1));
}

/// A program of five kernels, and when urgent launches come.
fn storms() -> impl Strategy<Value = (Vec<KernelModel>, Vec<(u64, u64)>, u32)> {
    let kernel = (1u64..3000, 1u32..300, 1u32..4, 0u64..40, 0u64..20, 0..8);
    let kernel = kernel.prop_map(|(duration, tasks, per_sm, stop, redo, form)| {
        KernelModel::new("k", Duration::from_micros(duration), tasks)
            .blocks_per_sm(per_sm)
            .stop(Duration::from_micros(stop))
            .redo(Duration::from_micros(redo))
            .plain(form == 0)
            .auto(form > 3)
    });
    let urgent = prop::collection::vec((0u64..15_000, 1u64..300), 1..12);
    (prop::collection::vec(kernel, 5), urgent, 1u32..9)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_block_task_of_a_program_is_lost_or_done_twice(
        (kernels, urgent, _) in storms(), machine in machines(), turns in 1u32..4,
    ) {
        let mut workload = Workload::new(0);
        let (batch, stream) = (workload.stream(0), workload.stream(1));
        for _ in 0..turns {
            workload.program(batch, "five", &kernels, Duration::ZERO);
        }
        for (at, duration) in urgent {
            let kernel = KernelModel::new("urgent", Duration::from_micros(duration), 4 * machine.sms);
            workload.launch(stream, &kernel, Duration::from_micros(at));
        }
        let results = Simulation::new(machine, StaticPriority::new()).recording(true).run(&workload).unwrap();
        let tasks: u32 = kernels.iter().map(|kernel| kernel.tasks).sum();
        for launch in results.of(batch) {
            prop_assert_eq!((launch.tasks, launch.end), (tasks, Some(End::Done)));
            prop_assert!(launch.started.unwrap() + launch.alone <= launch.done, "{:?}", launch);
        }
        prop_assert_eq!(results.of(batch).count(), turns as usize);
        for (name, tasks, done) in counted(&results) {
            prop_assert_eq!(tasks, done, "{}", name);
        }
    }

    /// Stops that are free lose nothing. If every kernel fills the device, it is idle for a few block-tasks at most, and
    /// does no work twice.
    #[test]
    fn a_program_that_is_preempted_takes_as_long_as_its_work(
        (kernels, urgent, sms) in storms(), plain in any::<bool>(),
    ) {
        let fill =
            |kernel: KernelModel| KernelModel { tasks: 1_000_000, blocks_per_sm: 1, plain, ..kernel };
        let kernels: Vec<_> = kernels.into_iter().map(fill).collect();
        let mut workload = Workload::new(0);
        let (batch, stream) = (workload.stream(0), workload.stream(1));
        workload.program(batch, "five", &kernels, Duration::ZERO);
        let whole: Duration = kernels.iter().map(|kernel| kernel.duration).sum();
        let (mut work, count) = (whole, urgent.len() as u32);
        for (at, duration) in urgent {
            let (at, duration) = (Duration::from_micros(at), Duration::from_micros(duration));
            if at < whole {
                workload.launch(stream, &KernelModel::new("urgent", duration, 60), at);
                work += duration;
            }
        }
        let results = Simulation::new(free(sms), StaticPriority::new()).run(&workload).unwrap();
        prop_assert!(results.makespan >= work && results.makespan <= work + count * US, "{:?}", work);
    }
}
