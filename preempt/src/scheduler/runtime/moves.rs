//! Moves of contents between devices, and the submissions that need them.
//!
//! A move is three operations: the *departure* where the contents are valid, and on the other device the *arrival* and a
//! copy. The engines order all three by their use of the buffer, like operations of an application.
//!
//! | | departure: reads the buffer | arrival: replaces the contents | copy: writes them |
//! | --- | --- | --- | --- |
//! | direct | an external operation, from its turn until the copy is over | ends at the departure's turn | from the other device |
//! | else | a copy to the host | ends with that copy | from the host |
//!
//! A direct departure holds later writers back while the copy reads what they would write. A scheduler that is closed
//! waits for it, so that no other scheduler of the device has writers meanwhile.
//!
//! Moves in all directions cannot wait for each other. A copy waits for submissions before its own. A departure is posted
//! just before its copy, and waits for that. What waits for the departure was submitted later, with the buffer's
//! residence locked.
//!
//! The arrival passes failures on: it counts as the writer of the buffer, and fails with the kernel that lost the
//! contents.

use std::any::Any;
use std::sync::Arc;

use preempt_device::host::Access;

use super::completion::{Completion, Ending};
use super::core::{Job, Work};
use super::credits::StreamCredits;
use super::external::ExternalOperation;
use super::memory::{Filling, Memory, Residence, ValidCopy, Validity};
use super::shared::Shared;
use crate::device::{Copy, CopyKind, News, OwnedCopy, Rows};
use crate::engine::Use;
use crate::error::{ArgumentError, Error, LaunchError};
use crate::policy::Urgency;
use crate::scheduler::api::handle::HostMemory;
use crate::sync::MutexGuard;
use crate::vocabulary::BufferId;

/// What a move is called in errors.
const MOVE: &str = "a move between devices";

impl Job {
    /// Whether no device other than this has ever used its buffers.
    pub fn is_at_home(&self, device: u64) -> bool {
        self.all_owners(|owner| {
            owner.downcast_ref::<Memory>().is_none_or(|memory| memory.is_at_home(device))
        })
    }

    /// The memory of its buffers, each once, in the order in which residences are locked.
    fn memories(&self) -> Vec<Arc<Memory>> {
        let mut memories = Vec::new();
        self.all_owners(|owner| {
            memories.extend(owner.clone().downcast::<Memory>().ok());
            true
        });
        memories.sort_by_key(|memory| memory.lock_order());
        memories.dedup_by_key(|memory| memory.lock_order());
        memories
    }

    fn all_owners(&self, holds: impl FnMut(&Arc<dyn Any + Send + Sync>) -> bool) -> bool {
        match &self.work {
            Work::Launch { launch, .. } => {
                let buffers = launch.args.buffers().iter();
                buffers.filter_map(|(buffer, _)| buffer.owner.as_ref()).all(holds)
            }
            Work::Program(program) => program.owners.iter().all(holds),
            Work::Copy(copy) => copy.owners().iter().all(holds),
            Work::Opaque(job) => job.owners.iter().all(holds),
            Work::Event { .. } | Work::ExternalOperation(_) => true,
        }
    }

    /// Sets the addresses of its buffers on this device.
    fn resolve(&mut self, addresses: &[(BufferId, u64)]) {
        let resolved = |owner: &Arc<dyn Any + Send + Sync>, at_home: u64| {
            let memory = owner.downcast_ref::<Memory>()?;
            let mut here = addresses.iter().filter(|(buffer, _)| *buffer == memory.id);
            // It may be in the middle of its buffer.
            here.next().map(|&(_, address)| address + memory.offset(at_home))
        };
        match &mut self.work {
            Work::Launch { launch, .. } => {
                let args = &mut Arc::make_mut(launch).args;
                args.resolve(|buffer| resolved(buffer.owner.as_ref()?, buffer.address));
            }
            Work::Copy(copy) => {
                // SAFETY: each address is in the owner's memory on this device, as far from its start as before.
                unsafe { copy.relocate(resolved) };
            }
            // They have the addresses at home, and run there.
            Work::Program(_)
            | Work::Opaque(_)
            | Work::Event { .. }
            | Work::ExternalOperation(_) => {}
        }
    }
}

/// Submits a job, some of whose buffers were used on other devices, behind the moves that it needs.
pub(in crate::scheduler) fn submit(shared: &Arc<Shared>, job: Job) -> Result<(), Error> {
    let memories = job.memories();
    submit_using(shared, job, &memories, false)
}

