//! An application on `cudarc`: its context, slices, views, streams, events and modules, beside kernels that are
//! interrupted. Without a GPU each test prints SKIP and why.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DriverError, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::{self, Ptx};
use preempt::error::{ArgumentError, DeviceError, LaunchError};
use preempt::raw::Lent;
use preempt::{
    Call, CpuLayout, Device, Error, ForeignKernel, Handle, LaunchReport, Scheduler,
    SchedulerBuilder, Stream,
};
use preempt_rust_cuda_kernels as kernels;
use preempt_test_kit::storm::Chaos;
use preempt_test_kit::{KERNELS, RUST_CUDA_KERNELS};

const N: usize = 1 << 22;
const BLOCK: u32 = 256;
const GRID: u32 = (N as u32).div_ceil(BLOCK);

const SAMPLES: &str = include_str!("../foreign/samples.ptx");

/// The GPU and the application's context and stream, which one test at a time has.
struct Gpu {
    context: Arc<CudaContext>,
    theirs: Arc<CudaStream>,
    _alone: MutexGuard<'static, ()>,
}

impl Gpu {
    fn new() -> Option<Gpu> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        // First: without a driver, cudarc panics.
        match Device::count() {
            Ok(0) => println!("SKIP: there is no GPU"),
            Err(error) => println!("SKIP: {error}"),
            Ok(_) => {
                let context = CudaContext::new(0).expect("a context");
                let theirs = context.new_stream().expect("a stream");
                return Some(Gpu { context, theirs, _alone: alone });
            }
        }
        None
    }

    fn device(&self) -> Device {
        Device::from_cudarc(&self.context).expect("a device")
    }

    fn builder(&self) -> SchedulerBuilder {
        Scheduler::builder().device(self.device())
    }

    fn scheduler(&self) -> Scheduler {
        let builder = self.builder().kernels(RUST_CUDA_KERNELS).kernels(KERNELS);
        builder.ptx("samples", SAMPLES).build().expect("a scheduler")
    }

    fn slice(&self, value: f32) -> CudaSlice<f32> {
        self.theirs.clone_htod(&vec![value; N]).expect("memory")
    }

    fn host(&self, slice: &CudaSlice<f32>) -> Vec<f32> {
        self.theirs.clone_dtoh(slice).expect("copied")
    }

    /// `c = a + b` for launches of cudarc's, loaded already.
    fn add(&self) -> CudaFunction {
        let ptx = RUST_CUDA_KERNELS.ptx().expect("the build found a device toolchain");
        let module = self.context.load_module(Ptx::from_src(ptx)).expect("loaded");
        let add = module.load_function("add").expect("it is there");
        let one = self.slice(0.0);
        let address = address_of(&one, &self.theirs);
        cudarc_add(&add, &self.theirs, [address; 3]).expect("launched");
        self.theirs.synchronize().expect("done");
        add
    }
}

fn address_of(slice: &CudaSlice<f32>, stream: &CudaStream) -> u64 {
    use cudarc::driver::DevicePtr;
    slice.device_ptr(stream).0
}

fn all(values: &[f32], expected: f32) -> bool {
    values.len() == N && values.iter().all(|&value| value == expected)
}

/// `c = a + b` by a launch of preempt.
macro_rules! add {
    ($a:expr, $b:expr, $c:expr) => {
        // SAFETY: all of one length.
        unsafe { kernels::add($a, $b, $c) }.grid(GRID).block(BLOCK)
    };
}

/// `c = a + b` by a launch of cudarc's, of memory that it has no slices for.
fn cudarc_add(add: &CudaFunction, stream: &CudaStream, at: [u64; 3]) -> Result<(), DriverError> {
    let config =
        LaunchConfig { grid_dim: (GRID, 1, 1), block_dim: (BLOCK, 1, 1), shared_mem_bytes: 0 };
    let [a, b, c] = at;
    let mut launch = stream.launch_builder(add);
    launch.arg(&a).arg(&N).arg(&b).arg(&N).arg(&c);
    // SAFETY: what the plain entry takes.
    unsafe { launch.launch(config) }.map(drop)
}

/// `out = x * 1664525 + 1013904223`, by a kernel of another compiler.
fn step<'a>(kernel: ForeignKernel, x: &Lent<'a, u32>, out: &mut Lent<'a, u32>, n: u32) -> Call<'a> {
    // SAFETY: `elementwise(x, out, n, rounds)` reads and writes `n` elements.
    let call = unsafe { kernel.call() }.read(x).write(out).value(n).value(1u32);
    call.block(BLOCK).threads(n)
}

