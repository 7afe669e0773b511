//! Code that must not block: room in a stream, awaited events, and launches that end with their guards.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use preempt::error::LaunchError;
use preempt::{Buffer, Call, CpuLayout, Device, Error, Room, Scheduler, Stream, TryLaunch};
use preempt_device::prelude::*;
use preempt_test_kit::{Gate, gated};

/// Operations of a stream that can be outstanding.
const ROOM: usize = 64;

#[preemptible(block = 1)]
fn nothing() {}

#[preemptible(block = 1)]
fn add_one(out: SliceMut<u32>) {
    // SAFETY: one thread writes the only element.
    unsafe { out.write(0, out.read(0) + 1) }
}

fn scheduler() -> Scheduler {
    let device = Device::cpu_with(CpuLayout::sms(1)).expect("a device");
    Scheduler::builder().device(device).build().expect("a scheduler")
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// A stream whose first launch waits for the gate, without room behind that.
fn full(scheduler: &Scheduler, gate: &Gate, log: &mut Buffer<u32>) -> Stream {
    let stream = scheduler.stream(0);
    stream.launch(gated(&gate.0, log, 1).grid(1)).expect("accepted").detach();
    for _ in 1..ROOM {
        stream.launch(nothing().grid(1)).expect("accepted").detach();
    }
    stream
}

#[test]
fn a_call_without_room_comes_back() {
    let scheduler = scheduler();
    let (gate, mut log) = (Gate::new(&scheduler), scheduler.zeroed(64).expect("memory"));
    let stream = full(&scheduler, &gate, &mut log);
    assert!(stream.try_room().is_none() && poll_once(stream.room()).is_pending());
    let TryLaunch::NoRoom(call) = stream.try_launch(nothing().grid(7)).expect("no mistake") else {
        panic!("launched without room");
    };
    gate.open();
    let report = block_on(async { stream.room().await.launch(call)?.await });
    assert_eq!(report.expect("done").tasks, 7);
    match stream.try_launch(nothing().grid(3)).expect("no mistake") {
        TryLaunch::Launched(handle) => assert_eq!(handle.wait().expect("done").tasks, 3),
        TryLaunch::NoRoom(call) => panic!("no room for {call:?}"),
    }
}

#[test]
fn a_mistake_in_a_call_leaves_the_room_for_the_next() {
    let scheduler = scheduler();
    let stream = scheduler.stream(0);
    let rooms: Vec<Room> = (0..ROOM).map_while(|_| stream.try_room()).collect();
    assert!(rooms.len() == ROOM && stream.try_room().is_none());
    let room = &rooms[0];
    let error = room.launch(nothing().grid(0)).expect_err("no block-tasks");
    assert!(matches!(error, Error::Configuration(_)), "{error:?}");
    room.launch(nothing().grid(1)).expect("accepted").wait().expect("done");
    // Its room went to the launch, and came back with that.
    assert!(stream.try_room().is_some());
    drop(rooms);
    assert_eq!((0..ROOM).map_while(|_| stream.try_room()).count(), ROOM);
}

#[test]
fn room_is_not_cloned_with_its_stream() {
    let stream = scheduler().stream(0);
    let room = stream.try_room().expect("room");
    let clone: Stream = room.clone();
    drop((room, clone));
    let rooms: Vec<Room> = (0..=ROOM).map_while(|_| stream.try_room()).collect();
    assert_eq!(rooms.len(), ROOM);
}

#[test]
fn all_operations_go_through_room() {
    let scheduler = scheduler();
    let stream = scheduler.stream(0);
    let mut buffer = scheduler.zeroed::<u32>(1).expect("memory");
    let data = block_on(async {
        stream.room().await.upload(vec![41], &mut buffer)?.detach();
        stream.room().await.launch(add_one(&mut buffer).grid(1))?.detach();
        let data = stream.room().await.download(&buffer)?;
        let event = stream.room().await.record_event()?;
        (&event).await?;
        assert!(event.is_done());
        stream.synchronize_async().await?;
        data.await
    });
    assert_eq!(data.expect("done"), [42]);
}

#[test]
fn an_operation_ends_with_its_guard_or_goes_on() {
    let scheduler = scheduler();
    let (gate, mut log) = (Gate::new(&scheduler), scheduler.zeroed(64).expect("memory"));
    let stream = scheduler.stream(0);
    let mut count = [0; 3].map(|_| scheduler.zeroed::<u32>(1).expect("memory"));
    stream.launch(gated(&gate.0, &mut log, 1).grid(1)).expect("accepted").detach();
    let mut launch = |at: usize| {
        let call: Call<'static> = add_one(&mut count[at]).grid(1);
        stream.launch(call).expect("accepted")
    };
    assert!(poll_once(launch(0).cancel_on_drop()).is_pending());
    let kept = launch(1).cancel_on_drop().into_handle();
    let cancelled = launch(2).cancel_on_drop();
    cancelled.cancel();
    gate.open();
    let error = block_on(cancelled).expect_err("cancelled");
    assert!(
        matches!(error, Error::Launch(LaunchError::Cancelled { done: 0, tasks: 1 })),
        "{error:?}"
    );
    assert_eq!(kept.wait().expect("done").tasks, 1);
    let counted = count.map(|count| stream.download(&count).expect("accepted").wait());
    assert_eq!(counted.map(|count| count.expect("copied")[0]), [0, 1, 0]);
    let total = scheduler.stats().total;
    assert_eq!((total.done, total.cancelled), (2, 2));
}
