//! Streams and events of an application, beside the scheduler's.

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use super::{CURRENT, FakeEvent, FakeStream, context};

/// Streams that are being captured.
static CAPTURED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

pub fn is_captured(stream: *mut c_void) -> bool {
    CAPTURED.lock().unwrap_or_else(PoisonError::into_inner).contains(&stream.addr())
}

/// The first device's context, which the application has, too.
pub fn their_context() -> *mut c_void {
    context(0)
}

/// A stream of the application on the first device.
#[derive(Clone, Copy)]
pub struct TheirStream(&'static FakeStream);

impl TheirStream {
    pub fn new() -> TheirStream {
        let before = CURRENT.replace(context(0).cast());
        let stream = FakeStream::start();
        CURRENT.set(before);
        // SAFETY: never freed.
        TheirStream(unsafe { &*stream })
    }

    pub fn raw(&self) -> *mut c_void {
        std::ptr::from_ref(self.0).cast_mut().cast()
    }

    pub fn put(&self, job: impl FnOnce() + Send + 'static) {
        assert_eq!(self.0.put(job), 0);
    }

    /// Has it captured from now on.
    pub fn capture(&self) {
        CAPTURED.lock().unwrap_or_else(PoisonError::into_inner).push(self.raw().addr());
    }
}

/// An event of the application.
#[derive(Clone, Copy)]
pub struct TheirEvent(&'static FakeEvent);

impl TheirEvent {
    pub fn recorded_in(stream: TheirStream) -> TheirEvent {
        let event: &FakeEvent = Box::leak(Box::default());
        event.record(stream.0);
        TheirEvent(event)
    }

    pub fn raw(&self) -> *mut c_void {
        std::ptr::from_ref(self.0).cast_mut().cast()
    }
}
