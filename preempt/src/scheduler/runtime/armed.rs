//! Armed launches of programs: whether each is still to be released, was, or will not be any more.
//!
//! The thread that launches the program releases it, and the core disarms it. One lock decides between the two, and under it
//! the gate is opened or closed. So a launch that was released runs, behind its gate or after it.

use std::sync::Arc;

use crate::device::{DeviceInner, Gate};
use crate::sync::{Mutex, lock};

pub(in crate::scheduler) struct Armed {
    device: Arc<DeviceInner>,
    state: Mutex<State>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Without a gate.
    Waiting,
    Gated(Gate),
    Released,
    Disarmed,
}

impl Armed {
    pub fn new(device: Arc<DeviceInner>) -> Armed {
        Armed { device, state: Mutex::new(State::Waiting) }
    }

    /// Whether it may still be released.
    pub fn waits(&self) -> bool {
        matches!(*lock(&self.state), State::Waiting | State::Gated(_))
    }

    /// Releases it, and opens its gate; `false` if it was disarmed. Calls nothing that waits.
    pub fn release(&self) -> bool {
        self.pass(State::Released, |gate| self.device.backend.open_gate(gate))
    }

    /// Disarms it, and closes its gate; `false` if it was released, or disarmed before.
    pub fn disarm(&self) -> bool {
        self.pass(State::Disarmed, |gate| self.device.backend.close_gate(gate))
    }

    fn pass(&self, to: State, leave: impl FnOnce(Gate)) -> bool {
        let mut state = lock(&self.state);
        match *state {
            State::Waiting => {}
            State::Gated(gate) => leave(gate),
            State::Released | State::Disarmed => return false,
        }
        *state = to;
        true
    }

    /// Notes its gate, which the device has.
    pub fn has_gate(&self, gate: Gate) {
        let mut state = lock(&self.state);
        match *state {
            State::Waiting | State::Gated(_) => *state = State::Gated(gate),
            State::Released => self.device.backend.open_gate(gate),
            State::Disarmed => self.device.backend.close_gate(gate),
        }
    }
}
