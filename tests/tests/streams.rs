//! Order between streams, inherited priorities, and opaque work in the order of a stream.

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use preempt::error::{ArgumentError, LaunchError};
use preempt::{
    Buffer, Call, CpuLayout, Device, Error, Event, Handle, LaunchReport, Opaque, Preemption,
    Scheduler, Stream,
};
use preempt_device::atomic::{AtomicU32, Ordering::SeqCst};
use preempt_device::prelude::*;
use preempt_test_kit::{Gate, Random, gated};

/// Time in which an operation ends that nothing holds back.
const WHILE: Duration = Duration::from_millis(20);

fn scheduler(sms: u32) -> Scheduler {
    let device = Device::cpu_with(CpuLayout::sms(sms)).expect("a device");
    Scheduler::builder().device(device).build().expect("a scheduler")
}

fn launch(stream: &Stream, call: Call<'static>) -> Handle<LaunchReport> {
    stream.launch(call).expect("accepted")
}

/// The result of an operation that would wait for ever if no credit were returned.
fn in_time<T>(handle: &Handle<T>) -> Result<T, Error> {
    handle.wait_timeout(Duration::from_secs(20)).expect("it gets through")
}

fn log(scheduler: &Scheduler) -> Buffer<u32> {
    scheduler.zeroed(64).expect("memory")
}

/// Runs until the test ends it.
#[preemptible(block = 1)]
fn nothing() {}

fn endless() -> Call<'static> {
    nothing().grid(500_000_000)
}

#[test]
fn a_stream_waits_for_an_event_of_another() {
    let scheduler = scheduler(2);
    let gate = Gate::new(&scheduler);
    let (mut first_log, mut second_log) = (log(&scheduler), log(&scheduler));
    let open = Gate::new(&scheduler);
    open.open();
    let (first, second) = (scheduler.stream(0), scheduler.stream(9));
    let before = launch(&first, gated(&gate.0, &mut first_log, 1).grid(1));
    let event = first.record_event().expect("recorded");
    // Operations behind the event are not waited for.
    let never = Gate::new(&scheduler);
    let mut never_log = log(&scheduler);
    let after = launch(&first, gated(&never.0, &mut never_log, 3).grid(1));
    second.wait_event(&event).expect("accepted");
    let waiting = launch(&second, gated(&open.0, &mut second_log, 2).grid(1));
    gate.wait_for(1);
    assert!(waiting.wait_timeout(WHILE).is_none() && !event.is_done());
    gate.open();
    in_time(&waiting).expect("runs");
    assert!(event.is_done() && before.is_done() && !after.is_done());
    event.synchronize().expect("it has happened");
    never.open();
    first.synchronize().expect("done");
    assert!(after.is_done());
    // A late waiter waits for nothing.
    second.wait_event(&event).expect("accepted");
    second.synchronize().expect("done");
}

#[test]
fn a_stream_may_wait_for_its_own_event_and_for_one_whose_launch_was_cancelled() {
    let scheduler = scheduler(1);
    let gate = Gate::new(&scheduler);
    let mut own = log(&scheduler);
    let stream = scheduler.stream(0);
    let running = launch(&stream, gated(&gate.0, &mut own, 1).grid(1));
    let cancelled = launch(&stream, gated(&gate.0, &mut own, 2).grid(1));
    let event = stream.record_event().expect("recorded");
    stream.wait_event(&event).expect("accepted");
    cancelled.cancel();
    gate.open();
    event.synchronize().expect("it happens");
    assert!(running.is_done());
    scheduler.synchronize().expect("no complaints");
}

#[test]
fn an_event_of_a_scheduler_that_is_gone_never_happens() {
    let scheduler = scheduler(1);
    let gate = Gate::new(&scheduler);
    let mut own = log(&scheduler);
    let stream = scheduler.stream(0);
    let _running = launch(&stream, gated(&gate.0, &mut own, 1).grid(1));
    gate.wait_for(1);
    let event = stream.record_event().expect("recorded");
    std::thread::scope(|scope| {
        scope.spawn(|| drop(scheduler));
        let error = event.synchronize().expect_err("the scheduler is gone");
        assert!(matches!(error, Error::Launch(LaunchError::SchedulerDropped { .. })), "{error:?}");
        assert!(!event.is_done());
        gate.open();
    });
    let error = stream.record_event().map(drop).expect_err("the scheduler is gone");
    assert!(matches!(error, Error::Launch(LaunchError::SchedulerDropped { .. })), "{error:?}");
}

