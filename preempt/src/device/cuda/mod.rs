//! A CUDA GPU.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `backend` | the contract of `device`: what goes where |
//! | `launch` | cohorts and plain grids |
//! | `divisions` | how SMs' memory is divided where blocks of several kernels may meet |
//! | `driver` | the driver library: its functions, what its codes mean |
//! | `context` | the primary context: which threads have it current, whether it still works |
//! | `streams` | streams, and streams whose progress the host reads from a word |
//! | `memory` | pinned memory, and the pool that buffers come from |
//! | `host_pool` | pinned memory of the application |
//! | `foreign` | memory that other libraries have allocated |
//! | `shareable` | memory that other processes can map |
//! | `interop` | streams, events and contexts of other libraries |
//! | `queues` | the streams that cohorts run in, their signal words |
//! | `control_blocks`, `requeue_lists` | control blocks with their posts, requeue lists |
//! | `save_areas` | memory for block-tasks that blocks leave at checkpoints |
//! | `code`, `loaded`, `kernels`, `registers` | modules, their entries, which of them a kernel is, how many blocks an SM holds |
//! | `copies`, `ring`, `staged`, `transfer` | small and large copies, and fills |
//! | `parts` | parts of a GPU, each of which is a device |
//! | `panics` | where a thread was whose panic ended the context |
//! | `peers` | other GPUs whose memory is read directly |
//! | `opaque` | streams for opaque work |
//! | `graphs` | programs |
//! | `capture` | work of other libraries in programs |
//! | `fills` | fills in programs |
//! | `proxy` | signals by the proxy |
//! | `gates` | gates before armed launches |
//! | `watch` | waiting for cohorts |
//! | `events` | events behind plain grids, which show that they are over |
//! | `chains` | launches of a preemptible program that the driver takes as one graph |
//! | `requirements` | what a GPU has to have |
//! | `probe`, `costs` | checks, first uses, and what launches and signals cost, before anything runs |
//! | `faults` | driver calls that fail on purpose, for tests |
//!
//! `README.md` beside this file says which stream carries what, the order of locks, and what may never be called while
//! kernels run.

use std::ffi::c_void;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

use super::{Capabilities, Device, DeviceInner, News, Owner, Piece, Properties};
use crate::error::{DeviceError, Error};

mod backend;
mod capture;
mod chains;
mod code;
mod context;
mod control_blocks;
mod copies;
mod costs;
mod divisions;
mod driver;
mod events;
#[cfg(feature = "fault-injection")]
pub mod faults;
mod fills;
mod foreign;
mod gates;
mod graphs;
mod host_pool;
mod interop;
mod kernels;
mod launch;
mod loaded;
mod memory;
mod opaque;
mod panics;
mod parts;
mod peers;
mod probe;
mod proxy;
mod queues;
mod registers;
mod requeue_lists;
mod requirements;
mod ring;
mod save_areas;
#[cfg(target_os = "linux")]
mod shareable;
mod staged;
mod streams;
mod transfer;
mod watch;

use context::Context;
use control_blocks::ControlBlocks;
use copies::{Copies, CopyStreams, Shared};
use divisions::Divisions;
use driver::{Driver, NO_DEVICE};
use events::Events;
use foreign::Foreign;
use gates::Gates;
use graphs::UnusedGraphs;
use host_pool::HostPool;
use interop::Interop;
use kernels::Kernels;
use memory::{Pinned, Pool};
use opaque::OpaqueStreams;
use parts::Division;
use peers::Peers;
use probe::probe;
use proxy::Proxy;
use queues::{DeviceQueues, QUEUES, Streams};
use requeue_lists::RequeueLists;
#[cfg(target_os = "linux")]
use shareable::Shareable;
use streams::{BlockPriority, LAST_WAIT, Stream, TrackedStream};
use watch::Watch;

/// Bytes: the address of allocations of no bytes, and the driver's alignment of others.
const ALIGNMENT: u64 = 256;

/// Data that a panic leaves locked is consistent, because no code of others runs under a lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The GPUs in use, and their parts. There is one device for each GPU, because two schedulers on one GPU would not know of each
/// other.
static DEVICES: Mutex<Vec<InUse>> = Mutex::new(Vec::new());

/// A GPU in use, or a part of one.
struct InUse {
    backend: Weak<CudaDevice>,
    /// Of a GPU, its number and its device.
    whole: Option<(u32, Weak<DeviceInner>)>,
}

