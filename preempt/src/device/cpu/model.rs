//! The CPU device with threads of shuttle's, and block-tasks that do nothing but count.
//!
//! Blocks are placed as on the CPU device and run the worker loop; each is a thread, and so is each copy, so they end
//! and are reported in any order. A kernel with yield points drops its block-task where it has to leave. One that is
//! called `faulty` goes wrong, one called `patient` ends when it is told to, and the device can be [lost](Model::lose) at any moment.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use preempt_device::abi::{
    COHORT_SLOTS, Cohort, ControlBlock, DeviceQueue, Post, RequeueList, Signal,
};
use preempt_device::host::{Dim3, Kernel};
use preempt_device::worker;

use super::block::Resident;
use super::dispatch::{Demand, Dispatch, PendingGrid};
use super::memory::Memory;
use super::{News, lock};
use crate::device::{
    Backend, ControlMemory, Copy, Device, Drops, ForeignMemory, KernelLaunch, Occupancy,
    OpaqueWork, PlainLaunch, Properties, RawStream, Report, SignalPath,
};
use crate::error::{DeviceError, Error};
use crate::module::DeviceCode;
use crate::sync::{Mutex, thread};
use crate::vocabulary::{OpKey, QueueCount};

/// The name of a kernel that goes wrong.
const FAULTY: &str = "faulty";

/// The name of a kernel whose block-tasks wait at their yield points until they have to leave.
const PATIENT: &str = "patient";

/// Few, so that launches have to wait for them.
const LANES: QueueCount = QueueCount { normal: 2, urgent: 1, chains: 1 };

/// What a model is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub sms: u32,
    /// Whether the host looks at it all the time, as at a GPU.
    pub is_polled: bool,
    /// Bytes for buffers.
    pub memory: Option<usize>,
}

/// What became of an operation on the device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ran {
    /// How often each block-task ran.
    pub tasks: Vec<u32>,
    /// When the first and the last one did, or the copy, in steps of the device.
    pub steps: Option<[u64; 2]>,
}

pub(crate) struct Model {
    settings: Settings,
    state: Mutex<State>,
    news: News,
    memory: Memory,
    queues: Vec<Arc<DeviceQueue>>,
}

struct State {
    dispatch: Dispatch,
    reports: Vec<Report>,
    ran: HashMap<OpKey, Ran>,
    steps: u64,
    is_lost: bool,
    controls: Vec<(Arc<ControlBlock>, Arc<[Post; COHORT_SLOTS]>)>,
    drops: Vec<&'static RequeueList>,
}

/// What a block that is lost with the device ends with.
struct Lost;

/// Empty lists. Never freed, since they are large: one execution after the other uses them.
static DROP_LISTS: std::sync::Mutex<Vec<&'static RequeueList>> = std::sync::Mutex::new(Vec::new());

impl Model {
    /// A device, and the model behind it.
    pub fn device(settings: Settings) -> (Device, Arc<Model>) {
        let properties = Properties {
            name: "model".into(),
            sms: settings.sms,
            blocks_per_sm: 1,
            threads_per_sm: 1024,
            shared_per_sm: 0,
            shared_per_block: 0,
            driver: None,
        };
        let model = Arc::new(Model {
            settings,
            state: Mutex::new(State {
                dispatch: Dispatch::new(&properties, LANES),
                reports: Vec::new(),
                ran: HashMap::new(),
                steps: 0,
                is_lost: false,
                controls: Vec::new(),
                drops: Vec::new(),
            }),
            news: News::default(),
            memory: Memory::new(settings.memory),
            queues: (0..LANES.normal + LANES.urgent).map(|_| Arc::default()).collect(),
        });
        (Device::new(Arc::new(model.clone()), properties), model)
    }

    /// The device is lost, with all that is on it.
    pub fn lose(&self) {
        let mut state = lock(&self.state);
        state.is_lost = true;
        state.reports.push(Report::Lost("as intended".into()));
        drop(state);
        self.news.announce();
    }

    /// Reports that a copy is over, or opaque work, unless the device is lost by then.
    fn report(&self, op: OpKey, fault: Option<String>) {
        let mut state = lock(&self.state);
        if !state.is_lost {
            state.reports.extend(fault.map(|message| Report::Fault(op, message.into())));
            state.reports.push(Report::CopyDone(op));
        }
        drop(state);
        self.news.announce();
    }

    /// Queues a grid, and starts the blocks that there is room for.
    fn queue(self: &Arc<Self>, queue: u32, grid: PendingGrid) -> Result<(), Error> {
        let mut state = lock(&self.state);
        if state.is_lost {
            return Err(Error::Device(DeviceError::ContextLost { message: "as intended".into() }));
        }
        state.dispatch.queue(queue, grid);
        let blocks = next_blocks(&mut state.dispatch);
        drop(state);
        start(self, blocks);
        Ok(())
    }

    /// What became of an operation until now.
    pub fn ran(&self, op: OpKey) -> Ran {
        lock(&self.state).ran.get(&op).cloned().unwrap_or_default()
    }
}

impl State {
    /// Enters that a block-task ran, or a copy.
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

/// A block, from its start until its room is given back.
fn run(model: &Arc<Model>, block: Resident) {
    let work = || match block.grid.kernel.yields {
        true => block.work(&mut Tasks::<true> { model, block: &block, index: 0 }),
        false => block.work(&mut Tasks::<false> { model, block: &block, index: 0 }),
    };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
        match panic.is::<Lost>() {
            true => return,
            false => resume_unwind(panic),
        }
    }
    let Resident { sm, slot, queue, grid, .. } = block;
    let demand = Demand::of(grid.kernel, grid.block);
    drop(grid);
    let mut state = lock(&model.state);
    state.dispatch.free(sm, slot, demand, queue);
    let blocks = next_blocks(&mut state.dispatch);
    drop(state);
    start(model, blocks);
    model.news.announce();
}

