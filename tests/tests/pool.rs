//! Tasks on pools of emulated devices: each gives its result once, however often it was stopped.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use preempt::error::{LaunchError, MemoryError, PoolError, ProgramError};
use preempt::pool::{
    Application, Class, Elastic, FirstCome, Pool, PoolBuilder, PoolPlan, PoolPolicy, Resident, Run,
    Stop, Task, TaskHandle, UserFacingFirst,
};
use preempt::predict::{Features, Predictor};
use preempt::{Buffer, CpuLayout, Device, Error, Preemption, Scheduler};
use preempt_test_kernels as kernels;
use preempt_test_kit::{Gate, Random, gated};

/// Tasks of a storm, all pools together.
const TASKS: u32 = 100_000;

fn layout() -> CpuLayout {
    CpuLayout::sms(2).blocks_per_sm(1)
}

fn builder(devices: usize, layout: CpuLayout) -> PoolBuilder {
    builder_with(Preemption::Preemptible, devices, layout)
}

fn builder_with(preemption: Preemption, devices: usize, layout: CpuLayout) -> PoolBuilder {
    (0..devices).fold(Pool::builder(), |builder, _| {
        let scheduler = Scheduler::builder().device(Device::cpu_with(layout).expect("a device"));
        // Memory is not waited for in the device's own line, however long others would wait there.
        let patience = Duration::from_secs(3600);
        let scheduler = scheduler.preemption(preemption).allocation_timeout(patience);
        builder.scheduler(scheduler.build().expect("a scheduler"))
    })
}

fn both(pool: &Pool) -> [Application; 2] {
    [Class::UserFacing, Class::Batch].map(|class| pool.application(class))
}

/// Scales the numbers up to `len`, `rounds` times.
fn scaled(len: u32, rounds: u32, run: &Run) -> Result<Vec<u32>, Error> {
    let mut x = run.buffer(&(0..len).collect::<Vec<_>>())?;
    for round in 0..rounds {
        run.launch(kernels::scale(round + 3, &mut x).threads(len))?;
    }
    run.download(&x)
}

fn expected(len: u32, rounds: u32) -> Vec<u32> {
    let scaled = |x: u32, i: u32, factor: u32| x.wrapping_mul(factor).wrapping_add(i);
    (0..len).map(|i| (0..rounds).fold(i, |x, round| scaled(x, i, round + 3))).collect()
}

/// A task that runs until it was let go.
#[derive(Clone, Default)]
struct Held {
    is_free: Arc<AtomicBool>,
    runs: Arc<AtomicU32>,
}

impl Held {
    fn hold(&self, run: &Run) -> Result<(), Error> {
        self.runs.fetch_add(1, SeqCst);
        while !self.is_free.load(SeqCst) {
            run.check()?;
            std::thread::yield_now();
        }
        Ok(())
    }

    /// A task that runs until then, and whether it began.
    fn task(&self) -> Task<u32> {
        let held = self.clone();
        Task::new("held", move |run| {
            held.hold(run)?;
            Ok(held.runs.load(SeqCst))
        })
    }

    fn await_runs(&self, runs: u32) {
        while self.runs.load(SeqCst) < runs {
            std::thread::yield_now();
        }
    }
}

#[test]
fn user_facing_tasks_wait_for_no_batch_task() {
    for stop in [Stop::Yield(Duration::ZERO), Stop::Revoke(Duration::ZERO)] {
        let pool = builder(2, layout()).stop(stop).build().expect("a pool");
        let [service, nightly] = both(&pool);
        let held = Held::default();
        let batch = [(); 2].map(|()| nightly.submit(&held.task()).expect("accepted"));
        held.await_runs(2);
        for _ in 0..3 {
            let answer = service.submit(&Task::new("scaled", |run| scaled(100, 2, run)));
            assert_eq!(answer.and_then(TaskHandle::wait).expect("a result"), expected(100, 2));
        }
        let stats = pool.stats();
        held.is_free.store(true, SeqCst);
        let (mut reported, mut most) = ([0, 0], 0);
        for task in batch {
            let (runs, report) = task.wait_with_report().expect("a result");
            // The other one may have to begin again when the first one ends.
            most = most.max(runs);
            assert!(report.device < 2 && report.turnaround >= report.ran, "{report:?}");
            reported = [reported[0] + report.yields, reported[1] + report.revocations];
        }
        assert_eq!(most > 2, matches!(stop, Stop::Revoke(_)), "{stop:?}: {most}");
        let stops = [stats.yields, stats.revocations];
        assert!(stops.contains(&0) && stops.iter().sum::<u64>() >= 3, "{stop:?}: {stats:?}");
        assert_eq!((pool.stats().finished, pool.stats().dropped), (5, 0));
        assert_eq!(reported.map(u64::from), stops, "{stop:?}");
    }
}

