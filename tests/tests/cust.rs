//! An application on `cust`: its context, buffers, streams, events and modules, beside kernels that are
//! interrupted. Without a GPU each test prints SKIP and why.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cust::event::{Event, EventFlags};
use cust::function::{BlockSize, GridSize};
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::module::Module;
use cust::stream::{Stream as CustStream, StreamFlags};
use preempt::cust::{Lent, lend};
use preempt::error::{ArgumentError, CodeError, DeviceError, LaunchError};
use preempt::{
    CpuLayout, Device, Error, Handle, KernelFault, LaunchReport, Scheduler, SchedulerBuilder,
    Stream,
};
use preempt_rust_cuda_kernels as kernels;
use preempt_test_kit::storm::Chaos;
use preempt_test_kit::{KERNELS, RUST_CUDA_KERNELS};

const N: usize = 1 << 22;
const BLOCK: u32 = 256;
const GRID: u32 = (N as u32).div_ceil(BLOCK);

/// The GPU and the application's context, which one test at a time has.
struct Gpu {
    context: cust::context::Context,
    _alone: MutexGuard<'static, ()>,
}

impl Gpu {
    fn new() -> Option<Gpu> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        match cust::quick_init() {
            Ok(context) => Some(Gpu { context, _alone: alone }),
            Err(error) => {
                println!("SKIP: {error:?}");
                None
            }
        }
    }

    fn builder(&self) -> SchedulerBuilder {
        let device = Device::from_cust(&self.context).expect("a device");
        Scheduler::builder().device(device)
    }

    fn scheduler(&self) -> Scheduler {
        self.builder().kernels(RUST_CUDA_KERNELS).kernels(KERNELS).build().expect("a scheduler")
    }
}

fn buffer(value: f32) -> DeviceBuffer<f32> {
    DeviceBuffer::from_slice(&vec![value; N]).expect("memory")
}

fn host(buffer: &DeviceBuffer<f32>) -> Vec<f32> {
    buffer.as_host_vec().expect("copied")
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

/// `c = a + b` by a launch of `cust`.
fn cust_add(
    module: &Module,
    stream: &CustStream,
    addresses: [u64; 3],
) -> cust::error::CudaResult<()> {
    let [a, b, c] = addresses.map(cust::memory::DevicePointer::<f32>::from_raw);
    let function = module.get_function("add")?;
    // SAFETY: what the plain entry takes.
    unsafe { cust::launch!(function<<<GRID, BLOCK, 0, stream>>>(a, N, b, N, c)) }
}

fn module() -> Arc<Module> {
    let ptx = RUST_CUDA_KERNELS.ptx().expect("the build found a device toolchain");
    Arc::new(Module::from_ptx(ptx, &[]).expect("loaded"))
}

fn cust_stream() -> Arc<CustStream> {
    Arc::new(CustStream::new(StreamFlags::NON_BLOCKING, None).expect("a stream"))
}

/// Loads the functions that `cust` launches later, beside kernels that run.
fn warm_up(module: &Module, stream: &CustStream) {
    let buffer = buffer(0.0);
    let address = buffer.as_device_ptr().as_raw();
    cust_add(module, stream, [address; 3]).expect("launched");
    stream.synchronize().expect("done");
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

    /// Leaves room on each SM, because work of `cust` takes no SMs from launches.
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
fn lent_buffers_are_ordered_and_right_in_a_storm() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu
        .builder()
        .kernels(RUST_CUDA_KERNELS)
        .policy(Chaos::new(5))
        .build()
        .expect("a scheduler");
    let (a, b) = (buffer(1.0), scheduler.buffer(&vec![0.5f32; N]).expect("memory"));
    let mut sums = [buffer(0.0), buffer(f32::NAN)];
    let streams = [scheduler.stream(0), scheduler.stream(1)];
    const ROUNDS: usize = 200;
    let mut yields = 0;
    scheduler.scope(|scope| {
        let [first, second] = &mut sums;
        let (mut first, mut second) = (lend(first), lend(second));
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
                yields += handles
                    .drain(..)
                    .map(|handle| handle.wait().expect("runs").yields)
                    .sum::<u32>();
            }
        }
    });
    println!("{yields} yields");
    assert!(yields > 0, "nothing was interrupted");
    let expected = 1.5 * ROUNDS as f32;
    assert!(all(&host(&sums[0]), expected) && all(&host(&sums[1]), expected - 0.5));
}

