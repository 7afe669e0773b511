//! Errors on a GPU, and right results without errors. Without a GPU each test prints SKIP and why.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use preempt::error::{CodeError, DeviceError, LaunchError, MemoryError};
use preempt::policy::StaticPriority;
use preempt::pool::{Class, Pool, Stop, Task, TaskHandle};
use preempt::{
    Buffer, Copy2d, Device, Error, Handle, LaunchReport, Opaque, Preemption, Scheduler,
    SchedulerBuilder, SignalPath, Stream,
};
use preempt_test_kernels as kernels;
use preempt_test_kit::storm::{self, Chaos, Kind, Load, Strength, Tally, Victim};

/// The GPU, which one test at a time has.
struct Gpu {
    device: Device,
    _alone: MutexGuard<'static, ()>,
}

impl Gpu {
    fn new() -> Option<Gpu> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        match Device::cuda(0) {
            Ok(device) => Some(Gpu { device, _alone: alone }),
            Err(
                error @ (Error::Device(DeviceError::NoDriver { .. })
                | Error::Device(DeviceError::NoGpu { .. })),
            ) => {
                println!("SKIP: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn builder(&self) -> SchedulerBuilder {
        let builder = Scheduler::builder().device(self.device.clone());
        builder.kernels(preempt_test_kit::KERNELS).preemption(Preemption::Preemptible)
    }

    fn scheduler(&self) -> Scheduler {
        self.builder().build().expect("a scheduler")
    }
}

/// A kernel that fills the device for about this many rounds, with yield points.
struct Long {
    handle: Handle<LaunchReport>,
    out: Buffer<u32>,
    rounds: u32,
}

impl Long {
    const BLOCK: u32 = 1024;

    fn launch(scheduler: &Scheduler, stream: &Stream, rounds: u32) -> Long {
        let tasks = 2 * scheduler.device().properties().sms;
        let mut starts = scheduler.zeroed(tasks as usize).expect("memory");
        let mut out = scheduler.zeroed((tasks * Self::BLOCK) as usize).expect("memory");
        let call = kernels::spin_yielding(&mut starts, rounds, &mut out);
        let handle = stream.launch(call.grid(tasks).block(Self::BLOCK)).expect("accepted");
        Long { handle, out, rounds }
    }

    /// Waits for the kernel, and compares its results.
    fn check(self, stream: &Stream) -> LaunchReport {
        let report = self.handle.wait().expect("runs");
        let out = stream.download(&self.out).and_then(|copy| copy.wait()).expect("copied");
        // The generator's n-th step in closed form: x -> a x + c, n times.
        let (mut a, mut c) = (1u32, 0u32);
        for _ in 0..self.rounds {
            (a, c) =
                (a.wrapping_mul(1_664_525), c.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        }
        let wrong =
            (0..).zip(&out).find(|(x, value)| a.wrapping_mul(*x).wrapping_add(c) != **value);
        assert_eq!(wrong, None);
        report
    }
}

/// A small urgent kernel, with a check of its result.
fn tick(scheduler: &Scheduler, stream: &Stream) {
    let (mut counts, mut writes) =
        (scheduler.zeroed(8).expect("memory"), scheduler.zeroed(8 * 32).expect("memory"));
    let call = kernels::count_1d(&mut counts, &mut writes).grid(8).block(32);
    stream.launch(call).and_then(|handle| handle.wait()).expect("runs");
    let counts: Vec<u32> = stream.download(&counts).and_then(|copy| copy.wait()).expect("copied");
    assert_eq!(counts, [1; 8]);
}

const ROUNDS: u32 = 2_000_000;

#[test]
fn without_a_driver_the_error_says_what_was_looked_for() {
    match Device::cuda(0) {
        Err(error @ Error::Device(DeviceError::NoDriver { .. })) => {
            assert!(error.to_string().contains("libcuda"), "{error}");
            assert!(error.to_string().contains("Device::cpu"), "{error}");
        }
        _ => println!("SKIP: there is a driver"),
    }
}

#[test]
fn an_ordinal_out_of_range_is_an_error_that_tells_the_range() {
    let Some(_gpu) = Gpu::new() else { return };
    let error = Device::cuda(10_000).expect_err("no machine has that many");
    assert!(
        matches!(error, Error::Device(DeviceError::NoGpu { ordinal: 10_000, .. })),
        "{error:?}"
    );
}

#[test]
fn the_device_says_what_it_is() {
    let Some(gpu) = Gpu::new() else { return };
    let properties = gpu.device.properties();
    assert!(!properties.name.is_empty() && properties.sms > 0 && properties.threads_per_sm >= 1024);
    assert!(properties.driver.is_some());
    println!("{properties:?}");
}

/// Modules come with the scheduler, and no further module is loaded while kernels run: loading would wait for these,
/// and hold launches up meanwhile.
#[test]
fn no_module_is_loaded_while_kernels_run() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let (batch, urgent) = (scheduler.stream(0), scheduler.stream(1));
    let long = Long::launch(&scheduler, &batch, ROUNDS);
    let again = Device::cuda(0).expect("the same device");
    let second = Scheduler::builder().device(again).kernels(preempt_test_kit::KERNELS).build();
    assert!(matches!(second, Err(Error::Device(DeviceError::Taken))), "{second:?}");
    assert!(!long.handle.is_done(), "the kernel runs on");
    tick(&scheduler, &urgent);
    long.check(&batch);
}

/// Has the driver fill a buffer in the scheduler's stream, like a library that does not know of the scheduler.
fn fill(stream: &Stream, opaque: Opaque, data: &mut Buffer<u32>, value: u32) -> Handle<()> {
    let (address, len) = (data.address(), data.len());
    let work = stream.opaque(opaque.writes(data), move |raw| {
        let raw = raw.as_raw().ok_or("a GPU has streams")?;
        // SAFETY: the operation keeps the buffer, which no other work uses meanwhile.
        unsafe { sys::cuMemsetD32Async(address, value, len, raw.cast()) }.result()?;
        Ok(())
    });
    work.expect("accepted")
}

#[test]
fn opaque_work_runs_in_the_order_of_a_stream() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let stream = scheduler.stream(0);
    let mut data = scheduler.zeroed::<u32>(1 << 20).expect("memory");
    for value in 1..=20 {
        let work = fill(&stream, Opaque::new("fill"), &mut data, value);
        let found = stream.download(&data).and_then(|copy| copy.wait()).expect("copied");
        assert!(found.iter().all(|&element| element == value), "{value}");
        work.wait().expect("runs");
    }
    let fails = stream.opaque(Opaque::new("fails"), |_| Err("no luck".into()));
    let error = fails.expect("accepted").wait().expect_err("it failed");
    assert!(
        matches!(error, Error::Launch(LaunchError::KernelFailed { kernel: "fails", .. })),
        "{error:?}"
    );
}

/// The first launch of a kernel that is loaded lazily waits for every kernel that runs. Here one runs that yields, and
/// signals go by stream writes or by a proxy, which is a resident kernel, too.
#[test]
fn the_first_run_of_opaque_work_has_the_gpu_alone() {
    let Some(gpu) = Gpu::new() else { return };
    for path in [SignalPath::StreamWrite, SignalPath::Proxy, SignalPath::Auto] {
        let builder = Scheduler::builder().device(gpu.device.clone()).signal_path(path);
        let scheduler = builder.kernels(preempt_test_kit::KERNELS).build().expect("a scheduler");
        let (batch, stream) = (scheduler.stream(0), scheduler.stream(1));
        let mut data = scheduler.zeroed::<u32>(1 << 20).expect("memory");
        let long = Long::launch(&scheduler, &batch, ROUNDS);
        fill(&stream, Opaque::new("first"), &mut data, 7).wait().expect("runs");
        assert!(!long.handle.is_done(), "it made room, and goes on");
        tick(&scheduler, &stream);
        long.check(&batch);
        let found = stream.download(&data).and_then(|copy| copy.wait()).expect("copied");
        assert!(found.iter().all(|&element| element == 7));
    }
}

#[test]
fn every_kernel_counts_its_tasks_once() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let stream = scheduler.stream(0);
    let mut tally = Tally::default();
    for kind in Kind::ALL {
        let victim = Victim::launch(kind, &scheduler, &stream, 24_000).expect("accepted");
        victim.check(&stream, &mut tally).expect("runs");
    }
    assert_eq!((tally.mistake, tally.lost, tally.repeated), (None, 0, 0));
}

