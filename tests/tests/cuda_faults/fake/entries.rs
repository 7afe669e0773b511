//! The functions that the fake driver launches: the test kernels' entries, the probe, the proxy and gates.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use preempt_device::abi::{Cohort, DeviceQueue};

use super::kernels::FakeKernel;
use super::memory::{Kind, state};
use super::panics::{FakeFunction, FakeModule};
use super::{Code, FakeStream, NOT_FOUND, parts};

/// Proxies that were launched on an idle device, and those that followed another one.
static PROXIES: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// How many proxies were launched on an idle device, and how many followed another one.
pub fn proxies() -> [u64; 2] {
    PROXIES.each_ref().map(|count| count.load(Ordering::Relaxed))
}

/// The carrier of signals, as in the PTX in `proxy.rs`.
fn proxy(mailbox: usize, queues: usize, life: Duration, number: u32) {
    let start = Instant::now();
    // SAFETY: the mailbox has 34 words, which the check below finds to be there; all uses are atomic.
    let word = |index: usize| unsafe { &*((mailbox + 8 * index) as *const AtomicU64) };
    // SAFETY: as above.
    let half = |index: usize| unsafe { &*((mailbox + 8 * index) as *const AtomicU32) };
    half(32).store(number, Ordering::Relaxed);
    let mut last = [0; 24];
    let mut look = || {
        for (queue, last) in last.iter_mut().enumerate() {
            let new = word(queue).load(Ordering::Relaxed);
            if new != *last {
                let at = queues + queue * size_of::<DeviceQueue>();
                if state().check(&(at..at + 8), Some(Kind::Device), "the proxy's word") {
                    // SAFETY: it is there, and used as an atomic.
                    unsafe { &*(at as *const AtomicU64) }.store(new, Ordering::Relaxed);
                }
                *last = new;
            }
        }
    };
    loop {
        if !state().check(&(mailbox..mailbox + 34 * 8), Some(Kind::Pinned), "the proxy's mailbox") {
            return;
        }
        if word(31).load(Ordering::Relaxed) as u32 >= number {
            return;
        }
        look();
        if start.elapsed() > life {
            half(33).store(number, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            return look();
        }
        thread::sleep(Duration::from_micros(20));
    }
}

/// What waits for the host's word before a cohort, as the PTX in `gates.rs`.
fn gate(row: usize, queues: usize, opened: usize, ticket: u64, limit: Duration) {
    let start = Instant::now();
    // SAFETY: both have 32 words, or a queue's, which the checks below find to be there; all uses are atomic.
    let at = |address: usize| unsafe { &*(address as *const AtomicU64) };
    loop {
        if !state().check(&(row..row + 32 * 8), Some(Kind::Pinned), "a gate's row") {
            return;
        }
        let word = at(row).load(Ordering::Acquire);
        if word == ticket {
            break;
        }
        if word == ticket | 1 << 63 || start.elapsed() > limit {
            return;
        }
        thread::sleep(Duration::from_micros(20));
    }
    for queue in 0..31 {
        let word = at(row + 8 + 8 * queue).load(Ordering::Relaxed);
        let signal = queues + queue * size_of::<DeviceQueue>();
        if word != 0 && state().check(&(signal..signal + 8), Some(Kind::Device), "a gate's signal")
        {
            at(signal).fetch_max(word, Ordering::Relaxed);
        }
    }
    if state().check(&(opened..opened + 8), Some(Kind::Device), "a gate's ticket") {
        at(opened).store(ticket, Ordering::Relaxed);
    }
}

fn probe(words: usize, sms: u32, own: &[u32]) {
    thread::sleep(Duration::from_micros(50));
    let bytes = 8 + 4 * sms as usize;
    if state().check(&(words..words + bytes), Some(Kind::Pinned), "the probe's words") {
        let seen = own.iter().map(|&sm| (2 + sm as usize, 1));
        for (index, value) in [(0, sms), (1, 0)].into_iter().chain(seen) {
            // SAFETY: it is there; the host reads it when this is over.
            unsafe { ((words + 4 * index) as *mut u32).write_volatile(value) };
        }
    }
}

/// What is timed when a device is opened, as the PTX in `costs.rs`.
fn costs(signal: usize, post: usize, word: u64) {
    let start = Instant::now();
    // SAFETY: the checks below find them to be there; all uses are atomic.
    let at = |address: usize| unsafe { &*(address as *const AtomicU64) };
    while signal != 0 && start.elapsed() < Duration::from_millis(100) {
        if !state().check(&(signal..signal + 8), None, "the word of what is timed") {
            return;
        }
        if at(signal).load(Ordering::Relaxed) == word {
            break;
        }
        thread::sleep(Duration::from_micros(20));
    }
    if state().check(&(post..post + 8), Some(Kind::Pinned), "the post of what is timed") {
        at(post).store(word, Ordering::Relaxed);
    }
}

/// A kernel of this driver with its arguments.
pub enum Entry {
    Probe { words: usize, sms: u32 },
    Costs { signal: usize, post: usize, word: u64 },
    Proxy { mailbox: usize, queues: usize, life: Duration, number: u32 },
    Gate { row: usize, queues: usize, opened: usize, ticket: u64, limit: Duration },
    Cohort(FakeKernel, Together, &'static FakeModule),
    Plain(FakeKernel),
    Panics(Box<dyn FnOnce() + Send>),
}

impl Entry {
    /// # Safety
    ///
    /// The pointers are those of a launch of this function.
    pub unsafe fn new(function: sys::CUfunction, parameters: *mut *mut c_void) -> Option<Entry> {
        // SAFETY: the caller's promise.
        let function = unsafe { &*function.cast::<FakeFunction>() };
        let name = function.name.as_str();
        // SAFETY: the entry has a parameter of this type there.
        let word = |at: usize| unsafe { *(*parameters.add(at)).cast::<usize>() };
        // SAFETY: as above.
        let number = |at: usize| unsafe { *(*parameters.add(at)).cast::<u32>() };
        match name {
            "preempt_probe" => return Some(Entry::Probe { words: word(0), sms: number(1) }),
            "preempt_costs" => {
                return Some(Entry::Costs { signal: word(1), post: word(2), word: word(3) as u64 });
            }
            "preempt_proxy" | "preempt_proxy_small" | "preempt_proxy_large" => {
                let (mailbox, queues, number) = (word(0), word(1), number(5));
                let life = Duration::from_nanos(word(3) as u64);
                return Some(Entry::Proxy { mailbox, queues, life, number });
            }
            "preempt_gate_small" | "preempt_gate_large" => {
                let (row, queues, opened) = (word(0), word(1), word(2));
                let (ticket, limit) = (word(3) as u64, Duration::from_nanos(word(4) as u64));
                return Some(Entry::Gate { row, queues, opened, ticket, limit });
            }
            _ => {}
        }
        if let Some(foreign) = name.strip_prefix("foreign_") {
            let preemptible =
                foreign.strip_suffix("__preemptible").or(foreign.strip_suffix("__yielding"));
            let kernel = match preemptible.unwrap_or(foreign) {
                "late_1d" | "long_1d" => "paced_1d",
                kernel => kernel,
            };
            let kernel = FakeKernel::new(kernel, |at, _| word(at))?;
            // Behind the parameters of the kernel: a time, if it has one, and two slices.
            let at =
                if matches!(kernel, FakeKernel::Count { nanoseconds: 1.., .. }) { 5 } else { 4 };
            return Some(match preemptible {
                // SAFETY: the entry has its cohort there.
                Some(_) => Entry::Cohort(
                    kernel,
                    Together(unsafe { *(*parameters.add(at)).cast::<Cohort>() }),
                    function.module(),
                ),
                None => Entry::Plain(kernel),
            });
        }
        let plain = name.strip_suffix("__plain");
        // SAFETY: the first parameter of a preemptible entry.
        let cohort = plain.is_none().then(|| unsafe { *(*parameters).cast::<Cohort>() });
        let first = usize::from(cohort.is_some());
        if plain.unwrap_or(name) == "panics" {
            return Some(Entry::Panics(Box::new(function.panic(number(first), cohort.as_ref()))));
        }
        let kernel = FakeKernel::new(plain.unwrap_or(name), |at, is_word| match is_word {
            true => word(first + at),
            false => number(first + at) as usize,
        });
        let Some(kernel) = kernel else {
            state().violation(format!("the fake driver has no kernel `{name}`"));
            return None;
        };
        Some(match cohort {
            Some(cohort) => Entry::Cohort(kernel, Together(cohort), function.module()),
            None => Entry::Plain(kernel),
        })
    }

    /// Runs it in a context.
    pub fn run(self, blocks: u32, threads: u32, context: usize) {
        let (Entry::Cohort(kernel, ..) | Entry::Plain(kernel)) = &self else {
            return match self {
                Entry::Probe { words, sms } => probe(words, sms, &parts::sms(context)),
                Entry::Costs { signal, post, word } => costs(signal, post, word),
                Entry::Proxy { mailbox, queues, life, number } => {
                    proxy(mailbox, queues, life, number);
                }
                Entry::Gate { row, queues, opened, ticket, limit } => {
                    gate(row, queues, opened, ticket, limit);
                }
                Entry::Panics(panic) => panic(),
                Entry::Cohort(..) | Entry::Plain(_) => {}
            };
        };
        let is_there = |range| state().check(&range, Some(Kind::Device), "a kernel's argument");
        if !kernel.ranges().into_iter().all(is_there) {
            return;
        }
        match &self {
            Entry::Cohort(kernel, cohort, module) => {
                kernel.run_cohort(&cohort.get(), threads, &module.sms(context));
            }
            _ => kernel.run_plain(blocks, threads),
        }
    }
}

/// # Safety
///
/// The pointers are those of a launch of this function.
pub unsafe fn launch(
    function: sys::CUfunction,
    blocks: [u32; 3],
    threads: u32,
    stream: sys::CUstream,
    parameters: *mut *mut c_void,
) -> Code {
    // SAFETY: the caller's promise.
    let Some(entry) = (unsafe { Entry::new(function, parameters) }) else { return NOT_FOUND };
    // SAFETY: as above.
    let stream = unsafe { &*stream.cast::<FakeStream>() };
    if matches!(entry, Entry::Proxy { .. }) {
        // A proxy that follows another one is a single block.
        let follows = blocks == [1; 3];
        PROXIES[usize::from(follows)].fetch_add(1, Ordering::Relaxed);
    }
    let context = stream.context;
    // SAFETY: as above.
    unsafe { &*function.cast::<FakeFunction>() }.module().check(context, "a launch");
    stream.launch(move || entry.run(blocks.iter().product(), threads, context))
}

pub struct Together(Cohort);

// SAFETY: the pointers are to words that all threads share through atomics.
unsafe impl Send for Together {}

impl Together {
    fn get(&self) -> Cohort {
        self.0
    }
}