/// A launch that has several block-tasks to go when its gate is opened, and an endless one of a higher priority.
fn inversion(scheduler: &Scheduler, through: impl FnOnce(&Stream, &Stream, &mut Buffer<u32>)) {
    let gate = Gate::new(scheduler);
    let mut shared = log(scheduler);
    let (low, urgent) = (scheduler.stream(0), scheduler.stream(9));
    let waited_for = launch(&low, gated(&gate.0, &mut shared, 1).grid(20));
    gate.wait_for(1);
    let medium = launch(&scheduler.stream(5), endless());
    through(&low, &urgent, &mut shared);
    gate.open();
    in_time(&launch(&urgent, nothing().grid(1))).expect("it gets through");
    assert_eq!(in_time(&waited_for).expect("runs").tasks, 20);
    assert!(!medium.is_done());
    medium.cancel();
    let error = medium.wait().expect_err("cancelled");
    assert!(matches!(error, Error::Launch(LaunchError::Cancelled { .. })), "{error:?}");
}

#[test]
fn what_an_urgent_stream_waits_for_is_not_held_up_by_what_is_less_urgent() {
    inversion(&scheduler(1), |low, urgent, _| {
        let event = low.record_event().expect("recorded");
        urgent.wait_event(&event).expect("accepted");
    });
}

#[test]
fn priorities_are_inherited_through_copies_of_a_shared_buffer() {
    inversion(&scheduler(1), |_, urgent, shared| {
        let _copy = urgent.download(shared).expect("accepted");
    });
}

#[test]
fn priorities_are_inherited_through_opaque_work() {
    let scheduler = scheduler(1);
    // Once before, so that nothing has to leave the device for it.
    let opaque = || Opaque::new("opaque");
    let first = scheduler.stream(0).opaque(opaque(), |_| Ok(())).expect("accepted");
    first.wait().expect("runs");
    inversion(&scheduler, |_, urgent, shared| {
        let between = urgent.opaque(opaque().reads(shared), |_| Ok(()));
        drop(between.expect("accepted"));
    });
}

#[test]
fn a_launch_that_becomes_urgent_takes_those_before_it_along() {
    let scheduler = scheduler(1);
    let gate = Gate::new(&scheduler);
    let mut own = log(&scheduler);
    let low = scheduler.stream(0);
    let before = launch(&low, gated(&gate.0, &mut own, 1).grid(20));
    gate.wait_for(1);
    let medium = launch(&scheduler.stream(5), endless());
    let raised = launch(&low, nothing().grid(1));
    raised.set_priority(9);
    gate.open();
    in_time(&raised).expect("it gets through");
    assert!(before.is_done() && !medium.is_done());
}

#[test]
fn opaque_work_runs_in_the_order_of_its_stream_and_of_its_buffers() {
    let scheduler = scheduler(2);
    let (first, second) = (scheduler.stream(0), scheduler.stream(1));
    let mut data = scheduler.zeroed::<u32>(1).expect("memory");
    #[preemptible(block = 1)]
    fn multiply_add(data: SliceMut<u32>, factor: u32, offset: u32) {
        // SAFETY: one thread, and no other work uses the buffer.
        unsafe { data.write(0, data.read(0).wrapping_mul(factor).wrapping_add(offset)) };
    }
    let mut expected = 0u32;
    for step in 0..60 {
        let stream = if step % 4 < 2 { &first } else { &second };
        if step % 2 == 0 {
            drop(launch(stream, multiply_add(&mut data, 31, step).grid(1)));
        } else {
            let address = data.address() as usize;
            let work = move |raw: preempt::RawStream| {
                assert!(raw.as_raw().is_none(), "the CPU device has none");
                // SAFETY: the buffer's only element, which no other work uses meanwhile.
                unsafe {
                    let element = address as *mut u32;
                    element.write(element.read().wrapping_mul(31).wrapping_add(step));
                }
                Ok(())
            };
            drop(stream.opaque(Opaque::new("step").writes(&mut data), work).expect("accepted"));
        }
        expected = expected.wrapping_mul(31).wrapping_add(step);
    }
    let found = second.download(&data).and_then(|copy| copy.wait()).expect("copied");
    assert_eq!(found, [expected]);
}

