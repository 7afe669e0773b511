//! A kernel that stands still until the host lets it go on, for tests that depend on its progress.

use preempt::{Buffer, Scheduler};
use preempt_device::atomic::{AtomicU32, Ordering::SeqCst};
use preempt_device::prelude::*;

/// In each block-task, adds 1 to element 1 of `gate` and waits until element 0 is not 0. Then appends `name` to `log`,
/// whose element 0 is the number of entries.
///
/// Block-tasks must not wait for each other; these wait for the host.
#[preemptible(block = 1)]
pub fn gated(gate: *const u32, log: *mut u32, name: u32) {
    // SAFETY: a gate has two elements, which host and kernels access atomically.
    let (open, arrived) = unsafe {
        (AtomicU32::from_ptr(gate.cast_mut()), AtomicU32::from_ptr(gate.add(1).cast_mut()))
    };
    arrived.fetch_add(1, SeqCst);
    while open.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    // SAFETY: all entries are appended atomically, and the test allocates enough of them.
    unsafe {
        let entry = AtomicU32::from_ptr(log).fetch_add(1, SeqCst) + 1;
        log.add(entry as usize).write(name);
    }
}

/// A gate that the host opens: host memory that is read in place on the CPU device.
#[derive(Debug)]
pub struct Gate(
    /// The kernel's `gate` argument.
    pub Buffer<u32>,
);

impl Gate {
    /// A closed gate, at which no block-task waits.
    pub fn new(scheduler: &Scheduler) -> Gate {
        Gate(scheduler.zeroed(2).expect("memory"))
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        // SAFETY: on the CPU device the address is one of this process; access is atomic.
        unsafe { AtomicU32::from_ptr((self.0.address() as *mut u32).add(index)) }
    }

    /// Lets all block-tasks through.
    pub fn open(&self) {
        self.word(0).store(1, SeqCst);
    }

    /// Block-tasks that have come to the gate until now.
    pub fn arrived(&self) -> u32 {
        self.word(1).load(SeqCst)
    }

    /// Waits until this many block-tasks have come to the gate.
    pub fn wait_for(&self, tasks: u32) {
        while self.arrived() < tasks {
            std::thread::yield_now();
        }
    }
}
