//! Smoke test.
use preempt::{Device, Priority, Scheduler};
use preempt_device::prelude::*;

#[preemptible(block = 64)]
fn add(a: &[f32], b: &[f32], out: SliceMut<f32>) {
    let i = thread::index_1d() as usize;
    if i < out.len() {
        unsafe { out.write(i, a[i] + b[i]) }
    }
}

#[preemptible(block = 64)]
fn reverse(out: SliceMut<u32>) {
    let tile = shared_array![u32; 64];
    let t = thread::thread_idx_x() as usize;
    let i = thread::index_1d() as usize;
    unsafe { tile.add(t).write(out.read(i)) };
    thread::sync_threads();
    unsafe { out.write(i, tile.add(63 - t).read()) };
}

#[preemptible(block = 32)]
fn slow(counts: *mut u32, micros: u32) {
    let start = preempt_device::time::global_timer();
    if thread::thread_idx_x() == 0 {
        while preempt_device::time::global_timer() - start < micros as u64 * 1000 {}
        unsafe {
            preempt_device::atomic::AtomicU32::from_ptr(counts.add(thread::block_idx_x() as usize))
                .fetch_add(1, preempt_device::atomic::Ordering::Relaxed);
        }
    }
}

#[test]
fn runs() {
    let scheduler = Scheduler::builder().device(Device::cpu(2, 2).unwrap()).build().unwrap();
    let stream = scheduler.stream(0);
    let a = scheduler.buffer(&(0..1000).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
    let b = scheduler.buffer(&vec![1f32; 1000]).unwrap();
    let mut out = scheduler.zeroed(1000).unwrap();
    let report = stream.launch(add(&a, &b, &mut out).grid(16)).unwrap().wait().unwrap();
    assert_eq!(report.tasks, 16);
    let out = stream.download(&out).unwrap().wait().unwrap();
    assert!(out.iter().enumerate().all(|(i, &v)| v == i as f32 + 1.0));
    let mut r = scheduler.buffer(&(0..640u32).collect::<Vec<_>>()).unwrap();
    let _h = stream.launch(reverse(&mut r).grid(10)).unwrap();
    let r = stream.download(&r).unwrap().wait().unwrap();
    assert!((0..640).all(|i| r[i] as usize == i / 64 * 64 + 63 - i % 64));
}

#[test]
fn urgent_goes_first() {
    let scheduler = Scheduler::builder().device(Device::cpu(2, 1).unwrap()).build().unwrap();
    let batch = scheduler.stream(0);
    let urgent = scheduler.stream(Priority(1));
    let mut counts = scheduler.zeroed::<u32>(400).unwrap();
    let mut other = scheduler.zeroed::<u32>(400).unwrap();
    let long = batch.launch(slow(&mut counts, 1000).grid(400)).unwrap();
    let mut worst = std::time::Duration::ZERO;
    for i in 0..20 {
        let start = std::time::Instant::now();
        urgent.launch(slow(&mut other, 50).grid(1 + i % 3)).unwrap().wait().unwrap();
        worst = worst.max(start.elapsed());
    }
    assert!(!long.is_done());
    let report = long.wait().unwrap();
    println!("{report:?} {worst:?}");
    assert!(batch.download(&counts).unwrap().wait().unwrap().iter().all(|&c| c == 1));
}
