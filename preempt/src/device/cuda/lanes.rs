//! The streams that cohorts run in, and their signal words.

use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use preempt_device::abi::{Lane, Signal};

use super::context::Context;
use super::driver::RawStream;
use super::line::{BlockPriority, Stream};
use super::memory::Fixed;
use crate::device::LaneCount;
use crate::error::Error;

/// The hardware has few queues, and streams that share one wait for each other; the driver uses 8 unless
/// `CUDA_DEVICE_MAX_CONNECTIONS` says otherwise. Chains leave half of them to single cohorts, signals
/// and copies.
pub(super) const LANES: LaneCount = LaneCount { normal: 16, urgent: 8, chains: 4 };

/// The urgent and the normal lanes that are created first, and have queues of their own with 8 of them. The engine
/// takes the first free lane, so most programs need no others.
const FIRST_LANES: (u32, u32) = (3, 4);

/// How long a scheduler that starts waits for the signals of the last one, which take microseconds.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(10);

const COUNT: usize = (LANES.normal + LANES.urgent) as usize;

/// The streams, before anything else is created.
#[derive(Debug)]
pub(super) struct Streams {
    /// Carries signals and nothing else, so that none waits behind something else.
    control: Stream,
    /// Normal lanes, then urgent ones.
    lanes: Vec<Stream>,
}

impl Streams {
    /// The context is entered, and has no stream of ours yet: those that are created first get hardware
    /// queues of their own.
    pub fn new(context: &Arc<Context>) -> Result<Streams, Error> {
        let control = Stream::new(context, BlockPriority::Greatest)?;
        let (mut urgent, mut normal) = (Vec::new(), Vec::new());
        let more = |lanes: &mut Vec<Stream>, count: u32, priority| {
            while lanes.len() < count as usize {
                lanes.push(Stream::new(context, priority)?);
            }
            Ok::<_, Error>(())
        };
        for (share_urgent, share_normal) in [FIRST_LANES, (LANES.urgent, LANES.normal)] {
            more(&mut urgent, share_urgent, BlockPriority::Greatest)?;
            more(&mut normal, share_normal, BlockPriority::Least)?;
        }
        normal.append(&mut urgent);
        Ok(Streams { control, lanes: normal })
    }
}

#[derive(Debug)]
pub(super) struct Lanes {
    streams: Streams,
    words: Fixed,
}

impl Lanes {
    /// The context is entered. Ready when what `zeroing` was given is done.
    pub fn new(
        context: &Arc<Context>,
        streams: Streams,
        zeroing: RawStream,
    ) -> Result<Lanes, Error> {
        let words = Fixed::new(context, COUNT * size_of::<Lane>(), zeroing)?;
        Ok(Lanes { streams, words })
    }

    /// Forgets all signals, in the order of `stream`. Nothing is in any lane. The context is entered.
    pub fn reset(&self, stream: RawStream) -> Result<(), Error> {
        // A cohort may be over before its signal is there, and no stream waits for another one.
        if !self.streams.control.settle(SIGNAL_TIMEOUT)? {
            let reason = "it does not carry signals out; is something else running on it?".into();
            return Err(Error::DeviceUnsupported { reason });
        }
        self.words.zero(stream)
    }

    /// Where a lane's word is on the device.
    #[inline]
    pub fn word(&self, lane: u32) -> *const Lane {
        debug_assert!((lane as usize) < COUNT);
        let address = self.words.address() as usize + lane as usize * size_of::<Lane>();
        ptr::with_exposed_provenance(address)
    }

    #[inline]
    pub fn stream(&self, lane: u32) -> &Stream {
        &self.streams.lanes[lane as usize]
    }

    pub fn streams(&self) -> &[Stream] {
        &self.streams.lanes
    }

    pub fn control(&self) -> &Stream {
        &self.streams.control
    }

    /// Writes a lane's word. The context is entered.
    #[inline]
    pub fn signal(&self, lane: u32, signal: Signal) -> Result<(), Error> {
        let address = self.word(lane).addr() + std::mem::offset_of!(Lane, signal);
        // SAFETY: the words live as long as the streams, and blocks read them as atomics.
        unsafe { self.streams.control.write(address as u64, signal.to_bits()) }
    }
}
