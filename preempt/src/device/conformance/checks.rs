//! The checks of cohorts, of what goes with them, and of opaque work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use preempt_device::abi::{Signal, SmRange};

use super::memory::download;
use super::{Check, Control, LIMIT, Launch, Report, Rig, Session};
use crate::device::{
    Copy, CopyKind, Gate, KernelLaunch, OwnedCopy, Owner, ProgramLaunch, Rows, Step,
};
use crate::engine::Hint;
use crate::error::{CodeError, Error};
use crate::vocabulary::{Costs, QueueIndex};

/// Each with its name.
pub(super) const ALL: &[(&str, Check)] = &[
    ("a cohort runs every block-task once", cohorts_run_every_task_once),
    ("a plain grid runs every block-task once", plain_grids_run_every_task_once),
    ("the calls of a program run in their order, and post once", programs_run_in_order),
    ("the first cohort's blocks start with the tasks that are handed to them", tasks_are_handed),
    ("grids of a queue end in their order", queues_keep_order),
    ("a cohort behind a launch that is not done does nothing", followers_of_the_stopped_leave),
    ("a signal makes a cohort leave, and its post says what was done", signals_stop_cohorts),
    ("blocks tell how far they are", blocks_tell_how_far_they_are),
    ("a requeue list comes back empty", requeue_lists_come_back_empty),
    ("control blocks serve one launch after another", control_blocks_are_used_again),
    ("a cohort behind a gate runs once that is opened, and not before", gates_hold_cohorts),
    ("a cohort behind a gate that was not opened does nothing", closed_gates_stay_closed),
    ("a gate leaves by itself when its limit is over", gates_have_a_limit),
    ("a gate leaves when the cohort behind it is refused", gates_leave_refused_cohorts),
    ("an open gate tells other queues' cohorts, and a closed one does not", gates_tell_others),
    ("the next scheduler finds no signal", signals_end_with_the_scheduler),
    ("opaque work ends, and its fault is told", opaque_work_ends),
    ("a fault is told before the end of its cohort", faults_come_first),
    ("a kernel without code is refused, and nothing else is", kernels_without_code_are_refused),
    ("no wake-up is lost", no_wake_up_is_lost),
];

fn cohorts_run_every_task_once(rig: &mut Rig<'_>) {
    for tasks in [1, 7, 300] {
        let mut launch = rig.counting(tasks);
        let order = rig.order(&launch, 0);
        rig.launch(&launch, &order);
        let end = rig.cohort_out(&mut launch);
        assert_eq!((end.posted.done, end.stopped), (tasks, None));
        assert!(rig.session.has_no_cohorts());
        rig.expect_counts(&launch, 1);
        rig.retire(&launch, true);
    }
}

fn plain_grids_run_every_task_once(rig: &mut Rig<'_>) {
    for tasks in [1, 300] {
        let mut launch = rig.counting(tasks);
        let order = super::CohortOrder { plain: true, blocks: tasks, ..rig.order(&launch, 0) };
        rig.launch(&launch, &order);
        assert_eq!(rig.cohort_out(&mut launch).posted.done, tasks);
        rig.expect_counts(&launch, 1);
        rig.retire(&launch, false);
    }
}

/// Counting kernels, and copies of what they have counted by then.
fn programs_run_in_order(rig: &mut Rig<'_>) {
    const TASKS: u32 = 20;
    let mut launch = rig.counting(TASKS);
    let other = rig.counting(TASKS);
    let seen = rig.buffer(TASKS as usize);
    let kernel =
        |kernel: &Arc<KernelLaunch>, version| Step::Launch { launch: kernel.clone(), version };
    let rows = Rows::one(4 * TASKS as usize);
    let (from, to) = (launch.buffers[0].address(), seen.address());
    let owners: [Owner; 2] = [launch.buffers[0].memory.clone(), seen.memory.clone()];
    let copy = Copy { kind: CopyKind::OnDevice, from, to, rows };
    // SAFETY: the owners are those of the places, and the rig orders what uses them.
    let copy = unsafe { OwnedCopy::new(copy, owners) };
    let calls = [kernel(&launch.kernel, 0), Step::Copy(Arc::new(copy)), kernel(&launch.kernel, 0)];
    let steps = calls.to_vec();
    // SAFETY: these are calls of the kernels, and a copy between buffers.
    let prepared = unsafe { rig.device.inner.backend.prepare(&[&steps]) }.expect("prepared");
    let prepared = prepared.into_iter().next();
    let mut program = ProgramLaunch { version: 0, steps, prepared, chains: None, is_call: false };
    for turn in 0..3 {
        if turn == 2 {
            // The last call counts somewhere else.
            program.version = 1;
            program.steps[2] = kernel(&other.kernel, 1);
        }
        let order = super::CohortOrder { plain: true, blocks: TASKS, ..rig.order(&launch, 1) };
        let now = rig.now();
        let launched = Arc::new(program.clone());
        rig.session.launch_program(now, &order, &launched, 7).expect("launched");
        assert_eq!(rig.next_end(launch.op).posted.done, 7);
        assert!(rig.session.has_no_cohorts());
        if rig.ran.is_none() {
            let elsewhere = u32::from(turn == 2);
            rig.expect_counts(&launch, 2 * turn + 2 - elsewhere);
            rig.expect_counts(&other, elsewhere);
            let seen = download(rig, &seen);
            assert!(seen.iter().all(|&count| count == 2 * turn + 1), "{seen:?}");
        }
    }
    launch.done = TASKS;
    rig.retire(&launch, false);
}

