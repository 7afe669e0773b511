//! Lists for requeued chunks: a list that comes back with chunks on it is zeroed while others are in use.

use std::collections::VecDeque;
use std::ptr;
use std::sync::{Arc, Mutex};

use preempt_device::abi::RequeueList;

use super::context::Context;
use super::lock;
use super::memory::{Pool, Zeroing};
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
    /// Lists that are being zeroed, each with the number of that work.
    zeroing: VecDeque<(u64, u64)>,
    /// Address and bytes of each allocation.
    memory: Vec<(u64, usize)>,
}

impl Lists {
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

    pub fn take(&self) -> Result<LentList, Error> {
        let mut lists = lock(&self.lists);
        let done = self.line.done();
        while let Some(&(number, list)) = lists.zeroing.front()
            && number <= done
        {
            lists.zeroing.pop_front();
            lists.empty.push(list);
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
        if is_empty {
            lock(&self.lists).empty.push(address);
            return Ok(());
        }
        let _entered = self.context.enter()?;
        let mut lists = lock(&self.lists);
        // SAFETY: the list was allocated, and no cohort uses it any more.
        let number =
            self.line.issue(|stream| unsafe { self.pool.copy_zeros(address, BYTES, stream) })?;
        lists.zeroing.push_back((number, address));
        Ok(())
    }
}

impl Drop for RequeueLists {
    fn drop(&mut self) {
        for (address, bytes) in &lock(&self.lists).memory {
            // SAFETY: allocated with this size, and the device with all its users is gone.
            unsafe { self.pool.free(*address, *bytes) }
        }
    }
}
