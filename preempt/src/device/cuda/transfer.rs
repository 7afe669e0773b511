//! What copies and fills put into a stream.

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::sys;

use super::context::{Context, call};
use super::driver::RawStream;
use crate::device::{Copy, CopyKind, Rows};
use crate::error::Error;

/// Puts a copy into a stream, in one call: if it is refused, nothing is in the stream. Memory of the host is pinned. The
/// context is entered.
///
/// # Safety
///
/// Both places are valid for the rows until the stream has passed the copy.
pub(super) unsafe fn enqueue(
    context: &Context,
    stream: RawStream,
    kind: CopyKind,
    from: u64,
    to: u64,
    rows: Rows,
) -> Result<(), Error> {
    let rows = rows.joined();
    let (source, target) = (from as *const c_void, to as *mut c_void);
    if rows.count == 1 {
        let bytes = rows.bytes;
        // SAFETY: the caller's promise.
        return unsafe {
            match kind {
                CopyKind::ToDevice => {
                    call!(context, cuMemcpyHtoDAsync_v2(to, source, bytes, stream))
                }
                CopyKind::ToHost => {
                    call!(context, cuMemcpyDtoHAsync_v2(target, from, bytes, stream))
                }
                // Addresses are unified, and the peer's memory is mapped here.
                CopyKind::OnDevice | CopyKind::FromPeer => {
                    call!(context, cuMemcpyDtoDAsync_v2(to, from, bytes, stream))
                }
            }
        };
    }
    use sys::CUmemorytype::{CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST};
    let (from_host, to_host) = (kind == CopyKind::ToDevice, kind == CopyKind::ToHost);
    let place = |is_host| if is_host { CU_MEMORYTYPE_HOST } else { CU_MEMORYTYPE_DEVICE };
    let copy = sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: place(from_host),
        srcHost: if from_host { source } else { ptr::null() },
        srcDevice: if from_host { 0 } else { from },
        srcArray: ptr::null_mut(),
        srcPitch: rows.from_pitch,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: place(to_host),
        dstHost: if to_host { target } else { ptr::null_mut() },
        dstDevice: if to_host { 0 } else { to },
        dstArray: ptr::null_mut(),
        dstPitch: rows.to_pitch,
        WidthInBytes: rows.bytes,
        Height: rows.count,
    };
    // SAFETY: the caller's promise; the driver reads the description during the call.
    unsafe { call!(context, cuMemcpy2DAsync_v2(&raw const copy, stream)) }
}

/// Bytes: a longer element is not looked through for a value that the driver can set memory to.
const MOST: usize = 64;

/// Memory that the driver sets to a value, by a kernel of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Memset {
    to: u64,
    value: [u8; 4],
    /// Bytes of the value: 1, 2 or 4.
    unit: usize,
    /// How often the value stands there.
    times: usize,
}

impl Memset {
    /// The setting that does what the copy of an element does, if there is one.
    ///
    /// # Safety
    ///
    /// The element is valid for reads.
    pub unsafe fn of(
        context: &Context,
        Copy { from, to, rows, .. }: Copy,
    ) -> Result<Option<Memset>, Error> {
        if rows.bytes > MOST || rows.to_pitch != rows.bytes {
            return Ok(None);
        }
        let mut element = [0; MOST];
        let source = ptr::with_exposed_provenance::<u8>(from as usize);
        // SAFETY: the caller's promise; the element has at most as many bytes.
        let read = || unsafe { source.copy_to_nonoverlapping(element.as_mut_ptr(), rows.bytes) };
        context.touching(read)?;
        Ok(Memset::new(to, &element[..rows.bytes], rows.count))
    }

    /// Memory set to `count` elements of these bytes, if these are one value of 1, 2 or 4 bytes, repeated.
    fn new(to: u64, element: &[u8], count: usize) -> Option<Memset> {
        let is_repeated = |unit: &usize| {
            element.len().is_multiple_of(*unit)
                && to.is_multiple_of(*unit as u64)
                && element.iter().zip(&element[*unit..]).all(|(byte, next)| byte == next)
        };
        let unit = [1, 2, 4].into_iter().filter(|unit| *unit <= element.len()).find(is_repeated)?;
        let mut value = [0; 4];
        value[..unit].copy_from_slice(&element[..unit]);
        Some(Memset { to, value, unit, times: count * element.len() / unit })
    }

    /// Puts it into a stream. The context is entered.
    ///
    /// # Safety
    ///
    /// The memory is valid until the stream has passed this.
    pub unsafe fn enqueue(self, context: &Context, stream: RawStream) -> Result<(), Error> {
        let Memset { to, value: [a, b, c, d], unit, times } = self;
        // SAFETY: the caller's promise; the address is a multiple of the value's bytes.
        unsafe {
            match unit {
                1 => call!(context, cuMemsetD8Async(to, a, times, stream)),
                2 => {
                    call!(context, cuMemsetD16Async(to, u16::from_ne_bytes([a, b]), times, stream))
                }
                _ => call!(
                    context,
                    cuMemsetD32Async(to, u32::from_ne_bytes([a, b, c, d]), times, stream)
                ),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_of_one_value_are_set_by_the_driver() {
        let set = |element: &[u8]| Memset::new(1024, element, 10).map(|set| (set.unit, set.times));
        assert_eq!(set(&[7]), Some((1, 10)));
        assert_eq!(set(&0f64.to_ne_bytes()), Some((1, 80)));
        assert_eq!(set(&[1, 2]), Some((2, 10)));
        assert_eq!(set(&[1, 2, 1, 2]), Some((2, 20)));
        assert_eq!(set(&[1, 2, 1, 2, 1, 2]), Some((2, 30)));
        assert_eq!(set(&[1, 2, 3, 4]), Some((4, 10)));
        assert_eq!(set(&[1, 2, 3, 4, 1, 2, 3, 4]), Some((4, 20)));
        assert_eq!(set(&[1, 1, 1, 2]), Some((4, 10)));
        assert_eq!(set(&[1, 2, 3]), None);
        assert_eq!(set(&[1, 2, 1]), None);
        assert_eq!(set(&1f64.to_ne_bytes()), None);
        let set = Memset::new(1024, &[1, 2, 3, 4, 1, 2, 3, 4], 5).expect("4 bytes, repeated");
        assert_eq!(set.value, [1, 2, 3, 4]);
        // The driver wants addresses that are multiples of the value's bytes.
        assert_eq!(Memset::new(1026, &[1, 2, 3, 4], 5), None);
    }
}
