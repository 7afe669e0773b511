//! Ranges of buffers.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use preempt_device::host::{Access, BufferArg, ReadArg, WriteArg};
use preempt_device::kernel::KernelArg;

use super::buffer::Buffer;
use crate::engine::Use;
use crate::error::{ArgumentError, Error};
use crate::scheduler::runtime::memory::Memory;
use crate::vocabulary::BufferId;

/// Device memory that an operation can read: a [`Buffer`], or a [range](Buffer::slice) of it.
///
/// Copies take it as it is. A kernel takes what [`as_slice`](DeviceSlice::as_slice) gives.
pub trait DeviceSlice<T> {
    /// All of its elements.
    ///
    /// ```
    /// # use preempt_device::prelude::*;
    /// /// `out[0]` becomes the sum of all of `x`.
    /// #[preemptible(block = 1)]
    /// fn sum(x: &[u32], out: SliceMut<u32>) {
    ///     // SAFETY: one block-task of one thread.
    ///     unsafe { out.write(0, x.iter().sum()) }
    /// }
    ///
    /// use preempt::{Buffer, DeviceSlice, Error, Stream};
    ///
    /// fn total(stream: &Stream, x: &impl DeviceSlice<u32>, out: &mut Buffer<u32>) -> Result<u32, Error> {
    ///     stream.launch(sum(x.as_slice(), &mut *out).grid(1))?.detach();
    ///     Ok(stream.download(out)?.wait()?[0])
    /// }
    ///
    /// # let scheduler = preempt::Scheduler::builder().build()?;
    /// # let stream = scheduler.stream(0);
    /// let (x, mut out) = (scheduler.buffer(&[1, 2, 3, 4])?, scheduler.zeroed(1)?);
    /// assert_eq!(total(&stream, &x, &mut out)?, 10);
    /// assert_eq!(total(&stream, &x.slice(..2)?, &mut out)?, 3);
    /// # Ok::<(), Error>(())
    /// ```
    fn as_slice(&self) -> BufferSlice<'_, T>;
}

/// Device memory that an operation can write: a [`Buffer`], or a [range](Buffer::slice_mut) of it.
///
/// Copies take it as it is. A kernel takes what [`as_slice_mut`](DeviceSliceMut::as_slice_mut) gives.
pub trait DeviceSliceMut<T>: DeviceSlice<T> {
    /// All of its elements.
    ///
    /// ```
    /// # use preempt_device::prelude::*;
    /// /// `out[i] = x[i] * x[i]`
    /// #[preemptible(block = 32)]
    /// fn squares(x: &[u32], out: PerThread<u32>) {
    ///     if let Some(own) = out.own() {
    ///         own.set(x[own.index()] * x[own.index()]);
    ///     }
    /// }
    ///
    /// use preempt::{DeviceSlice, DeviceSliceMut, Error, Stream};
    ///
    /// /// The squares of a buffer or a range, into one of the same length.
    /// fn square(
    ///     stream: &Stream,
    ///     x: &impl DeviceSlice<u32>,
    ///     out: &mut impl DeviceSliceMut<u32>,
    /// ) -> Result<(), Error> {
    ///     let (x, out) = (x.as_slice(), out.as_slice_mut());
    ///     let threads = out.len() as u32;
    ///     stream.launch(squares(x, out).threads(threads))?.wait()?;
    ///     Ok(())
    /// }
    ///
    /// # let scheduler = preempt::Scheduler::builder().build()?;
    /// # let stream = scheduler.stream(0);
    /// let (x, mut out) = (scheduler.buffer(&[1, 2, 3, 4])?, scheduler.zeroed(4)?);
    /// square(&stream, &x, &mut out)?;
    /// square(&stream, &x.slice(2..)?, &mut out.slice_mut(..2)?)?;
    /// assert_eq!(stream.download(&out)?.wait()?, [9, 16, 9, 16]);
    /// # Ok::<(), Error>(())
    /// ```
    fn as_slice_mut(&mut self) -> BufferSliceMut<'_, T>;
}

