//! Ranges of buffers in launches and copies, and the order that they give.

use std::time::Duration;

use preempt::error::{ArgumentError, LaunchError};
use preempt::{
    Buffer, BufferSlice, BufferSliceMut, Call, CpuLayout, DeviceSlice, DeviceSliceMut, Error,
    Handle, Opaque, Scheduler, Stream,
};
use preempt_device::host::Args;
use preempt_test_kernels as kernels;
use preempt_test_kit::storm::Chaos;
use preempt_test_kit::{Gate, KERNELS, Random, gated};

/// Time: longer than any operation of these tests takes.
const LONG: Duration = Duration::from_secs(60);
/// Time in which an operation ends that nothing holds back.
const WHILE: Duration = Duration::from_millis(30);
/// Elements of most buffers: several blocks, the last of which is not full.
const LEN: usize = 100;
const LAYOUT: CpuLayout = CpuLayout::sms(2).blocks_per_sm(2);

fn scheduler() -> Scheduler {
    preempt_test_kit::scheduler(LAYOUT)
}

fn emulated() -> Scheduler {
    preempt_test_kit::emulated(LAYOUT)
}

fn in_time<T>(handle: &Handle<T>) -> Result<T, Error> {
    handle.wait_timeout(LONG).expect("it ends")
}

fn contents(stream: &Stream, range: &impl DeviceSlice<u32>) -> Vec<u32> {
    in_time(&stream.download(range).expect("accepted")).expect("copied")
}

/// The result of `scale` for these elements.
fn scaled(factor: u32, x: &[u32]) -> Vec<u32> {
    (0..).zip(x).map(|(i, x)| x.wrapping_mul(factor).wrapping_add(i)).collect()
}

fn out_of_range<T>(result: Result<T, Error>) -> (usize, usize, usize) {
    match result.map(drop).expect_err("refused") {
        Error::Argument(ArgumentError::OutOfRange { start, end, len }) => (start, end, len),
        other => panic!("{other:?}"),
    }
}

#[test]
fn launches_that_write_disjoint_ranges_run_at_the_same_time() {
    let scheduler = emulated();
    let (one, other) = (scheduler.stream(0), scheduler.stream(0));
    let gates = [0, 1].map(|_| Gate::new(&scheduler));
    let mut log = scheduler.zeroed::<u32>(LEN).expect("memory");
    let (low, high) = log.split_at_mut(50).expect("it is long enough");
    let first = one.launch(gated(&gates[0].0, low, 7).grid(1)).expect("accepted");
    let second = other.launch(gated(&gates[1].0, high, 8).grid(1)).expect("accepted");
    // Each stands at its gate, so both run.
    gates.iter().for_each(|gate| gate.wait_for(1));
    // A copy of what neither of them uses does not wait either.
    let beside = one.copy_buffer(&gates[0].0, &mut scheduler.zeroed(2).expect("memory"));
    drop(beside.expect("accepted"));
    gates[1].open();
    in_time(&second).expect("runs");
    assert!(!first.is_done());
    // The half that is done, beside the other one.
    let half = log.slice(50..).expect("in range");
    assert_eq!(contents(&other, &half)[..3], [1, 8, 0]);
    gates[0].open();
    in_time(&first).expect("runs");
    assert_eq!(contents(&one, &log)[..3], [1, 7, 0]);
}