#[test]
fn parts_and_pointers_are_lent_with_a_promise() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let stream = scheduler.stream(0);
    let (a, b) = (buffer(1.0), buffer(2.0));
    let c = buffer(f32::NAN);
    let half = N / 2;
    scheduler.scope(|scope| {
        // SAFETY: the buffers outlive the scope, and no other work uses them meanwhile.
        let (a, mut low, b) = unsafe {
            (
                Lent::slice(a.index(..half)),
                Lent::slice(c.index(..half)),
                Lent::pointer(b.as_device_ptr(), half),
            )
        };
        let call = add!(&a, &b, &mut low).grid(GRID / 2);
        drop(scope.launch(&stream, call).expect("accepted"));
    });
    let halves = host(&c);
    assert!(halves[..half].iter().all(|&c| c == 3.0) && halves[half..].iter().all(|c| c.is_nan()));
    add_halves(&scheduler, &b, &c);
    let halves = host(&c);
    assert!(halves[..half].iter().all(|&c| c == 3.0) && halves[half..].iter().all(|&c| c == 5.0));
}

/// Adds `b` to the first half of `c`, into its second half.
fn add_halves(scheduler: &Scheduler, b: &DeviceBuffer<f32>, c: &DeviceBuffer<f32>) {
    let (half, stream) = (N / 2, scheduler.stream(0));
    scheduler.scope(|scope| {
        // SAFETY: as for the caller; the launch writes its own half.
        let (low, mut high, b) = unsafe {
            (
                Lent::slice(c.index(..half)),
                Lent::slice(c.index(half..)),
                Lent::pointer(b.as_device_ptr(), half),
            )
        };
        let call = add!(&low, &b, &mut high).grid(GRID / 2);
        drop(scope.launch(&stream, call).expect("accepted: they do not overlap"));
    });
}

#[test]
fn memory_that_is_not_there_is_refused() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let stream = scheduler.stream(0);
    let (a, mut c) = (buffer(1.0), buffer(0.0));
    let own = scheduler.zeroed::<f32>(N).expect("memory");
    let pointer = |address| cust::memory::DevicePointer::<f32>::from_raw(address);
    let end = a.as_device_ptr().as_raw() + 4 * N as u64;
    let far = [
        pointer(0),
        pointer(12_345),
        pointer(end - 4),
        pointer(u64::MAX - 7),
        pointer(own.address()),
    ];
    for bad in far {
        // SAFETY: never used: the launch is refused.
        let bad = unsafe { Lent::pointer(bad, N) };
        let error =
            scheduler.scope(|scope| scope.launch(&stream, add!(&a, &bad, &mut c)).map(drop));
        let error = error.expect_err("refused");
        assert!(
            matches!(error, Error::Argument(ArgumentError::NotAllocated { name: "add", bytes, .. }) if bytes == 4 * N),
            "{error:?}"
        );
    }
    // SAFETY: as above.
    let (same, mut other) = unsafe { (Lent::slice(*a.as_slice()), Lent::slice(a.index(1..))) };
    let error =
        scheduler.scope(|scope| scope.launch(&stream, add!(&same, &same, &mut other)).map(drop));
    assert!(
        matches!(error, Err(Error::Argument(ArgumentError::BufferConflict { name: "add" }))),
        "{error:?}"
    );
    scheduler.scope(|scope| scope.launch(&stream, add!(&a, &own, &mut c)).map(drop)).expect("good");
    assert!(all(&host(&c), 1.0));
}