#[test]
fn late_stops_of_some_sms_are_counted_without_yield_points_too() {
    const LIMIT: Duration = Duration::from_micros(100);
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.builder().signal_path(SignalPath::Proxy).build().expect("a scheduler");
    let (stream, urgent) = (scheduler.stream(0), scheduler.stream(1));
    urgent.set_latency_limit(Some(LIMIT));
    tick(&scheduler, &urgent);
    let sms = scheduler.device().properties().sms;
    // Eight blocks of 256 threads lie on an SM at a time. A block-task takes a millisecond.
    for tasks in [40 * sms, 4 * sms] {
        let lens = [tasks as usize, 256 * tasks as usize];
        let [mut counts, mut writes] =
            lens.map(|len| scheduler.zeroed::<u32>(len).expect("memory"));
        let before = scheduler.stats().stops;
        // Between two proxies a signal is the write of a stream.
        let is_counted = (1..=20).any(|launches| {
            let call = kernels::paced_1d(2_000_000, &mut counts, &mut writes);
            let handle = stream.launch(call.grid(tasks).block(256)).expect("accepted");
            std::thread::sleep(Duration::from_micros(300));
            tick(&scheduler, &urgent);
            assert_eq!(handle.wait().expect("runs").tasks, tasks);
            let counts = stream.download(&counts).and_then(|copy| copy.wait()).expect("copied");
            assert!(counts.iter().all(|&count| count == launches));
            scheduler.stats().stops.violations > before.violations
        });
        let after = scheduler.stats().stops;
        assert!(is_counted && after.drained > before.drained, "{tasks}: {after:?}");
    }
}