#[test]
fn operations_on_overlapping_ranges_run_in_the_order_of_submission() {
    let scheduler = emulated();
    let streams: [Stream; 4] = [(); 4].map(|()| scheduler.stream(0));
    let gate = Gate::new(&scheduler);
    let mut log = scheduler.zeroed::<u32>(LEN).expect("memory");
    // Writes `[1, 7]` to elements 0 and 1 when its gate is opened.
    let low = log.slice_mut(..4).expect("in range");
    let writes = streams[0].launch(gated(&gate.0, low, 7).grid(1)).expect("accepted");
    gate.wait_for(1);
    let range = log.slice_mut(1..6).expect("in range");
    let scales = streams[1].launch(kernels::scale(3, range).threads(5)).expect("accepted");
    let reads = streams[2].download(&log.slice(1..2).expect("in range")).expect("accepted");
    // Transitively: it shares elements with the launch before it alone.
    let upload = upload(log.slice_mut(4..8).expect("in range"), &streams[3], 9);
    let beside = log.slice_mut(8..).expect("in range");
    let beside = streams[3].launch(kernels::scale(1, beside).threads(LEN as u32));
    assert!(scales.wait_timeout(WHILE).is_none() && !reads.is_done() && !upload.is_done());
    gate.open();
    in_time(&writes).expect("runs");
    in_time(&scales).expect("runs");
    in_time(&upload).expect("copied");
    in_time(&beside.expect("accepted")).expect("runs");
    assert_eq!(in_time(&reads).expect("copied"), [21]);
    assert_eq!(contents(&streams[0], &log)[..10], [1, 21, 1, 2, 9, 9, 9, 9, 0, 1]);
}

/// Uploads one value to each element.
fn upload(mut to: BufferSliceMut<'_, u32>, stream: &Stream, value: u32) -> Handle<()> {
    stream.upload(vec![value; to.len()], &mut to).expect("accepted")
}

#[test]
fn ranges_that_are_not_there_are_refused() {
    let scheduler = scheduler();
    let mut x = scheduler.zeroed::<u32>(5).expect("memory");
    assert_eq!(out_of_range(x.slice(2..6)), (2, 6, 5));
    assert_eq!(out_of_range(x.slice(6..)), (6, 5, 5));
    let (start, end) = (4, 3);
    assert_eq!(out_of_range(x.slice_mut(start..end)), (4, 3, 5));
    assert_eq!(out_of_range(x.slice_mut(..=5)), (0, 6, 5));
    assert_eq!(out_of_range(x.slice(..=usize::MAX)), (0, usize::MAX, 5));
    assert_eq!(out_of_range(x.split_at_mut(6)), (0, 6, 5));
    let error = x.slice(2..6).expect_err("refused").to_string();
    assert!(error.contains("2..6") && error.contains("there are 5"), "{error}");
    // Bounds of a range of a range count from its start.
    let mut part = x.slice_mut(1..4).expect("in range");
    assert_eq!(out_of_range(part.slice(1..4)), (1, 4, 3));
    assert_eq!(out_of_range(part.slice_mut(4..)), (4, 3, 3));
    assert_eq!(out_of_range(part.split_at_mut(4)), (0, 4, 3));
    let at = x.address();
    let part = x.slice(1..).and_then(|part| part.slice(2..=2)).expect("in range");
    assert_eq!((part.len(), part.address(), part.is_empty()), (1, at + 12, false));
    assert_eq!(format!("{part:?}"), "BufferSlice<u32>[3..4]");
    for none in [x.slice(5..), x.slice(0..0)] {
        assert!(none.expect("nothing is everywhere").is_empty());
    }
}

#[test]
fn copies_take_ranges() {
    let scheduler = scheduler();
    let stream = scheduler.stream(0);
    let mut x = scheduler.buffer(&[1u32, 2, 3, 4, 5, 6]).expect("memory");
    let mut y = scheduler.zeroed::<u32>(4).expect("memory");
    let short = stream.upload(vec![0; 3], &mut x.slice_mut(1..3).expect("in range"));
    assert!(matches!(
        short,
        Err(Error::Argument(ArgumentError::LengthMismatch { from: 3, to: 2 }))
    ));
    drop(stream.upload(vec![20, 30], &mut x.slice_mut(1..3).expect("in range")));
    let (low, mut high) = x.split_at_mut(3).expect("in range");
    // Within one buffer, and between two.
    drop(stream.copy_buffer(&low, &mut high).expect("accepted"));
    let to = &mut y.slice_mut(2..).expect("in range");
    drop(stream.copy_buffer(&low.slice(1..).expect("in range"), to).expect("accepted"));
    assert_eq!(contents(&stream, &x), [1, 20, 30, 1, 20, 30]);
    assert_eq!(contents(&stream, &y), [0, 0, 20, 30]);
    assert_eq!(contents(&stream, &y.slice(1..3).expect("in range")), [0, 20]);
    // Nothing is copied from nowhere.
    let (mut none, all) = y.split_at_mut(0).expect("in range");
    drop(stream.upload(Vec::new(), &mut none).expect("accepted"));
    assert_eq!((contents(&stream, &none), all.len()), (Vec::new(), 4));
}

