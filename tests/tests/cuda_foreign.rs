//! Kernels of other compilers on a GPU: the same bits plain, preemptible, and interrupted in mid-kernel. Without a GPU each
//! test prints SKIP and why.

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use preempt::error::{ConfigurationError, DeviceError};
use preempt::policy::StaticPriority;
use preempt::ptx::{Droppable, Options};
use preempt::{
    Buffer, Call, Device, Error, ForeignKernel, Preemption, Scheduler, SchedulerBuilder, Stream,
};
use preempt_test_kernels as kernels;

const SAMPLES: &str = include_str!("../foreign/samples.ptx");

/// Stops in mid-kernel that each kernel has to survive, and launches in which they have to come.
const STOPS: u32 = 20;
const LAUNCHES: u32 = 400;

/// Block-tasks, steps that each thread takes, and threads in a block.
const TASKS: u32 = 20_000;
const ROUNDS: u32 = 2_000;
const BLOCK: u32 = 256;

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
        let builder = builder.policy(StaticPriority::whole_device()).ptx("samples", SAMPLES);
        builder.kernels(preempt_test_kit::KERNELS).preemption(Preemption::Preemptible)
    }

    fn scheduler(&self) -> Scheduler {
        self.builder().build().expect("a scheduler")
    }
}

fn foreign(scheduler: &Scheduler, entry: &str) -> ForeignKernel {
    scheduler.foreign("samples", entry).expect("it is loaded")
}

/// An urgent launch that needs the whole device for a moment.
fn tick(scheduler: &Scheduler, urgent: &Stream) {
    let [mut counts, mut writes] = [0, 1].map(|_| scheduler.zeroed::<u32>(8).expect("memory"));
    let call = kernels::count_1d(&mut counts, &mut writes).grid(8).block(1);
    urgent.launch(call).and_then(|handle| handle.wait()).expect("runs");
}

fn download(stream: &Stream, buffer: &Buffer<u32>) -> Vec<u32> {
    stream.download(buffer).and_then(|copy| copy.wait()).expect("copied")
}

fn input(len: u32) -> Vec<u32> {
    (0..len).map(|i| i.wrapping_mul(2_654_435_761)).collect()
}

/// What threads of the samples do to a value: `x -> a x + c`, so often, in closed form.
fn steps(value: u32) -> u32 {
    static STEPS: LazyLock<(u32, u32)> = LazyLock::new(|| steps_of(ROUNDS));
    let (a, c) = *STEPS;
    a.wrapping_mul(value).wrapping_add(c)
}

/// The factor and the summand of so many steps.
fn steps_of(rounds: u32) -> (u32, u32) {
    (0..rounds).fold((1, 0), |(a, c): (u32, u32), _| {
        (a.wrapping_mul(1_664_525), c.wrapping_mul(1_664_525).wrapping_add(1_013_904_223))
    })
}

/// A call of a sample: of the kernel, with an output of `len` elements, and `n`.
struct Sample {
    entry: &'static str,
    block: u32,
    len: u32,
    n: u32,
    dynamic: u32,
}