/// Storms with every policy. `compute-sanitizer` runs this test too.
#[test]
fn storms_lose_and_repeat_nothing() {
    let Some(gpu) = Gpu::new() else { return };
    // `no-yield-points` is for `racecheck`: a block's yield points share a word that is read and written without order
    // on purpose, and it warns of that. It keeps every access to shared memory, so there is one storm only.
    let small = std::env::var("PREEMPT_SMALL_STORM").ok();
    let (enough, tasks, kinds) = match small.as_deref() {
        None => (500, 24_000, &Kind::ALL[..]),
        Some("no-yield-points") => (60, 2_400, &Kind::ALL[..7]),
        Some(_) => (40, 2_400, &Kind::ALL[..]),
    };
    let storm = |builder: preempt::SchedulerBuilder, urgent_priority| {
        let builder = builder.device(gpu.device.clone()).kernels(preempt_test_kit::KERNELS);
        let scheduler = builder.build().expect("a scheduler");
        // Up to about 50 µs: time enough for another launch to come in between.
        let load = Load { tasks, ticks: 100_000 };
        let strength =
            Strength { enough, load, kinds, urgent_priority, has_limits: false, seed: 7 };
        let tally = storm::yields(&scheduler, strength, |_| ()).expect("runs");
        assert_eq!((&tally.mistake, tally.lost, tally.repeated), (&None, 0, 0));
        println!(
            "{} yields, {} resumes in mid-kernel, {} switches at checkpoints",
            tally.yields, tally.resumes, tally.switches
        );
        assert!(!kinds.contains(&Kind::Saving) || tally.switches > 0, "no block-task was left");
    };
    storm(Scheduler::builder().policy(StaticPriority::new()), 1);
    if kinds.len() < Kind::ALL.len() {
        return;
    }
    storm(Scheduler::builder().policy(StaticPriority::whole_device()), 1);
    storm(Scheduler::builder().policy(Chaos::new(3)), 0);
    let proxy = Scheduler::builder().signal_path(SignalPath::Proxy);
    storm(proxy.policy(StaticPriority::whole_device()), 1);
}

#[test]
fn signals_arrive_by_the_proxy_and_after_it_by_stream_writes() {
    let Some(gpu) = Gpu::new() else { return };
    for path in [SignalPath::Proxy, SignalPath::StreamWrite, SignalPath::Auto, SignalPath::Proxy] {
        let builder = Scheduler::builder().device(gpu.device.clone()).signal_path(path);
        let scheduler = builder.kernels(preempt_test_kit::KERNELS).build().expect("a scheduler");
        let (batch, urgent) = (scheduler.stream(0), scheduler.stream(1));
        for _ in 0..3 {
            let long = Long::launch(&scheduler, &batch, ROUNDS);
            for _ in 0..5 {
                tick(&scheduler, &urgent);
            }
            let report = long.check(&batch);
            assert!(report.yields > 0, "{path:?}: {report:?}");
            // The proxy ends now, and comes again.
            scheduler.synchronize().expect("no policy was replaced");
        }
    }
}