/// Reads of one buffer, and writes of another one.
struct Apart<'a>(&'a Buffer<u32>, BufferSliceMut<'a, u32>);

impl DeviceSlice<u32> for Apart<'_> {
    fn as_slice(&self) -> BufferSlice<'_, u32> {
        self.0.as_slice()
    }
}

impl DeviceSliceMut<u32> for Apart<'_> {
    fn as_slice_mut(&mut self) -> BufferSliceMut<'_, u32> {
        self.1.as_slice_mut()
    }
}

/// No operation writes what is only borrowed to be read, whatever an application's own type says.
#[test]
fn writes_go_where_a_mutable_slice_says() {
    let scheduler = scheduler();
    let stream = scheduler.stream(0);
    let (x, mut y) = (scheduler.buffer(&[1u32; 4]), scheduler.zeroed::<u32>(4).expect("memory"));
    let x = x.expect("memory");
    let mut apart = Apart(&x, y.slice_mut(..).expect("all"));
    drop(stream.upload(vec![7; 4], &mut apart).expect("accepted"));
    assert_eq!(contents(&stream, &apart), [1; 4]);
    drop(stream.fill(&mut apart, 8).expect("accepted"));
    assert_eq!(contents(&stream, &y), [8; 4]);
    let mut apart = Apart(&x, y.slice_mut(..).expect("all"));
    drop(stream.copy_buffer(&x, &mut apart).expect("accepted"));
    assert_eq!((contents(&stream, &x), contents(&stream, &y)), (vec![1; 4], vec![1; 4]));
}

#[test]
fn kernels_find_the_first_element_of_a_range_at_its_pointer() {
    let scheduler = scheduler();
    let stream = scheduler.stream(0);
    let mut x = scheduler.buffer(&(0..20).collect::<Vec<u32>>()).expect("memory");
    let (low, high) = x.split_at_mut(10).expect("in range");
    let from = low.slice(3..7).expect("in range");
    let call = kernels::copy_four(from, high.split_at_mut(5).expect("in range").1).grid(1);
    in_time(&stream.launch(call).expect("accepted")).expect("runs");
    assert_eq!(contents(&stream, &x)[14..20], [14, 3, 4, 5, 6, 19]);
    // A range without elements is null, like a buffer without.
    let mut seen = scheduler.zeroed::<u32>(32).expect("memory");
    let (none, some) = x.split_at_mut(0).expect("in range");
    let call = kernels::optional(&some, none, &mut seen).grid(1).block(20);
    in_time(&stream.launch(call).expect("accepted")).expect("runs");
    assert_eq!(contents(&stream, &seen)[0], 1, "an input, and no output");
}

