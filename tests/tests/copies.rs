//! Copies between buffers and memory of the application: which memory they read and write, and until when.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use preempt::error::{ArgumentError, LaunchError};
use preempt::{Buffer, Device, Error, Handle, LaunchReport, Scheduler, Stream};
use preempt_device::prelude::*;
use preempt_test_kit::{Gate, gated};

/// Time in which an operation ends that nothing holds back.
const WHILE: Duration = Duration::from_millis(20);

fn scheduler() -> Scheduler {
    Scheduler::builder().device(Device::cpu(1, 1).expect("a device")).build().expect("a scheduler")
}

fn numbers(len: usize) -> Vec<u32> {
    (0..len as u32).map(|x| x.wrapping_mul(2_654_435_761)).collect()
}

fn contents(stream: &Stream, buffer: &Buffer<u32>) -> Vec<u32> {
    stream.download(buffer).and_then(|copy| copy.wait()).expect("copied")
}

/// A launch that holds a stream up until its gate is opened.
fn hold(scheduler: &Scheduler, stream: &Stream) -> (Gate, Handle<LaunchReport>) {
    let gate = Gate::new(scheduler);
    let mut log = scheduler.zeroed::<u32>(2).expect("memory");
    let held = stream.launch(gated(&gate.0, &mut log, 1).grid(1)).expect("accepted");
    gate.wait_for(1);
    (gate, held)
}

/// Fails, and leaves its buffer in an unknown state.
#[preemptible(block = 1)]
fn fails(_out: SliceMut<u32>) {
    panic!("as a test asks");
}

fn lost(scheduler: &Scheduler, stream: &Stream) -> Buffer<u32> {
    let mut buffer = scheduler.zeroed(10).expect("memory");
    let failed = stream.launch(fails(&mut buffer).grid(1)).expect("accepted").wait();
    assert!(matches!(failed, Err(Error::Launch(LaunchError::KernelFailed { .. }))), "{failed:?}");
    buffer
}

#[test]
fn uploads_take_slices_arrays_and_vectors() {
    let scheduler = scheduler();
    let stream = scheduler.stream(0);
    let mut buffer = scheduler.zeroed::<u32>(3).expect("memory");
    let data = numbers(5);
    drop(stream.upload(&data[1..4], &mut buffer).expect("accepted"));
    assert_eq!(contents(&stream, &buffer), data[1..4]);
    drop(stream.upload(&[7; 3], &mut buffer).expect("accepted"));
    assert_eq!(contents(&stream, &buffer), [7; 3]);
    drop(stream.upload(vec![8; 3], &mut buffer).expect("accepted"));
    assert_eq!(contents(&stream, &buffer), [8; 3]);
    let refused = stream.upload(&data, &mut buffer).expect_err("too long");
    let is_named =
        matches!(refused, Error::Argument(ArgumentError::LengthMismatch { from: 5, to: 3 }));
    assert!(is_named, "{refused:?}");
}

#[test]
fn an_upload_of_a_slice_leaves_the_slice_to_the_caller() {
    let scheduler = scheduler();
    let stream = scheduler.stream(0);
    // Small to a GPU, and large.
    for len in [10, 1 << 20] {
        let mut data = numbers(len);
        let mut buffer = scheduler.zeroed::<u32>(len).expect("memory");
        let (gate, held) = hold(&scheduler, &stream);
        let upload = stream.upload(&data, &mut buffer).expect("accepted");
        data.fill(0);
        assert!(!upload.is_done());
        gate.open();
        held.wait().expect("runs");
        assert_eq!(contents(&stream, &buffer), numbers(len));
    }
}

#[test]
fn a_download_into_a_slice_waits_for_its_turn() {
    let scheduler = scheduler();
    let stream = scheduler.stream(0);
    let buffer = scheduler.buffer(&numbers(1000)).expect("memory");
    let (gate, held) = hold(&scheduler, &stream);
    thread::scope(|scope| {
        let (sender, receiver) = channel();
        let (stream, buffer) = (&stream, &buffer);
        scope.spawn(move || {
            let mut out = vec![0; 1000];
            let result = stream.download_into(buffer, &mut out);
            sender.send((result, out)).expect("the test listens");
        });
        assert_eq!(receiver.recv_timeout(WHILE).err(), Some(RecvTimeoutError::Timeout));
        gate.open();
        let (result, out) = receiver.recv().expect("no panic");
        result.expect("copied");
        assert_eq!(out, numbers(1000));
    });
    held.wait().expect("runs");
}

#[test]
fn a_download_into_a_slice_that_fails_says_so() {
    let scheduler = scheduler();
    let stream = scheduler.stream(0);
    let buffer = scheduler.zeroed::<u32>(3).expect("memory");
    let mut out = [5; 4];
    let refused = stream.download_into(&buffer, &mut out).expect_err("too long");
    let is_named =
        matches!(refused, Error::Argument(ArgumentError::LengthMismatch { from: 3, to: 4 }));
    assert!(is_named, "{refused:?}");
    let lost = lost(&scheduler, &stream);
    let mut out = [5; 10];
    let failed = stream.download_into(&lost, &mut out).expect_err("there is nothing to copy");
    assert!(matches!(failed, Error::Launch(LaunchError::InputLost { .. })), "{failed:?}");
    assert_eq!(out, [5; 10]);
    // No elements, and nothing to wait for.
    let empty = scheduler.zeroed::<u32>(0).expect("memory");
    stream.download_into(&empty, &mut []).expect("copied");
}

