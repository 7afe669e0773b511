//! Kernels that panic on the fake driver: modules with the variable of records, and the loss of the context.

use std::ffi::{CStr, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use preempt_device::abi::Cohort;

use super::memory::{Kind, allocate, release, state};
use super::{CURRENT, Code};
use crate::LAUNCH_FAILED;

/// Bytes of the variable of records.
const RECORDS: usize = 16;

/// A loaded module.
pub struct FakeModule {
    text: String,
    /// The variable of records, if the text declares it.
    variable: Option<usize>,
    /// That of the numbers of SMs.
    pub(super) numbers: Option<Range<usize>>,
    /// The context that it is loaded in.
    context: usize,
}

/// An entry of a module.
pub struct FakeFunction {
    pub name: String,
    module: *const FakeModule,
}

/// What a panic leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Trace {
    Record,
    /// A trap without a record.
    Nothing,
    /// The record of a function that the module does not have.
    Unknown,
}

static TRACE: AtomicU32 = AtomicU32::new(0);
static FAILED: AtomicU32 = AtomicU32::new(0);
static HOLD: AtomicBool = AtomicBool::new(false);
/// Launches that panic, in a queue of the driver or further.
static LAUNCHED: AtomicUsize = AtomicUsize::new(0);
/// Kernels that wait to panic.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// The code of all calls from now on, if a kernel has panicked.
pub fn failed() -> Option<Code> {
    Some(FAILED.load(Ordering::Acquire)).filter(|&code| code != 0)
}

/// Keeps kernels that panic waiting until [`let_panic`].
pub fn hold_panics(trace: Trace) {
    TRACE.store(trace as u32, Ordering::Relaxed);
    HOLD.store(true, Ordering::Release);
}

pub fn let_panic() {
    HOLD.store(false, Ordering::Release);
}

/// How many launches of kernels that panic the driver has.
pub fn launched() -> usize {
    LAUNCHED.load(Ordering::Acquire)
}

/// How many kernels wait.
pub fn held() -> usize {
    HELD.load(Ordering::Acquire)
}

impl FakeModule {
    /// # Safety
    ///
    /// The image is text that ends with a zero.
    pub unsafe fn load(image: *const c_void) -> FakeModule {
        // SAFETY: the caller's promise.
        let text = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy().into_owned();
        let is_declared = text.contains(".visible .global .align 8 .b64 preempt_panic[2];");
        let zeroed = |bytes: usize| {
            let start = allocate(bytes, Kind::Device);
            // SAFETY: just allocated.
            unsafe { ptr::write_bytes(start as *mut u8, 0, bytes) };
            start..start + bytes
        };
        let variable = is_declared.then(|| zeroed(RECORDS).start);
        let numbers = text.split_once(".align 2 .b8 preempt_sm_numbers[").map(|(_, rest)| {
            let bytes = rest.split(']').next().unwrap_or_default();
            zeroed(bytes.parse().expect("a number of bytes"))
        });
        FakeModule { text, variable, numbers, context: CURRENT.get().addr() }
    }

    pub fn variable(&self, name: &CStr) -> Option<Range<usize>> {
        match name.to_bytes() {
            b"preempt_panic" => self.variable.map(|start| start..start + RECORDS),
            b"preempt_sm_numbers" => self.numbers.clone(),
            _ => None,
        }
    }

    /// Notes a use in another context than that which it was loaded in.
    pub fn check(&self, context: usize, what: &str) {
        if self.context != context {
            state().violation(format!("{what}: the module is of another context"));
        }
    }

    pub fn unload(&self) {
        let numbers = self.numbers.as_ref().map(|numbers| numbers.start);
        for start in [self.variable, numbers].into_iter().flatten() {
            release(start, "cuModuleUnload");
        }
    }

    /// The number that the code of an entry writes to records.
    fn number(&self, entry: &str) -> u32 {
        let rest = self.text.split_once(&format!(".entry {entry}(")).expect("it is there").1;
        let store = "\n\tst.volatile.global.b32 [%preempt_panic_record+4]";
        let before = rest.split_once(store).expect("it has a record").0;
        let constant = before.rsplit_once(", ").expect("an operand").1;
        constant.trim_end_matches(';').parse().expect("a number")
    }
}

impl FakeFunction {
    pub fn new(name: String, module: *const FakeModule) -> FakeFunction {
        FakeFunction { name, module }
    }

    pub fn module(&self) -> &'static FakeModule {
        // SAFETY: modules are never freed here.
        unsafe { &*self.module }
    }

    /// What thread (3, 0, 0) of the block-task `task` does as it panics.
    pub fn panic(&self, task: u32, cohort: Option<&Cohort>) -> impl FnOnce() + Send + use<> {
        let module = self.module();
        let trace = TRACE.load(Ordering::Relaxed);
        let mut words = [0, module.number(&self.name), 1, 3, 0, 0, task, 0, 0, 0, 0, 0];
        if let Some(Cohort { grid: [x, y, _], post, ticket, .. }) = cohort {
            let post = post.addr() as u64;
            words[2] = 2;
            words[7..].copy_from_slice(&[*x, *y, *ticket, post as u32, (post >> 32) as u32]);
        }
        if trace == Trace::Unknown as u32 {
            words[1] = 1_000_000;
        }
        let variable = module.variable.expect("it has a trap");
        LAUNCHED.fetch_add(1, Ordering::AcqRel);
        move || {
            HELD.fetch_add(1, Ordering::AcqRel);
            while HOLD.load(Ordering::Acquire) {
                thread::sleep(Duration::from_micros(50));
            }
            if failed().is_some() {
                return;
            }
            // SAFETY: the variable lives as long as the module.
            let record = unsafe { (variable as *const u64).read_volatile() } as usize;
            let bytes = 4 * words.len();
            if trace != Trace::Nothing as u32
                && state().check(&(record..record + bytes), Some(Kind::Pinned), "a record")
            {
                // SAFETY: just looked at; the host reads each word as an atomic.
                let word = |at: usize| unsafe { &*((record + 4 * at) as *const AtomicU32) };
                (1..words.len()).for_each(|at| word(at).store(words[at], Ordering::Relaxed));
                word(0).store(1, Ordering::Release);
            }
            FAILED.store(LAUNCH_FAILED, Ordering::Release);
        }
    }
}
