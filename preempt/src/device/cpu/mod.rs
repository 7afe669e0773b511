//! The CPU device: an emulated GPU on host threads, running the same worker loop.
//!
//! | file | what it emulates |
//! | --- | --- |
//! | `dispatch` | the hardware's block scheduler: which pending block goes to which SM |
//! | `block` | a resident block: the worker loop around block-tasks |
//! | `threads` | the threads of a block-task: barriers, shuffles, votes |
//! | `memory` | memory for buffers |
//!
//! `model` is the same with block-tasks that only count, for the scheduler's tests on shuttle.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use preempt_device::abi::{
    COHORT_SLOTS, Cohort, ControlBlock, DeviceQueue, Post, RequeueList, Signal,
};
use preempt_device::host::{Dim3, Kernel};

use super::{
    Backend, ControlMemory, Copy, Drops, ForeignMemory, KernelLaunch, Occupancy, OpaqueWork,
    PlainLaunch, Properties, RawStream, Report, SignalPath,
};
use crate::error::Error;
use crate::module::DeviceCode;
use crate::sync::mpsc::{Sender, channel};
use crate::sync::{Condvar, Mutex, MutexGuard, thread};
use crate::vocabulary::{OpKey, QueueCount};

mod block;
mod dispatch;
mod memory;
#[cfg(all(test, shuttle))]
pub(crate) mod model;
mod threads;

use block::Resident;
use dispatch::{Demand, Dispatch, PendingGrid};
use memory::Memory;

/// A normal queue costs as little as an urgent one.
const LANES: QueueCount = QueueCount { normal: 16, urgent: 16, chains: 4 };

pub(super) struct CpuDevice {
    shared: Arc<Shared>,
    limits: Properties,
    memory: Memory,
    /// To the thread that copies.
    copies: Mutex<Sender<(OpKey, Copy)>>,
}

/// What the device's threads share with it.
struct Shared {
    dispatch: Mutex<Dispatch>,
    /// To the thread of each block slot, SM after SM.
    slots: Vec<Mutex<Sender<Resident>>>,
    reports: Mutex<Vec<Report>>,
    news: News,
    words: Words,
}

/// A control block and its posts.
type Control = (Arc<ControlBlock>, Arc<[Post; COHORT_SLOTS]>);

/// What cohorts point to. A block's thread holds [`Shared`] while the block runs, so these words outlive every
/// block that uses them, whether or not the device is there.
struct Words {
    queues: Box<[DeviceQueue]>,
    /// Those of one scheduler: one for each launch that it had in flight at the same time.
    controls: Mutex<Vec<Control>>,
    /// Empty lists. One for each launch with yield points that one scheduler had in flight at the same time is
    /// here or out.
    drops: Mutex<Vec<Arc<RequeueList>>>,
}

/// Counts what happened, for those who wait for more.
#[derive(Default)]
struct News {
    count: Mutex<u64>,
    changed: Condvar,
}

/// What a panic leaves locked is whole: no kernel code runs under a lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl News {
    fn announce(&self) {
        *lock(&self.count) += 1;
        self.changed.notify_all();
    }

    /// What was announced until now.
    fn mark(&self) -> u64 {
        *lock(&self.count)
    }

    /// Waits until more was announced than at the `mark`, or for `timeout`.
    fn wait(&self, mark: u64, timeout: Duration) {
        // Why the wait ended does not matter: the caller looks for itself.
        drop(self.changed.wait_timeout_while(lock(&self.count), timeout, |count| *count == mark));
    }
}

impl CpuDevice {
    pub fn new(properties: &Properties, memory: Option<usize>) -> Result<CpuDevice, Error> {
        let mut receivers = Vec::new();
        let mut slots = Vec::new();
        for _ in 0..properties.sms * properties.blocks_per_sm {
            let (sender, receiver) = channel::<Resident>();
            slots.push(Mutex::new(sender));
            receivers.push(receiver);
        }
        let shared = Arc::new(Shared {
            dispatch: Mutex::new(Dispatch::new(properties, LANES)),
            slots,
            reports: Mutex::default(),
            news: News::default(),
            words: Words {
                queues: (0..LANES.normal + LANES.urgent).map(|_| DeviceQueue::default()).collect(),
                controls: Mutex::default(),
                drops: Mutex::default(),
            },
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
            for (op, Copy { from, to, bytes, .. }) in receiver {
                // SAFETY: whoever started the copy keeps both places valid.
                unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
                let Some(shared) = copy_shared.upgrade() else { return };
                shared.report(Report::CopyDone(op));
            }
        })?;
        Ok(CpuDevice {
            shared,
            limits: properties.clone(),
            memory: Memory::new(memory),
            copies: Mutex::new(copies),
        })
    }

