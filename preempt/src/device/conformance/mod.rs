//! Checks of the contract at the top of `device/mod.rs`, on any back end.
//!
//! They play the engine's part with one launch at a time, so that what a back end does wrong shows in a check that names
//! it. `cargo test` runs them on the CPU device and on the model; `tests/tests/cuda_faults` on a GPU where there is one,
//! and on its driver without a GPU.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use preempt_device::abi::{COHORT_SLOTS, Posted, Signal, SmRange, departures};
use preempt_device::host::{Amortize, Dim3};
use slotmap::SlotMap;

use super::{CohortEnd, Device, KernelLaunch, Report, Session, SignalPath};
use crate::device::{Contents, Gate, Patience};
use crate::error::Error;
use crate::module::{DeviceCode, Module};
use crate::scheduler::Buffer;
use crate::sync::Instant;
use crate::vocabulary::{After, CohortOrder, ControlUse, Costs, OpKey, QueueIndex, Vicinity};
use crate::{Call, NoGrid};

mod checks;
mod memory;
#[cfg(all(test, not(shuttle)))]
mod tests;

/// The longest that a wait takes here. A lost wake-up takes as long.
const LIMIT: Duration = Duration::from_secs(20);

/// How long gates wait: one that is not told to leave does not do so before a check gives up.
const GATES_WAIT: Duration = Duration::from_secs(60);

/// Rounds of the yielding kernel: enough for a signal to arrive in between.
const ROUNDS: u32 = 400_000;

/// Threads in a block.
const THREADS: u32 = 8;

type TwoBuffers = fn(&mut Buffer<u32>, &mut Buffer<u32>) -> Call<'static, NoGrid>;

/// The kernels that the checks launch.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    /// The device code of all but the last two.
    pub modules: &'static [Module],
    /// `first[task] += 1` by the block, `second[thread] += 1` by each thread.
    pub count: TwoBuffers,
    /// `first[task] += 1`; then the given number of rounds of `x -> 1664525 x + 1013904223` (wrapping) from the thread's number,
    /// with a yield point in each, into `second[thread]`.
    pub yielding: fn(&mut Buffer<u32>, u32, &mut Buffer<u32>) -> Call<'static, NoGrid>,
    /// A kernel that the device reports as a fault of the launch, if there is one.
    pub faulty: Option<TwoBuffers>,
    /// A kernel that the device cannot launch, if there is one.
    pub without_code: Option<TwoBuffers>,
}

/// Runs all checks on a device that no scheduler has.
///
/// # Panics
///
/// If the device does not keep to the contract.
pub fn check(device: &Device, kernels: &Kernels) {
    check_counted(device, kernels, None);
}

/// A check, with a device to itself that was loaded anew.
type Check = fn(&mut Rig<'_>);

/// How often each block-task of a launch ran to its end, on devices whose kernels do not count.
type Ran<'a> = &'a dyn Fn(OpKey) -> Vec<u32>;

/// Keys of operations, which no two checks share.
type Ops = Rc<RefCell<SlotMap<OpKey, ()>>>;

fn check_counted(device: &Device, kernels: &Kernels, ran: Option<Ran<'_>>) {
    device.take().expect("no scheduler has the device");
    let ops = Ops::default();
    for (name, check) in checks::ALL.iter().chain(memory::ALL) {
        println!("{name}");
        check(&mut Rig::new(device, kernels, ran, &ops));
    }
    device.give_back();
}

/// A scheduler's side of a device, with books like the engine's.
struct Rig<'a> {
    device: &'a Device,
    kernels: &'a Kernels,
    ran: Option<Ran<'a>>,
    session: Session,
    ops: Ops,
    controls: Vec<Control>,
    /// The epoch of each queue's last signal.
    epochs: Vec<u64>,
    reports: Vec<Report>,
    start: Instant,
}

#[derive(Default)]
struct Control {
    parity: u8,
    tickets: [u32; COHORT_SLOTS],
    left: [u64; COHORT_SLOTS],
}

/// A launch with the buffers that it writes.
struct Launch {
    op: OpKey,
    kernel: Arc<KernelLaunch>,
    buffers: [Buffer<u32>; 2],
    tasks: u32,
    control: u32,
    done: u32,
}

