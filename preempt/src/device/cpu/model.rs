//! The CPU device with threads of shuttle's, and block-tasks that do nothing but count.
//!
//! Blocks are placed as on the CPU device and run the worker loop; each is a thread, and so is each copy, so they end
//! and are reported in any order. A kernel with yield points requeues its block-task where it has to leave. A kernel
//! called `faulty` goes wrong, the yield points of `patient` wait until it has to leave, and the device can be [lost](Model::lose) at any moment.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use preempt_device::abi::Signal;
use preempt_device::host::{Dim3, Kernel};
use preempt_device::worker;

use super::block::Resident;
use super::dispatch::{Demand, Dispatch, PendingGrid, Waiting};
use super::memory::Memory;
use super::program;
use crate::device::control::{ControlSource, Grid, HostWords, PlainGrid};
use crate::device::rows::copy_rows;
use crate::device::{
    Backend, Capabilities, Copy, Device, DeviceMemory, DeviceReport, Gate, KernelLaunch, Loss,
    Mark, News, Occupancy, OpaqueWork, Owner, Piece, Place, ProgramLaunch, Properties, RawStream,
    SignalPath, Step, lock,
};
use crate::error::{DeviceError, Error};
use crate::module::DeviceCode;
use crate::sync::{Mutex, thread};
use crate::vocabulary::{Costs, OpKey, QueueCount, Vicinity};

/// The name of a kernel that goes wrong.
const FAULTY: &str = "faulty";

/// The name of a kernel whose block-tasks wait at their yield points until they have to leave.
const PATIENT: &str = "patient";

/// Few queues, so that launches have to wait for them.
const QUEUES: QueueCount = QueueCount { normal: 2, urgent: 1, levels: 1, chains: 1 };

/// The properties of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub sms: u32,
    /// Whether the host has to poll it, as it polls a GPU.
    pub is_polled: bool,
    /// Bytes for buffers.
    pub memory: Option<usize>,
}

/// The history of an operation on the device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ran {
    /// How often each block-task ran.
    pub tasks: Vec<u32>,
    /// Steps of the device at which the first and the last block-task ran, or the copy.
    pub steps: Option<[u64; 2]>,
}

pub(crate) struct Model {
    settings: Settings,
    waiting: Arc<Waiting>,
    state: Mutex<State>,
    news: Arc<News>,
    memory: Memory,
    words: HostWords,
}

struct State {
    dispatch: Dispatch,
    reports: Vec<DeviceReport>,
    ran: HashMap<OpKey, Ran>,
    steps: u64,
    is_lost: bool,
    /// Calls of these: `poll`, `launch`, `maintain`.
    calls: Vec<&'static str>,
}

/// The panic payload of a block that is lost with the device.
struct Lost;

impl Model {
    /// A device, and the model behind it.
    pub fn device(settings: Settings) -> (Device, Arc<Model>) {
        let properties = Properties {
            name: "model".into(),
            compute_capability: None,
            clock_khz: 1_000_000,
            sms: settings.sms,
            blocks_per_sm: 1,
            threads_per_sm: 1024,
            shared_per_sm: 0,
            shared_per_block: 0,
            driver: None,
        };
        let dispatch = Dispatch::new(&properties, QUEUES);
        let model = Arc::new(Model {
            settings,
            waiting: dispatch.waiting(),
            state: Mutex::new(State {
                dispatch,
                reports: Vec::new(),
                ran: HashMap::new(),
                steps: 0,
                is_lost: false,
                calls: Vec::new(),
            }),
            news: Arc::default(),
            memory: Memory::new(settings.memory, Place::HOST),
            words: HostWords::new(QUEUES),
        });
        let is_polled = settings.is_polled;
        let costs = Costs::h200();
        let capabilities =
            Capabilities { queues: QUEUES, clock: 1_000_000, is_polled, costs, measuring: None };
        let backend = Arc::new(model.clone());
        let news = model.news.clone();
        (Device::new(Piece { backend, properties, capabilities, news }, None), model)
    }

    /// Loses the device, with everything on it.
    #[cfg_attr(not(shuttle), allow(dead_code, reason = "interleavings lose it"))]
    pub fn lose(&self) {
        let mut state = lock(&self.state);
        state.is_lost = true;
        let loss = Loss { message: "as intended".into(), panic: None };
        state.reports.push(DeviceReport::Lost(loss));
        drop(state);
        self.news.announce();
    }

