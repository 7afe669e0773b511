//! Events, which show when a plain grid is over.
//!
//! A preemptible grid posts its own end. A plain one cannot, so an event is recorded behind it, and the host writes the
//! post once the event has completed. To the driver an event without a time is a note of how far the stream has come: it
//! takes the device no time, and no hardware queue (`README.md`). A write by the stream would take 3 µs of each grid's
//! time and, while it waits, a hardware queue (H200, driver 580).

use std::fmt;
use std::ptr;
use std::sync::{Arc, Mutex};

use super::context::{Context, call};
use super::driver::{NOT_READY, RawEvent};
use super::lock;
use super::streams::Stream;
use crate::error::Error;

/// Events take no time (`CU_EVENT_DISABLE_TIMING`).
const NO_TIME: u32 = 2;

/// Says whether grids are over.
pub(super) trait Ends: fmt::Debug + Send + Sync {
    /// Whether everything is over that was in the stream when the event was recorded. What it wrote is visible to the
    /// caller then. An error says nothing about that.
    fn is_over(&self, event: &Event) -> Result<bool, Error>;

    /// Says that no question about a grid was answered for [`GIVE_UP`](super::streams::GIVE_UP): the context counts as
    /// lost.
    fn give_up(&self, error: Error);

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
}

impl Events {
    pub fn new(context: &Arc<Context>) -> Events {
        Events { context: context.clone(), free: Mutex::default() }
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
}

impl Ends for Events {
    fn is_over(&self, event: &Event) -> Result<bool, Error> {
        let _entered = self.context.enter()?;
        // SAFETY: the event lives as long as its owner.
        match unsafe { (self.context.functions().cuEventQuery)(event.0) } {
            NOT_READY => Ok(false),
            code => self.context.check("cuEventQuery", code).map(|()| true),
        }
    }

    fn give_up(&self, error: Error) {
        self.context.lose(error.to_string());
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
