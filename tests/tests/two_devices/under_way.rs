//! What happens while contents are on their way: they have left, and the other device cannot take them yet.

use super::*;
use preempt::error::DeviceError;

/// A move from one device to another, which still has to read its old contents.
struct UnderWay {
    buffer: Buffer<u32>,
    gate: Gate,
    gated: Handle<LaunchReport>,
    /// The old contents, behind the gate, and the new ones, behind the move.
    old: Handle<Vec<u32>>,
    new: Handle<Vec<u32>>,
}

const OLD: [u32; LEN] = [3; LEN];

impl UnderWay {
    fn new(one: &Scheduler, other: &Scheduler) -> UnderWay {
        let mut buffer = one.buffer(&OLD).expect("memory");
        assert_eq!(contents(&other.stream(0), &buffer).expect("copied"), OLD);
        let (gate, mut log) = (Gate::new(other), other.zeroed(2).expect("memory"));
        let stream = other.stream(0);
        let gated = stream.launch(gated(&gate.0, &mut log, 7).grid(1)).expect("accepted");
        let old = stream.download(&buffer).expect("accepted");
        gate.wait_for(1);
        launch(&one.stream(0), kernels::scale(2, &mut buffer).threads(LEN as u32)).expect("runs");
        let new = other.stream(0).download(&buffer).expect("accepted");
        UnderWay { buffer, gate, gated, old, new }
    }

    /// Lets the move go on, and checks what arrives.
    fn arrive(&self) {
        self.gate.open();
        in_time(&self.gated).expect("runs");
        assert_eq!(in_time(&self.old).expect("copied"), OLD);
        assert_eq!(in_time(&self.new).expect("copied"), scaled(2, &OLD));
    }
}

#[test]
fn writers_wait_until_the_contents_are_copied_and_readers_do_not() {
    let (one, other) = (scheduler(), scheduler());
    let mut moved = UnderWay::new(&one, &other);
    assert_eq!(contents(&one.stream(0), &moved.buffer).expect("copied"), scaled(2, &OLD));
    let writes = kernels::scale(5, &mut moved.buffer).threads(LEN as u32);
    let writes = one.stream(0).launch(writes).expect("accepted");
    let after = one.stream(0).download(&moved.buffer).expect("accepted");
    match is_direct() {
        true => assert!(writes.wait_timeout(WHILE).is_none(), "the copy reads what it writes"),
        // The contents are in the host's memory.
        false => assert!(in_time(&writes).is_ok()),
    }
    moved.arrive();
    in_time(&writes).expect("runs");
    assert_eq!(in_time(&after).expect("copied"), scaled(5, &scaled(2, &OLD)));
    // They are newer than what arrived.
    let found = contents(&other.stream(0), &moved.buffer).expect("copied");
    assert_eq!(found, scaled(5, &scaled(2, &OLD)));
}

#[test]
fn a_source_that_is_dropped_has_no_other_scheduler_before_the_copy_is_over() {
    let device = device();
    let (one, other) = (scheduler_on(&device), scheduler());
    let mut moved = UnderWay::new(&one, &other);
    let drops = std::thread::spawn(move || drop(one));
    if is_direct() {
        std::thread::sleep(WHILE);
        let error = Scheduler::builder().device(device.clone()).build().expect_err("taken");
        assert!(matches!(error, Error::Device(DeviceError::Taken)), "{error:?}");
        assert!(!drops.is_finished());
    }
    moved.arrive();
    drops.join().expect("no panic");
    let one = scheduler_on(&device);
    let writes = kernels::scale(5, &mut moved.buffer).threads(LEN as u32);
    launch(&one.stream(0), writes).expect("runs");
    let found = contents(&other.stream(0), &moved.buffer).expect("copied");
    assert_eq!(found, scaled(5, &scaled(2, &OLD)));
}

#[test]
fn a_target_that_is_dropped_lets_the_source_go_on() {
    let (one, other) = (scheduler(), scheduler());
    let mut moved = UnderWay::new(&one, &other);
    let writes = kernels::scale(5, &mut moved.buffer).threads(LEN as u32);
    let writes = one.stream(0).launch(writes).expect("accepted");
    let drops = std::thread::spawn(move || drop(other));
    // Although the kernel still stands there.
    in_time(&writes).expect("runs");
    for never in [&moved.old, &moved.new] {
        let error = in_time(never).expect_err("its scheduler is gone");
        assert!(matches!(error, Error::Launch(LaunchError::SchedulerDropped { .. })), "{error:?}");
    }
    moved.gate.open();
    drops.join().expect("no panic");
    let found = contents(&one.stream(0), &moved.buffer).expect("copied");
    assert_eq!(found, scaled(5, &scaled(2, &OLD)));
}

#[test]
fn contents_move_in_both_directions_at_once() {
    let schedulers = [scheduler(), scheduler()];
    let [one, other] = &schedulers;
    let (mut first, mut second) = (UnderWay::new(one, other), UnderWay::new(other, one));
    let mut handles = Vec::new();
    for round in 0..20 {
        for (at, moved) in [&mut first, &mut second].into_iter().enumerate() {
            let call = kernels::scale(round, &mut moved.buffer).threads(LEN as u32);
            let on = &schedulers[(at + round as usize) % 2];
            handles.push(on.stream(at as i32).launch(call).expect("accepted"));
        }
    }
    first.gate.open();
    second.gate.open();
    for handle in &handles {
        in_time(handle).expect("runs");
    }
    let expected = (0..20).fold(scaled(2, &OLD), |x, round| scaled(round, &x));
    for moved in [&first, &second] {
        moved.arrive();
        for scheduler in &schedulers {
            let found = contents(&scheduler.stream(0), &moved.buffer).expect("copied");
            assert_eq!(found, expected);
        }
    }
}

/// Drops a scheduler when it is woken, and sends whether its device is free.
struct DropsWhenWoken {
    one: Mutex<Option<Scheduler>>,
    results: Sender<bool>,
}

impl Wake for DropsWhenWoken {
    fn wake(self: Arc<Self>) {
        if let Some(one) = self.one.lock().expect("not poisoned").take() {
            let device = one.device().clone();
            drop(one);
            // The test may be over.
            let _ = self.results.send(Scheduler::builder().device(device).build().is_ok());
        }
    }
}

#[test]
fn a_waker_of_the_target_may_drop_the_source() {
    let (one, other) = (scheduler(), scheduler());
    let moved = UnderWay::new(&one, &other);
    let (results, is_free) = channel();
    let waker = Waker::from(Arc::new(DropsWhenWoken { one: Mutex::new(Some(one)), results }));
    let UnderWay { gate, gated, old, new, buffer } = moved;
    let mut gated = Box::pin(gated);
    assert!(Future::poll(gated.as_mut(), &mut Context::from_waker(&waker)).is_pending());
    gate.open();
    // The poller of the target calls the waker, and no other thread drives the move.
    assert!(is_free.recv_timeout(LONG).expect("it ends"), "the source still waits for the move");
    assert_eq!(in_time(&old).expect("copied"), OLD);
    assert_eq!(in_time(&new).expect("copied"), scaled(2, &OLD));
    drop(buffer);
}
