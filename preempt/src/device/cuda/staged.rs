//! Large copies between the device and ordinary host memory, in pieces through two pinned buffers:
//! the device copies one while the host copies the other.

use std::sync::{Arc, Mutex};

use super::context::Context;
use super::lock;
use super::memory::Pinned;
use super::streams::TrackedStream;
use super::transfer;
use crate::device::rows::{Part, copy_rows};
use crate::device::{CopyKind, Rows};
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
    /// Both places are valid for the rows, and no other thread uses `to`.
    pub unsafe fn upload(
        &self,
        line: &TrackedStream,
        to: u64,
        from: *const u8,
        rows: Rows,
    ) -> Result<(), Error> {
        let buffers = lock(&self.buffers);
        // The number of the last piece put into each buffer.
        let mut last = [0; 2];
        let result = rows.parts(PIECE).enumerate().try_for_each(|(piece, part)| {
            let buffer = buffers.at(piece % 2 * PIECE);
            line.wait(last[piece % 2])?;
            let fill = || {
                // SAFETY: both are valid for the piece; the device has read what was in the buffer.
                unsafe { copy_rows(from.add(part.from), buffer, part.rows.with_packed_target()) }
            };
            self.context.touching(fill)?;
            last[piece % 2] = line.issue(|stream| {
                let (to, rows) = (to + part.to as u64, part.rows.with_packed_source());
                let (context, up) = (&self.context, CopyKind::ToDevice);
                // SAFETY: as above, and no thread writes the buffer before the stream has passed this.
                unsafe { transfer::enqueue(context, stream, up, buffer as u64, to, rows) }
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
    /// Both places are valid for the rows, and no other thread uses `to`.
    pub unsafe fn download(
        &self,
        line: &TrackedStream,
        to: *mut u8,
        from: u64,
        rows: Rows,
    ) -> Result<(), Error> {
        let buffers = lock(&self.buffers);
        let fetch = |(piece, part): (usize, Part)| {
            let buffer = buffers.at(piece % 2 * PIECE);
            let number = line.issue(|stream| {
                let (from, rows) = (from + part.from as u64, part.rows.with_packed_target());
                let (context, down) = (&self.context, CopyKind::ToHost);
                // SAFETY: the caller's promise; no thread uses the buffer before the stream has passed this.
                unsafe { transfer::enqueue(context, stream, down, from, buffer as u64, rows) }
            })?;
            Ok::<_, Error>((buffer, part, number))
        };
        let mut parts = rows.parts(PIECE).enumerate();
        // The previous piece is on its way while this one is requested.
        let mut coming: Option<(*mut u8, Part, u64)> = None;
        loop {
            let before = coming.take();
            let asked = parts.next().map(fetch).transpose();
            // Also if the next piece could not be requested: the device still reads what the caller may free.
            if let Some((buffer, part, number)) = before {
                line.wait(number)?;
                let (to, rows) = (to.wrapping_add(part.to), part.rows.with_packed_source());
                // SAFETY: the caller's promise; the device has written the buffer.
                self.context.touching(|| unsafe { copy_rows(buffer, to, rows) })?;
            }
            coming = asked?;
            if coming.is_none() {
                return Ok(());
            }
        }
    }
}