#[test]
fn a_task_that_has_yielded_makes_room_in_memory() {
    let layout = layout().memory(10_000);
    let pool = builder(1, layout).build().expect("a pool");
    let [service, nightly] = both(&pool);
    let held = Held::default();
    let (of_task, has_run) = (held.clone(), Arc::new(AtomicU32::new(0)));
    let runs = has_run.clone();
    let batch = nightly.submit(&Task::new("batch", move |run| {
        let mut x = run.zeroed::<u32>(2000)?;
        run.launch(kernels::scale(1, &mut x).threads(2000))?;
        runs.fetch_add(1, SeqCst);
        of_task.hold(run)?;
        run.download(&x)
    }));
    held.await_runs(1);
    // It has room beside the other one.
    let small = Task::new("small", |run| scaled(100, 1, run));
    let answer = service.submit(&small).and_then(TaskHandle::wait).expect("a result");
    assert_eq!((answer, pool.stats().revocations), (expected(100, 1), 0));
    // These two have not.
    let large = Task::new("large", |run| scaled(1500, 1, run)).memory(6000);
    let answer = service.submit(&large).and_then(TaskHandle::wait).expect("a result");
    assert_eq!(answer, expected(1500, 1));
    assert_eq!(pool.stats().revocations, 1);
    held.is_free.store(true, SeqCst);
    let batch = batch.and_then(TaskHandle::wait).expect("a result");
    assert_eq!(batch, (0..2000).collect::<Vec<_>>());
    assert_eq!(has_run.load(SeqCst), 2);
}

#[test]
fn a_task_that_has_yielded_waits_for_memory() {
    let pool = builder(1, layout().memory(10_000)).build().expect("a pool");
    let [service, nightly] = both(&pool);
    let (first, second) = (Held::default(), Held::default());
    let held = first.clone();
    let batch = nightly.submit(&Task::new("batch", move |run| {
        held.hold(run)?;
        scaled(2000, 1, run)
    }));
    first.await_runs(1);
    let held = second.clone();
    let user = service.submit(&Task::new("user", move |run| {
        let x = run.zeroed::<u32>(2000)?;
        held.hold(run)?;
        run.download(&x)
    }));
    second.await_runs(1);
    // It finds no memory until the other one has left.
    first.is_free.store(true, SeqCst);
    let batch = batch.expect("accepted").wait_timeout(Duration::from_millis(20));
    let batch = batch.expect_err("it waits");
    second.is_free.store(true, SeqCst);
    assert_eq!(user.and_then(TaskHandle::wait).expect("a result"), vec![0; 2000]);
    assert_eq!(batch.wait().expect("a result"), expected(2000, 1));
    assert_eq!(pool.stats().revocations, 0);
}

#[test]
fn a_task_fails_alone() {
    let pool = builder(1, layout()).build().expect("a pool");
    let [service, nightly] = both(&pool);
    let fails = |task: &Task<Vec<u32>>| {
        let failed = service.submit(task).and_then(TaskHandle::wait);
        let error = failed.expect_err("no result");
        assert_eq!(
            nightly.submit(&Task::new("fine", |run| scaled(50, 3, run))).unwrap().wait().unwrap(),
            expected(50, 3),
            "after {error}"
        );
        error
    };
    let error = fails(&Task::new("panics", |_| panic!("on purpose")));
    assert!(
        matches!(&error, Error::Pool(PoolError::Panicked { message, .. })
        if &**message == "on purpose"),
        "{error}"
    );
    let error = fails(&Task::new("kernel", |run| {
        let mut counts = run.zeroed(4)?;
        run.launch(kernels::panics(2, &mut counts).grid(4).block(1))?;
        run.download(&counts)
    }));
    assert!(
        matches!(error, Error::Launch(LaunchError::KernelFailed { kernel: "panics", .. })),
        "what failed, not what followed: {error}"
    );
    let error = fails(&Task::new("not looked at", |run| {
        let mut counts = run.zeroed::<u32>(4)?;
        run.launch(kernels::panics(2, &mut counts).grid(4).block(1))?;
        Ok(vec![1])
    }));
    assert!(matches!(error, Error::Launch(LaunchError::KernelFailed { .. })), "{error}");
    let error = fails(&Task::new("own", |_| Err(MemoryError::OutOfMemory { bytes: 7 }.into())));
    assert!(matches!(error, Error::Memory(MemoryError::OutOfMemory { bytes: 7 })), "{error}");
}