fn stepped(x: u32) -> u32 {
    x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)
}

/// A kernel that runs for some tenths of a second, and shows whether a block-task ran twice.
struct Long {
    handle: Handle<LaunchReport>,
    counts: preempt::Buffer<u32>,
}

impl Long {
    /// Fills the device, and can be interrupted at any time.
    fn launch(scheduler: &Scheduler, stream: &Stream) -> Long {
        Long::of(2_000_000, 1_000_000, scheduler, stream)
    }

    /// Leaves room on each SM, because work of cudarc's takes no SMs from launches.
    fn with_room(scheduler: &Scheduler, stream: &Stream) -> Long {
        Long::of(100, 500_000_000, scheduler, stream)
    }

    fn of(tasks: usize, ticks: u64, scheduler: &Scheduler, stream: &Stream) -> Long {
        let mut counts = scheduler.zeroed(tasks).expect("memory");
        let mut writes = scheduler.zeroed(tasks * 32).expect("memory");
        let call = preempt_test_kernels::paced_1d(ticks, &mut counts, &mut writes);
        let handle = stream.launch(call.grid(tasks as u32).block(32)).expect("accepted");
        Long { handle, counts }
    }

    fn is_running(&self) -> bool {
        !self.handle.is_done()
    }

    /// Checks that its block-tasks ran once each.
    fn check(self, stream: &Stream) {
        let report = self.handle.wait().expect("runs");
        println!("{report:?}");
        let counts = stream.download(&self.counts).and_then(|copy| copy.wait()).expect("copied");
        assert!(counts.iter().all(|&count| count == 1));
    }
}

#[test]
fn lent_slices_are_ordered_and_right_in_a_storm() {
    let Some(gpu) = Gpu::new() else { return };
    let builder = gpu.builder().kernels(RUST_CUDA_KERNELS).policy(Chaos::new(5));
    let scheduler = builder.build().expect("a scheduler");
    let (a, b) = (gpu.slice(1.0), scheduler.buffer(&vec![0.5f32; N]).expect("memory"));
    let mut sums = [gpu.slice(0.0), gpu.slice(f32::NAN)];
    let streams = [scheduler.stream(0), scheduler.stream(1)];
    const ROUNDS: usize = 200;
    let mut yields = 0;
    let a = scheduler.lend(&a).expect("lent");
    let [first, second] = &mut sums;
    let [mut first, mut second] =
        [first, second].map(|slice| scheduler.lend_mut(slice).expect("lent"));
    scheduler.scope(|scope| {
        let mut handles = Vec::new();
        // Back and forth, each time on another stream: in order only if the scheduler sees that both are the same
        // memory.
        for round in 0..ROUNDS {
            let calls = [add!(&first, &a, &mut second), add!(&second, &b, &mut first)];
            for (turn, call) in calls.into_iter().enumerate() {
                let stream = &streams[(round + turn) % 2];
                handles.push(scope.launch(stream, call).expect("accepted"));
            }
            // Another launch, which makes them share the device.
            if handles.len() > 50 {
                let ended = handles.drain(..).map(|handle| handle.wait().expect("runs").yields);
                yields += ended.sum::<u32>();
            }
        }
    });
    println!("{yields} yields");
    assert!(yields > 0, "nothing was interrupted");
    let expected = 1.5 * ROUNDS as f32;
    assert!(all(&gpu.host(&sums[0]), expected) && all(&gpu.host(&sums[1]), expected - 0.5));
}

