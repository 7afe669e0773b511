//! Streams and events.

use std::ptr;
use std::time::Duration;

use cudarc::driver::sys::{self, CUresult};
use preempt_device::kernel::KernelArg;

use crate::gpu::{Error, check};
use crate::memory::Pinned;

/// The hardware's priority of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// The lowest priority, which streams have by default.
    Lowest,
    /// The highest priority.
    Highest,
    /// This number of levels above the lowest priority, at most the highest one.
    Above(u32),
}

/// A stream that does not wait for the default stream.
#[derive(Debug)]
pub struct Stream(pub(crate) sys::CUstream);

// SAFETY: a handle of the driver, which every thread may use.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream of this priority.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn new(level: Level) -> Result<Stream, Error> {
        let (mut lowest, mut highest) = (0, 0);
        let mut stream = ptr::null_mut();
        // SAFETY: the places are valid.
        unsafe {
            let range = sys::cuCtxGetStreamPriorityRange(&mut lowest, &mut highest);
            check("cuCtxGetStreamPriorityRange", range)?;
            // Lower numbers are higher priorities.
            let priority = match level {
                Level::Lowest => lowest,
                Level::Highest => highest,
                Level::Above(levels) => lowest.saturating_sub_unsigned(levels).max(highest),
            };
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            let created = sys::cuStreamCreateWithPriority(&mut stream, flags, priority);
            check("cuStreamCreateWithPriority", created)?;
        }
        Ok(Stream(stream))
    }

    /// Waits until everything in the stream is done.
    ///
    /// # Errors
    ///
    /// Errors of the driver, of earlier work too.
    pub fn synchronize(&self) -> Result<(), Error> {
        // SAFETY: the stream is alive.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.0) })
    }

    /// Whether everything in the stream is done.
    ///
    /// # Errors
    ///
    /// Errors of the driver, of earlier work too.
    #[inline]
    pub fn is_idle(&self) -> Result<bool, Error> {
        // SAFETY: the stream is alive.
        match unsafe { sys::cuStreamQuery(self.0) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check("cuStreamQuery", result).map(|()| true),
        }
    }

    /// Spins until everything in the stream is done.
    ///
    /// # Errors
    ///
    /// Errors of the driver, of earlier work too.
    pub fn spin(&self) -> Result<(), Error> {
        while !self.is_idle()? {
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Writes a word to memory in the order of the stream.
    ///
    /// # Safety
    ///
    /// The address is that of a word that kernels read atomically, and is valid until the write is done.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    #[inline]
    pub unsafe fn write_word(&self, address: u64, word: u64) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        let result = unsafe { sys::cuStreamWriteValue64_v2(self.0, address, word, 0) };
        check("cuStreamWriteValue64", result)
    }

    /// Sets `words` words of 32 bits.
    ///
    /// # Safety
    ///
    /// The memory is valid until the stream has done the fill, and no other work uses it meanwhile.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub unsafe fn fill(&self, address: u64, word: u32, words: usize) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        let result = unsafe { sys::cuMemsetD32Async(address, word, words, self.0) };
        check("cuMemsetD32Async", result)
    }

    /// Copies from the device to all of `to`.
    ///
    /// # Safety
    ///
    /// The memory at `from` has that size, and both are valid until the stream has done the copy.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    #[inline]
    pub unsafe fn download<T: KernelArg>(&self, from: u64, to: &Pinned<T>) -> Result<(), Error> {
        let (host, bytes) = (to.host().cast(), to.bytes());
        // SAFETY: the caller's promise.
        let result = unsafe { sys::cuMemcpyDtoHAsync_v2(host, from, bytes, self.0) };
        check("cuMemcpyDtoHAsync", result)
    }

    /// Records `event` in the order of the stream.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn record(&self, event: &Event) -> Result<(), Error> {
        // SAFETY: both are alive.
        check("cuEventRecord", unsafe { sys::cuEventRecord(event.0, self.0) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created by `cuStreamCreateWithPriority`. Nothing can be done about an error.
        unsafe { sys::cuStreamDestroy_v2(self.0) };
    }
}

/// A moment in a stream.
#[derive(Debug)]
pub struct Event(sys::CUevent);

// SAFETY: a handle of the driver, which every thread may use.
unsafe impl Send for Event {}

impl Event {
    /// An event that has not happened.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn new() -> Result<Event, Error> {
        let mut event = ptr::null_mut();
        // SAFETY: the place is valid.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, 0) })?;
        Ok(Event(event))
    }

    /// Whether it has happened since it was recorded.
    ///
    /// # Errors
    ///
    /// Errors of the driver, of earlier work too.
    pub fn is_over(&self) -> Result<bool, Error> {
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.0) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check("cuEventQuery", result).map(|()| true),
        }
    }

    /// The time from `start` to this event, both of which have happened.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn since(&self, start: &Event) -> Result<Duration, Error> {
        let mut milliseconds = 0.0;
        // SAFETY: both events are alive.
        let result = unsafe { sys::cuEventElapsedTime(&mut milliseconds, start.0, self.0) };
        check("cuEventElapsedTime", result)?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by `cuEventCreate`. Nothing can be done about an error.
        unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}
