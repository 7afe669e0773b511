//! Gates: blocks of one warp, each of which waits in a queue for a word of the host, tells other queues' blocks to leave, and
//! ends. What is queued behind it then starts without a call of the driver: 5 µs after the host's store, where a launch
//! takes 9 µs, and a stream that waits for a value as long as a launch (H200).
//!
//! A gate keeps its limit by the clock of the GPU. So whatever waits for it, a thread in the driver or a stream, waits for
//! that long at most, also while no thread of the host gets to run.
//!
//! It takes room for a block beside the blocks that run; without that it comes late, and what is behind it, too. An SM
//! divides its memory into cache and shared memory anew only while no block is there, and each kernel asks for a division. So a
//! gate has two entries, for SMs that have little shared memory, and for others.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;

use preempt_device::abi::{DeviceQueue, Signal};

use super::code::{Code, Function};
use super::context::{Context, call};
use super::driver::{FunctionAttribute, RawStream};
use super::kernels::CARVEOUT_DEFAULT;
use super::memory::{Fixed, Pinned};
use super::queues::{DeviceQueues, QUEUES};
use crate::device::{Gate, Properties};
use crate::error::Error;

/// Each thread reads a word of the gate's row in each round: the first one the ticket, the others the signal of a queue.
/// The signals are those of the round in which the ticket was there, so that no second read of the host's memory is
/// waited for. One that was stored in the meantime is missed, as is one that was never foreseen.
///
/// A signal in memory stays if it is newer, as its epoch is in its high bits.
const ENTRY: &str = "
.visible .entry NAME(
    .param .u64 row, .param .u64 queues, .param .u64 opened, .param .u64 ticket, .param .u64 limit)
{
    .reg .pred %p<6>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<20>;
    mov.u64 %rd1, %globaltimer;
    mov.u32 %r1, %tid.x;
    ld.param.u64 %rd2, [row];
    cvta.to.global.u64 %rd2, %rd2;
    mul.wide.u32 %rd3, %r1, 8;
    add.u64 %rd2, %rd2, %rd3;
    ld.param.u64 %rd4, [ticket];
    or.b64 %rd5, %rd4, 0x8000000000000000;
    ld.param.u64 %rd6, [limit];
LOOK:
    ld.relaxed.sys.global.u64 %rd7, [%rd2];
    mov.b64 {%r2, %r3}, %rd7;
    shfl.sync.idx.b32 %r2, %r2, 0, 31, -1;
    shfl.sync.idx.b32 %r3, %r3, 0, 31, -1;
    mov.b64 %rd8, {%r2, %r3};
    setp.eq.u64 %p1, %rd8, %rd4;
    @%p1 bra OPEN;
    setp.eq.u64 %p1, %rd8, %rd5;
    @%p1 bra END;
    mov.u64 %rd9, %globaltimer;
    sub.u64 %rd9, %rd9, %rd1;
    setp.lt.u64 %p2, %rd9, %rd6;
    vote.sync.any.pred %p2, %p2, -1;
    @%p2 bra LOOK;
    bra END;
OPEN:
    LET_THE_NEXT_START
    setp.eq.u32 %p3, %r1, 0;
    @%p3 bra TELL;
    sub.u32 %r4, %r1, 1;
    ld.param.u64 %rd10, [queues];
    cvta.to.global.u64 %rd10, %rd10;
    mul.wide.u32 %rd11, %r4, QUEUE_BYTES;
    add.u64 %rd10, %rd10, %rd11;
    setp.ne.u64 %p4, %rd7, 0;
    @%p4 red.relaxed.gpu.global.max.u64 [%rd10], %rd7;
    bra END;
TELL:
    // What the host wrote before the ticket is there for the grids behind this one.
    fence.acq_rel.sys;
    ld.param.u64 %rd12, [opened];
    cvta.to.global.u64 %rd12, %rd12;
    st.relaxed.gpu.global.u64 [%rd12], %rd4;
END:
    ret;
}
";

/// For SMs whose blocks have little shared memory, and for others.
const NAMES: [&str; 2] = ["preempt_gate_small", "preempt_gate_large"];

/// The part of an SM's memory that each is to have as shared memory, in percent. On an H200 with driver 580, a block of 32
/// threads that asks for 0 finds room on SMs with up to 32 KiB, and gives that to an SM without blocks. A block that asks for
/// nothing finds room on SMs with 32 KiB or more. With 100 it would, too, and give an SM without blocks all: grids that ask for
/// less would wait there until it leaves.
pub(super) const CARVEOUTS: [i32; 2] = [0, CARVEOUT_DEFAULT];