#[test]
fn views_are_lent_to_kernels_of_any_compiler() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let stream = scheduler.stream(0);
    let half = N / 2;
    let (a, mut c) = (gpu.slice(1.0), gpu.slice(f32::NAN));
    {
        let whole = a.as_view();
        let (mut low, mut high) = c.split_at_mut(half);
        let lent = scheduler.lend(&whole.slice(..half)).map(|_| ());
        lent.expect("a view of a view");
        let from = scheduler.lend(&whole).expect("lent");
        let mut low = scheduler.lend_mut(&mut low).expect("lent");
        let view = a.slice(half..);
        let rest = scheduler.lend(&view).expect("lent");
        let mut high = scheduler.lend_mut(&mut high).expect("lent");
        scheduler.scope(|scope| {
            // Each reads as many elements as it has threads.
            // SAFETY: the halves have an element for each thread.
            let call = unsafe { kernels::add(&rest, &rest, &mut low) }.grid(GRID / 2).block(BLOCK);
            drop(scope.launch(&stream, call).expect("accepted"));
            // SAFETY: as above.
            let call = unsafe { kernels::add(&rest, &low, &mut high) }.grid(GRID / 2).block(BLOCK);
            drop(scope.launch(&stream, call).expect("accepted: they do not overlap"));
            // SAFETY: never runs: it would write what it reads.
            let twice = unsafe { kernels::add(&from, &high, &mut high_again(&high)) };
            let error = scope.launch(&stream, twice.grid(GRID).block(BLOCK)).map(drop);
            assert!(
                matches!(error, Err(Error::Argument(ArgumentError::BufferConflict { .. }))),
                "{error:?}"
            );
        });
    }
    let halves = gpu.host(&c);
    assert!(halves[..half].iter().all(|&c| c == 2.0) && halves[half..].iter().all(|&c| c == 3.0));

    let kernel = scheduler.foreign("samples", "elementwise").expect("loaded");
    let input: Vec<u32> = (0..1000).collect();
    let mut x = gpu.theirs.clone_htod(&input).expect("memory");
    let mut y = gpu.theirs.alloc_zeros::<u32>(1000).expect("memory");
    let (from, mut to) =
        (scheduler.lend_mut(&mut x).expect("lent"), scheduler.lend_mut(&mut y).expect("lent"));
    let call = step(kernel, &from, &mut to, 1000);
    let report = scheduler.scope(|scope| scope.launch(&stream, call)?.wait()).expect("runs");
    assert_eq!(report.tasks, 4);
    let y = gpu.theirs.clone_dtoh(&y).expect("copied");
    assert!(y.iter().zip(&input).all(|(&y, &x)| y == stepped(x)));
}

/// The memory of a lent view once more, as a mistake.
fn high_again(lent: &Lent<'_, f32>) -> Lent<'static, f32> {
    use preempt::ReadArg;
    let argument = ReadArg::read_arg(lent);
    // SAFETY: no launch with it is accepted.
    unsafe { Lent::new(argument.address, argument.len) }
}

/// What writes or reads a slice may be in any stream, and milliseconds away.
#[test]
fn launches_come_after_what_cudarc_has_put_into_streams() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let stream = scheduler.stream(0);
    let other = gpu.context.new_stream().expect("a stream");
    let mut large = gpu.theirs.alloc_zeros::<f32>(1 << 31).expect("memory");
    let twos = gpu.slice(2.0);
    gpu.context.synchronize().expect("done");
    for is_tracked in [true, false] {
        if !is_tracked {
            // SAFETY: slices of before are used no more, but for `large` and `twos`, in the streams below.
            unsafe { gpu.context.disable_event_tracking() };
        }
        for is_adopted in [false, true] {
            let mut x = gpu.theirs.alloc_zeros::<f32>(N).expect("memory");
            gpu.theirs.synchronize().expect("done");
            // Without events, in the slice's own stream alone.
            let busy = if is_tracked { &other } else { &gpu.theirs };
            busy.memset_zeros(&mut large).expect("started");
            busy.memcpy_dtod(&twos, &mut x).expect("started");
            // Allocated behind that, maybe in memory that it still uses.
            // SAFETY: written before it is read.
            let mut y = unsafe { gpu.theirs.alloc::<f32>(N) }.expect("memory");
            let sums = if is_adopted {
                let x = scheduler.adopt_cudarc(x).expect("adopted");
                let mut y = scheduler.adopt_cudarc(y).expect("adopted");
                drop(stream.launch(add!(&x, &x, &mut y)).expect("accepted"));
                stream.to_cudarc(y, &gpu.theirs).expect("given back")
            } else {
                let from = scheduler.lend(&x).expect("lent");
                let mut to = scheduler.lend_mut(&mut y).expect("lent");
                scheduler.scope(|scope| {
                    drop(scope.launch(&stream, add!(&from, &from, &mut to)).expect("accepted"));
                });
                y
            };
            // Ours is over, so nothing has to wait for it.
            let sums = other.clone_dtoh(&sums).expect("copied");
            other.synchronize().expect("done");
            assert!(
                all(&sums, 4.0),
                "tracked: {is_tracked}, adopted: {is_adopted}, {}",
                sums[N - 1]
            );
        }
    }
}