/// A body that goes on after it was told to leave, and returns something.
#[test]
fn what_a_revoked_run_returns_is_not_seen() {
    let pool = builder(1, layout()).stop(Stop::Revoke(Duration::ZERO)).build().expect("a pool");
    let [service, nightly] = both(&pool);
    let held = Held::default();
    let of_task = held.clone();
    let batch = nightly.submit(&Task::new("ignores", move |run| {
        let held = of_task.hold(run);
        Ok(if held.is_err() { vec![] } else { scaled(64, 1, run).unwrap_or_default() })
    }));
    held.await_runs(1);
    let answer = service.submit(&Task::new("user", |run| scaled(8, 1, run)));
    assert_eq!(answer.and_then(TaskHandle::wait).expect("a result"), expected(8, 1));
    held.is_free.store(true, SeqCst);
    assert_eq!(batch.and_then(TaskHandle::wait).expect("a result"), expected(64, 1));
    assert!(held.runs.load(SeqCst) > 1);
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |builder: PoolBuilder| match builder.build() {
        Err(Error::Pool(error)) => error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(refused(Pool::builder()), PoolError::NoDevice));
    let one = || builder(1, layout().memory(10_000));
    assert!(matches!(refused(one().outstanding(0)), PoolError::NoneOutstanding));
    let no_sla = refused(one().policy(Elastic::new(Duration::ZERO)));
    assert!(no_sla.to_string().contains("SLA of zero"), "{no_sla}");

    let pool = one().build().expect("a pool");
    let [service, nightly] = both(&pool);
    let large = Task::new("large", |_| Ok(())).memory(10_001);
    let error = service.submit(&large).expect_err("no device has as much");
    assert!(
        matches!(error, Error::Pool(PoolError::TooLarge { bytes: 10_001, limit: 10_000, .. })),
        "{error}"
    );
    let full = Task::new("full", |run| run.zeroed::<u8>(10_001).map(drop));
    let error = service.submit(&full).and_then(TaskHandle::wait).expect_err("no room");
    assert!(matches!(error, Error::Memory(MemoryError::OutOfMemory { .. })), "{error}");

    // Buffers that outlive a run may be read, and not written.
    let scheduler = pool.scheduler(0).expect("a device");
    let shared = Arc::new(std::sync::Mutex::new(scheduler.buffer(&[5u32; 32]).expect("memory")));
    let of_task = shared.clone();
    let reads = Task::new("reads", move |run| {
        let shared = of_task.lock().unwrap();
        let mut own = run.zeroed::<u32>(32)?;
        run.copy_buffer(&*shared, &mut own)?;
        run.download(&own)
    });
    assert_eq!(nightly.submit(&reads).and_then(TaskHandle::wait).expect("read"), [5; 32]);
    type Write = fn(&Run, &mut Buffer<u32>) -> Result<(), Error>;
    let writes: [(_, Write); 5] = [
        ("scale", |run, x| run.launch(kernels::scale(1, x).threads(32))),
        ("copy", |run, x| run.upload(vec![1; 32], x)),
        ("fill", |run, x| run.fill(x, 1)),
        ("copy", |run, x| run.copy_buffer(&run.zeroed::<u32>(32)?, x)),
        ("step", |run, x| {
            let step = run.program("step", |program| program.fill(x, 7))?;
            run.launch_program(&step)
        }),
    ];
    for (name, write) in writes {
        let of_task = shared.clone();
        let task = Task::new("writes", move |run| write(run, &mut of_task.lock().unwrap()));
        let error = nightly.submit(&task).and_then(TaskHandle::wait).expect_err("refused");
        assert!(
            matches!(error, Error::Pool(PoolError::NotReplayable { operation, .. }) if operation == name),
            "{name}: {error}"
        );
    }
    let copy = scheduler.stream(0).download(&*shared.lock().unwrap());
    assert_eq!(copy.and_then(|copy| copy.wait()).expect("a copy"), [5; 32]);

    let held = Held::default();
    let waiting = nightly.submit(&held.task()).expect("accepted");
    held.await_runs(1);
    drop(pool);
    for error in [
        waiting.wait().expect_err("it was given up"),
        service.submit(&held.task()).expect_err("no pool is there"),
    ] {
        assert!(matches!(error, Error::Pool(PoolError::PoolDropped { .. })), "{error}");
    }
}

