//! The memory of a buffer: its home device, and other devices with its contents.
//!
//! A buffer is made on its *home* device. While only launches there use it, nothing is looked up: its address is in the
//! arguments, and each submission finds [`Memory::is_at_home`]. The first use on another device ends that for good.
//! From then on the [`Residence`] lists the devices with valid contents. Submissions that use the buffer hold its lock
//! until they are in the inboxes of their schedulers. So the residence is always that after the last submission, in the
//! order in which submissions take effect.
//!
//! Memory with stale contents is kept until the buffer is dropped: operations may still use it, and contents that moved
//! once often move again.

use std::fmt;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

#[cfg(target_os = "linux")]
use rustix::fs::{MemfdFlags, memfd_create};

use super::completion::Completion;
use super::shared::Shared;
use crate::device::{Allocations, Backend, Contents, Device, DeviceInner, Patience};
use crate::error::Error;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::vocabulary::{BufferId, ByteRange};

/// The memory of a buffer, kept alive by operations in flight.
pub(crate) struct Memory {
    /// The buffer's name in every engine.
    pub id: BufferId,
    number: u64,
    pub bytes: usize,
    home: Replica,
    /// Whether it must stay on its home device.
    is_bound: bool,
    /// Whether only the home device has ever used it. Cleared with the residence locked, before the first copy from
    /// home is posted. Relaxed, because submissions read it with the inbox locked: a submission behind that copy sees
    /// what was written before its post.
    is_at_home: AtomicBool,
    /// Whether the application takes the memory over. Set before the operation behind the buffer's last use is posted;
    /// submissions read it with the residence locked. Relaxed, because that operation is posted with it locked, too: a
    /// submission that locks it later sees the flag, and an earlier one precedes that operation.
    is_given_away: AtomicBool,
    residence: Mutex<Residence>,
}

/// Memory on one device.
struct Replica {
    address: u64,
    bytes: usize,
    buffer: BufferId,
    device: u64,
    backend: Arc<dyn Backend>,
    /// Counts the memory until it is freed.
    allocations: Arc<Allocations>,
    /// Whether the application owns the memory now.
    is_gone: AtomicBool,
}

/// The devices with a buffer's contents; meaningful after its first use away from home.
#[derive(Default)]
pub(in crate::scheduler) struct Residence {
    /// Devices whose contents are valid after the submissions until now.
    pub valid: Vec<ValidCopy>,
    /// Memory on devices other than the home.
    away: Vec<Replica>,
}

/// A device on which the contents are valid.
pub(in crate::scheduler) struct ValidCopy {
    pub device: Weak<DeviceInner>,
    pub device_id: u64,
    /// The operations that each make them valid if they succeed. Without any, the contents are valid.
    fillings: Vec<Filling>,
}

/// An operation that fills the memory of a buffer on a device.
pub(in crate::scheduler) struct Filling {
    pub completion: Arc<Completion>,
    pub scheduler: Weak<Shared>,
}

/// What is known of contents on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::scheduler) enum Validity {
    /// Valid, now or once the operations before are done.
    Valid,
    /// The filling operation failed, and the device's scheduler knows.
    KnownLost,
    /// The filling operation failed, and the device has another scheduler by now, or none.
    Lost,
}

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

impl Memory {
    /// Memory that the caller has allocated or counted; it is freed with this.
    pub fn new(device: &Device, address: u64, bytes: usize, is_bound: bool) -> Memory {
        // Relaxed: only the number counts.
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let id = BufferId::Own(number);
        let home = Replica::new(&device.inner, address, bytes, id);
        let residence =
            Residence { valid: vec![ValidCopy::new(&device.inner)], ..Residence::default() };
        Memory {
            id,
            number,
            bytes,
            home,
            is_bound,
            is_at_home: AtomicBool::new(true),
            is_given_away: AtomicBool::new(false),
            residence: Mutex::new(residence),
        }
    }

    /// The address on the home device.
    pub fn address(&self) -> u64 {
        self.home.address
    }

    /// All bytes.
    pub fn whole(&self) -> ByteRange {
        ByteRange::whole(self.bytes)
    }

    /// The bytes that lie at an address on the home device.
    pub fn range(&self, address: u64, bytes: usize) -> ByteRange {
        let start = self.offset(address);
        ByteRange { start, end: start.saturating_add(bytes as u64) }
    }

