//! Lists for requeued chunks: a list that comes back with chunks on it is zeroed while others are in use. Some have a place
//! for block-tasks that blocks leave at checkpoints.

use std::collections::VecDeque;
use std::mem::offset_of;
use std::ptr;
use std::sync::{Arc, Mutex};

use preempt_device::abi::{RequeueList, SAVE_WORDS};
use preempt_device::host::{Dim3, Kernel};

use super::context::Context;
use super::lock;
use super::memory::{Pool, Zeroing};
use super::save_areas::SaveAreas;
use super::streams::TrackedStream;
use crate::device::control::LentList;
use crate::error::{Error, MemoryError};

const BYTES: usize = size_of::<RequeueList>();

/// Lists allocated at the start: one for each launch that has blocks on the device.
const FIRST: usize = 256;
/// Lists added when none are left.
const MORE: usize = 16;

#[derive(Debug)]
pub(super) struct RequeueLists {
    lists: Mutex<Lists>,
    /// The line on which lists are zeroed. Not the pool's, which may ask the system for memory.
    line: Arc<TrackedStream>,
    pool: Arc<Pool>,
    context: Arc<Context>,
}

#[derive(Debug, Default)]
struct Lists {
    empty: Vec<u64>,
    /// Other lists, for launches of kernels with a checkpoint.
    saving: SaveAreas,
    /// Lists that are being zeroed, each with the number of that work.
    zeroing: VecDeque<(u64, u64)>,
    /// Address and bytes of each allocation.
    memory: Vec<(u64, usize)>,
}

impl Lists {
    fn put_empty(&mut self, list: u64) {
        match self.saving.has(list) {
            true => self.saving.put_empty(list),
            false => self.empty.push(list),
        }
    }

    fn add(&mut self, pool: &Pool, count: usize) -> Result<(), Error> {
        // Without a kernel, because all SMs may be held.
        let address = pool.allocate(count * BYTES, Zeroing::ByCopies)?;
        self.memory.push((address, count * BYTES));
        self.empty.extend((0..count).map(|index| address + (index * BYTES) as u64));
        Ok(())
    }
}

impl RequeueLists {
    pub fn new(
        context: &Arc<Context>,
        pool: &Arc<Pool>,
        line: &Arc<TrackedStream>,
    ) -> Result<RequeueLists, Error> {
        let mut lists = Lists::default();
        lists.add(pool, FIRST)?;
        Ok(RequeueLists {
            lists: Mutex::new(lists),
            line: line.clone(),
            pool: pool.clone(),
            context: context.clone(),
        })
    }

    /// Makes `bytes` the size of all places for saved block-tasks together. The context is entered, and no launch is on the
    /// device.
    pub fn reserve(&self, bytes: usize) -> Result<(), Error> {
        let mut lists = lock(&self.lists);
        if let Some(&(last, _)) = lists.zeroing.back() {
            self.line.wait(last)?;
        }
        self.find_zeroed(&mut lists);
        lists.saving.reserve(&self.pool, bytes)
    }

    /// Refuses a kernel whose block-tasks fit in no place.
    pub fn check(&self, kernel: &Kernel, block: Dim3, shared: u32) -> Result<(), Error> {
        lock(&self.lists).saving.check(kernel, block, shared)
    }

    fn find_zeroed(&self, lists: &mut Lists) {
        let done = self.line.done();
        while let Some(&(number, list)) = lists.zeroing.front()
            && number <= done
        {
            lists.zeroing.pop_front();
            lists.put_empty(list);
        }
    }

    /// An empty list, with a place for saved block-tasks if the launch `saves` some and there is one left.
    pub fn take(&self, saves: bool) -> Result<LentList, Error> {
        let mut lists = lock(&self.lists);
        self.find_zeroed(&mut lists);
        if saves && let Some(list) = lists.saving.empty.pop() {
            return Ok(LentList(ptr::with_exposed_provenance(list as usize)));
        }
        if lists.empty.is_empty() {
            lists.add(&self.pool, MORE)?;
        }
        match lists.empty.pop() {
            Some(list) => Ok(LentList(ptr::with_exposed_provenance(list as usize))),
            None => Err(Error::Memory(MemoryError::OutOfMemory { bytes: BYTES })),
        }
    }

    pub fn give_back(&self, LentList(list): LentList, is_empty: bool) -> Result<(), Error> {
        let address = list.expose_provenance() as u64;
        #[cfg(feature = "fault-injection")]
        if super::faults::poisons_saved() {
            lock(&self.lists).saving.poison(&self.pool, address)?;
        }
        if is_empty {
            lock(&self.lists).put_empty(address);
            return Ok(());
        }
        let _entered = self.context.enter()?;
        let mut lists = lock(&self.lists);
        let words = lists.saving.words_of(address);
        // SAFETY: the list and its words were allocated, and no cohort uses them any more.
        let number = self.line.issue(|stream| unsafe {
            match words {
                None => self.pool.copy_zeros(address, BYTES, stream),
                // What says where the place is stays. Slots of block-tasks that are on the list are free again.
                Some(words) => {
                    self.pool.copy_zeros(words, SAVE_WORDS, stream)?;
                    self.pool.copy_zeros(address, offset_of!(RequeueList, save), stream)
                }
            }
        })?;
        lists.zeroing.push_back((number, address));
        Ok(())
    }
}

impl Drop for RequeueLists {
    fn drop(&mut self) {
        let mut lists = lock(&self.lists);
        for (address, bytes) in &lists.memory {
            // SAFETY: allocated with this size, and the device with all its users is gone.
            unsafe { self.pool.free(*address, *bytes) }
        }
        // SAFETY: as above.
        unsafe { lists.saving.free(&self.pool) }
    }
}
