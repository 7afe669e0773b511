//! Memory of a GPU that other processes can map: allocations of their own, which go to these as descriptors.
//!
//! The memory is there as long as any process has the descriptor or a mapping. So a worker that is killed in mid-kernel writes to
//! nothing that was allocated anew.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys;

use super::context::{Context, call};
use super::driver::{DeviceAttribute, OUT_OF_MEMORY, RawMemory};
use super::lock;
use super::parts::Part;
use crate::error::{DeviceError, Error, MemoryError};

const DESCRIPTOR: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// The shared allocations of a device, its own and those that it has opened, by their addresses.
#[derive(Debug)]
pub(super) struct Shareable {
    context: Arc<Context>,
    allocations: Mutex<BTreeMap<u64, (Arc<OwnedFd>, Mapping)>>,
}

impl Shareable {
    pub fn new(context: &Arc<Context>) -> Shareable {
        Shareable { context: context.clone(), allocations: Mutex::default() }
    }

    /// Memory of at least one byte, which is not zeroed; its address. The context is entered.
    pub fn allocate(&self, bytes: usize) -> Result<u64, Error> {
        let context = &self.context;
        use DeviceAttribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
        if context.attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)? == 0
        {
            let reason = "its driver does not let other processes have its memory; hand contents to workers as bytes, by \
                          `Run::call`"
                .into();
            return Err(Error::Device(DeviceError::Unsupported { reason }));
        }
        let full = Error::Memory(MemoryError::OutOfMemory { bytes });
        let padded = padded(context, bytes)?.ok_or(full.clone())?;
        let live: usize = lock(&self.allocations).values().map(|(_, mapping)| mapping.bytes).sum();
        if context.part().map(Part::memory).is_some_and(|share| live.saturating_add(padded) > share)
        {
            return Err(full);
        }
        let (mut raw, properties) = (0, properties(context));
        let of = &raw const properties;
        // SAFETY: the pointers are valid.
        let created = unsafe { call!(context, cuMemCreate(&raw mut raw, padded, of, 0)) };
        match created {
            Err(Error::Device(DeviceError::Driver { code: OUT_OF_MEMORY, .. })) => {
                return Err(full);
            }
            created => created?,
        }
        let memory = Memory { raw, context };
        let mut descriptor: c_int = -1;
        let place = (&raw mut descriptor).cast::<c_void>();
        // SAFETY: a handle of this type is a `c_int`.
        unsafe { call!(context, cuMemExportToShareableHandle(place, memory.raw, DESCRIPTOR, 0))? };
        // SAFETY: the driver has just made it for the caller.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(self.keep(descriptor, Mapping::new(context, &memory, padded)?))
    }

    fn keep(&self, descriptor: OwnedFd, mapping: Mapping) -> u64 {
        let address = mapping.address;
        lock(&self.allocations).insert(address, (Arc::new(descriptor), mapping));
        address
    }

    pub fn descriptor(&self, address: u64) -> Option<Arc<OwnedFd>> {
        lock(&self.allocations).get(&address).map(|(descriptor, _)| descriptor.clone())
    }

    /// Frees what starts at this address; returns whether there was any.
    ///
    /// # Safety
    ///
    /// Nothing uses it.
    pub unsafe fn free(&self, address: u64) -> bool {
        let freed = lock(&self.allocations).remove(&address);
        freed.is_some()
    }

    /// Memory that another process has allocated; its address. The context is entered.
    pub fn open(&self, descriptor: BorrowedFd<'_>, bytes: usize) -> Result<u64, Error> {
        let context = &self.context;
        let descriptor = descriptor.try_clone_to_owned().map_err(|error| {
            let reason = format!("memory of another process cannot be mapped: {error}").into();
            Error::Device(DeviceError::Unsupported { reason })
        })?;
        let padded = padded(context, bytes)?;
        let padded = padded.ok_or(Error::Memory(MemoryError::OutOfMemory { bytes }))?;
        let mut raw = 0;
        let handle = ptr::without_provenance_mut(descriptor.as_raw_fd() as usize);
        // SAFETY: a handle of this type is the number of a descriptor, which is open.
        unsafe {
            call!(context, cuMemImportFromShareableHandle(&raw mut raw, handle, DESCRIPTOR))?;
        }
        let mapping = Mapping::new(context, &Memory { raw, context }, padded)?;
        Ok(self.keep(descriptor, mapping))
    }
}

/// What is allocated: memory of this device, which other processes can have.
fn properties(context: &Context) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: DESCRIPTOR,
        location: location(context),
        win32HandleMetaData: ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn location(context: &Context) -> sys::CUmemLocation {
    let type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    sys::CUmemLocation { type_, id: context.device() }
}

/// The bytes that such an allocation has, if there are as many.
fn padded(context: &Context, bytes: usize) -> Result<Option<usize>, Error> {
    let mut piece = 0;
    let option = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let properties = properties(context);
    let of = &raw const properties;
    // SAFETY: the pointers are valid.
    unsafe { call!(context, cuMemGetAllocationGranularity(&raw mut piece, of, option))? };
    Ok(bytes.checked_next_multiple_of(piece.max(1)))
}

/// An allocation, as long as it is not known whether it is mapped. Mapped, it needs no handle.
struct Memory<'a> {
    raw: RawMemory,
    context: &'a Context,
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // SAFETY: created or imported once. The driver keeps what is mapped.
        unsafe { (self.context.functions().cuMemRelease)(self.raw) };
    }
}

/// Memory at an address of this process.
#[derive(Debug)]
struct Mapping {
    address: u64,
    bytes: usize,
    is_mapped: bool,
    context: Arc<Context>,
}

impl Mapping {
    /// Maps all of an allocation; the context is entered.
    fn new(context: &Arc<Context>, memory: &Memory<'_>, bytes: usize) -> Result<Mapping, Error> {
        let mut address = 0;
        // SAFETY: the pointer is valid.
        unsafe { call!(context, cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0))? };
        let mut mapping = Mapping { address, bytes, is_mapped: false, context: context.clone() };
        // SAFETY: just reserved with this size, which is the allocation's.
        unsafe { call!(context, cuMemMap(address, bytes, 0, memory.raw, 0))? };
        mapping.is_mapped = true;
        let access = sys::CUmemAccessDesc {
            location: location(context),
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: just mapped; the driver reads the description during the call.
        unsafe { call!(context, cuMemSetAccess(address, bytes, &raw const access, 1))? };
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let Mapping { address, bytes, is_mapped, context } = self;
        if context.is_freeable()
            && let Ok(_entered) = context.enter()
        {
            let functions = context.functions();
            // SAFETY: mapped once, in `new`; those who drop it promise that nothing uses it. What is still mapped keeps its
            // address.
            unsafe {
                if !*is_mapped || (functions.cuMemUnmap)(*address, *bytes) == super::driver::SUCCESS
                {
                    (functions.cuMemAddressFree)(*address, *bytes);
                }
            }
        }
    }
}