/// Sets the flag at the end of its scope.
struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What the driver does for such calls waits for everything on the device, with a lock that launches wait for.
#[test]
fn calls_that_wait_for_the_device_end_beside_the_proxy() {
    let Some(gpu) = Gpu::new() else { return };
    for path in [SignalPath::Proxy, SignalPath::Auto] {
        let builder = Scheduler::builder().device(gpu.device.clone()).signal_path(path);
        let scheduler = builder.kernels(preempt_test_kit::KERNELS).build().expect("a scheduler");
        let (batch, urgent) = (scheduler.stream(0), scheduler.stream(1));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Also after a call that fails.
                let _over = SetWhenDropped(&is_over);
                let (mut context, mut address) = (std::ptr::null_mut(), 0);
                let call = |call: &mut dyn FnMut() -> sys::CUresult| {
                    assert_eq!(call(), sys::CUresult::CUDA_SUCCESS);
                };
                // SAFETY: there is a GPU, and the pointer is valid.
                call(&mut || unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, 0) });
                // SAFETY: the device keeps the context.
                call(&mut || unsafe { sys::cuCtxSetCurrent(context) });
                for _ in 0..50 {
                    // SAFETY: the pointer is valid.
                    call(&mut || unsafe { sys::cuMemAlloc_v2(&raw mut address, 1 << 20) });
                    // SAFETY: the context is current.
                    call(&mut || unsafe { sys::cuCtxSynchronize() });
                    // SAFETY: allocated above.
                    call(&mut || unsafe { sys::cuMemFree_v2(address) });
                }
            });
            // Something is in flight all the time.
            let mut last = Long::launch(&scheduler, &batch, ROUNDS / 20);
            while !is_over.load(Ordering::Relaxed) {
                let next = Long::launch(&scheduler, &batch, ROUNDS / 20);
                tick(&scheduler, &urgent);
                last.check(&batch);
                last = next;
            }
            last.check(&batch);
        });
    }
}

#[test]
fn cancelled_kernels_report_exactly_what_they_did() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let tally =
        storm::cancellations(&scheduler, 200, Load { tasks: 24_000, ticks: 400_000 }, 5, |_| ())
            .expect("runs");
    assert_eq!((tally.mistake, tally.lost, tally.repeated), (None, 0, 0));
    println!("{} cancelled, {} of them midway", tally.cancelled, tally.cancelled_midway);
}

#[test]
fn an_urgent_kernel_gets_through_and_the_long_one_goes_on() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let (batch, urgent) = (scheduler.stream(0), scheduler.stream(1));
    let long = Long::launch(&scheduler, &batch, ROUNDS);
    while !long.handle.is_done() {
        tick(&scheduler, &urgent);
    }
    let report = long.check(&batch);
    assert!(report.yields > 0, "{report:?}");
}

#[test]
fn a_pointer_to_an_empty_buffer_is_null() {
    let Some(gpu) = Gpu::new() else { return };
    preempt_test_kit::check_optional_buffers(&gpu.scheduler());
}

#[test]
fn plain_launches_run_once_and_keep_their_order() {
    const TASKS: usize = 24_000;
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let (stream, urgent) = (scheduler.stream(0), scheduler.stream(1));
    let mut counts = scheduler.zeroed::<u32>(TASKS).expect("memory");
    let mut writes = scheduler.zeroed::<u32>(TASKS * 64).expect("memory");
    let mut handles = Vec::new();
    for step in 0..60 {
        let is_plain = step % 3 != 2;
        let preemption = if is_plain { Preemption::Plain } else { Preemption::Preemptible };
        let call = kernels::count_1d(&mut counts, &mut writes).grid(TASKS as u32).block(64);
        handles.push((stream.launch(call.preemption(preemption)).expect("accepted"), is_plain));
        if step % 5 == 0 {
            tick(&scheduler, &urgent);
        }
    }
    for (handle, is_plain) in handles {
        let report = handle.wait().expect("runs");
        assert_eq!((report.plain, report.tasks), (is_plain, TASKS as u32));
        assert_eq!(report.amortize > 0, !is_plain);
    }
    let counts = stream.download(&counts).and_then(|copy| copy.wait()).expect("copied");
    assert!(counts.iter().all(|&count| count == 60));
}

