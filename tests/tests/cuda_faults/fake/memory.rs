//! Allocations on the fake driver, and their uses.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ops::Range;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use preempt::faults;

/// The contents of freed host memory that shares pages with other memory; a write there is found at the end.
const FREED: u8 = 0xDD;
/// The contents of memory that was just allocated.
pub const FRESH: u8 = 0xA5;
/// Of an allocation, as by CUDA.
const ALIGNMENT: usize = 512;
/// Bytes at both ends of larger allocations that are filled.
const FILLED: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Device,
    Pinned,
}

pub struct Memory {
    pub bytes: usize,
    kind: Kind,
    /// The context that was current.
    context: usize,
    /// The pool that it is of, or 0.
    pool: usize,
    is_live: bool,
    /// Whether it is of a file of the system's, so that pages of it that are given back keep what they had.
    is_file: bool,
}

/// A queued access that is not over.
pub struct Access {
    pub id: u64,
    stream: usize,
    /// The stream's context.
    context: usize,
    range: Range<usize>,
    writes: bool,
}

#[derive(Default)]
pub struct State {
    /// Allocations by address. Addresses are never reused, so that late accesses are found.
    pub memory: BTreeMap<usize, Memory>,
    pub accesses: Vec<Access>,
    last: u64,
    violations: Vec<String>,
}

static STATE: Mutex<State> = Mutex::new(State {
    memory: BTreeMap::new(),
    accesses: Vec::new(),
    last: 0,
    violations: Vec::new(),
});

pub fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Violations since the last call, which a GPU would not report.
pub fn violations() -> Vec<String> {
    let mut state = state();
    let mut found = std::mem::take(&mut state.violations);
    for (start, memory) in &state.memory {
        if memory.kind == Kind::Pinned && !memory.is_live {
            let is_freed = |range: Range<usize>| {
                // SAFETY: it stays allocated, and nothing is to write there any more.
                let bytes =
                    unsafe { std::slice::from_raw_parts(range.start as *const u8, range.len()) };
                bytes.iter().all(|&byte| byte == FREED)
            };
            if !around_pages(*start..*start + memory.bytes).into_iter().all(is_freed) {
                found.push(format!("{} freed bytes of the host were written", memory.bytes));
            }
        }
    }
    found
}

/// Bytes of all allocations of a pool.
pub fn bytes_of(pool: usize) -> usize {
    let state = state();
    let of_pool = state.memory.values().filter(|memory| memory.is_live && memory.pool == pool);
    of_pool.map(|memory| memory.bytes).sum()
}

/// A pool of a device's memory. It stays, so that what is left of it when it is destroyed is known.
pub struct FakePool {
    pub device: c_int,
    /// Bytes that it has at most.
    limit: usize,
}

impl FakePool {
    pub fn create(properties: &sys::CUmemPoolProps) -> *mut FakePool {
        let limit = Some(properties.maxSize).filter(|&limit| limit > 0).unwrap_or(super::MEMORY);
        Box::into_raw(Box::new(FakePool { device: properties.location.id, limit }))
    }

    /// Memory of this pool; `None` if there is not as much.
    pub fn allocate(&self, bytes: usize) -> Option<usize> {
        let pool = ptr::from_ref(self).addr();
        let fits = bytes_of(pool).checked_add(bytes).is_some_and(|all| all <= self.limit);
        let start = fits.then(|| allocate(bytes, Kind::Device))?;
        if let Some(memory) = state().memory.get_mut(&start) {
            memory.pool = pool;
        }
        Some(start)
    }
}

/// The number of allocations, and of handles and addresses of shared ones.
pub fn live() -> usize {
    state().memory.values().filter(|memory| memory.is_live).count() + super::shares::live()
}

/// The number of allocations, once it is at most `before` or a while has passed: queued work may free some yet.
pub fn live_after(before: usize) -> usize {
    let begin = Instant::now();
    while live() > before && begin.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(1));
    }
    live()
}

impl State {
    pub fn violation(&mut self, what: String) {
        if self.violations.len() < 20 {
            self.violations.push(what);
        }
    }

