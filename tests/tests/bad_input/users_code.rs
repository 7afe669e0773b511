//! Policies and callbacks that go wrong.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use preempt::policy::{Arrival, DeviceView, Plan, Policy};
use preempt::{Error, Handle, LaunchId, LaunchReport, Scheduler};
use preempt_device::abi::SmRange;
use preempt_test_kit::{Gate, gated};

use super::Setup;
use preempt::error::SchedulerError;

/// Gives one wrong answer, in different ways.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Nonsense {
    Nothing,
    BeyondTheDevice,
    Overlap,
    Gone,
    Panic,
    PanicOnAdmission,
    PanicOnArrival,
    PanicOnChange,
    PanicOnDeparture,
    PanicAboutWaking,
}

struct Wrong {
    how: Nonsense,
    launches: Vec<LaunchId>,
}

impl Wrong {
    fn panics(&self, how: Nonsense) {
        assert!(self.how != how, "this policy panics, as a test asks: {how:?}");
    }
}

impl Policy for Wrong {
    fn name(&self) -> &str {
        "wrong"
    }

    fn admits(&mut self, _now: Duration, _launch: &Arrival, _device: &dyn DeviceView) -> bool {
        self.panics(Nonsense::PanicOnAdmission);
        true
    }

    fn arrived(&mut self, _now: Duration, launch: Arrival) {
        self.panics(Nonsense::PanicOnArrival);
        self.launches.push(launch.id);
    }

    fn changed(&mut self, _now: Duration, _launch: Arrival) {
        self.panics(Nonsense::PanicOnChange);
    }

    fn departed(&mut self, _now: Duration, launch: LaunchId) {
        self.panics(Nonsense::PanicOnDeparture);
        if !matches!(self.how, Nonsense::Gone) {
            self.launches.retain(|&other| other != launch);
        }
    }

    fn assign(&mut self, _now: Duration, device: &dyn DeviceView, plan: &mut Plan) {
        let all = SmRange::new(0, device.sms());
        let newest = self.launches.last().copied();
        match self.how {
            Nonsense::Nothing => {}
            Nonsense::BeyondTheDevice => {
                newest.into_iter().for_each(|id| plan.grant(id, SmRange::new(0, device.sms() + 1)));
            }
            Nonsense::Overlap => {
                self.launches.iter().for_each(|&id| plan.grant(id, all));
            }
            // Launches in order, and a launch that is long done.
            Nonsense::Gone => plan.grant(self.launches[0], all),
            Nonsense::Panic => panic!("this policy panics, as a test asks"),
            // A sensible answer, until the hook is called.
            _ => self.launches.first().into_iter().for_each(|&id| plan.grant(id, all)),
        }
    }

    fn wake(&self) -> Option<Duration> {
        self.panics(Nonsense::PanicAboutWaking);
        None
    }
}

#[test]
fn a_policy_that_answers_nonsense_is_replaced_and_named() {
    for (how, reason) in [
        (Nonsense::Nothing, "granted no SM to any of"),
        (Nonsense::BeyondTheDevice, "of a device that has 2"),
        (Nonsense::Overlap, "twice"),
        (Nonsense::Gone, "not waiting or running"),
        (Nonsense::Panic, "this policy panics"),
        (Nonsense::PanicOnAdmission, "PanicOnAdmission"),
        (Nonsense::PanicOnArrival, "PanicOnArrival"),
        (Nonsense::PanicOnChange, "PanicOnChange"),
        (Nonsense::PanicOnDeparture, "PanicOnDeparture"),
        (Nonsense::PanicAboutWaking, "PanicAboutWaking"),
    ] {
        let mut setup = Setup::on(Scheduler::builder().policy(Wrong { how, launches: vec![] }));
        assert!(setup.scheduler.policy_error().is_none());
        // A launch that is done, a launch that stands still, and then several that wait for each other.
        let gate = Gate::new(&setup.scheduler);
        let (mut first_log, mut log) = (setup.zeroed(), setup.zeroed());
        let open = Gate::new(&setup.scheduler);
        open.open();
        let first = setup.stream.launch(gated(&open.0, &mut first_log, 0).grid(1));
        assert_eq!(first.expect("accepted").wait().expect("it runs all the same").tasks, 1);
        let running = setup.scheduler.stream(0).launch(gated(&gate.0, &mut log, 1).grid(50));
        let mut handles = vec![running.expect("accepted")];
        handles[0].set_priority(1);
        for _ in 0..4 {
            let call = setup.count().grid(50).block(32);
            handles.push(setup.scheduler.stream(0).launch(call).expect("accepted"));
        }
        gate.open();
        for handle in &handles {
            assert_eq!(handle.wait().expect("it runs all the same").tasks, 50, "{how:?}");
        }
        let counts = setup.stream.download(&setup.counts).expect("accepted").wait();
        assert_eq!(counts.expect("copied")[..50], [4; 50]);
        let error = setup.scheduler.synchronize().expect_err("the policy was replaced");
        assert_error!(
            &error,
            Error::Scheduler(SchedulerError::PolicyReplaced { .. }),
            "policy `wrong`"
        );
        assert!(error.to_string().contains(reason), "{how:?}: {error}");
    }
}

/// Panics when it is called.
struct BadWaker;

impl Wake for BadWaker {
    fn wake(self: Arc<Self>) {
        panic!("this waker panics, as a test asks");
    }
}

#[test]
fn a_callback_that_panics_harms_no_other_operation() {
    let mut setup = Setup::new();
    let waker = Waker::from(Arc::new(BadWaker));
    let mut handles = Vec::new();
    for _ in 0..20 {
        let call = setup.count().grid(50).block(32);
        let mut handle = Box::pin(setup.stream.launch(call).expect("accepted"));
        let _ = Future::poll(handle.as_mut(), &mut Context::from_waker(&waker));
        handles.push(handle);
    }
    for handle in &handles {
        assert_eq!(handle.wait().expect("it runs").tasks, 50);
    }
    setup.scheduler.synchronize().expect("nothing else is wrong");
}

/// Waits for another operation when it is called.
struct WaitingWaker(Mutex<Option<Handle<LaunchReport>>>, Sender<Result<LaunchReport, Error>>);

impl Wake for WaitingWaker {
    fn wake(self: Arc<Self>) {
        if let Some(handle) = self.0.lock().expect("not poisoned").take() {
            // The test may be over.
            let _ = self.1.send(handle.wait());
        }
    }
}

#[test]
fn a_callback_may_wait_for_another_operation() {
    let setup = Setup::new();
    let (gate, later) = (Gate::new(&setup.scheduler), Gate::new(&setup.scheduler));
    let (mut log, mut later_log) = (setup.zeroed(), setup.zeroed());
    let handle = setup.stream.launch(gated(&gate.0, &mut log, 1).grid(1)).expect("accepted");
    let other = setup.stream.launch(gated(&later.0, &mut later_log, 2).grid(1)).expect("accepted");
    let (sender, receiver) = channel();
    let waker = Waker::from(Arc::new(WaitingWaker(Mutex::new(Some(other)), sender)));
    let mut handle = Box::pin(handle);
    assert!(Future::poll(handle.as_mut(), &mut Context::from_waker(&waker)).is_pending());
    // Only the poller is there to call the waker, and then to see the other launch end.
    gate.open();
    later.wait_for(1);
    later.open();
    let result = receiver.recv().expect("the waker was called");
    assert_eq!(result.expect("runs").tasks, 1);
}