#[test]
fn launches_that_are_known_to_be_short_become_plain() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler =
        gpu.builder().longest_plain(Duration::from_millis(1)).build().expect("a scheduler");
    let stream = scheduler.stream(0);
    let mut counts = scheduler.zeroed::<u32>(24_000).expect("memory");
    let mut writes = scheduler.zeroed::<u32>(24_000 * 64).expect("memory");
    let mut launch = |tasks: u32, ticks: u64| {
        let call = kernels::paced_1d(ticks, &mut counts, &mut writes).grid(tasks).block(64);
        let handle = stream.launch(call.preemption(Preemption::Auto)).expect("accepted");
        handle.wait().expect("runs").plain
    };
    assert!(!launch(8, 1), "the duration is not known yet");
    // Not at once: the first launches may take longer.
    assert!((0..200).any(|_| launch(8, 1)));
    assert!(!(0..20).any(|_| launch(24_000, 1_000_000)), "each takes milliseconds");
}

#[test]
fn memory_has_an_end() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let stream = scheduler.stream(0);
    let long = Long::launch(&scheduler, &stream, ROUNDS);
    let error = scheduler.zeroed::<u8>(1 << 45).expect_err("32 TiB");
    assert!(
        matches!(error, Error::Memory(MemoryError::OutOfMemory { bytes }) if bytes == 1 << 45),
        "{error:?}"
    );
    // Beside the kernel that runs, memory can be allocated and freed.
    for _ in 0..10 {
        drop(scheduler.buffer(&vec![1u8; 1 << 20]).expect("memory"));
    }
    long.check(&stream);
}

#[test]
fn copies_of_all_sizes_are_whole() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let (stream, busy) = (scheduler.stream(1), scheduler.stream(0));
    let long = Long::launch(&scheduler, &busy, ROUNDS);
    for len in [0, 1, 63, 16_384, 16_385, 1_000_003, 9_000_001] {
        let data: Vec<u32> = (0..len).map(|i: u32| i.wrapping_mul(2_654_435_761)).collect();
        let mut first = scheduler.zeroed(data.len()).expect("memory");
        let mut second = scheduler.zeroed(data.len()).expect("memory");
        stream.upload(data.clone(), &mut first).and_then(|copy| copy.wait()).expect("copied");
        stream.copy_buffer(&first, &mut second).and_then(|copy| copy.wait()).expect("copied");
        let back = stream.download(&second).and_then(|copy| copy.wait()).expect("copied");
        assert!(back == data, "{len} elements");
        let mut pinned = scheduler.pinned(data.len()).expect("memory");
        pinned.copy_from_slice(&data);
        stream.fill(&mut first, 5).and_then(|fill| fill.wait()).expect("filled");
        let upload = stream.upload_pinned(pinned, &mut first).expect("accepted");
        let mut pinned = upload.wait().expect("copied");
        pinned.fill(6);
        let download = stream.download_pinned(&first, pinned).expect("accepted");
        assert!(*download.wait().expect("copied") == data, "{len} elements, pinned");
        // Every other column.
        let shape = Copy2d { width: 1, height: data.len() / 2, from_pitch: 2, to_pitch: 1 };
        stream.copy_2d(&first, &mut second, shape).and_then(|copy| copy.wait()).expect("copied");
        let back = stream.download(&second).and_then(|copy| copy.wait()).expect("copied");
        let (half, rest) = back.split_at(shape.height);
        assert!(half.iter().eq(data.iter().step_by(2).take(half.len())), "{len} elements, half");
        assert!(rest == &data[shape.height..], "{len} elements, the other half");
    }
    long.check(&busy);
}

#[test]
fn memory_is_told_beside_a_kernel_that_runs() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let stream = scheduler.stream(0);
    let long = Long::launch(&scheduler, &stream, ROUNDS);
    let before = gpu.device.memory().expect("told");
    assert!(before.free > 0 && before.free < before.total, "{before:?}");
    let held = scheduler.zeroed::<u8>(1 << 30).expect("memory");
    let after = gpu.device.memory().expect("told");
    assert!(after.free < before.free && after.total == before.total, "{before:?}, {after:?}");
    assert!(!long.handle.is_done(), "it waited for the kernel");
    drop(held);
    long.check(&stream);
}

