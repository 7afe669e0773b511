//! Signals by a proxy (EffiSha section 4.1): the host writes to its own memory, and a resident warp on the GPU, the
//! proxy, carries each word to the memory that blocks read.
//!
//! The first one takes the place of a block on the last SM, which the engine knows of
//! ([`Occupancy`](crate::device::Occupancy)), and those that follow it as much room anywhere. A proxy is resident only while
//! the scheduler has something in flight. The first one is launched before a kernel, which waits until the proxy has its
//! place, and the last one ends when the scheduler is idle.
//!
//! A proxy leaves by itself after [`LIFE`], by the clock of the GPU. So a thread in the driver that waits for everything
//! on the device waits for a proxy that long at most, also while it has a lock of the driver that the scheduler waits for.
//! The next turn of the core in which nothing happens, or a thread that waits for the device, launches the next one, as long as
//! a place is kept free.
//!
//! No word is lost when a proxy leaves: it says so in the mailbox and looks at all words once more, and the host writes a
//! word and then looks whether the proxy has left (`carried.rs`). With a fence between the two on either side, one of them
//! sees the other.

mod carried;

use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use preempt_device::abi::{DeviceQueue, Signal};

use super::code::{Code, Function};
use super::context::{Context, call};
use super::driver::{FunctionAttribute, RawStream};
use super::gates::CARVEOUTS;
use super::lock;
use super::memory::{Fixed, Pinned};
use super::queues::{DeviceQueues, QUEUES};
use super::streams::{BlockPriority, Stream};
use crate::device::SignalPath;
use crate::error::Error;

/// One warp, in which each thread carries the word of one queue. The last thread reads which proxy has to end, and
/// announces this one, and its leaving. A proxy that has to end carries nothing more. Of many blocks, the first on the SM
/// gets the place.
const ENTRY: &str = "
.visible .entry NAME(
    .param .u64 mailbox, .param .u64 queues, .param .u64 place, .param .u64 life, .param .u32 sm,
    .param .u32 number)
{
    .reg .pred %p<7>;
    .reg .b32 %r<12>;
    .reg .b64 %rd<16>;
    mov.u64 %rd10, %globaltimer;
    ld.param.u32 %r1, [sm];
    mov.u32 %r2, %smid;
    setp.ne.u32 %p1, %r1, %r2;
    setp.ne.and.u32 %p1, %r1, ANY_SM, %p1;
    @%p1 bra END;
    ld.param.u32 %r3, [number];
    mov.u32 %r4, %tid.x;
    mov.u32 %r5, 0;
    setp.ne.u32 %p2, %r4, 0;
    @%p2 bra SHARE;
    ld.param.u64 %rd1, [place];
    cvta.to.global.u64 %rd1, %rd1;
    atom.global.max.u32 %r5, [%rd1], %r3;
SHARE:
    shfl.sync.idx.b32 %r6, %r5, 0, 31, -1;
    setp.ge.u32 %p3, %r6, %r3;
    @%p3 bra END;
    ld.param.u64 %rd2, [mailbox];
    cvta.to.global.u64 %rd2, %rd2;
    mul.wide.u32 %rd3, %r4, 8;
    add.u64 %rd4, %rd2, %rd3;
    ld.param.u64 %rd5, [queues];
    cvta.to.global.u64 %rd5, %rd5;
    mul.wide.u32 %rd6, %r4, QUEUE_BYTES;
    add.u64 %rd7, %rd5, %rd6;
    mov.u64 %rd8, 0;
    ld.param.u64 %rd11, [life];
    setp.lt.u32 %p4, %r4, QUEUE_COUNT;
    setp.ne.u32 %p5, %r4, 31;
    @%p5 bra LOOK;
    st.relaxed.sys.global.u32 [%rd4+8], %r3;
LOOK:
    ld.relaxed.sys.global.u64 %rd9, [%rd4];
    mov.u64 %rd12, %globaltimer;
    // When the word comes, for `DeviceQueue::arrived`: the time in the low half, and the word's epoch.
    cvt.u32.u64 %r9, %rd12;
    shr.u64 %rd13, %rd9, EPOCH_SHIFT;
    cvt.u32.u64 %r10, %rd13;
    mov.b64 %rd13, {%r9, %r10};
    sub.u64 %rd12, %rd12, %rd10;
    cvt.u32.u64 %r7, %rd9;
    shfl.sync.idx.b32 %r8, %r7, 31, 31, -1;
    setp.ge.u32 %p5, %r8, %r3;
    @%p5 bra END;
    setp.ne.and.u64 %p5, %rd9, %rd8, %p4;
    @%p5 st.relaxed.sys.global.u64 [%rd7+ARRIVED], %rd13;
    @%p5 st.relaxed.sys.global.u64 [%rd7], %rd9;
    mov.u64 %rd8, %rd9;
    setp.lt.u64 %p5, %rd12, %rd11;
    vote.sync.any.pred %p5, %p5, -1;
    @%p5 bra LOOK;
    setp.eq.u32 %p6, %r4, 31;
    @%p6 st.relaxed.sys.global.u32 [%rd4+16], %r3;
    // The last thread's store comes before each thread's last look, and no later than that for the host.
    fence.sc.sys;
    bar.warp.sync -1;
    fence.sc.sys;
    ld.relaxed.sys.global.u64 %rd9, [%rd4];
    mov.u64 %rd12, %globaltimer;
    cvt.u32.u64 %r9, %rd12;
    shr.u64 %rd13, %rd9, EPOCH_SHIFT;
    cvt.u32.u64 %r10, %rd13;
    mov.b64 %rd13, {%r9, %r10};
    setp.ne.and.u64 %p5, %rd9, %rd8, %p4;
    @%p5 st.relaxed.sys.global.u64 [%rd7+ARRIVED], %rd13;
    @%p5 st.relaxed.sys.global.u64 [%rd7], %rd9;
END:
    ret;
}
";