impl Sample {
    fn call(&self, kernel: ForeignKernel, x: &Buffer<u32>, out: &mut Buffer<u32>) -> Call<'static> {
        // SAFETY: these are the parameters of all samples: both buffers have what `n` and the grid say.
        let call = unsafe { kernel.call() }.read(x).write(out).value(self.n).value(ROUNDS);
        call.block(self.block).dynamic_shared(self.dynamic).grid(TASKS)
    }

    /// Runs it plain, preemptible, and interrupted until it has lost its SMs often enough, and compares with `expected`.
    fn check(&self, gpu: &Gpu, expected: impl Fn(&[u32]) -> Vec<u32>) {
        let scheduler = gpu.scheduler();
        let kernel = foreign(&scheduler, self.entry);
        assert!(kernel.is_preemptible(), "{}: {}", self.entry, kernel.verdict());
        let (batch, urgent) = (scheduler.stream(0), scheduler.stream(1));
        let x = input(TASKS * self.block);
        let expected = expected(&x);
        let x = scheduler.buffer(&x).expect("memory");
        let run = |preemption, ticks: u32| {
            let mut out = scheduler.zeroed(self.len as usize).expect("memory");
            let call = self.call(kernel, &x, &mut out).preemption(preemption);
            let handle = batch.launch(call).expect("accepted");
            for _ in 0..ticks {
                tick(&scheduler, &urgent);
            }
            let report = handle.wait().expect("runs");
            assert_eq!((report.tasks, report.plain), (TASKS, preemption == Preemption::Plain));
            let found = download(&batch, &out);
            let wrong = found.iter().zip(&expected).position(|(one, other)| one != other);
            assert_eq!(wrong, None, "{}, {preemption:?}: {report:?}", self.entry);
            report.yields
        };
        run(Preemption::Plain, 0);
        run(Preemption::Preemptible, 0);
        let mut stops = 0;
        for _ in 0..LAUNCHES {
            if stops >= STOPS {
                break;
            }
            stops += run(Preemption::Preemptible, 2);
        }
        println!("{}: {stops} stops", self.entry);
        assert!(stops >= STOPS, "{}: {stops} stops in {LAUNCHES} launches", self.entry);
    }
}

#[test]
fn elements_are_computed_once() {
    let Some(gpu) = Gpu::new() else { return };
    let len = TASKS * BLOCK;
    let sample = Sample { entry: "elementwise", block: BLOCK, len, n: len - 77, dynamic: 0 };
    sample.check(&gpu, |x| {
        let mut out: Vec<u32> = x.iter().map(|&x| steps(x)).collect();
        let end = out.len() - 77;
        out[end..].fill(0);
        out
    });
}

#[test]
fn sums_in_static_shared_memory_are_whole() {
    let Some(gpu) = Gpu::new() else { return };
    let sample = Sample { entry: "block_sums", block: BLOCK, len: TASKS, n: 0, dynamic: 0 };
    sample.check(&gpu, |x| {
        let sum = |block: &[u32]| block.iter().fold(0u32, |sum, &x| sum.wrapping_add(steps(x)));
        x.chunks(BLOCK as usize).map(sum).collect()
    });
}

#[test]
fn lanes_that_return_hold_up_no_barrier() {
    const STAY: usize = 100;
    let Some(gpu) = Gpu::new() else { return };
    let len = TASKS * BLOCK;
    let sample = Sample { entry: "early_exit", block: BLOCK, len, n: STAY as u32, dynamic: 0 };
    sample.check(&gpu, |x| {
        let mut out = vec![0; x.len()];
        for (out, x) in out.chunks_mut(BLOCK as usize).zip(x.chunks(BLOCK as usize)) {
            for thread in 0..STAY {
                out[thread] = steps(x[(thread + 1) % STAY]);
            }
        }
        out
    });
}

#[test]
fn dynamic_shared_memory_is_where_it_was_and_as_large() {
    let Some(gpu) = Gpu::new() else { return };
    // Beyond what a block gets without asking, too.
    for dynamic in [4 * BLOCK, 64 << 10] {
        let len = TASKS * BLOCK;
        let sample = Sample { entry: "reversed", block: BLOCK, len, n: 0, dynamic };
        sample.check(&gpu, |x| {
            let reversed = x.chunks(BLOCK as usize).flat_map(|x| x.iter().rev());
            reversed.map(|&x| steps(x).wrapping_add(dynamic)).collect()
        });
    }
}

#[test]
fn atomic_additions_are_made_once() {
    let Some(gpu) = Gpu::new() else { return };
    let n = TASKS * BLOCK - 5;
    let sample = Sample { entry: "histogram", block: BLOCK, len: 256, n, dynamic: 0 };
    sample.check(&gpu, |x| {
        let mut bins = vec![0; 256];
        x[..n as usize].iter().for_each(|&x| bins[(steps(x) >> 24) as usize] += 1);
        bins
    });
}

