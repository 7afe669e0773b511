//! The order in which launches run: streams, priorities, buffers, handles.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use std::time::{Duration, Instant};

use preempt::error::LaunchError;
use preempt::policy::{Arrival, DeviceView, Plan, Policy, StaticPriority};
use preempt::{
    Amortize, Buffer, Call, CpuLayout, Device, Error, Handle, LaunchId, LaunchReport, Preemption,
    Priority, Scheduler, Stream,
};
use preempt_device::atomic::{AtomicU32, Ordering::SeqCst};
use preempt_device::prelude::*;
use preempt_test_kernels as kernels;
use preempt_test_kit::{Gate, gated};

fn scheduler(sms: u32) -> Scheduler {
    let device = Device::cpu_with(CpuLayout::sms(sms)).expect("a device");
    Scheduler::builder().device(device).build().expect("a scheduler")
}

fn launch(stream: &Stream, call: Call<'static>) -> Handle<LaunchReport> {
    stream.launch(call).expect("accepted")
}

#[test]
fn a_launch_that_does_not_leave_is_named() {
    let device = Device::cpu_with(CpuLayout::sms(2)).expect("a device");
    let builder = Scheduler::builder().device(device).policy(StaticPriority::whole_device());
    let scheduler = builder.preemption(Preemption::Preemptible).build().expect("a scheduler");
    let gate = Gate::new(&scheduler);
    let (mut log, mut counts, mut writes) = (
        scheduler.zeroed(64).expect("memory"),
        scheduler.zeroed(1).expect("memory"),
        scheduler.zeroed(1).expect("memory"),
    );
    let batch = scheduler.stream(0);
    let waiting = launch(&batch, gated(&gate.0, &mut log, 0).grid(1));
    gate.wait_for(1);
    let call = kernels::count_1d(&mut counts, &mut writes).grid(1).block(1);
    let urgent = launch(&scheduler.stream(1), call);
    let start = Instant::now();
    let named = loop {
        let overdue = scheduler.stats().overdue;
        if !overdue.is_empty() || start.elapsed() > Duration::from_secs(30) {
            break overdue;
        }
        std::thread::yield_now();
    };
    gate.open();
    urgent.wait().expect("done");
    waiting.wait().expect("done");
    let named: Vec<_> = named.iter().map(|of| (of.kernel, of.stream, of.was_told)).collect();
    assert_eq!(named, [("gated", batch.id(), true)]);
    assert!(scheduler.stats().overdue.is_empty());
}

#[test]
fn urgent_launches_go_first_and_equal_ones_in_order() {
    let scheduler = scheduler(1);
    let gate = Gate::new(&scheduler);
    let logs: Vec<Buffer<u32>> = (0..6).map(|_| scheduler.zeroed(64).expect("memory")).collect();
    // One log for all would order the launches by itself; the gate's log has the order of starts.
    let order = scheduler.zeroed::<u32>(64).expect("memory");
    let address = order.address();
    #[preemptible(block = 1)]
    fn note(order: u64, own: SliceMut<u32>, name: u32) {
        // SAFETY: `order` is the address of a log that outlives the launch; atomics only.
        unsafe {
            let log = order as *mut u32;
            let entry = AtomicU32::from_ptr(log).fetch_add(1, SeqCst) + 1;
            log.add(entry as usize).write(name);
            own.write(0, name);
        }
    }
    let mut logs = logs.into_iter();
    let mut own = || logs.next().expect("enough");
    let (mut blocker_log, mut a, mut b, mut c, mut d) = (own(), own(), own(), own(), own());
    let batch = scheduler.stream(0);
    let blocker = launch(&batch, gated(&gate.0, &mut blocker_log, 0).grid(1));
    // Otherwise it has to leave before it starts, and the urgent launches run while the gate is closed.
    gate.wait_for(1);
    let low = scheduler.stream(0);
    let high = scheduler.stream(Priority(5));
    let handles = [
        launch(&low, note(address, &mut a, 1).grid(1)),
        launch(&scheduler.stream(0), note(address, &mut b, 2).grid(1)),
        launch(&high, note(address, &mut c, 3).grid(1)),
        launch(&high, note(address, &mut d, 4).grid(1)),
    ];
    assert!(handles.iter().all(|handle| !handle.is_done()));
    gate.open();
    blocker.wait().expect("runs");
    for handle in handles {
        handle.wait().expect("runs");
    }
    let order = batch.download(&order).and_then(|copy| copy.wait()).expect("copied");
    assert_eq!(order[..5], [4, 3, 4, 1, 2]);
}

