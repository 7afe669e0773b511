//! Memory for buffers on devices whose memory is the host's.

use std::alloc::{Layout, alloc_zeroed, dealloc};
#[cfg(target_os = "linux")]
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
#[cfg(target_os = "linux")]
use std::sync::Arc;

#[cfg(target_os = "linux")]
use super::shared::SharedMemory;
use crate::device::{Contents, DeviceMemory, MemoryInfo, Place, lock};
use crate::error::{Error, MemoryError};
use crate::sync::Mutex;

/// Bytes: alignment of each allocation, as of the CUDA driver's.
const ALIGNMENT: usize = 256;

pub(in crate::device) struct Memory {
    /// Bytes that buffers can have in all, if that is limited.
    limit: Option<usize>,
    /// Bytes that buffers have now.
    used: Mutex<usize>,
    place: Place,
    #[cfg(target_os = "linux")]
    shared: Mutex<SharedMemory>,
}

impl Memory {
    pub fn new(limit: Option<usize>, place: Place) -> Memory {
        Memory {
            limit,
            used: Mutex::default(),
            place,
            #[cfg(target_os = "linux")]
            shared: Mutex::default(),
        }
    }
}

impl DeviceMemory for Memory {
    // Always zeroed: reads of memory of the host that was never written would be undefined.
    fn allocate(&self, bytes: usize, contents: Contents) -> Result<u64, Error> {
        if bytes == 0 {
            return Ok(ALIGNMENT as u64);
        }
        let layout = Layout::from_size_align(bytes, ALIGNMENT)
            .map_err(|_| Error::Memory(MemoryError::OutOfMemory { bytes }))?;
        let mut used = lock(&self.used);
        if self.limit.is_some_and(|limit| bytes > limit - *used) {
            return Err(Error::Memory(MemoryError::OutOfMemory { bytes }));
        }
        let address = match contents {
            #[cfg(target_os = "linux")]
            Contents::Shared => lock(&self.shared).allocate(bytes)?,
            // SAFETY: the size is not 0.
            Contents::Zeros | Contents::Any => match unsafe { alloc_zeroed(layout) } as u64 {
                0 => return Err(Error::Memory(MemoryError::OutOfMemory { bytes })),
                address => address,
            },
        };
        *used += bytes;
        Ok(address)
    }

    unsafe fn free(&self, address: u64, bytes: usize) {
        let Ok(layout) = Layout::from_size_align(bytes, ALIGNMENT) else { return };
        if bytes == 0 {
            return;
        }
        #[cfg(target_os = "linux")]
        // SAFETY: nothing uses it, as the caller says.
        let is_shared = unsafe { lock(&self.shared).free(address) };
        #[cfg(not(target_os = "linux"))]
        let is_shared = false;
        if !is_shared {
            // SAFETY: `allocate` gave this address for this layout, as the caller says.
            unsafe { dealloc(address as *mut u8, layout) }
        }
        *lock(&self.used) -= bytes;
    }

    unsafe fn fill(&self, address: u64, data: *const u8, bytes: usize) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(data, address as *mut u8, bytes) };
        Ok(())
    }

    fn allocate_host(&self, bytes: usize) -> Result<NonNull<u8>, Error> {
        let full = Error::Memory(MemoryError::HostFull { bytes });
        let Ok(layout) = Layout::from_size_align(bytes.max(1), ALIGNMENT) else { return Err(full) };
        // SAFETY: the size is not 0.
        NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(full)
    }

    unsafe fn free_host(&self, start: NonNull<u8>, bytes: usize) {
        if let Ok(layout) = Layout::from_size_align(bytes.max(1), ALIGNMENT) {
            // SAFETY: `allocate_host` gave this address for this layout, as the caller says.
            unsafe { dealloc(start.as_ptr(), layout) }
        }
    }

    fn within_reach(&self, _live: usize) -> Option<usize> {
        self.limit
    }

    fn place(&self) -> Place {
        self.place
    }

    fn reads(&self, place: Place) -> bool {
        self.place == place
    }

    fn info(&self) -> Result<MemoryInfo, Error> {
        let most = MemoryInfo { free: isize::MAX as usize, total: isize::MAX as usize };
        Ok(match self.limit {
            Some(total) => MemoryInfo { free: total - *lock(&self.used), total },
            None => std::fs::read_to_string("/proc/meminfo")
                .ok()
                .and_then(|text| of_host(&text))
                .unwrap_or(most),
        })
    }

    #[cfg(target_os = "linux")]
    fn shared(&self, address: u64) -> Option<Arc<OwnedFd>> {
        lock(&self.shared).descriptor(address)
    }

    #[cfg(target_os = "linux")]
    fn open(&self, descriptor: BorrowedFd<'_>, bytes: usize) -> Result<u64, Error> {
        let mut used = lock(&self.used);
        if self.limit.is_some_and(|limit| bytes > limit - *used) {
            return Err(Error::Memory(MemoryError::OutOfMemory { bytes }));
        }
        let address = lock(&self.shared).open(descriptor, bytes)?;
        *used += bytes;
        Ok(address)
    }
}

/// The host's memory, from the text in which Linux tells it.
fn of_host(text: &str) -> Option<MemoryInfo> {
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kibibytes = line.trim().strip_suffix(" kB")?.parse::<usize>().ok()?;
        kibibytes.checked_mul(1 << 10)
    };
    Some(MemoryInfo { free: bytes("MemAvailable")?, total: bytes("MemTotal")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_the_host_is_read() {
        let text = "MemTotal:       32 kB\nMemFree: 1 kB\nMemAvailable:   20 kB\nCached: 7 kB\n";
        assert_eq!(of_host(text), Some(MemoryInfo { free: 20 << 10, total: 32 << 10 }));
        assert_eq!(of_host("MemTotal: 32 kB\n"), None);
        assert_eq!(of_host("MemTotal: 32\nMemAvailable: x kB\n"), None);
    }
}