fn tasks_are_handed(rig: &mut Rig<'_>) {
    let tasks = 3 * rig.workers() + 1;
    let mut launch = rig.counting(tasks);
    let order = rig.order(&launch, 0);
    let order = super::CohortOrder { handed: order.blocks, is_first: true, ..order };
    rig.launch(&launch, &order);
    assert_eq!(rig.cohort_out(&mut launch).posted.done, tasks);
    rig.expect_counts(&launch, 1);
}

fn queues_keep_order(rig: &mut Rig<'_>) {
    // Cohorts post by themselves, and the ends of plain grids may have to be asked for.
    const PLAIN: [bool; 6] = [false, true, true, false, true, false];
    rig.controls.resize_with(PLAIN.len(), Control::default);
    // Looked at while they run, and when all are over.
    for pause in [Duration::ZERO, MEANWHILE] {
        let mut chain: Vec<Launch> = Vec::new();
        let mut gate = None;
        for (plain, control) in PLAIN.into_iter().zip(0..) {
            let mut launch = rig.counting(50);
            launch.control = control;
            if control == 0 {
                gate = Some(rig.launch_gated(&launch, 1));
            } else {
                let order = super::CohortOrder { plain, ..rig.order(&launch, 1) };
                rig.launch(&launch, &order);
            }
            chain.push(launch);
        }
        rig.device.inner.backend.open_gate(gate.expect("before the first one"));
        thread::sleep(pause);
        let mut ended = 0;
        while ended < PLAIN.len() {
            let reports = rig.next_reports();
            let next = ended + reports.len();
            // Launches that end together are reported from the last one on.
            for (launch, report) in chain[ended..next].iter_mut().rev().zip(reports) {
                match report {
                    Report::CohortOut(end) if end.order.op == launch.op => {
                        rig.depart(launch, &end);
                        assert_eq!(launch.done, 50);
                    }
                    other => panic!("out of order: {other:?}"),
                }
            }
            ended = next;
        }
        for (launch, plain) in chain.iter().zip(PLAIN) {
            rig.expect_counts(launch, 1);
            rig.retire(launch, !plain);
        }
    }
}

/// Launches a cohort of a yielding kernel and stops it halfway.
fn stop_in_its_midst(rig: &mut Rig<'_>, queue: QueueIndex) -> Launch {
    for _ in 0..10 {
        let tasks = 4 * rig.workers();
        let mut launch = rig.yielding(tasks);
        let order = rig.order(&launch, queue);
        rig.launch(&launch, &order);
        thread::sleep(Duration::from_micros(200));
        rig.stop(queue);
        let end = rig.cohort_out(&mut launch);
        if end.posted.done < tasks {
            assert!(end.stopped.is_some());
            return launch;
        }
        rig.retire(&launch, true);
    }
    panic!("no signal reaches a cohort before it is over");
}

fn signals_stop_cohorts(rig: &mut Rig<'_>) {
    let mut launch = stop_in_its_midst(rig, 0);
    run_to_end(rig, &mut launch);
}

