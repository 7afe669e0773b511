//! Moves of contents, directly or through the host.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use preempt::error::{ArgumentError, LaunchError, MemoryError};
use preempt::{
    Buffer, Call, CpuLayout, Device, Error, Handle, LaunchReport, Opaque, Scheduler, Stream,
};
use preempt_device::host::{BufferArg, ReadArg};
use preempt_test_kernels as kernels;
use preempt_test_kit::{Gate, Random, gated};

mod failures;
mod under_way;

/// Time: longer than any operation of these tests takes.
const LONG: Duration = Duration::from_secs(60);
/// Time in which an operation ends that nothing holds back.
const WHILE: Duration = Duration::from_millis(30);
/// Elements of most buffers: several blocks, the last of which is not full.
const LEN: usize = 100;
const BLOCK: u32 = 32;

fn scheduler_on(device: &Device) -> Scheduler {
    Scheduler::builder().device(device.clone()).build().expect("a scheduler")
}

/// Whether contents move directly in this copy of the tests.
fn is_direct() -> bool {
    !module_path!().contains("through_the_host")
}

fn device_with(layout: CpuLayout) -> Device {
    let layout = if is_direct() { layout } else { layout.without_peers() };
    Device::cpu_with(layout).expect("a device")
}

fn device() -> Device {
    device_with(CpuLayout::sms(1))
}

fn scheduler() -> Scheduler {
    scheduler_on(&device_with(CpuLayout::sms(2).blocks_per_sm(2)))
}

fn in_time<T>(handle: &Handle<T>) -> Result<T, Error> {
    handle.wait_timeout(LONG).expect("it ends")
}

/// A launch that writes `[1, 7]` to the start of a buffer of `len` elements and waits at its gate until that is opened.
fn write_under_way(scheduler: &Scheduler, len: usize) -> (Gate, Buffer<u32>, Handle<LaunchReport>) {
    let gate = Gate::new(scheduler);
    let mut log = scheduler.zeroed(len).expect("memory");
    let call = gated(&gate.0, &mut log, 7).grid(1);
    let writes = scheduler.stream(0).launch(call).expect("accepted");
    gate.wait_for(1);
    (gate, log, writes)
}

fn contents(stream: &Stream, buffer: &Buffer<u32>) -> Result<Vec<u32>, Error> {
    in_time(&stream.download(buffer)?)
}

fn launch(stream: &Stream, call: Call<'static>) -> Result<LaunchReport, Error> {
    in_time(&stream.launch(call)?)
}

/// The result of `scale` for these elements.
fn scaled(factor: u32, x: &[u32]) -> Vec<u32> {
    (0..).zip(x).map(|(i, x)| x.wrapping_mul(factor).wrapping_add(i)).collect()
}

fn numbers(random: &mut Random) -> Vec<u32> {
    (0..LEN).map(|_| random.below(1 << 20)).collect()
}

/// A scheduler on a device with memory for little more than one such buffer.
fn narrow() -> Scheduler {
    scheduler_on(&device_with(CpuLayout::sms(1).memory(4 * LEN + 20)))
}