#[test]
fn cancelled_tasks_do_not_come_back() {
    let pool = builder(1, layout()).build().expect("a pool");
    let [_, nightly] = both(&pool);
    let held = Held::default();
    let tasks = [(); 12].map(|()| nightly.submit(&held.task()).expect("accepted"));
    held.await_runs(1);
    // The one that runs, one that waits, and one that is not outstanding yet.
    for task in [0, 5, 11] {
        tasks[task].cancel();
    }
    held.await_runs(2);
    held.is_free.store(true, SeqCst);
    for (number, task) in tasks.into_iter().enumerate() {
        let result = task.wait();
        let is_cancelled = matches!(result, Err(Error::Pool(PoolError::Cancelled { .. })));
        assert_eq!(is_cancelled, [0, 5, 11].contains(&number), "{number}: {result:?}");
    }
    assert_eq!(pool.stats().dropped, 3);
}

/// A buffer that stays on its device, and how often one was made.
fn resident(len: usize) -> (Resident<Buffer<u32>>, Arc<AtomicU32>) {
    let made = Arc::new(AtomicU32::new(0));
    let count = made.clone();
    let resident = Resident::new(move |run| {
        count.fetch_add(1, SeqCst);
        run.zeroed::<u32>(len)
    });
    (resident, made)
}

#[test]
fn what_is_resident_is_made_once_and_dropped_with_a_run_that_failed() {
    let pool = builder(1, layout()).stop(Stop::Revoke(Duration::ZERO)).build().expect("a pool");
    let [service, nightly] = both(&pool);
    let (counter, made) = resident(32);
    let add = {
        let counter = counter.clone();
        Task::new("add", move |run| {
            let mut counter = run.resident(&counter)?;
            let none = run.zeroed::<u32>(0)?;
            run.launch(kernels::sum(&none, &none, &mut *counter).threads(32))?;
            run.download(&*counter)
        })
    };
    for round in 1..=3 {
        let counted = service.submit(&add).and_then(TaskHandle::wait).expect("a result");
        assert_eq!((counted, made.load(SeqCst)), (vec![round; 32], 1));
    }
    // Of a run that was revoked, it is dropped.
    let held = Held::default();
    let (of_task, of_counter) = (held.clone(), counter.clone());
    let holds = nightly.submit(&Task::new("holds", move |run| {
        let _counter = run.resident(&of_counter)?;
        of_task.hold(run)
    }));
    held.await_runs(1);
    let counted = service.submit(&add).and_then(TaskHandle::wait).expect("a result");
    assert_eq!((counted, made.load(SeqCst)), (vec![1; 32], 2));
    held.is_free.store(true, SeqCst);
    holds.and_then(TaskHandle::wait).expect("a result");
    let fails = Task::new("fails", move |run| {
        let _counter = run.resident(&counter)?;
        Err::<(), _>(MemoryError::OutOfMemory { bytes: 7 }.into())
    });
    service.submit(&fails).and_then(TaskHandle::wait).expect_err("its own error");
    let counted = service.submit(&add).and_then(TaskHandle::wait).expect("a result");
    assert_eq!((counted, made.load(SeqCst)), (vec![1; 32], 3));
}

#[test]
fn a_run_that_asks_again_gets_the_same() {
    let pool = builder(1, layout()).build().expect("a pool");
    let [service, _] = both(&pool);
    let (counter, made) = resident(8);
    let of_task = counter.clone();
    let twice = Task::new("twice", move |run| {
        run.upload(vec![7; 8], &mut *run.resident(&of_task)?)?;
        run.launch(kernels::scale(1, &mut *run.resident(&of_task)?).threads(8))?;
        run.download(&*run.resident(&of_task)?)
    });
    // A larger one in the place of the first, which later runs may write as well.
    let grows = Task::new("grows", move |run| {
        let mut counter = run.resident(&counter)?;
        let len = 2 * counter.len();
        *counter = run.zeroed(len)?;
        run.fill(&mut *counter, 3)?;
        run.download(&*counter)
    });
    let give = |task: &Task<Vec<u32>>| service.submit(task).and_then(TaskHandle::wait);
    assert_eq!(give(&twice).expect("a result"), (0..8).map(|i| 7 + i).collect::<Vec<_>>());
    assert_eq!(give(&grows).expect("a result"), [3; 16]);
    assert_eq!(give(&grows).expect("a result"), [3; 32]);
    assert_eq!(made.load(SeqCst), 1);
}