impl Drop for Model {
    fn drop(&mut self) {
        let drops = std::mem::take(&mut lock(&self.state).drops);
        // Blocks may have used them until now, if the device was lost.
        drops.iter().for_each(|list| list.clear());
        DROP_LISTS.lock().expect("no panic").extend(drops);
    }
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

    fn run(&mut self, droppable: bool) -> bool {
        let Resident { op, grid, failed, .. } = self.block;
        // Everybody else goes first, as often as shuttle likes.
        let mut state = lock(&self.model.state);
        while grid.kernel.name == PATIENT && droppable && self.goes_on() && !state.is_lost {
            drop(state);
            thread::yield_now();
            state = lock(&self.model.state);
        }
        if state.is_lost {
            drop(state);
            resume_unwind(Box::new(Lost));
        }
        if YIELDS && droppable && !self.goes_on() {
            return true;
        }
        state.count(*op, self.index);
        // Relaxed: only one of shuttle's threads runs.
        if grid.kernel.name == FAULTY && !failed.swap(true, Ordering::Relaxed) {
            state.reports.push(Report::Fault(*op, "as intended".into()));
        }
        false
    }
}

impl Backend for Arc<Model> {
    fn load(&self, _code: &[DeviceCode]) -> Result<(), Error> {
        for queue in &self.queues {
            queue.signal.store(Signal::default().to_bits(), Ordering::Relaxed);
        }
        Ok(())
    }

    fn queues(&self) -> QueueCount {
        LANES
    }

    fn ticks(&self, time: Duration) -> u32 {
        time.as_nanos() as u32
    }

    fn occupancy(&self, _kernel: &'static Kernel, _block: Dim3) -> Result<Occupancy, Error> {
        Ok(Occupancy { blocks_per_sm: 1, on_last_sm: 1 })
    }

    fn set_signal_path(&self, _path: SignalPath) {}

    fn rest(&self) {}

    fn new_control(&self) -> Result<ControlMemory, Error> {
        let words = (Arc::<ControlBlock>::default(), Arc::<[Post; COHORT_SLOTS]>::default());
        let memory = ControlMemory { control: Arc::as_ptr(&words.0), posts: Arc::as_ptr(&words.1) };
        lock(&self.state).controls.push(words);
        Ok(memory)
    }

    fn take_drops(&self) -> Result<Drops, Error> {
        let own = lock(&self.state).drops.pop();
        let list = own.or_else(|| DROP_LISTS.lock().expect("no panic").pop());
        Ok(Drops(list.unwrap_or_else(|| Box::leak(Box::default()))))
    }

    fn give_back_drops(&self, drops: Drops, is_empty: bool) {
        // SAFETY: lists are never freed.
        let list = unsafe { &*drops.0 };
        if !is_empty {
            list.clear();
        }
        lock(&self.state).drops.push(list);
    }

    fn launch(
        &self,
        op: OpKey,
        queue: u32,
        grid: &Arc<KernelLaunch>,
        cohort: Cohort,
    ) -> Result<(), Error> {
        let cohort = Cohort { queue: Arc::as_ptr(&self.queues[queue as usize]), ..cohort };
        self.queue(queue, PendingGrid::new(op, grid.clone(), cohort))
    }

    fn launch_plain(
        &self,
        op: OpKey,
        queue: u32,
        grid: &Arc<KernelLaunch>,
        plain: PlainLaunch,
    ) -> Result<(), Error> {
        self.queue(queue, PendingGrid::plain(op, grid.clone(), plain, self.settings.sms))
    }

    fn signal(&self, queue: u32, signal: Signal) {
        self.queues[queue as usize].signal.store(signal.to_bits(), Ordering::Relaxed);
    }

    unsafe fn copy(&self, op: OpKey, Copy { from, to, bytes, .. }: Copy) {
        let this = self.clone();
        thread::spawn(move || {
            let mut state = lock(&this.state);
            if state.is_lost {
                return;
            }
            // SAFETY: whoever started the copy keeps both places valid, until the device is lost.
            unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
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

    fn poll(&self, reports: &mut Vec<Report>) {
        reports.append(&mut lock(&self.state).reports);
        // Others go on before the caller does.
        thread::sleep(Duration::ZERO);
    }

    fn is_polled(&self) -> bool {
        self.settings.is_polled
    }

    fn check(&self) {}

    fn mark(&self) -> u64 {
        self.news.mark()
    }

    fn wait(&self, mark: u64, timeout: Duration) {
        self.news.wait(mark, timeout);
    }

    fn announce(&self) {
        self.news.announce();
    }

    fn foreign(&self) -> Option<&dyn ForeignMemory> {
        None
    }

    fn memory_within_reach(&self, _live: usize) -> Option<usize> {
        self.memory.limit
    }

    fn allocate(&self, bytes: usize) -> Result<u64, Error> {
        self.memory.allocate(bytes)
    }

    unsafe fn free(&self, address: u64, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.memory.free(address, bytes) }
    }

    unsafe fn fill(&self, address: u64, data: *const u8, bytes: usize) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(data, address as *mut u8, bytes) };
        Ok(())
    }
}
