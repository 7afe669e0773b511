//! A panic in a kernel ends the context; its record says where that was.

use std::time::Duration;

use preempt::error::{DeviceError, LaunchError};
use preempt::{Device, Error, Handle, LaunchReport, Preemption, Scheduler};
use preempt_test_kernels as kernels;

use crate::device_code;
use crate::fake::{self, Trace};
use crate::workloads::Found;
use crate::{Case, FAKE, LAUNCH_FAILED, start};

/// The workloads: what the panic leaves, and whether its launch is a plain one, or one of two.
const WORKLOADS: [(&str, Trace, Panics); 8] = [
    ("panic-preemptible", Trace::Record, Panics::Preemptible),
    ("panic-plain", Trace::Record, Panics::Plain),
    ("panic-program", Trace::Record, Panics::Program),
    ("panic-twins", Trace::Record, Panics::Twins),
    ("panic-behind", Trace::Record, Panics::Behind),
    ("panic-silent", Trace::Nothing, Panics::Preemptible),
    ("panic-unknown", Trace::Unknown, Panics::Preemptible),
    ("panic-unknown-plain", Trace::Unknown, Panics::Plain),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Panics {
    Preemptible,
    Plain,
    /// The second call of a program.
    Program,
    /// Two plain ones of the same kernel run at the same time.
    Twins,
    /// Another plain one of the same kernel is behind it. The host cannot know whether the first one was over.
    Behind,
}

const PLACE: &str = "block-task (1, 0, 0): thread (3, 0, 0) panicked";

/// Runs a workload of this module in the child.
pub fn run(name: &str, device: &Device, found: &mut Found) -> bool {
    let Some(&(_, trace, panics)) = WORKLOADS.iter().find(|(workload, ..)| *workload == name)
    else {
        return false;
    };
    let builder = Scheduler::builder().device(device.clone());
    let scheduler = builder.kernels(device_code::module()).build().expect("a scheduler");
    fake::hold_panics(trace);
    let (batch, urgent) = (scheduler.stream(0), scheduler.stream(9));
    let tasks = device.properties().sms;
    let mut starts = scheduler.zeroed::<u32>(tasks as usize).expect("memory");
    let mut out = scheduler.zeroed::<u32>(64 * tasks as usize).expect("memory");
    let mut counts: Vec<_> = (0..3).map(|_| scheduler.zeroed::<u32>(20).expect("memory")).collect();
    let mut launches = counts.iter_mut().map(|counts| kernels::panics(1, counts).grid(2).block(32));
    let preemption =
        if panics == Panics::Preemptible { Preemption::Preemptible } else { Preemption::Plain };
    let mut other = scheduler.zeroed::<u32>(1).expect("memory");
    let zeroed = |len: usize| scheduler.zeroed::<u32>(len).expect("memory");
    let (mut counted, mut writes) = (zeroed(1), zeroed(32));
    // Before anything runs, because the driver may wait for that.
    let programs: Vec<_> = (0..if panics == Panics::Program { 1 } else { 0 })
        .map(|_| {
            let program = urgent.program("program", |program| {
                program.preemption(Preemption::Plain);
                program.fill(&mut other, 1)?;
                program.launch(launches.next().expect("enough")).map(drop)
            });
            program.expect("recorded")
        })
        .collect();
    let mut programs = programs.iter();
    let mut launch = |stream: &preempt::Stream| match programs.next() {
        Some(program) => stream.launch_program(program).expect("accepted"),
        None => {
            let call = launches.next().expect("enough").preemption(preemption);
            stream.launch(call).expect("accepted")
        }
    };
    // It ends when the context fails.
    let spins = kernels::spin_yielding(&mut starts, u32::MAX, &mut out).grid(tasks).block(64);
    let victim = batch.launch(spins).expect("accepted");
    let panicked = launch(&urgent);
    let behind = match panics {
        Panics::Plain | Panics::Program => {
            let call = kernels::count_1d(&mut counted, &mut writes).grid(1).block(32);
            urgent.launch(call.preemption(Preemption::Plain)).expect("accepted")
        }
        Panics::Preemptible | Panics::Twins | Panics::Behind => launch(&urgent),
    };
    let twin = (panics == Panics::Twins).then(|| launch(&scheduler.stream(9)));
    // Both of them on the device, or the second in its queue: before that the host knows which one panicked.
    let are_there = || match panics {
        Panics::Twins => fake::held() == 2,
        Panics::Behind => fake::launched() == 2,
        Panics::Preemptible | Panics::Plain | Panics::Program => true,
    };
    while !are_there() {
        // A thread that waits has the scheduler go on.
        let _ = victim.wait_timeout(Duration::from_millis(1));
    }
    fake::let_panic();

    let mut expect = |what: &str, handle: &Handle<LaunchReport>, is_panicked: bool| {
        let error = handle.wait().expect_err("the context is lost");
        let (name, place) = match panics {
            Panics::Program => ("program", format!("call 1, kernel `panics`: {PLACE}")),
            _ => ("panics", PLACE.to_owned()),
        };
        let is_own = matches!(
            &error,
            Error::Launch(LaunchError::KernelFailed { kernel, message })
                if *kernel == name && message.starts_with(&place) && message.contains("start the process anew")
        );
        let is_others = matches!(
            &error,
            Error::Device(DeviceError::ContextLost { message }) if message.ends_with(&reason(trace))
        );
        let is_right = if is_panicked { is_own } else { is_others };
        found.expect(is_right, || format!("{what}: {error}"));
    };
    // A launch of a preemptible entry is known by its post, and a plain one by its kernel.
    let is_known = match trace {
        Trace::Record => !matches!(panics, Panics::Twins | Panics::Behind),
        Trace::Unknown => panics == Panics::Preemptible,
        Trace::Nothing => false,
    };
    expect("the launch", &panicked, is_known);
    expect("the launch behind it", &behind, false);
    expect("the other kernel", &victim, false);
    if let Some(twin) = &twin {
        expect("the other launch", twin, false);
    }
    let later = scheduler.zeroed::<u32>(1).expect_err("the context is lost").to_string();
    found.expect(later.contains(&reason(trace)), || format!("later: {later}"));
    found.is_lost = true;
    true
}

/// What all that is lost with the context says.
fn reason(trace: Trace) -> String {
    match trace {
        Trace::Record => format!("kernel `panics` failed: {PLACE}"),
        Trace::Unknown => format!("a kernel failed: {PLACE}"),
        // Of whichever call was the first.
        Trace::Nothing => {
            ": an error without a name (719), the driver does not say more".to_owned()
        }
    }
}

#[test]
fn a_panic_says_where_it_was() {
    for (workload, ..) in WORKLOADS {
        // No call is made to fail; the kernel costs the context.
        let case = Case { code: LAUNCH_FAILED, ..Case::clean(workload) };
        let outcomes = start(FAKE, &[case]);
        let is_right = |outcome: &crate::Outcome| {
            outcome.is_over && outcome.is_lost && outcome.wrong.is_empty()
        };
        assert!(outcomes.len() == 1 && outcomes.iter().all(is_right), "{workload}: {outcomes:#?}");
    }
}