/// Runs what is left of a launch of a yielding kernel, requeued block-tasks too, in cohorts that are all stopped. It
/// ends because a block-task is requeued twice at most.
fn run_to_end(rig: &mut Rig<'_>, launch: &mut Launch) {
    for queue in [1, 0].into_iter().cycle() {
        let order = rig.order(launch, queue);
        rig.launch(launch, &order);
        thread::sleep(Duration::from_micros(200));
        rig.stop(queue);
        rig.cohort_out(launch);
        if launch.done == launch.tasks {
            break;
        }
    }
    rig.expect_results(launch);
    rig.retire(launch, true);
}

fn followers_of_the_stopped_leave(rig: &mut Rig<'_>) {
    rig.controls.resize_with(2, Control::default);
    let tasks = 4 * rig.workers();
    for _ in 0..10 {
        let mut first = rig.yielding(tasks);
        let mut second = rig.counting(10);
        second.control = 1;
        let order = rig.order(&first, 0);
        rig.launch(&first, &order);
        let after = Some(rig.after(&first, &order));
        let order = super::CohortOrder { after, ..rig.order(&second, 0) };
        rig.launch(&second, &order);
        thread::sleep(Duration::from_micros(200));
        rig.stop(0);
        let mut out = 0;
        while out < 2 {
            for report in rig.next_reports() {
                let Report::CohortOut(end) = report else { panic!("{report:?}") };
                let is_first = end.order.op == first.op;
                rig.depart(if is_first { &mut first } else { &mut second }, &end);
                out += 1;
            }
        }
        let (is_stopped, done) = (first.done < tasks, second.done);
        assert!(!is_stopped || done == 0, "{done} tasks behind a launch that is not done");
        rig.expect_counts(&second, u32::from(done == second.tasks));
        rig.retire(&first, true);
        rig.retire(&second, true);
        if is_stopped {
            return;
        }
    }
    panic!("no signal reaches a cohort before it is over");
}

/// Time in which a cohort that should not run, or should not leave, would be seen to do so.
const MEANWHILE: Duration = Duration::from_millis(2);

/// Asserts that nothing is reported for a while.
fn expect_no_report(rig: &mut Rig<'_>) {
    thread::sleep(MEANWHILE);
    rig.session.poll(Duration::ZERO, &mut rig.reports);
    assert!(rig.reports.is_empty(), "{:?}", rig.reports);
}

fn gates_hold_cohorts(rig: &mut Rig<'_>) {
    for tasks in [1, 300] {
        // The first gate of a queue, and a later one.
        for _ in 0..2 {
            let mut launch = rig.counting(tasks);
            let gate = rig.launch_gated(&launch, 1);
            expect_no_report(rig);
            rig.device.inner.backend.open_gate(gate);
            assert_eq!(rig.cohort_out(&mut launch).posted.done, tasks);
            assert!(rig.session.has_no_cohorts());
            rig.expect_counts(&launch, 1);
            rig.retire(&launch, true);
        }
    }
    cohorts_run_every_task_once(rig);
}

/// A cohort that left its gate without block-tasks: the launch runs as if there had been none.
fn run_after_gate(rig: &mut Rig<'_>, mut launch: Launch) {
    assert_eq!(rig.cohort_out(&mut launch).posted.done, 0);
    rig.expect_counts(&launch, 0);
    let order = rig.order(&launch, 1);
    rig.launch(&launch, &order);
    assert_eq!(rig.cohort_out(&mut launch).posted.done, launch.tasks);
    rig.expect_counts(&launch, 1);
    rig.retire(&launch, true);
}

fn closed_gates_stay_closed(rig: &mut Rig<'_>) {
    let backend = rig.device.inner.backend.clone();
    let mut past = Vec::new();
    for open in [false, true, false, false] {
        let mut launch = rig.counting(50);
        let gate = rig.launch_gated(&launch, 1);
        // Gates of the same queue that are gone, opened or closed.
        for &gone in &past {
            backend.open_gate(gone);
        }
        expect_no_report(rig);
        past.push(gate);
        if open {
            backend.open_gate(gate);
            assert_eq!(rig.cohort_out(&mut launch).posted.done, 50);
            rig.expect_counts(&launch, 1);
            rig.retire(&launch, true);
        } else {
            backend.close_gate(gate);
            run_after_gate(rig, launch);
        }
    }
}

fn gates_have_a_limit(rig: &mut Rig<'_>) {
    rig.session = Session::new(rig.device, &Costs::h200(), MEANWHILE);
    for _ in 0..2 {
        let launch = rig.counting(50);
        rig.launch_gated(&launch, 1);
        run_after_gate(rig, launch);
    }
}