/// The device of the `ordinal`th GPU.
pub(super) fn open(ordinal: u32) -> Result<Device, Error> {
    let mut devices = lock(&DEVICES);
    devices.retain(|known| known.backend.strong_count() > 0);
    // A buffer can outlive its device, and keep the back end of that.
    let wholes = devices.iter().filter_map(|known| known.whole.as_ref());
    let mut same = wholes.filter(|(of, _)| *of == ordinal);
    if let Some(inner) = same.find_map(|(_, device)| device.upgrade()) {
        return Ok(Device { inner });
    }
    let news = Arc::<News>::default();
    let context = Arc::new(Context::new(ordinal)?);
    let (backend, properties, capabilities) = CudaDevice::new(context, news.clone())?;
    let backend = Arc::new(backend);
    backend.meet(&devices);
    let weak = Arc::downgrade(&backend);
    let device = Device::new(Piece { backend, properties, capabilities, news }, None);
    let whole = Some((ordinal, Arc::downgrade(&device.inner)));
    devices.push(InUse { backend: weak, whole });
    Ok(device)
}

/// The parts of a GPU, on which nothing of ours runs.
fn split(whole: &CudaDevice, parts: u32) -> Result<Vec<Piece>, Error> {
    let mut devices = lock(&DEVICES);
    devices.retain(|known| known.backend.strong_count() > 0);
    let division = {
        let _entered = whole.context().enter()?;
        // Parts have what the whole has kept for itself.
        whole.pool.trim()?;
        Division::new(whole.context(), parts)?
    };
    let mut made = Vec::new();
    for index in 0..parts {
        let news = Arc::<News>::default();
        let context = whole.context().of_part(|context| division.make(context, index))?;
        let (backend, properties, capabilities) = CudaDevice::new(Arc::new(context), news.clone())?;
        made.push((Arc::new(backend), properties, capabilities, news));
    }
    let all: Arc<[_]> = made.iter().map(|(backend, ..)| Arc::downgrade(backend)).collect();
    for (backend, ..) in &made {
        // It has none yet.
        let _ = backend.parts.set(all.clone());
        backend.meet(&devices);
        devices.push(InUse { backend: Arc::downgrade(backend), whole: None });
    }
    let piece = |(backend, properties, capabilities, news): (Arc<CudaDevice>, _, _, _)| Piece {
        backend,
        properties,
        capabilities,
        news,
    };
    Ok(made.into_iter().map(piece).collect())
}

/// The device of the GPU whose primary context this is.
///
/// # Safety
///
/// It is a context of this process that is not destroyed.
pub(super) unsafe fn open_context(context: *mut c_void) -> Result<Device, Error> {
    // SAFETY: the caller's promise.
    let device = open(unsafe { interop::ordinal_of(context.cast()) }?)?;
    device.inner.backend.streams()?.check_context(context)?;
    Ok(device)
}

/// The number of GPUs that the driver shows.
pub(super) fn count() -> Result<u32, Error> {
    match Driver::get() {
        Ok(driver) => driver.count(),
        Err(
            Error::Device(DeviceError::NoDriver { .. })
            | Error::Device(DeviceError::DriverStart { code: NO_DEVICE, .. }),
        ) => Ok(0),
        Err(error) => Err(error),
    }
}

pub(super) struct CudaDevice {
    queues: DeviceQueues,
    control_blocks: ControlBlocks,
    requeue_lists: RequeueLists,
    copies: Copies,
    opaque: OpaqueStreams,
    kernels: Kernels,
    pool: Arc<Pool>,
    host: Arc<HostPool>,
    foreign: Foreign,
    #[cfg(target_os = "linux")]
    shareable: Shareable,
    interop: Interop,
    peers: Peers,
    proxy: Proxy,
    gates: Gates,
    divisions: Divisions,
    /// Uploads the graphs of programs.
    uploads: TrackedStream,
    unused_graphs: Arc<UnusedGraphs>,
    /// Why the driver cannot run graphs, if it cannot.
    graphs: Result<(), Error>,
    events: Arc<Events>,
    shared: Arc<Shared>,
    /// Of a part of a GPU, all of its parts.
    parts: OnceLock<Arc<[Weak<CudaDevice>]>>,
    /// Whether the loss of the context was reported.
    lost_reported: AtomicBool,
    /// Of a part, what it is a part of: the last field, so that this is given back when all of the part is gone.
    whole: OnceLock<Owner>,
}

