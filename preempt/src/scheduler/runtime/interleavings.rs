//! Plays the scheduler's threads against those of a model device in many interleavings, by shuttle.
//!
//! ```sh
//! RUSTFLAGS="--cfg shuttle -C debug-assertions" cargo test --release -p preempt --lib interleavings
//! ```
//!
//! shuttle reports a thread that waits for ever, or that is left behind: an execution ends when all of its threads
//! have. Timeouts of 100 ms or longer never end a wait ([`crate::sync`]), so none hides a missing wake-up. A failure is
//! printed with its schedule, for `shuttle::replay`, and with its seed, for the environment variable
//! `SHUTTLE_RANDOM_SEED`. `INTERLEAVINGS` in the environment is the number of executions of each scenario.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use preempt_device::host::Preemption;
use preempt_device::prelude::*;
use shuttle::future::block_on;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

use super::external::ExternalOperation;
use crate::device::model::Settings;
use crate::engine::LaunchReport;
use crate::error::{DeviceError, Error, LaunchError, MemoryError};
use crate::policy::Ffs;
use crate::scheduler::{Opaque, Scheduler, Stream};
use crate::sync::mpsc::{Sender, channel};
use crate::sync::thread::{self, JoinHandle};

mod armed;
mod futures;
mod moves;
mod programs;
mod testbed;

pub(crate) use testbed::Testbed;

/// Plays a scenario with a random thread at each step, and with few changes of thread priority.
pub(crate) fn explore(scenario: fn()) {
    let interleavings = std::env::var("INTERLEAVINGS");
    let interleavings = interleavings.map_or(5000, |number| number.parse().expect("a number"));
    let mut config = Config::new();
    // A list of dropped chunks is built on the stack.
    config.stack_size = 1 << 20;
    config.silence_warnings = true;
    Runner::new(RandomScheduler::new(interleavings), config.clone()).run(scenario);
    Runner::new(PctScheduler::new(3, interleavings), config).run(scenario);
}

#[preemptible(block = 1)]
fn short() {}

#[preemptible(block = 1, idempotent)]
fn yielding() {
    yield_point!();
}

#[preemptible(block = 1)]
fn writes(_out: SliceMut<u32>) {}

// The model device knows these kernels by name.
#[preemptible(block = 1)]
fn faulty(_out: SliceMut<u32>) {}

#[preemptible(block = 1, idempotent)]
fn patient() {
    yield_point!();
}

