//! Parts of a device, each with a scheduler, while driver calls fail that make them.

use std::thread;
use std::time::Duration;

use preempt::error::{DeviceError, MemoryError};
use preempt::{Device, Error, Scheduler, SignalPath, conformance};
use preempt_test_kernels as kernels;

use crate::fake;
use crate::peers::take_turns;
use crate::workloads::{self, Found, Run, THREADS, start, storm_of};
use crate::{CHILD, Case, FAKE, INVALID_VALUE, LAUNCH_FAILED, OUT_OF_MEMORY, Outcome};

const PARTS: u32 = 2;

fn is_fake() -> bool {
    std::env::var(CHILD).is_ok_and(|driver| driver == FAKE)
}

/// Those that make parts, and how often they are called for each split into [`PARTS`].
const MAKING: [(&str, u64); 5] = [
    ("cuDeviceGetDevResource", 1),
    ("cuDevSmResourceSplitByCount", 2),
    ("cuDevResourceGenerateDesc", 2),
    ("cuGreenCtxCreate", 2),
    ("cuCtxFromGreenCtx", 2),
];

pub fn run(case: &Case, device: &Device, found: &mut Found) {
    // On a thread that has no current context, which is to have none afterwards.
    let work = |found: &mut Found| match &*case.workload {
        "parts" => all_at_once(case, device, found),
        "part-contract" => {
            if let Some(parts) = found.take(device.split(PARTS)) {
                conformance::check(&parts[1], &workloads::CONTRACT);
            }
        }
        "part-memory" => shares(device, found),
        "part-peers" => {
            beside_another(device, found);
            one_device_for_each(found);
        }
        other => panic!("no workload `{other}`"),
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            work(found);
            await_end(device, found);
            let before = found.errors;
            workloads::storm(device, 3, found);
            let is_whole = found.errors == before || case.nth > 0;
            found.expect(is_whole, || "the whole device does not work any more".into());
        });
    });
}

/// Waits until a device is whole again: a scheduler's thread ends a moment after the scheduler.
fn await_end(device: &Device, found: &mut Found) {
    let build = || Scheduler::builder().device(device.clone()).build();
    let is_parted = |result: &Result<Scheduler, Error>| {
        matches!(result, Err(Error::Device(DeviceError::Split | DeviceError::Taken)))
    };
    for _ in 0..5000 {
        let result = build();
        if !is_parted(&result) {
            found.take(result);
            return;
        }
        thread::sleep(Duration::from_millis(2));
    }
    found.expect(false, || "the parts are gone, and the device is not whole".into());
}

/// Two parts. If a call fails that makes them, they are made again, and what failed has left nothing.
fn halves(case: &Case, device: &Device, found: &mut Found) -> Option<Vec<Device>> {
    let first = device.split(PARTS);
    // A GPU's older driver makes none.
    if matches!(first, Err(Error::Device(DeviceError::NotSplit { .. }))) && !is_fake() {
        return None;
    }
    let parts = match found.take(first) {
        Some(parts) => parts,
        None if found.is_lost || case.nth == 0 => return None,
        None => found.take(device.split(PARTS))?,
    };
    let half = device.properties().sms / PARTS;
    let sms: Vec<_> = parts.iter().map(|part| part.properties().sms).collect();
    // A GPU's come in steps of several SMs.
    let least = if is_fake() { half } else { 1 };
    let are_right =
        sms.len() == PARTS as usize && sms.iter().all(|sms| (least..=half).contains(sms));
    found.expect(are_right, || format!("parts of {sms:?} SMs"));
    Some(parts)
}

/// Storms on both parts at the same time, blocks that leave, and contents that move between the parts.
fn all_at_once(case: &Case, device: &Device, found: &mut Found) {
    let Some(parts) = halves(case, device, found) else { return };
    thread::scope(|scope| {
        scope.spawn(|| {
            found.take(parts[0].memory());
            // Other work of the application would be confined to the part.
            found.expect(!fake::has_context(), || "a part stays current".into());
        });
    });
    let mut findings = [Found::default(), Found::default()];
    // All of them first: to build one waits for kernels of the others.
    let runs = parts.iter().zip(&mut findings);
    let runs = runs.map(|(part, found)| start(part, SignalPath::StreamWrite, found));
    let Some(mut runs) = runs.collect::<Option<Vec<_>>>() else {
        return merge(findings, found);
    };
    let is_clean = case.nth == 0;
    // On a GPU, the kernel that holds the part may be over before the urgent one comes.
    let leaves = is_clean && is_fake();
    runs.iter_mut().for_each(|run| leave(run, leaves));
    let schedulers: Vec<_> = runs.iter().map(|run| run.scheduler.clone()).collect();
    thread::scope(|scope| {
        for run in runs {
            scope.spawn(|| storm_of(run, 8));
        }
    });
    merge(findings, found);
    let schedulers: [Scheduler; 2] = schedulers.try_into().expect("two parts");
    let direct = parts[0].can_access_peer(&parts[1]) && parts[1].can_access_peer(&parts[0]);
    found.expect(direct || !is_clean, || "parts do not read each other's memory".into());
    take_turns(&schedulers, found);
}

