//! Fills, and copies whose memory on the host is borrowed.

use std::sync::Arc;

use preempt_device::host::Access;
use preempt_device::kernel::KernelArg;

use super::handle::Handle;
use super::stream::{COPY, Stream, side};
use crate::device::{Copy, CopyKind, OwnedCopy, Owner, Rows};
#[cfg(doc)]
use crate::error::ArgumentError;
use crate::error::Error;
use crate::scheduler::Buffer;
use crate::scheduler::runtime::core::Work;

impl Stream {
    /// Sets every element of a buffer to `value`.
    ///
    /// On a GPU where no kernel of the scheduler runs, the driver does it at the speed of the device's memory, if the value
    /// consists of 1, 2 or 4 bytes, or of these repeated. Otherwise the elements come from the host, at the speed of an
    /// [upload](Stream::upload). The driver's way is a kernel, which would wait for an SM as long as others run.
    ///
    /// ```
    /// let scheduler = preempt::Scheduler::builder().build()?;
    /// let stream = scheduler.stream(0);
    /// let mut buffer = scheduler.zeroed::<f32>(1000)?;
    /// stream.fill(&mut buffer, 1.5)?;
    /// assert_eq!(stream.download(&buffer)?.wait()?, [1.5; 1000]);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArgumentError::ForeignBuffer`] or
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped).
    pub fn fill<T: KernelArg>(&self, to: &mut Buffer<T>, value: T) -> Result<Handle<()>, Error> {
        let uses = vec![self.copy_use(to, Access::Write)?];
        let (to, len, memory) = side(to);
        let element = Arc::new([value]);
        let (kind, from) = (CopyKind::ToDevice, element.as_ptr() as u64);
        let copy = Copy { kind, from, to, rows: Rows::repeated(size_of::<T>(), len) };
        // SAFETY: each owner keeps its place, and the engine orders operations on the buffer by `uses`.
        let copy = unsafe { OwnedCopy::new(copy, [element, memory]) };
        self.submit(COPY, uses, Work::Copy(copy), ())
    }

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