impl<'a> Rig<'a> {
    fn new(device: &'a Device, kernels: &'a Kernels, ran: Option<Ran<'a>>, ops: &Ops) -> Rig<'a> {
        let code: Vec<_> = kernels.modules.iter().copied().map(DeviceCode::Embedded).collect();
        device.inner.backend.load(&code, SignalPath::default(), 1 << 23).expect("loaded");
        let queues = device.inner.capabilities.queues;
        Rig {
            device,
            kernels,
            ran,
            session: Session::new(device, &Costs::h200(), GATES_WAIT),
            ops: ops.clone(),
            controls: Vec::new(),
            epochs: vec![0; queues.total() as usize],
            reports: Vec::new(),
            start: Instant::now(),
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn op(&mut self) -> OpKey {
        self.ops.borrow_mut().insert(())
    }

    fn buffer(&self, len: usize) -> Buffer<u32> {
        let patience = Patience { timeout: Duration::ZERO, most: 0 };
        Buffer::new(self.device, len, Contents::Zeros, patience, None).expect("memory")
    }

    /// Blocks that fill the device.
    fn workers(&self) -> u32 {
        self.device.properties().sms
    }

    /// A launch of a kernel, of which nothing is on the device yet. It has the first free control block.
    fn prepare(
        &mut self,
        tasks: u32,
        call: impl FnOnce(&mut Buffer<u32>, &mut Buffer<u32>) -> Call<'static, NoGrid>,
    ) -> Launch {
        let lens = [tasks, tasks * THREADS];
        let [mut first, mut second] = lens.map(|len| self.buffer(len as usize));
        let call = call(&mut first, &mut second).grid(tasks).with_its_grid();
        let kernel = Arc::new(KernelLaunch {
            kernel: call.kernel(),
            args: call.into_args(),
            block: Dim3::new(THREADS, 1, 1),
            grid: [tasks, 1, 1],
            amortize: Amortize::Auto,
            leaves_place: false,
        });
        if self.controls.is_empty() {
            self.controls.push(Control::default());
        }
        let buffers = [first, second];
        Launch { op: self.op(), kernel, buffers, tasks, control: 0, done: 0 }
    }

    fn counting(&mut self, tasks: u32) -> Launch {
        self.prepare(tasks, self.kernels.count)
    }

    fn yielding(&mut self, tasks: u32) -> Launch {
        let call = self.kernels.yielding;
        self.prepare(tasks, |starts, out| call(starts, ROUNDS, out))
    }

    /// The order for a cohort of a launch in an empty queue.
    fn order(&mut self, launch: &Launch, queue: QueueIndex) -> CohortOrder {
        let epoch = &mut self.epochs[queue as usize];
        *epoch += 1;
        let control = &mut self.controls[launch.control as usize];
        control.tickets[0] += 1;
        CohortOrder {
            op: launch.op,
            queue,
            control: ControlUse { control: launch.control, parity: control.parity },
            slot: 0,
            ticket: control.tickets[0],
            left: control.left[0],
            signal: Signal::new(*epoch, SmRange::ALL),
            plain: false,
            blocks: self.device.properties().sms.min(launch.tasks),
            workers: self.device.properties().sms,
            handed: 0,
            is_first: false,
            after: None,
            gated: false,
            over: None,
            tells_progress: false,
            vicinity: Vicinity { on_sm: 1, meets: 0, others: 0, is_behind: false, may_ask: false },
        }
    }

    fn launch(&mut self, launch: &Launch, order: &CohortOrder) {
        let now = self.now();
        self.session.launch(now, order, &launch.kernel).expect("launched");
    }

    /// Launches a cohort behind a gate, which is in an empty queue then.
    fn launch_gated(&mut self, launch: &Launch, queue: QueueIndex) -> Gate {
        self.device.inner.backend.expect_gates();
        let order = CohortOrder { gated: true, ..self.order(launch, queue) };
        self.launch(launch, &order);
        Gate::of(&order)
    }

    /// Takes all SMs from the cohort that runs in a queue.
    fn stop(&mut self, queue: QueueIndex) {
        let now = self.now();
        self.epochs[queue as usize] += 1;
        self.session.signal(now, queue, Signal::new(self.epochs[queue as usize], SmRange::EMPTY));
    }

    /// Waits for the next reports.
    fn next_reports(&mut self) -> Vec<Report> {
        let start = Instant::now();
        loop {
            let mark = self.device.inner.mark();
            self.session.poll(Duration::ZERO, &mut self.reports);
            if !self.reports.is_empty() {
                return std::mem::take(&mut self.reports);
            }
            self.device.inner.wait(mark, LIMIT);
            assert!(start.elapsed() < LIMIT, "nothing is reported, or a wake-up was lost");
        }
    }

    /// Waits for the end of a cohort, which comes without a fault.
    fn cohort_out(&mut self, launch: &mut Launch) -> CohortEnd {
        let end = self.next_end(launch.op);
        self.depart(launch, &end);
        end
    }

    /// The next report, which is the end of a cohort of this operation.
    fn next_end(&mut self, op: OpKey) -> CohortEnd {
        let mut reports = self.next_reports();
        assert_eq!(reports.len(), 1, "{reports:?}");
        match reports.pop() {
            Some(Report::CohortOut(end)) if end.order.op == op => end,
            other => panic!("{other:?}"),
        }
    }

    /// Adds what a cohort did to its launch.
    fn depart(&mut self, launch: &mut Launch, end: &CohortEnd) {
        let CohortEnd { order, posted: Posted { done, .. }, .. } = end;
        launch.done += done;
        assert!(launch.done <= launch.tasks, "{} of {} tasks", launch.done, launch.tasks);
        if !order.plain {
            let left = &mut self.controls[launch.control as usize].left[usize::from(order.slot)];
            *left = left.wrapping_add(departures(order.blocks, *done));
        }
    }

    /// Waits for the end of an operation other than a launch, and returns its fault.
    fn copy_done(&mut self, op: OpKey) -> Option<String> {
        let mut fault = None;
        loop {
            for report in self.next_reports() {
                match report {
                    Report::Fault(of, message) if of == op => fault = Some(message.to_string()),
                    Report::CopyDone(of) if of == op => return fault,
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    /// Retires a launch, which has no cohort on the device and gets no further one.
    fn retire(&mut self, launch: &Launch, ran_cohorts: bool) {
        self.session.retire(launch.op, launch.done == launch.tasks);
        // Cohorts have zeroed the other claims.
        self.controls[launch.control as usize].parity ^= u8::from(ran_cohorts);
    }

    /// The contents of a buffer.
    fn read(&mut self, buffer: &Buffer<u32>) -> Vec<u32> {
        memory::download(self, buffer)
    }

    /// Every block-task of a launch of the counting kernel ran `times` times.
    fn expect_counts(&mut self, launch: &Launch, times: u32) {
        let Some(ran) = self.ran else {
            for buffer in &launch.buffers {
                let counts = self.read(buffer);
                assert!(counts.iter().all(|&count| count == times), "{counts:?}, not {times} each");
            }
            return;
        };
        let mut counts = ran(launch.op);
        counts.resize(launch.tasks as usize, 0);
        assert!(counts.iter().all(|&count| count == times), "{counts:?}, not {times} each");
    }

    /// Every block-task of a launch of the yielding kernel ran to its end.
    fn expect_results(&mut self, launch: &Launch) {
        if self.ran.is_some() {
            return self.expect_counts(launch, 1);
        }
        let (mut a, mut c) = (1u32, 0u32);
        for _ in 0..ROUNDS {
            (a, c) =
                (a.wrapping_mul(1_664_525), c.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        }
        let out = self.read(&launch.buffers[1]);
        let wrong = (0..).zip(&out).find(|(x, out)| a.wrapping_mul(*x).wrapping_add(c) != **out);
        assert_eq!(wrong, None);
    }

    /// The word that a cohort's slot holds when its launch is done.
    fn after(&self, launch: &Launch, order: &CohortOrder) -> After {
        let rest = launch.tasks - launch.done;
        let left = order.left.wrapping_add(departures(order.blocks, rest));
        After { control: launch.control, slot: order.slot, left }
    }

    /// The device's answer to a kernel that it has no code for.
    fn try_launch(&mut self, launch: &Launch) -> Result<(), Error> {
        let order = self.order(launch, 0);
        let now = self.now();
        self.session.launch(now, &order, &launch.kernel)
    }
}
