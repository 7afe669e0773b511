//! Large copies between the device and ordinary host memory, in pieces through two pinned buffers:
//! the device copies one while the host copies the other.

use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use super::context::{Context, call};
use super::lock;
use super::memory::Pinned;
use super::streams::TrackedStream;
use crate::error::Error;

/// Bytes of a piece: large enough that the time of driver calls does not count, and small enough to stay in the
/// processor's cache between the two copies.
const PIECE: usize = 2 << 20;

/// The two buffers. One copy at a time uses them.
#[derive(Debug)]
pub(super) struct Staged {
    buffers: Mutex<Pinned>,
    context: Arc<Context>,
}

impl Staged {
    /// The context is entered.
    pub fn new(context: &Arc<Context>) -> Result<Staged, Error> {
        let buffers = Mutex::new(Pinned::new(context, 2 * PIECE)?);
        Ok(Staged { buffers, context: context.clone() })
    }

    /// Copies to the device, and waits until everything is there. The context is entered.
    ///
    /// # Safety
    ///
    /// Both places are valid for `bytes`, and no other thread uses `to`.
    pub unsafe fn upload(
        &self,
        line: &TrackedStream,
        to: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), Error> {
        let buffers = lock(&self.buffers);
        // The number of the last piece put into each buffer.
        let mut last = [0; 2];
        let result = (0..bytes).step_by(PIECE).enumerate().try_for_each(|(piece, start)| {
            let len = PIECE.min(bytes - start);
            let buffer = buffers.at(piece % 2 * PIECE);
            line.wait(last[piece % 2])?;
            let fill = || {
                // SAFETY: both are valid for the piece; the device has read what was in the buffer.
                unsafe { from.add(start).copy_to_nonoverlapping(buffer, len) }
            };
            self.context.touching(fill)?;
            last[piece % 2] = line.issue(|stream| {
                let (to, buffer) = (to + start as u64, buffer.cast::<c_void>());
                // SAFETY: as above, and no thread writes the buffer before the stream has passed this.
                unsafe { call!(self.context, cuMemcpyHtoDAsync_v2(to, buffer, len, stream)) }
            })?;
            Ok(())
        });
        // After an error, too: the device still reads the buffers and writes to what the caller may free.
        line.wait(last[0].max(last[1])).and(result)
    }

    /// Copies from the device. The context is entered.
    ///
    /// # Safety
    ///
    /// Both places are valid for `bytes`, and no other thread uses `to`.
    pub unsafe fn download(
        &self,
        line: &TrackedStream,
        to: *mut u8,
        from: u64,
        bytes: usize,
    ) -> Result<(), Error> {
        let buffers = lock(&self.buffers);
        let pieces = bytes.div_ceil(PIECE);
        let len = |piece: usize| PIECE.min(bytes - piece * PIECE);
        let buffer = |piece: usize| buffers.at(piece % 2 * PIECE);
        let fetch = |piece: usize| {
            line.issue(|stream| {
                let (to, from) = (buffer(piece).cast::<c_void>(), from + (piece * PIECE) as u64);
                // SAFETY: the caller's promise; no thread uses the buffer before the stream has passed this.
                unsafe { call!(self.context, cuMemcpyDtoHAsync_v2(to, from, len(piece), stream)) }
            })
        };
        // The previous piece is on its way while this one is requested.
        let mut coming = None;
        for piece in 0..=pieces {
            let before = coming.take();
            let asked = (piece < pieces).then(|| fetch(piece)).transpose();
            // Also if the next piece could not be requested: the device still reads what the caller may free.
            if let Some((piece, number)) = before {
                line.wait(number)?;
                let (from, to) = (buffer(piece), to.wrapping_add(piece * PIECE));
                let len = len(piece);
                // SAFETY: the caller's promise; the device has written the buffer.
                self.context.touching(|| unsafe { from.copy_to_nonoverlapping(to, len) })?;
            }
            coming = asked?.map(|number| (piece, number));
        }
        Ok(())
    }
}