#[test]
fn the_order_of_submission_holds_across_devices() {
    const STREAMS: u32 = 2;
    for seed in 0..40 {
        let mut random = Random(seed);
        let mut schedulers = vec![scheduler(), scheduler()];
        if seed % 2 == 1 {
            // Its contents move through the host in any case.
            let apart = CpuLayout::sms(1).without_peers();
            schedulers.push(scheduler_on(&Device::cpu_with(apart).expect("a device")));
            schedulers.push(scheduler());
        }
        let streams: Vec<_> = schedulers
            .iter()
            .map(|scheduler| {
                [0; STREAMS as usize].map(|_| scheduler.stream(random.below(3) as i32))
            })
            .collect();
        let mut expected = [(); 3].map(|()| numbers(&mut random));
        let mut buffers =
            [0, 1, 0].map(|home: usize| schedulers[home].zeroed(LEN).expect("memory"));
        for (buffer, data) in buffers.iter_mut().zip(&expected) {
            let upload = streams[0][0].upload(data.clone(), buffer).expect("accepted");
            drop(upload);
        }
        let mut downloads = Vec::new();
        for step in 0..60 {
            let on = random.below(streams.len() as u32) as usize;
            let stream = &streams[on][random.below(STREAMS) as usize];
            let (at, next) = (random.below(3) as usize, random.below(2) as usize + 1);
            let (other, third) = ((at + next) % 3, (at + 3 - next) % 3);
            match random.below(10) {
                0..4 => {
                    let factor = random.below(100);
                    let call = kernels::scale(factor, &mut buffers[at]).threads(LEN as u32);
                    drop(stream.launch(call).expect("accepted"));
                    expected[at] = scaled(factor, &expected[at]);
                }
                4..7 => {
                    let [x, y, z] = &mut buffers;
                    let mut parts = [Some(x), Some(y), Some(z)];
                    let out = parts[at].take().expect("three different ones");
                    let a = parts[other].take().expect("three different ones");
                    let b = parts[third].take().expect("three different ones");
                    drop(
                        stream
                            .launch(kernels::sum(&*a, &*b, out).threads(LEN as u32))
                            .expect("accepted"),
                    );
                    let sums = expected[other].iter().zip(&expected[third]);
                    expected[at] = sums.map(|(a, b)| a.wrapping_add(*b)).collect();
                }
                7 if random.below(2) == 0 => {
                    let data = numbers(&mut random);
                    drop(stream.upload(&data, &mut buffers[at]).expect("accepted"));
                    expected[at] = data;
                }
                7 => {
                    let value = random.below(100);
                    drop(stream.fill(&mut buffers[at], value).expect("accepted"));
                    expected[at] = vec![value; LEN];
                }
                8 => {
                    let (from, to) = match at < other {
                        true => {
                            let (front, back) = buffers.split_at_mut(other);
                            (&front[at], &mut back[0])
                        }
                        false => {
                            let (front, back) = buffers.split_at_mut(at);
                            (&back[0], &mut front[other])
                        }
                    };
                    drop(stream.copy_buffer(from, to).expect("accepted"));
                    expected[other] = expected[at].clone();
                }
                _ => {
                    let download = stream.download(&buffers[at]).expect("accepted");
                    downloads.push((step, download, expected[at].clone()));
                }
            }
        }
        for (step, download, expected) in downloads {
            assert_eq!(in_time(&download).expect("copied"), expected, "seed {seed}, step {step}");
        }
        for (at, buffer) in buffers.iter().enumerate() {
            for streams in &streams {
                let found = contents(&streams[0], buffer).expect("copied");
                assert_eq!(found, expected[at], "seed {seed}, buffer {at}");
            }
        }
    }
}

#[test]
fn a_launch_waits_for_writes_under_way_on_another_device_and_its_thread_does_not() {
    let (one, other) = (scheduler(), scheduler());
    let (gate, mut log, writes) = write_under_way(&one, LEN);
    // The launch returns although its input is not there.
    let scales = kernels::scale(2, &mut log).threads(LEN as u32);
    let scales = other.stream(0).launch(scales).expect("accepted");
    // A write at home waits for it in turn, and so does a download there.
    let again =
        one.stream(0).launch(kernels::scale(3, &mut log).threads(LEN as u32)).expect("accepted");
    let download = one.stream(1).download(&log).expect("accepted");
    assert!(scales.wait_timeout(WHILE).is_none() && !again.is_done() && !download.is_done());
    gate.open();
    in_time(&writes).expect("runs");
    in_time(&scales).expect("runs");
    let mut expected = vec![0; LEN];
    expected[..2].copy_from_slice(&[1, 7]);
    assert_eq!(in_time(&download).expect("copied"), scaled(3, &scaled(2, &expected)));
    in_time(&again).expect("runs");
}

#[test]
fn other_work_on_the_second_device_goes_on_while_a_move_waits() {
    let (one, other) = (scheduler(), scheduler());
    let (gate, mut log, writes) = write_under_way(&one, 2);
    let waits = other.stream(0).launch(kernels::scale(2, &mut log).threads(2)).expect("accepted");
    let mut free = other.zeroed::<u32>(LEN).expect("memory");
    launch(&other.stream(0), kernels::scale(2, &mut free).threads(LEN as u32)).expect("runs");
    assert!(!waits.is_done());
    gate.open();
    in_time(&writes).expect("runs");
    in_time(&waits).expect("runs");
}

#[test]
fn readers_share_contents_without_moving_them_back() {
    let devices = [0; 2].map(|_| device());
    let (one, other) = (scheduler_on(&devices[0]), scheduler_on(&devices[1]));
    let data: Vec<u32> = (5..).take(LEN).collect();
    let buffer = one.buffer(&data).expect("memory");
    assert_eq!(contents(&other.stream(0), &buffer).expect("copied"), data);
    // Neither side can move anything from a scheduler that is gone.
    drop(one);
    assert_eq!(contents(&other.stream(0), &buffer).expect("still here"), data);
    let one = scheduler_on(&devices[0]);
    drop(other);
    assert_eq!(contents(&one.stream(0), &buffer).expect("still here"), data);
}