#[test]
fn a_launch_writes_no_element_twice() {
    let scheduler = scheduler();
    let stream = scheduler.stream(0);
    let mut x = scheduler.buffer(&[5u32; 8]).expect("memory");
    // The borrow checker refuses what this calls for.
    let mut call = |read: std::ops::Range<usize>, written: std::ops::Range<usize>| {
        let mut args = Args::default();
        args.push_read::<u32>(x.slice(read.clone()).expect("in range"));
        args.push_read::<u32>(x.slice(read).expect("in range"));
        args.push_write::<u32>(x.slice_mut(written).expect("in range"));
        // SAFETY: what `sum` takes; overlapping ranges are refused.
        let call = unsafe { Call::new(kernels::sum(&x, &x, &mut seen(&scheduler)).kernel(), args) };
        stream.launch(call.threads(8)).map(|handle| in_time(&handle).expect("runs"))
    };
    for (read, written) in [(0..3, 2..4), (0..8, 3..4), (3..4, 0..8), (2..6, 2..6)] {
        let error = call(read, written).expect_err("refused");
        assert!(
            matches!(error, Error::Argument(ArgumentError::BufferConflict { name: "sum" })),
            "{error:?}"
        );
    }
    for (read, written) in [(0..2, 2..4), (7..8, 6..7), (4..4, 0..8), (0..8, 4..4)] {
        call(read, written).expect("accepted");
    }
    assert_eq!(contents(&stream, &x), [6, 6, 11, 11, 6, 6, 11, 6]);
}

fn seen(scheduler: &Scheduler) -> Buffer<u32> {
    scheduler.zeroed(1).expect("memory")
}

#[test]
fn the_range_that_a_failed_kernel_wrote_is_lost_and_the_rest_is_not() {
    let scheduler = emulated();
    let (one, other) = (scheduler.stream(0), scheduler.stream(0));
    let mut x = scheduler.buffer(&[3u32; 8]).expect("memory");
    let range = x.slice_mut(2..5).expect("in range");
    let fails = one.launch(kernels::panics(0, range).grid(1).block(1)).expect("accepted");
    let error = in_time(&fails).expect_err("it panics");
    assert!(matches!(error, Error::Launch(LaunchError::KernelFailed { .. })), "{error:?}");
    let read = |range| {
        let range = x.slice(range).expect("in range");
        in_time(&other.download(&range).expect("accepted"))
    };
    for range in [0..3, 3..4, 4..8, 0..8] {
        let lost = read(range).expect_err("lost");
        let expected = LaunchError::InputLost { kernel: "panics" };
        assert_eq!(lost.to_string(), Error::Launch(expected).to_string());
    }
    assert_eq!(read(0..2).expect("copied"), [3; 2]);
    assert_eq!(read(5..8).expect("copied"), [3; 3]);
    let upload = upload(x.slice_mut(2..4).expect("in range"), &one, 9);
    in_time(&upload).expect("copied");
    assert_eq!(contents(&other, &x.slice(..4).expect("in range")), [3, 3, 9, 9]);
    let rest = other.download(&x.slice(..5).expect("in range")).expect("accepted");
    in_time(&rest).expect_err("lost");
}

#[test]
fn opaque_work_has_its_range_alone() {
    let scheduler = emulated();
    let (one, other) = (scheduler.stream(0), scheduler.stream(1));
    let gate = Gate::new(&scheduler);
    let mut log = scheduler.zeroed::<u32>(8).expect("memory");
    let (low, mut high) = log.split_at_mut(4).expect("in range");
    let address = high.address() as usize;
    let opaque = |high: &mut BufferSliceMut<'_, u32>| {
        other.opaque(Opaque::new("count").writes(high), move |_| {
            // SAFETY: on the CPU device an address is one of this process, and no other operation has the range.
            unsafe { *(address as *mut u32) += 1 };
            Ok(())
        })
    };
    // Its first run has the device alone.
    in_time(&opaque(&mut high).expect("accepted")).expect("runs");
    let writes = one.launch(gated(&gate.0, low, 7).grid(1)).expect("accepted");
    gate.wait_for(1);
    in_time(&opaque(&mut high).expect("accepted")).expect("runs beside it");
    assert!(!writes.is_done());
    let reads =
        other.opaque(Opaque::new("read").reads(&log.slice(1..2).expect("in range")), |_| Ok(()));
    let reads = reads.expect("accepted");
    assert!(reads.wait_timeout(WHILE).is_none());
    gate.open();
    in_time(&reads).expect("runs");
    in_time(&writes).expect("runs");
    assert_eq!(contents(&one, &log)[..5], [1, 7, 0, 0, 2]);
}

