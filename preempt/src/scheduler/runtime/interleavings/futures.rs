//! Futures beside threads: room in streams, events, and launches that are given up.

use std::pin::pin;
use std::task::{Context, Waker};

use super::*;

/// Polls a future once with a waker that does nothing, and drops it.
fn poll_once<F: Future>(future: F) -> bool {
    pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Launches twice, once there is room, and awaits both ends.
fn awaits_room(testbed: &Arc<Testbed>, stream: &Stream) -> JoinHandle<()> {
    let (testbed, stream) = (testbed.clone(), stream.clone());
    thread::spawn(move || {
        block_on(async {
            let first = stream.room().await.launch(short().grid(1)).expect("accepted");
            let mut second = stream.room().await.launch(short().grid(2)).expect("accepted");
            (&mut second).await.expect("done");
            assert!(first.is_done());
            testbed.end(&first, 1).expect("done");
            testbed.end(&second, 2).expect("done");
            testbed.check_order(&first, &second);
        });
    })
}

#[test]
fn room_reaches_futures_beside_threads() {
    explore(|| {
        let testbed = Testbed::new(1);
        let scheduler = testbed.scheduler();
        let stream = scheduler.stream(0);
        let awaits = [0, 1].map(|_| awaits_room(&testbed, &stream));
        let blocks = {
            let (testbed, stream) = (testbed.clone(), stream.clone());
            thread::spawn(move || {
                let handle = stream.launch(short().grid(2)).expect("accepted");
                testbed.end(&handle, 2).expect("done");
            })
        };
        join(awaits);
        join([blocks]);
    });
}

/// One credit is kept, so another future hears of the other credit from the future that was woken for it, and dropped.
#[test]
fn room_that_is_given_up_goes_to_the_next_future() {
    explore(|| {
        let testbed = Testbed::new(1);
        let scheduler = testbed.scheduler();
        let stream = scheduler.stream(0);
        let kept = stream.try_room().expect("room");
        let full = stream.launch(short().grid(2)).expect("accepted");
        let gives_up = stream.clone();
        let gives_up = thread::spawn(move || {
            // Not used.
            drop(gives_up.try_room());
            let mut room = Box::pin(gives_up.room());
            let _ = room.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            thread::yield_now();
            drop(room);
        });
        let awaits = awaits_room(&testbed, &stream);
        join([gives_up, awaits]);
        testbed.end(&full, 2).expect("done");
        drop(kept);
    });
}

#[test]
fn a_thread_with_a_result_finds_the_room_of_its_operation() {
    explore(|| {
        let testbed = Testbed::with(Settings { sms: 1, is_polled: true, memory: None });
        let scheduler = testbed.scheduler();
        let stream = scheduler.stream(0);
        let kept = stream.try_room().expect("room");
        let handle = stream.launch(short().grid(2)).expect("accepted");
        testbed.end(&handle, 2).expect("done");
        assert!(stream.try_room().is_some());
        drop(kept);
    });
}

#[test]
fn every_task_that_awaits_an_event_learns_of_it() {
    explore(|| {
        let testbed = Testbed::new(1);
        let scheduler = testbed.scheduler();
        let stream = scheduler.stream(0);
        let launch = stream.launch(short().grid(2)).expect("accepted");
        let event = stream.record_event().expect("recorded");
        let awaits = [0, 1].map(|_| {
            let event = event.clone();
            thread::spawn(move || {
                poll_once(event.clone().into_future());
                block_on(async { event.await.expect("it happens") });
            })
        });
        join(awaits);
        testbed.end(&launch, 2).expect("done");
        block_on(stream.synchronize_async()).expect("done");
    });
}

#[test]
fn a_launch_that_is_dropped_with_its_guard_runs_each_block_task_at_most_once() {
    explore(|| {
        let testbed = Testbed::new(1);
        let scheduler = testbed.scheduler();
        let stream = scheduler.stream(0);
        let guard = stream.launch(yielding().grid(3)).expect("accepted").cancel_on_drop();
        // Another handle of the same launch.
        let launch = guard.another();
        let drops = thread::spawn(move || {
            poll_once(guard);
        });
        let kept = stream.launch(short().grid(1)).expect("accepted").cancel_on_drop();
        let kept = kept.into_handle();
        testbed.end(&kept, 1).expect("it is not cancelled");
        let result = testbed.end(&launch, 3);
        assert!(
            matches!(result, Ok(_) | Err(Error::Launch(LaunchError::Cancelled { .. }))),
            "{result:?}"
        );
        testbed.check_order(&launch, &kept);
        join([drops]);
    });
}