#[test]
fn a_kernel_that_is_refused_runs_plain_in_the_order_of_its_stream() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let kernel = foreign(&scheduler, "numbered");
    assert!(!kernel.is_preemptible(), "{}", kernel.verdict());
    let stream = scheduler.stream(0);
    let len = TASKS * BLOCK;
    let sample = Sample { entry: "numbered", block: BLOCK, len, n: len, dynamic: 0 };
    let x = input(len);
    let mut buffer = scheduler.buffer(&x).expect("memory");
    let mut out = scheduler.zeroed(len as usize).expect("memory");
    // Whatever the call asks for; and twice, the second time on what the first one wrote.
    for preemption in [Preemption::Preemptible, Preemption::Auto] {
        let call = sample.call(kernel, &buffer, &mut out).preemption(preemption);
        let report = stream.launch(call).and_then(|handle| handle.wait()).expect("runs");
        assert!(report.plain && report.tasks == TASKS, "{report:?}");
        stream.copy_buffer(&out, &mut buffer).and_then(|copy| copy.wait()).expect("copied");
    }
    let found = download(&stream, &out);
    assert!(x.iter().zip(&found).all(|(&x, &found)| found == steps(steps(x))));
    let error = scheduler.verify(sample.call(kernel, &buffer, &mut out)).expect_err("one form");
    assert!(error.to_string().contains("verdict"), "{error}");
}

#[test]
fn programs_have_both_kinds_of_kernels() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let (stream, urgent) = (scheduler.stream(0), scheduler.stream(1));
    let len = TASKS * BLOCK;
    let sample = |entry| Sample { entry, block: BLOCK, len, n: len, dynamic: 0 };
    let [accepted, refused] = ["elementwise", "numbered"].map(|entry| foreign(&scheduler, entry));
    let x = input(len);
    let buffer = scheduler.buffer(&x).expect("memory");
    for preemption in [Preemption::Preemptible, Preemption::Plain, Preemption::Auto] {
        let mut outs = [0; 4].map(|_| scheduler.zeroed::<u32>(len as usize).expect("memory"));
        let [first, second, third, last] = &mut outs;
        let program = stream.program("both", |program| {
            program.preemption(preemption);
            program.launch(sample("elementwise").call(accepted, &buffer, first))?;
            // Behind each other, where a chain of cohorts is one call of the driver.
            program.launch(sample("elementwise").call(accepted, first, second))?;
            program.launch(sample("elementwise").call(accepted, second, third))?;
            program.launch(sample("numbered").call(refused, third, last)).map(drop)
        });
        let program = program.expect("recorded");
        for _ in 0..3 {
            let handle = program.launch().expect("accepted");
            tick(&scheduler, &urgent);
            let report = handle.wait().expect("runs");
            assert_eq!(report.tasks, 4 * TASKS, "{preemption:?}");
        }
        let found = download(&stream, last);
        let expected = |&x: &u32| steps(steps(steps(steps(x))));
        assert!(x.iter().step_by(97).map(expected).eq(found.iter().copied().step_by(97)));
    }
}

#[test]
fn entries_share_the_variables_of_their_module() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let stream = scheduler.stream(0);
    let mut out = scheduler.zeroed::<u32>(1).expect("memory");
    // The second one is asked for later.
    // SAFETY: it has no parameters.
    let call = unsafe { foreign(&scheduler, "count").call() }.block(1).grid(1000);
    stream.launch(call).and_then(|handle| handle.wait()).expect("runs");
    // SAFETY: it writes one element.
    let call = unsafe { foreign(&scheduler, "counted").call() }.write(&mut out).block(1).grid(1);
    stream.launch(call).and_then(|handle| handle.wait()).expect("runs");
    assert_eq!(download(&stream, &out), [1000]);
}

