//! Memory: pinned on the host, fixed on the device, and the pool that buffers come from.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cudarc::driver::sys;

use super::ALIGNMENT;
use super::context::{Context, call};
use super::driver::{INVALID_VALUE, OUT_OF_MEMORY, RawPool, RawStream};
use super::lock;
use super::parts::Part;
use super::staged::Staged;
use super::streams::{LAST_WAIT, TrackedStream};
use crate::device::Rows;
use crate::error::{DeviceError, Error, MemoryError};

/// Pinned memory is valid in every context and has an address on the device (`CU_MEMHOSTALLOC_PORTABLE`,
/// `CU_MEMHOSTALLOC_DEVICEMAP`).
const PORTABLE_AND_MAPPED: u32 = 1 | 2;

/// Bytes zeroed by one copy.
const ZEROS: usize = 1 << 20;

/// Microseconds of such a copy over PCIe 5 (50 GB/s): how long an allocation may wait for each so many bytes, for blocks that were
/// told to leave, so that a kernel can zero them. A wait in vain doubles the time at most.
const ZEROS_TAKE: Duration = Duration::from_micros(20);

/// What it takes to zero memory by copies.
pub(super) fn copies_take(bytes: usize) -> Duration {
    ZEROS_TAKE.mul_f64(bytes as f64 / ZEROS as f64)
}

/// Zeroed host memory that the device can use at the same address.
#[derive(Debug)]
pub(super) struct Pinned {
    start: NonNull<u8>,
    bytes: usize,
    context: Arc<Context>,
}

// SAFETY: memory can be used from any thread; those who share it say how.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Allocates pinned memory. The context is entered, and preferably nothing runs, because the driver may wait for
    /// it.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Pinned, Error> {
        let mut start = ptr::null_mut();
        // SAFETY: the pointer is valid.
        unsafe { call!(context, cuMemHostAlloc(&raw mut start, bytes, PORTABLE_AND_MAPPED))? };
        let Some(start) = NonNull::new(start.cast::<u8>()) else {
            return Err(Error::Memory(MemoryError::OutOfMemory { bytes }));
        };
        // SAFETY: just allocated with this size.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Pinned { start, bytes, context: context.clone() })
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The address of the byte at `offset`.
    pub fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.bytes);
        self.start.as_ptr().wrapping_add(offset)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.is_freeable()
            && let Ok(_entered) = self.context.enter()
        {
            // SAFETY: allocated once, in `new`.
            unsafe { (self.context.functions().cuMemFreeHost)(self.start.as_ptr().cast()) };
        }
    }
}

/// Zeroed device memory that lives as long as the device.
#[derive(Debug)]
pub(super) struct Fixed {
    address: u64,
    bytes: usize,
    context: Arc<Context>,
}

impl Fixed {
    /// Allocates the memory, which is zeroed when `stream` has done its work so far. The context is entered.
    pub fn new(context: &Arc<Context>, bytes: usize, stream: RawStream) -> Result<Fixed, Error> {
        let mut address = 0;
        // SAFETY: the pointer is valid.
        unsafe { call!(context, cuMemAlloc_v2(&raw mut address, bytes))? };
        let fixed = Fixed { address, bytes, context: context.clone() };
        fixed.zero(stream)?;
        Ok(fixed)
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    /// Zeroes the memory in stream order. Nothing uses it at that time.
    pub fn zero(&self, stream: RawStream) -> Result<(), Error> {
        // SAFETY: allocated with this size.
        unsafe { call!(self.context, cuMemsetD8Async(self.address, 0, self.bytes, stream)) }
    }
}

impl Drop for Fixed {
    fn drop(&mut self) {
        if self.context.is_freeable()
            && let Ok(_entered) = self.context.enter()
        {
            // SAFETY: allocated once, in `new`.
            unsafe { (self.context.functions().cuMemFree_v2)(self.address) };
        }
    }
}

/// The pool of buffers, in the order of one line. It is our own, so the application's default pool stays as it is. It
/// keeps freed memory, because asking the system again takes a hundred times longer.
#[derive(Debug)]
pub(super) struct Pool {
    raw: RawPool,
    line: TrackedStream,
    staged: Staged,
    zeros: Pinned,
    /// Addresses that the driver has refused to free; they are freed with the next. Otherwise empty.
    unfreed: Mutex<Vec<u64>>,
    context: Arc<Context>,
}

/// How memory that was just allocated is zeroed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Zeroing {
    None,
    /// By copies from the host, because kernels may hold the SMs, and a kernel that fills memory might wait for them.
    ByCopies,
    /// By a kernel of the driver's.
    ByKernel,
}