#[test]
fn what_is_resident_belongs_to_one_pool() {
    let device = Device::cpu_with(layout()).expect("a device");
    let fills = Resident::new(|run| {
        let mut x = run.zeroed::<u32>(4)?;
        let fill = run.program("fill", |program| program.fill(&mut x, 7))?;
        Ok((x, fill))
    });
    for _ in 0..2 {
        let pool = Pool::builder().device(device.clone()).build().expect("a pool");
        let [service, _] = both(&pool);
        let fills = fills.clone();
        let task = Task::new("fills", move |run| {
            let fills = run.resident(&fills)?;
            // Without the run, the pool would not see it.
            let error = fills.1.launch().expect_err("refused");
            assert!(matches!(error, Error::Program(ProgramError::OfRuns { .. })), "{error}");
            run.launch_program(&fills.1)?;
            run.download(&fills.0)
        });
        for _ in 0..2 {
            assert_eq!(service.submit(&task).and_then(TaskHandle::wait).expect("a result"), [7; 4]);
        }
    }
}

#[test]
fn what_no_run_uses_makes_room() {
    let pool = builder(1, layout().memory(10_000)).build().expect("a pool");
    let [service, _] = both(&pool);
    for (large, made) in [resident(2000), resident(2000)] {
        for round in 1..=2 {
            let large = large.clone();
            let task = Task::new("large", move |run| run.resident(&large).map(|large| large.len()));
            let len = service.submit(&task).and_then(TaskHandle::wait).expect("room");
            assert_eq!((len, made.load(SeqCst)), (2000, 1), "{round}");
        }
    }
}

/// A launch that takes seconds.
fn long(run: &Run) -> Result<Buffer<u32>, Error> {
    const TASKS: u32 = 1000;
    let mut counts = run.zeroed::<u32>(TASKS as usize)?;
    let mut writes = run.zeroed::<u32>(TASKS as usize)?;
    let ten_ms = 10_000_000;
    run.launch(kernels::paced_1d(ten_ms, &mut counts, &mut writes).grid(TASKS).block(1))?;
    Ok(counts)
}

#[test]
fn a_body_that_has_returned_is_stopped_with_what_it_has_launched() {
    let pool = builder(1, layout().memory(10_000)).stop(Stop::Revoke(Duration::ZERO));
    let pool = pool.revocations(1).build().expect("a pool");
    let [service, nightly] = both(&pool);
    let is_launched = Arc::new(AtomicBool::new(false));
    let of_task = is_launched.clone();
    let batch = nightly.submit(&Task::new("batch", move |run| {
        let counts = long(run)?;
        of_task.store(true, SeqCst);
        Ok(counts)
    }));
    let batch = batch.expect("accepted");
    let await_launch = || {
        while !is_launched.swap(false, SeqCst) {
            std::thread::yield_now();
        }
    };
    await_launch();
    // The buffer that it was to return is in the way of this one.
    let user = service.submit(&Task::new("user", |run| scaled(1500, 1, run)));
    assert_eq!(user.and_then(TaskHandle::wait).expect("a result"), expected(1500, 1));
    assert_eq!(pool.stats().revocations, 1);
    await_launch();
    batch.cancel();
    let error = batch.wait().expect_err("it was cancelled");
    assert!(matches!(error, Error::Pool(PoolError::Cancelled { .. })), "{error}");
}

#[test]
fn a_result_is_taken_once() {
    let pool = builder(1, layout()).build().expect("a pool");
    let [service, _] = both(&pool);
    let mut handle = service.submit(&Task::new("task", |_| Ok(7))).expect("accepted");
    let mut context = Context::from_waker(Waker::noop());
    let given = loop {
        if let Poll::Ready(given) = Pin::new(&mut handle).poll(&mut context) {
            break given;
        }
    };
    assert_eq!(given.expect("a result"), 7);
    assert!(handle.is_done());
    let error = handle.wait().expect_err("it is gone");
    assert!(matches!(error, Error::Pool(PoolError::ResultTaken { .. })), "{error}");
}

#[test]
fn a_dropped_handle_cancels_its_task_if_it_is_told_to() {
    let pool = builder(1, layout()).build().expect("a pool");
    let [service, nightly] = both(&pool);
    let held = Held::default();
    let kept = nightly.submit(&held.task()).expect("accepted");
    drop(nightly.submit(&held.task()).expect("accepted"));
    for _ in 0..2 {
        drop(nightly.submit(&held.task()).expect("accepted").cancel_on_drop());
    }
    nightly.submit(&held.task()).expect("accepted").cancel_on_drop().detach();
    held.is_free.store(true, SeqCst);
    let mut reported = std::pin::pin!(kept.with_report());
    let mut context = Context::from_waker(Waker::noop());
    let (_, report) = loop {
        match reported.as_mut().poll(&mut context) {
            Poll::Ready(given) => break given.expect("a result"),
            Poll::Pending => std::thread::yield_now(),
        }
    };
    assert_eq!((report.device, report.revocations), (0, 0));
    pool.synchronize();
    assert_eq!((pool.stats().finished, pool.stats().dropped), (3, 2));
    drop(service.submit(&held.task()).expect("accepted"));
    pool.synchronize();
    assert_eq!(pool.stats().finished, 4);
}