#[test]
fn a_stream_keeps_its_order_and_buffers_order_streams() {
    let scheduler = scheduler(2);
    let (first, second) = (scheduler.stream(0), scheduler.stream(9));
    let mut data = scheduler.zeroed::<u32>(1).expect("memory");
    #[preemptible(block = 1)]
    fn multiply_add(data: SliceMut<u32>, factor: u32, offset: u32) {
        // SAFETY: one thread, and the scheduler lets no other kernel use the buffer.
        unsafe { data.write(0, data.read(0).wrapping_mul(factor).wrapping_add(offset)) };
    }
    let mut expected = 0u32;
    for step in 0..100 {
        let stream = if step % 3 == 0 { &second } else { &first };
        let _detached = launch(stream, multiply_add(&mut data, 31, step).grid(1));
        expected = expected.wrapping_mul(31).wrapping_add(step);
    }
    let found = second.download(&data).and_then(|copy| copy.wait()).expect("copied");
    assert_eq!(found, [expected]);
    let mut copy = scheduler.zeroed::<u32>(1).expect("memory");
    let _detached = first.copy_buffer(&data, &mut copy).expect("accepted");
    let _detached = second.upload(vec![7], &mut data).expect("accepted");
    let found = first.download(&copy).and_then(|copy| copy.wait()).expect("copied");
    assert_eq!(found, [expected], "the copy was made before the upload");
}

#[test]
fn a_small_urgent_launch_leaves_the_rest_of_the_device_alone() {
    let scheduler = scheduler(4);
    let (gate, open) = (Gate::new(&scheduler), Gate::new(&scheduler));
    let mut batch_log = scheduler.zeroed(256).expect("memory");
    let batch = launch(&scheduler.stream(0), gated(&gate.0, &mut batch_log, 1).grid(100));
    gate.wait_for(4);
    // The launch needs one SM of four; on each of them a block-task stands before the gate.
    let mut log = scheduler.zeroed(2).expect("memory");
    let urgent = launch(&scheduler.stream(1), gated(&open.0, &mut log, 2).grid(1));
    assert!(urgent.wait_timeout(Duration::from_millis(20)).is_none(), "block-tasks are not killed");
    gate.open();
    open.open();
    urgent.wait().expect("runs");
    let report = batch.wait().expect("runs");
    assert_eq!((report.tasks, report.yields), (100, 1));
}

#[test]
fn cancelled_before_it_starts_means_that_nothing_ran() {
    let scheduler = scheduler(1);
    let gate = Gate::new(&scheduler);
    let stream = scheduler.stream(0);
    let mut log = scheduler.zeroed(64).expect("memory");
    let running = launch(&stream, gated(&gate.0, &mut log, 1).grid(3));
    // In another stream: in this stream it may be queued behind the launch on the device, and would then be out after
    // it.
    let waiting = scheduler.stream(0);
    let queued = launch(&waiting, gated(&gate.0, &mut log, 2).grid(3));
    let last = launch(&waiting, gated(&gate.0, &mut log, 3).grid(3));
    queued.cancel();
    let error = queued.wait().expect_err("cancelled");
    assert!(
        matches!(error, Error::Launch(LaunchError::Cancelled { done: 0, tasks: 3 })),
        "{error}"
    );
    assert!(!running.is_done());
    gate.open();
    last.wait().expect("runs");
    queued.cancel();
    last.cancel();
    last.wait().expect("a cancel that comes too late changes nothing");
    let log = stream.download(&log).and_then(|copy| copy.wait()).expect("copied");
    assert_eq!(log[..7], [6, 1, 1, 1, 3, 3, 3]);
}

#[test]
fn cancelled_on_its_way_it_stops_at_the_next_yield() {
    let scheduler = scheduler(2);
    let gate = Gate::new(&scheduler);
    let mut log = scheduler.zeroed(64).expect("memory");
    let stream = scheduler.stream(0);
    let handle = launch(&stream, gated(&gate.0, &mut log, 1).grid(50));
    gate.wait_for(2);
    handle.cancel();
    gate.open();
    let error = handle.wait().expect_err("cancelled");
    let Error::Launch(LaunchError::Cancelled { done, tasks: 50 }) = error else {
        panic!("{error}")
    };
    assert_eq!(done, 2, "the block-tasks that ran");
    let log = stream.download(&log).and_then(|copy| copy.wait()).expect("copied");
    assert_eq!(log[0], done);
}