/// Bytes of shared memory of an SM that are little.
const LITTLE: u32 = 32 << 10;

const QUEUE_COUNT: usize = QUEUES.total() as usize;

/// Words of a row: the ticket, and a signal for each queue.
const THREADS: u32 = 32;
const ROW: usize = THREADS as usize;

const _: () = assert!(QUEUE_COUNT < ROW);

/// In the place of its ticket, this says that a gate is closed.
const CLOSED: u64 = 1 << 63;

/// The gates of a device: one for each queue.
#[derive(Debug)]
pub(super) struct Gates {
    rows: Pinned,
    /// For each queue, the ticket of the gate that was opened last. Blocks read it.
    opened: Fixed,
    queues: u64,
    functions: [Function; 2],
    /// For each queue, of the grids that are there: blocks, and the shared memory that an SM with them may have.
    beside: [AtomicU64; QUEUE_COUNT],
    /// Whether kernels leave room for gates.
    expected: AtomicBool,
    context: Arc<Context>,
    _code: Code,
}

impl Gates {
    /// The context is entered, and nothing runs.
    pub fn new(
        context: &Arc<Context>,
        queues: &DeviceQueues,
        properties: &Properties,
        zeroing: RawStream,
    ) -> Result<Gates, Error> {
        let starts_early = properties.compute_capability.is_some_and(|(major, _)| major >= 9);
        let code = Code::load(context, "preempt_gate", &text(starts_early))?;
        let carveout = FunctionAttribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        let [small, large] = NAMES.map(|name| code.function(name));
        let functions = [small?, large?];
        for (function, percent) in functions.iter().zip(CARVEOUTS) {
            function.set_attribute(context, carveout, percent)?;
        }
        Ok(Gates {
            functions,
            beside: [const { AtomicU64::new(0) }; QUEUE_COUNT],
            rows: Pinned::new(context, QUEUE_COUNT * ROW * size_of::<u64>())?,
            queues: queues.word(0).addr() as u64,
            expected: AtomicBool::new(false),
            context: context.clone(),
            _code: code,
            // Last, so that no error frees it before it is zeroed.
            opened: Fixed::new(context, QUEUE_COUNT * size_of::<u64>(), zeroing)?,
        })
    }

    /// Forgets all gates, in the order of `stream`: the next scheduler gives out the same tickets. Nothing of ours runs, and
    /// the context is entered.
    pub fn reset(&self, stream: RawStream) -> Result<(), Error> {
        self.expected.store(false, Ordering::Relaxed);
        for queue in 0..QUEUE_COUNT as u32 {
            (0..ROW).for_each(|index| self.word(queue, index).store(0, Ordering::Relaxed));
        }
        self.opened.zero(stream)
    }

    // Relaxed, here and below: a kernel that leaves no room, or leaves some in vain, takes a little longer.
    pub fn expect(&self) {
        self.expected.store(true, Ordering::Relaxed);
    }

    pub fn are_expected(&self) -> bool {
        self.expected.load(Ordering::Relaxed)
    }

