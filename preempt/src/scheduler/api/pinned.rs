//! Memory of the host that the device copies from and to where it lies.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll};

use preempt_device::host::Access;
use preempt_device::kernel::KernelArg;

use super::handle::{Gives, Handle};
use super::slice::{DeviceSlice, DeviceSliceMut};
use super::stream::{CopySide, Stream, side};
use crate::device::{Backend, CopyKind, Device, Owner};
use crate::error::Error;
#[cfg(doc)]
use crate::error::{ArgumentError, LaunchError, MemoryError};
use crate::scheduler::Scheduler;

/// An array in pinned memory of the host: a GPU copies from and to it itself, and no thread copies anything.
///
/// It is a slice as long as no copy has it. A copy takes the array by value and gives it back through its [`Loan`]:
/// [`Stream::upload_pinned`], [`Stream::download_pinned`]. Other copies that borrow a slice find out by themselves that it
/// is pinned, a part of such an array too: [`Scope::upload`](crate::Scope::upload),
/// [`Scope::download_into`](crate::Scope::download_into), [`Stream::download_into`].
///
/// ```
/// let scheduler = preempt::Scheduler::builder().build()?;
/// let stream = scheduler.stream(0);
/// let mut host = scheduler.pinned::<f32>(3)?;
/// host.copy_from_slice(&[1.0, 2.0, 3.0]);
/// let mut buffer = scheduler.zeroed::<f32>(3)?;
/// let upload = stream.upload_pinned(host, &mut buffer)?;
/// // .. other work ..
/// let host = upload.wait()?;
/// let host = stream.download_pinned(&buffer, host)?.wait()?;
/// assert_eq!(*host, [1.0, 2.0, 3.0]);
/// # Ok::<(), preempt::Error>(())
/// ```
///
/// The memory goes back to the device when the array is dropped. The device keeps it for later arrays of about this size
/// until it is dropped itself, because a driver that frees pinned memory may wait for all kernels.
pub struct PinnedBuffer<T> {
    block: Arc<HostBlock>,
    len: usize,
    element: PhantomData<T>,
}

/// Host memory of a device. Operations keep it, too.
struct HostBlock {
    start: NonNull<u8>,
    bytes: usize,
    backend: Arc<dyn Backend>,
}

// SAFETY: it is memory of plain data. Only a `PinnedBuffer` reads and writes it while no copy does.
unsafe impl Send for HostBlock {}
// SAFETY: as above.
unsafe impl Sync for HostBlock {}

impl Drop for HostBlock {
    fn drop(&mut self) {
        // SAFETY: allocated with this size; operations hold the block until they are done.
        unsafe { self.backend.memory().free_host(self.start, self.bytes) }
    }
}

impl Scheduler {
    /// An array of `len` elements in pinned memory of the host, all bytes 0.
    ///
    /// Allocate it before kernels run: a driver that pins memory may wait for them. Memory that an earlier array has left
    /// is there at once.
    ///
    /// # Errors
    ///
    /// [`MemoryError::HostFull`], [`DeviceError::Driver`](crate::error::DeviceError::Driver) or
    /// [`DeviceError::ContextLost`](crate::error::DeviceError::ContextLost).
    #[doc(alias("cudaMallocHost", "cudaHostAlloc"))]
    pub fn pinned<T: KernelArg>(&self, len: usize) -> Result<PinnedBuffer<T>, Error> {
        PinnedBuffer::new(self.device(), len)
    }
}

impl<T: KernelArg> PinnedBuffer<T> {
    pub(super) fn new(device: &Device, len: usize) -> Result<PinnedBuffer<T>, Error> {
        const { assert!(align_of::<T>() <= 256, "host memory is aligned to 256 bytes") };
        // More than there is, if there are too many.
        let bytes = len.checked_mul(size_of::<T>()).unwrap_or(isize::MAX as usize);
        let backend = device.inner.backend.clone();
        let start = backend.memory().allocate_host(bytes)?;
        let block = Arc::new(HostBlock { start, bytes, backend });
        Ok(PinnedBuffer { block, len, element: PhantomData })
    }
}

