//! Waiting for memory of a device (EffiSha section 6.4): first come, first served.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::Duration;

use rustc_hash::FxHashSet;

use super::{Contents, DeviceInner};
use crate::error::{Error, MemoryError};
use crate::sync::{Condvar, Instant, Mutex, MutexGuard};
use crate::vocabulary::BufferId;

/// The use of the device's memory, and the requests that wait for some.
#[derive(Debug, Default)]
pub(crate) struct Allocations {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes of buffers that are allocated, or that an operation still keeps.
    live: usize,
    /// Number of buffers freed so far.
    freed: u64,
    /// Buffers whose contents a scheduler knows to be lost. `gone` has those of them that were freed.
    lost: FxHashSet<BufferId>,
    gone: Vec<BufferId>,
    /// Numbers of the requests that wait, first come first.
    line: VecDeque<u64>,
    /// The last number given to a request.
    arrivals: u64,
}

/// How long a request for memory waits, and with how many others at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Zero: requests do not wait.
    pub timeout: Duration,
    /// The most requests that wait at the same time.
    pub most: usize,
}

/// Time between two attempts of the first request in the line. Other processes free memory without notice, and this
/// process's pool can be trimmed only while nothing runs.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How a thread waits while a condition holds: until what it waits for is announced, or until a time.
pub(crate) type Sleep<'a> = &'a dyn Fn(&dyn Fn() -> bool);

impl Allocations {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a buffer that was allocated elsewhere.
    pub fn take(&self, bytes: usize) {
        self.state().live += bytes;
    }

    /// Notes that contents of buffers are lost. Returns the buffers that were reported lost before and have been freed
    /// since.
    pub fn lose(&self, buffers: impl IntoIterator<Item = BufferId>) -> Vec<BufferId> {
        let mut state = self.state();
        state.lost.extend(buffers);
        std::mem::take(&mut state.gone)
    }

    /// Counts memory as freed, and notes the buffer as gone if it was one.
    pub fn give_back(&self, bytes: usize, buffer: Option<BufferId>) {
        let mut state = self.state();
        state.live -= bytes;
        state.freed += 1;
        if let Some(buffer) = buffer
            && state.lost.remove(&buffer)
        {
            state.gone.push(buffer);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Memory on the device, to be [given back](Allocations::give_back) when it was freed. If there is not
    /// enough, waits until some is freed. `poll` is for the poller thread, which looks
    /// after the device meanwhile.
    pub fn allocate(
        &self,
        device: &DeviceInner,
        (bytes, contents): (usize, Contents),
        patience: Patience,
        poll: Option<Sleep<'_>>,
    ) -> Result<u64, Error> {
        if bytes == 0 {
            return device.backend.memory().allocate(bytes, contents);
        }
        let mut state = self.state();
        if state.line.is_empty() {
            // Before the memory exists: a request that comes now must not find that no buffer has any.
            state.live += bytes;
            drop(state);
            let result = device.backend.memory().allocate(bytes, contents);
            let result = result.inspect_err(|_| self.give_back(bytes, None));
            match result {
                Err(Error::Memory(MemoryError::OutOfMemory { .. }))
                    if !patience.timeout.is_zero() => {}
                result => return result,
            }
            state = self.state();
        } else if patience.timeout.is_zero() {
            // Small requests would keep a large one waiting for ever.
            return Err(Error::Memory(MemoryError::OutOfMemory { bytes }));
        }
        if state.line.len() >= patience.most {
            return Err(Error::Memory(MemoryError::QueueFull { bytes, waiting: state.line.len() }));
        }
        state.arrivals += 1;
        let number = state.arrivals;
        state.line.push_back(number);
        drop(state);
        WaitingRequest { allocations: self, number }.wait(
            device,
            (bytes, contents),
            patience.timeout,
            poll,
        )
    }

    fn sleep_while(&self, until: Option<Instant>, condition: impl Fn(&State) -> bool) {
        let mut state = self.state();
        while condition(&state) {
            state = match until {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return;
                    }
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// A request that waits for its turn; it gives up its place when it is dropped.
struct WaitingRequest<'a> {
    allocations: &'a Allocations,
    number: u64,
}

impl WaitingRequest<'_> {
    fn wait(
        &self,
        device: &DeviceInner,
        (bytes, contents): (usize, Contents),
        timeout: Duration,
        poll: Option<Sleep<'_>>,
    ) -> Result<u64, Error> {
        let live = self.allocations.state().live;
        let memory = device.backend.memory();
        if memory.within_reach(live).is_some_and(|most| bytes > most) {
            return Err(Error::Memory(MemoryError::OutOfMemory { bytes }));
        }
        let start = Instant::now();
        let deadline = start.checked_add(timeout);
        loop {
            let state = self.allocations.state();
            // What is freed after this ends the wait below.
            let (freed, live, is_first) = (state.freed, state.live, self.is_first(&state));
            drop(state);
            // A request that is not the first waits for those before it, too.
            if is_first {
                self.allocations.take(bytes);
                match memory.allocate(bytes, contents) {
                    Ok(address) => return Ok(address),
                    // Not `give_back`, which would end the wait below.
                    Err(error) => {
                        self.allocations.state().live -= bytes;
                        if live == 0
                            || !matches!(error, Error::Memory(MemoryError::OutOfMemory { .. }))
                        {
                            return Err(error);
                        }
                    }
                }
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(Error::Memory(MemoryError::Timeout { bytes, waited: start.elapsed() }));
            }
            let again = (is_first && device.capabilities.is_polled).then(|| now + LOOK_AGAIN);
            let until = [deadline, again].into_iter().flatten().min();
            let unchanged =
                |state: &State| state.freed == freed && self.is_first(state) == is_first;
            match poll {
                Some(poll) => poll(&|| {
                    until.is_none_or(|until| Instant::now() < until)
                        && unchanged(&self.allocations.state())
                }),
                None => self.allocations.sleep_while(until, unchanged),
            }
        }
    }

    fn is_first(&self, state: &State) -> bool {
        state.line.front() == Some(&self.number)
    }
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        self.allocations.state().line.retain(|&other| other != self.number);
        // Another request may be the first now.
        self.allocations.changed.notify_all();
    }
}