#[test]
fn threads_read_on_both_devices_at_the_same_time() {
    let schedulers = [scheduler(), scheduler()];
    let data: Vec<u32> = (5..).take(LEN).collect();
    for round in 0..20 {
        let buffer = schedulers[round % 2].buffer(&data).expect("memory");
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (scheduler, buffer, data) = (&schedulers[thread % 2], &buffer, &data);
                scope.spawn(move || {
                    let stream = scheduler.stream(thread as i32);
                    let mut sum = scheduler.zeroed::<u32>(LEN).expect("memory");
                    for _ in 0..5 {
                        let call = kernels::sum(buffer, buffer, &mut sum).threads(LEN as u32);
                        launch(&stream, call).expect("runs");
                        let found = contents(&stream, &sum).expect("copied");
                        assert!(found.iter().zip(data).all(|(sum, x)| *sum == 2 * x));
                    }
                });
            }
        });
    }
}

/// Launches one call from threads on both devices, the first ones while the buffer leaves home.
#[test]
fn no_write_is_lost_when_threads_launch_one_call_on_both_devices() {
    const LAUNCHES: u32 = 6;
    let schedulers = [scheduler(), scheduler()];
    for round in 0..60 {
        let mut counts = schedulers[round % 2].zeroed::<u32>(64).expect("memory");
        let mut writes = schedulers[round / 2 % 2].zeroed::<u32>(64).expect("memory");
        let call = kernels::count_1d(&mut counts, &mut writes).grid(2).block(BLOCK);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (scheduler, call) = (&schedulers[thread % 2], call.clone());
                scope.spawn(move || {
                    let stream = scheduler.stream(0);
                    let launches = (0..LAUNCHES).map(|_| stream.launch(call.clone()));
                    let handles: Vec<_> = launches.collect();
                    for handle in handles {
                        in_time(&handle.expect("accepted")).expect("runs");
                    }
                });
            }
        });
        for scheduler in &schedulers {
            let found = contents(&scheduler.stream(0), &writes).expect("copied");
            assert_eq!(found.iter().sum::<u32>(), 64 * 4 * LAUNCHES, "round {round}: {found:?}");
        }
    }
}

#[test]
fn a_buffer_can_be_read_twice_and_not_also_written() {
    let (one, other) = (scheduler(), scheduler());
    let mut buffer = one.buffer(&[3u32; LEN]).expect("memory");
    let mut out = one.zeroed::<u32>(LEN).expect("memory");
    launch(&other.stream(0), kernels::sum(&buffer, &buffer, &mut out).threads(LEN as u32))
        .expect("runs");
    assert_eq!(contents(&one.stream(0), &out).expect("copied"), [6; LEN]);
    let first = kernels::scale(1, &mut buffer).threads(LEN as u32);
    let args = {
        let mut args = preempt_device::host::Args::default();
        args.push_read::<u32>(&buffer);
        args.push_write::<u32>(&mut buffer);
        args
    };
    // SAFETY: it is refused.
    let both = unsafe { Call::new(first.kernel(), args) }.threads(LEN as u32);
    let error = launch(&other.stream(0), both).expect_err("refused");
    assert!(
        matches!(error, Error::Argument(ArgumentError::BufferConflict { name: "scale" })),
        "{error:?}"
    );
}

#[test]
fn a_buffer_can_be_dropped_while_it_moves() {
    let (one, other) = (scheduler(), narrow());
    let gate = Gate::new(&one);
    let mut log = one.zeroed::<u32>(LEN).expect("memory");
    let writes = one.stream(0).launch(gated(&gate.0, &mut log, 7).grid(1)).expect("accepted");
    let download = other.stream(0).download(&log).expect("accepted");
    drop(log);
    gate.open();
    in_time(&writes).expect("runs");
    assert_eq!(in_time(&download).expect("copied")[..2], [1, 7]);
    let all = other.zeroed_within::<u8>(4 * LEN + 20, LONG);
    all.expect("its memory is free");
}

