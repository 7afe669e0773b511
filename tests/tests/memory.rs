//! Waiting for memory.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::task::{Context, Wake};
use std::thread;
use std::time::Duration;

use preempt::error::{DeviceError, MemoryError};
use preempt::{Buffer, CpuLayout, Device, Error, Scheduler};
use preempt_test_kit::{Gate, gated};

/// Time in which an operation ends that nothing holds back.
const WHILE: Duration = Duration::from_millis(20);
/// Time: longer than any of these tests takes.
const LONG: Duration = Duration::from_secs(100);

/// A scheduler with 1000 bytes of memory.
fn scheduler() -> Scheduler {
    let device = Device::cpu_with(CpuLayout::sms(1).memory(1000)).expect("a device");
    Scheduler::builder().device(device).build().expect("a scheduler")
}

fn bytes(scheduler: &Scheduler, len: usize) -> Buffer<u8> {
    scheduler.zeroed(len).expect("memory")
}

#[test]
fn a_request_waits_until_another_thread_drops_a_buffer() {
    let scheduler = scheduler();
    let held = scheduler.buffer(&[7u8; 600]).expect("memory");
    let error = scheduler.zeroed::<u8>(500).expect_err("there is not enough");
    assert!(matches!(error, Error::Memory(MemoryError::OutOfMemory { bytes: 500 })), "{error:?}");
    thread::scope(|scope| {
        let (sender, receiver) = channel();
        let scheduler = &scheduler;
        scope.spawn(move || sender.send(scheduler.buffer_within(&[3u8; 500], LONG)));
        assert_eq!(receiver.recv_timeout(WHILE).err(), Some(RecvTimeoutError::Timeout));
        drop(held);
        let buffer = receiver.recv().expect("no panic").expect("memory");
        let stream = scheduler.stream(0);
        let found = stream.download(&buffer).and_then(|copy| copy.wait()).expect("copied");
        assert_eq!(found, [3; 500]);
    });
    // All of the memory is free again, once the scheduler has let go of the copy, whose result was there before.
    scheduler.zeroed_within::<u8>(1000, LONG).expect("memory");
}

#[test]
fn a_request_waits_for_an_operation_that_keeps_a_dropped_buffer() {
    let device = Device::cpu_with(CpuLayout::sms(1).memory(1000)).expect("a device");
    let builder = Scheduler::builder().device(device).allocation_timeout(LONG);
    let scheduler = builder.build().expect("a scheduler");
    let gate = Gate::new(&scheduler);
    let mut log = scheduler.zeroed::<u32>(200).expect("memory");
    let stream = scheduler.stream(0);
    let running = stream.launch(gated(&gate.0, &mut log, 1).grid(1)).expect("accepted");
    drop(log);
    thread::scope(|scope| {
        let (sender, receiver) = channel();
        let scheduler = &scheduler;
        scope.spawn(move || sender.send(scheduler.zeroed::<u8>(900).map(drop)));
        assert_eq!(receiver.recv_timeout(WHILE).err(), Some(RecvTimeoutError::Timeout));
        gate.open();
        receiver.recv().expect("no panic").expect("memory");
    });
    running.wait().expect("runs");
}

#[test]
fn a_request_that_waits_too_long_says_so_and_lets_the_next_one_through() {
    let scheduler = scheduler();
    let _held = bytes(&scheduler, 600);
    thread::scope(|scope| {
        let (sender, receiver) = channel();
        let scheduler = &scheduler;
        let large = scope.spawn(move || scheduler.zeroed_within::<u8>(500, 4 * WHILE).map(drop));
        // While it waits, no other allocation gets past it.
        while scheduler.zeroed::<u8>(100).is_ok() && !large.is_finished() {
            thread::yield_now();
        }
        scope.spawn(move || sender.send(scheduler.zeroed_within::<u8>(400, LONG).map(drop)));
        let error = large.join().expect("no panic").expect_err("no buffer is dropped");
        assert!(
            matches!(error, Error::Memory(MemoryError::Timeout { bytes: 500, .. })),
            "{error:?}"
        );
        assert!(error.to_string().contains("500 bytes"), "{error}");
        receiver.recv().expect("no panic").expect("it fits");
    });
}

#[test]
fn requests_are_served_in_the_order_in_which_they_came() {
    let scheduler = scheduler();
    let (first, second) = (bytes(&scheduler, 300), bytes(&scheduler, 600));
    thread::scope(|scope| {
        let (sender, receiver) = channel();
        let wait = |len| {
            let (scheduler, sender) = (&scheduler, sender.clone());
            scope.spawn(move || sender.send((len, scheduler.zeroed_within::<u8>(len, LONG))));
        };
        wait(700);
        while scheduler.zeroed::<u8>(10).is_ok() {
            thread::yield_now();
        }
        wait(50);
        assert!(receiver.recv_timeout(WHILE).is_err(), "there is room for the small one only");
        drop(first);
        assert!(receiver.recv_timeout(WHILE).is_err());
        drop(second);
        let mut served = [receiver.recv().expect("no panic"), receiver.recv().expect("no panic")];
        served.sort_by_key(|(len, _)| *len);
        assert!(served.iter().all(|(_, buffer)| buffer.is_ok()), "{served:?}");
    });
    bytes(&scheduler, 1000);
}

