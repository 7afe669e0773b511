//! Parts of a device: each is one of its own, what is launched on it stays on its SMs, and none loses or repeats anything.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use preempt::error::{DeviceError, MemoryError};
use preempt::policy::{Policy, StaticPriority};
use preempt::{CpuLayout, Device, Error, Preemption, Scheduler, Stream};
use preempt_test_kernels as kernels;
use preempt_test_kit::storm::{self, Chaos, Kind, Load, Strength};
use preempt_test_kit::{KERNELS, on_gpu};

const PARTS: u32 = 4;

/// The whole device, which one test at a time has.
fn device() -> (Device, MutexGuard<'static, ()>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = preempt_test_kit::device(CpuLayout::sms(9).blocks_per_sm(2).memory(64 << 20));
    (device.whole().cloned().unwrap_or(device), alone)
}

fn scheduler(device: &Device, policy: impl Policy + 'static) -> Scheduler {
    let builder = Scheduler::builder().device(device.clone()).kernels(KERNELS).policy(policy);
    builder.preemption(Preemption::Preemptible).build().expect("a scheduler")
}

/// SMs that block-tasks of as many blocks as fit, and more, ran on.
fn sms(scheduler: &Scheduler, stream: &Stream, form: Preemption) -> BTreeSet<u32> {
    let tasks = 8 * scheduler.device().properties().sms;
    let mut sms = scheduler.zeroed::<u32>(tasks as usize).expect("memory");
    let call = kernels::sm_of_task(&mut sms).grid(tasks).block(1024).preemption(form);
    stream.launch(call).and_then(|handle| handle.wait()).expect("runs");
    stream.download(&sms).and_then(|copy| copy.wait()).expect("copied").into_iter().collect()
}

#[test]
fn a_part_has_its_own_sms_and_numbers_them_from_0() {
    let (whole, _alone) = device();
    let parts = whole.split(PARTS).expect("parts");
    assert_eq!(parts.len(), PARTS as usize);
    for part in &parts {
        let properties = part.properties();
        println!("{properties:?}");
        assert!(PARTS * properties.sms <= whole.properties().sms);
        assert!(part.whole().is_some_and(|of| of.properties().name == whole.properties().name));
        let scheduler = scheduler(part, StaticPriority::new());
        let stream = scheduler.stream(0);
        for form in [Preemption::Plain, Preemption::Preemptible] {
            let seen = sms(&scheduler, &stream, form);
            assert!(seen.iter().all(|&sm| sm < properties.sms), "{form:?}: {seen:?}");
            // The CPU device may be faster than its threads wake up.
            assert!(!on_gpu() || seen.len() as u32 == properties.sms, "{form:?}: {seen:?}");
        }
    }
}

#[test]
fn storms_on_all_parts_at_once_lose_and_repeat_nothing() {
    let (whole, _alone) = device();
    let parts = whole.split(PARTS).expect("parts");
    let (enough, load) = match on_gpu() {
        true => (300, Load { tasks: 24_000, ticks: 100_000 }),
        false => (30, Load { tasks: 100, ticks: 20_000 }),
    };
    // One after the other: to build one waits for kernels of the others.
    let schedulers = parts.iter().zip(0..).map(|(part, seed)| match seed % 2 {
        0 => (scheduler(part, StaticPriority::new()), seed),
        _ => (scheduler(part, Chaos::new(seed)), seed),
    });
    let schedulers: Vec<_> = schedulers.collect();
    std::thread::scope(|scope| {
        for (scheduler, seed) in &schedulers {
            scope.spawn(move || {
                let (kinds, urgent_priority) = (&Kind::ALL[..], i32::from(seed % 2 == 0));
                let strength = Strength {
                    enough,
                    load,
                    kinds,
                    urgent_priority,
                    has_limits: false,
                    seed: *seed,
                };
                let tally = storm::yields(scheduler, strength, |_| ()).expect("runs");
                assert_eq!((&tally.mistake, tally.lost, tally.repeated), (&None, 0, 0));
                println!("{} yields, {} switches", tally.yields, tally.switches);
            });
        }
    });
}

