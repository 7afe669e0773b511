//! The streams that cohorts run in, and their signal words.

use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use preempt_device::abi::{DeviceQueue, Signal};

use super::context::Context;
use super::driver::RawStream;
use super::memory::Fixed;
use super::streams::{BlockPriority, Stream};
use crate::error::{DeviceError, Error};
use crate::vocabulary::QueueCount;

/// Hardware queues are few, and streams that share a hardware queue wait for each other. The driver uses 8 unless
/// `CUDA_DEVICE_MAX_CONNECTIONS` says otherwise. Chains leave half of them to single cohorts, signals and copies.
pub(super) const QUEUES: QueueCount = QueueCount { normal: 16, urgent: 8, chains: 4 };

/// Urgent and normal queues that are created first, and have hardware queues of their own with 8 of them. The engine
/// takes the first free queue, so most programs need no others.
const FIRST_QUEUES: (u32, u32) = (3, 4);

/// The longest that a starting scheduler waits for the signals of the previous one, which take microseconds.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(10);

const COUNT: usize = (QUEUES.normal + QUEUES.urgent) as usize;

/// The streams, before anything else is created.
#[derive(Debug)]
pub(super) struct Streams {
    /// Carries signals only, so that no signal waits behind other work.
    control: Stream,
    /// Normal queues, then urgent ones.
    queues: Vec<Stream>,
}

impl Streams {
    /// The context is entered, and has no stream of ours yet: the streams created first get hardware queues of their
    /// own.
    pub fn new(context: &Arc<Context>) -> Result<Streams, Error> {
        let control = Stream::new(context, BlockPriority::Greatest)?;
        let (mut urgent, mut normal) = (Vec::new(), Vec::new());
        let more = |queues: &mut Vec<Stream>, count: u32, priority| {
            while queues.len() < count as usize {
                queues.push(Stream::new(context, priority)?);
            }
            Ok::<_, Error>(())
        };
        for (share_urgent, share_normal) in [FIRST_QUEUES, (QUEUES.urgent, QUEUES.normal)] {
            more(&mut urgent, share_urgent, BlockPriority::Greatest)?;
            more(&mut normal, share_normal, BlockPriority::Least)?;
        }
        normal.append(&mut urgent);
        Ok(Streams { control, queues: normal })
    }
}

#[derive(Debug)]
pub(super) struct DeviceQueues {
    streams: Streams,
    words: Fixed,
}

impl DeviceQueues {
    /// The context is entered. The words are ready when `zeroing` has done its work so far.
    pub fn new(
        context: &Arc<Context>,
        streams: Streams,
        zeroing: RawStream,
    ) -> Result<DeviceQueues, Error> {
        let words = Fixed::new(context, COUNT * size_of::<DeviceQueue>(), zeroing)?;
        Ok(DeviceQueues { streams, words })
    }

    /// Forgets all signals, in the order of `stream`. No queue holds a grid. The context is entered.
    pub fn reset(&self, stream: RawStream) -> Result<(), Error> {
        // A cohort may be over before its signal has arrived, and no stream waits for another.
        if !self.streams.control.settle(SIGNAL_TIMEOUT)? {
            let reason = "it does not carry signals out; is something else running on it?".into();
            return Err(Error::Device(DeviceError::Unsupported { reason }));
        }
        self.words.zero(stream)
    }

    /// The address of a queue's word on the device.
    #[inline]
    pub fn word(&self, queue: u32) -> *const DeviceQueue {
        debug_assert!((queue as usize) < COUNT);
        let address = self.words.address() as usize + queue as usize * size_of::<DeviceQueue>();
        ptr::with_exposed_provenance(address)
    }

    #[inline]
    pub fn stream(&self, queue: u32) -> &Stream {
        &self.streams.queues[queue as usize]
    }

    pub fn streams(&self) -> &[Stream] {
        &self.streams.queues
    }

    pub fn control(&self) -> &Stream {
        &self.streams.control
    }

    /// Writes a queue's word. The context is entered.
    #[inline]
    pub fn signal(&self, queue: u32, signal: Signal) -> Result<(), Error> {
        let address = self.word(queue).addr() + std::mem::offset_of!(DeviceQueue, signal);
        // SAFETY: the words live as long as the streams, and blocks read them as atomics.
        unsafe { self.streams.control.write(address as u64, signal.to_bits()) }
    }
}