    /// The kind of the allocation that contains all these bytes, if there is one.
    pub fn holds(&self, range: &Range<usize>) -> Option<Kind> {
        let (start, memory) = self.memory.range(..=range.start).next_back()?;
        (memory.is_live && range.end <= start + memory.bytes).then_some(memory.kind)
    }

    /// Whether this is memory of a device that is not this context's, and a context is lost. A GPU runs nothing more of
    /// a lost context, and none can wait for it: what it has queued does not keep others from freeing their memory.
    pub fn is_over(&self, context: usize, address: usize) -> bool {
        let memory = self.memory.range(..=address).next_back();
        let is_far = memory.is_some_and(|(_, memory)| {
            memory.kind == Kind::Device && ![0, context].contains(&memory.context)
        });
        is_far && has_lost_context()
    }

    /// The context in which the memory at an address was allocated.
    pub fn context(&self, address: usize) -> Option<usize> {
        self.memory.range(..=address).next_back().map(|(_, memory)| memory.context)
    }

    pub fn check(&mut self, range: &Range<usize>, kind: Option<Kind>, what: &str) -> bool {
        let found = self.holds(range);
        let is_right = found.is_some() && (kind.is_none() || found == kind);
        if !is_right {
            self.violation(format!("{what}: {range:x?} is {found:?}, not {kind:?}"));
        }
        is_right
    }

    /// Queues accesses. An access that another stream may make at the same time is a violation.
    pub fn queue(
        &mut self,
        (stream, context): (usize, usize),
        uses: &[(Range<usize>, bool)],
        what: &str,
    ) -> u64 {
        self.last += 1;
        let id = self.last;
        for (range, writes) in uses {
            let races = |other: &Access| {
                let overlap = other.range.start < range.end && range.start < other.range.end;
                other.stream != stream && overlap && (other.writes || *writes)
            };
            let is_over = |other: &Access| self.is_over(other.context, other.range.start);
            if self.accesses.iter().any(|other| races(other) && !is_over(other)) {
                self.violation(format!("{what}: another stream is about to use {range:x?}"));
            }
            self.accesses.push(Access {
                id,
                stream,
                context,
                range: range.clone(),
                writes: *writes,
            });
        }
        id
    }

    /// Copies memory that the caller has looked at. Where there are zeros alone, whole pages are given back instead: most long copies
    /// zero device memory that is not touched otherwise until it is used.
    pub fn copy(&self, to: usize, from: usize, bytes: usize) {
        let target = to..to + bytes;
        // SAFETY: the caller has looked.
        let source = || unsafe { std::slice::from_raw_parts(from as *const u8, bytes) };
        let whole = pages(&target);
        let is_file =
            || self.memory.range(..=to).next_back().is_some_and(|(_, memory)| memory.is_file);
        if whole.is_empty() || !is_zero(source()) || is_file() {
            // SAFETY: both are allocated, and do not overlap.
            return unsafe { ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
        }
        for end in around_pages(target) {
            // SAFETY: within what is written.
            unsafe { ptr::write_bytes(end.start as *mut u8, 0, end.len()) };
        }
        // SAFETY: whole pages of what is written, so nothing else is in them. The allocator has them from no file, so they are zero
        // when they are touched next.
        unsafe {
            rustix::mm::madvise(
                whole.start as *mut _,
                whole.len(),
                rustix::mm::Advice::LinuxDontNeed,
            )
        }
        .expect("pages of this process");
    }
}

/// Whether a call has told the application that a context is lost. This driver works on.
fn has_lost_context() -> bool {
    faults::has_failed_with(crate::LAUNCH_FAILED)
}

pub fn allocate(bytes: usize, kind: Kind) -> usize {
    // Zeroed, so that large allocations take memory only where they are used, which holds for small alignments alone.
    let layout = std::alloc::Layout::from_size_align(bytes + ALIGNMENT, 16).expect("small enough");
    // SAFETY: the size is not 0.
    let start = unsafe { std::alloc::alloc_zeroed(layout) };
    let start = start.wrapping_add(start.align_offset(ALIGNMENT));
    let ends = [0..bytes.min(FILLED), bytes.saturating_sub(FILLED)..bytes];
    for end in ends {
        // SAFETY: within the allocation.
        unsafe { start.add(end.start).write_bytes(FRESH, end.len()) };
    }
    let context = super::CURRENT.get().addr();
    let memory = Memory { bytes, kind, context, pool: 0, is_live: true, is_file: false };
    state().memory.insert(start as usize, memory);
    start as usize
}

/// Notes a mapping of [shared](super::shares) memory.
pub fn add_mapping(start: usize, bytes: usize) {
    let (kind, context) = (Kind::Device, super::CURRENT.get().addr());
    let memory = Memory { bytes, kind, context, pool: 0, is_live: true, is_file: true };
    state().memory.insert(start, memory);
}

/// The whole pages in a range.
fn pages(range: &Range<usize>) -> Range<usize> {
    let size = rustix::param::page_size();
    let (start, end) = (range.start.next_multiple_of(size), range.end / size * size);
    start..end.max(start)
}

/// What lies before and behind the whole pages in a range; all of it if there are none.
fn around_pages(range: Range<usize>) -> [Range<usize>; 2] {
    let pages = pages(&range);
    if pages.is_empty() {
        return [range.clone(), range.end..range.end];
    }
    [range.start..pages.start, pages.end..range.end]
}

fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; FILLED] = [0; FILLED];
    bytes.chunks(FILLED).all(|chunk| chunk == &ZEROS[..chunk.len()])
}