#[test]
fn a_kernel_without_device_code_is_an_error_and_harms_no_other_launch() {
    let Some(gpu) = Gpu::new() else { return };
    // No module can be loaded while kernels run, because the driver would wait for them. So a kernel whose module the
    // scheduler was not built with is refused.
    let scheduler = Scheduler::builder().device(gpu.device.clone()).build().expect("a scheduler");
    let (mut counts, mut writes) =
        (scheduler.zeroed(1).expect("memory"), scheduler.zeroed(32).expect("memory"));
    let call = kernels::count_1d(&mut counts, &mut writes).grid(1).block(32);
    let error = scheduler.stream(0).launch(call).expect_err("no module");
    assert!(
        matches!(error, Error::Code(CodeError::Missing { kernel: "count_1d", .. })),
        "{error:?}"
    );
    assert!(error.to_string().contains(".kernels("), "{error}");
    drop(scheduler);
    let scheduler = gpu.scheduler();
    tick(&scheduler, &scheduler.stream(0));
}

#[test]
fn more_streams_than_hardware_queues_are_no_priority_inversion() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let batch: Vec<Stream> = (0..100).map(|_| scheduler.stream(0)).collect();
    // The first launch of a kernel waits for the driver, and all the long kernels may end before it does.
    tick(&scheduler, &scheduler.stream(1));
    let long: Vec<Long> = batch
        .iter()
        .flat_map(|stream| (0..3).map(|_| Long::launch(&scheduler, stream, 20_000)))
        .collect();
    let urgent = scheduler.stream(1);
    for _ in 0..20 {
        tick(&scheduler, &urgent);
    }
    let waiting = long.iter().filter(|long| !long.handle.is_done()).count();
    assert!(waiting > 0, "the urgent kernels waited for everything");
    for (long, stream) in long.into_iter().zip(batch.iter().flat_map(|stream| [stream; 3])) {
        long.check(stream);
    }
}

/// Set in the processes that [`work_on_all_levels_is_no_priority_inversion`] starts.
const LEVELS: &str = "PREEMPT_TEST_LEVELS";

/// The driver reads the number of hardware queues once, so each number has a process of its own.
#[test]
fn work_on_all_levels_is_no_priority_inversion() {
    if std::env::var(LEVELS).is_ok() {
        return fill_all_levels();
    }
    let Some(_gpu) = Gpu::new() else { return };
    for queues in ["8", "32"] {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        command.args(["--exact", "work_on_all_levels_is_no_priority_inversion", "--nocapture"]);
        command.env("CUDA_DEVICE_MAX_CONNECTIONS", queues).env(LEVELS, queues);
        let output = command.output().expect("started");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(output.status.success(), "{queues} hardware queues: {text}");
        assert!(text.contains("nothing waited"), "{queues} hardware queues: {text}");
    }
}