/// What reads a slice in a stream is over before a launch writes it.
#[test]
fn launches_that_write_come_after_what_reads() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let stream = scheduler.stream(0);
    let reader = gpu.context.new_stream().expect("a stream");
    let mut large = gpu.theirs.alloc_zeros::<f32>(1 << 31).expect("memory");
    let (mut x, one) = (gpu.slice(1.0), gpu.slice(1.0));
    let mut copy = gpu.theirs.alloc_zeros::<f32>(N).expect("memory");
    gpu.context.synchronize().expect("done");
    reader.memset_zeros(&mut large).expect("started");
    reader.memcpy_dtod(&x, &mut copy).expect("started");
    {
        let one = scheduler.lend(&one).expect("lent");
        let mut x = scheduler.lend_mut(&mut x).expect("lent");
        scheduler.scope(|scope| {
            drop(scope.launch(&stream, add!(&one, &one, &mut x)).expect("accepted"));
        });
    }
    assert!(all(&gpu.host(&copy), 1.0) && all(&gpu.host(&x), 2.0));
}

#[test]
fn slices_are_adopted_and_given_back_beside_a_running_kernel() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let (busy, stream) = (scheduler.stream(0), scheduler.stream(1));
    let theirs = [gpu.slice(1.0), gpu.slice(2.0), gpu.slice(3.0)];
    let address = address_of(&theirs[0], &gpu.theirs);
    gpu.theirs.synchronize().expect("done");
    let long = Long::launch(&scheduler, &busy);

    let [a, b, c] = theirs.map(|slice| scheduler.adopt_cudarc(slice).expect("this device's"));
    let mut sum = scheduler.zeroed::<f32>(N).expect("memory");
    let handle = stream.launch(add!(&a, &b, &mut sum)).expect("accepted");
    // In use, and the last reference is gone.
    drop(b);
    let a = stream.to_cudarc(a, &gpu.theirs).expect("given back");
    assert_eq!(address_of(&a, &gpu.theirs), address);
    handle.wait().expect("runs");
    let sum = stream.to_cudarc(sum, &gpu.theirs).expect("ours can be had, too");
    drop(c);
    // Back and forth, and lent, as memory that was always the application's.
    let own = scheduler.zeroed::<f32>(N).expect("memory");
    let mut round = stream.to_cudarc(own, &gpu.theirs).expect("given away");
    {
        let (a, mut round) =
            (scheduler.lend(&a).expect("lent"), scheduler.lend_mut(&mut round).expect("lent"));
        scheduler.scope(|scope| {
            drop(scope.launch(&stream, add!(&a, &a, &mut round)).expect("accepted"));
        });
    }
    let round = scheduler.adopt_cudarc(round).expect("taken back");
    assert!(stream.download(&round).and_then(|copy| copy.wait()).expect("copied") == vec![2.0; N]);
    assert!(long.is_running(), "something waited for the kernel");
    long.check(&busy);
    assert!(all(&gpu.host(&a), 1.0) && all(&gpu.host(&sum), 3.0));
}

#[test]
fn slices_without_elements_go_back_and_forth() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let stream = scheduler.stream(0);
    let empty = scheduler.zeroed::<f32>(0).expect("nothing");
    let mut empty = stream.to_cudarc(empty, &gpu.theirs).expect("given away");
    assert!(empty.is_empty());
    assert!(format!("{:?}", scheduler.lend(&empty).expect("lent")).ends_with("[0]"));
    scheduler.lend_mut(&mut empty).map(drop).expect("lent");
    let empty = scheduler.adopt_cudarc(empty).expect("taken back");
    assert!(empty.is_empty());
}