#[test]
fn buffers_are_adopted_given_back_and_released_beside_a_running_kernel() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let (busy, stream) = (scheduler.stream(0), scheduler.stream(1));
    let theirs = [buffer(1.0), buffer(2.0), buffer(3.0), buffer(4.0)];
    let address = theirs[0].as_device_ptr();
    let empty = DeviceBuffer::<f32>::from_slice(&[]).expect("nothing");
    let long = Long::launch(&scheduler, &busy);

    let [a, b, c, d] = theirs.map(|buffer| scheduler.adopt(buffer).expect("this device's"));
    let mut sum = scheduler.zeroed::<f32>(N).expect("memory");
    let handle = stream.launch(add!(&a, &b, &mut sum)).expect("accepted");
    // In use, and the last reference is gone.
    drop(b);
    let a = stream.to_cust(a).expect("given back");
    assert_eq!(a.as_device_ptr(), address);
    handle.wait().expect("runs");
    let sum = stream.to_cust(sum).expect("ours can be had, too");
    drop(c);
    scheduler.release(stream.to_cust(d).expect("given back")).expect("freed");
    // Back and forth, and lent, as memory that was always the application's.
    let mut round =
        stream.to_cust(scheduler.zeroed::<f32>(N).expect("memory")).expect("given away");
    scheduler.scope(|scope| {
        drop(scope.launch(&stream, add!(&a, &a, &mut round)).expect("accepted"));
    });
    let round = scheduler.adopt(round).expect("taken back");
    assert!(stream.download(&round).and_then(|copy| copy.wait()).expect("copied") == vec![2.0; N]);
    let empty = scheduler.adopt(empty).expect("nothing is anywhere");
    assert!(empty.is_empty() && stream.to_cust(empty).expect("given back").is_empty());
    assert!(long.is_running(), "something waited for the kernel");
    long.check(&busy);
    assert!(all(&host(&a), 1.0) && all(&host(&sum), 3.0));
}

#[test]
fn streams_and_events_are_waited_for_and_their_work_goes_between_launches() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let (busy, stream) = (scheduler.stream(0), scheduler.stream(1));
    let (module, theirs) = (module(), cust_stream());
    warm_up(&module, &theirs);
    let one = scheduler.adopt(buffer(1.0)).expect("adopted");
    let mut x = scheduler.adopt(buffer(0.0)).expect("adopted");
    let mut y = scheduler.adopt(buffer(f32::NAN)).expect("adopted");
    let (one_at, x_at, y_at) = (one.address(), x.address(), y.address());
    let long = Long::with_room(&scheduler, &busy);
    const STEPS: usize = 100;

    // The application's work, then ours.
    for _ in 0..STEPS {
        cust_add(&module, &theirs, [x_at, one_at, x_at]).expect("launched");
    }
    let waited = stream.wait_for_cust(&theirs).expect("accepted");
    drop(stream.launch(add!(&x, &one, &mut y)).expect("accepted"));
    waited.wait().expect("done");

    // Ours, the application's, ours.
    drop(stream.launch(add!(&y, &one, &mut x)).expect("accepted"));
    let in_between = module.clone();
    let work = move |stream: &CustStream| {
        (0..STEPS).try_for_each(|_| cust_add(&in_between, stream, [x_at, one_at, x_at]))
    };
    drop(stream.run_cust(&theirs, work).expect("accepted"));
    drop(stream.launch(add!(&x, &one, &mut y)).expect("accepted"));

    // An event of ours that the application waits for, and an event of the application.
    let (ours, event) = (Event::new(EventFlags::DEFAULT), Event::new(EventFlags::DEFAULT));
    let (ours, event) = (Arc::new(ours.expect("an event")), Arc::new(event.expect("an event")));
    let recorded = ours.clone();
    stream
        .run_cust(&theirs, move |stream| recorded.record(stream))
        .expect("accepted")
        .wait()
        .expect("done");
    ours.synchronize().expect("recorded");
    for _ in 0..STEPS {
        cust_add(&module, &theirs, [y_at, one_at, y_at]).expect("launched");
    }
    event.record(&theirs).expect("recorded");
    drop(stream.wait_for_event(event).expect("accepted"));
    let last = stream.launch(add!(&y, &one, &mut x)).expect("accepted");
    last.wait().expect("runs");
    assert!(long.is_running(), "something waited for the kernel");
    long.check(&busy);
    let x = stream.to_cust(x).expect("given back");
    assert!(all(&host(&x), 3.0 * STEPS as f32 + 4.0), "{:?}", &host(&x)[..4]);
}

