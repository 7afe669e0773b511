//! Work of other libraries in programs, by stream capture.
//!
//! The work is called with a stream that is being captured, so that nothing of it runs. What it has put there is a graph,
//! which becomes a node of the program's.

use std::mem;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

use super::context::{Context, call};
use super::driver::{Code, RawGraph};
use super::streams::{BlockPriority, Stream};
use crate::device::{Captured, RawStream};
use crate::error::{DeviceError, Error, ProgramError};

/// Codes of the driver: what capturing ended with.
const ILLEGAL_STATE: Code = 401;
const INVALIDATED: Code = 901;
const UNMATCHED: Code = 903;
const UNJOINED: Code = 904;

/// What a piece of work has put into its stream.
#[derive(Debug)]
pub(super) struct CapturedGraph {
    raw: RawGraph,
    context: Arc<Context>,
}

impl CapturedGraph {
    pub fn raw(&self) -> RawGraph {
        self.raw
    }

    /// How many nodes it has.
    fn nodes(&self) -> Result<usize, Error> {
        let mut count = 0;
        // SAFETY: without a place for nodes, the driver counts them.
        unsafe { call!(self.context, cuGraphGetNodes(self.raw, ptr::null_mut(), &raw mut count))? };
        Ok(count)
    }
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        // Its program has a copy, and it has never run: the driver has nothing to wait for.
        if self.context.is_freeable()
            && let Ok(_entered) = self.context.enter()
        {
            // SAFETY: ended once, and used by this alone.
            unsafe { (self.context.functions().cuGraphDestroy)(self.raw) };
        }
    }
}

/// Calls the work of a program with a stream of its own, and gives what it has put there. The driver may wait for kernels
/// that run. The context is entered, before and after.
pub(super) fn capture(context: &Arc<Context>, work: &Captured) -> Result<CapturedGraph, Error> {
    let refused = |message: &str| {
        let Captured { program, name, .. } = *work;
        Error::Program(ProgramError::Capture { program, name, message: message.into() })
    };
    let stream = Stream::new(context, BlockPriority::Least)?;
    let raw = stream.raw();
    // Calls of other threads, which may be the scheduler's, do not disturb it.
    let mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream is new.
    unsafe { call!(context, cuStreamBeginCapture_v2(raw, mode))? };
    let result = (work.work)(RawStream::new(raw.cast()));
    // The work may have made another context current. The caller's entry brings back what was current before it.
    let entered = context.enter().map(mem::forget);
    let mut graph = ptr::null_mut();
    // After an error, too, because the stream cannot be destroyed before.
    // SAFETY: the pointer is valid.
    let ended = unsafe { call!(context, cuStreamEndCapture(raw, &raw mut graph)) };
    let graph = (!graph.is_null()).then(|| CapturedGraph { raw: graph, context: context.clone() });
    entered?;
    match (result, ended, graph) {
        (_, Err(lost @ Error::Device(DeviceError::ContextLost { .. })), _) => Err(lost),
        (Err(message), ..) => Err(refused(&message)),
        (Ok(()), Err(error), _) => Err(refused(&explained(&error))),
        (Ok(()), Ok(()), Some(graph)) if graph.nodes()? > 0 => Ok(graph),
        (Ok(()), Ok(()), _) => Err(refused(
            "it has put nothing into the stream that it was given; have the library use that stream",
        )),
    }
}

/// What a failed end of a capture means, and what to do.
fn explained(error: &Error) -> String {
    let Error::Device(DeviceError::Driver { code, .. }) = error else { return error.to_string() };
    let advice = match *code {
        INVALIDATED => {
            "it made a call that cannot be captured; set up the library before, and neither wait nor allocate in it"
        }
        UNJOINED => {
            "it put work into another stream that the given one does not wait for; have it wait at the end"
        }
        ILLEGAL_STATE | UNMATCHED => "it ended the capture itself; leave that to the program",
        _ => return error.to_string(),
    };
    format!("{advice} ({error})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_captures_are_explained() {
        let explained = |code| {
            let message = "the driver's words".into();
            super::explained(&Error::Device(DeviceError::Driver { code, message }))
        };
        for (code, words) in [
            (INVALIDATED, "cannot be captured"),
            (UNJOINED, "another stream"),
            (ILLEGAL_STATE, "itself"),
            (UNMATCHED, "itself"),
        ] {
            let message = explained(code);
            assert!(message.contains(words) && message.contains("the driver's words"), "{message}");
        }
        assert!(explained(1).contains("the driver's words"));
    }
}