#[test]
fn calls_that_do_not_fit_the_text_are_refused() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let stream = scheduler.stream(0);
    let [x, mut out] = [0, 1].map(|_| scheduler.zeroed::<u32>(1 << 20).expect("memory"));
    let refused = |call: Call<'static>| stream.launch(call).expect_err("it does not fit");
    let sums = foreign(&scheduler, "block_sums");
    // SAFETY: nothing runs.
    let error = refused(unsafe { sums.call() }.read(&x).write(&mut out).grid(1));
    let Error::Configuration(ConfigurationError::ArgumentCount { given: 2, takes: 4, .. }) = error
    else {
        panic!("{error:?}")
    };
    // SAFETY: as above.
    let call = unsafe { sums.call() }.read(&x).write(&mut out).value(0u64).value(0u32);
    let error = refused(call.clone().grid(1));
    let Error::Configuration(ConfigurationError::ArgumentBytes { position: 2, takes: 4, .. }) =
        error
    else {
        panic!("{error:?}")
    };
    let error = refused(call.block(64).grid(1));
    assert!(
        matches!(error, Error::Configuration(ConfigurationError::OtherBlock { .. })),
        "{error:?}"
    );
    let rows = foreign(&scheduler, "rows");
    for (kernel, is_refused) in [(rows, true), (rows.plain(), false)] {
        // SAFETY: each of the 64 threads writes its element.
        let call = unsafe { kernel.call() }.read(&x).write(&mut out).value(2u32).value(0u32);
        let launched = stream.launch(call.block((16, 4)).grid(1));
        match launched {
            Err(Error::Configuration(ConfigurationError::BlockRows { .. })) => assert!(is_refused),
            launched => {
                let report = launched.and_then(|handle| handle.wait()).expect("runs");
                assert!(!is_refused && report.plain, "{report:?}");
            }
        }
    }
    let reversed = foreign(&scheduler, "reversed");
    let limit = gpu.device.properties().shared_per_block;
    for (kernel, is_refused) in [(reversed, true), (reversed.plain(), false)] {
        // SAFETY: each of the 32 threads writes its element.
        let call = unsafe { kernel.call() }.read(&x).write(&mut out).value(0u32).value(0u32);
        let launched = stream.launch(call.dynamic_shared(limit).block(32).grid(1));
        match launched {
            Err(Error::Configuration(ConfigurationError::SharedOfEntry { added, .. })) => {
                assert!(is_refused && added > 0);
            }
            launched => {
                launched.and_then(|handle| handle.wait()).expect("runs");
                assert!(!is_refused);
            }
        }
    }
    // SAFETY: as above.
    let call = unsafe { sums.call() }.write(&mut out).write(&mut out).value(0u32).value(0u32);
    let error = refused(call.grid(1));
    assert!(matches!(error, Error::Argument(_)), "{error:?}");
}

/// Named before it gives up, after some seconds; the output says after how long.
#[test]
fn a_block_that_waits_for_what_no_block_writes_is_named_while_it_waits() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let kernel = foreign(&scheduler, "waits");
    assert!(kernel.is_preemptible(), "{}", kernel.verdict());
    let stream = scheduler.stream(0);
    let flag = scheduler.zeroed::<u32>(1).expect("memory");
    // SAFETY: it reads one element.
    let call = unsafe { kernel.call() }.read(&flag);
    let start = Instant::now();
    let handle = stream.launch(call.block(32).grid(1)).expect("accepted");
    let named = loop {
        let overdue = scheduler.stats().overdue;
        if !overdue.is_empty() || handle.is_done() {
            break overdue;
        }
        std::thread::yield_now();
    };
    println!("named after {:?}", start.elapsed());
    let of: Vec<_> = named.iter().map(|of| (of.kernel, of.stream, of.was_told)).collect();
    assert_eq!(of, [("waits", stream.id(), false)]);
    handle.wait().expect("runs");
    assert!(scheduler.stats().overdue.is_empty());
}

#[test]
fn both_forms_are_compared() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let kernel = foreign(&scheduler, "early_exit");
    let len = TASKS * BLOCK;
    let sample = Sample { entry: "early_exit", block: BLOCK, len, n: 100, dynamic: 0 };
    let x = scheduler.buffer(&input(len)).expect("memory");
    let mut out = scheduler.zeroed(len as usize).expect("memory");
    let found = scheduler.verify(sample.call(kernel, &x, &mut out)).expect("runs");
    assert!(found.is_equal() && found.unstable.is_none() && found.yields > 0, "{found:?}");
}