#[test]
fn work_that_fails_or_panics_is_told_and_the_stream_goes_on() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let (stream, theirs) = (scheduler.stream(0), cust_stream());
    let module = module();
    let fails = move |_: &CustStream| module.get_function("missing").map(drop);
    let failed = stream.run_cust(&theirs, fails).expect("accepted");
    let panicked = stream.run_cust(&theirs, |_| panic!("as intended")).expect("accepted");
    let ran = Arc::new(AtomicBool::new(false));
    let sets = ran.clone();
    let after = stream.run_cust(&theirs, move |_| {
        sets.store(true, SeqCst);
        Ok(())
    });
    for (handle, words) in [(failed, "not found"), (panicked, "as intended")] {
        let error = handle.wait().expect_err("it went wrong");
        assert!(
            matches!(&error, Error::Launch(LaunchError::KernelFailed { .. }))
                && error.to_string().contains(words),
            "{error}"
        );
    }
    after.expect("accepted").wait().expect("runs");
    assert!(ran.load(SeqCst));
    let cpu = Scheduler::builder()
        .device(Device::cpu_with(CpuLayout::sms(1)).expect("a device"))
        .build()
        .expect("one");
    let error = cpu.stream(0).wait_for_cust(&theirs).expect_err("it has no context");
    assert!(error.to_string().contains("Device::from_cust"), "{error}");
    drop((scheduler, stream));
    // The device is free for the next one.
    drop(gpu.scheduler());
}

#[test]
fn modules_that_the_application_loaded_are_launched_and_checked() {
    let Some(gpu) = Gpu::new() else { return };
    let ptx = RUST_CUDA_KERNELS.ptx().expect("the build found a device toolchain");
    let module = module();
    let name = RUST_CUDA_KERNELS.name();
    // SAFETY: loaded from this PTX, in this context.
    let scheduler =
        unsafe { gpu.builder().cust_module(name, module, ptx) }.build().expect("a scheduler");
    let (a, b, mut c) = (buffer(1.0), buffer(2.0), buffer(f32::NAN));
    let stream = scheduler.stream(0);
    let (grid, block) = (GridSize::x(GRID), BlockSize::x(BLOCK));
    scheduler.scope(|scope| {
        let call = add!(&a, &b, &mut c).grid(grid).block(block);
        scope.launch(&stream, call).expect("accepted").wait().expect("runs");
    });
    assert!(all(&host(&c), 3.0));
    drop((scheduler, stream));

    // The output of rust-cuda's code generator for a helper that asks `cuda_std` for the block index.
    let bad = "
        .version 7.0
        .target sm_80
        .address_size 64
        .func (.param .b32 r) _ZN7kernels6helper17h0123456789abcdefE()
        { .reg .b32 %x; mov.u32 %x, %ctaid.x; st.param.b32 [r], %x; ret; }
        .visible .entry k() { ret; }
        .visible .entry k__preemptible()
        { { .param .b32 p; call.uni (p), _ZN7kernels6helper17h0123456789abcdefE, (); } ret; }";
    let module = Arc::new(Module::from_ptx(bad, &[]).expect("loaded"));
    // SAFETY: as above.
    let error = unsafe { gpu.builder().cust_module("kernels", module, bad) }.build();
    let error = error.expect_err("refused");
    let Error::Code(CodeError::Refused {
        module: "kernels",
        fault: KernelFault::HardwareIndex { function, .. },
    }) = &error
    else {
        panic!("{error}");
    };
    assert_eq!(function, "kernels::helper");
    assert!(
        error.to_string().contains("`k__preemptible` reads `%ctaid.x` in `kernels::helper`"),
        "{error}"
    );
}