fn merge(findings: [Found; 2], into: &mut Found) {
    for (number, found) in findings.into_iter().enumerate() {
        into.errors += found.errors;
        into.is_lost |= found.is_lost;
        into.messages.extend(found.messages);
        into.wrong.extend(found.wrong.into_iter().map(|wrong| format!("part {number}: {wrong}")));
    }
}

/// A kernel holds the part, and cannot end. An urgent launch needs all SMs, by the numbers that they have on this part.
fn leave(run: &mut Run<'_>, leaves: bool) {
    let streams = [0, 1].map(|priority| run.scheduler.stream(priority));
    fake::hold_spinning(true);
    let victim = run.victim(&streams[0], 200_000);
    let tasks = 4 * run.scheduler.device().properties().sms;
    let mut counts = || {
        let counts = run.found.take(run.scheduler.zeroed::<u32>(tasks as usize))?;
        Some((counts, run.found.take(run.scheduler.zeroed::<u32>((tasks * THREADS) as usize))?))
    };
    if let Some((mut counts, mut writes)) = counts() {
        let call = kernels::count_1d(&mut counts, &mut writes).grid(tasks).block(THREADS);
        let report = streams[1].launch(call).and_then(|handle| handle.wait());
        run.found.take(report);
        let yields = run.scheduler.stats().total.yields;
        run.found.expect(yields > 0 || !leaves, || "no block has left for an urgent one".into());
    }
    fake::hold_spinning(false);
    run.check_victim(victim, &streams[0]);
}

/// Each part has its share of the memory, and no more.
fn shares(device: &Device, found: &mut Found) {
    let Some(total) = found.take(device.memory()).map(|info| info.total) else { return };
    let Some(parts) = found.take(device.split(PARTS)) else { return };
    let schedulers = parts.iter().map(|part| Scheduler::builder().device(part.clone()).build());
    let Some(schedulers) = found.take(schedulers.collect::<Result<Vec<_>, _>>()) else { return };
    let infos = parts.iter().map(|part| part.memory()).collect::<Result<Vec<_>, _>>();
    let Some(infos) = found.take(infos) else { return };
    let share = total / PARTS as usize;
    let are_equal = infos.iter().all(|info| info.total == share && info.free <= share);
    found.expect(are_equal, || format!("of {total}: {infos:?}"));
    let of = |part: usize, quarters: usize| {
        // SAFETY: it is dropped unread. Zeros would take as much memory of the host.
        unsafe { schedulers[part].uninit::<u8>(share / 4 * quarters) }
    };
    let Some(first) = found.take(of(0, 2)) else { return };
    let second = of(0, 3);
    let is_full = matches!(second, Err(Error::Memory(MemoryError::OutOfMemory { .. })));
    found.expect(is_full, || format!("more than its share: {second:?}"));
    drop(second);
    let others = found.take(of(1, 3));
    let Some(address) = others.as_ref().map(|buffer| buffer.address()) else { return };
    // SAFETY: the stream without a name is always there.
    let waits = unsafe { schedulers[0].stream(0).wait_for_raw(std::ptr::null_mut()) }.map(drop);
    // SAFETY: nothing uses the memory.
    let adopted = unsafe { schedulers[0].adopt_raw::<u8>(address, 100) }.map(drop);
    let are_refused =
        matches!(waits, Err(Error::Device(DeviceError::Unsupported { .. }))) && adopted.is_err();
    found.expect(are_refused, || format!("of others: {waits:?}, {adopted:?}"));
    drop((first, others));
    found.take(of(0, 3).map(drop));
}

/// Contents move between a part and another device.
fn beside_another(device: &Device, found: &mut Found) {
    let Some(other) = found.take(Device::cuda(1)) else { return };
    let Some(parts) = found.take(device.split(PARTS)) else { return };
    let [one, other] = [&parts[1], &other].map(|device| {
        let builder = Scheduler::builder().device(device.clone());
        builder.kernels(crate::device_code::module()).build()
    });
    let (Some(one), Some(other)) = (found.take(one), found.take(other)) else { return };
    let direct = other.device().can_access_peer(&parts[1]);
    found.expect(direct, || "another device does not read the part's memory".into());
    take_turns(&[one, other], found);
}