#[test]
fn what_goes_wrong_in_opaque_work_is_its_error_and_what_it_wrote_is_lost() {
    let scheduler = scheduler(1);
    let stream = scheduler.stream(0);
    let mut data = scheduler.zeroed::<u32>(1).expect("memory");
    let panics = Opaque::new("panics").writes(&mut data);
    let panics = stream.opaque(panics, |_| panic!("as intended")).expect("accepted");
    let fails = stream.opaque(Opaque::new("fails"), |_| Err("no luck".into())).expect("accepted");
    let reads = stream.download(&data).expect("accepted");
    let said = |handle: Handle<()>| match handle.wait() {
        Err(Error::Launch(LaunchError::KernelFailed { kernel, message })) => {
            (kernel, message.to_string())
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(said(panics), ("panics", "panicked: as intended".into()));
    assert_eq!(said(fails), ("fails", "no luck".into()));
    let error = reads.wait().expect_err("lost");
    assert!(
        matches!(error, Error::Launch(LaunchError::InputLost { kernel: "panics" })),
        "{error:?}"
    );
    stream.opaque(Opaque::new("goes on"), |_| Ok(())).and_then(|work| work.wait()).expect("runs");
}

#[test]
fn the_first_run_of_opaque_work_has_the_device_alone_and_others_go_on_beside_it() {
    let scheduler = scheduler(2);
    let stream = scheduler.stream(0);
    let run = |opaque| stream.opaque(opaque, |_| Ok(())).expect("accepted");
    run(Opaque::new("known")).wait().expect("runs");
    let gate = Gate::new(&scheduler);
    let mut own = log(&scheduler);
    let standing = launch(&scheduler.stream(0), gated(&gate.0, &mut own, 1).grid(10));
    gate.wait_for(2);
    in_time(&run(Opaque::new("known"))).expect("beside the kernel");
    let first = run(Opaque::new("known").variant(1));
    assert!(first.wait_timeout(WHILE).is_none(), "a block-task is on the device");
    let late = launch(&scheduler.stream(9), nothing().grid(1));
    assert!(late.wait_timeout(WHILE).is_none(), "it waits, too");
    gate.open();
    for work in [first, run(Opaque::new("known").exclusive())] {
        in_time(&work).expect("alone");
    }
    in_time(&late).expect("runs");
    assert_eq!(in_time(&standing).expect("runs").tasks, 10, "nothing is lost");
}

/// Counts the block-tasks inside the kernel.
#[preemptible(block = 1)]
fn inside(count: u64) {
    // SAFETY: the test keeps it, and all accesses are atomic.
    let count = unsafe { AtomicU32::from_ptr(count as *mut u32) };
    count.fetch_add(1, SeqCst);
    std::thread::yield_now();
    count.fetch_sub(1, SeqCst);
}

#[test]
fn no_block_task_runs_beside_what_has_the_device_alone() {
    let scheduler = scheduler(3);
    let count = scheduler.zeroed::<u32>(1).expect("memory");
    let address = count.address();
    let batch = launch(&scheduler.stream(0), inside(address).grid(1_000_000));
    let stream = scheduler.stream(1);
    for round in 0..50 {
        let _beside = launch(&scheduler.stream(round), inside(address).grid(5));
        let opaque = Opaque::new("alone").exclusive();
        let work = stream.opaque(opaque, move |_| {
            // SAFETY: as above.
            let count = unsafe { AtomicU32::from_ptr(address as *mut u32) };
            for _ in 0..100 {
                assert_eq!(count.load(SeqCst), 0);
                std::thread::yield_now();
            }
            Ok(())
        });
        in_time(&work.expect("accepted")).expect("alone");
    }
    batch.cancel();
    scheduler.synchronize().expect("no complaints");
    drop(count);
}

#[test]
fn opaque_work_that_is_cancelled_before_it_starts_is_not_called() {
    let scheduler = scheduler(1);
    let gate = Gate::new(&scheduler);
    let mut own = log(&scheduler);
    let stream = scheduler.stream(0);
    let running = launch(&stream, gated(&gate.0, &mut own, 1).grid(1));
    let (called, calls) = channel::<()>();
    let work = stream.opaque(Opaque::new("opaque"), move |_| Ok(called.send(())?));
    let work = work.expect("accepted");
    work.cancel();
    let error = work.wait().expect_err("cancelled");
    assert!(
        matches!(error, Error::Launch(LaunchError::Cancelled { done: 0, tasks: 0 })),
        "{error:?}"
    );
    gate.open();
    running.wait().expect("runs");
    assert!(calls.recv().is_err(), "it is dropped");
}

#[test]
fn dropping_the_scheduler_waits_for_opaque_work_that_runs_and_drops_what_waits() {
    let scheduler = scheduler(1);
    let stream = scheduler.stream(0);
    let (started, starts) = channel();
    let (go, goes) = channel::<()>();
    let mut kept = log(&scheduler);
    let address = kept.address() as usize;
    let opaque = Opaque::new("runs").writes(&mut kept);
    let runs = stream.opaque(opaque, move |_| {
        started.send(())?;
        goes.recv()?;
        // SAFETY: the operation keeps its buffer, which no other work uses.
        unsafe { (address as *mut u32).write(1) };
        Ok(())
    });
    let runs = runs.expect("accepted");
    let waits = stream.opaque(Opaque::new("waits"), |_| Ok(())).expect("accepted");
    starts.recv().expect("called");
    drop(kept);
    std::thread::scope(|scope| {
        scope.spawn(|| drop(scheduler));
        let error = waits.wait().expect_err("it did not start");
        assert!(matches!(error, Error::Launch(LaunchError::SchedulerDropped { .. })), "{error:?}");
        assert!(!runs.is_done());
        go.send(()).expect("it listens");
    });
    runs.wait().expect("it was completed");
    let late = stream.opaque(Opaque::new("late"), |_| Ok(())).expect_err("the scheduler is gone");
    assert!(matches!(late, Error::Launch(LaunchError::SchedulerDropped { .. })), "{late:?}");
}

#[test]
fn opaque_work_may_hold_the_last_scheduler() {
    let scheduler = scheduler(1);
    let stream = scheduler.stream(0);
    let (go, goes) = channel::<()>();
    let held = scheduler.clone();
    let work = stream.opaque(Opaque::new("opaque"), move |_| {
        goes.recv()?;
        drop(held);
        Ok(())
    });
    let device = scheduler.device().clone();
    drop(scheduler);
    go.send(()).expect("it listens");
    in_time(&work.expect("accepted")).expect("runs");
    // The device is free as soon as the poller has seen that.
    while Scheduler::builder().device(device.clone()).build().is_err() {
        std::thread::yield_now();
    }
}

#[test]
fn opaque_work_with_a_buffer_of_another_device_is_refused() {
    let (one, other) = (scheduler(1), scheduler(1));
    let buffer = other.zeroed::<u32>(1).expect("memory");
    let opaque = Opaque::new("opaque").reads(&buffer);
    let error = one.stream(0).opaque(opaque, |_| Ok(())).expect_err("not its own");
    assert!(
        matches!(error, Error::Argument(ArgumentError::ForeignBuffer { name: "opaque" })),
        "{error:?}"
    );
}

/// Adds 1 to each element.
#[preemptible(block = 1)]
fn count(counts: SliceMut<u32>) {
    let task = thread::block_idx_x() as usize;
    // SAFETY: each block-task has an element, and launches on one buffer run one after the other.
    unsafe { counts.write(task, counts.read(task) + 1) };
}

#[test]
fn nothing_is_lost_between_threads_streams_events_and_opaque_work() {
    const TASKS: u32 = 50;
    let scheduler = scheduler(3);
    let events = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (scheduler, events) = (&scheduler, &events);
            scope.spawn(move || {
                let mut random = Random(seed);
                let streams = [0, 1].map(|_| scheduler.stream(random.below(5) as i32));
                let mut counts = scheduler.zeroed::<u32>(TASKS as usize).expect("memory");
                let (mut expected, mut cancelled, mut handles) = (0, 0, Vec::new());
                for _ in 0..150 {
                    let stream = &streams[random.below(2) as usize];
                    match random.below(8) {
                        0 => events
                            .lock()
                            .expect("no panic")
                            .push(stream.record_event().expect("made")),
                        1 => {
                            // Events of all threads, however old.
                            let events = events.lock().expect("no panic");
                            let index = random.below(events.len().max(1) as u32) as usize;
                            let event: Option<Event> = events.get(index).cloned();
                            drop(events);
                            event
                                .into_iter()
                                .for_each(|event| stream.wait_event(&event).expect("its own"));
                        }
                        2 => {
                            let address = counts.address() as usize;
                            let opaque = Opaque::new("count").writes(&mut counts);
                            let opaque = opaque.variant(random.below(3).into());
                            let opaque =
                                if random.below(4) == 0 { opaque.exclusive() } else { opaque };
                            let work = stream.opaque(opaque, move |_| {
                                for task in 0..TASKS as usize {
                                    // SAFETY: the buffer's element, and no other work uses it meanwhile.
                                    unsafe { *(address as *mut u32).add(task) += 1 };
                                }
                                Ok(())
                            });
                            drop(work.expect("accepted"));
                            expected += 1;
                        }
                        3 => stream.set_priority(random.below(5) as i32),
                        4 => {
                            let mut own = scheduler.zeroed::<u32>(TASKS as usize).expect("memory");
                            let unwanted = launch(stream, count(&mut own).grid(TASKS));
                            unwanted.cancel();
                            cancelled += u32::from(unwanted.wait().is_err());
                        }
                        _ => {
                            handles.push(launch(stream, count(&mut counts).grid(TASKS)));
                            expected += 1;
                        }
                    }
                }
                streams.iter().for_each(|stream| stream.synchronize().expect("no complaints"));
                assert!(handles.iter().all(Handle::is_done));
                let found = streams[0].download(&counts).and_then(|copy| copy.wait());
                assert_eq!(found.expect("copied"), [expected; TASKS as usize]);
                println!("{cancelled} cancelled");
            });
        }
    });
    scheduler.synchronize().expect("no complaints");
    assert!(events.into_inner().expect("no panic").iter().all(Event::is_done));
}