/// Plain grids that fill the GPU on each level that they may have, with launches behind them, copies beside them and an armed
/// program leave hardware queues and the highest level to urgent launches.
fn fill_all_levels() {
    const TASKS: u32 = 400_000;
    const TICKS: u32 = 20;
    let scheduler = Gpu::new().expect("the parent process has one").scheduler();
    tick(&scheduler, &scheduler.stream(0));
    let zeroed = |len| scheduler.zeroed::<u32>(len as usize).expect("memory");
    let urgent = scheduler.stream(9);
    let (mut answers, mut written) = (zeroed(8), zeroed(8 * 32));
    let answer = urgent.program("answer", |program| {
        let call = kernels::count_1d(&mut answers, &mut written).grid(8).block(32);
        program.launch(call).map(drop)
    });
    let answer = answer.expect("recorded");
    let (copied, other) = (scheduler.stream(0), vec![7u32; 1 << 18]);
    let mut up = zeroed(other.len() as u32);

    let mut buffers: Vec<_> = (0..5).map(|_| (zeroed(TASKS), zeroed(TASKS * 1024))).collect();
    let mut long = Vec::new();
    for (priority, (counts, writes)) in (0..).zip(&mut buffers) {
        let stream = scheduler.stream(priority);
        for _ in 0..2 {
            // Blocks of some 100 µs, two on an SM: each grid takes longer than all ticks together.
            let call = kernels::paced_1d(200_000, &mut *counts, &mut *writes);
            let call = call.grid(TASKS).block(1024).preemption(Preemption::Plain);
            long.push(stream.launch(call).expect("accepted"));
        }
        tick(&scheduler, &scheduler.stream(priority + 1));
    }
    let mut began_armed = 0;
    for _ in 0..TICKS {
        answer.arm().expect("accepted");
        let sent = copied.upload(&other, &mut up).expect("accepted");
        let back = copied.download(&up).expect("accepted");
        began_armed += u32::from(answer.launch().and_then(|done| done.wait()).expect("runs").armed);
        tick(&scheduler, &urgent);
        sent.wait().expect("copied");
        assert!(back.wait().expect("copied") == other);
        assert!(long.iter().all(|launch| !launch.is_done()), "it waited for a plain grid's end");
    }
    println!("nothing waited, and {began_armed} programs of {TICKS} began armed");
    for (at, launch) in long.into_iter().enumerate() {
        assert_eq!(launch.wait().expect("runs").tasks, TASKS, "{at}");
    }
    for (counts, _) in &buffers {
        let counts = urgent.download(counts).and_then(|copy| copy.wait()).expect("copied");
        assert!(counts.iter().all(|&count| count == 2));
    }
    let answers = urgent.download(&answers).and_then(|copy| copy.wait()).expect("copied");
    assert_eq!(answers, [TICKS; 8]);
}

/// All of a revoked run is done again, so its blocks leave behind what is not done twice, too.
#[test]
fn a_block_of_a_revoked_run_leaves_behind_its_marker() {
    /// Rounds of many seconds.
    const LONG: u32 = 1 << 30;
    let Some(gpu) = Gpu::new() else { return };
    for meets in [false, true] {
        let stop = Stop::Revoke(Duration::ZERO);
        let scheduler = gpu.scheduler();
        let pool = Pool::builder().scheduler(scheduler.clone()).stop(stop).build().expect("a pool");
        let [service, nightly] =
            [Class::UserFacing, Class::Batch].map(|class| pool.application(class));
        let tasks = 4 * gpu.device.properties().sms;
        let runs = Arc::new(AtomicU32::new(0));
        let of_task = runs.clone();
        let batch = nightly.submit(&Task::new("batch", move |run| {
            let is_first = of_task.fetch_add(1, Ordering::SeqCst) == 0;
            let rounds = if is_first { LONG } else { 7 };
            let mut ends = run.zeroed::<u32>(tasks as usize)?;
            let mut out = run.zeroed::<u32>((256 * tasks) as usize)?;
            if meets {
                run.launch(kernels::meet_marked(&mut ends, rounds, &mut out).grid(tasks))?;
            } else {
                let call = kernels::spin_marked(&mut ends, rounds, &mut out);
                run.launch(call.grid(tasks).block(256))?;
            }
            Ok((run.download(&ends)?, run.download(&out)?))
        }));
        // Its blocks come to their markers meanwhile. If they do not, the test finds nothing.
        std::thread::sleep(Duration::from_millis(50));
        let user = service.submit(&Task::new("user", |run| run.download(&run.zeroed::<u32>(8)?)));
        assert_eq!(user.and_then(TaskHandle::wait).expect("a result"), [0; 8]);
        let (ends, out) = batch.and_then(TaskHandle::wait).expect("a result");
        let x =
            |i: u32| (0..7).fold(i, |x, _| x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        assert!(ends.iter().all(|&count| count == 1), "of the second run");
        assert!((0..).zip(&out).all(|(i, &found)| found == x(i)), "of the second run");
        assert_eq!((runs.load(Ordering::SeqCst), pool.stats().revocations), (2, 1));
        assert_eq!(scheduler.stats().total.cancelled, 1, "its blocks have gone on");
    }
}

#[test]
fn a_scheduler_that_is_dropped_stops_what_runs() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let stream = scheduler.stream(0);
    let (mut counts, mut writes) = (
        scheduler.zeroed(10_000_000).expect("memory"),
        scheduler.zeroed(320_000_000).expect("memory"),
    );
    let call = kernels::count_1d(&mut counts, &mut writes).grid(10_000_000).block(32);
    let handle = stream.launch(call).expect("accepted");
    drop((stream, scheduler));
    match handle.wait() {
        Ok(report) => assert_eq!(report.tasks, 10_000_000),
        Err(Error::Launch(LaunchError::SchedulerDropped { done, tasks: 10_000_000 })) => {
            assert!(done < 10_000_000)
        }
        Err(other) => panic!("{other}"),
    }
    let scheduler = gpu.scheduler();
    tick(&scheduler, &scheduler.stream(0));
}

