//! Runs that are recorded and decided again.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use std::{fs, hint, thread};

use preempt_device::prelude::*;

use super::*;
use crate::engine::{LaunchRecord, Leaving, UrgencyRecord};
use crate::error::RecordingError;
use crate::policy::{Fifo, StaticPriority};
use crate::predict::{Features, Predictor};
use crate::sim::{Costs, KernelModel, Machine, Simulation, Workload};
use crate::{CpuLayout, Device, Scheduler};

#[preemptible(block = 1)]
fn small() {
    (0..1000).for_each(|_| hint::spin_loop());
}

static GO: AtomicBool = AtomicBool::new(false);

/// Block-tasks of [`waits`] that have begun.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// Runs until `GO` is set.
#[preemptible(block = 1)]
fn waits() {
    // Release: the block has told how far it is before that.
    WAITING.fetch_add(1, Ordering::Release);
    while !GO.load(Ordering::Relaxed) {
        hint::spin_loop();
    }
}

/// Expects launches of [`waits`] to take long, so that its blocks tell how far they are.
struct Expects;

impl Predictor for Expects {
    fn predict(&self, launch: &Features<'_>) -> Option<Duration> {
        (launch.kernel == waits().kernel().name).then_some(Duration::from_secs(1))
    }

    fn finished(&mut self, _launch: &Features<'_>, _took: Duration) {}
}

/// A recording of launches of several threads, with everything that can happen to them: one, because its kernels wait for `GO`.
pub static RECORDED: LazyLock<Recording> = LazyLock::new(recorded);

fn recorded() -> Recording {
    let device = Device::cpu_with(CpuLayout::sms(3).blocks_per_sm(2)).expect("a device");
    let builder = Scheduler::builder().device(device).predictor(Expects);
    let scheduler = builder.recording(true).build().expect("a scheduler");
    let first = scheduler.stream(0);
    let waiting = first.launch(waits().grid(6)).expect("a launch");
    while WAITING.load(Ordering::Acquire) < 6 {
        thread::yield_now();
    }
    // All SMs are taken, so the policy has to decide.
    let urgent = scheduler.stream(9).launch(small().grid(1)).expect("a launch");
    GO.store(true, Ordering::Relaxed);
    thread::scope(|scope| {
        for priority in 0..3 {
            let scheduler = &scheduler;
            scope.spawn(move || {
                let stream = scheduler.stream(priority);
                let mut buffer = scheduler.zeroed::<u32>(8).expect("a buffer");
                for turn in 0..60 {
                    let handle = stream.launch(small().grid(1 + turn % 7)).expect("a launch");
                    match turn % 10 {
                        3 => handle.cancel(),
                        5 => stream.set_priority(priority + 1),
                        7 => drop(stream.upload(vec![1; 8], &mut buffer)),
                        _ => {}
                    }
                }
            });
        }
    });
    waiting.wait().expect("done");
    urgent.wait().expect("done");
    scheduler.synchronize().expect("done");
    scheduler.recording().expect("recorded")
}

#[test]
fn a_run_of_several_threads_is_decided_again_in_the_same_way() {
    let recording = &*RECORDED;
    assert_eq!((recording.launches(), recording.sms()), (2 + 3 * 60, 3));
    assert_eq!(recording.policy(), "static priority with anticipation");
    let replay = recording.replay(StaticPriority::new().anticipating()).expect("a replay");
    assert!(replay.is_identical(), "{:?}", replay.difference);
    assert_eq!((replay.steps, replay.plans), (recording.0.steps.len(), recording.plans()));
    assert!(replay.plans > 10, "{replay:?}");
    let looks = recording.0.steps.iter().filter_map(|step| match &step.input {
        Input::Look { running, .. } => Some(running.len()),
        _ => None,
    });
    assert_eq!(looks.max(), Some(6), "the urgent launch's decision knows of all blocks");

    let other = recording.replay(Fifo::new()).expect("a replay");
    let difference = other.difference.expect("the urgent launch waits");
    assert_ne!(difference.recorded, difference.replayed);

    // Any number that the engine is told or decided counts.
    for index in [1, recording.0.steps.len() / 2, recording.0.steps.len() - 1] {
        let mut changed = recording.clone();
        changed.0.steps[index].decided ^= 1;
        let replay = changed.replay(StaticPriority::new().anticipating()).expect("a replay");
        assert_eq!(replay.difference.map(|difference| difference.step), Some(index));
    }
}

#[test]
fn a_recording_comes_back_from_its_file() {
    let mut workload = Workload::new(5);
    for priority in 0..4 {
        let stream = workload.stream(priority);
        let kernel = KernelModel::new("k", Duration::from_micros(300), 9).variation(0.5);
        let end = Duration::from_millis(5);
        workload.repeat(stream, &kernel, Duration::ZERO, Duration::from_micros(70), end);
    }
    let machine = Machine::new(4, Costs::h200());
    let simulation = Simulation::new(machine, StaticPriority::new()).recording(true);
    let results = simulation.run(&workload).expect("results");
    let recording = results.recording.expect("recorded");
    assert_eq!(recording.launches(), results.launches.len());

    let path = std::env::temp_dir().join(format!("preempt-recording-{}.json", std::process::id()));
    recording.save(&path).expect("saved");
    let loaded = Recording::load(&path).expect("loaded");
    assert!(loaded == recording);
    let replay = loaded.replay(StaticPriority::new()).expect("a replay");
    assert!(replay.is_identical() && replay.plans > 20, "{replay:?}");

    fs::write(&path, "{}").expect("written");
    assert!(matches!(
        Recording::load(&path),
        Err(Error::Recording(RecordingError::Invalid { .. }))
    ));
    let later = Recording(Contents { version: VERSION + 1, ..loaded.0 });
    later.save(&path).expect("saved");
    let error = Recording::load(&path).expect_err("a version from the future");
    assert!(error.to_string().contains(&format!("version {VERSION}")), "{error}");
    fs::remove_file(&path).expect("removed");
    assert!(matches!(Recording::load(&path), Err(Error::Recording(RecordingError::File { .. }))));
    // Nothing is recorded unless it was asked for.
    let machine = Machine::new(4, Costs::free());
    let results = Simulation::new(machine, StaticPriority::new()).run(&workload).expect("results");
    assert!(results.recording.is_none());
}

#[test]
fn recordings_that_cannot_have_happened_are_refused() {
    let launch = LaunchRecord {
        tasks: 10,
        predicted: None,
        yield_overhead: 0,
        requeued: 0,
        blocks_per_sm: 0,
        on_last_sm: 0,
        plain: false,
        hardware_stop: None,
        leaving: Leaving::AtEnd,
    };
    let submit = Input::Submit {
        op: 1 << 32 | 1,
        stream: 0,
        name: "k".into(),
        uses: Vec::new(),
        after: None,
        urgency: UrgencyRecord { priority: 0, weight: 1, deadline: None, latency_limit: None },
        launch: Some(launch),
        opaque: None,
        calls: Vec::new(),
        armed: false,
    };
    let steps = [submit, Input::Settle { plans: Vec::new() }];
    let steps = steps.map(|input| Step { now: 0, decided: 0, input }).to_vec();
    let recording = Recording(Contents {
        version: VERSION,
        policy: "p".into(),
        sms: 4,
        queues: [1, 1, 1, 1],
        costs: Costs::h200(),
        steps,
    });
    // An SM without room for a block.
    assert!(recording.replay(Fifo::new()).is_ok_and(|replay| replay.difference.is_some()));
    let nowhere = Recording(Contents { sms: 0, ..recording.0.clone() });
    assert!(matches!(
        nowhere.replay(Fifo::new()),
        Err(Error::Recording(RecordingError::Invalid { .. }))
    ));
    let narrow = Recording(Contents { queues: [0, 1, 1, 1], ..recording.0 });
    assert!(matches!(
        narrow.replay(Fifo::new()),
        Err(Error::Recording(RecordingError::Invalid { .. }))
    ));
}

#[test]
fn block_tasks_that_ran_twice_are_found() {
    let mut workload = Workload::new(0);
    let stream = workload.stream(0);
    workload.launch(stream, &KernelModel::new("k", Duration::from_millis(1), 9), Duration::ZERO);
    let simulation = Simulation::new(Machine::h200(), Fifo::new()).recording(true);
    let mut recording = simulation.run(&workload).expect("results").recording.expect("recorded");
    for step in &mut recording.0.steps {
        if let Input::CohortOut { done, .. } = &mut step.input {
            *done += 1;
        }
    }
    // A panic of the engine where it checks itself, and another decision where it does not.
    assert!(!recording.replay(Fifo::new()).is_ok_and(|replay| replay.is_identical()));
}