#[test]
fn a_handle_can_be_polled_with_a_time_limit_and_as_a_future() {
    let scheduler = scheduler(1);
    let gate = Gate::new(&scheduler);
    let mut log = scheduler.zeroed(64).expect("memory");
    let stream = scheduler.stream(0);
    let handle = launch(&stream, gated(&gate.0, &mut log, 1).grid(1));
    assert!(handle.try_wait().is_none());
    assert!(handle.wait_timeout(Duration::from_millis(1)).is_none());
    let mut future = pin!(handle);

    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    assert!(future.as_mut().poll(&mut context).is_pending());
    gate.open();
    let report = loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(result) => break result.expect("runs"),
            Poll::Pending => std::thread::park(),
        }
    };
    assert_eq!(report.tasks, 1);
}

#[test]
fn a_dropped_handle_stops_nothing() {
    let scheduler = scheduler(2);
    let stream = scheduler.stream(0);
    let gate = Gate::new(&scheduler);
    let mut log = scheduler.zeroed(64).expect("memory");
    drop(launch(&stream, gated(&gate.0, &mut log, 1).grid(9)));
    gate.open();
    scheduler.synchronize().expect("no complaints");
    let log = stream.download(&log).and_then(|copy| copy.wait()).expect("copied");
    assert_eq!(log[0], 9);
}

#[test]
fn buffers_can_be_dropped_while_kernels_use_them() {
    let scheduler = scheduler(2);
    let gate = Gate::new(&scheduler);
    let mut log = scheduler.zeroed(64).expect("memory");
    let handle = launch(&scheduler.stream(0), gated(&gate.0, &mut log, 1).grid(9));
    drop(log);
    gate.open();
    assert_eq!(handle.wait().expect("runs").tasks, 9);
}

#[test]
fn empty_buffers_work() {
    let scheduler = scheduler(1);
    let stream = scheduler.stream(0);
    let mut empty = scheduler.zeroed::<u64>(0).expect("memory");
    #[preemptible(block = 1)]
    fn lengths(input: &[u64], out: SliceMut<u32>) {
        // SAFETY: one thread.
        unsafe { out.write(0, input.len() as u32 + 1) };
    }
    let mut out = scheduler.zeroed(1).expect("memory");
    launch(&stream, lengths(&empty, &mut out).grid(1)).wait().expect("runs");
    assert_eq!(stream.download(&out).and_then(|copy| copy.wait()).expect("copied"), [1]);
    stream.upload(Vec::new(), &mut empty).and_then(|copy| copy.wait()).expect("copied");
    assert!(stream.download(&empty).and_then(|copy| copy.wait()).expect("copied").is_empty());
}

/// Static priorities, by a clock that may not go back.
struct Clocked(StaticPriority, Duration);

impl Clocked {
    fn look(&mut self, now: Duration) {
        assert!(now >= self.1, "{now:?} after {:?}", self.1);
        self.1 = now;
    }
}

impl Policy for Clocked {
    fn name(&self) -> &str {
        "clocked"
    }

    fn arrived(&mut self, now: Duration, launch: Arrival) {
        self.look(now);
        self.0.arrived(now, launch);
    }

    fn departed(&mut self, now: Duration, launch: LaunchId) {
        self.look(now);
        self.0.departed(now, launch);
    }

    fn assign(&mut self, now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        self.look(now);
        self.0.assign(now, device, plan);
    }
}

#[test]
fn the_clock_of_a_policy_never_goes_back() {
    let device = Device::cpu_with(CpuLayout::sms(2)).expect("a device");
    let policy = Clocked(StaticPriority::new(), Duration::ZERO);
    let scheduler = Scheduler::builder().device(device).policy(policy).build().expect("built");
    let mut log = scheduler.zeroed::<u32>(200).expect("memory");
    let gate = Gate::new(&scheduler);
    gate.open();
    let stream = scheduler.stream(0);
    for name in 0..20 {
        let _running = launch(&stream, gated(&gate.0, &mut log, name).grid(1));
    }
    scheduler.synchronize().expect("the policy is still there");
}

