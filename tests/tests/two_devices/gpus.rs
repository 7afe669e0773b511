//! Moves between two GPUs beside kernels that fill both, with `PREEMPT_TEST_DEVICE=cuda`. Otherwise the same between CPU
//! devices.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use preempt::{Buffer, CpuLayout, Device, Handle, LaunchReport, Scheduler};
use preempt_test_kernels as kernels;
use preempt_test_kit::{KERNELS, Random, on_gpu};

const LONG: Duration = Duration::from_secs(60);

/// Two devices, which one test at a time has.
struct Two {
    _alone: MutexGuard<'static, ()>,
}

impl Two {
    /// Two devices, unless there is one GPU.
    fn new() -> Option<Two> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        if on_gpu() && Device::count().expect("a driver") < 2 {
            println!("SKIP: there are no two GPUs");
            return None;
        }
        Some(Two { _alone: alone })
    }

    fn open(&self, ordinal: u32) -> Device {
        match on_gpu() {
            true => Device::cuda(ordinal).expect("a GPU"),
            false => Device::cpu_with(CpuLayout::sms(2)).expect("a device"),
        }
    }
}

fn scheduler_on(device: &Device) -> Scheduler {
    let builder = Scheduler::builder().device(device.clone()).kernels(KERNELS);
    builder.build().expect("a scheduler")
}

/// A kernel that fills a device for a while, and can be cancelled at any time.
struct Busy {
    handle: Handle<LaunchReport>,
    _buffers: [Buffer<u32>; 2],
}

impl Busy {
    fn start(scheduler: &Scheduler) -> Busy {
        let (tasks, block, rounds) = match on_gpu() {
            // Tens of seconds.
            true => (2 * scheduler.device().properties().sms, 1024, u32::MAX),
            false => (2 * scheduler.device().properties().sms, 1, u32::MAX),
        };
        let mut starts = scheduler.zeroed(tasks as usize).expect("memory");
        let mut out = scheduler.zeroed((tasks * block) as usize).expect("memory");
        let call = kernels::spin_yielding(&mut starts, rounds, &mut out).grid(tasks).block(block);
        let handle = scheduler.stream(0).launch(call).expect("accepted");
        Busy { handle, _buffers: [starts, out] }
    }
}

#[test]
fn contents_arrive_bit_by_bit_while_kernels_fill_both_devices() {
    let Some(two) = Two::new() else { return };
    let devices = [0, 1].map(|ordinal| two.open(ordinal));
    let schedulers = devices.each_ref().map(scheduler_on);
    let is_direct =
        [devices[0].can_access_peer(&devices[1]), devices[1].can_access_peer(&devices[0])];
    println!("direct: {is_direct:?}");
    let busy = schedulers.each_ref().map(Busy::start);
    let mut random = Random(1);
    // With small and large pieces of the driver's, and beyond.
    let lens = match on_gpu() {
        true => vec![1, 1000, 16_384, 16_385, 1 << 20, (1 << 26) + 3],
        false => vec![1, 1000, 100_000],
    };
    for len in lens {
        for home in [0, 1] {
            let data: Vec<u32> = (0..len).map(|_| random.bits() as u32).collect();
            // Grows the pool of a device, which the other one can read.
            let buffer = schedulers[home].buffer(&data).expect("memory");
            let start = Instant::now();
            let there = schedulers[1 - home].stream(1).download(&buffer).expect("accepted");
            let there = there.wait_timeout(LONG).expect("it ends").expect("copied");
            println!("{} bytes from {home}: {:?}", 4 * len, start.elapsed());
            assert!(there == data, "{len} words from {home}");
        }
    }
    // Neither the allocations nor the moves have waited for the kernels.
    for Busy { handle, .. } in &busy {
        assert!(!handle.is_done(), "a kernel is over");
        handle.cancel();
    }
    for Busy { handle, .. } in &busy {
        handle.wait_timeout(LONG).expect("it ends").expect_err("cancelled");
    }
}

#[test]
fn kernels_on_both_devices_take_turns_with_a_buffer() {
    let Some(two) = Two::new() else { return };
    let devices = [0, 1].map(|ordinal| two.open(ordinal));
    let schedulers = devices.each_ref().map(scheduler_on);
    let (len, rounds) = if on_gpu() { (1 << 20, 200) } else { (1000, 20) };
    let mut random = Random(2);
    let mut expected: Vec<u32> = (0..len).map(|_| random.bits() as u32).collect();
    let mut buffer = schedulers[0].buffer(&expected).expect("memory");
    let mut copies = Vec::new();
    for round in 0..rounds {
        let factor = random.below(1000);
        let on = &schedulers[random.below(2) as usize];
        let call = kernels::scale(factor, &mut buffer).threads(len);
        on.stream(random.below(3) as i32).launch(call).expect("accepted").detach();
        for (index, x) in (0..).zip(&mut expected) {
            *x = x.wrapping_mul(factor).wrapping_add(index);
        }
        if round % 20 == 19 {
            let reader = &schedulers[random.below(2) as usize];
            let copy = reader.stream(1).download(&buffer).expect("accepted");
            copies.push((round, copy, expected.clone()));
        }
    }
    for (round, copy, expected) in copies {
        let found = copy.wait_timeout(LONG).expect("it ends").expect("copied");
        assert!(found == expected, "round {round}");
    }
}

