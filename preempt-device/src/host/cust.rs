//! `cust`'s types where a launch takes ours.

use cust::function::{BlockSize, GridSize};
use cust::memory::{DeviceBuffer, DeviceCopy};

use super::{BufferArg, Extents, IntoExtents, ReadArg, WriteArg};
use crate::kernel::KernelArg;

fn argument<T: DeviceCopy>(buffer: &DeviceBuffer<T>) -> BufferArg {
    let (address, len) = (buffer.as_device_ptr().as_raw(), buffer.len());
    BufferArg { address, len, bytes: len * size_of::<T>(), owner: None }
}

// SAFETY: the buffer is borrowed for `'a`, and frees its memory when it is dropped.
unsafe impl<'a, T: KernelArg + DeviceCopy> ReadArg<'a, T> for &'a DeviceBuffer<T> {
    fn read_arg(self) -> BufferArg {
        argument(self)
    }
}

// SAFETY: as above.
unsafe impl<'a, T: KernelArg + DeviceCopy> WriteArg<'a, T> for &'a mut DeviceBuffer<T> {
    fn write_arg(self) -> BufferArg {
        argument(self)
    }
}

impl IntoExtents for GridSize {
    fn into_extents(self) -> Extents {
        (self.x, self.y, self.z).into_extents()
    }
}

impl IntoExtents for BlockSize {
    fn into_extents(self) -> Extents {
        (self.x, self.y, self.z).into_extents()
    }
}