#[test]
fn a_stream_has_room_for_64_operations() {
    let scheduler = scheduler(1);
    let gate = Gate::new(&scheduler);
    let mut log = scheduler.zeroed::<u32>(200).expect("memory");
    let stream = scheduler.stream(0);
    let mut submit = |name| launch(&stream, gated(&gate.0, &mut log, name).grid(1));
    let mut handles: Vec<_> = (0..64).map(&mut submit).collect();
    gate.wait_for(1);
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        scope.spawn(move || sender.send(submit(64)));
        let other = scheduler.stream(1);
        let mut other_log = scheduler.zeroed::<u32>(2).expect("memory");
        let _elsewhere = launch(&other, gated(&gate.0, &mut other_log, 0).grid(1));
        let early = receiver.recv_timeout(Duration::from_millis(20));
        assert!(early.is_err(), "it waits for room");
        gate.open();
        handles.push(receiver.recv().expect("no panic"));
    });
    for handle in handles {
        handle.wait().expect("runs");
    }
    let log = stream.download(&log).and_then(|copy| copy.wait()).expect("copied");
    assert_eq!(log[1..66], (0..65).collect::<Vec<_>>(), "in order");
}

/// Submits from the thread that completes operations, which is the poller if no thread waits.
struct SubmitMore {
    stream: Stream,
    scheduler: Scheduler,
    done: std::sync::mpsc::Sender<Vec<Handle<LaunchReport>>>,
}

impl Wake for SubmitMore {
    fn wake(self: Arc<Self>) {
        let gate = Gate::new(&self.scheduler);
        gate.open();
        let mut log = self.scheduler.zeroed::<u32>(200).expect("memory");
        let handles =
            (0..100).map(|name| launch(&self.stream, gated(&gate.0, &mut log, name).grid(1)));
        self.done.send(handles.collect()).expect("the test waits");
    }
}

#[test]
fn a_waker_can_submit_more_than_there_is_room_for() {
    let scheduler = scheduler(1);
    let gate = Gate::new(&scheduler);
    let mut log = scheduler.zeroed::<u32>(2).expect("memory");
    let stream = scheduler.stream(0);
    let (done, submitted) = std::sync::mpsc::channel();
    let waker =
        Arc::new(SubmitMore { stream: stream.clone(), scheduler: scheduler.clone(), done }).into();
    let mut handle = pin!(launch(&stream, gated(&gate.0, &mut log, 0).grid(1)));
    let poll = handle.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(matches!(poll, Poll::Pending));
    gate.open();
    for handle in submitted.recv().expect("submitted") {
        handle.wait().expect("runs");
    }
}

#[test]
fn launches_of_a_stream_see_what_the_ones_before_them_wrote() {
    #[preemptible(block = 1)]
    fn append(list: SliceMut<u32>, number: u32) {
        // SAFETY: block-task 0 writes, and launches of a stream run one after the other.
        unsafe {
            if thread::block_idx_x() == 0 {
                let length = list.read(0) as usize + 1;
                list.write(length, number);
                list.write(0, length as u32);
            }
        }
    }
    let scheduler = scheduler(2);
    let stream = scheduler.stream(0);
    let urgent = scheduler.stream(1);
    let mut list = scheduler.zeroed::<u32>(1001).expect("memory");
    let mut other = scheduler.zeroed::<u32>(1001).expect("memory");
    for number in 0..1000 {
        let grid = 1 + number % 5;
        drop(launch(&stream, append(&mut list, number).grid(grid)));
        if number % 7 == 0 {
            drop(launch(&urgent, append(&mut other, number).grid(3)));
        }
    }
    let list = stream.download(&list).and_then(|copy| copy.wait()).expect("copied");
    assert_eq!(list[0], 1000);
    assert_eq!(list[1..], (0..1000).collect::<Vec<_>>());
}

#[test]
fn a_scope_waits_for_its_launches_even_if_it_panics() {
    let scheduler = scheduler(1);
    let stream = scheduler.stream(0);
    let (mut counts, mut writes) =
        (scheduler.zeroed(20_000).expect("memory"), scheduler.zeroed(640_000).expect("memory"));
    for panics in [false, true] {
        let mut handle = None;
        let scope = std::panic::AssertUnwindSafe(|| {
            scheduler.scope(|scope| {
                let call = kernels::count_1d(&mut counts, &mut writes).grid(20_000).block(32);
                handle = Some(scope.launch(&stream, call).expect("accepted"));
                assert!(!panics, "as intended");
            });
        });
        assert_eq!(std::panic::catch_unwind(scope).is_err(), panics);
        assert!(handle.expect("launched").is_done());
    }
    let counts = stream.download(&counts).and_then(|copy| copy.wait()).expect("copied");
    assert!(counts.iter().all(|&count| count == 2));
}

