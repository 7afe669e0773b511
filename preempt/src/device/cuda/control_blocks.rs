//! Control blocks, their posts, and the words in which blocks tell how far they are. They are allocated before anything runs:
//! the driver may wait for everything when it pins memory. Before more are allocated, the proxy has to end.

use std::ptr;
use std::sync::{Arc, Mutex};

use preempt_device::abi::{COHORT_SLOTS, ControlBlock, MAX_PROGRESS, Post, Progress};

use super::context::{Context, call};
use super::lock;
use super::memory::{Pinned, Pool, Zeroing};
use super::queues::QUEUES;
use crate::device::control::ControlMemory;
use crate::error::Error;

/// Control blocks allocated at the start: one for each launch that has begun and is not over. A stream has 64 launches
/// in flight, so they suffice for a thousand streams that were all interrupted. They take 16 MiB of the host's memory
/// and 16 MiB of the device's.
const FIRST: usize = 65_536;
/// Control blocks added when none are left.
const MORE: usize = 4096;

const POSTS: usize = size_of::<[Post; COHORT_SLOTS]>();

/// Bytes of the words of one queue's blocks.
const PROGRESS: usize = size_of::<[Progress; MAX_PROGRESS]>();

#[derive(Debug)]
pub(super) struct ControlBlocks {
    slabs: Mutex<Slabs>,
    /// The words of each queue's blocks.
    progress: Pinned,
    pool: Arc<Pool>,
    context: Arc<Context>,
}

#[derive(Debug)]
struct Slabs {
    slabs: Vec<Slab>,
    /// Control blocks in use.
    used: usize,
}

#[derive(Debug)]
struct Slab {
    /// The control blocks, on the device.
    address: u64,
    /// Control blocks in the slab.
    count: usize,
    posts: Pinned,
}

impl ControlBlocks {
    /// The context is entered.
    pub fn new(context: &Arc<Context>, pool: &Arc<Pool>) -> Result<ControlBlocks, Error> {
        #[cfg(feature = "fault-injection")]
        let count = super::faults::control_blocks().unwrap_or(FIRST);
        #[cfg(not(feature = "fault-injection"))]
        let count = FIRST;
        let first = Slab::new(context, pool, count)?;
        let slabs = Mutex::new(Slabs { slabs: vec![first], used: 0 });
        let progress = Pinned::new(context, QUEUES.total() as usize * PROGRESS)?;
        Ok(ControlBlocks { slabs, progress, pool: pool.clone(), context: context.clone() })
    }

    /// The words of a queue's blocks. The device has them at the same addresses.
    pub fn progress(&self, queue: u32) -> *const Progress {
        self.progress.at(queue as usize * PROGRESS).cast_const().cast()
    }

    /// A zeroed control block with zeroed posts. If none is left, `before_waiting` ends what would not end by itself,
    /// because pinning memory may wait for everything that runs.
    pub fn take(&self, before_waiting: impl FnOnce()) -> Result<ControlMemory, Error> {
        let mut slabs = lock(&self.slabs);
        let found = slabs.get(slabs.used);
        let memory = match found {
            Some(memory) => memory,
            None => {
                let _entered = self.context.enter()?;
                before_waiting();
                let slab = Slab::new(&self.context, &self.pool, MORE)?;
                let memory = slab.get(0);
                slabs.slabs.push(slab);
                memory
            }
        };
        slabs.used += 1;
        Ok(memory)
    }

    /// Takes all control blocks back: the scheduler that used them is gone. The context is entered.
    pub fn reset(&self) -> Result<(), Error> {
        let mut slabs = lock(&self.slabs);
        let mut used = slabs.used;
        let line = self.pool.line();
        for Slab { address, count, posts } in &slabs.slabs {
            let dirty = used.min(*count);
            used -= dirty;
            if dirty > 0 {
                let bytes = dirty * size_of::<ControlBlock>();
                // SAFETY: within the slab, and no cohort uses it.
                line.issue(|stream| unsafe {
                    call!(self.context, cuMemsetD8Async(*address, 0, bytes, stream))
                })?;
                // SAFETY: as above.
                unsafe { posts.at(0).write_bytes(0, dirty * POSTS) };
            }
        }
        // SAFETY: all of it, and no cohort uses it.
        unsafe { self.progress.at(0).write_bytes(0, self.progress.bytes()) };
        // Also for what others have put into the stream.
        line.issue(|_| Ok(())).and_then(|number| line.wait(number))?;
        // Only now, because after an error the slabs are as they were.
        slabs.used = 0;
        Ok(())
    }
}

impl Slabs {
    /// The control block with this number, if it exists.
    fn get(&self, mut number: usize) -> Option<ControlMemory> {
        for slab in &self.slabs {
            if number < slab.count {
                return Some(slab.get(number));
            }
            number -= slab.count;
        }
        None
    }
}

impl Slab {
    fn new(context: &Arc<Context>, pool: &Pool, count: usize) -> Result<Slab, Error> {
        // First, because it may wait for what runs; afterwards no kernel competes with filling memory.
        let posts = Pinned::new(context, count * POSTS)?;
        let address = pool.allocate(count * size_of::<ControlBlock>(), Zeroing::ByCopies)?;
        Ok(Slab { address, count, posts })
    }

    fn get(&self, index: usize) -> ControlMemory {
        let control = self.address as usize + index * size_of::<ControlBlock>();
        ControlMemory {
            control: ptr::with_exposed_provenance(control),
            // The device has the posts at the same addresses.
            posts: self.posts.at(index * POSTS).cast_const().cast(),
        }
    }
}

impl Drop for ControlBlocks {
    fn drop(&mut self) {
        for slab in &lock(&self.slabs).slabs {
            // SAFETY: allocated with this size, and the device with all its users is gone.
            unsafe { self.pool.free(slab.address, slab.count * size_of::<ControlBlock>()) }
        }
    }
}