#[test]
fn a_dropped_pool_gives_its_devices_back() {
    let device = Device::cpu_with(layout()).expect("a device");
    let pool = Pool::builder().device(device.clone()).build().expect("a pool");
    let [service, _] = both(&pool);
    let handle = service.submit(&Task::new("task", |run| scaled(9, 1, run))).expect("accepted");
    drop(pool);
    Scheduler::builder().device(device).build().expect("it is free");
    let _ = handle.wait();
    let error = service.submit(&Task::new("task", |_| Ok(()))).expect_err("no pool is there");
    assert!(matches!(error, Error::Pool(PoolError::PoolDropped { .. })), "{error}");
}

/// Each launch takes a millisecond, however fast this machine is.
struct Alike;

impl Predictor for Alike {
    fn predict(&self, _launch: &Features<'_>) -> Option<Duration> {
        Some(Duration::from_millis(1))
    }

    fn finished(&mut self, _launch: &Features<'_>, _took: Duration) {}
}

#[test]
fn a_run_that_is_revoked_ends_with_its_plain_grid_and_another_one_does_all_of_it_once() {
    revoked(Stop::Revoke(Duration::from_millis(1)), 5);
}

#[test]
fn a_launch_that_is_longer_than_a_revocation_may_take_leaves_before_its_end() {
    // The block-tasks that run.
    revoked(Stop::Revoke(Duration::from_micros(999)), 2);
}

/// Revokes a run with a launch of five block-tasks and of a millisecond, so many of which begin.
fn revoked(stop: Stop, begin: u32) {
    let device = Device::cpu_with(layout()).expect("a device");
    let scheduler = Scheduler::builder().device(device).predictor(Alike).build();
    let scheduler = scheduler.expect("a scheduler");
    let (open, gate) = (Gate::new(&scheduler), Arc::new(Gate::new(&scheduler)));
    open.open();
    // After these, the kernel is known, and a launch of it is a plain grid.
    for _ in 0..3 {
        let mut log = scheduler.zeroed(8).expect("memory");
        let call = gated(&open.0, &mut log, 0).grid(1);
        scheduler.stream(0).launch(call).and_then(|handle| handle.wait()).expect("runs");
    }
    let pool = Pool::builder().scheduler(scheduler).stop(stop);
    let pool = pool.build().expect("a pool");
    let [service, nightly] = both(&pool);
    let of_task = gate.clone();
    let [is_launched, is_told] = [0; 2].map(|_| Arc::new(AtomicBool::new(false)));
    let (launched, told) = (is_launched.clone(), is_told.clone());
    let batch = nightly.submit(&Task::new("batch", move |run| {
        let mut log = run.zeroed::<u32>(16)?;
        run.launch(gated(&of_task.0, &mut log, 1).grid(5))?;
        run.launch(gated(&of_task.0, &mut log, 2).grid(3))?;
        launched.store(true, SeqCst);
        // It waits behind the launches, and is cancelled with them.
        run.download(&log).inspect_err(|_| told.store(true, SeqCst))
    }));
    gate.wait_for(2);
    while !is_launched.load(SeqCst) {
        std::thread::yield_now();
    }
    let user = service.submit(&Task::new("user", |run| scaled(8, 1, run))).expect("accepted");
    let start = Instant::now();
    while !is_told.load(SeqCst) {
        assert!(start.elapsed() < Duration::from_secs(20), "it was not told to leave");
        std::thread::yield_now();
    }
    // The blocks that run end their block-tasks first.
    let user = user.wait_timeout(Duration::from_millis(20)).expect_err("the device is not free");
    gate.open();
    assert_eq!(user.wait().expect("a result"), expected(8, 1));
    let log = batch.and_then(TaskHandle::wait).expect("a result");
    assert_eq!((log[0], &log[1..=8]), (8, [1, 1, 1, 1, 1, 2, 2, 2].as_slice()));
    assert_eq!(pool.stats().revocations, 1);
    assert_eq!(
        gate.arrived(),
        begin + 5 + 3,
        "what the first run began, and all of the second one"
    );
}

/// All of a revoked run is done again, so its blocks leave behind what is not done twice, too.
#[test]
fn a_block_of_a_revoked_run_leaves_behind_its_marker() {
    // The first run would take seconds.
    for (meets, long) in [(false, 1 << 22), (true, 1 << 16)] {
        let stop = Stop::Revoke(Duration::ZERO);
        let device = Device::cpu_with(layout()).expect("a device");
        let scheduler = Scheduler::builder().device(device).preemption(Preemption::Preemptible);
        let scheduler = scheduler.build().expect("a scheduler");
        let pool = Pool::builder().scheduler(scheduler.clone()).stop(stop).build().expect("a pool");
        let [service, nightly] = both(&pool);
        let (runs, counts) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicUsize::new(0)));
        let (of_task, counts_of) = (runs.clone(), counts.clone());
        let batch = nightly.submit(&Task::new("batch", move |run| {
            let rounds = if of_task.fetch_add(1, SeqCst) == 0 { long } else { 7 };
            let (mut ends, mut out) = (run.zeroed::<u32>(2)?, run.zeroed::<u32>(512)?);
            counts_of.store(ends.address() as usize, SeqCst);
            if meets {
                run.launch(kernels::meet_marked(&mut ends, rounds, &mut out).grid(2))?;
            } else {
                let call = kernels::spin_marked(&mut ends, rounds, &mut out);
                run.launch(call.grid(2).block(256))?;
            }
            Ok((run.download(&ends)?, run.download(&out)?))
        }));
        let begun = || {
            let address = counts.load(SeqCst) as *mut u32;
            // SAFETY: two words of the first run, which does not end before it is told to; kernels access them atomically.
            let count = |at| unsafe { AtomicU32::from_ptr(address.add(at)) }.load(SeqCst);
            !address.is_null() && (0..2).all(|at| count(at) > 0)
        };
        while !begun() {
            std::thread::yield_now();
        }
        let user = service.submit(&Task::new("user", |run| scaled(8, 1, run)));
        assert_eq!(user.and_then(TaskHandle::wait).expect("a result"), expected(8, 1));
        let (ends, out) = batch.and_then(TaskHandle::wait).expect("a result");
        let x =
            |i: u32| (0..7).fold(i, |x, _| x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        assert_eq!((ends, out), (vec![1; 2], (0..512).map(x).collect()), "of the second run");
        assert_eq!((runs.load(SeqCst), pool.stats().revocations), (2, 1));
        // If its blocks had gone on, its launch would be done.
        assert_eq!(scheduler.stats().total.cancelled, 1);
    }
}