/// Copies and launches on random ranges, on as many streams as there are given, compared with a vector. All are under way
/// at the same time.
fn storm(streams: &[Stream], mut buffer: Buffer<u32>, steps: u32, random: &mut Random) {
    let mut model = vec![0u32; LEN];
    let mut downloads = Vec::new();
    let mut below = |bound: usize| random.below(bound as u32) as usize;
    for step in 0..steps {
        let stream = &streams[below(streams.len())];
        let mut bounds = [0; 3].map(|_| below(LEN + 1));
        bounds.sort_unstable();
        let [start, mid, end] = bounds;
        let mut range = buffer.slice_mut(start..end).expect("in range");
        let expected = &mut model[start..end];
        match below(5) {
            0 => {
                let factor = below(100) as u32;
                drop(stream.launch(kernels::scale(factor, range).threads(LEN)).expect("accepted"));
                expected.copy_from_slice(&scaled(factor, expected));
            }
            1 => {
                let data: Vec<u32> = (0..range.len()).map(|_| below(1 << 20) as u32).collect();
                drop(stream.upload(data.clone(), &mut range).expect("accepted"));
                expected.copy_from_slice(&data);
            }
            2 => {
                let download = stream.download(&range).expect("accepted");
                downloads.push((step, download, expected.to_vec()));
            }
            turn => {
                // From one side of `mid` to the other.
                let len = (mid - start).min(end - mid);
                let (low, high) = range.split_at_mut(mid - start).expect("in range");
                let (low_model, high_model) = expected.split_at_mut(mid - start);
                let is_up = below(2) == 0;
                let (from, to) = if is_up { (low, high) } else { (high, low) };
                let (from_model, to_model) =
                    if is_up { (low_model, high_model) } else { (high_model, low_model) };
                let mut to = to.split_at_mut(len).expect("in range").0;
                if turn == 3 {
                    let from = from.slice(..len).expect("in range");
                    drop(stream.copy_buffer(&from, &mut to).expect("accepted"));
                    to_model[..len].copy_from_slice(&from_model[..len]);
                } else {
                    let skipped = below(from.len() + 1);
                    let (a, b) =
                        (from.slice(..).expect("all"), from.slice(skipped..).expect("in range"));
                    drop(stream.launch(kernels::sum(a, b, to).threads(LEN)).expect("accepted"));
                    for (i, out) in to_model[..len].iter_mut().enumerate() {
                        *out = match from_model[skipped..].get(i) {
                            Some(b) => from_model[i].wrapping_add(*b),
                            None => *out + 1,
                        };
                    }
                }
            }
        }
    }
    for (step, download, expected) in downloads {
        assert_eq!(in_time(&download).expect("copied"), expected, "step {step}");
    }
    for stream in streams {
        assert_eq!(contents(stream, &buffer), model);
    }
}

#[test]
fn random_ranges_give_what_one_thread_would_compute() {
    for seed in 0..20 {
        let mut random = Random(seed);
        let device = preempt_test_kit::device(CpuLayout::sms(3).blocks_per_sm(2));
        let builder = Scheduler::builder().device(device).kernels(KERNELS);
        let builder = builder.policy(Chaos::new(seed));
        let scheduler = builder.build().expect("a scheduler");
        let streams: Vec<_> = (0..4).map(|_| scheduler.stream(random.below(3) as i32)).collect();
        let buffer = scheduler.zeroed(LEN).expect("memory");
        println!("seed {seed}");
        storm(&streams, buffer, 150, &mut random);
    }
}

#[test]
fn random_ranges_on_two_devices_give_what_one_thread_would_compute() {
    for seed in 0..15 {
        let mut random = Random(seed);
        let schedulers = [scheduler(), emulated()];
        let streams: Vec<_> =
            (0..4).map(|at| schedulers[at % 2].stream(random.below(3) as i32)).collect();
        let buffer = schedulers[seed as usize % 2].zeroed(LEN).expect("memory");
        println!("seed {seed}");
        storm(&streams, buffer, 60, &mut random);
    }
}

