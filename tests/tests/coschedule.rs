//! Plans of co-schedules, executed with kernels that count their block-tasks.

use std::collections::HashSet;
use std::time::Duration;

use preempt::coschedule::{CoSchedule, Execution, Job, Planner, Running, Sharing, Speeds};
use preempt::error::LaunchError;
use preempt::sim::{KernelModel, Machine, Simulation, StreamNumber, Workload};
use preempt::{CpuLayout, Error, Preemption, Scheduler, Stream};
use preempt_device::prelude::*;
use preempt_test_kernels as kernels;
use preempt_test_kit::storm::{Kind, Load, Tally, Victim};
use preempt_test_kit::{KERNELS, Random, device, on_gpu};

fn scheduler(execution: &Execution) -> Scheduler {
    let builder = Scheduler::builder().device(device(CpuLayout::sms(5).blocks_per_sm(4)));
    let builder = builder.kernels(KERNELS).preemption(Preemption::Preemptible);
    builder.policy(execution.clone()).build().expect("a scheduler")
}

/// A stream for each job.
fn streams(scheduler: &Scheduler, execution: &Execution, jobs: usize) -> Vec<Stream> {
    let stream = |job| {
        let stream = scheduler.stream(0);
        execution.bind(job, stream.id()).expect("a job");
        stream
    };
    (0..jobs).map(stream).collect()
}

/// From 0 to 1.
fn unit(random: &mut Random) -> f64 {
    f64::from(random.below(1 << 20)) / f64::from(1 << 20)
}

/// A job that takes about as long as the longest one of [`any_plan`].
fn job() -> Load {
    match on_gpu() {
        true => Load { tasks: 48_000, ticks: 20_000 },
        false => Load { tasks: 2400, ticks: 0 },
    }
}

/// A plan by random speeds and durations that are wrong, so that jobs are preempted anywhere.
fn any_plan(jobs: usize, random: &mut Random) -> CoSchedule {
    let longest = if on_gpu() { 5e-4 } else { 5e-3 };
    let jobs: Vec<Job> =
        (0..jobs).map(|job| Job::new(format!("job {job}"), longest * unit(random))).collect();
    let speed = |_, _, _| 0.3 + 0.6 * unit(random);
    let speeds = Speeds::in_ways(Sharing::COMMON, jobs.len(), speed).expect("speeds");
    CoSchedule::plan(&jobs, &speeds).expect("a plan")
}

#[test]
fn every_task_runs_once_while_plans_are_executed() {
    let mut random = Random(24);
    let jobs = Kind::ALL.len();
    let execution = any_plan(jobs, &mut random).execution();
    let scheduler = scheduler(&execution);
    let streams = streams(&scheduler, &execution, jobs);
    let (mut tally, mut ways) = (Tally::default(), HashSet::new());
    for round in 0.. {
        if tally.yields >= 100 && ways.len() == Sharing::COMMON.len() {
            break;
        }
        assert!(round < 1000, "{ways:?}, {tally:?}");
        execution.begin(any_plan(jobs, &mut random)).expect("as many jobs");
        let victims = Victim::launch_all(&Kind::ALL, &scheduler, &streams, job());
        for (victim, stream) in victims.expect("accepted").into_iter().zip(&streams) {
            victim.check(stream, &mut tally).expect("done");
        }
        assert_eq!(tally.mistake, None, "{tally:?}");
        assert_eq!((tally.lost, tally.repeated), (0, 0), "{tally:?}");
        let ran = execution.executed();
        ways.extend(ran.intervals().iter().filter_map(|interval| match interval.running {
            Running::Pair { sharing, .. } => Some(sharing),
            _ => None,
        }));
        assert_eq!(execution.remaining(), vec![0.0; jobs]);
    }
    assert!(scheduler.policy_error().is_none(), "{:?}", scheduler.policy_error());
}

#[test]
fn the_rest_of_a_plan_runs_when_jobs_are_cancelled() {
    const JOBS: usize = 6;
    let Load { tasks, .. } = job();
    let ticks = if on_gpu() { 20_000 } else { 2000 };
    // A loop takes some nanoseconds.
    let longest = if on_gpu() { 50_000 } else { 1_000_000 };
    let mut random = Random(7);
    let execution = any_plan(JOBS, &mut random).execution();
    let scheduler = scheduler(&execution);
    let streams = streams(&scheduler, &execution, JOBS);
    let mut midway = 0;
    for round in 0.. {
        if midway >= 10 {
            break;
        }
        assert!(round < 1000, "{midway} were cancelled midway");
        execution.begin(any_plan(JOBS, &mut random)).expect("as many jobs");
        let mut buffers: Vec<_> = (0..JOBS)
            .map(|_| {
                (scheduler.zeroed::<u32>(tasks as usize), scheduler.zeroed(tasks as usize * 32))
            })
            .map(|(counts, writes)| (counts.expect("memory"), writes.expect("memory")))
            .collect();
        let launched = streams.iter().zip(&mut buffers).map(|(stream, (counts, writes))| {
            let call = kernels::paced_1d(ticks, counts, writes).grid(tasks).block(32);
            stream.launch(call).expect("accepted")
        });
        let handles: Vec<_> = launched.collect();
        (0..random.below(longest)).for_each(|_| std::hint::spin_loop());
        let cancelled = |job: usize| job.is_multiple_of(2);
        (0..JOBS).filter(|&job| cancelled(job)).for_each(|job| handles[job].cancel());
        for (job, (handle, stream)) in handles.iter().zip(&streams).enumerate() {
            let done = match handle.wait() {
                Ok(report) => report.tasks,
                Err(Error::Launch(LaunchError::Cancelled { done, .. })) if cancelled(job) => done,
                Err(error) => panic!("job {job}: {error}"),
            };
            assert!(cancelled(job) || done == tasks, "job {job}: {done}");
            let counts = stream.download(&buffers[job].0).and_then(|copy| copy.wait());
            let counts = counts.expect("copied");
            assert_eq!(counts.iter().sum::<u32>(), done, "job {job}");
            assert!(counts.iter().all(|&count| count <= 1), "job {job}");
            midway += u32::from(done > 0 && done < tasks);
        }
    }
    assert!(scheduler.policy_error().is_none(), "{:?}", scheduler.policy_error());
}