    fn word(&self, queue: u32, index: usize) -> &AtomicU64 {
        let at = self.rows.at((queue as usize * ROW + index) * size_of::<u64>());
        // SAFETY: within the memory, aligned, and shared with the device through atomics only.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }

    /// The address of the word that has a gate's ticket once it was opened.
    fn opened(&self, queue: u32) -> u64 {
        self.opened.address() + u64::from(queue) * size_of::<u64>() as u64
    }

    /// Notes how many blocks a grid in a queue has, and the bytes of shared memory that an SM with them may have; of grids that
    /// are behind each other, the most of each.
    pub fn note(&self, queue: u32, blocks: u32, shared: u32, is_behind: bool) {
        let noted = &self.beside[queue as usize];
        // Relaxed: the scheduler's lock orders it and those that read it.
        let before = if is_behind { noted.load(Ordering::Relaxed) } else { 0 };
        noted.store(most(before, blocks, shared), Ordering::Relaxed);
    }

    /// The bytes of shared memory that SMs may have for the grids of a queue, as noted.
    pub fn shared_on_sm(&self, queue: u32) -> u32 {
        // The lower half.
        self.beside[queue as usize].load(Ordering::Relaxed) as u32
    }

    /// Whether the grid with most blocks in these queues has much shared memory on an SM.
    pub fn are_beside_large(&self, busy: impl Iterator<Item = u32>) -> bool {
        let beside = busy.map(|queue| self.beside[queue as usize].load(Ordering::Relaxed)).max();
        // The lower half is that of the grid with most blocks.
        beside.is_some_and(|most| most as u32 > LITTLE)
    }

    /// Puts a gate into the stream of its queue, beside the grids in these queues. The context is entered.
    pub fn put(
        &self,
        Gate { queue, ticket }: Gate,
        limit: Duration,
        (stream, busy): (RawStream, impl Iterator<Item = u32>),
    ) -> Result<*const AtomicU64, Error> {
        let is_large = self.are_beside_large(busy);
        // Those of an earlier gate.
        self.hint(queue, &[]);
        let row = self.rows.at(queue as usize * ROW * size_of::<u64>()) as u64;
        let limit = limit.as_nanos().try_into().unwrap_or(u64::MAX);
        let opened = self.opened(queue);
        let values = [row, self.queues, opened, ticket, limit];
        let mut parameters =
            values.each_ref().map(|value| ptr::from_ref(value).cast_mut().cast::<c_void>());
        let function = self.functions[usize::from(is_large)].0;
        let parameters = parameters.as_mut_ptr();
        // SAFETY: these are the entry's parameters, and the memory that they name lives as long as the device.
        unsafe {
            call!(
                self.context,
                cuLaunchKernel(
                    function,
                    1,
                    1,
                    1,
                    THREADS,
                    1,
                    1,
                    0,
                    stream,
                    parameters,
                    ptr::null_mut()
                )
            )?;
        }
        #[cfg(feature = "fault-injection")]
        super::faults::puts_gate();
        Ok(ptr::with_exposed_provenance(opened as usize))
    }

    pub fn open(&self, Gate { queue, ticket }: Gate) {
        // Release: what the application wrote to memory that the device reads comes before.
        self.word(queue, 0).store(ticket, Ordering::Release);
        // The store leaves the processor's buffer now, and not when there is time.
        fence(Ordering::SeqCst);
        #[cfg(feature = "fault-injection")]
        super::faults::opens_gate();
    }

    pub fn close(&self, Gate { queue, ticket }: Gate) {
        self.word(queue, 0).store(ticket | CLOSED, Ordering::Relaxed);
    }

    /// Sets what the gate of a queue tells others.
    pub fn hint(&self, gate: u32, words: &[(u32, Signal)]) {
        // Relaxed: signals are advice, each for itself.
        for queue in 0..QUEUE_COUNT as u32 {
            let signal = words.iter().find(|(of, _)| *of == queue).map(|(_, signal)| *signal);
            let bits = signal.map_or(0, Signal::to_bits);
            self.word(gate, 1 + queue as usize).store(bits, Ordering::Relaxed);
        }
    }
}

/// The gate's PTX. `starts_early` says whether the device starts grids while those before them end.
fn text(starts_early: bool) -> String {
    let (version, target, next) = match starts_early {
        true => ("7.8", "sm_90", "griddepcontrol.launch_dependents;"),
        false => ("7.0", "sm_80", ""),
    };
    let entry = ENTRY
        .replace("LET_THE_NEXT_START", next)
        .replace("QUEUE_BYTES", &size_of::<DeviceQueue>().to_string());
    let entries = NAMES.map(|name| entry.replace("NAME", name)).concat();
    format!(".version {version}\n.target {target}\n.address_size 64\n{entries}")
}

/// The blocks and the bytes of shared memory of a grid, in a word, or those of grids before it where they are more.
fn most(before: u64, blocks: u32, shared: u32) -> u64 {
    let (blocks, shared) = (blocks.max((before >> 32) as u32), shared.max(before as u32));
    u64::from(blocks) << 32 | u64::from(shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_grids_behind_each_other_the_most_of_each_is_noted() {
        let first = most(0, 7, 64);
        assert_eq!(first, 7 << 32 | 64);
        assert_eq!(most(first, 9, 32), 9 << 32 | 64);
        assert_eq!(most(first, 1, 100), 7 << 32 | 100);
    }
    use preempt_ptx_text::{blanked, functions};

    #[test]
    fn gates_are_entries() {
        for starts_early in [false, true] {
            let text = text(starts_early);
            assert!(NAMES.iter().all(|name| functions(&blanked(&text))[*name].is_entry));
            assert_eq!(text.contains("launch_dependents"), starts_early);
        }
    }
}