#[test]
fn opaque_work_at_home_finds_what_another_device_wrote() {
    let (one, other) = (scheduler(), scheduler());
    let mut buffer = one.buffer(&[3u32; LEN]).expect("memory");
    drop(
        other
            .stream(0)
            .launch(kernels::scale(2, &mut buffer).threads(LEN as u32))
            .expect("accepted"),
    );
    let address = buffer.address();
    let found = Arc::new(AtomicBool::new(false));
    let finds = found.clone();
    let work = one.stream(0).opaque(Opaque::new("opaque").reads(&buffer), move |_| {
        // SAFETY: on the CPU device an address is one of this process; the work is a reader.
        let data = unsafe { std::slice::from_raw_parts(address as *const u32, LEN) };
        finds.store(data == scaled(2, &[3; LEN]), Ordering::Relaxed);
        Ok(())
    });
    in_time(&work.expect("accepted")).expect("runs");
    assert!(found.load(Ordering::Relaxed), "the contents were not moved back");
    // Its addresses are valid on this device only.
    let away = Opaque::new("opaque").reads(&buffer);
    let error = other.stream(0).opaque(away, |_| Ok(())).expect_err("refused");
    assert!(
        matches!(error, Error::Argument(ArgumentError::ForeignBuffer { name: "opaque" })),
        "{error:?}"
    );
    assert!(error.to_string().contains("bound to another device"), "{error}");
}

#[test]
fn buffers_without_elements_go_everywhere() {
    let (one, other) = (scheduler(), scheduler());
    let mut empty = one.zeroed::<u32>(0).expect("memory");
    for stream in [other.stream(0), one.stream(0), other.stream(0)] {
        launch(&stream, kernels::scale(2, &mut empty).grid(1)).expect("runs");
        assert_eq!(contents(&stream, &empty).expect("copied"), [0; 0]);
        in_time(&stream.upload(Vec::new(), &mut empty).expect("accepted")).expect("copied");
    }
}

/// The last elements of a buffer, from `start` on.
struct Tail<'a> {
    buffer: &'a Buffer<u32>,
    start: usize,
}

// SAFETY: the elements are a part of the buffer, whose owner is passed on.
unsafe impl ReadArg<'_, u32> for Tail<'_> {
    fn read_arg(self) -> BufferArg {
        let whole = self.buffer.read_arg();
        let (skipped, len) = (self.start * size_of::<u32>(), whole.len - self.start);
        let (address, bytes) = (whole.address + skipped as u64, whole.bytes - skipped);
        BufferArg { address, len, bytes, ..whole }
    }
}

#[test]
fn a_part_of_a_buffer_is_the_same_part_on_each_device() {
    let (one, other) = (scheduler(), scheduler());
    let all: Vec<u32> = (0..LEN as u32).collect();
    let buffer = one.buffer(&all).expect("memory");
    for scheduler in [&other, &one, &other] {
        let mut out = scheduler.zeroed::<u32>(LEN - 16).expect("memory");
        let tail = || Tail { buffer: &buffer, start: 16 };
        launch(
            &scheduler.stream(0),
            kernels::sum(tail(), tail(), &mut out).threads(LEN as u32 - 16),
        )
        .expect("runs");
        let expected: Vec<u32> = all[16..].iter().map(|x| 2 * x).collect();
        assert_eq!(contents(&scheduler.stream(0), &out).expect("copied"), expected);
    }
}

/// Downloads a buffer through the stream when it is woken, and sends the result.
struct DownloadsWhenWoken {
    work: Mutex<Option<(Stream, Buffer<u32>)>>,
    results: Sender<Result<Vec<u32>, Error>>,
}

impl Wake for DownloadsWhenWoken {
    fn wake(self: Arc<Self>) {
        if let Some((stream, buffer)) = self.work.lock().expect("not poisoned").take() {
            // The test may be over.
            let _ = self.results.send(contents(&stream, &buffer));
        }
    }
}

#[test]
fn a_waker_of_one_scheduler_may_wait_for_another_one_that_needs_it() {
    let (one, other) = (scheduler(), scheduler());
    let gate = Gate::new(&one);
    let mut log = one.zeroed::<u32>(LEN).expect("memory");
    let buffer = one.buffer(&[3u32; LEN]).expect("memory");
    let mut runs =
        Box::pin(one.stream(0).launch(gated(&gate.0, &mut log, 7).grid(1)).expect("accepted"));
    let (results, result) = channel();
    let work = Mutex::new(Some((other.stream(0), buffer)));
    let waker = Waker::from(Arc::new(DownloadsWhenWoken { work, results }));
    gate.wait_for(1);
    assert!(Future::poll(runs.as_mut(), &mut Context::from_waker(&waker)).is_pending());
    gate.open();
    // No other thread drives the first scheduler meanwhile: its poller calls the waker.
    let downloaded = result.recv_timeout(LONG).expect("it ends");
    assert_eq!(downloaded.expect("copied"), [3; LEN]);
}
