//! Events, which show when a plain grid is over.
//!
//! A preemptible grid posts its own end. A plain one cannot, so an event is recorded behind it, and the host writes the
//! post once the event has completed. To the driver an event without a time is a note of how far the stream has come: it
//! takes the device no time, and no hardware queue (`README.md`). A write by the stream would take 3 µs of each grid's
//! time and, while it waits, a hardware queue (H200, driver 580).

use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::context::{Context, call};
use super::driver::{NOT_READY, RawEvent};
use super::lock;
use super::streams::{GIVE_UP, Stream};
use crate::error::Error;

/// Events take no time (`CU_EVENT_DISABLE_TIMING`).
const NO_TIME: u32 = 2;

/// Says whether grids are over.
pub(super) trait Ends: fmt::Debug + Send + Sync {
    /// Whether everything is over that was in the stream when the event was recorded. What it wrote is visible to the
    /// caller then.
    fn is_over(&self, event: &Event) -> bool;

    /// Takes an event back, for another grid.
    fn give_back(&self, event: Event);
}

/// An event.
#[derive(Debug)]
pub(super) struct Event(RawEvent);

// SAFETY: driver functions can be called with an event from any thread.
unsafe impl Send for Event {}

#[cfg(test)]
impl Event {
    /// An event that no driver knows.
    pub fn numbered(number: usize) -> Event {
        Event(ptr::without_provenance_mut(number))
    }

    pub fn number(&self) -> usize {
        self.0.addr()
    }
}

/// The events of a device.
#[derive(Debug)]
pub(super) struct Events {
    context: Arc<Context>,
    free: Mutex<Vec<Event>>,
    /// Whether `failing` is set.
    has_failed: AtomicBool,
    /// Since when each question to the driver has failed.
    failing: Mutex<Option<Instant>>,
}

impl Events {
    pub fn new(context: &Arc<Context>) -> Events {
        let (context, free) = (context.clone(), Mutex::default());
        Events { context, free, has_failed: AtomicBool::new(false), failing: Mutex::default() }
    }

    /// An event for the next grid. The driver creates one beside running kernels in 0.2 µs (H200). The context is
    /// entered.
    pub fn take(&self) -> Result<Event, Error> {
        if let Some(event) = lock(&self.free).pop() {
            return Ok(event);
        }
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer is valid.
        unsafe { call!(self.context, cuEventCreate(&raw mut raw, NO_TIME))? };
        Ok(Event(raw))
    }

    /// Records an event behind all that is in the stream. The context is entered.
    pub fn record(&self, event: &Event, stream: &Stream) -> Result<(), Error> {
        // SAFETY: the event lives as long as its owner, and so does the stream.
        unsafe { call!(self.context, cuEventRecord(event.0, stream.raw())) }
    }

    /// An answer of the driver says nothing about the work if it is an error. After [`GIVE_UP`] without another answer
    /// the context counts as lost.
    #[cold]
    fn failed(&self, error: &Error) {
        let since = *lock(&self.failing).get_or_insert_with(Instant::now);
        // Relaxed: only the time under the lock counts.
        self.has_failed.store(true, Ordering::Relaxed);
        if since.elapsed() > GIVE_UP {
            self.context.lose(error.to_string());
        }
    }
}

impl Ends for Events {
    fn is_over(&self, event: &Event) -> bool {
        let Ok(_entered) = self.context.enter() else { return false };
        // SAFETY: the event lives as long as its owner.
        let code = unsafe { (self.context.functions().cuEventQuery)(event.0) };
        if code != NOT_READY
            && let Err(error) = self.context.check("cuEventQuery", code)
        {
            self.failed(&error);
            return false;
        }
        if self.has_failed.load(Ordering::Relaxed) {
            self.has_failed.store(false, Ordering::Relaxed);
            *lock(&self.failing) = None;
        }
        code != NOT_READY
    }

    fn give_back(&self, event: Event) {
        lock(&self.free).push(event);
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let free = std::mem::take(self.free.get_mut().unwrap_or_else(|free| free.into_inner()));
        if free.is_empty() || !self.context.is_freeable() {
            return;
        }
        if let Ok(_entered) = self.context.enter() {
            for event in free {
                // Nothing can be done about an error. SAFETY: created once, and no grid has it.
                unsafe { (self.context.functions().cuEventDestroy_v2)(event.0) };
            }
        }
    }
}
