//! Memory of the fake driver that other processes can map: a file of the system's memory, and mappings of it.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys;
use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

use super::memory::{FRESH, Kind, add_mapping, release, state};
use super::{Code, INVALID_VALUE};

/// Bytes of which sizes are multiples.
pub const GRANULARITY: usize = 64 << 10;

#[derive(Default)]
struct Shares {
    /// Handles that were not released.
    handles: BTreeMap<u64, OwnedFd>,
    last: u64,
    /// Addresses that were not freed, by their starts.
    reserved: BTreeMap<usize, Reserved>,
}

struct Reserved {
    bytes: usize,
    is_mapped: bool,
}

static SHARES: Mutex<Shares> =
    Mutex::new(Shares { handles: BTreeMap::new(), last: 0, reserved: BTreeMap::new() });

fn shares() -> MutexGuard<'static, Shares> {
    SHARES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Handles and addresses that are not given back.
pub fn live() -> usize {
    let shares = shares();
    shares.handles.len() + shares.reserved.len()
}

impl Shares {
    fn add(&mut self, file: OwnedFd) -> u64 {
        self.last += 1;
        self.handles.insert(self.last, file);
        self.last
    }
}

pub fn create(bytes: usize) -> Result<u64, Code> {
    if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
        return Err(INVALID_VALUE);
    }
    let file = memfd_create("fake", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&file, bytes as u64).expect("memory");
    rustix::io::pwrite(&file, &[FRESH; 4096], 0).expect("memory");
    rustix::io::pwrite(&file, &[FRESH; 4096], bytes as u64 - 4096).expect("memory");
    Ok(shares().add(file))
}

pub fn release_handle(handle: u64) {
    if shares().handles.remove(&handle).is_none() {
        state().violation(format!("cuMemRelease: there is no handle {handle}"));
    }
}

pub fn export(handle: u64, kind: sys::CUmemAllocationHandleType) -> Result<c_int, Code> {
    let is_file = kind == sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let shares = shares();
    let file = shares.handles.get(&handle).filter(|_| is_file).ok_or(INVALID_VALUE)?;
    Ok(file.try_clone().expect("a descriptor").into_raw_fd())
}

pub fn import(descriptor: *mut c_void) -> Result<u64, Code> {
    // SAFETY: the caller has it open.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor.addr() as c_int) };
    let file = file.try_clone_to_owned().map_err(|_| INVALID_VALUE)?;
    let size = fstat(&file).map_err(|_| INVALID_VALUE)?.st_size;
    if size <= 0 {
        return Err(INVALID_VALUE);
    }
    Ok(shares().add(file))
}

pub fn reserve(bytes: usize) -> u64 {
    // Never given back, so that late accesses are found.
    // SAFETY: the system chooses a place where nothing is.
    let start =
        unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::empty(), MapFlags::PRIVATE) };
    let start = start.expect("addresses").addr();
    shares().reserved.insert(start, Reserved { bytes, is_mapped: false });
    start as u64
}

pub fn free_address(start: u64, bytes: usize) {
    match shares().reserved.remove(&(start as usize)) {
        Some(reserved) if !reserved.is_mapped && reserved.bytes == bytes => {}
        _ => state().violation(format!("cuMemAddressFree: {start:x} is not reserved, or mapped")),
    }
}

/// Changes what lies at reserved addresses.
fn place(start: u64, bytes: usize, file: Option<BorrowedFd<'_>>, access: ProtFlags) {
    let at = start as *mut c_void;
    // SAFETY: reserved for this, by the caller's look.
    let placed = unsafe {
        match file {
            Some(file) => mmap(at, bytes, access, MapFlags::SHARED | MapFlags::FIXED, file, 0),
            None => mmap_anonymous(at, bytes, access, MapFlags::PRIVATE | MapFlags::FIXED),
        }
    };
    placed.expect("a mapping");
}

pub fn map(start: u64, bytes: usize, handle: u64) -> Code {
    let mut shares = shares();
    let Shares { handles, reserved, .. } = &mut *shares;
    let (Some(file), Some(reserved)) = (handles.get(&handle), reserved.get_mut(&(start as usize)))
    else {
        return INVALID_VALUE;
    };
    let size = fstat(file).expect("a file").st_size;
    if reserved.is_mapped || reserved.bytes != bytes || size != bytes as i64 {
        return INVALID_VALUE;
    }
    reserved.is_mapped = true;
    place(start, bytes, Some(file.as_fd()), ProtFlags::empty());
    0
}

pub fn set_access(start: u64, bytes: usize) -> Code {
    let shares = shares();
    let reserved = shares.reserved.get(&(start as usize));
    if !reserved.is_some_and(|reserved| reserved.is_mapped && reserved.bytes == bytes) {
        return INVALID_VALUE;
    }
    let flags = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
    // SAFETY: mapped, and nothing is there that the compiler knows of.
    unsafe { rustix::mm::mprotect(start as *mut c_void, bytes, flags) }.expect("access");
    add_mapping(start as usize, bytes);
    0
}

pub fn unmap(start: u64, bytes: usize) -> Code {
    let mut shares = shares();
    let reserved = shares.reserved.get_mut(&(start as usize));
    let Some(reserved) = reserved.filter(|of| of.is_mapped && of.bytes == bytes) else {
        return INVALID_VALUE;
    };
    reserved.is_mapped = false;
    drop(shares);
    if state().holds(&(start as usize..start as usize + bytes)) == Some(Kind::Device) {
        release(start as usize, "cuMemUnmap");
    }
    place(start, bytes, None, ProtFlags::empty());
    0
}
