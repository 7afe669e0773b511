//! The CPU device: an emulated GPU on host threads, running the same worker loop.
//!
//! | file | what it emulates |
//! | --- | --- |
//! | `dispatch` | the hardware's block scheduler: which pending block goes to which SM |
//! | `block` | a resident block: the worker loop around block-tasks |
//! | `threads` | the threads of a block-task: barriers, shuffles, votes |
//! | `memory` | memory for buffers |
//! | `program` | a grid for each call of a program |
//!
//! `model` is the same with block-tasks that only count, for the scheduler's tests on shuttle.

use crate::vocabulary::{Costs, OpKey, QueueCount, Vicinity};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use preempt_device::abi::Signal;
use preempt_device::host::{Dim3, Kernel};

use super::control::{ControlSource, Grid, HostWords, PlainGrid};
use super::rows::copy_rows;
use super::{
    Backend, Capabilities, Copy, DeviceMemory, DeviceReport, Gate, KernelLaunch, Mark, News,
    Occupancy, OpaqueWork, Owner, Piece, Place, ProgramLaunch, Properties, RawStream, SignalPath,
    Step, lock,
};
use crate::error::{CodeError, DeviceError, Error};
use crate::foreign::Foreign;
use crate::module::DeviceCode;
use crate::sync::mpsc::{Sender, channel};
use crate::sync::{Mutex, thread};

mod block;
mod dispatch;
mod memory;
#[cfg(test)]
pub(crate) mod model;
mod program;
#[cfg(target_os = "linux")]
mod shared;
mod threads;

use block::Resident;
use dispatch::{Demand, Dispatch, PendingGrid, Waiting};
pub(super) use memory::Memory;

/// A normal queue costs as little as an urgent one; blocks read a clock of nanoseconds. Rules decide as on
/// an H200, which it stands for.
pub(super) const CAPABILITIES: Capabilities = Capabilities {
    queues: QueueCount { normal: 16, urgent: 3, levels: 5, chains: 4 },
    clock: 1_000_000,
    is_polled: false,
    costs: Costs::h200(),
    measuring: None,
};

/// A device of this size.
pub(super) fn properties(sms: u32, blocks_per_sm: u32) -> Properties {
    Properties {
        name: format!("CPU device, SMs: {sms}, blocks per SM: {blocks_per_sm}"),
        compute_capability: None,
        clock_khz: CAPABILITIES.clock,
        sms,
        blocks_per_sm,
        threads_per_sm: 2048,
        shared_per_sm: 228 << 10,
        shared_per_block: 227 << 10,
        driver: None,
    }
}

/// A device with these properties, and with `memory` bytes for buffers, if those are limited.
pub(super) fn piece(
    properties: Properties,
    memory: Option<usize>,
    has_peers: bool,
) -> Result<Piece, Error> {
    let news = Arc::<News>::default();
    let backend = Arc::new(CpuDevice::new(&properties, (memory, has_peers), news.clone())?);
    Ok(Piece { backend, properties, capabilities: CAPABILITIES, news })
}

pub(super) struct CpuDevice {
    shared: Arc<Shared>,
    limits: Properties,
    memory: Memory,
    /// As the device was made.
    layout: (Option<usize>, bool),
    /// To the thread that copies.
    copies: Mutex<Sender<(OpKey, Copy)>>,
    /// What it is a part of. Kept, and never read.
    whole: OnceLock<Owner>,
}

/// The state that the device's threads share with it.
struct Shared {
    dispatch: Mutex<Dispatch>,
    /// What waits for room there.
    waiting: Arc<Waiting>,
    /// To the thread of each block slot, SM after SM.
    slots: Vec<Mutex<Sender<Resident>>>,
    reports: Mutex<Vec<DeviceReport>>,
    news: Arc<News>,
    /// The words that cohorts point to: a block's thread holds them while the block runs.
    words: HostWords,
}