    /// Reports that a copy or opaque work is over, unless the device is lost by then.
    fn report(&self, op: OpKey, fault: Option<String>) {
        let mut state = lock(&self.state);
        if !state.is_lost {
            state.reports.extend(fault.map(|message| DeviceReport::Fault(op, message.into())));
            state.reports.push(DeviceReport::CopyDone(op));
        }
        drop(state);
        self.news.announce();
    }

    /// The history of an operation so far.
    pub fn ran(&self, op: OpKey) -> Ran {
        lock(&self.state).ran.get(&op).cloned().unwrap_or_default()
    }

    /// Calls of `poll`, `launch` and `maintain` so far.
    #[cfg_attr(shuttle, allow(dead_code, reason = "interleavings look at what runs"))]
    pub fn calls(&self) -> Vec<&'static str> {
        lock(&self.state).calls.clone()
    }

    /// The history of all operations so far.
    #[cfg_attr(not(shuttle), allow(dead_code, reason = "interleavings look at it"))]
    pub fn all_ran(&self) -> Vec<Ran> {
        lock(&self.state).ran.values().cloned().collect()
    }
}

impl State {
    /// Counts a run of a block-task, or of a copy.
    fn count(&mut self, op: OpKey, task: u32) {
        let step = self.steps;
        self.steps += 1;
        let Ran { tasks, steps } = self.ran.entry(op).or_default();
        let task = task as usize;
        tasks.resize(tasks.len().max(task + 1), 0);
        tasks[task] += 1;
        steps.get_or_insert([step; 2])[1] = step;
    }
}

fn next_blocks(dispatch: &mut Dispatch) -> Vec<Resident> {
    std::iter::from_fn(|| dispatch.next_block()).map(|(_, resident)| resident).collect()
}

fn start(model: &Arc<Model>, blocks: Vec<Resident>) {
    for block in blocks {
        let model = model.clone();
        thread::spawn(move || run(&model, block));
    }
}

/// Opens a gate, or closes it.
fn pass_gate(model: &Arc<Model>, gate: Gate, open: bool) {
    let mut state = lock(&model.state);
    if state.is_lost {
        return;
    }
    state.dispatch.pass_gate(gate, |words| {
        if open {
            model.words.open(gate, words);
        }
    });
    let blocks = next_blocks(&mut state.dispatch);
    drop(state);
    start(model, blocks);
}

/// Runs a block, from its start until its slot is free again.
fn run(model: &Arc<Model>, block: Resident) {
    let fails = |_| unreachable!("no scenario captures work");
    let work = || match block.launch.kernel.yields {
        true => {
            block.work(&mut Tasks::<true> { model, block: &block, index: 0 }, &model.waiting, fails)
        }
        false => block.work(
            &mut Tasks::<false> { model, block: &block, index: 0 },
            &model.waiting,
            fails,
        ),
    };
    let left = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(left) => left,
        Err(panic) if panic.is::<Lost>() => return,
        Err(panic) => resume_unwind(panic),
    };
    let Resident { sm, slot, queue, launch, run, .. } = block;
    let demand = Demand::of(&launch);
    drop((launch, run));
    let mut state = lock(&model.state);
    state.dispatch.free(sm, slot, demand, queue, left);
    let blocks = next_blocks(&mut state.dispatch);
    drop(state);
    start(model, blocks);
    model.news.announce();
}

/// Block-tasks that count; `YIELDS` says whether the kernel has yield points.
struct Tasks<'a, const YIELDS: bool> {
    model: &'a Model,
    block: &'a Resident,
    index: u32,
}

impl<const YIELDS: bool> Tasks<'_, YIELDS> {
    /// Whether the block's launch has its SM.
    fn goes_on(&self) -> bool {
        self.block.run.cohort().is_none_or(|cohort| {
            // SAFETY: the device has its queues as long as it lives.
            unsafe { &*cohort.queue }.grants(cohort.signal, self.block.sm)
        })
    }
}

impl<const YIELDS: bool> worker::Body for Tasks<'_, YIELDS> {
    const YIELDS: bool = YIELDS;

    fn seek(&mut self, index: u32) {
        self.index = index;
    }

    fn index(&self) -> u32 {
        self.index
    }

    fn run(&mut self, requeues: u32) -> bool {
        let requeueable = requeues < worker::MAX_REQUEUES;
        let Resident { op, launch, failed, .. } = self.block;
        // Other threads go first, as often as shuttle likes.
        let mut state = lock(&self.model.state);
        while launch.kernel.name == PATIENT && requeueable && self.goes_on() && !state.is_lost {
            drop(state);
            thread::yield_now();
            state = lock(&self.model.state);
        }
        if state.is_lost {
            drop(state);
            resume_unwind(Box::new(Lost));
        }
        if YIELDS && requeueable && !self.goes_on() {
            return true;
        }
        state.count(*op, self.block.run.first_task() + self.index);
        // Relaxed: only one of shuttle's threads runs.
        if launch.kernel.name == FAULTY && !failed.swap(true, Ordering::Relaxed) {
            state.reports.push(DeviceReport::Fault(*op, "as intended".into()));
        }
        false
    }
}

