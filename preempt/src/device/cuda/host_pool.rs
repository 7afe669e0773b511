//! Pinned memory of the application, which the device copies from and to without a detour.
//!
//! Pinning memory, and freeing it, may wait for the kernels that run. So memory that is given back is kept for later
//! requests, until the device is dropped.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use super::context::Context;
use super::driver::OUT_OF_MEMORY;
use super::lock;
use super::memory::Pinned;
use crate::error::{DeviceError, Error, MemoryError};

/// Bytes: sizes of allocations are multiples of this, the host's page.
const PAGE: usize = 4096;

#[derive(Debug)]
pub(super) struct HostPool {
    blocks: Mutex<Vec<Block>>,
    context: Arc<Context>,
}

#[derive(Debug)]
struct Block {
    memory: Pinned,
    is_lent: bool,
}

impl HostPool {
    pub fn new(context: &Arc<Context>) -> HostPool {
        HostPool { blocks: Mutex::default(), context: context.clone() }
    }

    /// Zeroed memory, from what was given back or from the driver. Before that one is asked, `prepare` is called with the
    /// context entered, because the driver may wait for all that runs.
    pub fn take(&self, bytes: usize, prepare: impl FnOnce()) -> Result<NonNull<u8>, Error> {
        let _entered = self.context.enter()?;
        let size = bytes.max(1).next_multiple_of(PAGE);
        if let Some(start) = self.take_free(size) {
            // SAFETY: it is that long, and lent to this request alone.
            unsafe { start.write_bytes(0, bytes) };
            return Ok(start);
        }
        prepare();
        // Without the lock, which copies take.
        let memory = Pinned::new(&self.context, size).map_err(|error| match error {
            Error::Device(DeviceError::Driver { code: OUT_OF_MEMORY, .. })
            | Error::Memory(MemoryError::OutOfMemory { .. }) => {
                Error::Memory(MemoryError::HostFull { bytes })
            }
            error => error,
        })?;
        let start = memory.start();
        lock(&self.blocks).push(Block { memory, is_lent: true });
        Ok(start)
    }

    /// The smallest free block of at least this size, if it is at most twice as large.
    fn take_free(&self, size: usize) -> Option<NonNull<u8>> {
        let mut blocks = lock(&self.blocks);
        let fits = |block: &&mut Block| {
            !block.is_lent && (size..=2 * size).contains(&block.memory.bytes())
        };
        let block = blocks.iter_mut().filter(fits).min_by_key(|block| block.memory.bytes())?;
        block.is_lent = true;
        Some(block.memory.start())
    }

    /// Takes a block back, which no copy uses.
    pub fn give_back(&self, start: NonNull<u8>) {
        let mut blocks = lock(&self.blocks);
        if let Some(block) = blocks.iter_mut().find(|block| block.memory.start() == start) {
            block.is_lent = false;
        }
    }

    /// Whether all these bytes lie in one block that is lent.
    pub fn contains(&self, address: u64, bytes: usize) -> bool {
        let blocks = lock(&self.blocks);
        blocks.iter().filter(|block| block.is_lent).any(|block| {
            let start = block.memory.start().as_ptr() as u64;
            let offset = address.wrapping_sub(start);
            offset < block.memory.bytes() as u64
                && bytes as u64 <= block.memory.bytes() as u64 - offset
        })
    }
}