impl CpuDevice {
    pub fn new(
        properties: &Properties,
        (memory, has_peers): (Option<usize>, bool),
        news: Arc<News>,
    ) -> Result<CpuDevice, Error> {
        let mut receivers = Vec::new();
        let mut slots = Vec::new();
        for _ in 0..properties.sms * properties.blocks_per_sm {
            let (sender, receiver) = channel::<Resident>();
            slots.push(Mutex::new(sender));
            receivers.push(receiver);
        }
        let dispatch = Dispatch::new(properties, CAPABILITIES.queues);
        let shared = Arc::new(Shared {
            waiting: dispatch.waiting(),
            dispatch: Mutex::new(dispatch),
            slots,
            reports: Mutex::default(),
            news,
            words: HostWords::new(CAPABILITIES.queues),
        });
        // The threads end when the device drops the senders.
        for (slot, receiver) in receivers.into_iter().enumerate() {
            let shared = Arc::downgrade(&shared);
            let name = format!("preempt-sm{}", slot as u32 / properties.blocks_per_sm);
            spawn(name, "a block slot", move || {
                let mut emulator = threads::Emulator::default();
                for resident in receiver {
                    let Some(shared) = shared.upgrade() else { return };
                    resident.run(&mut emulator, &shared);
                }
            })?;
        }
        let (copies, receiver) = channel::<(OpKey, Copy)>();
        let copy_shared = Arc::downgrade(&shared);
        spawn("preempt-copy".into(), "copies", move || {
            for (op, Copy { from, to, rows, .. }) in receiver {
                // SAFETY: the copy's owners keep both places valid until its report.
                unsafe { copy_rows(from as *const u8, to as *mut u8, rows) };
                let Some(shared) = copy_shared.upgrade() else { return };
                shared.report(DeviceReport::CopyDone(op));
            }
        })?;
        Ok(CpuDevice {
            shared,
            limits: properties.clone(),
            memory: Memory::new(memory, if has_peers { Place::HOST } else { Place::new() }),
            layout: (memory, has_peers),
            copies: Mutex::new(copies),
            whole: OnceLock::new(),
        })
    }

    /// Waits until the last block has left. All blocks have posted by then, and have nothing else to do.
    fn await_blocks(&self) {
        loop {
            // The mark comes first, so that a block that leaves after the look ends the wait.
            let mark = self.shared.news.mark();
            if lock(&self.shared.dispatch).is_idle() {
                return;
            }
            self.shared.news.wait(mark, Duration::MAX);
        }
    }
}

fn spawn(
    name: String,
    what: &'static str,
    run: impl FnOnce() + Send + 'static,
) -> Result<(), Error> {
    match thread::Builder::new().name(name).spawn(run) {
        Ok(_) => Ok(()),
        Err(source) => Err(Error::Thread { what, source: Arc::new(source) }),
    }
}

impl Shared {
    fn report(&self, report: DeviceReport) {
        lock(&self.reports).push(report);
        self.news.announce();
    }

    /// Opens a gate, or closes it.
    fn pass_gate(&self, gate: Gate, open: bool) {
        let mut dispatch = lock(&self.dispatch);
        dispatch.pass_gate(gate, |words| {
            if open {
                self.words.open(gate, words);
            }
        });
        self.place(&mut dispatch);
    }

    /// Places pending blocks wherever there is room.
    fn place(&self, dispatch: &mut Dispatch) {
        while let Some((slot, resident)) = dispatch.next_block() {
            // A slot's thread is there as long as the device is.
            let _ = lock(&self.slots[slot]).send(resident);
        }
    }
}

impl Backend for CpuDevice {
    fn load(&self, _: &[DeviceCode], _: SignalPath, _: usize) -> Result<(), Error> {
        // The kernels' CPU entries come with the calls.
        self.await_blocks();
        self.shared.words.free_controls();
        self.shared.words.forget_signals();
        Ok(())
    }

    fn occupancy(
        &self,
        kernel: &'static Kernel,
        block: Dim3,
        shared: u32,
        _tasks: u32,
    ) -> Result<Occupancy, Error> {
        if Foreign::of(kernel).is_some() {
            let (entry, module) = (kernel.name.into(), kernel.module.into());
            return Err(Error::Code(CodeError::NoHostCode { entry, module }));
        }
        let demand = Demand::new(block, shared);
        let by_threads = self.limits.threads_per_sm / demand.threads.max(1);
        let by_shared = match demand.shared {
            0 => u32::MAX,
            bytes if bytes > self.limits.shared_per_block => 0,
            bytes => self.limits.shared_per_sm / bytes,
        };
        let blocks_per_sm = self.limits.blocks_per_sm.min(by_threads).min(by_shared);
        Ok(Occupancy::even(blocks_per_sm))
    }

    fn rest(&self) {}

    fn control(&self) -> &dyn ControlSource {
        &self.shared.words
    }

    fn memory(&self) -> &dyn DeviceMemory {
        &self.memory
    }

    fn keep(&self, whole: Owner) {
        // It has none yet.
        let _ = self.whole.set(whole);
    }

