//! The memory that a preemptible entry needs, for one launch without a scheduler.

use std::time::Duration;

use preempt_device::abi::{
    COHORT_SLOTS, Claims, Cohort, CohortFlags, ControlBlock, DeviceQueue, Divisor, Post, Posted,
    RequeueList, Signal, SmRange, share_bits,
};
use preempt_device::host::{Amortize, Call};

use crate::gpu::{Error, Gpu};
use crate::memory::{Array, Pinned};
use crate::stream::Stream;

/// The device queue, the control block and the requeue list of one launch after another, and the post that shows that a
/// launch is out.
#[derive(Debug)]
pub struct Control {
    memory: Array<u64>,
    post: Pinned<u64>,
    /// The ticket of the last cohort.
    ticket: u32,
    /// The epoch of the last signal.
    epoch: u64,
    /// The most time of a chunk, in ticks of the blocks' clock.
    pace: u32,
    claim_time: u32,
}

/// Offsets of the parts of the memory, which starts at a multiple of 256 bytes.
const QUEUE: u64 = 0;
const CONTROL: u64 = 256;
const REQUEUE_LIST: u64 = 512;
const WORDS: usize = (REQUEUE_LIST as usize + size_of::<RequeueList>()) / size_of::<u64>();

/// Time of a chunk at most, as in preempt.
const PACE: Duration = Duration::from_micros(7);
/// Time of each block for a claim, as in preempt.
const CLAIM_TIME: Duration = Duration::from_nanos(5);
/// Block-tasks of a chunk at most, as in preempt.
const AMORTIZE: u32 = 1024;

impl Control {
    /// Words for launches on this device.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn new(gpu: Gpu) -> Result<Control, Error> {
        let pace = gpu.ticks(PACE)?.try_into().unwrap_or(u32::MAX);
        let (memory, post) = (Array::zeroed(WORDS)?, Pinned::filled(0, 1)?);
        let claim_time = gpu.ticks(CLAIM_TIME)?.try_into().unwrap_or(u32::MAX);
        Ok(Control { memory, post, ticket: 0, epoch: 0, pace, claim_time })
    }

    /// A cohort for a launch of `call` in `blocks` blocks that may use all SMs. With `barrier`, no block-task starts
    /// before all threads have ended the one before.
    ///
    /// Resets everything to zero in the order of `stream`; the last cohort is out.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn start(
        &mut self,
        stream: &Stream,
        call: &Call<'static>,
        blocks: u32,
        barrier: bool,
    ) -> Result<Cohort, Error> {
        let (memory, words) = (self.memory.address(), self.memory.bytes() / size_of::<u32>());
        // SAFETY: no kernel uses the memory, since the last cohort is out.
        unsafe { stream.fill(memory, 0, words)? };
        self.ticket += 1;
        let grid = call.grid_dim();
        let tasks = grid.count() as u32;
        Ok(Cohort {
            control: (memory + CONTROL) as *const ControlBlock,
            claims: (memory + CONTROL) as *const Claims,
            queue: (memory + QUEUE) as *const DeviceQueue,
            post: self.post.address() as *const Post,
            requeue_list: (memory + REQUEUE_LIST) as *const RequeueList,
            progress: std::ptr::null(),
            signal: self.next_signal(SmRange::ALL),
            after: std::ptr::null(),
            after_word: 0,
            left: 0,
            tasks,
            grid: [grid.x, grid.y, grid.z],
            row: Divisor::new(grid.x),
            layer: Divisor::new(grid.y),
            ticket: self.ticket,
            blocks,
            amortize: match call.amortizing_factor() {
                Amortize::Auto => AMORTIZE,
                Amortize::Tasks(tasks) => tasks,
            },
            pace: self.pace,
            share_bits: share_bits(blocks),
            crowd: blocks.saturating_mul(self.claim_time),
            longest: 0,
            clock: 0,
            handed: blocks.min(tasks),
            flags: CohortFlags::new(0, 0).first(true),
            more_rows: grid.y * grid.z - 1,
            barrier: u32::from(barrier),
        })
    }

    fn next_signal(&mut self, range: SmRange) -> Signal {
        self.epoch += 1;
        Signal::new(self.epoch, range)
    }

    /// A cohort for FLEP's loop, with its flag in host memory; 0 lets the loop go on. The slot says which loop it is.
    pub fn with_flag(cohort: Cohort, slot: u8, amortize: u32, flag: &Pinned<u64>) -> Cohort {
        let flags = cohort.flags.at(slot);
        Cohort { queue: flag.address() as *const DeviceQueue, flags, amortize, ..cohort }
    }

    /// The last `left` word of the control block, where FLEP's device crate leaves the longest time of a block-task.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn last_left(&self) -> Result<u64, Error> {
        let at = CONTROL as usize + std::mem::offset_of!(ControlBlock, left);
        Ok(self.memory.read()?[at / size_of::<u64>() + COHORT_SLOTS - 1])
    }

    /// Grants the cohort the SMs in `range` from now on, by a write in the stream `control`.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    #[inline]
    pub fn signal(&mut self, control: &Stream, range: SmRange) -> Result<(), Error> {
        let word = self.next_signal(range).to_bits();
        // SAFETY: the device queue's word, which lives as long as this does.
        unsafe { control.write_word(self.memory.address() + QUEUE, word) }
    }

    /// The number of block-tasks that the last cohort ran, once it is out.
    #[inline]
    pub fn out(&self) -> Option<u32> {
        self.posted().map(|posted| posted.done)
    }

    /// The post of the last cohort, once it is out.
    #[inline]
    pub fn posted(&self) -> Option<Posted> {
        // SAFETY: a post, which host and device access atomically.
        unsafe { &*self.post.host().cast::<Post>() }.read(self.ticket)
    }
}