/// Takes freed host memory from everything that may use it yet: an access to one of its pages ends the process, whose
/// signal is what the case is told by. What shares pages with other memory is filled.
fn close(range: Range<usize>) {
    let pages = pages(&range);
    for end in around_pages(range) {
        // SAFETY: it stays allocated.
        unsafe { ptr::write_bytes(end.start as *mut u8, FREED, end.len()) };
    }
    if !pages.is_empty() {
        let start = pages.start as *mut _;
        // SAFETY: these pages belong to an allocation that is never given back.
        unsafe {
            rustix::mm::madvise(start, pages.len(), rustix::mm::Advice::LinuxDontNeed)
                .and_then(|()| {
                    rustix::mm::mprotect(start, pages.len(), rustix::mm::MprotectFlags::empty())
                })
                .expect("pages of this process");
        }
    }
}

pub fn release(start: usize, what: &str) {
    let mut state = state();
    match state.memory.get_mut(&start) {
        Some(memory) if memory.is_live => {
            memory.is_live = false;
            if memory.kind == Kind::Pinned {
                close(start..start + memory.bytes);
            }
        }
        _ => state.violation(format!("{what}: {start:x} is not allocated")),
    }
}

/// Memory that an application has allocated in the context, without the scheduler.
pub struct Lent(Range<usize>);

static LENT: Mutex<Vec<Range<usize>>> = Mutex::new(Vec::new());

/// The application's allocation with this address.
pub fn lent(address: usize) -> Option<Range<usize>> {
    let all = LENT.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().find(|range| range.contains(&address)).cloned()
}

impl Lent {
    /// Zeroed memory for this many words.
    pub fn new(words: usize) -> Lent {
        let start = allocate(4 * words, Kind::Device);
        // SAFETY: just allocated.
        unsafe { ptr::write_bytes(start as *mut u8, 0, 4 * words) };
        let range = start..start + 4 * words;
        LENT.lock().unwrap_or_else(PoisonError::into_inner).push(range.clone());
        Lent(range)
    }

    pub fn address(&self) -> u64 {
        self.0.start as u64
    }

    /// The words, while nothing writes them.
    pub fn words(&self) -> Vec<u32> {
        let words = self.0.clone().step_by(4);
        // SAFETY: in the allocation.
        words.map(|at| unsafe { (at as *const u32).read() }).collect()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        LENT.lock().unwrap_or_else(PoisonError::into_inner).retain(|range| *range != self.0);
        release(self.0.start, "the application");
    }
}

/// A sum of some of the bytes of allocated memory.
pub fn sample(start: usize, bytes: usize) -> u64 {
    let some = (0..bytes).step_by(1 + bytes / 1000);
    // SAFETY: the caller has looked. The host may write there, where it should not.
    let byte = |at| u64::from(unsafe { ((start + at) as *const u8).read_volatile() });
    some.fold(0, |sum, at| sum.rotate_left(5) ^ byte(at))
}
