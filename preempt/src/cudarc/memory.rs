//! cudarc's memory in launches and buffers.

use std::sync::Arc;

use cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, SyncOnDrop,
};
use preempt_device::kernel::KernelArg;

use super::failed;
use crate::device::Device;
#[cfg(doc)]
use crate::error::ArgumentError;
use crate::error::{DeviceError, Error, caught};
use crate::raw::{Lent, LentRead};
use crate::scheduler::{Buffer, Scheduler, Stream};

/// Memory of cudarc's that launches can read: `CudaSlice`, `CudaView` and `CudaViewMut`.
///
/// # Safety
///
/// The memory is there as long as the value is borrowed. Nothing writes it meanwhile but what is in a stream already, and
/// `device_ptr` makes a stream wait for that.
pub unsafe trait Slice<T>: DevicePtr<T> {}

/// Memory of cudarc's that launches can write: `CudaSlice` and `CudaViewMut`.
///
/// # Safety
///
/// The memory is there as long as the value is borrowed. Nothing uses it meanwhile but what is in a stream already, and
/// `device_ptr_mut` makes a stream wait for that.
pub unsafe trait SliceMut<T>: DevicePtrMut<T> {}

// SAFETY: it owns the memory, and its events are those of what is in streams.
unsafe impl<T> Slice<T> for CudaSlice<T> {}
// SAFETY: as above.
unsafe impl<T> SliceMut<T> for CudaSlice<T> {}
// SAFETY: it borrows a slice.
unsafe impl<T> Slice<T> for CudaView<'_, T> {}
// SAFETY: as above, mutably.
unsafe impl<T> Slice<T> for CudaViewMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T> SliceMut<T> for CudaViewMut<'_, T> {}

impl Scheduler {
    /// Lends a slice or a view of cudarc's to the launches of a [`scope`](Scheduler::scope), which read it (feature `cudarc`).
    /// Waits until what writes it, in streams of cudarc's, is done.
    ///
    /// The slice can be neither freed nor written before the scope has ended:
    ///
    /// ```compile_fail,E0505
    /// # use cudarc::driver::CudaSlice;
    /// # use preempt_device::prelude::*;
    /// # #[preemptible(block = 1)]
    /// # fn double(x: &[f32], y: SliceMut<f32>) {}
    /// # fn launch(scheduler: preempt::Scheduler, stream: preempt::Stream, x: CudaSlice<f32>, mut y: preempt::Buffer<f32>) -> Result<(), preempt::Error> {
    /// let lent = scheduler.lend(&x)?;
    /// scheduler.scope(|scope| {
    ///     let _ = scope.launch(&stream, double(&lent, &mut y).grid(1));
    ///     drop(x); // error: it is lent
    /// });
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`DeviceError::OtherContext`] if it lies in another context, or on another device; [`DeviceError::NoContext`] on a device
    /// that is no GPU; [`DeviceError::Driver`] or [`DeviceError::ContextLost`].
    pub fn lend<'a, T>(&self, slice: &'a impl Slice<T>) -> Result<LentRead<'a, T>, Error> {
        let mut address = 0;
        await_uses(self.device(), slice.stream(), |waits| {
            let (at, event) = slice.device_ptr(waits);
            address = at;
            is_tracked(event)
        })?;
        // SAFETY: borrowed for `'a`, and nothing writes it.
        Ok(unsafe { LentRead::new(address, slice.len()) })
    }

    /// Lends a slice or a view of cudarc's to the launches of a [`scope`](Scheduler::scope), which read and write it (feature
    /// `cudarc`). Waits until what uses it, in streams of cudarc's, is done, and what is in the stream that it was allocated
    /// in.
    ///
    /// # Errors
    ///
    /// As for [`lend`](Scheduler::lend).
    pub fn lend_mut<'a, T>(&self, slice: &'a mut impl SliceMut<T>) -> Result<Lent<'a, T>, Error> {
        let address = settled(self.device(), slice)?;
        // SAFETY: borrowed for `'a`, and nothing else uses it.
        Ok(unsafe { Lent::new(address, slice.len()) })
    }

    /// Takes over a slice of cudarc's without copying (feature `cudarc`), when what uses it, in streams of cudarc's, is done.
    /// [`Stream::to_cudarc`] gives it back.
    ///
    /// It stays bound to this device: schedulers of other devices refuse it with [`ArgumentError::ForeignBuffer`].
    ///
    /// When the result is dropped and the last operation that uses it is done, it is freed in stream
    /// order, which waits for nothing.
    ///
    /// # Errors
    ///
    /// As for [`lend`](Scheduler::lend), and [`ArgumentError::NotAllocated`] for what is no whole allocation of the device's
    /// context, such as unified memory. The slice is dropped then.
    pub fn adopt_cudarc<T: KernelArg>(&self, mut slice: CudaSlice<T>) -> Result<Buffer<T>, Error> {
        let address = settled(self.device(), &mut slice)?;
        // SAFETY: handed over, and no stream uses it any more.
        let buffer = unsafe { self.adopt_raw(address, slice.len()) }?;
        if !slice.is_empty() {
            // The buffer frees it.
            let _ = slice.leak();
        }
        Ok(buffer)
    }
}