    /// Waits until the last block has left. All of them have said what they did, and have nothing else to do.
    fn await_blocks(&self) {
        loop {
            // First, so that a block that leaves after the look ends the wait.
            let mark = self.mark();
            if lock(&self.shared.dispatch).is_idle() {
                return;
            }
            self.wait(mark, Duration::MAX);
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
    fn report(&self, report: Report) {
        lock(&self.reports).push(report);
        self.news.announce();
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
    fn load(&self, _code: &[DeviceCode]) -> Result<(), Error> {
        // The last scheduler is gone, and the next one counts epochs from the start: to it, words of
        // that one would be newer than its own. The kernels' CPU entries come with the calls.
        self.await_blocks();
        lock(&self.shared.words.controls).clear();
        for queue in &self.shared.words.queues {
            queue.signal.store(Signal::default().to_bits(), Ordering::Relaxed);
        }
        Ok(())
    }

    fn queues(&self) -> QueueCount {
        LANES
    }

    fn ticks(&self, time: Duration) -> u32 {
        time.as_nanos().try_into().unwrap_or(u32::MAX)
    }

    fn set_signal_path(&self, _path: SignalPath) {}

    fn rest(&self) {}

    fn occupancy(&self, kernel: &'static Kernel, block: Dim3) -> Result<Occupancy, Error> {
        let demand = Demand::of(kernel, block);
        let by_threads = self.limits.threads_per_sm / demand.threads.max(1);
        let by_shared = match demand.shared {
            0 => u32::MAX,
            bytes if bytes > self.limits.shared_per_block => 0,
            bytes => self.limits.shared_per_sm / bytes,
        };
        let blocks_per_sm = self.limits.blocks_per_sm.min(by_threads).min(by_shared);
        Ok(Occupancy { blocks_per_sm, on_last_sm: blocks_per_sm })
    }

    fn new_control(&self) -> Result<ControlMemory, Error> {
        let words = (Arc::default(), Arc::default());
        let memory = ControlMemory { control: Arc::as_ptr(&words.0), posts: Arc::as_ptr(&words.1) };
        lock(&self.shared.words.controls).push(words);
        Ok(memory)
    }

    fn take_drops(&self) -> Result<Drops, Error> {
        let empty = lock(&self.shared.words.drops).pop();
        Ok(Drops(Arc::into_raw(empty.unwrap_or_default())))
    }

    fn give_back_drops(&self, drops: Drops, is_empty: bool) {
        // SAFETY: `take_drops` gave this list out, and it comes back once.
        let list = unsafe { Arc::from_raw(drops.0) };
        if !is_empty {
            // The lock orders this before the next use.
            list.clear();
        }
        lock(&self.shared.words.drops).push(list);
    }

    fn launch(
        &self,
        op: OpKey,
        queue: u32,
        grid: &Arc<KernelLaunch>,
        cohort: Cohort,
    ) -> Result<(), Error> {
        let cohort = Cohort { queue: &self.shared.words.queues[queue as usize], ..cohort };
        let mut dispatch = lock(&self.shared.dispatch);
        dispatch.queue(queue, PendingGrid::new(op, grid.clone(), cohort));
        self.shared.place(&mut dispatch);
        Ok(())
    }

    fn launch_plain(
        &self,
        op: OpKey,
        queue: u32,
        grid: &Arc<KernelLaunch>,
        plain: PlainLaunch,
    ) -> Result<(), Error> {
        let slots = self.shared.slots.len() as u32;
        let mut dispatch = lock(&self.shared.dispatch);
        dispatch.queue(queue, PendingGrid::plain(op, grid.clone(), plain, slots));
        self.shared.place(&mut dispatch);
        Ok(())
    }

    fn signal(&self, queue: u32, signal: Signal) {
        // Relaxed: a signal is advice to stop, and nothing else is read on its account.
        self.shared.words.queues[queue as usize].signal.store(signal.to_bits(), Ordering::Relaxed);
    }

    unsafe fn copy(&self, op: OpKey, copy: Copy) {
        // The thread is there as long as the device is.
        let _ = lock(&self.copies).send((op, copy));
    }

    fn opaque(&self, op: OpKey, work: OpaqueWork) {
        if let Err(message) = work(RawStream::NONE) {
            self.shared.report(Report::Fault(op, message.into()));
        }
        self.shared.report(Report::CopyDone(op));
    }

    fn poll(&self, reports: &mut Vec<Report>) {
        reports.append(&mut lock(&self.shared.reports));
    }

    fn is_polled(&self) -> bool {
        false
    }

    fn check(&self) {}

    fn mark(&self) -> u64 {
        self.shared.news.mark()
    }

    fn wait(&self, mark: u64, timeout: Duration) {
        self.shared.news.wait(mark, timeout);
    }

    fn announce(&self) {
        self.shared.news.announce();
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

#[cfg(test)]
mod tests {
    use preempt_device::abi::SmRange;

    use crate::device::Device;

    use super::*;

    #[test]
    fn the_next_scheduler_finds_no_signals() {
        let device = Device::cpu(1, 1).expect("a device");
        let device = CpuDevice::new(device.properties(), None).expect("a device");
        device.signal(3, Signal::new(7, SmRange::EMPTY));
        device.load(&[]).expect("loaded");
        let word = Signal::from_bits(device.shared.words.queues[3].signal.load(Ordering::Relaxed));
        assert!(Signal::new(1, SmRange::ALL).is_newer(word));
    }
}
