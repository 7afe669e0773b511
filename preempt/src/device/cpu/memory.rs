//! Memory for buffers: the host's.

use std::alloc::{Layout, alloc_zeroed, dealloc};

use super::lock;
use crate::error::{Error, MemoryError};
use crate::sync::Mutex;

/// Device memory starts at multiples of this, as the CUDA driver's does.
const ALIGNMENT: usize = 256;

pub(super) struct Memory {
    /// Bytes that buffers can have, if that is limited, and how many they have.
    pub limit: Option<usize>,
    used: Mutex<usize>,
}

impl Memory {
    pub fn new(limit: Option<usize>) -> Memory {
        Memory { limit, used: Mutex::default() }
    }

    /// Zeroed memory.
    pub fn allocate(&self, bytes: usize) -> Result<u64, Error> {
        if bytes == 0 {
            return Ok(ALIGNMENT as u64);
        }
        let layout = Layout::from_size_align(bytes, ALIGNMENT)
            .map_err(|_| Error::Memory(MemoryError::OutOfMemory { bytes }))?;
        let mut used = lock(&self.used);
        if self.limit.is_some_and(|limit| bytes > limit - *used) {
            return Err(Error::Memory(MemoryError::OutOfMemory { bytes }));
        }
        // SAFETY: the size is not 0.
        let address = unsafe { alloc_zeroed(layout) };
        match address.is_null() {
            true => Err(Error::Memory(MemoryError::OutOfMemory { bytes })),
            false => {
                *used += bytes;
                Ok(address as u64)
            }
        }
    }

    /// # Safety
    ///
    /// `address` came from `allocate` with the same `bytes`; it is freed once.
    pub unsafe fn free(&self, address: u64, bytes: usize) {
        if bytes > 0
            && let Ok(layout) = Layout::from_size_align(bytes, ALIGNMENT)
        {
            // SAFETY: `allocate` gave this address for this layout.
            unsafe { dealloc(address as *mut u8, layout) }
            *lock(&self.used) -= bytes;
        }
    }
}