fn join<const N: usize>(threads: [JoinHandle<()>; N]) {
    // shuttle reports panics.
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// Two threads submit and wait, each on a stream of its own.
fn submit_and_wait(is_polled: bool) {
    let testbed = Testbed::with(Settings { sms: 2, is_polled, memory: None });
    let scheduler = testbed.scheduler();
    join([0, 5].map(|priority| {
        let (testbed, stream) = (testbed.clone(), scheduler.stream(priority));
        thread::spawn(move || {
            let first = stream.launch(yielding().grid(3)).expect("accepted");
            let second = stream.launch(short().grid(2)).expect("accepted");
            testbed.end(&second, 2).expect("done");
            assert!(first.is_done());
            testbed.end(&first, 3).expect("done");
            testbed.check_order(&first, &second);
        })
    }));
}

#[test]
fn what_is_submitted_ends() {
    explore(|| submit_and_wait(false));
}

#[test]
fn operations_of_a_polled_device_end() {
    explore(|| submit_and_wait(true));
}

#[test]
fn plain_launches_end_beside_others() {
    explore(|| {
        let testbed = Testbed::new(2);
        let scheduler = testbed.scheduler();
        join([Preemption::Plain, Preemption::Preemptible].map(|preemption| {
            let (testbed, stream) = (testbed.clone(), scheduler.stream(0));
            thread::spawn(move || {
                let handles = [2, 3].map(|tasks| {
                    let call = short().grid(tasks).preemption(preemption);
                    (stream.launch(call).expect("accepted"), tasks)
                });
                for (handle, tasks) in &handles {
                    testbed.end(handle, *tasks).expect("done");
                }
                testbed.check_order(&handles[0].0, &handles[1].0);
            })
        }));
    });
}

#[test]
fn every_waiting_thread_learns_of_the_end() {
    explore(|| {
        let testbed = Testbed::new(1);
        let scheduler = testbed.scheduler();
        let handle = Arc::new(scheduler.stream(0).launch(short().grid(2)).expect("accepted"));
        let sleeps = handle.clone();
        let sleeps = thread::spawn(move || {
            sleeps.wait().expect("done");
        });
        let times_out = handle.clone();
        let times_out =
            thread::spawn(
                move || {
                    while times_out.wait_timeout(Duration::from_millis(1)).is_none() {}
                },
            );
        let looks = handle.clone();
        let looks = thread::spawn(move || {
            while !looks.is_done() {
                thread::yield_now();
            }
            looks.try_wait().expect("there is a result").expect("done");
        });
        let awaits = handle.untyped();
        let awaits = thread::spawn(move || block_on(awaits).expect("done"));
        join([sleeps, times_out, looks, awaits]);
        testbed.end(&handle, 2).expect("done");
    });
}

/// One thread launches and awaits the end without driving the core, while another thread holds the core for a reason of
/// its own.
fn await_beside(other: fn(&Scheduler)) {
    let testbed = Testbed::new(1);
    let scheduler = testbed.scheduler();
    let stream = scheduler.stream(0);
    // Lets the poller fall asleep first. Random schedules wake it spuriously, too; those with few changes of thread
    // priority do not.
    (0..50).for_each(|_| thread::yield_now());
    let awaits = thread::spawn(move || {
        let handle = stream.launch(short().grid(1)).expect("accepted");
        block_on(handle).expect("done");
    });
    let clone = scheduler.clone();
    let other = thread::spawn(move || other(&clone));
    join([awaits, other]);
    assert_eq!(scheduler.stats().total.done, 1);
}

#[test]
fn a_look_at_the_core_leaves_no_launch_behind() {
    explore(|| await_beside(|scheduler| assert!(scheduler.stats().total.done <= 1)));
}

#[test]
fn a_change_leaves_no_launch_behind() {
    explore(|| await_beside(|scheduler| scheduler.stream(1).set_priority(2)));
}

#[test]
fn a_synchronization_leaves_no_launch_behind() {
    explore(|| await_beside(|scheduler| scheduler.synchronize().expect("no errors")));
}

#[test]
fn a_cancelled_launch_says_what_it_did() {
    explore(|| {
        let testbed = Testbed::new(2);
        let scheduler = testbed.scheduler();
        let stream = scheduler.stream(0);
        let [first, second] =
            [3, 2].map(|tasks| Arc::new(stream.launch(yielding().grid(tasks)).expect("accepted")));
        let cancels =
            [first.clone(), second.clone()].map(|handle| thread::spawn(move || handle.cancel()));
        let last = stream.launch(short().grid(1)).expect("accepted");
        testbed.end(&last, 1).expect("it is not cancelled");
        for (handle, tasks) in [(&first, 3), (&second, 2)] {
            let result = testbed.end(handle, tasks);
            assert!(
                matches!(result, Ok(_) | Err(Error::Launch(LaunchError::Cancelled { .. }))),
                "{result:?}"
            );
        }
        testbed.check_order(&first, &second);
        testbed.check_order(&second, &last);
        join(cancels);
    });
}

#[test]
fn priorities_change_while_launches_run() {
    explore(|| {
        let testbed = Testbed::new(1);
        let scheduler = testbed.scheduler();
        let (low, high) = (scheduler.stream(0), scheduler.stream(5));
        let long = Arc::new(low.launch(yielding().grid(4)).expect("accepted"));
        let changed = long.clone();
        let of_launch = thread::spawn(move || changed.set_priority(9));
        let changed = high.clone();
        let of_stream = thread::spawn(move || {
            changed.set_priority(-1);
            changed.set_priority(7);
        });
        let other = high.launch(short().grid(2)).expect("accepted");
        testbed.end(&other, 2).expect("done");
        testbed.end(&long, 4).expect("done");
        join([of_launch, of_stream]);
    });
}

/// Nothing happens on the device until the policy takes the SM away, and no thread but the poller looks.
#[test]
fn a_policy_is_asked_when_it_wants_to_be() {
    explore(|| {
        let testbed = Testbed::new(1);
        let scheduler = testbed.builder().policy(Ffs::new()).build().expect("a scheduler");
        let (stream, other) = (scheduler.stream(0), scheduler.stream(0));
        let long = stream.launch(patient().grid(1)).expect("accepted");
        let awaits = thread::spawn(move || {
            let handle = other.launch(short().grid(2)).expect("accepted");
            block_on(handle).expect("done");
        });
        join([awaits]);
        long.cancel();
        let _ = testbed.end(&long, 1);
    });
}

#[test]
fn launches_without_a_handle_run() {
    explore(|| {
        let testbed = Testbed::new(2);
        let scheduler = testbed.scheduler();
        let threads = [0, 1].map(|priority| {
            let stream = scheduler.stream(priority);
            thread::spawn(move || {
                let handle = stream.launch(short().grid(3)).expect("accepted");
                let completion = handle.completion().clone();
                drop((handle, stream));
                completion
            })
        });
        let completions = threads.map(|thread| thread.join().expect("no panic"));
        scheduler.synchronize().expect("no errors");
        for completion in completions {
            let ran = testbed.model.ran(*completion.op.get().expect("it was taken in"));
            assert_eq!(ran.tasks, [1; 3]);
        }
    });
}

/// Submits and waits until the scheduler, or its device, is gone.
fn submit_until_the_end(testbed: Arc<Testbed>, stream: Stream) -> JoinHandle<()> {
    thread::spawn(move || {
        loop {
            let handle = match stream.launch(yielding().grid(3)) {
                Ok(handle) => handle,
                Err(Error::Launch(LaunchError::SchedulerDropped { .. })) => return,
                Err(error) => panic!("{error:?}"),
            };
            match testbed.end(&handle, 3) {
                Ok(_) => {}
                Err(
                    Error::Launch(LaunchError::SchedulerDropped { .. })
                    | Error::Device(DeviceError::ContextLost { .. }),
                ) => return,
                Err(error) => panic!("{error:?}"),
            }
        }
    })
}

#[test]
fn a_scheduler_is_dropped_while_others_submit() {
    explore(|| {
        let testbed = Testbed::new(2);
        let scheduler = testbed.scheduler();
        let submit = [0, 5]
            .map(|priority| submit_until_the_end(testbed.clone(), scheduler.stream(priority)));
        let clone = scheduler.clone();
        let drops = thread::spawn(move || drop(clone));
        drop(scheduler);
        join([drops]);
        join(submit);
        // Its last clone was dropped, so the device is free.
        let scheduler = testbed.scheduler();
        let handle = scheduler.stream(0).launch(short().grid(2)).expect("accepted");
        handle.wait().expect("done");
    });
}

fn lose(is_polled: bool) {
    let testbed = Testbed::with(Settings { sms: 2, is_polled, memory: None });
    let scheduler = testbed.builder().poller_spin(Duration::MAX).build().expect("a scheduler");
    let submit =
        [0, 5].map(|priority| submit_until_the_end(testbed.clone(), scheduler.stream(priority)));
    let mut buffer = scheduler.zeroed::<u32>(4).expect("memory");
    let copies = scheduler.stream(0);
    let copies = thread::spawn(move || {
        let upload = copies.upload(vec![1, 2, 3, 4], &mut buffer).expect("accepted");
        match copies.download(&buffer).expect("accepted").wait() {
            Ok(data) => assert_eq!(data, [1, 2, 3, 4]),
            Err(error) => assert!(
                matches!(error, Error::Device(DeviceError::ContextLost { .. })),
                "{error:?}"
            ),
        }
        let _ = upload.wait();
    });
    testbed.model.lose();
    join(submit);
    join([copies]);
    scheduler.synchronize().expect("the policy did nothing wrong");
}

#[test]
fn everything_ends_with_the_device() {
    explore(|| lose(false));
}

#[test]
fn everything_ends_with_a_polled_device() {
    explore(|| lose(true));
}

#[test]
fn events_order_streams() {
    explore(|| {
        let testbed = Testbed::new(2);
        let scheduler = testbed.scheduler();
        let (one, other) = (scheduler.stream(0), scheduler.stream(5));
        let first = Arc::new(one.launch(yielding().grid(3)).expect("accepted"));
        let event = one.record_event().expect("recorded");
        let recorded = event.clone();
        let waits = thread::spawn(move || recorded.synchronize().expect("it happens"));
        let cancelled = first.clone();
        let cancels = thread::spawn(move || cancelled.cancel());
        other.wait_event(&event).expect("accepted");
        let second = other.launch(short().grid(2)).expect("accepted");
        testbed.end(&second, 2).expect("done");
        assert!(first.is_done() && event.is_done());
        let _ = testbed.end(&first, 3);
        testbed.check_order(&first, &second);
        join([waits, cancels]);
    });
}

#[test]
fn a_thread_that_waits_for_memory_gets_it_from_another_thread() {
    explore(|| {
        const LEN: usize = 200;
        let testbed = Testbed::with(Settings { sms: 1, is_polled: false, memory: Some(1000) });
        let scheduler = testbed.scheduler();
        let mut buffer = scheduler.zeroed::<u32>(LEN).expect("memory");
        let stream = scheduler.stream(0);
        let frees = thread::spawn(move || {
            let handle = stream.launch(writes(&mut buffer).grid(2)).expect("accepted");
            // The launch has it.
            drop(buffer);
            handle.wait().expect("done");
        });
        let waits = scheduler.clone();
        let waits = thread::spawn(move || {
            drop(waits.zeroed_within::<u32>(LEN, Duration::from_secs(1)).expect("it is freed"));
        });
        match scheduler.buffer_within(&[7u32; LEN], Duration::from_millis(2)) {
            Ok(buffer) => {
                let data = scheduler.stream(1).download(&buffer).expect("accepted").wait();
                assert_eq!(data.expect("copied"), [7; LEN]);
            }
            Err(error) => {
                assert!(matches!(error, Error::Memory(MemoryError::Timeout { .. })), "{error:?}")
            }
        }
        join([frees, waits]);
        // Soon, because an operation is reported before it releases its buffers.
        let all = scheduler.zeroed_within::<u32>(LEN, Duration::from_secs(1));
        drop(all.expect("no other buffer has any"));
    });
}

#[test]
fn a_full_stream_goes_on() {
    explore(|| {
        let testbed = Testbed::new(1);
        let scheduler = testbed.scheduler();
        let stream = scheduler.stream(0);
        join([0, 1].map(|_| {
            let (testbed, stream) = (testbed.clone(), stream.clone());
            thread::spawn(move || {
                let handles = [1, 2, 1]
                    .map(|tasks| (stream.launch(short().grid(tasks)).expect("accepted"), tasks));
                for (handle, tasks) in &handles {
                    testbed.end(handle, *tasks).expect("done");
                }
            })
        }));
    });
}

#[test]
fn a_fault_is_passed_on_to_later_launches() {
    explore(|| {
        let testbed = Testbed::new(2);
        let scheduler = testbed.scheduler();
        let (one, other) = (scheduler.stream(0), scheduler.stream(5));
        let aside = thread::spawn(move || {
            other.launch(short().grid(2)).expect("accepted").wait().expect("done");
        });
        let mut buffer = scheduler.zeroed::<u32>(1).expect("memory");
        let failed = one.launch(faulty(&mut buffer).grid(3)).expect("accepted");
        let behind = one.launch(writes(&mut buffer).grid(2)).expect("accepted");
        let result = testbed.end(&behind, 2);
        assert!(matches!(result, Err(Error::Launch(LaunchError::InputLost { .. }))), "{result:?}");
        let result = testbed.end(&failed, 3);
        assert!(
            matches!(result, Err(Error::Launch(LaunchError::KernelFailed { .. }))),
            "{result:?}"
        );
        one.upload(vec![7], &mut buffer).expect("accepted").wait().expect("copied");
        let data = one.download(&buffer).expect("accepted").wait();
        assert_eq!(data.expect("it was overwritten"), [7]);
        join([aside]);
    });
}

/// A waker that waits for a launch of its own, perhaps on the poller thread.
struct LaunchesAnother {
    testbed: Arc<Testbed>,
    stream: Stream,
    result: Sender<Result<LaunchReport, Error>>,
}

impl Wake for LaunchesAnother {
    fn wake(self: Arc<Self>) {
        let handle = self.stream.launch(short().grid(2)).expect("accepted");
        self.result.send(self.testbed.end(&handle, 2)).expect("the test listens");
    }
}

#[test]
fn a_waker_may_launch_and_wait() {
    explore(|| {
        let testbed = Testbed::new(1);
        let scheduler = testbed.scheduler();
        let (stream, other) = (scheduler.stream(0), scheduler.stream(1));
        let aside = thread::spawn(move || {
            other.launch(short().grid(1)).expect("accepted").wait().expect("done");
        });
        let (result, results) = channel();
        let first = stream.launch(yielding().grid(2)).expect("accepted");
        let waker = LaunchesAnother { testbed: testbed.clone(), stream, result };
        let waker = Waker::from(Arc::new(waker));
        // Alive until its waker was called: a dropped future wakes no task.
        let mut first = pin!(first);
        let polled = first.as_mut().poll(&mut Context::from_waker(&waker));
        drop(waker);
        match polled {
            Poll::Ready(result) => drop(result.expect("done")),
            Poll::Pending => drop(results.recv().expect("it is woken").expect("done")),
        }
        join([aside]);
    });
}

#[test]
fn opaque_work_runs_in_its_turn() {
    explore(|| {
        let testbed = Testbed::new(2);
        let scheduler = testbed.scheduler();
        join([0, 1].map(|priority| {
            let (testbed, stream) = (testbed.clone(), scheduler.stream(priority));
            let clone = scheduler.clone();
            thread::spawn(move || {
                let before = stream.launch(yielding().grid(2)).expect("accepted");
                // The last clone, perhaps.
                let work = move |_| {
                    drop(clone);
                    Ok(())
                };
                let opaque = stream.opaque(Opaque::new("opaque"), work).expect("accepted");
                match opaque.wait() {
                    Ok(()) => {
                        assert!(before.is_done());
                        assert_eq!(testbed.ran(&opaque).tasks, [1]);
                    }
                    Err(error) => assert!(matches!(
                        error,
                        Error::Launch(LaunchError::SchedulerDropped { .. })
                    )),
                }
                let _ = testbed.end(&before, 2);
            })
        }));
        drop(scheduler);
    });
}

#[test]
fn external_operations_end_when_they_are_reported() {
    explore(|| {
        let testbed = Testbed::new(1);
        let scheduler = testbed.scheduler();
        let stream = scheduler.stream(0);
        let (begun, begins) = channel();
        let external =
            ExternalOperation::new(move |external| begun.send(external).expect("the test listens"));
        let handle = stream.submit_external("an external", external).expect("accepted");
        let shared = stream.shared().clone();
        let ends = thread::spawn(move || {
            begins.recv().expect("it begins").finish(Ok(()));
            shared.announce();
        });
        let behind = stream.launch(short().grid(2)).expect("accepted");
        testbed.end(&behind, 2).expect("done");
        handle.wait().expect("over");
        join([ends]);
    });
}

#[test]
fn a_scope_waits_for_what_was_launched_in_it() {
    explore(|| {
        let testbed = Testbed::new(2);
        let scheduler = testbed.scheduler();
        let (stream, other) = (scheduler.stream(0), scheduler.stream(1));
        let aside = thread::spawn(move || {
            other.launch(short().grid(2)).expect("accepted").wait().expect("done");
        });
        let [kept, cancelled] = scheduler.scope(|scope| {
            [2, 3].map(|tasks| {
                let handle = scope.launch(&stream, yielding().grid(tasks)).expect("accepted");
                if tasks == 3 {
                    handle.cancel();
                }
                handle
            })
        });
        assert!(kept.is_done() && cancelled.is_done());
        testbed.end(&kept, 2).expect("done");
        let _ = testbed.end(&cancelled, 3);
        join([aside]);
    });
}