#[test]
fn the_number_of_waiting_requests_is_bounded() {
    let device = Device::cpu_with(CpuLayout::sms(1).memory(1000)).expect("a device");
    let builder = Scheduler::builder().device(device).allocation_queue(2);
    let scheduler = builder.build().expect("a scheduler");
    let held = bytes(&scheduler, 1000);
    thread::scope(|scope| {
        let wait = || loop {
            match scheduler.zeroed_within::<u8>(10, LONG).map(drop) {
                // The request below may already be in the line.
                Err(Error::Memory(MemoryError::QueueFull { .. })) => thread::yield_now(),
                other => break other,
            }
        };
        let waiting = [scope.spawn(wait), scope.spawn(wait)];
        // This request soon ends where there is still room in the line, and leaves it to the others for a while.
        let error = loop {
            match scheduler.zeroed_within::<u8>(10, Duration::from_millis(1)).map(drop) {
                Err(Error::Memory(MemoryError::Timeout { .. })) => thread::sleep(WHILE),
                other => break other.expect_err("the device is full"),
            }
        };
        assert!(
            matches!(error, Error::Memory(MemoryError::QueueFull { bytes: 10, waiting: 2 })),
            "{error:?}"
        );
        assert!(error.to_string().contains("allocation_queue"), "{error}");
        drop(held);
        for thread in waiting {
            thread.join().expect("no panic").expect("memory");
        }
    });
}

#[test]
fn memory_that_cannot_become_free_is_not_waited_for() {
    let scheduler = scheduler();
    let _held = bytes(&scheduler, 10);
    let error = scheduler.zeroed_within::<u8>(1001, LONG).expect_err("more than there is");
    assert!(matches!(error, Error::Memory(MemoryError::OutOfMemory { bytes: 1001 })), "{error:?}");
    let error = scheduler.zeroed_within::<u64>(usize::MAX / 2, LONG).expect_err("too many");
    assert!(matches!(error, Error::Memory(MemoryError::OutOfMemory { .. })), "{error:?}");
    // Without a limit on memory, and without buffers that could be dropped.
    let device = Device::cpu_with(CpuLayout::sms(1)).expect("a device");
    let scheduler = Scheduler::builder().device(device).build().expect("a scheduler");
    let error = scheduler.zeroed_within::<u8>(1 << 60, LONG).expect_err("more than there is");
    assert!(matches!(error, Error::Memory(MemoryError::OutOfMemory { .. })), "{error:?}");
    assert!(scheduler.zeroed_within::<u8>(0, Duration::ZERO).is_ok());
}

#[test]
fn other_clones_of_the_scheduler_can_be_dropped_while_one_waits() {
    let scheduler = scheduler();
    let held = bytes(&scheduler, 600);
    let waits = scheduler.clone();
    let (sender, receiver) = channel();
    let thread = thread::spawn(move || {
        let buffer = waits.zeroed_within::<u8>(500, LONG);
        // The last scheduler is dropped.
        drop(waits);
        sender.send(buffer).expect("the test listens");
    });
    assert!(receiver.recv_timeout(WHILE).is_err());
    let device = scheduler.device().clone();
    drop(scheduler);
    assert!(matches!(
        Scheduler::builder().device(device).build(),
        Err(Error::Device(DeviceError::Taken))
    ));
    drop(held);
    let buffer = receiver.recv().expect("no panic").expect("memory");
    thread.join().expect("no panic");
    // Buffers outlive schedulers.
    assert_eq!(buffer.len(), 500);
}

/// Allocates on the thread that completes operations, which is the poller if no thread waits.
struct Allocate {
    scheduler: Scheduler,
    done: Sender<Result<Buffer<u8>, Error>>,
}

impl Wake for Allocate {
    fn wake(self: Arc<Self>) {
        let buffer = self.scheduler.zeroed_within(900, LONG);
        self.done.send(buffer).expect("the test waits");
    }
}

#[test]
fn a_waker_can_wait_for_memory_that_an_operation_keeps() {
    let scheduler = scheduler();
    let (first, second) = (Gate::new(&scheduler), Gate::new(&scheduler));
    let (mut one, mut other) = (
        scheduler.zeroed::<u32>(2).expect("memory"),
        scheduler.zeroed::<u32>(100).expect("memory"),
    );
    let stream = scheduler.stream(0);
    let wakes = stream.launch(gated(&first.0, &mut one, 0).grid(1)).expect("accepted");
    let keeps = stream.launch(gated(&second.0, &mut other, 0).grid(1)).expect("accepted");
    drop((one, other));
    let (done, allocated) = channel();
    let waker = Arc::new(Allocate { scheduler: scheduler.clone(), done }).into();
    let mut wakes = pin!(wakes);
    assert!(wakes.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    first.open();
    assert!(allocated.recv_timeout(WHILE).is_err(), "the second launch keeps its buffer");
    second.open();
    allocated.recv().expect("no panic").expect("memory");
    keeps.wait().expect("runs");
}

#[test]
fn the_memory_of_a_device_is_told() {
    let scheduler = scheduler();
    let device = scheduler.device();
    let free = || device.memory().expect("told").free;
    assert_eq!((free(), device.memory().expect("told").total), (1000, 1000));
    let held = bytes(&scheduler, 600);
    assert_eq!(free(), 400);
    drop(held);
    assert_eq!(free(), 1000);
    // Without a limit, the host's.
    let device = Device::cpu_with(CpuLayout::sms(1)).expect("a device");
    let memory = device.memory().expect("told");
    assert!(memory.free <= memory.total && memory.total > 0, "{memory:?}");
    assert_eq!(device.properties().compute_capability, None);
    assert_eq!(device.properties().clock_khz, 1_000_000);
}

#[test]
fn every_counted_gpu_can_be_asked_for() {
    // Without a driver, none.
    match Device::count().expect("counted") {
        0 => assert!(Device::cuda(0).is_err()),
        gpus => {
            assert!(matches!(Device::cuda(gpus), Err(Error::Device(DeviceError::NoGpu { .. }))))
        }
    }
}
