//! Memory for block-tasks that blocks leave at checkpoints. It has equal parts, each of which goes with a requeue list of its
//! own for good: the list says where its part is. So a launch that gets such a list has a part, and nothing is written for it
//! when the launch starts. How many slots of which size a part has follows from the launch's block, and blocks compute it.

use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::Ordering;

use preempt_device::abi::{RequeueList, SAVE_WORDS, SavePart, slot_bytes};
use preempt_device::host::{Dim3, Kernel};

use super::memory::{Pool, Zeroing};
use crate::error::{ConfigurationError, Error};

/// Parts of the memory: launches that can have block-tasks saved at the same time.
const PARTS: usize = 8;

const LIST: usize = size_of::<RequeueList>();
const MIB: u64 = 1 << 20;

/// The most bytes of a part, a multiple of a MiB: the list has 32 bits for them.
const MOST: usize = (u32::MAX as usize) & !(MIB as usize - 1);

/// Lists with their parts.
#[derive(Debug, Default)]
pub(super) struct SaveAreas {
    /// The address of the lists; 0 before there are any. They stay as long as the device.
    lists: u64,
    /// The address of the parts, and their bytes together; 0 without any.
    parts: (u64, usize),
    /// Empty lists whose words of the part are zero.
    pub empty: Vec<u64>,
}

impl SaveAreas {
    /// Makes `bytes` the size of all parts together. No launch is on the device, and the context is entered.
    ///
    /// After an error there are no parts, and the next call begins anew.
    pub fn reserve(&mut self, pool: &Pool, bytes: usize) -> Result<(), Error> {
        let part = (bytes / PARTS).min(MOST) & !(super::ALIGNMENT as usize - 1);
        let bytes = part * PARTS;
        if bytes == self.parts.1 && (bytes == 0 || self.empty.len() == PARTS) {
            return Ok(());
        }
        self.empty.clear();
        let (address, before) = std::mem::take(&mut self.parts);
        // SAFETY: allocated with this size, and no launch has a part.
        unsafe { pool.free(address, before) };
        if bytes == 0 {
            return Ok(());
        }
        if self.lists == 0 {
            self.lists = pool.allocate(PARTS * LIST, Zeroing::None)?;
        }
        self.parts = (pool.allocate(bytes, Zeroing::None)?, bytes);
        match self.start(pool, part) {
            Ok(()) => Ok(()),
            Err(error) => {
                let (address, bytes) = std::mem::take(&mut self.parts);
                // SAFETY: allocated above, and no list is given out that names it.
                unsafe { pool.free(address, bytes) };
                Err(error)
            }
        }
    }

    /// Empties all lists, and has each of them name its part.
    fn start(&mut self, pool: &Pool, part: usize) -> Result<(), Error> {
        let (lists, parts) = (self.lists, self.parts.0);
        let number = pool.line().issue(|stream| {
            (0..PARTS).try_for_each(|index| {
                // SAFETY: within both allocations, which no launch uses.
                unsafe {
                    pool.copy_zeros(lists + (index * LIST) as u64, LIST, stream)?;
                    pool.copy_zeros(parts + (index * part) as u64, SAVE_WORDS.min(part), stream)
                }
            })
        })?;
        // Behind the zeros, which come from another place.
        pool.line().wait(number)?;
        let mut empty = Vec::with_capacity(PARTS);
        for index in 0..PARTS {
            let list = lists + (index * LIST) as u64;
            let words = SavePart::default();
            words.memory.store(parts + (index * part) as u64, Ordering::Relaxed);
            words.bytes.store(part as u32, Ordering::Relaxed);
            let (to, from) = (list + offset_of!(RequeueList, save) as u64, ptr::from_ref(&words));
            // Waits until they are there, so they come before the launches of every stream. SAFETY: within the list.
            unsafe { pool.fill(to, from.cast(), size_of::<SavePart>())? };
            empty.push(list);
        }
        self.empty = empty;
        Ok(())
    }

    /// Whether this is one of these lists.
    pub fn has(&self, list: u64) -> bool {
        let end = self.lists + (PARTS * LIST) as u64;
        self.lists > 0 && (self.lists..end).contains(&list)
    }

    /// The words of this list's part that say which slots are in use, if it has one.
    pub fn words_of(&self, list: u64) -> Option<u64> {
        let has_part = self.has(list) && self.parts.1 > 0;
        has_part.then(|| self.parts.0 + (list - self.lists) / LIST as u64 * self.part())
    }

    /// Overwrites the slots of this list's part, if it has one, and waits for that.
    #[cfg(feature = "fault-injection")]
    pub fn poison(&self, pool: &Pool, list: u64) -> Result<(), Error> {
        let Some(words) = self.words_of(list) else { return Ok(()) };
        let slots = (self.part() as usize).saturating_sub(SAVE_WORDS);
        let poison = vec![0xA5; slots];
        // SAFETY: the slots come behind the words, and no launch has the part any more.
        unsafe { pool.fill(words + SAVE_WORDS as u64, poison.as_ptr(), slots) }
    }

    /// Takes a list back, which is empty. Without its part it stays here until there are parts again.
    pub fn put_empty(&mut self, list: u64) {
        if self.parts.1 > 0 {
            self.empty.push(list);
        }
    }

    /// Bytes of each part.
    fn part(&self) -> u64 {
        (self.parts.1 / PARTS) as u64
    }

    /// Refuses a kernel whose block-tasks are larger than what a part has for them.
    pub fn check(&self, kernel: &Kernel, block: Dim3, shared: u32) -> Result<(), Error> {
        let threads = u32::try_from(block.count()).unwrap_or(u32::MAX);
        let limit = self.part().saturating_sub(SAVE_WORDS as u64);
        // A device holds a block of these sizes, so they are no larger than the function takes.
        let bytes = u64::from(slot_bytes(threads, kernel.state_bytes, shared));
        if self.parts.1 == 0 || bytes <= limit {
            return Ok(());
        }
        let needed = ((bytes + SAVE_WORDS as u64).next_multiple_of(super::ALIGNMENT)
            * PARTS as u64)
            .div_ceil(MIB);
        let kernel = kernel.name;
        Err(Error::Configuration(ConfigurationError::CheckpointMemory {
            kernel,
            bytes,
            limit,
            needed,
        }))
    }

    /// # Safety
    ///
    /// The device with all its users is gone.
    pub unsafe fn free(&mut self, pool: &Pool) {
        let (address, bytes) = std::mem::take(&mut self.parts);
        let lists = std::mem::take(&mut self.lists);
        // SAFETY: allocated with these sizes, and the caller's promise.
        unsafe {
            pool.free(address, bytes);
            if lists > 0 {
                pool.free(lists, PARTS * LIST);
            }
        }
    }
}