/// Long block-tasks, of a millisecond or more: none ends before an urgent launch has come.
const LONG_TASKS: u32 = 4_000;
/// Block-tasks that each kernel has to drop, and launches in which they are.
const REQUEUES: u64 = 100;
const LONG_LAUNCHES: u32 = 60;

/// Interrupts long block-tasks of a sample until enough of them were dropped, and compares all results with `expected`, of the
/// input and what an element of the output was.
fn is_dropped_and_right(
    gpu: &Gpu,
    (entry, rounds): (&str, u32),
    is_expected: impl Fn(&Droppable) -> bool,
    expected: impl Fn(&[u32]) -> Vec<u32>,
) {
    let options = Options::default().yields(true);
    let builder = gpu.builder().ptx_with("long", SAMPLES, options);
    let scheduler = builder.build().expect("a scheduler");
    let kernel = scheduler.foreign("long", entry).expect("it is loaded");
    let droppable = kernel.droppable().expect("it was asked");
    assert!(is_expected(droppable) && kernel.yield_points() > 0, "{entry}: {droppable:?}");
    let (batch, urgent) = (scheduler.stream(0), scheduler.stream(1));
    let x = input(LONG_TASKS * BLOCK);
    let expected = expected(&x);
    let x = scheduler.buffer(&x).expect("memory");
    let requeued = || scheduler.stats().stops.requeued;
    for preemption in [Preemption::Plain, Preemption::Preemptible] {
        for launch in 0..LONG_LAUNCHES {
            if launch > 0 && (preemption == Preemption::Plain || requeued() >= REQUEUES) {
                break;
            }
            let mut out = scheduler.zeroed((LONG_TASKS * BLOCK) as usize).expect("memory");
            // SAFETY: both buffers have an element for each thread.
            let call = unsafe { kernel.call() }.read(&x).write(&mut out);
            let call = call.value(LONG_TASKS * BLOCK).value(rounds).block(BLOCK).grid(LONG_TASKS);
            let handle = batch.launch(call.preemption(preemption)).expect("accepted");
            for _ in 0..4 * u32::from(preemption == Preemption::Preemptible) {
                std::thread::sleep(Duration::from_micros(500));
                tick(&scheduler, &urgent);
            }
            let report = handle.wait().expect("runs");
            assert_eq!(report.tasks, LONG_TASKS);
            let found = download(&batch, &out);
            let wrong = found.iter().zip(&expected).position(|(one, other)| one != other);
            assert_eq!(wrong, None, "{entry}, {preemption:?}: {report:?}");
        }
    }
    println!("{entry}: {:?}", scheduler.stats().stops);
    assert!(requeued() >= REQUEUES, "{entry}: {} block-tasks were dropped", requeued());
}

/// So many steps of each value.
fn stepped(x: &[u32], rounds: u32) -> Vec<u32> {
    let (a, c) = steps_of(rounds);
    x.iter().map(|&x| a.wrapping_mul(x).wrapping_add(c)).collect()
}

#[test]
fn threads_without_barriers_drop_long_tasks_in_their_loops() {
    const LONG: u32 = 40_000;
    let Some(gpu) = Gpu::new() else { return };
    let is_strict = |of: &Droppable| *of == Droppable::Strict;
    is_dropped_and_right(&gpu, ("elementwise", LONG), is_strict, |x| stepped(x, LONG));
    is_dropped_and_right(&gpu, ("written_often", LONG), is_strict, |x| stepped(x, LONG));
}

#[test]
fn blocks_drop_long_tasks_at_their_barriers() {
    const LONG: u32 = 20_000;
    let Some(gpu) = Gpu::new() else { return };
    let exchanged = |x: &[u32]| {
        let mut x = x.to_vec();
        x.chunks_mut(BLOCK as usize).for_each(|x| x.rotate_left((LONG % BLOCK) as usize));
        stepped(&x, LONG)
    };
    let is_strict = |of: &Droppable| *of == Droppable::Strict;
    is_dropped_and_right(&gpu, ("exchanged", LONG), is_strict, exchanged);
    // Each result is added once, though its block-task starts several times.
    let is_relaxed = |of: &Droppable| *of == Droppable::Relaxed;
    is_dropped_and_right(&gpu, ("exchanged_and_added", LONG), is_relaxed, exchanged);
}

