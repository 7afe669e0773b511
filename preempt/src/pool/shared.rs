//! Memory of a device that a task and its worker have both.

use std::os::fd::AsFd;
use std::time::Duration;

use preempt_device::kernel::KernelArg;

use crate::device::{Contents, Device, Patience};
use crate::error::{Error, WorkerError};
use crate::scheduler::Buffer;
use crate::worker::SharedMemory;

/// A [`Buffer`], whatever its elements are, that a [call](super::Run::call_with) is given.
pub trait AnyBuffer: sealed::Sealed {}

impl<T> AnyBuffer for Buffer<T> {}

mod sealed {
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    use crate::scheduler::Buffer;
    use crate::vocabulary::BufferId;

    /// What is known of a buffer without its elements.
    #[derive(Debug)]
    pub struct Lent {
        pub(in crate::pool) id: BufferId,
        /// What other processes open its memory by, if they can.
        pub(in crate::pool) descriptor: Option<Arc<OwnedFd>>,
        pub(in crate::pool) bytes: usize,
    }

    pub trait Sealed {
        fn lent(&self) -> Lent;
    }

    impl<T> Sealed for Buffer<T> {
        fn lent(&self) -> Lent {
            let memory = &self.memory;
            Lent { id: memory.id, descriptor: memory.shared(), bytes: memory.bytes }
        }
    }
}

impl SharedMemory {
    /// The memory as a buffer on the worker's own device: the GPU that the task has, or a CPU device where that is one. Nothing is
    /// copied. Its [`address`](Buffer::address) is for other libraries in the device's context, and is one of this process on a CPU
    /// device.
    ///
    /// It stays bound to the device.
    ///
    /// # Errors
    ///
    /// [`WorkerError::OtherKind`], [`WorkerError::NotWhole`],
    /// [`MemoryError::OutOfMemory`](crate::error::MemoryError::OutOfMemory), or an error of the driver, for memory of another GPU
    /// among them.
    ///
    /// # Safety
    ///
    /// The task has elements of this type. When the function returns, all work on the memory is done, and the buffer is dropped.
    pub unsafe fn open<T: KernelArg>(&self, device: &Device) -> Result<Buffer<T>, Error> {
        let kind = |is_gpu| if is_gpu { "GPU" } else { "CPU device" };
        let (given, opened) = (kind(self.0.is_gpu), kind(device.is_gpu()));
        if given != opened {
            return Err(WorkerError::OtherKind { given, opened }.into());
        }
        let bytes = self.bytes();
        let element = size_of::<T>();
        let len = bytes.checked_div(element).unwrap_or(0);
        if len * element != bytes {
            return Err(WorkerError::NotWhole { bytes, element }.into());
        }
        let memory = device.inner.backend.memory();
        let address = match bytes {
            0 => {
                let patience = Patience { timeout: Duration::ZERO, most: 0 };
                return Buffer::new(device, 0, Contents::Any, patience, None);
            }
            _ => memory.open(self.0.descriptor.as_fd(), bytes)?,
        };
        // SAFETY: just mapped for this buffer, which frees it.
        Ok(unsafe { Buffer::from_parts(device, address, len) })
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::fs::File;
    use std::sync::Arc;

    use super::*;
    use crate::worker::Shared;

    #[test]
    fn memory_is_opened_as_what_it_is() {
        let device = Device::cpu().expect("a device");
        let open = |bytes, is_gpu| {
            let descriptor = Arc::new(File::open("/dev/null").expect("a file").into());
            let memory = SharedMemory(Shared { descriptor, bytes, is_gpu });
            // SAFETY: it is refused, or has no element.
            unsafe { memory.open::<u64>(&device) }.map(|buffer| buffer.len())
        };
        let is = |opened, kind: fn(&WorkerError) -> bool| matches!(opened, Err(Error::Worker(error)) if kind(&error));
        assert!(is(open(16, true), |error| matches!(
            error,
            WorkerError::OtherKind { given: "GPU", .. }
        )));
        assert!(is(open(12, false), |error| matches!(
            error,
            WorkerError::NotWhole { bytes: 12, element: 8 }
        )));
        assert_eq!(open(0, false).expect("nothing is mapped"), 0);
    }
}