#[test]
fn a_suspended_stream_leaves_the_device_to_less_urgent_ones() {
    let scheduler = scheduler(1);
    let [first, second] = [(); 2].map(|()| Gate::new(&scheduler));
    let mut log = log(&scheduler);
    let [urgent, other] = [5, 0].map(|priority| scheduler.stream(priority));
    let call = |gate: &Gate, log: &mut Buffer<u32>, tasks| {
        gated(&gate.0, log, 1).grid(tasks).preemption(Preemption::Preemptible)
    };
    let runs = launch(&urgent, call(&first, &mut log, 3));
    first.wait_for(1);
    let suspensions = [urgent.suspend(), urgent.suspend()];
    let waits = launch(&urgent, call(&second, &mut log, 1));
    let beside = launch(&other, nothing().grid(50));
    // What was submitted before is known by then.
    scheduler.stream(0).synchronize().expect("nothing is in its way");
    first.open();
    second.open();
    assert_eq!(in_time(&beside).expect("the device is its own").tasks, 50);
    let [one, two] = suspensions;
    drop(one);
    // This waits for none of them.
    scheduler.synchronize().expect("no complaints");
    std::thread::sleep(WHILE);
    assert_eq!(
        (first.arrived(), second.arrived()),
        (1, 0),
        "it has been resumed once of two times"
    );
    drop(two);
    assert_eq!(in_time(&runs).expect("it goes on").tasks, 3);
    assert_eq!(in_time(&waits).expect("it goes on").tasks, 1);
}