/// Panics the fifth time that it is asked to decide, or asked when.
#[derive(Debug)]
struct Panics {
    decides: u32,
    wakes: AtomicU32,
    is_in_wake: bool,
}

impl PoolPolicy for Panics {
    fn decide(&mut self, plan: &mut PoolPlan<'_>) {
        self.decides += 1;
        assert!(self.is_in_wake || self.decides < 5, "the fifth time");
        FirstCome.decide(plan);
    }

    fn wake(&self) -> Option<Duration> {
        assert!(!self.is_in_wake || self.wakes.fetch_add(1, SeqCst) < 5, "the fifth time");
        None
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        panic!("when it is dropped, too");
    }
}

#[test]
fn a_policy_that_panics_is_replaced() {
    for is_in_wake in [false, true] {
        let policy = Panics { decides: 0, wakes: AtomicU32::new(0), is_in_wake };
        let pool = builder(2, layout()).policy(policy).build().expect("a pool");
        let [service, _] = both(&pool);
        let tasks = [(); 10].map(|()| service.submit(&Task::new("task", |run| scaled(9, 1, run))));
        for task in tasks {
            assert_eq!(task.and_then(TaskHandle::wait).expect("a result"), expected(9, 1));
        }
        let error = pool.policy_error().expect("it was told").to_string();
        assert!(error.contains("the fifth time"), "{error}");
    }
}

/// Ends all tasks of a storm on one pool: their results are right, and those without one were to have none.
struct Storm {
    random: Random,
    handles: Vec<(TaskHandle<Vec<u32>>, Vec<u32>, bool)>,
    results: u64,
    errors: u64,
    drops: bool,
}

impl Storm {
    fn new(seed: u64) -> Storm {
        let random = Random(seed);
        Storm { random, handles: Vec::new(), results: 0, errors: 0, drops: false }
    }

    fn submit(&mut self, application: &Application) {
        let len = 1 + self.random.below(96);
        let rounds = 1 + self.random.below(3);
        let task = Task::new("storm", move |run| scaled(len, rounds, run));
        let handle = application.submit(&task).expect("accepted");
        let is_cancelled = self.random.below(50) == 0;
        if is_cancelled {
            handle.cancel();
        }
        self.handles.push((handle, expected(len, rounds), is_cancelled));
    }