/// The first proxy on an idle device, and those that follow it: for SMs whose blocks have little shared memory, and for
/// others, as for gates.
const FIRST: &str = "preempt_proxy";
const NEXT: [&str; 2] = ["preempt_proxy_small", "preempt_proxy_large"];

/// In the place of the number of an SM: the proxy stays where it lies.
const ANY_SM: u32 = u32::MAX;

const QUEUE_COUNT: usize = QUEUES.total() as usize;

/// Indices into the mailbox: the number of the last proxy that has to end, that of the resident proxy, and that of the last
/// proxy to leave by itself.
const END: usize = 31;
const THERE: usize = 32;
const LEFT: usize = 33;
const WORDS: usize = 34;

const _: () = assert!(QUEUE_COUNT <= END);

/// Threads of the proxy's block; a block's warp has at most `REGISTERS` registers for each.
pub(super) const THREADS: u32 = 32;
pub(super) const REGISTERS: u32 = 32;

/// Time after which a proxy leaves by itself. Other code's calls of the driver that wait for the device may take so
/// much longer. In return, a four-hundredth of the time is without a proxy: until the next one has its place, signals are stream
/// writes, for 10 µs (H200).
pub(super) const LIFE: Duration = Duration::from_millis(4);

/// The longest that a kernel waits for the proxy where signals have to go by it, and that its end is waited for. Other
/// blocks may have its place; signals then take the other path.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);

/// The longest where they may go by it: ten times what the start takes on an idle GPU (H200).
pub(super) const START: Duration = Duration::from_micros(100);

/// The proxy of a device.
#[derive(Debug)]
pub(super) struct Proxy {
    mailbox: Pinned,
    /// The number of the proxy that has the place.
    place: Fixed,
    queues: u64,
    sms: u32,
    /// Blocks to launch, so that one lies on the last SM of an idle device.
    blocks: u32,
    first: Function,
    next: [Function; 2],
    stream: Stream,
    context: Arc<Context>,
    /// How the scheduler wants signals to go. Apart from the state, whose lock is held while a proxy starts and ends.
    path: Mutex<SignalPath>,
    state: Mutex<State>,
    /// The number of the proxy that another one follows; 0 if none does. Apart from the state, for threads that look often.
    followed: AtomicU32,
    /// The number of the last proxy that is known to be over, while the next one is launched behind it.
    over: AtomicU32,
    _code: Code,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the proxy launched last, or being launched.
    number: u32,
    /// Set while that proxy has not been told to end, and was not seen to have left.
    live: bool,
    /// Set while that proxy has its place, and no stream write was on its way since.
    there: bool,
    /// Set while a place is kept free for the next one.
    kept: bool,
    /// Set while a thread launches the next one, without the lock.
    renewing: bool,
    /// Set while a proxy that was told to end, or has left, may still carry a word.
    ending: bool,
    /// Threads in calls of the driver that may wait for kernels that run: no proxy is launched meanwhile.
    holds: u32,
}

