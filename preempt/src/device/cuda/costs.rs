//! What the device and its driver take for launches, signals, reports and claims, measured before anything else runs.
//!
//! A kernel of one thread a block stands for all others, so stops and follows have no worker loop in them. They are set
//! against what the same kernel takes on an H200 ([`Bare`]).

use std::ffi::c_void;
use std::hint::spin_loop;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::code::{Code, Function};
use super::context::{Context, call};
use super::memory::{Fixed, Pinned};
use super::probe::settle;
use super::queues::DeviceQueues;
use super::streams::Stream;
use crate::device::Properties;
use crate::error::Error;
use crate::vocabulary::{Bare, Costs};

/// Each block claims for a while, waits for a word if there is one, and stays for a while. The last block to arrive posts
/// the word. A block whose word never comes leaves.
const PTX: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry preempt_costs(
    .param .u64 counters, .param .u64 signal, .param .u64 post, .param .u64 word, .param .u64 stay,
    .param .u32 claims)
{
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<10>;
    ld.param.u64 %rd1, [counters];
    cvta.to.global.u64 %rd1, %rd1;
    ld.param.u64 %rd2, [signal];
    ld.param.u64 %rd3, [word];
    ld.param.u32 %r1, [claims];
CLAIM:
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra WAIT;
    atom.relaxed.gpu.global.add.u32 %r2, [%rd1+4], 1;
    sub.u32 %r1, %r1, 1;
    // Never, so that the next claim comes after this one.
    setp.ne.u32 %p1, %r2, 0xffffffff;
    @%p1 bra CLAIM;
WAIT:
    setp.eq.u64 %p1, %rd2, 0;
    @%p1 bra HERE;
    cvta.to.global.u64 %rd2, %rd2;
    mov.u64 %rd6, %globaltimer;
LOOK:
    ld.relaxed.sys.global.u64 %rd4, [%rd2];
    setp.eq.u64 %p1, %rd4, %rd3;
    @%p1 bra HERE;
    mov.u64 %rd7, %globaltimer;
    sub.u64 %rd7, %rd7, %rd6;
    setp.lt.u64 %p1, %rd7, GIVES_UP;
    @%p1 bra LOOK;
HERE:
    ld.param.u64 %rd5, [stay];
    mov.u64 %rd6, %clock64;
STAY:
    mov.u64 %rd7, %clock64;
    sub.u64 %rd7, %rd7, %rd6;
    setp.lt.u64 %p2, %rd7, %rd5;
    @%p2 bra STAY;
    mov.u32 %r3, %nctaid.x;
    sub.u32 %r3, %r3, 1;
    atom.relaxed.gpu.global.inc.u32 %r4, [%rd1], %r3;
    setp.ne.u32 %p1, %r4, %r3;
    @%p1 bra END;
    ld.param.u64 %rd8, [post];
    cvta.to.global.u64 %rd8, %rd8;
    st.relaxed.sys.global.u64 [%rd8], %rd3;
END:
    ret;
}
";

/// Measurements of each figure, of which the median counts: some milliseconds in all, so that nothing has to be remembered
/// from one process to the next.
const TIMED: usize = 7;

/// Time for one of these, at most, and that a block waits for its word.
const LONGEST: Duration = Duration::from_millis(1);
const GIVES_UP: Duration = Duration::from_millis(100);

/// Blocks of the kernel on each SM: as many as a kernel with blocks of 256 threads has.
const BLOCKS: u32 = 8;

/// Claims of each block.
const CLAIMS: u32 = 64;

/// Kernels that follow each other, and the cycles that each stays: longer than the call that launches it takes.
const FOLLOWING: u32 = 8;
const STAY: u64 = 40_000;

/// Words in the host's memory: what a block on the device may wait for, and its answer.
const SIGNAL: usize = 0;
const POST: usize = 1;

/// The kernel and its memory.
struct Site<'a> {
    context: &'a Arc<Context>,
    function: Function,
    queues: &'a DeviceQueues,
    host: Pinned,
    /// A word, and two counters.
    device: Fixed,
    /// The word of the last launch.
    word: u64,
}

/// A launch of the kernel.
#[derive(Clone, Copy)]
struct Grid {
    blocks: u32,
    /// The address of the word that it waits for; 0 if it does not wait.
    signal: u64,
    stay: u64,
    claims: u32,
}

/// Measures what launches cost. The context is entered, and the streams are idle.
pub(super) fn measure(
    context: &Arc<Context>,
    properties: &Properties,
    queues: &DeviceQueues,
) -> Result<Costs, Error> {
    let ptx = PTX.replace("GIVES_UP", &GIVES_UP.as_nanos().to_string());
    let code = Code::load(context, "preempt_costs", &ptx)?;
    let mut site = Site {
        function: code.function("preempt_costs")?,
        host: Pinned::new(context, 2 * size_of::<u64>())?,
        // Last, so that no error frees it before it is zeroed.
        device: Fixed::new(context, 2 * size_of::<u64>(), queues.stream(0).raw())?,
        context,
        queues,
        word: 0,
    };
    settle(context, site.stream())?;
    let full = properties.sms * BLOCKS.min(properties.blocks_per_sm);
    let measured = site.measure(full);
    // After an error, too: a kernel may still post into the memory, which is freed.
    settle(context, site.stream())?;
    measured
}

