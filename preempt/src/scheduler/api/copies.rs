//! Copies whose memory on the host is borrowed.

use std::sync::Arc;

use preempt_device::host::Access;
use preempt_device::kernel::KernelArg;

use super::handle::Handle;
use super::stream::{Stream, side};
use crate::device::{CopyKind, Owner};
#[cfg(doc)]
use crate::error::ArgumentError;
use crate::error::Error;
use crate::scheduler::Buffer;

impl Stream {
    /// Copies a slice to a buffer of the same length.
    ///
    /// # Safety
    ///
    /// The slice stays as it is until the operation has ended.
    pub(in crate::scheduler) unsafe fn upload_borrowed<T: KernelArg>(
        &self,
        data: &[T],
        to: &mut Buffer<T>,
    ) -> Result<Handle<()>, Error> {
        self.upload_side((data.as_ptr() as u64, data.len(), Arc::new(())), to)
    }

    /// Copies a buffer to a slice of the same length, and waits until that is done.
    ///
    /// The copy waits for its turn in the stream, and the calling thread with it, because the slice stays borrowed.
    /// [`Scope::download_into`](crate::Scope::download_into) lets the thread go on meanwhile.
    ///
    /// ```
    /// let scheduler = preempt::Scheduler::builder().build()?;
    /// let buffer = scheduler.buffer(&[1u32, 2, 3])?;
    /// let mut out = [0; 3];
    /// scheduler.stream(0).download_into(&buffer, &mut out)?;
    /// assert_eq!(out, [1, 2, 3]);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArgumentError::LengthMismatch`], [`ArgumentError::ForeignBuffer`], and those of [`Handle::wait`]. After these,
    /// the slice may hold some of the buffer's elements.
    pub fn download_into<T: KernelArg>(&self, from: &Buffer<T>, to: &mut [T]) -> Result<(), Error> {
        // SAFETY: it is waited for, and nothing uses the slice meanwhile.
        WaitOnDrop(unsafe { self.download_borrowed(from, to)? }).0.wait()
    }

    /// Copies a buffer to a slice of the same length.
    ///
    /// # Safety
    ///
    /// The slice stays valid, and nothing else uses it, until the operation has ended.
    pub(in crate::scheduler) unsafe fn download_borrowed<T: KernelArg>(
        &self,
        from: &Buffer<T>,
        to: &mut [T],
    ) -> Result<Handle<()>, Error> {
        let uses = vec![self.copy_use(from, Access::Read)?];
        let to = (to.as_mut_ptr() as u64, to.len(), Arc::new(()) as Owner);
        self.copy::<T, ()>(CopyKind::ToHost, uses, side(from), to, ())
    }
}

/// Waits for an operation on drop, after a panic too: the memory that it borrows is free to be used then.
struct WaitOnDrop(Handle<()>);

impl Drop for WaitOnDrop {
    fn drop(&mut self) {
        if !self.0.is_done() {
            // The result is of no use any more.
            let _ = self.0.wait();
        }
    }
}