/// Bytes of the device's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub total: usize,
    /// Bytes that no process has.
    pub free: usize,
    /// Bytes that the pool has from the system.
    pub reserved: usize,
    /// Bytes of these that are allocated.
    pub used: usize,
}

// SAFETY: driver functions can be called with a pool from any thread.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// The context is entered.
    pub fn new(context: &Arc<Context>, line: TrackedStream) -> Result<Pool, Error> {
        let share = context.part().map(Part::memory);
        let properties = sys::CUmemPoolProps {
            allocType: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: sys::CUmemLocation {
                type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                id: context.device(),
            },
            win32SecurityAttributes: ptr::null_mut(),
            // 0 has no limit but the device's.
            maxSize: share.unwrap_or(0),
            usage: 0,
            reserved: [0; 54],
        };
        let zeros = Pinned::new(context, ZEROS)?;
        let staged = Staged::new(context)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the pointers are valid.
        unsafe { call!(context, cuMemPoolCreate(&raw mut raw, &raw const properties))? };
        let unfreed = Mutex::default();
        let pool = Pool { raw, line, staged, zeros, unfreed, context: context.clone() };
        let mut keep = u64::MAX;
        let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        let value = (&raw mut keep).cast::<c_void>();
        // SAFETY: the attribute is a `u64`.
        unsafe { call!(context, cuMemPoolSetAttribute(raw, threshold, value))? };
        Ok(pool)
    }

    /// Memory that every stream can use, zeroed as is said.
    pub fn allocate(&self, bytes: usize, zeroing: Zeroing) -> Result<u64, Error> {
        if bytes == 0 {
            return Ok(ALIGNMENT);
        }
        let _entered = self.context.enter()?;
        let mut address = 0;
        let number = self.line.issue(|stream| {
            // SAFETY: the pointer is valid.
            unsafe {
                call!(
                    self.context,
                    cuMemAllocFromPoolAsync(&raw mut address, bytes, self.raw, stream)
                )?;
            }
            // SAFETY: just allocated with this size.
            unsafe { self.zero(address, bytes, zeroing, stream) }
        });
        match number.and_then(|number| self.line.wait(number)) {
            Ok(()) => Ok(address),
            // A size beyond the address space is an invalid value.
            Err(Error::Device(DeviceError::Driver {
                code: OUT_OF_MEMORY | INVALID_VALUE, ..
            })) if address == 0 => Err(Error::Memory(MemoryError::OutOfMemory { bytes })),
            Err(error) => {
                if address != 0 {
                    // SAFETY: allocated above, and no other thread knows of it.
                    unsafe { self.free(address, bytes) }
                }
                Err(error)
            }
        }
    }

    /// Zeroes memory, and waits until it is done. The context is entered.
    ///
    /// # Safety
    ///
    /// The memory is the caller's.
    #[cfg(target_os = "linux")]
    pub unsafe fn zero_now(
        &self,
        address: u64,
        bytes: usize,
        zeroing: Zeroing,
    ) -> Result<(), Error> {
        let number = self.line.issue(|stream| {
            // SAFETY: the caller's promise.
            unsafe { self.zero(address, bytes, zeroing, stream) }
        });
        number.and_then(|number| self.line.wait(number))
    }

    /// Zeroes memory in stream order. The context is entered.
    ///
    /// # Safety
    ///
    /// The memory is the caller's.
    unsafe fn zero(
        &self,
        address: u64,
        bytes: usize,
        zeroing: Zeroing,
        stream: RawStream,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe {
            match zeroing {
                Zeroing::None => Ok(()),
                Zeroing::ByCopies => self.copy_zeros(address, bytes, stream),
                Zeroing::ByKernel => {
                    call!(self.context, cuMemsetD8Async(address, 0, bytes, stream))
                }
            }
        }
    }

    /// Zeroes memory in stream order, without a kernel. The context is entered.
    ///
    /// # Safety
    ///
    /// The memory is the caller's.
    pub unsafe fn copy_zeros(
        &self,
        address: u64,
        bytes: usize,
        stream: RawStream,
    ) -> Result<(), Error> {
        for start in (0..bytes).step_by(ZEROS) {
            let len = ZEROS.min(bytes - start);
            let (to, from) = (address + start as u64, self.zeros.at(0).cast::<c_void>());
            // SAFETY: within the memory, and within the zeros, which no thread writes.
            unsafe { call!(self.context, cuMemcpyHtoDAsync_v2(to, from, len, stream))? };
        }
        Ok(())
    }

    /// Copies `data` to the device, and waits until it is there.
    ///
    /// # Safety
    ///
    /// Both places are valid for `bytes`, and no other thread uses `address`.
    pub unsafe fn fill(&self, address: u64, data: *const u8, bytes: usize) -> Result<(), Error> {
        let _entered = self.context.enter()?;
        // SAFETY: the caller's promise.
        unsafe { self.staged.upload(&self.line, address, data, Rows::one(bytes)) }
    }

    /// Copies from the device, and waits until `data` is there.
    ///
    /// # Safety
    ///
    /// As for [`fill`](Pool::fill), the other way round.
    pub unsafe fn read(&self, data: *mut u8, address: u64, bytes: usize) -> Result<(), Error> {
        let _entered = self.context.enter()?;
        // SAFETY: the caller's promise.
        unsafe { self.staged.download(&self.line, data, address, Rows::one(bytes)) }
    }

    /// Lets another GPU use all memory of the pool, what it allocates later as well.
    pub fn open_to(&self, device: c_int) -> Result<(), Error> {
        let access = sys::CUmemAccessDesc {
            location: sys::CUmemLocation {
                type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                id: device,
            },
            // Drivers know no read-only access to memory of a GPU.
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let _entered = self.context.enter()?;
        // SAFETY: the driver reads the description during the call; the pool is there.
        unsafe { call!(self.context, cuMemPoolSetAccess(self.raw, &raw const access, 1)) }
    }

    /// Frees memory in the line's order.
    ///
    /// # Safety
    ///
    /// It came from `allocate` with the same `bytes`, or is another allocation of this context of at
    /// least one byte; it is freed once, and nothing uses it.
    pub unsafe fn free(&self, address: u64, bytes: usize) {
        if bytes == 0 {
            return;
        }
        lock(&self.unfreed).push(address);
        self.free_all();
    }

    fn free_all(&self) {
        if !self.context.is_freeable() {
            return;
        }
        let Ok(_entered) = self.context.enter() else { return };
        let stream = self.line.stream().raw();
        // SAFETY: promised to `free`.
        let free = |address: u64| unsafe { call!(self.context, cuMemFreeAsync(address, stream)) };
        lock(&self.unfreed).retain(|&address| free(address).is_err());
    }

    /// Gives freed memory back to the system, so that it can be allocated anew in other pieces. Nothing runs, because
    /// the driver may wait for it.
    pub fn trim(&self) -> Result<(), Error> {
        self.free_all();
        let _entered = self.context.enter()?;
        // Freed memory is free when the stream has passed the free.
        self.line.issue(|_| Ok(())).and_then(|number| self.line.wait(number))?;
        // SAFETY: takes no pointers; the pool is there.
        unsafe { call!(self.context, cuMemPoolTrimTo(self.raw, 0)) }
    }

    /// The sizes of the device's memory and of this pool.
    pub fn sizes(&self) -> Result<Sizes, Error> {
        use sys::CUmemPool_attribute::{
            CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
        };
        let _entered = self.context.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are valid.
        unsafe { call!(self.context, cuMemGetInfo_v2(&raw mut free, &raw mut total))? };
        let size = |attribute| {
            let mut size = 0u64;
            let value = (&raw mut size).cast::<c_void>();
            // SAFETY: each of these attributes is a `u64`.
            unsafe { call!(self.context, cuMemPoolGetAttribute(self.raw, attribute, value))? };
            Ok::<_, Error>(size as usize)
        };
        // The used ones first: memory that is allocated in between must not make less reserved than used.
        let used = size(CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
        let reserved = size(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        if let Some(share) = self.context.part().map(Part::memory) {
            (free, total) = (free.min(share.saturating_sub(reserved)), share);
        }
        Ok(Sizes { total, free, used, reserved })
    }

    pub fn raw(&self) -> RawPool {
        self.raw
    }

    pub fn line(&self) -> &TrackedStream {
        &self.line
    }

    /// Host memory that holds zeros, a mebibyte of them.
    pub fn zeros(&self) -> *mut u8 {
        self.zeros.at(0)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.free_all();
        let entered = self.context.enter();
        // After an error the line may still read the zeros.
        if !matches!(entered.and_then(|_entered| self.line.stream().settle(LAST_WAIT)), Ok(true)) {
            self.context.abandon();
        }
        if self.context.is_freeable()
            && let Ok(_entered) = self.context.enter()
        {
            // SAFETY: created once, in `new`. The driver keeps what the remaining allocations need.
            unsafe { (self.context.functions().cuMemPoolDestroy)(self.raw) };
        }
    }
}