/// The driver is not asked for access beside kernels that run, and is asked again later.
#[test]
fn devices_that_are_opened_beside_a_kernel_meet_when_it_is_over() {
    let Some(two) = Two::new() else { return };
    let one = two.open(0);
    let first = scheduler_on(&one);
    let busy = Busy::start(&first);
    let other = two.open(1);
    let second = scheduler_on(&other);
    let is_direct = other.can_access_peer(&one);
    match busy.handle.is_done() {
        true => println!("opening the second device has waited for the kernel"),
        false => assert_eq!(is_direct, !on_gpu()),
    }
    let data: Vec<u32> = (0..50_000).collect();
    let buffer = first.buffer(&data).expect("memory");
    let arrive = |scheduler: &Scheduler| {
        let there = scheduler.stream(1).download(&buffer).expect("accepted");
        assert!(there.wait_timeout(LONG).expect("it ends").expect("copied") == data);
    };
    arrive(&second);
    busy.handle.cancel();
    let _ = busy.handle.wait_timeout(LONG).expect("it ends");
    first.synchronize().expect("synchronized");
    drop(second);
    let second = scheduler_on(&other);
    println!("direct now: {}", other.can_access_peer(&one));
    arrive(&second);
}

/// Prints what a move takes against the driver's own copy.
#[test]
#[ignore = "figures, with PREEMPT_TEST_DEVICE=cuda and two GPUs"]
fn moves_against_the_drivers_copies() {
    let Some(two) = Two::new().filter(|_| on_gpu()) else { return };
    let devices = [0, 1].map(|ordinal| two.open(ordinal));
    let schedulers = devices.each_ref().map(scheduler_on);
    println!("direct: {}", devices[0].can_access_peer(&devices[1]));
    for (bytes, times) in [(4 << 10, 1001), (256 << 20, 31)] {
        let mut buffer = schedulers[0].zeroed::<u8>(bytes).expect("memory");
        let (mut moves, mut sets) = (Vec::new(), Vec::new());
        for turn in 0..2 * times {
            let stream = schedulers[turn / 2 % 2].stream(0);
            let mut first = buffer.slice_mut(..1).expect("a range");
            let start = Instant::now();
            // It needs the rest, too. The second one on a device finds that there.
            stream.fill(&mut first, 1).and_then(|fill| fill.wait()).expect("filled");
            [&mut moves, &mut sets][turn % 2].push(start.elapsed());
        }
        let [p50, of_fill, raw] = [moves, sets, raw_copies(bytes, times)].map(|mut times| {
            times.sort();
            times[times.len() / 2]
        });
        println!(
            "{bytes} bytes: {p50:?} with a fill of 1 byte, {of_fill:?} the fill, {raw:?} the driver"
        );
    }
}

/// Copies by the driver, each until it is over.
fn raw_copies(bytes: usize, times: usize) -> Vec<Duration> {
    use cudarc::driver::sys;
    let mut contexts = [std::ptr::null_mut(); 2];
    let (mut memory, mut stream) = ([0; 2], std::ptr::null_mut());
    // SAFETY: pointers are valid, and both contexts are those of the devices that the test has opened.
    unsafe {
        for (at, context) in contexts.iter_mut().enumerate() {
            sys::cuDevicePrimaryCtxRetain(context, at as i32).result().expect("retained");
            sys::cuCtxSetCurrent(*context).result().expect("set");
            sys::cuMemAlloc_v2(&raw mut memory[at], bytes).result().expect("memory");
        }
        // It may be enabled already.
        let _ = sys::cuCtxEnablePeerAccess(contexts[0], 0);
        sys::cuStreamCreate(&raw mut stream, 1).result().expect("a stream");
        let [(from, owner), (to, here)] = [(memory[0], contexts[0]), (memory[1], contexts[1])];
        let copy = |_| {
            let start = Instant::now();
            sys::cuMemcpyPeerAsync(to, here, from, owner, bytes, stream).result().expect("copied");
            sys::cuStreamSynchronize(stream).result().expect("copied");
            start.elapsed()
        };
        let taken = (0..times).map(copy).collect();
        for address in memory {
            sys::cuMemFree_v2(address).result().expect("freed");
        }
        taken
    }
}