#[preemptible(block = 1)]
fn fails() {
    panic!("this panic is part of a test");
}

#[preemptible(block = 1)]
fn nothing() {}

/// A kernel that fails on a GPU takes the context with it.
#[test]
fn the_rest_of_a_plan_runs_when_a_job_fails() {
    let execution = any_plan(4, &mut Random(3)).execution();
    let device = preempt::Device::cpu_with(CpuLayout::sms(4)).expect("a device");
    let builder = Scheduler::builder().device(device).policy(execution.clone());
    let scheduler = builder.build().expect("a scheduler");
    let streams = streams(&scheduler, &execution, 4);
    let failing = streams[1].launch(fails().grid(9)).expect("accepted");
    let others = [0, 2, 3].map(|job| streams[job].launch(nothing().grid(500)).expect("accepted"));
    let error = failing.wait().expect_err("it fails");
    assert!(matches!(error, Error::Launch(LaunchError::KernelFailed { .. })), "{error}");
    for other in others {
        assert_eq!(other.wait().expect("done").tasks, 500);
    }
    assert_eq!(execution.remaining(), [0.0; 4]);
}

/// Kernels of the simulator, and how often each is to run.
fn batch() -> Vec<(KernelModel, u32)> {
    let kernel = |name, micros, tasks| KernelModel::new(name, Duration::from_micros(micros), tasks);
    vec![
        // Half of the SMs, a third, all of them with blocks that take long, and all of them.
        (kernel("half", 9_000, 66).blocks_per_sm(1), 3),
        (kernel("third", 5_000, 44).blocks_per_sm(1), 4),
        (kernel("uneven", 7_000, 140).blocks_per_sm(1), 2),
        (kernel("wide", 4_000, 10_000).blocks_per_sm(4), 2),
    ]
}

/// Runs jobs at once, each in the stream of its number, and returns the makespan.
fn simulate(kernels: &[KernelModel], these: &[usize], execution: &Execution) -> f64 {
    let mut workload = Workload::new(1);
    let streams: Vec<StreamNumber> = kernels.iter().map(|_| workload.stream(0)).collect();
    for &job in these {
        workload.launch(streams[job], &kernels[job], Duration::ZERO);
    }
    let results = Simulation::new(Machine::h200(), execution.clone()).run(&workload);
    let results = results.expect("simulated");
    assert!(results.policy_error.is_none(), "{:?}", results.policy_error);
    results.makespan.as_secs_f64()
}

#[test]
fn a_plan_takes_as_long_as_it_says() {
    let kernels: Vec<KernelModel> =
        batch().into_iter().flat_map(|(kernel, count)| vec![kernel; count as usize]).collect();
    let execution = Execution::unplanned((0..kernels.len()).map(|job| format!("job {job}")));
    (0..kernels.len()).for_each(|job| execution.bind(job, job as u32).expect("a job"));
    let ways = [Sharing::split(1, 4), Sharing::split(1, 2), Sharing::split(3, 4)];
    let measured = execution.measure(&ways, 1, |these| {
        simulate(&kernels, these, &execution);
        Ok(())
    });
    let (jobs, speeds) = measured.expect("measured");
    let all: Vec<usize> = (0..kernels.len()).collect();
    let makespan = |plan: CoSchedule| {
        let planned = plan.makespan();
        execution.begin(plan).expect("as many jobs");
        let executed = simulate(&kernels, &all, &execution);
        let ran = execution.executed();
        assert!((executed / planned - 1.0).abs() < 0.03, "{executed}, {planned}\n{ran}");
        executed
    };
    // A kernel that fills a part of the SMs has one block-task on each, all of which is dropped.
    let planner = Planner::new().preemption_cost(0.009);
    let planned = makespan(planner.plan(&jobs, &speeds).expect("a plan"));
    let in_pairs = makespan(CoSchedule::max_pair(&jobs, &speeds).expect("a plan"));
    let sequential = makespan(CoSchedule::sequential(&jobs, &speeds).expect("a plan"));
    assert!(planned <= in_pairs, "{planned}, {in_pairs}");
    assert!(in_pairs < 0.9 * sequential, "{in_pairs}, {sequential}");
}
