//! loom explores every interleaving of two blocks and a host that signals, resumes and reuses
//! the control block. Tasks write plain memory that the next cohort and the host read.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::{Block, Chunk, run};
use crate::abi::{Cohort, ControlBlock, Post, Signal, SmRange};
use crate::atomic_shim::Ordering;

struct OneThread(u32);

impl Block for OneThread {
    fn sm(&self) -> u32 {
        self.0
    }
    fn elect(&mut self, decide: impl FnOnce() -> Chunk) -> Chunk {
        decide()
    }
    fn elect_last(&mut self, last: impl FnOnce()) {
        last()
    }
    fn barrier(&mut self) {}
}

struct Device {
    control: ControlBlock,
    posts: [Post; 2],
    /// Task results: written by tasks, read by later cohorts and the host, without atomics.
    memory: Vec<UnsafeCell<u32>>,
}

// SAFETY: loom itself checks every access to `memory`.
unsafe impl Sync for Device {}
// SAFETY: as above.
unsafe impl Send for Device {}

impl Device {
    fn new(tasks: u32) -> Arc<Device> {
        Arc::new(Device {
            control: ControlBlock::default(),
            posts: [Post::default(), Post::default()],
            memory: (0..tasks).map(|_| UnsafeCell::new(0)).collect(),
        })
    }

    fn cohort(&self, slot: u32, generation: u32, ticket: u32, epoch: u64, blocks: u32) -> Cohort {
        let tasks = self.memory.len() as u32;
        Cohort {
            control: &self.control,
            post: &self.posts[slot as usize],
            signal: Signal::new(epoch, SmRange::ALL),
            grid: [tasks, 1, 1],
            tasks,
            generation,
            ticket,
            slot,
            blocks,
            workers: blocks,
            amortize: 1,
        }
    }

    /// Starts the blocks of a cohort, as a launch does: everything before it is visible to them.
    fn launch(
        this: &Arc<Self>,
        slot: u32,
        generation: u32,
        ticket: u32,
        epoch: u64,
        blocks: u32,
    ) -> Vec<thread::JoinHandle<()>> {
        (0..blocks)
            .map(|sm| {
                let device = this.clone();
                thread::spawn(move || {
                    let cohort = device.cohort(slot, generation, ticket, epoch, blocks);
                    // SAFETY: `device` is alive; each block runs once; loom reports a race on a cell.
                    unsafe {
                        run(&mut OneThread(sm), &cohort, |task| {
                            device.memory[task as usize].with_mut(|cell| *cell += generation);
                        });
                    }
                })
            })
            .collect()
    }

    fn signal(&self, slot: u32, epoch: u64, range: SmRange) {
        let word = Signal::new(epoch, range).to_bits();
        self.control.slots[slot as usize].signal.store(word, Ordering::Relaxed);
    }

    /// Polls the post, as the host does. Nothing else orders the host after the blocks.
    fn wait(&self, slot: u32, ticket: u32) -> u32 {
        loop {
            if let Some(done) = self.posts[slot as usize].read(ticket) {
                return done;
            }
            thread::yield_now();
        }
    }

    fn expect_all(&self, value: u32) {
        for cell in &self.memory {
            // SAFETY: loom reports a race.
            cell.with(|cell| assert_eq!(unsafe { *cell }, value));
        }
    }
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

/// A stop somewhere in the run of two blocks; the rest resumes as a second cohort.
#[test]
fn stop_and_resume() {
    model(|| {
        let device = Device::new(2);
        Device::launch(&device, 0, 1, 1, 1, 2);
        device.signal(0, 2, SmRange::EMPTY);
        let mut done = device.wait(0, 1);
        if done < 2 {
            Device::launch(&device, 0, 1, 2, 3, 1);
            done += device.wait(0, 2);
        }
        assert_eq!(done, 2);
        device.expect_all(1);
    });
}

/// Half of the device is taken away; the block on the other half finishes alone.
#[test]
fn a_spatial_stop_leaves_the_granted_half_running() {
    model(|| {
        let device = Device::new(2);
        Device::launch(&device, 0, 1, 1, 1, 2);
        device.signal(0, 2, SmRange::new(1, 2));
        assert_eq!(device.wait(0, 1), 2);
        device.expect_all(1);
    });
}

/// The launch grows by a second cohort while the first still runs; both count to the total.
#[test]
fn two_cohorts_at_once() {
    model(|| {
        let device = Device::new(2);
        Device::launch(&device, 0, 1, 1, 1, 1);
        Device::launch(&device, 1, 1, 2, 2, 1);
        let done = device.wait(0, 1) + device.wait(1, 2);
        assert_eq!(done, 2);
        device.expect_all(1);
    });
}

/// The control block is used again, for a launch whose tasks read what the first one wrote.
#[test]
fn reuse_of_the_control_block() {
    model(|| {
        let device = Device::new(1);
        Device::launch(&device, 0, 1, 1, 1, 2);
        device.signal(0, 2, SmRange::ALL);
        assert_eq!(device.wait(0, 1), 1);
        Device::launch(&device, 0, 2, 2, 3, 1);
        assert_eq!(device.wait(0, 2), 1);
        device.expect_all(3);
    });
}
