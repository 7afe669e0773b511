//! Launches and copies whose memory is borrowed.

use std::fmt;
use std::marker::PhantomData;

use preempt_device::host::{Call, HasGrid};
use preempt_device::kernel::KernelArg;

use super::copies::Copy2d;
use super::handle::Handle;
use super::slice::{DeviceSlice, DeviceSliceMut};
use crate::engine::LaunchReport;
use crate::error::Error;
use crate::scheduler::{Scheduler, Stream};
use crate::sync::{Mutex, lock};

/// Launches and copies that end before the memory that they borrow; see [`Scheduler::scope`].
pub struct Scope<'scope, 'env: 'scope> {
    /// Operations that may not have ended.
    handles: Mutex<Vec<Handle<()>>>,
    /// Neither lifetime may be made shorter, as for [`std::thread::Scope`].
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl Scheduler {
    /// Calls `body`, which can launch kernels on memory that it borrows and copy from and to slices, and waits for all of
    /// that.
    ///
    /// A failed launch leaves what it writes in an unknown state. The scheduler remembers that of its own buffers
    /// ([`LaunchError::InputLost`](crate::error::LaunchError::InputLost)), but not of borrowed memory. So wait for each
    /// launch whose result is used.
    ///
    /// Buffers of this scheduler need no scope, since they are counted. Others' do, such as `cust`'s
    /// `&DeviceBuffer` (feature `cust`): dropping a [`Handle`] does not stop a launch, so nothing but
    /// waiting keeps its memory in place.
    ///
    /// ```
    /// # use preempt_device::prelude::*;
    /// # #[preemptible(block = 32)]
    /// # fn fill(value: u32, out: SliceMut<u32>) {
    /// #     // SAFETY: each thread writes its own element.
    /// #     unsafe { out.write(thread::index_1d() as usize, value) }
    /// # }
    /// let scheduler = preempt::Scheduler::builder().build()?;
    /// let stream = scheduler.stream(0);
    /// let mut out = scheduler.zeroed::<u32>(64)?;
    /// scheduler.scope(|scope| {
    ///     let handle = scope.launch(&stream, fill(7, &mut out).grid(2))?;
    ///     println!("{:?}", handle.wait()?);
    ///     Ok::<(), preempt::Error>(())
    /// })?;
    /// assert_eq!(stream.download(&out)?.wait()?, [7; 64]);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    pub fn scope<'env, R>(
        &self,
        body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
    ) -> R {
        let (handles, scope, env) = (Mutex::default(), PhantomData, PhantomData);
        let scope = Scope { handles, scope, env };
        let _waits = WaitForAll(&scope.handles);
        body(&scope)
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Launches a kernel on a stream, as [`Stream::launch`] does.
    ///
    /// # Errors
    ///
    /// As for [`Stream::launch`], and [`ArgumentError::NotAllocated`](crate::error::ArgumentError::NotAllocated).
    pub fn launch<G: HasGrid>(
        &'scope self,
        stream: &Stream,
        call: Call<'scope, G>,
    ) -> Result<Handle<LaunchReport>, Error> {
        // SAFETY: the scope waits for it, and what it borrows lives longer than the scope.
        let handle = unsafe { stream.launch_borrowing(call.with_its_grid())? };
        self.keep(handle.untyped());
        Ok(handle)
    }

    /// Copies a slice to a buffer of the same length, as [`Stream::upload`] does, without a copy at the submission.
    ///
    /// ```
    /// let scheduler = preempt::Scheduler::builder().build()?;
    /// let stream = scheduler.stream(0);
    /// let (data, mut out) = ([1u32, 2, 3], [0; 3]);
    /// let mut buffer = scheduler.zeroed(3)?;
    /// scheduler.scope(|scope| {
    ///     let _uploaded = scope.upload(&stream, &data, &mut buffer)?;
    ///     scope.download_into(&stream, &buffer, &mut out)
    /// })?.wait()?;
    /// assert_eq!(out, data);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Stream::upload`].
    pub fn upload<T: KernelArg>(
        &'scope self,
        stream: &Stream,
        data: &'scope [T],
        to: &mut impl DeviceSliceMut<T>,
    ) -> Result<Handle<()>, Error> {
        // SAFETY: the scope waits for it, and the slice lives longer than the scope.
        let handle = unsafe { stream.upload_borrowed(data, to)? };
        self.keep(handle.untyped());
        Ok(handle)
    }

    /// Copies a buffer to a slice of the same length. Nothing else uses the slice until the scope has ended; the handle
    /// tells whether it holds the elements then.
    ///
    /// ```compile_fail,E0502
    /// # fn with(scheduler: preempt::Scheduler, buffer: preempt::Buffer<u32>) -> Result<(), preempt::Error> {
    /// # let (stream, mut out) = (scheduler.stream(0), [0; 3]);
    /// scheduler.scope(|scope| {
    ///     scope.download_into(&stream, &buffer, &mut out)?;
    ///     println!("{out:?}"); // the device may still write it
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ArgumentError::LengthMismatch`](crate::error::ArgumentError::LengthMismatch),
    /// [`ArgumentError::ForeignBuffer`](crate::error::ArgumentError::ForeignBuffer), or
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped).
    pub fn download_into<T: KernelArg>(
        &'scope self,
        stream: &Stream,
        from: &impl DeviceSlice<T>,
        to: &'scope mut [T],
    ) -> Result<Handle<()>, Error> {
        // SAFETY: the scope waits for it, and has the slice until then.
        let handle = unsafe { stream.download_borrowed(from, to)? };
        self.keep(handle.untyped());
        Ok(handle)
    }

    /// Copies rows of a slice to rows of a buffer, as [`Stream::upload_2d`] does, without a copy at the submission.
    ///
    /// # Errors
    ///
    /// As for [`Stream::upload_2d`].
    pub fn upload_2d<T: KernelArg>(
        &'scope self,
        stream: &Stream,
        data: &'scope [T],
        to: &mut impl DeviceSliceMut<T>,
        shape: Copy2d,
    ) -> Result<Handle<()>, Error> {
        // SAFETY: the scope waits for it, and the slice lives longer than the scope.
        let handle = unsafe { stream.upload_rows_borrowed(data, to, shape)? };
        self.keep(handle.untyped());
        Ok(handle)
    }

    /// Copies rows of a buffer to rows of a slice, as [`download_into`](Scope::download_into) does. The elements between
    /// the rows stay as they are.
    ///
    /// # Errors
    ///
    /// [`ArgumentError::BadPitch`](crate::error::ArgumentError::BadPitch),
    /// [`ArgumentError::BeyondEnd`](crate::error::ArgumentError::BeyondEnd),
    /// [`ArgumentError::ForeignBuffer`](crate::error::ArgumentError::ForeignBuffer), or
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped).
    pub fn download_2d<T: KernelArg>(
        &'scope self,
        stream: &Stream,
        from: &impl DeviceSlice<T>,
        to: &'scope mut [T],
        shape: Copy2d,
    ) -> Result<Handle<()>, Error> {
        // SAFETY: the scope waits for it, and has the slice until then.
        let handle = unsafe { stream.download_rows_borrowed(from, to, shape)? };
        self.keep(handle.untyped());
        Ok(handle)
    }

    /// Has the scope wait for an operation.
    fn keep(&self, handle: Handle<()>) {
        let mut handles = lock(&self.handles);
        handles.retain(|handle| !handle.is_done());
        handles.push(handle);
    }
}

/// Waits on drop, after a panic too.
struct WaitForAll<'a>(&'a Mutex<Vec<Handle<()>>>);

impl Drop for WaitForAll<'_> {
    fn drop(&mut self) {
        let handles = std::mem::take(&mut *lock(self.0));
        for handle in handles {
            // The application's handle has the result.
            let _ = handle.wait();
        }
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("operations", &lock(&self.handles).len()).finish()
    }
}