#[test]
fn a_plain_launch_runs_through_whatever_is_launched() {
    let scheduler = scheduler(2);
    let (gate, open) = (Gate::new(&scheduler), Gate::new(&scheduler));
    let mut log = scheduler.zeroed(64).expect("memory");
    let call = gated(&gate.0, &mut log, 1).grid(40).preemption(Preemption::Plain);
    let plain = launch(&scheduler.stream(0), call);
    gate.wait_for(2);
    let mut urgent_log = scheduler.zeroed(4).expect("memory");
    open.open();
    let urgent = launch(&scheduler.stream(1), gated(&open.0, &mut urgent_log, 2).grid(2));
    assert!(!urgent.is_done(), "no block leaves");
    gate.open();
    urgent.wait().expect("runs");
    let report = plain.wait().expect("runs");
    assert!(report.plain);
    assert_eq!((report.tasks, report.yields, report.resumes, report.amortize), (40, 0, 0, 0));
    let log = scheduler.stream(0).download(&log).and_then(|copy| copy.wait()).expect("copied");
    assert_eq!(log[0], 40, "each block-task once");
}

#[test]
fn plain_and_other_launches_of_a_stream_keep_their_order() {
    let device = Device::cpu_with(CpuLayout::sms(2).blocks_per_sm(2)).expect("a device");
    let builder = Scheduler::builder().device(device).preemption(Preemption::Plain);
    let scheduler = builder.build().expect("a scheduler");
    let stream = scheduler.stream(0);
    let mut data = scheduler.zeroed::<u32>(64).expect("memory");
    #[preemptible(block = 1)]
    fn multiply_add(data: SliceMut<u32>, factor: u32, offset: u32) {
        let task = thread::block_idx_x() as usize;
        // SAFETY: each block-task has an element, and launches run one after the other.
        unsafe { data.write(task, data.read(task).wrapping_mul(factor).wrapping_add(offset)) };
    }
    let (mut expected, mut handles) = (0u32, Vec::new());
    for step in 0..200 {
        let call = multiply_add(&mut data, 31, step).grid(64);
        let is_plain = step % 7 != 3;
        let call = if is_plain { call } else { call.preemption(Preemption::Preemptible) };
        handles.push((launch(&stream, call), is_plain));
        expected = expected.wrapping_mul(31).wrapping_add(step);
    }
    for (handle, is_plain) in handles {
        let report = handle.wait().expect("runs");
        assert_eq!((report.plain, report.tasks), (is_plain, 64));
    }
    let found = stream.download(&data).and_then(|copy| copy.wait()).expect("copied");
    assert_eq!(found, [expected; 64]);
}

#[test]
fn a_panic_in_a_plain_launch_is_its_failure() {
    let scheduler = scheduler(2);
    #[preemptible(block = 1)]
    fn fails(at: u32) {
        assert!(thread::block_idx_x() != at, "at this one");
    }
    let stream = scheduler.stream(0);
    let handle = launch(&stream, fails(7).grid(30).preemption(Preemption::Plain));
    let error = handle.wait().expect_err("it panics");
    assert!(error.to_string().contains("at this one"), "{error}");
    launch(&stream, fails(100).grid(30).preemption(Preemption::Plain)).wait().expect("runs");
}

#[test]
fn a_launch_reports_its_amortizing_factor() {
    let scheduler = scheduler(1);
    let mut log = scheduler.zeroed(256).expect("memory");
    let gate = Gate::new(&scheduler);
    gate.open();
    let stream = scheduler.stream(0);
    let call = gated(&gate.0, &mut log, 1).grid(100);
    let report = launch(&stream, call.clone().amortize(7)).wait().expect("runs");
    assert_eq!(report.amortize, 7);
    // The factor that the block reached is a matter of time.
    let report = launch(&stream, call.amortize(Amortize::Auto)).wait().expect("runs");
    assert!((1..=1024).contains(&report.amortize), "{report:?}");
}
