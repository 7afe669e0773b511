//! Other GPUs whose memory the copies of this one read directly, over NVLink or PCIe.
//!
//! Access is granted for a whole pool, and mapped by the driver with all that the pool allocates from then on. The copies
//! are ordinary ones between two addresses. Each direction is tried before it is used: drivers are known that accept
//! all calls, and then copy nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::context::{Context, call};
use super::memory::Zeroing;
use super::probe::TIMEOUT;
use super::streams::{BlockPriority, Stream};
use super::{CudaDevice, InUse, lock, transfer};
use crate::device::{CopyKind, Place, Rows};
use crate::error::{DeviceError, Error};

/// Bytes of the copies that try a direction out: a short copy fits into a packet, a long one does not.
const TRIED: [usize; 2] = [16, 1 << 20];

/// What a GPU knows of others.
#[derive(Debug)]
pub(super) struct Peers {
    /// Where the own pool lies.
    place: Place,
    /// The pools that were tried, and whether copies read them.
    known: Mutex<Vec<(Place, bool)>>,
    /// Trials have a stream of their own: the copies of one may never end, and nothing else may wait behind them.
    trials: Stream,
    /// Whether a trial did not end that reads this GPU's memory or writes there.
    has_hung: AtomicBool,
}

impl Peers {
    /// The context is entered.
    pub fn new(context: &Arc<Context>) -> Result<Peers, Error> {
        let trials = Stream::new(context, BlockPriority::Greatest)?;
        let (place, known, has_hung) = (Place::new(), Mutex::default(), AtomicBool::new(false));
        Ok(Peers { place, known, trials, has_hung })
    }

    /// Whether copies may still use this GPU's memory whose end nothing waits for.
    pub fn has_hung(&self) -> bool {
        // Relaxed: set with `DEVICES` locked, or by a thread that the device's last owner has synchronized with.
        self.has_hung.load(Ordering::Relaxed)
    }

    pub fn place(&self) -> Place {
        self.place
    }

    /// Whether copies of this GPU read memory at a place.
    pub fn reads(&self, place: Place) -> bool {
        place == self.place || self.knows(place) == Some(true)
    }

    fn knows(&self, place: Place) -> Option<bool> {
        lock(&self.known).iter().find(|(known, _)| *known == place).map(|(_, reads)| *reads)
    }
}

impl CudaDevice {
    /// Lets this GPU and others read each other's memory, unless something runs: the driver might wait for that. Without
    /// access, contents move through the host.
    pub(super) fn meet(&self, others: &[InUse]) {
        let others = others.iter().filter_map(|known| known.backend.upgrade());
        for other in others.filter(|other| other.peers.place != self.peers.place) {
            let ways = [(self, &*other), (&*other, self)];
            let is_open = |(reader, owner): &(&CudaDevice, &CudaDevice)| {
                reader.peers.knows(owner.peers.place).is_none()
            };
            if !ways.iter().any(is_open) || self.gpu_runs() || other.gpu_runs() {
                continue;
            }
            // A launch may begin meanwhile, and its kernels end by themselves. Proxies follow each other.
            let _held = [self.proxy.hold(), other.proxy.hold()];
            for device in [self, &*other] {
                if let Ok(_entered) = device.context().enter() {
                    device.end_proxy();
                }
            }
            for (reader, owner) in ways.into_iter().filter(is_open) {
                // An error leaves the path through the host.
                let reads = reader.try_to_read(owner).unwrap_or(false);
                lock(&reader.peers.known).push((owner.peers.place, reads));
            }
        }
    }

    /// Gets access to another GPU's pool, if the driver can, and copies from there.
    fn try_to_read(&self, owner: &CudaDevice) -> Result<bool, Error> {
        // One trial that hangs is waited for, with `DEVICES` locked; not one for each of the others.
        if self.peers.has_hung() || owner.peers.has_hung() {
            return Ok(false);
        }
        let (context, peer) = (self.context(), owner.context());
        // Parts of one GPU have one memory.
        if context.device() != peer.device() {
            let mut can = 0;
            // SAFETY: the pointer is valid, and both devices exist.
            unsafe {
                call!(
                    context,
                    cuDeviceCanAccessPeer(&raw mut can, context.device(), peer.device())
                )?
            };
            if can == 0 {
                return Ok(false);
            }
            owner.pool.open_to(context.device())?;
        }
        let bytes = TRIED.into_iter().sum();
        let from = owner.pool.allocate(bytes, Zeroing::None)?;
        let to = self.pool.allocate(bytes, Zeroing::None);
        let is_right = to.as_ref().map_or(Ok(false), |&to| {
            // SAFETY: just allocated on both, with this size.
            unsafe { self.copies_well(owner, from, to, bytes) }
        });
        let _entered = context.enter()?;
        if self.peers.trials.is_idle()? {
            // SAFETY: allocated above, and no copy uses it.
            unsafe {
                owner.pool.free(from, bytes);
                to.map(|to| self.pool.free(to, bytes))?;
            }
        }
        is_right
    }

    /// Whether what copies bring from another GPU is what is there.
    ///
    /// # Safety
    ///
    /// Both addresses are of memory of `bytes`, `from` of the owner's, and no other thread uses it.
    unsafe fn copies_well(
        &self,
        owner: &CudaDevice,
        from: u64,
        to: u64,
        bytes: usize,
    ) -> Result<bool, Error> {
        let sent: Vec<u8> = (0..bytes).map(|at| (at ^ at >> 8) as u8 ^ 0x5A).collect();
        let mut got: Vec<u8> = sent.iter().map(|byte| !byte).collect();
        // SAFETY: the caller's promise.
        unsafe {
            owner.pool.fill(from, sent.as_ptr(), bytes)?;
            self.pool.fill(to, got.as_ptr(), bytes)?;
        }
        let context = self.context();
        let entered = context.enter()?;
        let trials = &self.peers.trials;
        let mut start = 0;
        for bytes in TRIED {
            let (from, to, kind) = (from + start, to + start, CopyKind::FromPeer);
            // SAFETY: within the memory.
            let copy = unsafe {
                transfer::enqueue(context, trials.raw(), kind, from, to, Rows::one(bytes))
            };
            // After an error, too: the memory is freed if the copy is over. Between some GPUs copies hang. Nothing is
            // put behind one, so that it takes no hardware queue.
            let is_over = trials.settle(TIMEOUT);
            match is_over {
                Ok(true) => {}
                // What the context ran is over.
                Err(Error::Device(DeviceError::ContextLost { .. })) => return is_over,
                _ => {
                    for device in [self, owner] {
                        device.peers.has_hung.store(true, Ordering::Relaxed);
                    }
                    return is_over;
                }
            }
            copy?;
            start += bytes as u64;
        }
        drop(entered);
        // SAFETY: the caller's promise, and the copies are over.
        unsafe { self.pool.read(got.as_mut_ptr(), to, bytes)? };
        Ok(got == sent)
    }
}
