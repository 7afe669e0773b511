//! A block of one thread, in which the tests and the model run the worker loop.

use core::cell::Cell;

use super::{Block, BlockNotes, Body, Chunk, MAX_REQUEUES};

/// A block of one thread on a given SM.
pub struct OneThread {
    sm: u32,
    /// The clock, and its step from one read to the next.
    clock: Cell<u64>,
    step: u64,
    notes: BlockNotes,
    left: u32,
}

impl OneThread {
    /// A block on `sm` whose clock stands still.
    pub fn on(sm: u32) -> OneThread {
        OneThread::ticking(sm, 0)
    }

    pub fn ticking(sm: u32, step: u64) -> OneThread {
        OneThread { sm, clock: Cell::new(0), step, notes: BlockNotes::default(), left: 0 }
    }
}

impl Block for OneThread {
    fn sm(&self) -> u32 {
        self.sm
    }
    /// There is one block for each SM.
    fn number(&self) -> u32 {
        self.sm
    }
    fn clock(&self) -> u64 {
        self.clock.set(self.clock.get() + self.step);
        self.clock.get()
    }
    fn nanos(&self) -> u64 {
        self.clock()
    }
    fn await_previous(&self) {}
    fn release_next(&self) {}
    fn notes(&self) -> &BlockNotes {
        &self.notes
    }
    fn set_left(&mut self, left: u32) {
        self.left = left;
    }
    fn left(&self) -> u32 {
        self.left
    }

    fn lead(&mut self, lead: impl FnOnce(&Self)) {
        lead(self)
    }

    fn elect(&mut self, decide: impl FnOnce(&Self) -> Chunk) -> Chunk {
        decide(self)
    }
    fn elect_any(&mut self, predicate: bool, decide: impl FnOnce(&Self) -> Chunk) -> (Chunk, bool) {
        (decide(self), predicate)
    }

    fn elect_last(&mut self, last: impl FnOnce(&Self)) {
        last(self)
    }
    fn barrier(&mut self) {}
    fn any(&mut self, predicate: bool) -> bool {
        predicate
    }
}

/// The selected task, and the body: `task(index, requeueable)` returns whether it requeued the task.
pub struct Tasks<F, const YIELDS: bool>(pub u32, pub F);

impl<F: FnMut(u32, bool) -> bool, const YIELDS: bool> Body for Tasks<F, YIELDS> {
    const YIELDS: bool = YIELDS;
    fn seek(&mut self, index: u32) {
        self.0 = index;
    }
    fn index(&self) -> u32 {
        self.0
    }
    fn run(&mut self, requeues: u32) -> bool {
        (self.1)(self.0, requeues < MAX_REQUEUES)
    }
}
