//! Memory of the host that several processes map.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::{DeviceError, Error, MemoryError};

/// The shared allocations of a device, its own and those that it has opened, by their addresses.
#[derive(Debug, Default)]
pub(super) struct SharedMemory(BTreeMap<u64, (Arc<OwnedFd>, Mapping)>);

impl SharedMemory {
    /// Zeroed memory of at least one byte; its address.
    pub fn allocate(&mut self, bytes: usize) -> Result<u64, Error> {
        let new = || -> io::Result<_> {
            let descriptor = memfd_create("preempt", MemfdFlags::CLOEXEC)?;
            ftruncate(&descriptor, bytes as u64)?;
            let mapping = Mapping::new(descriptor.as_fd(), bytes)?;
            Ok((descriptor, mapping))
        };
        let new = new().map_err(|_| Error::Memory(MemoryError::OutOfMemory { bytes }));
        new.map(|(descriptor, mapping)| self.keep(descriptor, mapping))
    }

    /// Memory that another process has allocated; its address.
    pub fn open(&mut self, descriptor: BorrowedFd<'_>, bytes: usize) -> Result<u64, Error> {
        let open = || -> io::Result<_> {
            let size = fstat(descriptor)?.st_size;
            if !u64::try_from(size).is_ok_and(|size| size >= bytes as u64) {
                // An access behind its end would end the process.
                return Err(io::Error::other("there are less"));
            }
            Ok((descriptor.try_clone_to_owned()?, Mapping::new(descriptor, bytes)?))
        };
        let (descriptor, mapping) = open().map_err(|error| {
            let reason = format!("{bytes} bytes of another process cannot be mapped: {error}");
            Error::Device(DeviceError::Unsupported { reason: reason.into() })
        })?;
        Ok(self.keep(descriptor, mapping))
    }

    fn keep(&mut self, descriptor: OwnedFd, mapping: Mapping) -> u64 {
        let address = mapping.address();
        self.0.insert(address, (Arc::new(descriptor), mapping));
        address
    }

    pub fn descriptor(&self, address: u64) -> Option<Arc<OwnedFd>> {
        self.0.get(&address).map(|(descriptor, _)| descriptor.clone())
    }

    /// Frees what starts at this address; returns whether there was any.
    ///
    /// # Safety
    ///
    /// Nothing uses it.
    pub unsafe fn free(&mut self, address: u64) -> bool {
        self.0.remove(&address).is_some()
    }
}

/// Memory of a descriptor in this process.
#[derive(Debug)]
struct Mapping {
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: an address; those who use the memory say how.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(descriptor: BorrowedFd<'_>, bytes: usize) -> io::Result<Mapping> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses a place where nothing is.
        let start =
            unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, descriptor, 0) }?;
        Ok(Mapping { start, bytes })
    }

    fn address(&self) -> u64 {
        self.start as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped once, in `new`, and nothing uses it any more, as those who drop it promise.
        let _ = unsafe { munmap(self.start, self.bytes) };
    }
}
