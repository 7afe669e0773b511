//! Fills, copies of rows, and copies whose memory on the host is borrowed.

use std::borrow::Cow;
use std::sync::Arc;

use preempt_device::host::Access;
use preempt_device::kernel::KernelArg;

use super::handle::{Gives, Handle};
use super::slice::{BufferSlice, DeviceSlice, DeviceSliceMut};
use super::stream::{COPY, CopySide, Stream, side};
use crate::device::{Copy, CopyKind, OwnedCopy, Owner, Rows};
use crate::engine::Use;
use crate::error::{ArgumentError, Error};
use crate::scheduler::runtime::core::Work;

/// Pitch, at most, of the rows of a copy in bytes (`CU_DEVICE_ATTRIBUTE_MAX_PITCH` of all GPUs).
const MAX_PITCH: usize = i32::MAX as usize;

/// The shape of a copy of rows, all in elements. The first rows start at the first elements of both sides, so a
/// [range](crate::Buffer::slice) starts them elsewhere.
///
/// [`Stream::upload_2d`] has an example.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copy2d {
    /// Elements of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Elements from the start of a row to that of the next one in the source; at least `width`.
    pub from_pitch: usize,
    /// Elements from the start of a row to that of the next one in the target; at least `width`.
    pub to_pitch: usize,
}

impl Copy2d {
    /// The rows, if they lie within `from_len` and `to_len` elements.
    fn rows<T>(self, from_len: usize, to_len: usize) -> Result<Rows, Error> {
        let Copy2d { width, height, from_pitch, to_pitch } = self;
        if width == 0 || height == 0 {
            return Ok(Rows::one(0));
        }
        for (pitch, len) in [(from_pitch, from_len), (to_pitch, to_len)] {
            // The pitch of a single row does not matter.
            let in_bytes = pitch.saturating_mul(size_of::<T>());
            if height > 1 && (pitch < width || in_bytes > MAX_PITCH) {
                return Err(Error::Argument(ArgumentError::BadPitch { pitch, width }));
            }
            let before_last = pitch.checked_mul(height - 1);
            let needed = before_last.and_then(|before| before.checked_add(width));
            let needed = needed.unwrap_or(usize::MAX);
            if needed > len {
                return Err(Error::Argument(ArgumentError::BeyondEnd { needed, len }));
            }
        }
        let size = size_of::<T>();
        let bytes = width * size;
        if height == 1 {
            return Ok(Rows::one(bytes));
        }
        let (from_pitch, to_pitch) = (from_pitch * size, to_pitch * size);
        Ok(Rows { bytes, count: height, from_pitch, to_pitch }.joined())
    }
}

impl Stream {
    /// Sets every element of a buffer, or a range of one, to `value`.
    ///
    /// On a GPU where no kernel of the scheduler runs, the driver does it at the speed of the device's memory, if the value
    /// consists of 1, 2 or 4 bytes, or of these repeated. Otherwise the elements come from the host, at the speed of an
    /// [upload](Stream::upload). The driver's way is a kernel, which would wait for an SM as long as others run. Fills of a
    /// [plain](crate::Program#preemption) program are always done by the driver; those of a preemptible one are as here.
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
    #[doc(alias = "cudaMemsetAsync")]
    pub fn fill<T: KernelArg>(
        &self,
        to: &mut impl DeviceSliceMut<T>,
        value: T,
    ) -> Result<Handle<()>, Error> {
        let to = to.as_slice_mut().target();
        let uses = vec![self.copy_use(to, Access::Write)?];
        let rows = Rows::repeated(size_of::<T>(), to.len());
        let element = Arc::new([value]);
        let from = (element.as_ptr() as u64, 1, element as Owner);
        self.copy_rows(CopyKind::ToDevice, uses, from, side(to), rows)
    }