/// A range of a [`Buffer`] for operations that read it, made by [`Buffer::slice`].
///
/// It is an argument of kernels where `&Buffer<T>` is one, by value or by reference, and of copies.
pub struct BufferSlice<'a, T> {
    memory: &'a Arc<Memory>,
    /// The first element, as a number of the whole buffer, and how many there are.
    start: usize,
    len: usize,
    element: PhantomData<fn() -> T>,
}

/// A range of a [`Buffer`] for operations that write it, made by [`Buffer::slice_mut`] or [`Buffer::split_at_mut`].
///
/// It is an argument of kernels where `&mut Buffer<T>` is one, by value or by reference, and of copies.
pub struct BufferSliceMut<'a, T> {
    range: BufferSlice<'a, T>,
}

impl<'a> BufferSlice<'a, u8> {
    /// The bytes of an argument whose owner is this memory.
    pub(super) fn of_argument(
        memory: &'a Arc<Memory>,
        argument: &BufferArg,
    ) -> BufferSlice<'a, u8> {
        let start = argument.address.saturating_sub(memory.address()) as usize;
        BufferSlice { memory, start, len: argument.bytes, element: PhantomData }
    }
}

impl<'a, T> BufferSlice<'a, T> {
    /// All `len` elements of a buffer.
    pub(super) fn whole(memory: &'a Arc<Memory>, len: usize) -> BufferSlice<'a, T> {
        BufferSlice { memory, start: 0, len, element: PhantomData }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first element, as [`Buffer::address`] gives it.
    pub fn address(&self) -> u64 {
        self.memory.address() + (self.start * size_of::<T>()) as u64
    }

    /// A range of this range.
    ///
    /// # Errors
    ///
    /// [`ArgumentError::OutOfRange`].
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<BufferSlice<'a, T>, Error> {
        let Range { start, end } = within(range, self.len)?;
        Ok(BufferSlice { start: self.start + start, len: end - start, ..*self })
    }

    /// The buffer's name in every engine.
    pub(crate) fn id(&self) -> BufferId {
        self.memory.id
    }

    /// The memory of the whole buffer.
    pub(in crate::scheduler) fn memory(&self) -> &'a Arc<Memory> {
        self.memory
    }

    /// The use that an operation makes of these elements.
    pub(in crate::scheduler) fn used(&self, access: Access, overwrites: bool) -> Use {
        let bytes = self.memory.range(self.address(), self.bytes());
        Use { buffer: self.memory.id, bytes, access, overwrites }
    }

    fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    fn argument(&self) -> BufferArg {
        let owner = Some(self.memory.clone() as Arc<dyn Any + Send + Sync>);
        BufferArg { address: self.address(), len: self.len, bytes: self.bytes(), owner }
    }
}

impl<'a, T> BufferSliceMut<'a, T> {
    /// All `len` elements of a buffer, which is borrowed mutably.
    pub(super) fn whole(memory: &'a Arc<Memory>, len: usize) -> BufferSliceMut<'a, T> {
        BufferSliceMut { range: BufferSlice::whole(memory, len) }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.range.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The address of the first element, as [`Buffer::address`] gives it.
    pub fn address(&self) -> u64 {
        self.range.address()
    }

    /// A range of this range, to read.
    ///
    /// # Errors
    ///
    /// [`ArgumentError::OutOfRange`].
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<BufferSlice<'_, T>, Error> {
        self.range.slice(range)
    }

    /// A range of this range, to write.
    ///
    /// # Errors
    ///
    /// [`ArgumentError::OutOfRange`].
    pub fn slice_mut(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Result<BufferSliceMut<'_, T>, Error> {
        self.as_slice_mut().narrowed(range)
    }

    /// The range, for an operation that writes it.
    pub(in crate::scheduler) fn target(self) -> BufferSlice<'a, T> {
        self.range
    }

    pub(super) fn narrowed(self, range: impl RangeBounds<usize>) -> Result<Self, Error> {
        Ok(BufferSliceMut { range: self.range.slice(range)? })
    }