/// Set in the process that [`a_kernel_that_traps_is_reported_by_all`] starts.
const CHILD: &str = "PREEMPT_TEST_TRAP";

/// A trap ends the context for the whole process, so it happens in a process of its own.
#[test]
fn a_kernel_that_traps_is_reported_by_all() {
    if let Ok(preemption) = std::env::var(CHILD) {
        return trap(match &*preemption {
            "Plain" => Preemption::Plain,
            _ => Preemption::Preemptible,
        });
    }
    let Some(_gpu) = Gpu::new() else { return };
    for preemption in [Preemption::Preemptible, Preemption::Plain] {
        let program = std::env::current_exe().expect("this program");
        let test = "a_kernel_that_traps_is_reported_by_all";
        let mut command = Command::new(program);
        let child = command.args(["--exact", test, "--nocapture"]);
        let output = child.env(CHILD, format!("{preemption:?}")).output().expect("started");
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{preemption:?}: {text}");
        assert!(text.contains("all handles were told"), "{preemption:?}: {text}");
    }
}

fn trap(preemption: Preemption) {
    let scheduler = Gpu::new().expect("the parent process has one").scheduler();
    let (batch, other) = (scheduler.stream(1), scheduler.stream(0));
    let before = Long::launch(&scheduler, &other, ROUNDS);
    let mut out = scheduler.zeroed::<u32>(64).expect("memory");
    // The trap comes when all launches have been accepted.
    let first = Long::launch(&scheduler, &batch, ROUNDS);
    let call = kernels::panics(37, &mut out).grid((10, 5)).block((8, 8)).preemption(preemption);
    let panics = batch.launch(call).expect("accepted");
    let behind = Long::launch(&scheduler, &batch, 1000);
    let start = Instant::now();
    let lost = |error: &Error| matches!(error, Error::Device(DeviceError::ContextLost { .. }));
    let error = panics.wait().expect_err("it panics");
    let Error::Launch(LaunchError::KernelFailed { kernel: "panics", message }) = &error else {
        panic!("{error:?}");
    };
    let (place, rest) = message.split_once(" panicked").expect("it says where");
    assert!(rest.ends_with("start the process anew"), "{message}");
    // Any thread of the block-task may be the first.
    let thread = place.strip_prefix("block-task (7, 3, 0): thread (").expect("the block-task");
    let numbers = thread.trim_end_matches(')').split(", ").map(|number| number.parse::<u32>());
    let [x, y, z] = numbers.collect::<Result<Vec<_>, _>>().expect("numbers")[..] else {
        panic!("{message}");
    };
    assert!(x < 8 && y < 8 && z == 0, "{message}");
    let reason = format!("kernel `panics` failed: {place} panicked;");
    for handle in [&before.handle, &behind.handle] {
        let error = handle.wait().expect_err("the context is lost");
        assert!(lost(&error) && error.to_string().contains(&reason), "{error:?}");
    }
    assert!(start.elapsed() < Duration::from_secs(20), "the report comes late");
    let error = scheduler.zeroed::<u32>(1).expect_err("no memory in a context that is lost");
    assert!(lost(&error) && error.to_string().contains(&reason), "{error:?}");
    let error = batch.launch(kernels::panics(0, &mut out).grid(1).block(32)).expect_err("lost");
    assert!(lost(&error), "{error:?}");
    let error = batch.download(&out).and_then(|copy| copy.wait()).expect_err("lost");
    assert!(lost(&error), "{error:?}");
    assert!(error.to_string().contains("start the process anew"), "{error}");
    drop((out, before, first, behind, panics, batch, other, scheduler));
    let error = Device::cuda(0).map(|device| Scheduler::builder().device(device).build());
    let error = error.and_then(|built| built).expect_err("a lost context stays lost");
    assert!(lost(&error), "{error:?}");
    println!("all handles were told");
}
