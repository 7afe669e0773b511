//! Streams, and tracked streams, whose progress the host reads without asking the driver.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::context::{Context, call};
use super::driver::RawStream;
use super::lock;
use super::memory::Pinned;
use crate::error::{DeviceError, Error};

/// Streams wait for no other stream, nor make one wait (`CU_STREAM_NON_BLOCKING`).
const NON_BLOCKING: u32 = 1;

/// Writes come after everything before them in the stream (`CU_STREAM_WRITE_VALUE_DEFAULT`).
const ORDERED: u32 = 0;

/// Time that a thread that waits for a line spins before it sleeps between two looks.
const SPIN: Duration = Duration::from_micros(200);
const SLEEP: Duration = Duration::from_micros(20);
/// Time between two questions to the driver whether the context still works.
const FAULT_CHECK: Duration = Duration::from_millis(10);

/// Time for which each look at a stream may fail until the context counts as lost. An application that resets the
/// device waits that long for its error; shorter trouble of the driver costs nothing.
pub(super) const GIVE_UP: Duration = Duration::from_secs(10);

/// The longest that dropping waits for streams to be done. If they are not, nothing is freed.
pub(super) const LAST_WAIT: Duration = Duration::from_secs(1);

/// The priority of blocks. Where blocks of several streams wait for room, those of greater priority go first.
#[derive(Clone, Copy, Debug)]
pub(super) enum BlockPriority {
    Least,
    /// This number of steps above the least, or the greatest if there are fewer.
    Level(u32),
    Greatest,
}

/// A CUDA stream.
#[derive(Debug)]
pub(super) struct Stream {
    raw: RawStream,
    context: Arc<Context>,
}

// SAFETY: driver functions can be called with a stream from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream. The context is entered.
    pub fn new(context: &Arc<Context>, priority: BlockPriority) -> Result<Stream, Error> {
        let (mut least, mut greatest, mut raw) = (0, 0, ptr::null_mut());
        // SAFETY: the pointers are valid.
        unsafe { call!(context, cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest))? };
        let priority = match priority {
            BlockPriority::Least => least,
            // Lower numbers are greater priorities.
            BlockPriority::Level(level) => (least - level as i32).max(greatest),
            BlockPriority::Greatest => greatest,
        };
        // SAFETY: the pointer is valid.
        unsafe {
            call!(context, cuStreamCreateWithPriority(&raw mut raw, NON_BLOCKING, priority))?
        };
        Ok(Stream { raw, context: context.clone() })
    }

    pub fn raw(&self) -> RawStream {
        self.raw
    }

    /// Whether everything in the stream is done.
    pub fn is_idle(&self) -> Result<bool, Error> {
        self.context.is_idle(self.raw)
    }

    /// Waits for a limited time until everything in the stream is done; returns whether it is. An error that the driver
    /// gives until the end of that time is returned. The context is entered.
    pub fn settle(&self, timeout: Duration) -> Result<bool, Error> {
        let start = Instant::now();
        loop {
            let state = self.is_idle();
            match state {
                Ok(true) | Err(Error::Device(DeviceError::ContextLost { .. })) => return state,
                // After an error that passes, the work is still there.
                _ if start.elapsed() > timeout => return state,
                _ => {}
            }
            match start.elapsed() < SPIN {
                true => std::thread::yield_now(),
                false => std::thread::sleep(SLEEP),
            }
        }
    }

    /// Writes a word after everything before it in the stream.
    ///
    /// # Safety
    ///
    /// `address` is that of a word that the device can write as long as the stream lives, and
    /// all threads use it as an atomic.
    #[inline]
    pub unsafe fn write(&self, address: u64, value: u64) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { call!(self.context, cuStreamWriteValue64_v2(self.raw, address, value, ORDERED)) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.is_freeable()
            && let Ok(_entered) = self.context.enter()
        {
            // SAFETY: created once, in `new`.
            unsafe { (self.context.functions().cuStreamDestroy_v2)(self.raw) };
        }
    }
}

/// A stream whose progress the host can read. Behind each piece of work, the stream writes its number to a word in the
/// host's memory.
#[derive(Debug)]
pub(super) struct TrackedStream {
    stream: Stream,
    /// The last number given to a piece of work.
    issued: Mutex<u64>,
    /// Holds the word.
    words: Arc<Pinned>,
    /// The word's offset in bytes.
    offset: usize,
}

impl TrackedStream {
    /// Bytes between the words of two lines, so that they do not share a cache line.
    pub const WORD_SPACE: usize = 128;

    /// A line of the greatest priority with the word at `index`. The context is entered, and no other stream has the
    /// word.
    pub fn new(
        context: &Arc<Context>,
        words: &Arc<Pinned>,
        index: usize,
    ) -> Result<TrackedStream, Error> {
        TrackedStream::on(Stream::new(context, BlockPriority::Greatest)?, words, index)
    }

    /// A line on a stream of its own.
    pub fn on(stream: Stream, words: &Arc<Pinned>, index: usize) -> Result<TrackedStream, Error> {
        let offset = index * TrackedStream::WORD_SPACE;
        assert!(
            offset + TrackedStream::WORD_SPACE <= words.bytes(),
            "there is a word for each line"
        );
        Ok(TrackedStream { stream, issued: Mutex::new(0), words: words.clone(), offset })
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: within the memory, aligned, and written as an atomic alone.
        unsafe { &*self.words.at(self.offset).cast::<AtomicU64>() }
    }

    /// The number of the last piece of work that is done, like everything before it.
    #[inline]
    pub fn done(&self) -> u64 {
        // Acquire: the work wrote to the host's memory before the number.
        self.word().load(Ordering::Acquire)
    }

    /// Lets `work` put something into the stream, and returns its number. After an error of `work`, nothing waits for
    /// what it has put there. The context is entered.
    pub fn issue(&self, work: impl FnOnce(RawStream) -> Result<(), Error>) -> Result<u64, Error> {
        let mut issued = lock(&self.issued);
        work(self.stream.raw)?;
        let number = *issued + 1;
        let word = self.words.at(self.offset) as u64;
        // SAFETY: the word is in pinned memory, whose addresses are the same for the device, and
        // which lives as long as the stream.
        let write = || unsafe { self.stream.write(word, number) };
        // The device uses the memory of that work until the number is written; an error would say that it does not.
        self.stream.context.must(write)?;
        *issued = number;
        Ok(number)
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Waits for a piece of work, but no longer than the context works; an error says that it does not.
    pub fn wait(&self, number: u64) -> Result<(), Error> {
        let start = Instant::now();
        let (mut checked, mut answered) = (start, start);
        while self.done() < number {
            self.stream.context.alive()?;
            let now = Instant::now();
            if now - checked > FAULT_CHECK {
                checked = now;
                match self.stream.is_idle() {
                    Ok(_) => answered = now,
                    // After an error that passes, the device still runs the work.
                    Err(error) if now - answered > GIVE_UP => {
                        return Err(self.stream.context.lose(error.to_string()));
                    }
                    Err(_) => {}
                }
            }
            match now - start < SPIN {
                true => std::hint::spin_loop(),
                false => std::thread::sleep(SLEEP),
            }
        }
        Ok(())
    }
}