#[test]
fn a_kernel_on_one_part_holds_up_none_on_another() {
    let (whole, _alone) = device();
    let parts = whole.split(2).expect("parts");
    let [one, other] = [0, 1].map(|part| scheduler(&parts[part], StaticPriority::new()));
    let (batch, urgent) = (one.stream(0), other.stream(0));
    let tasks = 4 * one.device().properties().sms;
    let (mut starts, mut out) =
        (one.zeroed(tasks as usize).expect("memory"), one.zeroed(tasks as usize).expect("memory"));
    let call = kernels::spin_yielding(&mut starts, u32::MAX, &mut out).grid(tasks).block(1);
    let long = batch.launch(call).expect("accepted");
    for _ in 0..20 {
        sms(&other, &urgent, Preemption::Plain);
        sms(&other, &urgent, Preemption::Preemptible);
    }
    assert!(!long.is_done(), "it runs on");
    long.cancel();
    let _ = long.wait();
    assert_eq!(one.stats().total.yields, 0);
}

#[test]
fn contents_move_between_parts() {
    let (whole, _alone) = device();
    let parts = whole.split(3).expect("parts");
    let schedulers: Vec<_> =
        parts.iter().map(|part| scheduler(part, StaticPriority::new())).collect();
    let mut x = schedulers[0].buffer(&(0..100_000u32).collect::<Vec<_>>()).expect("memory");
    for round in 0..12 {
        let stream = schedulers[round % 3].stream(0);
        let call = kernels::scale(3, &mut x).threads(100_000);
        stream.launch(call).expect("accepted").detach();
        if round == 11 {
            let found = stream.download(&x).and_then(|copy| copy.wait()).expect("copied");
            // The kernel adds to what it multiplies.
            let expected = |i: u32| (0..12).fold(i, |x, _| scaled(x, i));
            assert!(found.iter().zip(0..).all(|(&x, i)| x == expected(i)));
        }
    }
}

/// What `scale(3, x)` makes of the element at `i`.
fn scaled(x: u32, i: u32) -> u32 {
    x.wrapping_mul(3).wrapping_add(i)
}

#[test]
fn each_part_has_its_share_of_the_memory() {
    let (whole, _alone) = device();
    let total = whole.memory().expect("known").total;
    let parts = whole.split(PARTS).expect("parts");
    let schedulers: Vec<_> =
        parts.iter().map(|part| scheduler(part, StaticPriority::new())).collect();
    let share = parts[0].memory().expect("known").total;
    assert!(share <= total / 4 && share >= total / 4 - (2 << 20), "{share} of {total}");
    let too_large = schedulers[0].zeroed::<u8>(share + 1);
    assert!(matches!(too_large, Err(Error::Memory(MemoryError::OutOfMemory { .. }))));
    let large = schedulers[0].zeroed::<u8>(share / 2).expect("its share");
    let second = schedulers[0].zeroed::<u8>(share / 4 * 3);
    assert!(matches!(second, Err(Error::Memory(MemoryError::OutOfMemory { .. }))), "no more");
    let others = schedulers[1].zeroed::<u8>(share / 4 * 3).expect("another's share");
    drop((large, others));
}

#[test]
fn a_device_and_its_parts_are_not_used_at_the_same_time() {
    let (whole, _alone) = device();
    let build = |device: &Device| Scheduler::builder().device(device.clone()).build();
    let scheduler = build(&whole).expect("a scheduler");
    assert!(matches!(whole.split(2), Err(Error::Device(DeviceError::Taken))));
    drop(scheduler);
    let parts = whole.split(2).expect("parts");
    assert!(matches!(whole.split(2), Err(Error::Device(DeviceError::Split))));
    assert!(matches!(build(&whole), Err(Error::Device(DeviceError::Split))));
    let on_part = build(&parts[1]).expect("a scheduler");
    assert!(matches!(build(&parts[1]), Err(Error::Device(DeviceError::Taken))));
    let nested = parts[0].split(2).expect_err("it is a part");
    assert!(nested.to_string().contains("split the whole device"), "{nested}");
    for bad in [0, 10_000] {
        let error = parts[0].whole().expect("a part").split(bad).expect_err("it is split");
        assert!(matches!(error, Error::Device(DeviceError::Split)), "{error}");
    }
    let buffer = on_part.zeroed::<u8>(100).expect("memory");
    drop(on_part);
    drop(parts);
    assert!(matches!(build(&whole), Err(Error::Device(DeviceError::Split))), "a buffer is left");
    drop(buffer);
    build(&whole).expect("it is given back with its last part");
    for bad in [0, 10_000] {
        let error = whole.split(bad).expect_err("there is no such number of parts");
        assert!(matches!(error, Error::Device(DeviceError::NotSplit { .. })), "{error}");
    }
}