    /// The distance of an address on the home device from the start.
    pub fn offset(&self, address: u64) -> u64 {
        address.saturating_sub(self.home.address)
    }

    /// The number of the home device.
    pub fn home(&self) -> u64 {
        self.home.device
    }

    /// Whether the buffer may be used on this device at all.
    pub fn may_be_on(&self, device: u64) -> bool {
        self.home.device == device || !self.is_bound
    }

    /// Whether this device is the home and no other device has ever used the buffer.
    pub fn is_at_home(&self, device: u64) -> bool {
        self.home.device == device && self.is_at_home.load(Ordering::Relaxed)
    }

    /// A key that orders buffers, for threads that lock the residences of several.
    pub fn lock_order(&self) -> u64 {
        self.number
    }

    /// Locks the residence. Meanwhile no submission takes effect, unless the buffer is at home.
    pub(in crate::scheduler) fn residence(&self) -> MutexGuard<'_, Residence> {
        lock(&self.residence)
    }

    /// Makes later submissions look at the residence, which the caller has locked.
    pub fn leave_home(&self) {
        self.is_at_home.store(false, Ordering::Relaxed);
    }

    /// The address on a device; allocates the memory there if there is none. Does not wait for memory.
    pub(in crate::scheduler) fn address_on(
        &self,
        residence: &mut Residence,
        device: &Device,
    ) -> Result<u64, Error> {
        let inner = &device.inner;
        let mut replicas = std::iter::once(&self.home).chain(residence.away.iter());
        let there = replicas.find(|replica| replica.device == inner.id);
        if let Some(replica) = there {
            return Ok(replica.address);
        }
        let at_once = Patience { timeout: Duration::ZERO, most: 0 };
        // Contents are moved or written there before they are read.
        let what = (self.bytes, Contents::Any);
        let address = inner.allocations.allocate(inner, what, at_once, None)?;
        residence.away.push(Replica::new(inner, address, self.bytes, self.id));
        Ok(address)
    }

    /// Fills memory that no operation uses.
    ///
    /// # Safety
    ///
    /// `data` is valid for the buffer's bytes, and no operation uses the buffer.
    pub unsafe fn fill(&self, data: *const u8) -> Result<(), Error> {
        // SAFETY: allocated with this size; the caller says the rest.
        unsafe { self.home.backend.memory().fill(self.home.address, data, self.bytes) }
    }

    /// What other processes open the memory at home by, if they can.
    #[cfg(target_os = "linux")]
    pub fn shared(&self) -> Option<Arc<OwnedFd>> {
        match self.bytes {
            // No memory; any descriptor stands for it.
            0 => memfd_create("preempt", MemfdFlags::CLOEXEC).ok().map(Arc::new),
            _ => self.home.backend.memory().shared(self.home.address),
        }
    }

    /// Ends the uses of the memory with the next operation that is posted for it.
    pub fn end_uses(&self) {
        self.is_given_away.store(true, Ordering::Relaxed);
        self.leave_home();
    }

    /// Whether the application takes the memory over; the caller has locked the residence.
    pub(in crate::scheduler) fn is_given_away(&self) -> bool {
        self.is_given_away.load(Ordering::Relaxed)
    }

    /// Gives the memory at home to the application.
    pub fn give_away(&self) {
        // Relaxed: dropping the references orders it before the last of them is dropped.
        self.home.is_gone.store(true, Ordering::Relaxed);
    }
}

impl Replica {
    fn new(device: &DeviceInner, address: u64, bytes: usize, buffer: BufferId) -> Replica {
        let (backend, allocations) = (device.backend.clone(), device.allocations.clone());
        let is_gone = AtomicBool::new(false);
        Replica { address, bytes, buffer, device: device.id, backend, allocations, is_gone }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if !*self.is_gone.get_mut() {
            // SAFETY: allocated with this size; operations hold the memory until they are done.
            unsafe { self.backend.memory().free(self.address, self.bytes) }
        }
        self.allocations.give_back(self.bytes, Some(self.buffer));
    }
}

impl Residence {
    /// The copy on a device, if the contents are valid there.
    pub fn on(&self, device: u64) -> Option<&ValidCopy> {
        self.valid.iter().find(|copy| copy.device_id == device)
    }

