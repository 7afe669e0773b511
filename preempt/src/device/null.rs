//! A device on which nothing runs: launches are over when [`NullBackend::end`] says so. Decisions are made on it for their own
//! sake.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use preempt_device::abi::{Post, Posted, Signal};
use preempt_device::host::{Dim3, Kernel};

use super::control::{ControlSource, Grid, HostWords, PlainGrid};
use super::cpu::Memory;
use super::{
    Backend, Copy, Device, DeviceMemory, DeviceReport, Gate, KernelLaunch, Mark, News, Occupancy,
    OpaqueWork, Owner, Piece, Place, ProgramLaunch, SignalPath, Step, lock,
};
use crate::error::{DeviceError, Error};
use crate::module::DeviceCode;
use crate::sync::Mutex;
use crate::vocabulary::{OpKey, Vicinity};

/// The back end of such a device, for a core that has launches alone. Programs and gates are refused; copies and opaque work
/// would never end.
pub(crate) struct NullBackend {
    words: HostWords,
    memory: Memory,
    news: Arc<News>,
    /// The grids of each queue.
    queues: Mutex<Vec<VecDeque<Out>>>,
}

/// A grid that has not posted.
struct Out {
    op: OpKey,
    post: *const Post,
    ticket: u32,
    tasks: u32,
    /// Whether a signal has taken all its SMs.
    is_stopped: bool,
}

// SAFETY: posts are atomics, which `HostWords` keeps.
unsafe impl Send for Out {}

impl NullBackend {
    /// A device with the properties of another one.
    pub fn like(device: &Device) -> (Device, Arc<NullBackend>) {
        let (properties, capabilities) = (&device.inner.properties, device.inner.capabilities);
        let queues = capabilities.queues;
        let null = Arc::new(NullBackend {
            words: HostWords::new(queues),
            memory: Memory::new(Some(0), Place::HOST),
            news: Arc::default(),
            queues: Mutex::new((0..queues.total()).map(|_| VecDeque::new()).collect()),
        });
        let (backend, news) = (null.clone(), null.news.clone());
        let properties = properties.clone();
        (Device::new(Piece { backend, properties, capabilities, news }, None), null)
    }

    /// Ends what would be over by now if the launch `op` were: its own grids, with all block-tasks done, and those that were
    /// stopped, with none.
    pub fn end(&self, op: OpKey) {
        for queue in lock(&self.queues).iter_mut() {
            while let Some(out) = queue.front()
                && (out.op == op || out.is_stopped)
            {
                let done = if out.op == op { out.tasks } else { 0 };
                let word = Post::word(out.ticket, Posted { done, amortize: 1 });
                // SAFETY: the words keep posts as long as this lives. Release: pairs with the acquire of the turn that reads the
                // post, as a block's does; no block has written anything.
                unsafe { &*out.post }.word.store(word, Ordering::Release);
                queue.pop_front();
            }
        }
    }
}

fn refused() -> Error {
    Error::Device(DeviceError::Unsupported { reason: "nothing runs on this device".into() })
}

impl Backend for NullBackend {
    fn load(&self, _: &[DeviceCode], _: SignalPath, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn occupancy(&self, _: &'static Kernel, _: Dim3, _: u32, _: u32) -> Result<Occupancy, Error> {
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
        _: &Arc<KernelLaunch>,
        grid: Grid,
        _: Vicinity,
    ) -> Result<(), Error> {
        let (post, ticket, tasks) = match grid {
            Grid::Cohort(cohort) => (cohort.post, cohort.ticket, cohort.tasks),
            Grid::Plain(plain) => (plain.post, plain.ticket, plain.tasks),
        };
        let out = Out { op, post, ticket, tasks, is_stopped: false };
        lock(&self.queues)[queue as usize].push_back(out);
        Ok(())
    }

    unsafe fn prepare(&self, _: &[&[Step]]) -> Result<Vec<Owner>, Error> {
        Err(refused())
    }

    unsafe fn launch_program(
        &self,
        _: OpKey,
        _: u32,
        _: &ProgramLaunch,
        _: PlainGrid,
    ) -> Result<(), Error> {
        Err(refused())
    }

    fn gate(&self, _: Gate, _: Duration) -> Result<*const AtomicU64, Error> {
        Err(refused())
    }

    fn open_gate(&self, _: Gate) {}

    fn close_gate(&self, _: Gate) {}

    fn hint(&self, _: u32, _: &[(u32, Signal)]) {}

    fn signal(&self, queue: u32, signal: Signal) {
        if signal.range().is_empty() {
            lock(&self.queues)[queue as usize].iter_mut().for_each(|out| out.is_stopped = true);
        }
    }

    unsafe fn copy(&self, _: OpKey, _: Copy) {}

    fn opaque(&self, _: OpKey, _: OpaqueWork) {}

    fn poll(&self, _: &mut Vec<DeviceReport>) {}

    fn wait(&self, _: Mark, _: Duration) {}
}