/// Submits a job that uses `memories`, given in lock order, behind the moves that it needs. No submission uses them after
/// `is_last_use`.
pub(in crate::scheduler) fn submit_using(
    shared: &Arc<Shared>,
    job: Job,
    memories: &[Arc<Memory>],
    is_last_use: bool,
) -> Result<(), Error> {
    let urgency = job.urgency;
    let mut submission = Submission { shared, sources: Vec::new(), urgency, is_last_use };
    let result = submission.post(job, memories);
    // With the residences unlocked, because running a core may run application code, which may submit in turn.
    // Their pollers are woken first, because that code may wait for operations of each of them.
    submission.sources.iter().for_each(|source| source.rouse());
    for source in submission.sources {
        source.drive();
    }
    shared.drive();
    result
}

/// A submission to a scheduler.
struct Submission<'a> {
    shared: &'a Arc<Shared>,
    /// Other schedulers that were given operations for it.
    sources: Vec<Arc<Shared>>,
    urgency: Urgency,
    is_last_use: bool,
}

impl Submission<'_> {
    /// Posts the moves and the job, and enters them into the residences.
    fn post(&mut self, mut job: Job, memories: &[Arc<Memory>]) -> Result<(), Error> {
        let (shared, name) = (self.shared, job.name);
        let device = &shared.device;
        if !memories.iter().all(|memory| memory.may_be_on(device.inner.id)) {
            return Err(Error::Argument(ArgumentError::ForeignBuffer { name }));
        }
        let mut residences: Vec<(&Arc<Memory>, MutexGuard<'_, Residence>)> =
            memories.iter().map(|memory| (memory, memory.residence())).collect();
        if !self.is_last_use && memories.iter().any(|memory| memory.is_given_away()) {
            return Err(Error::Argument(ArgumentError::ForeignBuffer { name }));
        }
        // First, so that a lack of memory changes nothing.
        let mut addresses = Vec::with_capacity(residences.len());
        for (memory, residence) in &mut residences {
            addresses.push((memory.id, memory.address_on(residence, device)?));
        }
        for (memory, residence) in &mut residences {
            if memory.home() != device.inner.id {
                memory.leave_home();
            }
            self.make_valid(&job, memory, residence)?;
        }
        job.resolve(&addresses);
        let (written, completion) = (written(&job), job.completion.clone());
        self.post_to(shared, job)?;
        for (memory, residence) in &mut residences {
            if replaces(&written, memory) {
                residence.add(&device.inner, self.filling(completion.clone()));
            }
            if written.iter().any(|used| used.buffer == memory.id) {
                residence.keep_only(device.inner.id);
            }
        }
        Ok(())
    }

    fn post_to(&self, scheduler: &Shared, job: Job) -> Result<(), Error> {
        match scheduler.post(job) {
            true => Ok(()),
            false => Err(Error::Launch(LaunchError::SchedulerDropped { done: 0, tasks: 0 })),
        }
    }

    fn filling(&self, completion: Arc<Completion>) -> Filling {
        Filling { completion, scheduler: Arc::downgrade(self.shared) }
    }

    fn is_valid_here(&self, residence: &Residence) -> bool {
        let here = residence.on(self.shared.device.inner.id);
        here.map(ValidCopy::validity) == Some(Validity::Valid)
    }

    /// Makes the buffer's contents valid on this device before the job, or known to be lost there.
    fn make_valid(
        &mut self,
        job: &Job,
        memory: &Arc<Memory>,
        residence: &mut Residence,
    ) -> Result<(), Error> {
        if self.is_valid_here(residence) || memory.bytes == 0 {
            return Ok(());
        }
        if replaces(&written(job), memory) {
            // If the job is cancelled, no contents are valid here.
            let lost = ExternalOperation::new(|_| ());
            lost.fail_with(job.name);
            return self.post_writer(self.shared.move_stream(), memory, lost);
        }
        let here = self.shared.device.inner.id;
        for source in residence.sources(here, Validity::Valid) {
            if self.fetch(memory, residence, source)? {
                return Ok(());
            }
        }
        let valid = |copy: &&ValidCopy| copy.validity() == Validity::Valid;
        if let Some(copy) = residence.valid.iter().find(valid) {
            let device = copy.device.upgrade();
            let device = device.map(|device| device.properties.name.as_str().into());
            let device = device.unwrap_or_else(|| "a device that was dropped".into());
            let name = job.name;
            return Err(Error::Argument(ArgumentError::ContentsElsewhere { name, device }));
        }
        if residence.on(here).map(ValidCopy::validity) == Some(Validity::KnownLost) {
            return Ok(());
        }
        // Their copies fail, and name the kernel.
        for source in residence.sources(here, Validity::KnownLost) {
            if self.fetch(memory, residence, source)? {
                return Ok(());
            }
        }
        Err(Error::Launch(LaunchError::InputLost { kernel: MOVE }))
    }

    /// Moves the contents here from another device; `false` if its scheduler is closed.
    fn fetch(
        &mut self,
        memory: &Arc<Memory>,
        residence: &mut Residence,
        source: Arc<Shared>,
    ) -> Result<bool, Error> {
        let (here, rows) = (&self.shared.device, Rows::one(memory.bytes));
        let from = memory.address_on(residence, &source.device)?;
        let to = memory.address_on(residence, here)?;
        let arrival = ExternalOperation::new(|_| ());
        let (arrives, news) = (arrival.clone(), here.inner.news.clone());
        let passes_on = move |ending: &Ending| {
            match ending {
                Ok(_) => arrives.finish(Ok(())),
                Err(
                    Error::Launch(LaunchError::InputLost { kernel })
                    | Error::Launch(LaunchError::KernelFailed { kernel, .. }),
                ) => {
                    arrives.fail_with(kernel);
                }
                Err(_) => arrives.fail_with(MOVE),
            }
            news.announce();
        };
        let departed = Completion::with_sequel(StreamCredits::of_one(), passes_on);
        let (departure, copy, done) = if here.can_access_peer(&source.device) {
            let (arrives, news) = (arrival.clone(), here.inner.news.clone());
            let departure = ExternalOperation::on_memory(move |_| {
                arrives.finish(Ok(()));
                news.announce();
            });
            let departing = Departing(departure.clone(), source.device.inner.news.clone());
            let copy = Copy { kind: CopyKind::FromPeer, from, to, rows };
            // SAFETY: the owner keeps both places. The engines order operations on the buffer: there by the departure,
            // which is over after the copy, and here by `write`.
            let copy = unsafe { OwnedCopy::new(copy, [memory.clone(), memory.clone()]) };
            // However the copy ends.
            let done = Completion::with_sequel(StreamCredits::of_one(), |_| drop(departing));
            (Work::ExternalOperation(departure), copy, done)
        } else {
            let host = Arc::new(HostMemory::<u8>::new(memory.bytes));
            let copy = Copy { kind: CopyKind::ToHost, from, to: host.address(), rows };
            // SAFETY: both owners keep their places, and the engine orders operations on the buffer by `read`.
            let departure = unsafe { OwnedCopy::new(copy, [memory.clone(), host.clone()]) };
            let copy = Copy { kind: CopyKind::ToDevice, from: host.address(), to, rows };
            // SAFETY: as above, by `write`; the contents of `host` were written before `arrival` is over.
            let copy = unsafe { OwnedCopy::new(copy, [host, memory.clone()]) };
            (Work::Copy(departure), copy, Completion::new(StreamCredits::of_one()))
        };
        let read = use_of(memory, Access::Read, false);
        if !source.post(self.job(source.move_stream(), read, departure, departed)) {
            return Ok(false);
        }
        self.sources.push(source);

        let stream = self.shared.move_stream();
        self.post_writer(stream, memory, arrival)?;
        // Not overwriting: that would hide a failure of the arrival.
        let write = use_of(memory, Access::Write, false);
        let job = self.job(stream, write, Work::Copy(copy), done);
        let filling = self.filling(job.completion.clone());
        self.post_to(self.shared, job)?;
        residence.add(&self.shared.device.inner, filling);
        Ok(true)
    }

    /// Posts an external operation here that replaces the contents of the buffer, or loses them.
    fn post_writer(
        &self,
        stream: u32,
        memory: &Memory,
        external: Arc<ExternalOperation>,
    ) -> Result<(), Error> {
        let write = use_of(memory, Access::Write, true);
        let completion = Completion::new(StreamCredits::of_one());
        let work = Work::ExternalOperation(external);
        self.post_to(self.shared, self.job(stream, write, work, completion))
    }

    fn job(&self, stream: u32, used: Use, work: Work, completion: Completion) -> Job {
        let (completion, uses) = (Arc::new(completion), vec![used]);
        let urgency = self.urgency;
        Job { completion, stream, name: MOVE, uses, urgency, longest_plain: None, work }
    }
}

/// Ends the departure of a direct move when dropped: with the copy, or when there will be none.
struct Departing(Arc<ExternalOperation>, Arc<News>);

impl Drop for Departing {
    fn drop(&mut self) {
        let Departing(departure, news) = self;
        departure.finish(Ok(()));
        news.announce();
    }
}

/// The use of a whole buffer.
fn use_of(memory: &Memory, access: Access, overwrites: bool) -> Use {
    Use { buffer: memory.id, bytes: memory.whole(), access, overwrites }
}

/// Whether these uses replace all contents of a buffer. What replaces a part needs the rest.
fn replaces(written: &[Use], memory: &Memory) -> bool {
    let all = |used: &Use| used.overwrites && used.bytes.covers(memory.whole());
    written.iter().any(|used| used.buffer == memory.id && all(used))
}

/// The ranges that a job writes.
fn written(job: &Job) -> Vec<Use> {
    job.uses.iter().filter(|used| used.access == Access::Write).copied().collect()
}