impl<T> PinnedBuffer<T> {
    pub(super) fn side(&self) -> CopySide {
        (self.block.start.as_ptr() as u64, self.len, self.block.clone() as Owner)
    }
}

impl<T: KernelArg> Deref for PinnedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the memory has room for the elements and is aligned. It holds values: zeros, or what was copied. No copy
        // has it, because a loan keeps its array to itself.
        unsafe { std::slice::from_raw_parts(self.block.start.cast().as_ptr(), self.len) }
    }
}

impl<T: KernelArg> DerefMut for PinnedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the array is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.block.start.cast().as_ptr(), self.len) }
    }
}

impl<T> fmt::Debug for PinnedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedBuffer<{}>[{}]", std::any::type_name::<T>(), self.len)
    }
}

impl Stream {
    /// Copies an array of the host to a buffer, or a range of one, of the same length. The loan gives the array back.
    ///
    /// [`PinnedBuffer`] has an example.
    ///
    /// # Errors
    ///
    /// [`ArgumentError::LengthMismatch`], [`ArgumentError::ForeignBuffer`], or [`LaunchError::SchedulerDropped`]; the
    /// array is dropped then.
    pub fn upload_pinned<T: KernelArg>(
        &self,
        data: PinnedBuffer<T>,
        to: &mut impl DeviceSliceMut<T>,
    ) -> Result<Loan<T>, Error> {
        let handle = self.upload_side(data.side(), to.as_slice_mut().target())?;
        Ok(Loan { handle, array: data })
    }

    /// Copies a buffer, or a range of one, to an array of the host of the same length. The loan gives the array back.
    ///
    /// # Errors
    ///
    /// As for [`upload_pinned`](Stream::upload_pinned).
    pub fn download_pinned<T: KernelArg>(
        &self,
        from: &impl DeviceSlice<T>,
        to: PinnedBuffer<T>,
    ) -> Result<Loan<T>, Error> {
        let from = from.as_slice();
        let uses = vec![self.copy_use(from, Access::Read)?];
        let handle =
            self.copy::<T, _>(CopyKind::ToHost, uses, side(from), to.side(), Gives::NOTHING)?;
        Ok(Loan { handle, array: to })
    }
}

/// A copy that has a [`PinnedBuffer`] on loan, and gives it back at its end: by [`wait`](Loan::wait), or `.await`.
///
/// A copy whose loan is dropped runs all the same. The memory goes back to the device after it.
#[must_use = "the loan gives the array back"]
pub struct Loan<T> {
    handle: Handle<()>,
    array: PinnedBuffer<T>,
}

impl<T: KernelArg> Loan<T> {
    /// Waits until the copy is done, and gives the array back.
    ///
    /// # Errors
    ///
    /// As for [`Handle::wait`]; the array is dropped then.
    pub fn wait(self) -> Result<PinnedBuffer<T>, Error> {
        self.handle.wait()?;
        Ok(self.array)
    }

    /// The handle of the copy, to wait for it without its array, or to cancel it.
    pub fn handle(&self) -> &Handle<()> {
        &self.handle
    }
}

impl<T: KernelArg> IntoFuture for Loan<T> {
    type Output = Result<PinnedBuffer<T>, Error>;
    type IntoFuture = LoanFuture<T>;

    fn into_future(self) -> LoanFuture<T> {
        LoanFuture { handle: self.handle, array: Some(self.array) }
    }
}

impl<T> fmt::Debug for Loan<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan").field("array", &self.array).field("copy", &self.handle).finish()
    }
}

/// The future of a [`Loan`]. After its end it is pending for ever.
#[must_use = "futures do nothing unless polled"]
pub struct LoanFuture<T> {
    handle: Handle<()>,
    /// `None` once it was given back.
    array: Option<PinnedBuffer<T>>,
}

impl<T> Unpin for LoanFuture<T> {}

impl<T: KernelArg> Future for LoanFuture<T> {
    type Output = Result<PinnedBuffer<T>, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match Pin::new(&mut self.handle).poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(result) => match self.array.take() {
                Some(array) => Poll::Ready(result.map(|()| array)),
                None => Poll::Pending,
            },
        }
    }
}

impl<T> fmt::Debug for LoanFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoanFuture").field("copy", &self.handle).finish_non_exhaustive()
    }
}