fn gates_leave_refused_cohorts(rig: &mut Rig<'_>) {
    let Some(without_code) = rig.kernels.without_code else { return };
    rig.device.inner.backend.expect_gates();
    let refused = rig.prepare(5, without_code);
    let mut order = rig.order(&refused, 1);
    order.gated = true;
    let now = rig.now();
    assert!(rig.session.launch(now, &order, &refused.kernel).is_err());
    rig.retire(&refused, false);
    let mut next = rig.counting(1);
    let order = rig.order(&next, 1);
    rig.launch(&next, &order);
    rig.cohort_out(&mut next);
    rig.retire(&next, true);
}

fn gates_tell_others(rig: &mut Rig<'_>) {
    let backend = rig.device.inner.backend.clone();
    rig.controls.resize_with(2, Control::default);
    let tasks = 4 * rig.workers();
    let mut was_told = false;
    // A cohort may be over before it sees the signal.
    for open in [false, true].into_iter().cycle().take(20) {
        let mut victim = rig.yielding(tasks);
        let order = rig.order(&victim, 0);
        // There is room for the gate, and for what is behind it.
        rig.launch(&victim, &super::CohortOrder { blocks: order.blocks - 1, ..order });
        let mut launch = rig.counting(1);
        launch.control = 1;
        let gate = rig.launch_gated(&launch, 1);
        rig.epochs[0] += 1;
        let signal = Signal::new(rig.epochs[0], SmRange::EMPTY);
        rig.session.hint(&[Hint { gate: 1, queue: 0, signal }]);
        if open {
            backend.open_gate(gate);
        } else {
            backend.close_gate(gate);
            thread::sleep(MEANWHILE);
            // It waits for a signal, perhaps.
            rig.session.poll(Duration::ZERO, &mut rig.reports);
            let is_out = |report: &Report| match report {
                Report::CohortOut(end) if end.order.op == victim.op => Some(end.posted.done),
                _ => None,
            };
            match rig.reports.iter().find_map(is_out) {
                Some(done) => assert_eq!(done, tasks, "a gate that was closed tells others"),
                None => rig.stop(0),
            }
        }
        let mut out = 0;
        while out < 2 {
            for report in rig.next_reports() {
                let Report::CohortOut(end) = report else { panic!("{report:?}") };
                let of = if end.order.op == victim.op { &mut victim } else { &mut launch };
                rig.depart(of, &end);
                out += 1;
            }
        }
        assert_eq!(launch.done, u32::from(open));
        rig.retire(&launch, true);
        if open && victim.done < tasks {
            run_to_end(rig, &mut victim);
            was_told = true;
            break;
        }
        rig.retire(&victim, true);
    }
    assert!(was_told, "no signal of a gate reaches a cohort before it is over");
}

fn blocks_tell_how_far_they_are(rig: &mut Rig<'_>) {
    if rig.ran.is_some() {
        // No block runs there.
        return;
    }
    let mut launch = rig.yielding(2 * rig.workers());
    let order = rig.order(&launch, 0);
    // Each block has a task.
    let order = super::CohortOrder { handed: order.blocks, is_first: true, ..order };
    rig.launch(&launch, &super::CohortOrder { tells_progress: true, ..order });
    let (start, mut begun) = (Instant::now(), Vec::new());
    // The cohort is out when its end is taken in, below.
    while begun.len() < order.blocks as usize {
        assert!(start.elapsed() < LIMIT, "{} of {} blocks have told", begun.len(), order.blocks);
        begun = rig.session.told(0);
    }
    let sms = rig.device.properties().sms;
    assert!(begun.iter().all(|begun| begun.sm < sms), "{begun:?}");
    rig.cohort_out(&mut launch);
    rig.retire(&launch, true);
    assert_eq!(rig.session.told(0), [], "no cohort is there");

    // What the last cohort has left there is not told of a cohort that tells nothing, ..
    let mut launch = rig.yielding(rig.workers());
    let order = rig.order(&launch, 0);
    rig.launch(&launch, &order);
    assert_eq!(rig.session.told(0), []);
    rig.cohort_out(&mut launch);
    rig.retire(&launch, true);

    // .. nor of a cohort that has not begun.
    let backend = rig.device.inner.backend.clone();
    backend.expect_gates();
    let mut launch = rig.yielding(1);
    let order = rig.order(&launch, 0);
    let order = super::CohortOrder { gated: true, tells_progress: true, ..order };
    rig.launch(&launch, &order);
    assert_eq!(rig.session.told(0), []);
    backend.open_gate(Gate::of(&order));
    while launch.done < 1 {
        // The gate may have been there for as long as it waits.
        rig.cohort_out(&mut launch);
        if launch.done < 1 {
            let order = rig.order(&launch, 0);
            rig.launch(&launch, &order);
        }
    }
    rig.retire(&launch, true);
}

