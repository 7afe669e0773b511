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

/// Hardware queues are few, and a stream takes one while something waits in it behind a grid. The driver uses 8 unless
/// `CUDA_DEVICE_MAX_CONNECTIONS` says otherwise. Four are left to signals, copies and programs. There are six priorities
/// of streams, and as many streams as the proxy carries words for.
pub(super) const QUEUES: QueueCount = QueueCount { normal: 16, urgent: 3, levels: 5, chains: 4 };

/// The longest that a starting scheduler waits for the signals of the previous one, which take microseconds.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(10);

const COUNT: usize = QUEUES.total() as usize;

/// The streams, before anything else is created.
#[derive(Debug)]
pub(super) struct Streams {
    /// Carries signals only, so that no signal waits behind other work.
    control: Stream,
    /// Those of level 0 first.
    queues: Vec<Stream>,
}

impl Streams {
    /// The context is entered.
    pub fn new(context: &Arc<Context>) -> Result<Streams, Error> {
        let control = Stream::new(context, BlockPriority::Greatest)?;
        let queue = |queue| Stream::new(context, BlockPriority::Level(QUEUES.level(queue)));
        let queues = (0..QUEUES.total()).map(queue).collect::<Result<_, _>>()?;
        Ok(Streams { control, queues })
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