impl Site<'_> {
    /// On a device that holds this many blocks.
    fn measure(&mut self, full: u32) -> Result<Costs, Error> {
        let (here, there) = (self.host(), self.device.address());
        let mut median = |measure: &dyn Fn(&mut Site<'_>) -> Result<Duration, Error>| {
            let mut times = (0..TIMED).map(|_| measure(self)).collect::<Result<Vec<_>, _>>()?;
            times.sort_unstable();
            Ok::<_, Error>(times[TIMED / 2])
        };
        let call = median(&|site| site.alone(1, 0).map(|(call, _)| call))?;
        let launched = median(&|site| site.alone(1, 0).map(|(_, seen)| seen))?;
        let report = median(&|site| site.answer(1, here))? / 2;
        let stopped = median(&|site| site.answer(full, there))?;
        let bare = Bare {
            launch: launched.saturating_sub(report),
            follow: median(&|site| site.follow())?,
            stop: stopped.saturating_sub(report),
            report,
            claims: median(&|site| site.claims(full))?,
        };
        Ok(Costs::measured(call, bare))
    }

    fn stream(&self) -> &Stream {
        self.queues.stream(0)
    }

    // All uses are relaxed: each word is waited for by itself, and nothing is read on its account.
    fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: within the memory, aligned, and shared with the device through atomics only.
        unsafe { AtomicU64::from_ptr(self.host.at(index * size_of::<u64>()).cast()) }
    }

    /// The address of the word in the host's memory that blocks wait for.
    fn host(&self) -> u64 {
        self.host.at(SIGNAL * size_of::<u64>()) as u64
    }

    fn launch(&self, Grid { blocks, signal, stay, claims }: Grid) -> Result<(), Error> {
        let counters = self.device.address() + size_of::<u64>() as u64;
        let post = self.host.at(POST * size_of::<u64>()) as u64;
        let words = [counters, signal, post, self.word, stay];
        let of_word = |at: &u64| ptr::from_ref(at).cast_mut().cast::<c_void>();
        let claims = ptr::from_ref(&claims).cast_mut().cast::<c_void>();
        let mut parameters = [&words.each_ref().map(of_word)[..], &[claims]].concat();
        let (function, raw) = (self.function.0, self.stream().raw());
        let (parameters, none) = (parameters.as_mut_ptr(), ptr::null_mut());
        // SAFETY: these are the entry's parameters, and the memory that they name is there until the stream is idle.
        unsafe {
            call!(
                self.context,
                cuLaunchKernel(function, blocks, 1, 1, 1, 1, 1, 0, raw, parameters, none)
            )
        }
    }

    /// Waits for the post of the last launch; the time since `begin`.
    fn seen(&self, begin: Instant) -> Result<Duration, Error> {
        while self.word(POST).load(Ordering::Relaxed) != self.word && begin.elapsed() < LONGEST {
            spin_loop();
        }
        let seen = begin.elapsed();
        settle(self.context, self.stream())?;
        Ok(seen)
    }

    /// The call that launches blocks, and the time from its beginning until their post.
    fn alone(&mut self, blocks: u32, claims: u32) -> Result<(Duration, Duration), Error> {
        self.word += 1;
        let begin = Instant::now();
        self.launch(Grid { blocks, signal: 0, stay: 0, claims })?;
        let call = begin.elapsed();
        Ok((call, self.seen(begin)?))
    }

    /// From the host's store to the word at this address, or its write by a stream, until the post of blocks that wait for it.
    fn answer(&mut self, blocks: u32, signal: u64) -> Result<Duration, Error> {
        self.word += 1;
        self.launch(Grid { blocks, signal, stay: 0, claims: 0 })?;
        // All of them wait by then.
        let launched = Instant::now();
        while launched.elapsed() < LONGEST / 20 {
            spin_loop();
        }
        let begin = Instant::now();
        if signal == self.host() {
            self.word(SIGNAL).store(self.word, Ordering::Relaxed);
        } else {
            // SAFETY: the memory is there until the stream is idle, and the blocks read it as an atomic.
            unsafe { self.queues.control().write(signal, self.word)? };
        }
        self.seen(begin)
    }

    /// The time of a thousand claims, of all these blocks together.
    fn claims(&mut self, blocks: u32) -> Result<Duration, Error> {
        let (_, none) = self.alone(blocks, 0)?;
        let (_, some) = self.alone(blocks, CLAIMS)?;
        Ok(some.saturating_sub(none) * 1000 / (blocks * CLAIMS))
    }

    /// From the end of a kernel to the start of the next one in its stream.
    fn follow(&mut self) -> Result<Duration, Error> {
        let mut drained = |launches: u32, stay: u64| {
            let begin = Instant::now();
            for _ in 0..launches {
                self.word += 1;
                self.launch(Grid { blocks: 1, signal: 0, stay, claims: 0 })?;
            }
            // Of the last one.
            self.seen(begin)
        };
        let several = drained(FOLLOWING, STAY)?;
        let one = drained(1, u64::from(FOLLOWING) * STAY)?;
        Ok(several.saturating_sub(one) / (FOLLOWING - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use preempt_ptx_text::{blanked, functions};

    #[test]
    fn what_is_timed_is_an_entry() {
        let text = blanked(PTX);
        assert!(functions(&text)["preempt_costs"].is_entry);
    }
}