#[test]
fn blocks_drop_long_tasks_ahead_of_their_barriers() {
    const LONG: u32 = 40_000;
    let Some(gpu) = Gpu::new() else { return };
    let options = Options::default().yields(true);
    let scheduler = gpu.builder().ptx_with("long", SAMPLES, options).build().expect("a scheduler");
    let kernel = scheduler.foreign("long", "block_sums").expect("it is loaded");
    let (batch, urgent) = (scheduler.stream(0), scheduler.stream(1));
    let x = input(LONG_TASKS * BLOCK);
    let expected: Vec<u32> = stepped(&x, LONG)
        .chunks(BLOCK as usize)
        .map(|block| block.iter().fold(0, |sum: u32, &x| sum.wrapping_add(x)))
        .collect();
    let x = scheduler.buffer(&x).expect("memory");
    for _ in 0..LONG_LAUNCHES {
        if scheduler.stats().stops.requeued >= REQUEUES {
            break;
        }
        let mut out = scheduler.zeroed(LONG_TASKS as usize).expect("memory");
        // SAFETY: `x` has an element for each thread, and `out` for each block-task.
        let call = unsafe { kernel.call() }.read(&x).write(&mut out).value(0u32).value(LONG);
        let handle = batch.launch(call.grid(LONG_TASKS)).expect("accepted");
        for _ in 0..4 {
            std::thread::sleep(Duration::from_micros(500));
            tick(&scheduler, &urgent);
        }
        handle.wait().expect("runs");
        assert_eq!(download(&batch, &out), expected);
    }
    assert!(scheduler.stats().stops.requeued >= REQUEUES, "{:?}", scheduler.stats().stops);
}

#[test]
fn kernels_that_may_not_be_dropped_run_on() {
    let Some(gpu) = Gpu::new() else { return };
    let options = Options::default().yields(true);
    let scheduler = gpu.builder().ptx_with("long", SAMPLES, options).build().expect("a scheduler");
    let kernel = scheduler.foreign("long", "histogram").expect("it is loaded");
    assert!(matches!(kernel.droppable(), Some(Droppable::Never(_))), "{:?}", kernel.droppable());
    let (batch, urgent) = (scheduler.stream(0), scheduler.stream(1));
    let x = scheduler.buffer(&input(LONG_TASKS * BLOCK)).expect("memory");
    let mut bins = scheduler.zeroed(256).expect("memory");
    // SAFETY: `x` has an element for each thread, and there are 256 bins.
    let call = unsafe { kernel.call() }.read(&x).write(&mut bins);
    let call = call.value(LONG_TASKS * BLOCK).value(ROUNDS).block(BLOCK).grid(LONG_TASKS);
    let handle = batch.launch(call).expect("accepted");
    tick(&scheduler, &urgent);
    handle.wait().expect("runs");
    assert_eq!(download(&batch, &bins).iter().sum::<u32>(), LONG_TASKS * BLOCK);
    // By addresses, which may be those of one buffer for what the launch knows.
    let kernel = scheduler.foreign("long", "elementwise").expect("it is loaded");
    let out = scheduler.zeroed::<u32>((LONG_TASKS * BLOCK) as usize).expect("memory");
    // SAFETY: as above, and both live until the launch is done.
    let call = unsafe { kernel.call() }.value(x.address()).value(out.address());
    let call = call.value(LONG_TASKS * BLOCK).value(ROUNDS).block(BLOCK).grid(LONG_TASKS);
    let handle = batch.launch(call).expect("accepted");
    tick(&scheduler, &urgent);
    handle.wait().expect("runs");
    assert!(download(&batch, &out) == stepped(&input(LONG_TASKS * BLOCK), ROUNDS));
    assert_eq!(scheduler.stats().stops.requeued, 0);
}