/// Keeps the proxy from being launched while it lives.
#[derive(Debug)]
pub(super) struct Held<'a>(&'a Proxy);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).holds -= 1;
    }
}

impl Proxy {
    /// The context is entered, and nothing runs.
    pub fn new(
        context: &Arc<Context>,
        queues: &DeviceQueues,
        (sms, blocks_per_sm): (u32, u32),
        zeroing: RawStream,
    ) -> Result<Proxy, Error> {
        let code = Code::load(context, FIRST, &text())?;
        let first = code.function(FIRST)?;
        let [small, large] = NEXT.map(|name| code.function(name));
        let next = [small?, large?];
        let carveout = FunctionAttribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        for (function, percent) in next.iter().zip(CARVEOUTS) {
            function.set_attribute(context, carveout, percent)?;
        }
        // A proxy that waits for room is behind all that waits for it.
        let stream = Stream::new(context, BlockPriority::Least)?;
        Ok(Proxy {
            mailbox: Pinned::new(context, WORDS * size_of::<u64>())?,
            // Last, so that no error frees it before it is zeroed.
            place: Fixed::new(context, size_of::<u32>(), zeroing)?,
            queues: queues.word(0).addr() as u64,
            sms,
            blocks: sms * blocks_per_sm,
            first,
            next,
            stream,
            context: context.clone(),
            path: Mutex::default(),
            state: Mutex::default(),
            followed: AtomicU32::new(0),
            over: AtomicU32::new(0),
            _code: code,
        })
    }

    /// How signals go from now on. Nothing of ours runs.
    pub fn set_path(&self, path: SignalPath) {
        *lock(&self.path) = path;
    }

    /// Keeps every proxy from carrying a word of the previous scheduler, because the next one counts epochs from the
    /// start. The context is entered.
    pub fn reset(&self) -> Result<(), Error> {
        self.rest();
        // Relaxed: a late proxy reads the old words or these zeros; the wait below is for a proxy that reads now.
        (0..QUEUE_COUNT).for_each(|queue| self.word(queue).store(0, Ordering::Relaxed));
        // A proxy that never found its place may wait where it is; later it would carry these zeros.
        self.stream.settle(PATIENCE).map(drop)
    }

    /// SMs of the device; the first proxy is on the last.
    pub fn sms(&self) -> u32 {
        self.sms
    }

    pub fn path(&self) -> SignalPath {
        *lock(&self.path)
    }

    /// Whether the proxy is on the GPU, or on its way, or comes again.
    pub fn is_live(&self) -> bool {
        let state = lock(&self.state);
        state.live || state.kept
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: within the memory, aligned, and shared with the device through atomics only.
        unsafe { AtomicU64::from_ptr(self.mailbox.at(index * size_of::<u64>()).cast()) }
    }