#[test]
fn streams_and_events_are_waited_for_and_their_work_goes_between_launches() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let (busy, stream) = (scheduler.stream(0), scheduler.stream(1));
    let (add, theirs) = (gpu.add(), gpu.theirs.clone());
    let one = scheduler.adopt_cudarc(gpu.slice(1.0)).expect("adopted");
    let mut x = scheduler.adopt_cudarc(gpu.slice(0.0)).expect("adopted");
    let mut y = scheduler.adopt_cudarc(gpu.slice(f32::NAN)).expect("adopted");
    let (one_at, x_at, y_at) = (one.address(), x.address(), y.address());
    let event = || Arc::new(gpu.context.new_event(None).expect("an event"));
    let (ours, event) = (event(), event());
    let long = Long::with_room(&scheduler, &busy);
    const STEPS: usize = 100;

    // The application's work, then ours.
    for _ in 0..STEPS {
        cudarc_add(&add, &theirs, [x_at, one_at, x_at]).expect("launched");
    }
    let waited = stream.wait_for_cudarc(&theirs).expect("accepted");
    drop(stream.launch(add!(&x, &one, &mut y)).expect("accepted"));
    waited.wait().expect("done");

    // Ours, the application's, ours.
    drop(stream.launch(add!(&y, &one, &mut x)).expect("accepted"));
    let in_between = add.clone();
    let work = move |stream: &Arc<CudaStream>| {
        (0..STEPS).try_for_each(|_| cudarc_add(&in_between, stream, [x_at, one_at, x_at]))
    };
    drop(stream.run_cudarc(&theirs, work).expect("accepted"));
    drop(stream.launch(add!(&x, &one, &mut y)).expect("accepted"));

    // An event of ours that the application waits for, and an event of the application.
    let recorded = ours.clone();
    let record = move |stream: &Arc<CudaStream>| recorded.record(stream);
    stream.run_cudarc(&theirs, record).expect("accepted").wait().expect("done");
    ours.synchronize().expect("recorded");
    for _ in 0..STEPS {
        cudarc_add(&add, &theirs, [y_at, one_at, y_at]).expect("launched");
    }
    event.record(&theirs).expect("recorded");
    drop(stream.wait_for_cudarc_event(event).expect("accepted"));
    let last = stream.launch(add!(&y, &one, &mut x)).expect("accepted");
    last.wait().expect("runs");
    assert!(long.is_running(), "something waited for the kernel");
    long.check(&busy);
    let x = stream.to_cudarc(x, &theirs).expect("given back");
    assert!(all(&gpu.host(&x), 3.0 * STEPS as f32 + 4.0), "{:?}", &gpu.host(&x)[..4]);
}

#[test]
fn work_that_fails_or_panics_is_told_and_the_stream_goes_on() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let (stream, theirs) = (scheduler.stream(0), gpu.theirs.clone());
    let add = gpu.add();
    let x = gpu.slice(0.0);
    let at = address_of(&x, &theirs);
    let fails = move |stream: &Arc<CudaStream>| {
        let config =
            LaunchConfig { grid_dim: (1, 1, 1), block_dim: (5000, 1, 1), shared_mem_bytes: 0 };
        let mut launch = stream.launch_builder(&add);
        // All that the kernel takes: the driver reads them before it looks at the block.
        launch.arg(&at).arg(&N).arg(&at).arg(&N).arg(&at);
        // SAFETY: too many threads: the driver refuses it.
        unsafe { launch.launch(config) }.map(drop)
    };
    let failed = stream.run_cudarc(&theirs, fails).expect("accepted");
    let panicked = stream.run_cudarc(&theirs, |_| panic!("as intended")).expect("accepted");
    let ran = Arc::new(AtomicBool::new(false));
    let sets = ran.clone();
    let after = stream.run_cudarc(&theirs, move |_| {
        sets.store(true, SeqCst);
        Ok(())
    });
    for (handle, words) in [(failed, "CUDA_ERROR_INVALID_VALUE"), (panicked, "as intended")] {
        let error = handle.wait().expect_err("it went wrong");
        let is_told = matches!(&error, Error::Launch(LaunchError::KernelFailed { .. }));
        assert!(is_told && error.to_string().contains(words), "{error}");
    }
    after.expect("accepted").wait().expect("runs");
    assert!(ran.load(SeqCst));
    drop((scheduler, stream));
    // The device is free for the next one.
    drop(gpu.scheduler());
}

