//! Copies between buffers and memory of the application: which memory they read and write, and until when.

use std::future::{Future, IntoFuture};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use preempt::error::{ArgumentError, LaunchError, MemoryError};
use preempt::{
    Buffer, Copy2d, CpuLayout, Error, Handle, LaunchReport, Loan, PinnedBuffer, Scheduler, Stream,
};
use preempt_device::prelude::*;
use preempt_test_kit::{Gate, gated};

/// Time in which an operation ends that nothing holds back.
const WHILE: Duration = Duration::from_millis(20);
/// Time: longer than any of these tests takes.
const LONG: Duration = Duration::from_secs(60);

fn scheduler() -> Scheduler {
    preempt_test_kit::scheduler(CpuLayout::sms(1))
}

fn emulated() -> Scheduler {
    preempt_test_kit::emulated(CpuLayout::sms(1))
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
    let scheduler = emulated();
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
    let scheduler = emulated();
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
    let scheduler = emulated();
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
    let scheduler = emulated();
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
    let scheduler = emulated();
    let other = emulated();
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
fn a_fill_sets_every_element() {
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
}

/// Behind an upload of another stream, and before the next one.
#[test]
fn a_fill_has_its_turn() {
    let scheduler = emulated();
    let stream = scheduler.stream(0);
    let mut buffer = scheduler.zeroed::<u32>(1000).expect("memory");
    let other = scheduler.stream(5);
    let (gate, held) = hold(&scheduler, &stream);
    drop(stream.upload(numbers(1000), &mut buffer).expect("accepted"));
    let fill = other.fill(&mut buffer, 3).expect("accepted");
    let download = other.download(&buffer).expect("accepted");
    drop(stream.upload(numbers(1000), &mut buffer).expect("accepted"));
    assert!(!fill.is_done());
    gate.open();
    held.wait().expect("runs");
    assert_eq!(download.wait().expect("copied"), [3; 1000]);
    assert_eq!(contents(&other, &buffer), numbers(1000));
}

#[test]
fn a_fill_mends_what_a_failed_kernel_left() {
    let scheduler = emulated();
    let stream = scheduler.stream(0);
    let mut buffer = lost(&scheduler, &stream);
    stream.fill(&mut buffer, 6).and_then(|fill| fill.wait()).expect("it needs no contents");
    assert_eq!(contents(&stream, &buffer), [6; 10]);
}

#[test]
fn a_fill_needs_no_contents_of_another_device() {
    let (one, other) = (emulated(), emulated());
    let mut buffer = one.buffer(&numbers(100)).expect("memory");
    // Its contents stay where they are, behind a launch that does not end.
    let stream = one.stream(0);
    let gate = Gate::new(&one);
    let held = stream.launch(gated(&gate.0, &mut buffer, 1).grid(1)).expect("accepted");
    gate.wait_for(1);
    let there = other.stream(0);
    let fill = there.fill(&mut buffer, 4).expect("accepted");
    fill.wait_timeout(LONG).expect("it waits for nothing").expect("filled");
    assert_eq!(contents(&there, &buffer), [4; 100]);
    gate.open();
    held.wait().expect("runs");
    assert_eq!(contents(&stream, &buffer), [4; 100]);
}

/// The elements of `to` after a copy of these rows, one by one.
fn rows_copied(from: &[u32], to: &[u32], shape: Copy2d) -> Vec<u32> {
    let mut to = to.to_vec();
    for row in 0..shape.height {
        for column in 0..shape.width {
            to[row * shape.to_pitch + column] = from[row * shape.from_pitch + column];
        }
    }
    to
}

#[test]
fn rows_are_copied_and_what_lies_between_them_stays() {
    let scheduler = scheduler();
    let stream = scheduler.stream(0);
    let shape =
        |width, height, from_pitch, to_pitch| Copy2d { width, height, from_pitch, to_pitch };
    for shape in [
        shape(7, 9, 7, 7),
        shape(7, 9, 10, 7),
        shape(7, 9, 7, 11),
        shape(1, 100, 3, 2),
        shape(50, 1, 0, 0),
        shape(0, 5, 1, 1),
        shape(5, 0, 5, 5),
    ] {
        let (source, target) = (numbers(300), vec![5; 300]);
        let expected = rows_copied(&source, &target, shape);
        let mut buffer = scheduler.buffer(&target).expect("memory");
        drop(stream.upload_2d(&source, &mut buffer, shape).expect("accepted"));
        assert_eq!(contents(&stream, &buffer), expected, "up, {shape:?}");

        let from = scheduler.buffer(&source).expect("memory");
        let mut buffer = scheduler.buffer(&target).expect("memory");
        drop(stream.copy_2d(&from, &mut buffer, shape).expect("accepted"));
        assert_eq!(contents(&stream, &buffer), expected, "across, {shape:?}");

        let mut out = target.clone();
        stream.download_2d(&from, &mut out, shape).expect("copied");
        assert_eq!(out, expected, "down, {shape:?}");

        let (mut out, mut buffer) = (target.clone(), scheduler.buffer(&target).expect("memory"));
        scheduler.scope(|scope| {
            drop(scope.upload_2d(&stream, &source, &mut buffer, shape).expect("accepted"));
            drop(scope.download_2d(&stream, &from, &mut out, shape).expect("accepted"));
        });
        assert_eq!((contents(&stream, &buffer), out), (expected.clone(), expected));
    }
}

#[test]
fn rows_that_overlap_or_end_too_late_are_refused() {
    let scheduler = scheduler();
    let stream = scheduler.stream(0);
    let from = scheduler.zeroed::<u32>(100).expect("memory");
    let mut to = scheduler.zeroed::<u32>(60).expect("memory");
    let mut copy = |width, height, from_pitch, to_pitch| {
        let shape = Copy2d { width, height, from_pitch, to_pitch };
        match stream.copy_2d(&from, &mut to, shape) {
            Ok(copy) => copy.wait().map_err(|error| panic!("{error}")),
            Err(Error::Argument(error)) => Err(error),
            Err(error) => panic!("{error}"),
        }
    };
    use ArgumentError::{BadPitch, BeyondEnd};
    copy(10, 6, 10, 10).expect("it fits");
    copy(10, 5, 22, 12).expect("it fits");
    copy(60, 1, usize::MAX, 0).expect("a single row has no pitch");
    let refused = copy(10, 3, 9, 10);
    assert!(matches!(refused, Err(BadPitch { pitch: 9, width: 10 })), "{refused:?}");
    let refused = copy(10, 3, 10, 0);
    assert!(matches!(refused, Err(BadPitch { pitch: 0, width: 10 })), "{refused:?}");
    let refused = copy(10, 7, 10, 10);
    assert!(matches!(refused, Err(BeyondEnd { needed: 70, len: 60 })), "{refused:?}");
    let refused = copy(10, 5, 23, 12);
    assert!(matches!(refused, Err(BeyondEnd { needed: 102, len: 100 })), "{refused:?}");
    let refused = copy(1, 2, 1 << 29, 1);
    assert!(matches!(refused, Err(BadPitch { .. })), "{refused:?}");
    let refused = copy(usize::MAX, 1, 1, 1);
    assert!(matches!(refused, Err(BeyondEnd { .. })), "{refused:?}");
    let refused = copy(1, usize::MAX, 1 << 20, 1 << 20);
    assert!(matches!(refused, Err(BeyondEnd { needed: usize::MAX, .. })), "{refused:?}");
}

#[test]
fn rows_need_the_contents_between_them_and_all_rows_none() {
    let scheduler = emulated();
    let stream = scheduler.stream(0);
    let some = Copy2d { width: 4, height: 2, from_pitch: 4, to_pitch: 5 };
    let mut buffer = lost(&scheduler, &stream);
    let copy = stream.upload_2d(&[1; 8], &mut buffer, some).and_then(|copy| copy.wait());
    assert!(matches!(copy, Err(Error::Launch(LaunchError::InputLost { .. }))), "{copy:?}");
    let all = Copy2d { width: 5, height: 2, from_pitch: 6, to_pitch: 5 };
    let copy = stream.upload_2d(&[2; 11], &mut buffer, all).and_then(|copy| copy.wait());
    copy.expect("it needs no contents");
    assert_eq!(contents(&stream, &buffer), [2; 10]);
    // Elsewhere, too.
    let other = emulated();
    let there = other.stream(0);
    drop(there.upload_2d(&[1; 8], &mut buffer, some).expect("accepted"));
    assert_eq!(contents(&there, &buffer), [1, 1, 1, 1, 2, 1, 1, 1, 1, 2]);
}

fn pinned(scheduler: &Scheduler, data: &[u32]) -> PinnedBuffer<u32> {
    let mut array = scheduler.pinned(data.len()).expect("memory");
    assert!(array.iter().all(|&element| element == 0));
    array.copy_from_slice(data);
    array
}

#[test]
fn pinned_memory_is_lent_to_copies_and_given_back() {
    let scheduler = emulated();
    let stream = scheduler.stream(0);
    for len in [0, 10, 1 << 20] {
        let mut buffer = scheduler.zeroed::<u32>(len).expect("memory");
        let (gate, held) = hold(&scheduler, &stream);
        let upload = stream.upload_pinned(pinned(&scheduler, &numbers(len)), &mut buffer);
        let upload: Loan<u32> = upload.expect("accepted");
        assert!(!upload.handle().is_done());
        let download = stream.download_pinned(&buffer, scheduler.pinned(len).expect("memory"));
        gate.open();
        held.wait().expect("runs");
        let mut array = upload.wait().expect("copied");
        assert_eq!(*array, numbers(len));
        assert_eq!(*download.expect("accepted").wait().expect("copied"), numbers(len));
        // It is the application's again.
        array.fill(3);
        assert_eq!(contents(&stream, &buffer), numbers(len));
    }
}

#[test]
fn a_loan_is_a_future() {
    let scheduler = emulated();
    let stream = scheduler.stream(0);
    let mut buffer = scheduler.zeroed::<u32>(10).expect("memory");
    let (gate, held) = hold(&scheduler, &stream);
    let upload = stream.upload_pinned(pinned(&scheduler, &numbers(10)), &mut buffer);
    let mut upload = pin!(upload.expect("accepted").into_future());
    let mut context = Context::from_waker(Waker::noop());
    assert!(upload.as_mut().poll(&mut context).is_pending());
    gate.open();
    held.wait().expect("runs");
    scheduler.synchronize().expect("all is well");
    let Poll::Ready(array) = upload.as_mut().poll(&mut context) else { panic!("it is over") };
    assert_eq!(*array.expect("copied"), numbers(10));
    assert!(upload.as_mut().poll(&mut context).is_pending());
}

#[test]
fn a_copy_whose_loan_is_dropped_keeps_its_memory_until_its_end() {
    let scheduler = emulated();
    let stream = scheduler.stream(0);
    let mut buffer = scheduler.zeroed::<u32>(1000).expect("memory");
    let (gate, held) = hold(&scheduler, &stream);
    let upload = stream.upload_pinned(pinned(&scheduler, &numbers(1000)), &mut buffer);
    drop(upload.expect("accepted"));
    // It would get memory that was given back.
    let other = pinned(&scheduler, &[1; 1000]);
    gate.open();
    held.wait().expect("runs");
    assert_eq!(contents(&stream, &buffer), numbers(1000));
    assert_eq!(*other, [1; 1000]);
}

#[test]
fn pinned_memory_is_borrowed_like_any_slice() {
    let scheduler = scheduler();
    let stream = scheduler.stream(0);
    let from = pinned(&scheduler, &numbers(1000));
    let mut to = scheduler.pinned(500).expect("memory");
    let mut buffer = scheduler.zeroed::<u32>(500).expect("memory");
    scheduler.scope(|scope| {
        drop(scope.upload(&stream, &from[100..600], &mut buffer).expect("accepted"));
        drop(scope.download_into(&stream, &buffer, &mut to).expect("accepted"));
    });
    assert_eq!(*to, from[100..600]);
    to.fill(0);
    stream.download_into(&buffer, &mut to).expect("copied");
    assert_eq!(*to, from[100..600]);
}

#[test]
fn pinned_memory_that_cannot_be_had_is_an_error() {
    let scheduler = scheduler();
    for len in [usize::MAX, usize::MAX / 8, isize::MAX as usize / 8] {
        let refused = scheduler.pinned::<u64>(len).expect_err("more than there is");
        let is_named = matches!(refused, Error::Memory(MemoryError::HostFull { .. }));
        assert!(is_named, "{refused:?}");
    }
    let stream = scheduler.stream(0);
    let mut buffer = scheduler.zeroed::<u32>(3).expect("memory");
    let refused = stream.upload_pinned(pinned(&scheduler, &[1; 4]), &mut buffer);
    let is_named =
        matches!(refused, Err(Error::Argument(ArgumentError::LengthMismatch { from: 4, to: 3 })));
    assert!(is_named, "{refused:?}");
}

#[test]
fn fills_and_copies_take_ranges() {
    let scheduler = emulated();
    let stream = scheduler.stream(0);
    let mut buffer = scheduler.zeroed::<u32>(12).expect("memory");
    // Columns 1 and 2 of three rows of four.
    let shape = Copy2d { width: 2, height: 3, from_pitch: 2, to_pitch: 4 };
    let mut range = buffer.slice_mut(1..11).expect("it has them");
    drop(stream.upload_2d(&[1, 2, 3, 4, 5, 6], &mut range, shape).expect("accepted"));
    drop(stream.fill(&mut buffer.slice_mut(11..).expect("it has it"), 9).expect("accepted"));
    assert_eq!(contents(&stream, &buffer), [0, 1, 2, 0, 0, 3, 4, 0, 0, 5, 6, 9]);
    let mut out = [0; 2];
    stream.download_into(&buffer.slice(9..11).expect("it has them"), &mut out).expect("copied");
    assert_eq!(out, [5, 6]);
    // From one half to the other.
    let (low, mut high) = buffer.split_at_mut(6).expect("it has them");
    let shape = Copy2d { width: 1, height: 2, from_pitch: 4, to_pitch: 1 };
    let low = low.slice(1..).expect("it has them");
    drop(stream.copy_2d(&low, &mut high, shape).expect("accepted"));
    let array = pinned(&scheduler, &[7, 7]);
    let mut last = buffer.slice_mut(8..10).expect("it has them");
    drop(stream.upload_pinned(array, &mut last).expect("accepted"));
    assert_eq!(contents(&stream, &buffer), [0, 1, 2, 0, 0, 3, 1, 3, 7, 7, 6, 9]);

    // A range that is filled needs no contents, and mends only itself.
    let mut buffer = lost(&scheduler, &stream);
    drop(stream.fill(&mut buffer.slice_mut(..5).expect("it has them"), 6).expect("accepted"));
    let head = stream.download(&buffer.slice(..5).expect("it has them"));
    assert_eq!(head.expect("accepted").wait().expect("copied"), [6; 5]);
    let all = stream.download(&buffer).and_then(|copy| copy.wait());
    assert!(matches!(all, Err(Error::Launch(LaunchError::InputLost { .. }))), "{all:?}");
}