impl Stream {
    /// Converts a buffer that was made on this device to a slice of cudarc's, in this stream of cudarc's (feature `cudarc`). Waits until
    /// every use of it is done. Newer contents on another device are moved back.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OtherContext`], [`DeviceError::Driver`],
    /// [`ArgumentError::ForeignBuffer`], [`LaunchError::InputLost`](crate::error::LaunchError::InputLost),
    /// [`LaunchError::SchedulerDropped`](crate::error::LaunchError::SchedulerDropped), or
    /// [`DeviceError::ContextLost`]; the buffer is dropped then.
    pub fn to_cudarc<T: KernelArg>(
        &self,
        buffer: Buffer<T>,
        stream: &Arc<CudaStream>,
    ) -> Result<CudaSlice<T>, Error> {
        let context = stream.context();
        self.shared().device.check_cudarc(context)?;
        let call = |error| failed("a slice of cudarc's", error);
        if buffer.len() * size_of::<T>() == 0 {
            return stream.null().map_err(call);
        }
        // What would make the conversion panic fails here.
        drop(context.new_event(None).map_err(call)?);
        let len = buffer.len();
        let address = self.to_raw(buffer)?;
        // SAFETY: memory of this many elements, which only the result uses and frees.
        let slice = caught(|| unsafe { stream.upgrade_device_ptr(address, len) });
        slice.map_err(|panic| {
            let message = format!("a slice of cudarc's: {panic}").into();
            Error::Device(DeviceError::Driver { code: 0, message })
        })
    }
}

/// Waits until no stream uses memory that is to be written. Returns its address.
fn settled<T>(device: &Device, slice: &mut impl SliceMut<T>) -> Result<u64, Error> {
    let (mut address, stream) = (0, slice.stream().clone());
    await_uses(device, &stream, |waits| {
        let (at, event) = slice.device_ptr_mut(waits);
        address = at;
        is_tracked(event);
        // The stream's own work has to be done as well.
        false
    })?;
    Ok(address)
}

/// Waits for what `order` has a stream wait for, and for what is in the slice's own stream, unless `order` says that its
/// events tell enough.
fn await_uses(
    device: &Device,
    own: &CudaStream,
    mut order: impl FnMut(&CudaStream) -> bool,
) -> Result<(), Error> {
    let context = own.context();
    device.check_cudarc(context)?;
    device.inner.backend.streams()?.await_events(&mut |waits| {
        // SAFETY: a stream of this context, which outlives the wrapper.
        let waits = unsafe { context.wrap_borrowed_stream(waits.cast()) };
        let is_enough = order(&waits) && context.is_managing_stream_synchronization();
        let joined = if is_enough { Ok(()) } else { waits.join(own) };
        // Errors of `order`'s are only noted in the context.
        let noted = joined.and_then(|()| context.check_err());
        noted.map_err(|error| failed("waiting for what uses a slice", error))
    })
}

/// Whether a slice has events. What would be recorded when `event` is dropped is not: launches are waited for by others.
fn is_tracked(mut event: SyncOnDrop<'_>) -> bool {
    match &mut event {
        SyncOnDrop::Record(event) => event.take().is_some(),
        SyncOnDrop::Sync(stream) => {
            stream.take();
            false
        }
    }
}
