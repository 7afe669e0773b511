//! Contents that move between two GPUs, directly where the driver lets them.

use preempt::{Device, Handle, LaunchReport, Scheduler, SignalPath};
use preempt_test_kernels as kernels;
use preempt_test_kit::Random;

use crate::device_code;
use crate::fake::{self, PeerKind};
use crate::workloads::{Found, THREADS, first_difference};
use crate::{Case, FAKE, INVALID_VALUE, LAUNCH_FAILED, OUT_OF_MEMORY, Outcome, start};

/// What a workload expects of the two directions.
pub fn run(workload: &str, device: &Device, found: &mut Found) {
    fake::set_peers(match workload {
        "no-peers" => PeerKind::None,
        "silent-peers" => PeerKind::Silent,
        "hanging-peers" => PeerKind::Hanging,
        _ => PeerKind::Right,
    });
    let first = found.take(scheduler(device));
    let Some(first) = first else { return };
    let busy = (workload == "late-peers").then(|| start_busy(&first)).flatten();
    let Some(other) = found.take(Device::cuda(1)) else { return };
    let Some(second) = found.take(scheduler(&other)) else { return };
    let third = (workload == "hanging-peers").then(|| found.take(Device::cuda(2))).flatten();
    if let Some(third) = &third {
        for near in [device, &other] {
            let is_direct = near.can_access_peer(third);
            found.expect(!is_direct, || "copies that hang are direct".into());
        }
    }
    let direct = || {
        let ways = [device.can_access_peer(&other), other.can_access_peer(device)];
        ways.into_iter().filter(|is_direct| *is_direct).count()
    };
    let expected = match workload {
        "peers" | "hanging-peers" => 2..=2,
        "half-peers" => 1..=1,
        "any-peers" => 0..=2,
        _ => 0..=0,
    };
    let tried = fake::peer_copies();
    let hung = third.is_some();
    // Two each way between the first devices, two to the third, and the one that hangs.
    found.expect(!hung || tried == 7, || format!("{tried} copies tried"));
    let is_busy = busy.as_ref().is_none_or(|handle| !handle.is_done());
    found.expect(is_busy, || "the kernel is over too early".into());
    found.expect(expected.contains(&direct()), || format!("{} ways are direct", direct()));
    take_turns(&[first.clone(), second.clone()], found);
    let copies = fake::peer_copies() - tried;
    let has_copied = copies > 0;
    if workload != "any-peers" {
        let is_right = has_copied == (direct() > 0);
        found.expect(is_right, || format!("{copies} copies, {} direct ways", direct()));
    }
    if let Some(handle) = busy {
        fake::hold_spinning(false);
        found.take(handle.wait());
        found.take(first.synchronize());
        drop(second);
        // A scheduler that starts while nothing runs.
        let Some(second) = found.take(scheduler(&other)) else { return };
        found.expect(direct() == 2, || format!("{} ways are direct afterwards", direct()));
        take_turns(&[first, second], found);
        found.expect(fake::peer_copies() > tried, || "no copy between them".into());
    }
}

fn scheduler(device: &Device) -> Result<Scheduler, preempt::Error> {
    // Proxies follow each other.
    let builder = Scheduler::builder().device(device.clone()).signal_path(SignalPath::Proxy);
    builder.kernels(device_code::module()).build()
}

fn start_busy(scheduler: &Scheduler) -> Option<Handle<LaunchReport>> {
    fake::hold_spinning(true);
    let mut starts = scheduler.zeroed(1).ok()?;
    let mut out = scheduler.zeroed(THREADS as usize).ok()?;
    let call = kernels::spin_yielding(&mut starts, 1, &mut out).grid(1).block(THREADS);
    scheduler.stream(0).launch(call).ok()
}

/// Launches that count, on one device or the other, before a kernel that runs there.
pub fn take_turns(schedulers: &[Scheduler; 2], found: &mut Found) {
    let mut random = Random(7);
    for (home, tasks) in [(0, 3), (1, 40), (0, 700)] {
        let before = found.errors;
        let scheduler = &schedulers[home];
        let lens = [tasks as usize, (tasks * THREADS) as usize];
        let [first, second] = lens.map(|len| scheduler.zeroed::<u32>(len));
        let (Some(mut counts), Some(mut writes)) = (found.take(first), found.take(second)) else {
            return;
        };
        let mut handles = Vec::new();
        const TURNS: u32 = 6;
        for turn in 0..TURNS {
            // At least one of the moves is direct if any way is.
            let on = if turn < 3 { turn % 2 } else { random.below(2) } as usize;
            let call = kernels::count_1d(&mut counts, &mut writes).grid(tasks).block(THREADS);
            handles.extend(found.take(schedulers[on].stream(5).launch(call)));
        }
        for handle in handles {
            found.take(handle.wait());
        }
        for scheduler in schedulers {
            let copy = scheduler.stream(0).download(&counts).and_then(|copy| copy.wait());
            if let Some(values) = found.take(copy).filter(|_| found.errors == before) {
                let difference = first_difference(&values, &vec![TURNS; lens[0]]);
                found.expect(difference.is_none(), || format!("turns: {difference:?}"));
            }
        }
    }
}

fn case(workload: &str, function: &str, nth: u64, code: u32) -> Case {
    Case { workload: workload.into(), function: function.into(), nth, code }
}

#[test]
fn a_copy_that_hangs_between_two_peers_leaves_the_others_theirs() {
    let outcomes = start(FAKE, &[Case::clean("hanging-peers")]);
    assert!(outcomes.len() == 1 && outcomes.iter().all(Outcome::is_right), "{outcomes:#?}");
}

#[test]
fn contents_move_directly_or_through_the_host() {
    let clean = start(FAKE, &[Case::clean("peers")]);
    assert!(clean.len() == 1 && clean.iter().all(Outcome::is_right), "{clean:#?}");
    let copies = clean[0].calls["cuMemcpyDtoDAsync_v2"];
    let mut right = ["no-peers", "silent-peers", "late-peers"].map(Case::clean).to_vec();
    for function in ["cuDeviceCanAccessPeer", "cuMemPoolSetAccess"] {
        right.extend([1, 2].map(|nth| case("half-peers", function, nth, INVALID_VALUE)));
    }
    let outcomes = start(FAKE, &right);
    let all_right = outcomes.iter().all(Outcome::is_right) && outcomes.len() == right.len();
    assert!(all_right, "{right:?}: {outcomes:#?}");
    // Of an error of a copy an operation is told, and nothing else is wrong.
    let mut failing = vec![case("any-peers", "cuMemcpyDtoDAsync_v2", copies, OUT_OF_MEMORY)];
    let opened = clean[0].opened["cuMemcpyDtoDAsync_v2"];
    failing
        .extend((1..6).map(|nth| case("any-peers", "cuMemcpyDtoDAsync_v2", 2 * opened + nth, 2)));
    let outcomes = start(FAKE, &failing);
    let ends =
        |outcome: &Outcome| outcome.is_over && outcome.wrong.is_empty() && outcome.failures == 1;
    assert!(outcomes.len() == failing.len() && outcomes.iter().all(ends), "{outcomes:#?}");
    for nth in [1, 2] {
        for function in ["cuDeviceCanAccessPeer", "cuMemPoolSetAccess"] {
            let lost = start(FAKE, &[case("any-peers", function, nth, LAUNCH_FAILED)]);
            assert!(lost.len() == 1 && lost.iter().all(ends), "{function}: {lost:#?}");
        }
    }
}