/// A buffer can outlive its device. What is opened then is one device all the same.
fn one_device_for_each(found: &mut Found) {
    let scheduler = |device: &Device| Scheduler::builder().device(device.clone()).build();
    let buffer = {
        let Some(first) = found.take(Device::cuda(1)) else { return };
        let Some(scheduler) = found.take(scheduler(&first)) else { return };
        found.take(scheduler.zeroed::<u32>(100))
    };
    let again = [(); 2].map(|()| found.take(Device::cuda(1)));
    let [Some(second), Some(third)] = again else { return };
    let Some(kept) = found.take(scheduler(&second)) else { return };
    let refused = matches!(scheduler(&third), Err(Error::Device(DeviceError::Taken)));
    found.expect(refused, || "two schedulers have a GPU".into());
    drop((buffer, kept));
}

fn start_all(cases: &[Case]) -> Vec<Outcome> {
    let outcomes = crate::start(FAKE, cases);
    assert_eq!(outcomes.len(), cases.len(), "{cases:?}: {outcomes:#?}");
    outcomes
}

fn case(function: &str, nth: u64, code: u32) -> Case {
    Case { workload: "parts".into(), function: function.into(), nth, code }
}

#[test]
fn parts_work_at_the_same_time_and_become_whole_again() {
    let cases = ["parts", "part-memory", "part-peers", "parts"].map(Case::clean);
    for (case, outcome) in cases.iter().zip(start_all(&cases)) {
        assert!(outcome.is_right(), "{case:?}: {outcome:#?}");
    }
}

#[test]
fn a_part_keeps_to_the_contract() {
    let outcomes = start_all(&[Case::clean("part-contract")]);
    assert!(outcomes[0].is_right(), "{outcomes:#?}");
}

#[test]
fn parts_are_made_again_where_a_call_failed() {
    let clean = start_all(&[Case::clean("parts")]);
    assert!(clean[0].is_right(), "{clean:#?}");
    let Outcome { calls, opened, .. } = &clean[0];
    let mut cases = Vec::new();
    for (function, times) in MAKING {
        assert_eq!((calls.get(function), opened.get(function)), (Some(&times), None), "{function}");
        for nth in 1..=times {
            cases.extend([INVALID_VALUE, OUT_OF_MEMORY].map(|code| case(function, nth, code)));
        }
    }
    // What opens a device, and so each part: in the middle of the first part's, and at the begin of the second's.
    for function in [
        "cuDevicePrimaryCtxRetain",
        "cuLaunchKernel",
        "cuMemAlloc_v2",
        "cuMemHostAlloc",
        "cuMemPoolCreate",
        "cuModuleLoadDataEx",
        "cuStreamCreateWithPriority",
    ] {
        let each = opened[function];
        let places = [each.div_ceil(2), each + 1];
        cases.extend(places.map(|nth| case(function, each + nth, OUT_OF_MEMORY)));
    }
    // Ahead of the parts, and the table of a module.
    for function in
        ["cuMemPoolTrimTo", "cuMemGetInfo_v2", "cuModuleGetGlobal_v2", "cuMemcpyHtoD_v2"]
    {
        let before = opened.get(function).copied().unwrap_or_default();
        cases.push(case(function, before + 1, INVALID_VALUE));
    }
    let run = |some: &[Case]| {
        for (case, outcome) in some.iter().zip(start_all(some)) {
            let ends = (outcome.failures, outcome.errors) == (1, 1);
            assert!(ends && outcome.is_over && outcome.wrong.is_empty(), "{case:?}: {outcome:#?}");
        }
    };
    // The cases mostly wait.
    thread::scope(|scope| {
        for some in cases.chunks(cases.len().div_ceil(4)) {
            scope.spawn(|| run(some));
        }
    });
    // No operation could be told that a part is not destroyed.
    let cases = [1, 2].map(|nth| case("cuGreenCtxDestroy", nth, INVALID_VALUE));
    for (case, outcome) in cases.iter().zip(start_all(&cases)) {
        assert!(outcome.failures == 1 && outcome.is_right(), "{case:?}: {outcome:#?}");
    }
    // The context is lost, and with it the device.
    for (function, _) in MAKING {
        let outcomes = start_all(&[case(function, 1, LAUNCH_FAILED)]);
        let is_lost = outcomes[0].is_lost && outcomes[0].wrong.is_empty();
        assert!(is_lost, "{function}: {outcomes:#?}");
    }
}