    /// Copies rows of `data` to rows of a buffer. The elements between the rows stay as they are.
    ///
    /// What is copied how often is as for [`upload`](Stream::upload).
    ///
    /// ```
    /// use preempt::Copy2d;
    ///
    /// let scheduler = preempt::Scheduler::builder().build()?;
    /// let stream = scheduler.stream(0);
    /// let mut image = scheduler.zeroed::<u8>(3 * 4)?;
    /// // The first two columns of three rows of four.
    /// let shape = Copy2d { width: 2, height: 3, from_pitch: 2, to_pitch: 4 };
    /// stream.upload_2d(&[1, 2, 3, 4, 5, 6], &mut image, shape)?;
    /// assert_eq!(stream.download(&image)?.wait()?, [1, 2, 0, 0, 3, 4, 0, 0, 5, 6, 0, 0]);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArgumentError::BadPitch`], [`ArgumentError::BeyondEnd`], [`ArgumentError::ForeignBuffer`], or
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped).
    #[doc(alias = "cudaMemcpy2DAsync")]
    pub fn upload_2d<'a, T: KernelArg>(
        &self,
        data: impl Into<Cow<'a, [T]>>,
        to: &mut impl DeviceSliceMut<T>,
        shape: Copy2d,
    ) -> Result<Handle<()>, Error> {
        let (data, to) = (data.into(), to.as_slice_mut().target());
        let rows = shape.rows::<T>(data.len(), to.len())?;
        let uses = vec![self.use_of_rows(to, rows)?];
        let data = data.into_owned();
        let from = (data.as_ptr() as u64, data.len(), Arc::new(data) as Owner);
        self.copy_rows(CopyKind::ToDevice, uses, from, side(to), rows)
    }

    /// Copies rows of a slice to rows of a buffer.
    ///
    /// # Safety
    ///
    /// The slice stays as it is until the operation has ended.
    pub(in crate::scheduler) unsafe fn upload_rows_borrowed<T: KernelArg>(
        &self,
        data: &[T],
        to: &mut impl DeviceSliceMut<T>,
        shape: Copy2d,
    ) -> Result<Handle<()>, Error> {
        let to = to.as_slice_mut().target();
        let rows = shape.rows::<T>(data.len(), to.len())?;
        let uses = vec![self.use_of_rows(to, rows)?];
        let from = (data.as_ptr() as u64, data.len(), Arc::new(()) as Owner);
        self.copy_rows(CopyKind::ToDevice, uses, from, side(to), rows)
    }

    /// Copies rows of a buffer to rows of a slice, and waits until that is done, as
    /// [`download_into`](Stream::download_into) does. The elements between the rows stay as they are.
    ///
    /// # Errors
    ///
    /// [`ArgumentError::BadPitch`], [`ArgumentError::BeyondEnd`], [`ArgumentError::ForeignBuffer`], and those of
    /// [`Handle::wait`]. After these, the slice may hold some of the buffer's elements.
    #[doc(alias = "cudaMemcpy2D")]
    pub fn download_2d<T: KernelArg>(
        &self,
        from: &impl DeviceSlice<T>,
        to: &mut [T],
        shape: Copy2d,
    ) -> Result<(), Error> {
        // SAFETY: it is waited for, and nothing uses the slice meanwhile.
        WaitOnDrop(unsafe { self.download_rows_borrowed(from, to, shape)? }).0.wait()
    }

    /// Copies rows of a buffer to rows of a slice.
    ///
    /// # Safety
    ///
    /// The slice stays valid, and nothing else uses it, until the operation has ended.
    pub(in crate::scheduler) unsafe fn download_rows_borrowed<T: KernelArg>(
        &self,
        from: &impl DeviceSlice<T>,
        to: &mut [T],
        shape: Copy2d,
    ) -> Result<Handle<()>, Error> {
        let from = from.as_slice();
        let rows = shape.rows::<T>(from.len(), to.len())?;
        let uses = vec![self.copy_use(from, Access::Read)?];
        let to = (to.as_mut_ptr() as u64, to.len(), Arc::new(()) as Owner);
        self.copy_rows(CopyKind::ToHost, uses, side(from), to, rows)
    }

    /// Copies rows of a buffer to rows of another one. The elements between the rows stay as they are.
    ///
    /// # Errors
    ///
    /// [`ArgumentError::BadPitch`], [`ArgumentError::BeyondEnd`], [`ArgumentError::ForeignBuffer`], or
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped).
    #[doc(alias = "cudaMemcpy2DAsync")]
    pub fn copy_2d<T: KernelArg>(
        &self,
        from: &impl DeviceSlice<T>,
        to: &mut impl DeviceSliceMut<T>,
        shape: Copy2d,
    ) -> Result<Handle<()>, Error> {
        let (from, to) = (from.as_slice(), to.as_slice_mut().target());
        let rows = shape.rows::<T>(from.len(), to.len())?;
        let uses = vec![self.copy_use(from, Access::Read)?, self.use_of_rows(to, rows)?];
        self.copy_rows(CopyKind::OnDevice, uses, side(from), side(to), rows)
    }

    /// The use that a copy makes of a range that it writes these rows of.
    fn use_of_rows<T>(&self, to: BufferSlice<'_, T>, rows: Rows) -> Result<Use, Error> {
        // As many bytes as there are can only be all of them, because rows do not overlap.
        let overwrites = rows.total() == to.len() * size_of::<T>();
        Ok(Use { overwrites, ..self.copy_use(to, Access::Write)? })
    }

    fn copy_rows(
        &self,
        kind: CopyKind,
        uses: Vec<Use>,
        (from, _, from_owner): CopySide,
        (to, _, to_owner): CopySide,
        rows: Rows,
    ) -> Result<Handle<()>, Error> {
        let copy = Copy { kind, from, to, rows };
        // SAFETY: each owner keeps its place, which has room for the rows, and the engine orders operations on buffers by
        // `uses`.
        let copy = unsafe { OwnedCopy::new(copy, [from_owner, to_owner]) };
        self.submit(COPY, uses, Work::Copy(copy), Gives::NOTHING)
    }

    /// Copies a slice to a buffer of the same length.
    ///
    /// # Safety
    ///
    /// The slice stays as it is until the operation has ended.
    pub(in crate::scheduler) unsafe fn upload_borrowed<T: KernelArg>(
        &self,
        data: &[T],
        to: &mut impl DeviceSliceMut<T>,
    ) -> Result<Handle<()>, Error> {
        self.upload_side(
            (data.as_ptr() as u64, data.len(), Arc::new(())),
            to.as_slice_mut().target(),
        )
    }

    /// Copies a buffer, or a range of one, to a slice of the same length, and waits until that is done.
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
    #[doc(alias("cudaMemcpy", "memcpy_dtoh"))]
    pub fn download_into<T: KernelArg>(
        &self,
        from: &impl DeviceSlice<T>,
        to: &mut [T],
    ) -> Result<(), Error> {
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
        from: &impl DeviceSlice<T>,
        to: &mut [T],
    ) -> Result<Handle<()>, Error> {
        let from = from.as_slice();
        let uses = vec![self.copy_use(from, Access::Read)?];
        let to = (to.as_mut_ptr() as u64, to.len(), Arc::new(()) as Owner);
        self.copy::<T, _>(CopyKind::ToHost, uses, side(from), to, Gives::NOTHING)
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