#[test]
fn threads_write_parts_of_one_buffer_without_losing_any() {
    const THREADS: usize = 4;
    const LAUNCHES: u32 = 30;
    let scheduler = scheduler();
    let mut x = scheduler.zeroed::<u32>(LEN).expect("memory");
    let mut parts = Vec::new();
    let mut rest = x.slice_mut(..).expect("all");
    for _ in 1..THREADS {
        let (part, behind) = rest.split_at_mut(LEN / THREADS).expect("in range");
        parts.push(part);
        rest = behind;
    }
    parts.push(rest);
    std::thread::scope(|scope| {
        for mut part in parts {
            let streams = [0, 1].map(|priority| scheduler.stream(priority));
            scope.spawn(move || {
                for turn in 0..LAUNCHES as usize {
                    let call = kernels::scale(1, &mut part).threads(LEN);
                    drop(streams[turn % 2].launch(call).expect("accepted"));
                }
            });
        }
    });
    let part = |len| (0..len).map(|i| i * LAUNCHES);
    let expected: Vec<u32> = (0..THREADS).flat_map(|_| part((LEN / THREADS) as u32)).collect();
    assert_eq!(contents(&scheduler.stream(0), &x), expected);
}

/// The contents move as a whole: what is written to a part of them elsewhere keeps the rest.
#[test]
fn a_partial_write_on_another_device_keeps_the_rest() {
    let (one, other) = (emulated(), emulated());
    let gate = Gate::new(&one);
    let mut log = one.zeroed::<u32>(8).expect("memory");
    let range = log.slice_mut(..2).expect("in range");
    let writes = one.stream(0).launch(gated(&gate.0, range, 7).grid(1)).expect("accepted");
    gate.wait_for(1);
    // An upload that replaces a part, a launch, and a copy within the buffer.
    let upload = upload(log.slice_mut(2..4).expect("in range"), &other.stream(0), 9);
    assert!(upload.wait_timeout(WHILE).is_none());
    gate.open();
    in_time(&writes).expect("runs");
    in_time(&upload).expect("copied");
    assert_eq!(contents(&one.stream(0), &log), [1, 7, 9, 9, 0, 0, 0, 0]);
    let range = log.slice_mut(3..6).expect("in range");
    drop(other.stream(0).launch(kernels::scale(2, range).threads(3)).expect("accepted"));
    let (low, high) = log.split_at_mut(6).expect("in range");
    let mut high = high;
    drop(one.stream(0).copy_buffer(&low.slice(1..3).expect("in range"), &mut high));
    for scheduler in [&other, &one] {
        assert_eq!(contents(&scheduler.stream(0), &log), [1, 7, 9, 18, 1, 2, 7, 9]);
        assert_eq!(contents(&scheduler.stream(0), &log.slice(2..4).expect("in range")), [9, 18]);
    }
}

/// A cancelled upload that would have replaced a part leaves all of it as it was, on the device that it moved to.
#[test]
fn a_cancelled_partial_upload_elsewhere_loses_nothing() {
    let (one, other) = (emulated(), emulated());
    let mut x = one.buffer(&[5u32; 8]).expect("memory");
    let gate = Gate::new(&other);
    let mut log = other.zeroed::<u32>(4).expect("memory");
    let stream = other.stream(0);
    let holds = stream.launch(gated(&gate.0, &mut log, 7).grid(1)).expect("accepted");
    let upload = upload(x.slice_mut(2..4).expect("in range"), &stream, 9);
    upload.cancel();
    in_time(&upload).expect_err("cancelled");
    gate.open();
    in_time(&holds).expect("runs");
    for scheduler in [&other, &one] {
        assert_eq!(contents(&scheduler.stream(0), &x), [5; 8]);
    }
}