impl CudaDevice {
    fn new(
        context: Arc<Context>,
        news: Arc<News>,
    ) -> Result<(CudaDevice, Properties, Capabilities), Error> {
        let properties = requirements::check(&context)?;
        let _entered = context.enter()?;
        let streams = Streams::new(&context)?;
        let words =
            Arc::new(Pinned::new(&context, (8 + opaque::STREAMS) * TrackedStream::WORD_SPACE)?);
        let line = |index| TrackedStream::new(&context, &words, index);
        let small_up = Arc::new(line(0)?);
        let lines = CopyStreams {
            small_up: small_up.clone(),
            small_down: line(1)?,
            across: line(2)?,
            large_up: Arc::new(line(3)?),
            large_down: Arc::new(line(4)?),
            from_peers: line(7 + opaque::STREAMS)?,
        };
        let pool = Arc::new(Pool::new(&context, line(5)?)?);
        // Blocks of opaque work wait with those of normal queues.
        let opaque = |index: usize| {
            TrackedStream::on(Stream::new(&context, BlockPriority::Least)?, &words, 6 + index)
        };
        let opaque = [opaque(0)?, opaque(1)?];
        let uploads = line(6 + opaque::STREAMS)?;
        let queues = DeviceQueues::new(&context, streams, pool.line().stream().raw())?;
        let zeroed = pool.line().issue(|_| Ok(()))?;
        pool.line().wait(zeroed)?;
        probe(&context, &properties, &queues, &pool, &lines)?;
        let begin = Instant::now();
        let costs = costs::measure(&context, &properties, &queues)?;
        let (clock, measuring) = (properties.clock_khz, Some(begin.elapsed()));
        let capabilities =
            Capabilities { queues: QUEUES, clock, is_polled: true, costs, measuring };
        let graphs = graphs::warm_up(&context, &pool, &uploads, queues.streams());
        // Without graphs there are no programs, and all else works, unless the line that tried them is not done.
        if let (Err(error), false) = (&graphs, context.is_freeable()) {
            return Err(error.clone());
        }

        let shape = (properties.sms, properties.blocks_per_sm);
        let zeroing = pool.line().stream().raw();
        // An error after each of them frees what is being zeroed.
        let proxy = Proxy::new(&context, &queues, shape, zeroing)?;
        probe::settle(&context, pool.line().stream())?;
        let gates = Gates::new(&context, &queues, &properties, zeroing)?;
        probe::settle(&context, pool.line().stream())?;
        let events = Arc::new(Events::new(&context));
        let watch = Watch::new(queues.streams().len(), news, events.clone());
        let shared = Arc::new(Shared::new(&context, watch));
        let host = Arc::new(HostPool::new(&context));
        let device = CudaDevice {
            queues,
            proxy,
            gates,
            divisions: Divisions::new(properties.shared_per_sm, context.driver().version()?),
            control_blocks: ControlBlocks::new(&context, &pool)?,
            requeue_lists: RequeueLists::new(&context, &pool, &small_up)?,
            copies: Copies::new(&shared, &host, lines)?,
            opaque: OpaqueStreams::new(&shared, opaque),
            kernels: Kernels::new(
                &context,
                (properties.shared_per_block, properties.shared_per_sm),
            )?,
            foreign: Foreign::new(&context, pool.raw()),
            #[cfg(target_os = "linux")]
            shareable: Shareable::new(&context),
            interop: Interop::new(&context),
            peers: Peers::new(&context)?,
            uploads,
            unused_graphs: Arc::new(UnusedGraphs::new(&context)),
            graphs,
            pool,
            host,
            events,
            shared,
            parts: OnceLock::new(),
            whole: OnceLock::new(),
            lost_reported: AtomicBool::new(false),
        };
        Ok((device, properties, capabilities))
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        self.proxy.rest();
        let context = self.context();
        // The scheduler has waited for what it could. Freeing would wait for the rest.
        let is_idle = context.enter().and_then(|_entered| {
            let queues = self.queues.streams().iter().chain([self.queues.control()]);
            let streams = queues.chain(self.copies.streams()).chain(self.opaque.streams());
            // Signals may still be on their way, and requeue lists may still be zeroed. The proxy writes to the queues'
            // words.
            let mut streams = streams.chain([self.proxy.stream()]);
            let start = Instant::now();
            streams.try_fold(true, |all, stream| {
                let left = LAST_WAIT.saturating_sub(start.elapsed());
                Ok::<_, Error>(all & stream.settle(left)?)
            })
        });
        if !matches!(is_idle, Ok(true)) || self.peers.has_hung() {
            context.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::DeviceError;

    #[test]
    fn a_gpu_that_is_not_there_is_an_error_that_can_be_printed() {
        // Without a driver, that is the error; with a driver, there are fewer GPUs.
        let error = open(u32::MAX).expect_err("no machine has that many GPUs");
        let message = format!("{error} {error:?}");
        match error {
            Error::Device(DeviceError::NoDriver { library }) => {
                assert!(message.contains(library), "{message}")
            }
            Error::Device(DeviceError::NoGpu { .. }) => {
                assert!(message.contains("4294967295"), "{message}")
            }
            _ => assert!(!message.is_empty()),
        }
    }
}
