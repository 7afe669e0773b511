//! Memory of this context that other libraries have allocated, and their work that no stream shows.

use std::collections::HashSet;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cudarc::driver::sys::CUpointer_attribute;

use super::context::{Context, call};
use super::driver::{INVALID_VALUE, NOT_FOUND, RawContext, RawPool, RawStream};
use super::lock;
use crate::device::ForeignMemory;
use crate::error::{DeviceError, Error};

/// The stream of calls that name none (`CU_STREAM_LEGACY`).
const LEGACY_STREAM: usize = 1;

/// Time that a thread that waits for that stream sleeps between two looks.
const SLEEP: Duration = Duration::from_micros(20);

#[derive(Debug)]
pub(super) struct Foreign {
    context: Arc<Context>,
    /// The pool of our own buffers.
    pool: RawPool,
    /// Start addresses of that pool's allocations that other libraries have now.
    given: Mutex<HashSet<u64>>,
}

// SAFETY: driver functions can be called with a pool from any thread.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

impl Foreign {
    pub fn new(context: &Arc<Context>, pool: RawPool) -> Foreign {
        Foreign { context: context.clone(), pool, given: Mutex::default() }
    }

    /// The pool gave this address out anew, so the library that had it has freed it.
    pub fn forget(&self, address: u64) {
        lock(&self.given).remove(&address);
    }

    /// An attribute of an address that the driver knows.
    ///
    /// # Safety
    ///
    /// The attribute has this type. The context is entered.
    unsafe fn attribute<T>(
        &self,
        attribute: CUpointer_attribute,
        address: u64,
        mut value: T,
    ) -> Result<T, Error> {
        let place = (&raw mut value).cast::<c_void>();
        // SAFETY: the caller's promise.
        unsafe { call!(self.context, cuPointerGetAttribute(place, attribute, address))? };
        Ok(value)
    }
}

impl ForeignMemory for Foreign {
    fn allocation(&self, address: u64) -> Result<Option<Range<u64>>, Error> {
        use CUpointer_attribute::*;
        let context = &self.context;
        if context.part().is_some() {
            // It belongs to the whole GPU, and so do the streams that still fill it.
            return Ok(None);
        }
        let _entered = context.enter()?;
        let (mut start, mut bytes) = (0, 0);
        // SAFETY: the pointers are valid; the driver refuses addresses that it does not know.
        let range = unsafe {
            call!(context, cuMemGetAddressRange_v2(&raw mut start, &raw mut bytes, address))
        };
        match range {
            Ok(()) => {}
            Err(Error::Device(DeviceError::Driver { code: INVALID_VALUE | NOT_FOUND, .. })) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        // SAFETY: these attributes have these types.
        let (device, pool, owner) = unsafe {
            let device: c_int = self.attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address, -1)?;
            let pool: RawPool =
                self.attribute(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address, ptr::null_mut())?;
            // Memory of a pool belongs to no context.
            let owner: RawContext = match pool.is_null() {
                true => self.attribute(CU_POINTER_ATTRIBUTE_CONTEXT, address, ptr::null_mut())?,
                false => context.raw(),
            };
            (device, pool, owner)
        };
        let is_ours = pool == self.pool && !lock(&self.given).contains(&start);
        let is_here = device == context.device() && owner == context.raw();
        Ok((is_here && !is_ours).then(|| start..start + bytes as u64))
    }

    /// Fills and copies that name no stream return before they are done, and no stream of ours waits for them.
    fn await_unseen(&self) -> Result<(), Error> {
        let _entered = self.context.enter()?;
        let stream: RawStream = ptr::without_provenance_mut(LEGACY_STREAM);
        while !self.context.is_idle(stream)? {
            // Not `cuStreamSynchronize`, which might keep other threads from launching.
            std::thread::sleep(SLEEP);
        }
        Ok(())
    }

    fn give_away(&self, address: u64) {
        lock(&self.given).insert(address);
    }

    fn take_back(&self, address: u64) {
        self.forget(address);
    }
}