impl Backend for Arc<Model> {
    fn load(&self, _: &[DeviceCode], _: SignalPath, _: usize) -> Result<(), Error> {
        // Control blocks stay, because blocks of a lost device may still read theirs.
        self.words.forget_signals();
        Ok(())
    }

    fn occupancy(
        &self,
        _kernel: &'static Kernel,
        _block: Dim3,
        _shared: u32,
        _tasks: u32,
    ) -> Result<Occupancy, Error> {
        Ok(Occupancy::even(1))
    }

    fn rest(&self) {}

    fn control(&self) -> &dyn ControlSource {
        &self.words
    }

    fn memory(&self) -> &dyn DeviceMemory {
        &self.memory
    }

    unsafe fn launch(
        &self,
        op: OpKey,
        queue: u32,
        launch: &Arc<KernelLaunch>,
        grid: Grid,
        _: Vicinity,
    ) -> Result<(), Error> {
        let word = self.words.queue(queue);
        let grid = PendingGrid::new(op, launch.clone(), grid, word, self.settings.sms);
        let mut state = lock(&self.state);
        state.calls.push("launch");
        if state.is_lost {
            return Err(Error::Device(DeviceError::ContextLost { message: "as intended".into() }));
        }
        state.dispatch.queue(queue, grid);
        let blocks = next_blocks(&mut state.dispatch);
        drop(state);
        start(self, blocks);
        Ok(())
    }

    unsafe fn prepare(&self, programs: &[&[Step]]) -> Result<Vec<Owner>, Error> {
        Ok(programs.iter().map(|_| Arc::new(()) as Owner).collect())
    }

    unsafe fn launch_program(
        &self,
        op: OpKey,
        queue: u32,
        program: &ProgramLaunch,
        grid: PlainGrid,
    ) -> Result<(), Error> {
        let mut state = lock(&self.state);
        if state.is_lost {
            return Err(Error::Device(DeviceError::ContextLost { message: "as intended".into() }));
        }
        for grid in program::grids(op, program, grid, self.settings.sms) {
            state.dispatch.queue(queue, grid);
        }
        let blocks = next_blocks(&mut state.dispatch);
        drop(state);
        start(self, blocks);
        Ok(())
    }

    fn gate(&self, gate: Gate, limit: Duration) -> Result<*const AtomicU64, Error> {
        lock(&self.state).dispatch.gate(gate);
        let this = self.clone();
        thread::spawn(move || {
            // With shuttle it may be over at any moment.
            thread::sleep(limit);
            pass_gate(&this, gate, false);
        });
        Ok(self.words.opened(gate.queue))
    }

    fn open_gate(&self, gate: Gate) {
        pass_gate(self, gate, true);
    }

    fn close_gate(&self, gate: Gate) {
        pass_gate(self, gate, false);
    }

    fn hint(&self, gate: u32, words: &[(u32, Signal)]) {
        lock(&self.state).dispatch.hint(gate, words);
    }

    fn signal(&self, queue: u32, signal: Signal) {
        self.words.signal(queue, signal);
    }

    unsafe fn copy(&self, op: OpKey, Copy { from, to, rows, .. }: Copy) {
        let this = self.clone();
        thread::spawn(move || {
            let mut state = lock(&this.state);
            if state.is_lost {
                return;
            }
            // SAFETY: both places are valid until the copy is reported or the device is lost.
            unsafe { copy_rows(from as *const u8, to as *mut u8, rows) };
            state.count(op, 0);
            drop(state);
            this.report(op, None);
        });
    }

    fn opaque(&self, op: OpKey, work: OpaqueWork) {
        let result = work(RawStream::NONE);
        lock(&self.state).count(op, 0);
        self.report(op, result.err());
    }

    fn poll(&self, reports: &mut Vec<DeviceReport>) {
        let mut state = lock(&self.state);
        state.calls.push("poll");
        reports.append(&mut state.reports);
        drop(state);
        // Lets other threads run before the caller goes on.
        thread::sleep(Duration::ZERO);
    }

    fn maintain(&self) {
        lock(&self.state).calls.push("maintain");
    }

    fn wait(&self, since: Mark, timeout: Duration) {
        self.news.wait(since, timeout);
    }
}