    fn split(&self, properties: &Properties, parts: u32) -> Result<Vec<Piece>, Error> {
        let (memory, has_peers) = self.layout;
        let &Properties { sms, blocks_per_sm, ref name, .. } = properties;
        if parts == 0 || parts > sms {
            let reason = format!("its {sms} SMs make 1 to {sms} parts").into();
            return Err(Error::Device(DeviceError::NotSplit { parts, reason }));
        }
        let part = |part: u32| {
            let name = format!("{name}, part {} of {parts}", part + 1);
            let properties = Properties { name, ..self::properties(sms / parts, blocks_per_sm) };
            piece(properties, memory.map(|bytes| bytes / parts as usize), has_peers)
        };
        (0..parts).map(part).collect()
    }

    unsafe fn launch(
        &self,
        op: OpKey,
        queue: u32,
        launch: &Arc<KernelLaunch>,
        grid: Grid,
        _: Vicinity,
    ) -> Result<(), Error> {
        let (words, slots) = (&self.shared.words, self.shared.slots.len() as u32);
        let grid = PendingGrid::new(op, launch.clone(), grid, words.queue(queue), slots);
        let mut dispatch = lock(&self.shared.dispatch);
        dispatch.queue(queue, grid);
        self.shared.place(&mut dispatch);
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
        let mut dispatch = lock(&self.shared.dispatch);
        for grid in program::grids(op, program, grid, self.shared.slots.len() as u32) {
            dispatch.queue(queue, grid);
        }
        self.shared.place(&mut dispatch);
        Ok(())
    }

    fn gate(&self, gate: Gate, limit: Duration) -> Result<*const AtomicU64, Error> {
        let shared = Arc::downgrade(&self.shared);
        spawn("preempt-gate".into(), "a gate", move || {
            thread::sleep(limit);
            if let Some(shared) = shared.upgrade() {
                shared.pass_gate(gate, false);
            }
        })?;
        lock(&self.shared.dispatch).gate(gate);
        Ok(self.shared.words.opened(gate.queue))
    }

    fn open_gate(&self, gate: Gate) {
        self.shared.pass_gate(gate, true);
    }

    fn close_gate(&self, gate: Gate) {
        self.shared.pass_gate(gate, false);
    }

    fn hint(&self, gate: u32, words: &[(u32, Signal)]) {
        lock(&self.shared.dispatch).hint(gate, words);
    }

    fn signal(&self, queue: u32, signal: Signal) {
        self.shared.words.signal(queue, signal);
    }

    unsafe fn copy(&self, op: OpKey, copy: Copy) {
        // The thread is there as long as the device is.
        let _ = lock(&self.copies).send((op, copy));
    }

    fn opaque(&self, op: OpKey, work: OpaqueWork) {
        if let Err(message) = work(RawStream::NONE) {
            self.shared.report(DeviceReport::Fault(op, message.into()));
        }
        self.shared.report(DeviceReport::CopyDone(op));
    }

    fn poll(&self, reports: &mut Vec<DeviceReport>) {
        reports.append(&mut lock(&self.shared.reports));
    }

    fn wait(&self, since: Mark, timeout: Duration) {
        self.shared.news.wait(since, timeout);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use preempt_device::abi::SmRange;

    use crate::device::{CpuLayout, Device};

    use super::*;

    #[test]
    fn the_shared_memory_of_a_launch_decides_how_many_blocks_an_sm_holds() {
        #[preempt_device::preemptible(block = 32)]
        fn nothing() {}
        let device = Device::cpu_with(CpuLayout::sms(1).blocks_per_sm(8)).expect("a device");
        let properties = device.properties();
        let cpu = CpuDevice::new(properties, (None, true), Arc::default()).expect("a device");
        let blocks = |shared| {
            let occupancy = cpu.occupancy(nothing().kernel(), Dim3::new(32, 1, 1), shared, 1);
            occupancy.expect("known").blocks_per_sm
        };
        let (per_sm, per_block) = (properties.shared_per_sm, properties.shared_per_block);
        let sizes = [0, 1, per_sm / 8, per_sm / 8 + 1, per_sm / 3, per_block, per_block + 1];
        assert_eq!(sizes.map(blocks), [8, 8, 8, 7, 3, 1, 0]);
    }

    #[test]
    fn the_next_scheduler_finds_no_signals() {
        let device = Device::cpu_with(CpuLayout::sms(1)).expect("a device");
        let device =
            CpuDevice::new(device.properties(), (None, true), Arc::default()).expect("a device");
        device.signal(3, Signal::new(7, SmRange::EMPTY));
        device.load(&[], SignalPath::default(), 0).expect("loaded");
        let word = device.shared.words.queue(3).signal.load(Ordering::Relaxed);
        assert!(Signal::new(1, SmRange::ALL).is_newer(Signal::from_bits(word)));
    }
}
