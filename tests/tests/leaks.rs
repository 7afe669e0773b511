//! Devices, schedulers and failed launches leave nothing behind.
#![cfg(target_os = "linux")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use preempt::error::LaunchError;
use preempt::pool::{Class, Pool, Task};
use preempt::{Buffer, Copy2d, CpuLayout, Device, Error, Opaque, Preemption, Scheduler};
use preempt_device::abi::RequeueList;
use preempt_device::prelude::*;
use preempt_test_kernels as kernels;
use preempt_test_kit::resident_bytes;

/// Counts bytes.
struct Counting;

/// Bytes that are allocated now, but for those of [lists](LIST).
static LIVE: AtomicIsize = AtomicIsize::new(0);

/// Lists that are allocated now.
static LISTS: AtomicIsize = AtomicIsize::new(0);

/// The bytes of a list for requeued block-tasks, in an `Arc`. A device keeps a list for each of as many launches as were there
/// at once; how many that is depends on how threads take turns.
const LIST: usize = match Layout::new::<[usize; 2]>().extend(Layout::new::<RequeueList>()) {
    Ok((list, _)) => list.pad_to_align().size(),
    Err(_) => panic!("it has a size"),
};

fn count(size: usize, sign: isize) {
    match size {
        LIST => LISTS.fetch_add(sign, Relaxed),
        _ => LIVE.fetch_add(sign * size as isize, Relaxed),
    };
}

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, 1);
        count(layout.size(), -1);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test at a time, because the counts are those of the process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Threads of devices and schedulers.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux has it");
    // A thread may end meanwhile.
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("preempt-")).count()
}