/// Fills return before they are done, and launches and copies are in streams that do not wait for them.
#[test]
fn launches_come_after_fills_that_no_thread_waited_for() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let stream = scheduler.stream(0);
    let mut large = DeviceBuffer::<f32>::zeroed(1 << 31).expect("memory");
    for is_adopted in [false, true] {
        let mut small = DeviceBuffer::from_slice(&[f32::NAN; 256]).expect("memory");
        let mut sums = DeviceBuffer::from_slice(&[f32::NAN; 256]).expect("memory");
        // This fill takes milliseconds, and the other one waits for it.
        large.set_8(1).expect("started");
        small.set_32(2f32.to_bits()).expect("started");
        if is_adopted {
            let small = scheduler.adopt(small).expect("adopted");
            let small = stream.download(&small).and_then(|copy| copy.wait()).expect("copied");
            assert_eq!(small, [2.0; 256]);
        } else {
            scheduler.scope(|scope| {
                let call = add!(&small, &small, &mut sums).grid(1);
                drop(scope.launch(&stream, call).expect("accepted"));
            });
            assert_eq!(sums.as_host_vec().expect("copied"), [4.0; 256]);
        }
    }
    scheduler.release(large).expect("freed");
}

#[test]
fn the_last_scheduler_may_be_dropped_in_opaque_work() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let (stream, theirs) = (scheduler.stream(0), cust_stream());
    let drops = move |_: &CustStream| {
        drop(scheduler);
        Ok(())
    };
    let handle = stream.run_cust(&theirs, drops).expect("accepted");
    let error = handle.wait().expect_err("the scheduler is dropped");
    assert!(matches!(error, Error::Launch(LaunchError::SchedulerDropped { .. })), "{error:?}");
    let refused = stream.run_cust(&theirs, |_| Ok(())).map(drop).expect_err("it is gone");
    assert!(matches!(refused, Error::Launch(LaunchError::SchedulerDropped { .. })), "{refused:?}");
    // The device becomes free, if not at once: the poller has to notice.
    let device = Device::from_cust(&gpu.context).expect("a device");
    let next = loop {
        match Scheduler::builder().device(device.clone()).build() {
            Err(Error::Device(DeviceError::Taken)) => std::thread::yield_now(),
            built => break built,
        }
    };
    drop(next.expect("a scheduler"));
}

#[test]
fn a_waker_may_wait_for_other_work_of_others() {
    use std::pin::pin;
    use std::sync::mpsc::{Sender, channel};
    use std::task::{Context, Poll, Wake};
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.scheduler();
    let (stream, theirs) = (scheduler.stream(0), cust_stream());
    struct Waits(Stream, Arc<CustStream>, Mutex<Sender<bool>>);
    impl Wake for Waits {
        fn wake(self: Arc<Self>) {
            let handle = self.0.run_cust(&self.1, |_| Ok(())).expect("accepted");
            let _ = self.2.lock().expect("whole").send(handle.wait().is_ok());
        }
    }
    let (sender, woken) = channel();
    let waker = Arc::new(Waits(scheduler.stream(0), theirs.clone(), Mutex::new(sender))).into();
    let (go, held) = channel::<()>();
    let held = Mutex::new(held);
    let waits = move |_: &CustStream| {
        held.lock().expect("whole").recv().expect("told to go on");
        Ok(())
    };
    let mut handle = pin!(stream.run_cust(&theirs, waits).expect("accepted"));
    assert!(matches!(handle.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Pending));
    go.send(()).expect("it waits");
    assert!(woken.recv().expect("woken"));
}

#[test]
fn the_context_outlives_the_applications() {
    let Some(gpu) = Gpu::new() else { return };
    // The current context stays current.
    let current = || cust::context::legacy::CurrentContext::get_current().expect("asked");
    let before = cust::context::ContextHandle::get_inner(&current());
    let scheduler = gpu.scheduler();
    assert_eq!(cust::context::ContextHandle::get_inner(&current()), before);
    let Gpu { context, _alone } = gpu;
    let mut c = buffer(f32::NAN);
    let (a, b) = (buffer(1.0), buffer(2.0));
    drop(context);
    let stream = scheduler.stream(0);
    scheduler.scope(|scope| {
        drop(scope.launch(&stream, add!(&a, &b, &mut c)).expect("accepted"));
    });
    let mut host = vec![0.0; N];
    c.copy_to(&mut host).expect("copied");
    assert!(all(&host, 3.0));
}