fn requeue_lists_come_back_empty(rig: &mut Rig<'_>) {
    for _ in 0..3 {
        // Its requeued block-tasks are still on the list, which the next launch may get.
        let cancelled = stop_in_its_midst(rig, 0);
        rig.retire(&cancelled, true);
        let mut launch = rig.yielding(1);
        run_to_end(rig, &mut launch);
    }
}

fn control_blocks_are_used_again(rig: &mut Rig<'_>) {
    // More launches than a device has lists from the start.
    for _ in 0..300 {
        let mut launch = rig.counting(3);
        let order = rig.order(&launch, 0);
        rig.launch(&launch, &order);
        assert_eq!(rig.cohort_out(&mut launch).posted.done, 3);
        rig.retire(&launch, true);
    }
}

fn signals_end_with_the_scheduler(rig: &mut Rig<'_>) {
    rig.epochs[0] = 1000;
    rig.stop(0);
    cohorts_run_every_task_once(&mut Rig::new(rig.device, rig.kernels, rig.ran, &rig.ops));
}

fn opaque_work_ends(rig: &mut Rig<'_>) {
    for fault in [None, Some("as intended")] {
        let op = rig.op();
        let called = Arc::new(AtomicBool::new(false));
        let calls = called.clone();
        rig.device.inner.backend.opaque(
            op,
            Box::new(move |_| {
                calls.store(true, Ordering::Relaxed);
                fault.map_or(Ok(()), |fault| Err(fault.into()))
            }),
        );
        assert_eq!(rig.copy_done(op).as_deref(), fault);
        assert!(called.load(Ordering::Relaxed));
    }
}

fn faults_come_first(rig: &mut Rig<'_>) {
    let Some(faulty) = rig.kernels.faulty else { return };
    let mut launch = rig.prepare(5, faulty);
    let order = rig.order(&launch, 0);
    rig.launch(&launch, &order);
    let mut is_told = false;
    loop {
        for report in rig.next_reports() {
            match report {
                Report::Fault(op, _) => is_told = op == launch.op,
                Report::CohortOut(end) => {
                    assert!(is_told, "the end comes before the fault");
                    rig.depart(&mut launch, &end);
                    assert_eq!(launch.done, 5, "what is not run is counted");
                    return rig.retire(&launch, true);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

fn kernels_without_code_are_refused(rig: &mut Rig<'_>) {
    if let Some(without_code) = rig.kernels.without_code {
        let launch = rig.prepare(5, without_code);
        let refused = rig.try_launch(&launch);
        assert!(matches!(refused, Err(Error::Code(CodeError::Missing { .. }))), "{refused:?}");
        assert!(rig.session.has_no_cohorts());
        rig.retire(&launch, false);
    }
    cohorts_run_every_task_once(rig);
}

fn no_wake_up_is_lost(rig: &mut Rig<'_>) {
    let device = &rig.device.inner;
    let start = Instant::now();
    for round in 0..200 {
        let mark = device.mark();
        thread::scope(|scope| {
            scope.spawn(|| {
                // Before the wait, and halfway through it.
                if round % 2 == 0 {
                    thread::sleep(Duration::from_micros(round));
                }
                device.announce();
            });
            device.wait(mark, LIMIT);
        });
        assert!(device.mark() != mark);
    }
    assert!(start.elapsed() < LIMIT);
    // Without news a wait lasts as long as it was told.
    let (mark, start) = (device.mark(), Instant::now());
    device.wait(mark, Duration::from_millis(5));
    device.wait(mark, Duration::ZERO);
    assert!(device.mark() != mark || start.elapsed() >= Duration::from_millis(5));
    for _ in 0..20 {
        let mut launch = rig.counting(1);
        let order = rig.order(&launch, 0);
        let mark = rig.device.inner.mark();
        rig.launch(&launch, &order);
        // The cohort may be over by now.
        rig.device.inner.wait(mark, LIMIT);
        rig.cohort_out(&mut launch);
        rig.retire(&launch, true);
    }
}