    /// The elements before `mid` and those from `mid` on, instead of this range. For chunks, split the second part again.
    ///
    /// # Errors
    ///
    /// [`ArgumentError::OutOfRange`] if there are fewer than `mid` elements.
    pub fn split_at_mut(
        self,
        mid: usize,
    ) -> Result<(BufferSliceMut<'a, T>, BufferSliceMut<'a, T>), Error> {
        let (head, tail) = (self.range.slice(..mid)?, self.range.slice(mid..)?);
        Ok((BufferSliceMut { range: head }, BufferSliceMut { range: tail }))
    }
}

/// The elements of `range`, where there are `len`.
fn within(range: impl RangeBounds<usize>, len: usize) -> Result<Range<usize>, Error> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    match start <= end && end <= len {
        true => Ok(start..end),
        false => Err(Error::Argument(ArgumentError::OutOfRange { start, end, len })),
    }
}

impl<T> Clone for BufferSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for BufferSlice<'_, T> {}

impl<T> DeviceSlice<T> for Buffer<T> {
    fn as_slice(&self) -> BufferSlice<'_, T> {
        BufferSlice::whole(&self.memory, self.len())
    }
}

impl<T> DeviceSliceMut<T> for Buffer<T> {
    fn as_slice_mut(&mut self) -> BufferSliceMut<'_, T> {
        BufferSliceMut::whole(&self.memory, self.len())
    }
}

impl<T> DeviceSlice<T> for BufferSlice<'_, T> {
    fn as_slice(&self) -> BufferSlice<'_, T> {
        *self
    }
}

impl<T> DeviceSlice<T> for BufferSliceMut<'_, T> {
    fn as_slice(&self) -> BufferSlice<'_, T> {
        self.range
    }
}

impl<T> DeviceSliceMut<T> for BufferSliceMut<'_, T> {
    fn as_slice_mut(&mut self) -> BufferSliceMut<'_, T> {
        BufferSliceMut { range: self.range }
    }
}

// SAFETY: the owner is the memory that the range is in.
unsafe impl<T: KernelArg> ReadArg<'_, T> for &Buffer<T> {
    fn read_arg(self) -> BufferArg {
        self.as_slice().argument()
    }
}

// SAFETY: as above.
unsafe impl<T: KernelArg> ReadArg<'_, T> for BufferSlice<'_, T> {
    fn read_arg(self) -> BufferArg {
        self.argument()
    }
}

// SAFETY: as above.
unsafe impl<T: KernelArg> ReadArg<'_, T> for &BufferSlice<'_, T> {
    fn read_arg(self) -> BufferArg {
        self.argument()
    }
}

// SAFETY: as above.
unsafe impl<T: KernelArg> ReadArg<'_, T> for &BufferSliceMut<'_, T> {
    fn read_arg(self) -> BufferArg {
        self.range.argument()
    }
}

// SAFETY: as above.
unsafe impl<T: KernelArg> WriteArg<'_, T> for &mut Buffer<T> {
    fn write_arg(self) -> BufferArg {
        self.as_slice().argument()
    }
}

// SAFETY: as above.
unsafe impl<T: KernelArg> WriteArg<'_, T> for BufferSliceMut<'_, T> {
    fn write_arg(self) -> BufferArg {
        self.range.argument()
    }
}

// SAFETY: as above.
unsafe impl<T: KernelArg> WriteArg<'_, T> for &mut BufferSliceMut<'_, T> {
    fn write_arg(self) -> BufferArg {
        self.range.argument()
    }
}

impl<T> fmt::Debug for BufferSlice<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, end) = (self.start, self.start + self.len);
        write!(f, "BufferSlice<{}>[{start}..{end}]", std::any::type_name::<T>())
    }
}

impl<T> fmt::Debug for BufferSliceMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BufferSlice { start, len, .. } = self.range;
        write!(f, "BufferSliceMut<{}>[{start}..{}]", std::any::type_name::<T>(), start + len)
    }
}