/// Waits until at most `left` threads of devices and schedulers remain: they end on their own.
fn await_threads(left: usize) {
    while threads() > left {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Bytes that may become resident without a leak, because the allocator and the threads divide memory differently each
/// time.
const VARIES: isize = 16 << 20;

/// Launches, at most, that are there at once in a round, or whose end is not seen yet.
const AT_ONCE: isize = 16;

/// Bytes that stay for each round of many, after some to warm up, with `threads` threads left.
fn bytes_left_by_each(rounds: isize, threads: usize, mut round: impl FnMut()) -> isize {
    (0..rounds / 20).for_each(|_| round());
    await_threads(threads);
    let (before, lists_before) = (LIVE.load(Relaxed), LISTS.load(Relaxed));
    let resident_before = resident_bytes();
    (0..rounds).for_each(|_| round());
    await_threads(threads);
    let grown = resident_bytes() - resident_before;
    assert!(grown < VARIES, "{grown} more bytes are resident after {rounds} rounds");
    let lists = LISTS.load(Relaxed) - lists_before;
    assert!(lists <= AT_ONCE, "{lists} more lists are there after {rounds} rounds");
    (LIVE.load(Relaxed) - before) / rounds
}

/// A few launches at once, with everything that a device keeps for each.
fn use_once(device: &Device) {
    let scheduler = Scheduler::builder().device(device.clone()).build().expect("a scheduler");
    let launches: Vec<_> = (0..3)
        .map(|_| {
            let zeroed = || scheduler.zeroed::<u32>(64).expect("memory");
            let (mut starts, mut out) = (zeroed(), zeroed());
            let call = kernels::spin_yielding(&mut starts, 3, &mut out).grid(2).block(32);
            scheduler.stream(0).launch(call).expect("accepted")
        })
        .collect();
    for launch in launches {
        launch.wait().expect("it runs");
    }
}

#[test]
fn devices_leave_nothing() {
    let _alone = alone();
    let left = bytes_left_by_each(1000, 0, || {
        use_once(&Device::cpu_with(CpuLayout::sms(2)).expect("a device"))
    });
    assert!(left < 1000, "each device leaves {left} bytes");
}

#[test]
fn schedulers_leave_nothing() {
    let _alone = alone();
    let device = Device::cpu_with(CpuLayout::sms(2)).expect("a device");
    let left = bytes_left_by_each(10_000, 3, || use_once(&device));
    assert!(left < 50, "each scheduler leaves {left} bytes");
}

/// Every thread fails in its own way.
#[preemptible(block = 2)]
fn fails(panics: u32, out: SliceMut<u32>) {
    let t = thread::thread_idx_x();
    if t == panics {
        panic!("this thread panics, as a test asks: {out:?}");
    }
    preempt_test_helpers::sync_if(t == 0);
}

#[test]
fn failed_launches_leave_nothing() {
    let _alone = alone();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let device = Device::cpu_with(CpuLayout::sms(1)).expect("a device");
    let scheduler = Scheduler::builder().device(device).build().expect("a scheduler");
    let stream = scheduler.stream(0);
    let mut number = 0;
    let left = bytes_left_by_each(100_000, 3, || {
        number += 1;
        let mut out: Buffer<u32> = scheduler.zeroed(1).expect("memory");
        let call = fails(number % 3, &mut out).grid(1);
        let failed = stream.launch(call).expect("accepted").wait();
        assert!(
            matches!(failed, Err(Error::Launch(LaunchError::KernelFailed { .. }))),
            "{failed:?}"
        );
        let lost = stream.download(&out).expect("accepted").wait();
        assert!(matches!(lost, Err(Error::Launch(LaunchError::InputLost { .. }))), "{lost:?}");
    });
    std::panic::set_hook(hook);
    assert!(left < 20, "each failed launch leaves {left} bytes");
}

#[test]
fn copies_and_fills_leave_nothing() {
    let _alone = alone();
    let device = Device::cpu_with(CpuLayout::sms(1)).expect("a device");
    let scheduler = Scheduler::builder().device(device).build().expect("a scheduler");
    let stream = scheduler.stream(0);
    let shape = Copy2d { width: 10, height: 3, from_pitch: 20, to_pitch: 30 };
    let left = bytes_left_by_each(10_000, 3, || {
        let (data, mut out) = ([7u32; 100], [0; 100]);
        let mut buffer = scheduler.zeroed::<u32>(100).expect("memory");
        // SAFETY: it is filled before it is read.
        let mut other = unsafe { scheduler.uninit::<u32>(100) }.expect("memory");
        drop(stream.fill(&mut other, 3).expect("accepted"));
        drop(stream.upload(&data, &mut buffer).expect("accepted"));
        drop(stream.copy_2d(&buffer, &mut other, shape).expect("accepted"));
        let array = scheduler.pinned(100).expect("memory");
        let array = stream.download_pinned(&other, array).expect("accepted").wait();
        drop(stream.upload_pinned(array.expect("copied"), &mut buffer).expect("accepted"));
        scheduler.scope(|scope| {
            drop(scope.download_into(&stream, &buffer, &mut out).expect("accepted"));
        });
        assert_eq!((out[0], out[99]), (7, 3));
    });
    assert!(left < 50, "each round of copies leaves {left} bytes");
}

#[test]
fn programs_leave_nothing() {
    let _alone = alone();
    let device = Device::cpu_with(CpuLayout::sms(2)).expect("a device");
    let scheduler = Scheduler::builder().device(device).build().expect("a scheduler");
    let stream = scheduler.stream(0);
    let mut number = 0;
    let left = bytes_left_by_each(2_000, 5, || {
        number += 1;
        let (mut counts, mut writes) =
            (scheduler.zeroed(2).expect("memory"), scheduler.zeroed(64).expect("memory"));
        let program = stream.program("twice", |program| {
            program.preemption([Preemption::Plain, Preemption::Preemptible][number % 2]);
            let call = kernels::count_1d(&mut counts, &mut writes).grid(2).block(32);
            program.launch(call.clone())?;
            program.launch(call).map(drop)
        });
        let program = program.expect("recorded");
        program.arm().expect("accepted");
        if number % 3 > 0 {
            program.launch().expect("accepted").wait().expect("it runs");
        }
        stream
            .opaque(Opaque::new("nothing").reads(&counts), |_| Ok(()))
            .expect("accepted")
            .detach();
        let cancelled = stream.launch_program(&program).expect("accepted");
        cancelled.cancel();
        drop(cancelled.wait());
    });
    assert!(left < 50, "each program leaves {left} bytes");
}

#[test]
fn pools_leave_nothing() {
    let _alone = alone();
    let device = Device::cpu_with(CpuLayout::sms(2)).expect("a device");
    let left = bytes_left_by_each(1_000, 3, || {
        let pool = Pool::builder().device(device.clone()).build().expect("a pool");
        let [service, job] = [Class::UserFacing, Class::Batch].map(|class| pool.application(class));
        let task = Task::new("count", |run| {
            let (mut counts, mut writes) = (run.zeroed(2)?, run.zeroed(64)?);
            run.launch(kernels::count_1d(&mut counts, &mut writes).grid(2).block(32))?;
            run.download(&counts)
        });
        let handles: Vec<_> =
            (0..6).map(|n| [&service, &job][n % 2].submit(&task).expect("accepted")).collect();
        handles[5].cancel();
        for handle in handles.into_iter().take(5) {
            assert_eq!(handle.wait().expect("it runs"), [1, 1]);
        }
    });
    assert!(left < 50, "each pool leaves {left} bytes");
}