    fn settle(&mut self, left: usize) {
        while self.handles.len() > left {
            let at = self.random.below(self.handles.len() as u32) as usize;
            let (handle, expected, is_cancelled) = self.handles.swap_remove(at);
            match handle.wait() {
                Ok(result) => {
                    self.results += 1;
                    assert_eq!(result, expected);
                }
                Err(Error::Pool(PoolError::Cancelled { .. })) if is_cancelled => self.errors += 1,
                Err(Error::Pool(PoolError::PoolDropped { .. })) if self.drops => self.errors += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn each_task_of_a_storm_is_answered_once() {
    let (mut stops, mut for_memory) = ([0, 0], 0);
    let policies: [fn(PoolBuilder) -> PoolBuilder; 2] = [
        |builder| builder.policy(UserFacingFirst),
        |builder| {
            builder
                .policy(Elastic::new(Duration::from_micros(300)).period(Duration::from_millis(1)))
        },
    ];
    // Launches of the default form are plain grids once their kernel is known.
    let forms = [Preemption::Preemptible, Preemption::default()];
    for (seed, (policy, form)) in policies.into_iter().zip(forms).enumerate() {
        // Two tasks at once have seldom room.
        for stop in [Stop::Yield(Duration::ZERO), Stop::Revoke(Duration::ZERO)] {
            let pool = policy(builder_with(form, 3, layout().memory(400)).stop(stop))
                .build()
                .expect("a pool");
            let applications = [both(&pool), both(&pool)].concat();
            let mut storm = Storm::new(seed as u64);
            for _ in 0..TASKS / 4 {
                let which = storm.random.below(4) as usize;
                storm.submit(&applications[which]);
                // Some 64 of them at a time, or fewer now and then.
                let left = storm.random.below(128) as usize;
                storm.settle(left.max(storm.handles.len() / 2).min(64));
            }
            storm.settle(0);
            let stats = pool.stats();
            assert_eq!((stats.finished, stats.dropped), (storm.results, storm.errors), "{stats:?}");
            assert_eq!(stats.finished + stats.dropped, u64::from(TASKS / 4));
            stops = [stops[0] + stats.yields, stops[1] + stats.revocations];
            for_memory += if stats.yields > 0 { stats.revocations } else { 0 };
            assert!(pool.policy_error().is_none());
        }
    }
    println!("{stops:?} yields and revocations, {for_memory} of these for memory");
    assert!(stops.iter().all(|&stops| stops > 1000) && for_memory > 100, "{stops:?} {for_memory}");
}

#[test]
fn tasks_of_a_dropped_pool_are_answered() {
    let mut given_up = 0;
    for seed in 0..100 {
        let stop = [Stop::Never, Stop::Yield(Duration::ZERO), Stop::Revoke(Duration::ZERO)];
        let pool = builder(2, layout()).stop(stop[seed as usize % 3]).build().expect("a pool");
        let applications = both(&pool);
        let mut storm = Storm::new(seed);
        for _ in 0..20 + storm.random.below(60) {
            let which = storm.random.below(2) as usize;
            storm.submit(&applications[which]);
        }
        let left = storm.random.below(40) as usize;
        storm.settle(left);
        drop(pool);
        storm.drops = true;
        storm.settle(0);
        given_up += storm.errors;
    }
    assert!(given_up > 100, "{given_up}");
}

#[test]
fn a_task_that_has_yielded_has_no_sms_also_where_the_other_one_launches_nothing() {
    let device = Device::cpu_with(CpuLayout::sms(1).blocks_per_sm(1)).expect("a device");
    let scheduler = Scheduler::builder().device(device).build().expect("a scheduler");
    let gate = Arc::new(Gate::new(&scheduler));
    let pool = Pool::builder().scheduler(scheduler).build().expect("a pool");
    let [service, nightly] = both(&pool);
    let of_batch = gate.clone();
    let batch = Task::new("batch", move |run| {
        let mut log = run.zeroed(4)?;
        let call = gated(&of_batch.0, &mut log, 1).grid(3).preemption(Preemption::Preemptible);
        run.launch(call)?;
        run.download(&log)
    });
    let batch = nightly.submit(&batch).expect("a task");
    gate.wait_for(1);
    let of_user = gate.clone();
    let user = Task::new("user", move |run| {
        // What was submitted before is known by then.
        run.download(&run.zeroed::<u32>(1)?)?;
        of_user.open();
        // Time in which the batch task's other block-tasks would come to the gate.
        std::thread::sleep(Duration::from_millis(20));
        Ok(of_user.arrived())
    });
    let arrived = service.submit(&user).and_then(TaskHandle::wait).expect("a result");
    assert_eq!(arrived, 1, "block-tasks of the batch task");
    let (log, report) = batch.wait_with_report().expect("a result");
    assert_eq!((log, report.yields), (vec![3, 1, 1, 1], 1));
}