#[test]
fn what_belongs_to_another_context_is_refused() {
    let Some(gpu) = Gpu::new() else { return };
    let cpu = Device::cpu_with(CpuLayout::sms(1)).expect("a device");
    let cpu = Scheduler::builder().device(cpu).build().expect("a scheduler");
    let mut slice = gpu.slice(1.0);
    let refused = [
        cpu.stream(0).wait_for_cudarc(&gpu.theirs).map(drop),
        cpu.lend(&slice).map(drop),
        cpu.lend_mut(&mut slice).map(drop),
        cpu.adopt_cudarc(slice).map(drop),
    ];
    for error in refused {
        let error = error.expect_err("it has no context");
        assert!(error.to_string().contains("Device::from_cudarc"), "{error}");
    }

    let other = CudaContext::new_non_primary(0, 0).expect("a context");
    let error = Device::from_cudarc(&other).expect_err("it is no primary context");
    assert!(matches!(error, Error::Device(DeviceError::OtherContext { ordinal: 0 })), "{error:?}");
    let stream = other.new_stream().expect("a stream");
    let event = Arc::new(other.new_event(None).expect("an event"));
    let slice = stream.clone_htod(&[1.0f32]).expect("memory");
    gpu.context.bind_to_thread().expect("current");
    let scheduler = gpu.scheduler();
    let ours = scheduler.stream(0);
    let empty = scheduler.zeroed::<f32>(0).expect("nothing");
    let refused = [
        ours.wait_for_cudarc(&stream).map(drop),
        ours.wait_for_cudarc_event(event).map(drop),
        ours.run_cudarc(&stream, |_| Ok(())).map(drop),
        ours.to_cudarc(empty, &stream).map(drop),
        scheduler.lend(&slice).map(drop),
        scheduler.adopt_cudarc(slice).map(drop),
    ];
    for error in refused {
        let is_told = matches!(error, Err(Error::Device(DeviceError::OtherContext { .. })));
        assert!(is_told, "{error:?}");
    }
}

#[test]
fn modules_that_the_application_loaded_are_launched() {
    let Some(gpu) = Gpu::new() else { return };
    let ptx = RUST_CUDA_KERNELS.ptx().expect("the build found a device toolchain");
    let module = gpu.context.load_module(Ptx::from_src(ptx)).expect("loaded");
    let name = RUST_CUDA_KERNELS.name();
    // SAFETY: loaded from this PTX, in this context.
    let builder = unsafe { gpu.builder().cudarc_module(name, module, ptx) };
    let scheduler = builder.build().expect("a scheduler");
    let (a, b, mut c) = (gpu.slice(1.0), gpu.slice(2.0), gpu.slice(f32::NAN));
    let (a, b) = (scheduler.lend(&a).expect("lent"), scheduler.lend(&b).expect("lent"));
    let stream = scheduler.stream(0);
    {
        let mut c = scheduler.lend_mut(&mut c).expect("lent");
        let call = add!(&a, &b, &mut c);
        scheduler.scope(|scope| scope.launch(&stream, call)?.wait()).expect("runs");
    }
    assert!(all(&gpu.host(&c), 3.0));
}

#[test]
fn kernels_that_nvrtc_compiles_enter_as_text() {
    let Some(gpu) = Gpu::new() else { return };
    // SAFETY: loading NVRTC runs its initialisers, as in every program that is linked with it.
    if !unsafe { nvrtc::sys::is_culib_present() } {
        println!("SKIP: NVRTC was not found");
        return;
    }
    const SOURCE: &str = r#"
extern "C" __global__ void scale(const float *x, float *y, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = by * x[i];
}
"#;
    let ptx = nvrtc::compile_ptx(SOURCE).expect("compiled");
    let scheduler = gpu.builder().ptx("mine", ptx.to_src()).build().expect("a scheduler");
    let scale = scheduler.foreign("mine", "scale").expect("loaded");
    assert!(scale.is_preemptible(), "{}", scale.verdict());
    let (x, mut y) = (gpu.slice(1.5), gpu.slice(f32::NAN));
    {
        let (x, mut y) =
            (scheduler.lend(&x).expect("lent"), scheduler.lend_mut(&mut y).expect("lent"));
        // SAFETY: the parameters; both have `N` elements.
        let call = unsafe { scale.call() }.read(&x).write(&mut y).value(2.0f32).value(N as i32);
        let call = call.block(BLOCK).grid(GRID);
        let stream = scheduler.stream(0);
        scheduler.scope(|scope| scope.launch(&stream, call)?.wait()).expect("runs");
    }
    assert!(all(&gpu.host(&y), 3.0));
}

#[test]
fn the_context_outlives_the_applications() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let stream = scheduler.stream(0);
    let a = scheduler.adopt_cudarc(gpu.slice(1.0)).expect("adopted");
    let Gpu { context, theirs, _alone } = gpu;
    drop((context, theirs));
    let mut c = scheduler.zeroed::<f32>(N).expect("memory");
    drop(stream.launch(add!(&a, &a, &mut c)).expect("accepted"));
    let sums = stream.download(&c).and_then(|copy| copy.wait()).expect("copied");
    assert!(all(&sums, 2.0));
}