#[test]
fn a_scope_waits_for_its_copies() {
    let scheduler = scheduler();
    let stream = scheduler.stream(0);
    for panics in [false, true] {
        let data = numbers(1000);
        let mut out = vec![0; 1000];
        let mut buffer = scheduler.zeroed::<u32>(1000).expect("memory");
        let (gate, held) = hold(&scheduler, &stream);
        thread::scope(|threads| {
            let (sender, receiver) = channel();
            let (scheduler, stream, data) = (&scheduler, &stream, &data);
            let (out, buffer) = (&mut out, &mut buffer);
            threads.spawn(move || {
                let copies = || {
                    scheduler.scope(|scope| {
                        drop(scope.upload(stream, data, buffer).expect("accepted"));
                        drop(scope.download_into(stream, buffer, out).expect("accepted"));
                        if panics {
                            std::panic::resume_unwind(Box::new("as a test asks"));
                        }
                    });
                };
                let result = catch_unwind(AssertUnwindSafe(copies));
                sender.send(result.is_err()).expect("the test listens");
            });
            assert_eq!(receiver.recv_timeout(WHILE).err(), Some(RecvTimeoutError::Timeout));
            gate.open();
            assert_eq!(receiver.recv().expect("no panic"), panics);
        });
        held.wait().expect("runs");
        assert_eq!(out, numbers(1000));
    }
}

#[test]
fn a_scope_waits_for_copies_of_a_scheduler_that_is_dropped() {
    let scheduler = scheduler();
    let other = self::scheduler();
    let stream = other.stream(0);
    let buffer = other.buffer(&numbers(1000)).expect("memory");
    let mut out = vec![0; 1000];
    let result = scheduler.scope(|scope| {
        let (gate, _held) = hold(&other, &stream);
        let copy = scope.download_into(&stream, &buffer, &mut out).expect("accepted");
        gate.open();
        drop(other);
        copy
    });
    match result.wait() {
        Ok(()) => assert_eq!(out, numbers(1000)),
        Err(error) => {
            assert!(matches!(error, Error::Launch(LaunchError::SchedulerDropped { .. })), "{error}")
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug, KernelArg)]
#[repr(C)]
struct Odd {
    first: u16,
    rest: [u8; 3],
    last: u8,
}

#[test]
fn a_fill_sets_every_element_in_its_turn() {
    let scheduler = scheduler();
    let stream = scheduler.stream(0);
    fn filled<T: KernelArg + PartialEq + std::fmt::Debug>(
        stream: &Stream,
        mut to: Buffer<T>,
        value: T,
    ) {
        drop(stream.fill(&mut to, value).expect("accepted"));
        let found = stream.download(&to).and_then(|copy| copy.wait()).expect("copied");
        assert_eq!(found, vec![value; to.len()]);
    }
    filled(&stream, scheduler.zeroed(0).expect("memory"), 7u32);
    filled(&stream, scheduler.zeroed(1).expect("memory"), 7u64);
    filled(&stream, scheduler.zeroed(1000).expect("memory"), true);
    filled(&stream, scheduler.zeroed(1 << 20).expect("memory"), 1.5f32);
    let odd = Odd { first: 1, rest: [2, 3, 4], last: 5 };
    filled(&stream, scheduler.zeroed(12_345).expect("memory"), odd);
    // SAFETY: it is filled before it is read.
    filled(&stream, unsafe { scheduler.uninit(100).expect("memory") }, -1i8);

    // Behind an upload of another stream, and before the next one.
    let mut buffer = scheduler.zeroed::<u32>(1000).expect("memory");
    let other = scheduler.stream(5);
    let (gate, held) = hold(&scheduler, &stream);
    drop(stream.upload(&numbers(1000), &mut buffer).expect("accepted"));
    let fill = other.fill(&mut buffer, 3).expect("accepted");
    let download = other.download(&buffer).expect("accepted");
    drop(stream.upload(&numbers(1000), &mut buffer).expect("accepted"));
    assert!(!fill.is_done());
    gate.open();
    held.wait().expect("runs");
    assert_eq!(download.wait().expect("copied"), [3; 1000]);
    assert_eq!(contents(&other, &buffer), numbers(1000));
}

#[test]
fn a_fill_mends_what_a_failed_kernel_left() {
    let scheduler = scheduler();
    let stream = scheduler.stream(0);
    let mut buffer = lost(&scheduler, &stream);
    stream.fill(&mut buffer, 6).and_then(|fill| fill.wait()).expect("it needs no contents");
    assert_eq!(contents(&stream, &buffer), [6; 10]);
}

#[test]
fn a_fill_needs_no_contents_of_another_device() {
    let (one, other) = (scheduler(), scheduler());
    let mut buffer = one.buffer(&numbers(100)).expect("memory");
    // Its contents stay where they are, behind a launch that does not end.
    let stream = one.stream(0);
    let gate = Gate::new(&one);
    let held = stream.launch(gated(&gate.0, &mut buffer, 1).grid(1)).expect("accepted");
    gate.wait_for(1);
    let there = other.stream(0);
    there.fill(&mut buffer, 4).and_then(|fill| fill.wait()).expect("filled");
    assert_eq!(contents(&there, &buffer), [4; 100]);
    gate.open();
    held.wait().expect("runs");
    assert_eq!(contents(&stream, &buffer), [4; 100]);
}