    /// Schedulers of the devices other than `here` whose contents have this validity.
    pub fn sources(&self, here: u64, validity: Validity) -> Vec<Arc<Shared>> {
        let others = self.valid.iter().filter(|copy| copy.device_id != here);
        let known = others.filter(|copy| copy.validity() == validity);
        known.filter_map(ValidCopy::scheduler).collect()
    }

    /// Adds a device whose contents are valid once `filling` is done; the other devices' stay valid. Contents that are
    /// already on their way there stay so, because `filling` may be cancelled before it overwrites them.
    pub fn add(&mut self, device: &Arc<DeviceInner>, filling: Filling) {
        let is_there = |copy: &&mut ValidCopy| copy.device_id == device.id;
        let here = self.valid.iter_mut().find(is_there);
        match here.filter(|copy| copy.validity() == Validity::Valid) {
            // Valid whatever becomes of `filling`. Without the earlier ones: each overwriting operation would add one.
            Some(copy) if copy.is_filled() => copy.fillings.clear(),
            Some(copy) => {
                copy.fillings.retain(|earlier| !earlier.has_failed());
                copy.fillings.push(filling);
            }
            None => {
                self.valid.retain(|copy| copy.device_id != device.id);
                let fillings = vec![filling];
                self.valid.push(ValidCopy { fillings, ..ValidCopy::new(device) });
            }
        }
    }

    /// Makes this device the only one with valid contents.
    pub fn keep_only(&mut self, device: u64) {
        self.valid.retain(|copy| copy.device_id == device);
    }
}

impl ValidCopy {
    fn new(device: &Arc<DeviceInner>) -> ValidCopy {
        let (device_id, device) = (device.id, Arc::downgrade(device));
        ValidCopy { device, device_id, fillings: Vec::new() }
    }

    /// The scheduler that the device has now.
    pub fn scheduler(&self) -> Option<Arc<Shared>> {
        Shared::of(&*self.device.upgrade()?)
    }

    /// Whether the contents are there, and no operation is needed for them any more.
    fn is_filled(&self) -> bool {
        let has_succeeded = |filling: &Filling| matches!(filling.completion.result(), Some(Ok(_)));
        self.fillings.is_empty() || self.fillings.iter().any(has_succeeded)
    }

    /// What is known of the contents.
    pub fn validity(&self) -> Validity {
        // An operation that has not ended counts: the device still has the scheduler that orders what follows.
        let Some(last) = self.fillings.last() else { return Validity::Valid };
        if !self.fillings.iter().all(Filling::has_failed) {
            return Validity::Valid;
        }
        match self.scheduler() {
            Some(now) if Weak::as_ptr(&last.scheduler) == Arc::as_ptr(&now) => Validity::KnownLost,
            _ => Validity::Lost,
        }
    }
}

impl Filling {
    fn has_failed(&self) -> bool {
        matches!(self.completion.result(), Some(Err(_)))
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x}", self.bytes, self.home.address)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::device::CpuLayout;
    use crate::engine::LaunchReport;
    use crate::scheduler::runtime::credits::StreamCredits;

    #[test]
    fn contents_that_are_there_keep_no_operations() {
        let device = Device::cpu_with(CpuLayout::sms(1)).expect("a device").inner;
        let mut residence = Residence::default();
        let mut fill = |result: Option<Result<LaunchReport, Error>>| {
            let completion = Arc::new(Completion::new(StreamCredits::of_one()));
            residence
                .add(&device, Filling { completion: completion.clone(), scheduler: Weak::new() });
            result.map(|result| completion.complete(result).count());
            let copy = residence.on(device.id).expect("it was added");
            (copy.fillings.len(), copy.validity())
        };
        let failed = || Some(Err(Error::Device(crate::error::DeviceError::Taken)));
        assert_eq!(fill(failed()), (1, Validity::Lost));
        assert_eq!(fill(None), (1, Validity::Valid));
        // It overwrites what is still on its way, and fails.
        assert_eq!(fill(failed()), (2, Validity::Valid));
        assert_eq!(fill(Some(Ok(LaunchReport::default()))), (2, Validity::Valid));
        for _ in 0..3 {
            assert_eq!(fill(failed()), (0, Validity::Valid));
        }
    }
}
