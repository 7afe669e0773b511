//! Streams, and how the host hears that work in one is done without asking the driver.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::context::{Context, call};
use super::driver::RawStream;
use super::lock;
use super::memory::Pinned;
use crate::error::Error;

/// Streams wait for no other stream, nor make one wait (`CU_STREAM_NON_BLOCKING`).
const NON_BLOCKING: u32 = 1;

/// Writes come after everything before them in the stream (`CU_STREAM_WRITE_VALUE_DEFAULT`).
const ORDERED: u32 = 0;

/// How long a thread that waits for a line spins before it sleeps between two looks.
const SPIN: Duration = Duration::from_micros(200);
const SLEEP: Duration = Duration::from_micros(20);
/// How often it asks the driver whether the context still works.
const FAULT_CHECK: Duration = Duration::from_millis(10);

/// The least and the greatest priority of blocks; greater ones go first where both wait for room.
#[derive(Clone, Copy, Debug)]
pub(super) enum BlockPriority {
    Least,
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

    /// Writes a word after everything before it in the stream.
    ///
    /// # Safety
    ///
    /// `address` is that of a word that the device can write as long as the stream lives, and
    /// everybody else uses it as an atomic.
    #[inline]
    pub unsafe fn write(&self, address: u64, value: u64) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { call!(self.context, cuStreamWriteValue64_v2(self.raw, address, value, ORDERED)) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.is_freeable() {
            // SAFETY: created once, in `new`.
            unsafe { (self.context.functions().cuStreamDestroy_v2)(self.raw) };
        }
    }
}

/// A stream whose work the host sees done: behind each piece of work it writes that one's number to a
/// word in the host's memory.
#[derive(Debug)]
pub(super) struct Line {
    stream: Stream,
    /// The last number that was given out.
    issued: Mutex<u64>,
    /// Holds the word.
    words: Arc<Pinned>,
    /// Where it is.
    offset: usize,
}

impl Line {
    /// Bytes between the words of two lines, so that they do not share a cache line.
    pub const WORD_SPACE: usize = 128;

    /// A line of the greatest priority with the `index`th word. The context is entered, and nobody else has the
    /// word.
    pub fn new(context: &Arc<Context>, words: &Arc<Pinned>, index: usize) -> Result<Line, Error> {
        Line::on(Stream::new(context, BlockPriority::Greatest)?, words, index)
    }

    /// A line on a stream of its own.
    pub fn on(stream: Stream, words: &Arc<Pinned>, index: usize) -> Result<Line, Error> {
        let offset = index * Line::WORD_SPACE;
        assert!(offset + Line::WORD_SPACE <= words.bytes(), "there is a word for each line");
        Ok(Line { stream, issued: Mutex::new(0), words: words.clone(), offset })
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: within the memory, aligned, and written as an atomic by whoever writes it.
        unsafe { &*self.words.at(self.offset).cast::<AtomicU64>() }
    }

    /// The number of the last piece of work that is done, with everything before it.
    #[inline]
    pub fn done(&self) -> u64 {
        // Acquire: what the work wrote to the host's memory came before the number.
        self.word().load(Ordering::Acquire)
    }

    /// Lets `work` put something into the stream; its number. The context is entered.
    pub fn issue(&self, work: impl FnOnce(RawStream) -> Result<(), Error>) -> Result<u64, Error> {
        let mut issued = lock(&self.issued);
        work(self.stream.raw)?;
        let number = *issued + 1;
        // SAFETY: the word is in pinned memory, whose addresses are the same for the device, and
        // which lives as long as the stream.
        unsafe { self.stream.write(self.words.at(self.offset) as u64, number)? };
        *issued = number;
        Ok(number)
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Waits for a piece of work. Never longer than the context works.
    pub fn wait(&self, number: u64) -> Result<(), Error> {
        let start = Instant::now();
        let mut checked = start;
        while self.done() < number {
            self.stream.context.alive()?;
            let now = Instant::now();
            if now - checked > FAULT_CHECK {
                checked = now;
                self.stream.is_idle()?;
            }
            match now - start < SPIN {
                true => std::hint::spin_loop(),
                false => std::thread::sleep(SLEEP),
            }
        }
        Ok(())
    }
}