    /// A number that the device writes to the first half of a word.
    fn number(&self, index: usize) -> u32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.mailbox.at(index * size_of::<u64>()).cast()) }
            .load(Ordering::Relaxed)
    }

    /// Has no proxy launched until the guard is dropped. A proxy that runs stays.
    pub fn hold(&self) -> Held<'_> {
        lock(&self.state).holds += 1;
        Held(self)
    }

    /// Waits until the proxy has its place, before a kernel is launched whose blocks leave it that. The context is entered.
    pub fn await_place(&self, patience: Duration) -> Result<(), Error> {
        let mut state = lock(&self.state);
        // Without a proxy, signals are stream writes.
        if state.live || state.holds > 0 {
            return Ok(());
        }
        state.number += 1;
        self.launch(state.number, self.first, (self.blocks, self.sms - 1))?;
        (state.live, state.there) = (true, false);
        let start = Instant::now();
        while self.number(THERE) != state.number {
            if start.elapsed() > patience {
                // The proxy may come later; until then signals are stream writes.
                return Ok(());
            }
            std::hint::spin_loop();
        }
        // Those before it in its stream are over.
        (state.there, state.ending) = (true, false);
        self.keep(&mut state, true);
        Ok(())
    }

    /// Launches the proxy of this number: so many blocks, one of which may stay on this SM.
    fn launch(
        &self,
        number: u32,
        function: Function,
        (blocks, sm): (u32, u32),
    ) -> Result<(), Error> {
        let life = LIFE.as_nanos() as u64;
        let words = [self.mailbox.at(0) as u64, self.queues, self.place.address(), life];
        let numbers = [sm, number];
        let of_word = |at: &u64| ptr::from_ref(at).cast_mut().cast::<c_void>();
        let of_number = |at: &u32| ptr::from_ref(at).cast_mut().cast::<c_void>();
        let words = words.each_ref().map(of_word);
        let numbers = numbers.each_ref().map(of_number);
        let mut parameters = [&words[..], &numbers[..]].concat();
        let (function, raw) = (function.0, self.stream.raw());
        let parameters = parameters.as_mut_ptr();
        // SAFETY: these are the entry's parameters, and the memory that they name lives as long as the device.
        unsafe {
            call!(
                self.context,
                cuLaunchKernel(
                    function,
                    blocks,
                    1,
                    1,
                    THREADS,
                    1,
                    1,
                    0,
                    raw,
                    parameters,
                    ptr::null_mut()
                )
            )
        }
    }

    /// Whether the last proxy has left and another one may follow it: two reads, for threads that look often.
    pub fn is_to_follow(&self) -> bool {
        // Relaxed: a thread that misses a change looks again.
        let last = self.followed.load(Ordering::Relaxed);
        last != 0 && self.number(LEFT) == last
    }

    /// Launches the next proxy if the last one has left, a place is kept free, and nothing of ours holds it off. It may lie
    /// anywhere: blocks of others may have come to the last SM meanwhile, and then as much room is on another one. Until it
    /// has room, signals are stream writes. `enter` enters the context; `are_large` says whether the blocks on an SM have much
    /// shared memory.
    pub fn renew<E>(
        &self,
        enter: impl FnOnce() -> Result<E, Error>,
        are_large: impl FnOnce() -> bool,
    ) -> Result<(), Error> {
        let (last, number) = {
            // While a thread has the lock, there is another time.
            let Some(mut state) = self.try_lock() else { return Ok(()) };
            self.see_leaving(&mut state);
            if !state.kept || state.live || state.renewing || state.holds > 0 {
                return Ok(());
            }
            state.renewing = true;
            state.number += 1;
            // Relaxed: it changes with the lock alone.
            (self.followed.load(Ordering::Relaxed), state.number)
        };
        // Without the lock, because a launch may wait for a lock of the driver, and signals would wait with it.
        let launched = enter().and_then(|_entered| {
            // The last one has left, and is over in a moment.
            let is_idle = self.stream.is_idle()?;
            if is_idle {
                // Relaxed: a thread that misses it waits a little longer.
                self.over.store(last, Ordering::Relaxed);
                self.launch(number, self.next[usize::from(are_large())], (1, ANY_SM))?;
            }
            Ok(is_idle)
        });
        let mut state = lock(&self.state);
        state.renewing = false;
        match launched {
            Ok(true) if state.kept => {
                (state.live, state.there, state.ending) = (true, false, false);
                self.keep(&mut state, true);
            }
            // No proxy is to be there any more.
            Ok(true) => {
                state.ending = true;
                self.tell_to_end(number);
            }
            Ok(false) => {}
            Err(_) => self.keep(&mut state, false),
        }
        launched.map(drop)
    }

    /// Whether another proxy is to follow the last one.
    fn keep(&self, state: &mut State, kept: bool) {
        state.kept = kept;
        self.followed.store(if kept { state.number } else { 0 }, Ordering::Relaxed);
    }

    /// Notes that the proxy has left by itself, if it has.
    fn see_leaving(&self, state: &mut State) {
        if state.live && self.number(LEFT) == state.number {
            (state.live, state.there, state.ending) = (false, false, true);
        }
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Carries a word to a queue, if the proxy is there. `are_written` says whether all stream writes of words are done: a
    /// proxy that has come meanwhile carries none before, which an older one could then overwrite.
    pub fn signal(&self, queue: u32, signal: Signal, are_written: impl FnOnce() -> bool) -> bool {
        if self.path() == SignalPath::StreamWrite {
            return false;
        }
        let mut state = lock(&self.state);
        // Always written, so that the proxy never finds a word older than the blocks' own.
        let put = || self.word(queue as usize).store(signal.to_bits(), Ordering::Relaxed);
        if !carried::carries(put, || self.number(LEFT), state.number) {
            self.see_leaving(&mut state);
        }
        if state.live && !state.there && self.number(THERE) == state.number {
            state.there = are_written();
        }
        state.live && state.there
    }

    /// Ends the proxy: nothing is in flight.
    pub fn rest(&self) {
        self.end(&mut lock(&self.state));
    }

    /// Ends the proxy while something is in flight, and waits for its end. Writes the last words that it was given, because
    /// it reads them together with the word that ends it and may not have carried each. The context is entered.
    pub fn leave(&self, mut write: impl FnMut(u32, Signal)) {
        let mut state = lock(&self.state);
        let was_live = state.live;
        self.end(&mut state);
        if !was_live {
            return;
        }
        // A proxy without its place carries nothing yet.
        let patience = if state.there { PATIENCE } else { START };
        self.settle(&mut state, patience);
        for queue in 0..QUEUE_COUNT {
            // Relaxed: the words are written by the thread that signals, under the lock. It is kept until they are on their
            // way, because a newer word goes by a stream write behind them.
            match self.word(queue).load(Ordering::Relaxed) {
                0 => {}
                word => write(queue as u32, Signal::from_bits(word)),
            }
        }
    }

    /// Waits until a proxy that was told to end carries nothing any more: its late store would put an older word in the
    /// place of one by a stream write. The context is entered.
    pub fn await_end(&self) {
        let mut state = lock(&self.state);
        if !state.ending {
            return;
        }
        let last = state.number - u32::from(state.renewing);
        let start = Instant::now();
        let is_over = || {
            self.over.load(Ordering::Relaxed) == last || matches!(self.stream.is_idle(), Ok(true))
        };
        while !is_over() && start.elapsed() < START {
            std::hint::spin_loop();
        }
        state.ending = false;
    }

    fn settle(&self, state: &mut State, patience: Duration) {
        let _ = self.stream.settle(patience);
        state.ending = false;
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    fn end(&self, state: &mut State) {
        self.keep(state, false);
        if std::mem::take(&mut state.live) {
            state.ending = true;
            self.tell_to_end(state.number);
        }
    }

    /// Tells the proxies up to this number to end. The greatest number stays, because a thread that launches a proxy without
    /// the lock may come late with a smaller one.
    fn tell_to_end(&self, number: u32) {
        // Relaxed: the proxy reads nothing else on its account.
        self.word(END).fetch_max(number.into(), Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.rest();
        // The proxy reads the mailbox until it has ended.
        let entered = self.context.enter();
        if !matches!(entered.and_then(|_entered| self.stream.settle(PATIENCE)), Ok(true)) {
            self.context.abandon();
        }
    }
}

/// The proxies' PTX.
fn text() -> String {
    let entry = ENTRY
        .replace("QUEUE_BYTES", &size_of::<DeviceQueue>().to_string())
        .replace("ARRIVED", &offset_of!(DeviceQueue, arrived).to_string())
        .replace("EPOCH_SHIFT", &Signal::EPOCH_SHIFT.to_string())
        .replace("QUEUE_COUNT", &QUEUE_COUNT.to_string())
        .replace("ANY_SM", &ANY_SM.to_string());
    let entries = [FIRST, NEXT[0], NEXT[1]].map(|name| entry.replace("NAME", name)).concat();
    format!(".version 7.0\n.target sm_80\n.address_size 64\n{entries}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use preempt_ptx_text::{blanked, functions};

    #[test]
    fn proxies_are_entries() {
        let text = blanked(&text());
        assert!([FIRST, NEXT[0], NEXT[1]].iter().all(|name| functions(&text)[*name].is_entry));
    }
}
