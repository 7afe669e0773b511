//! Records of panics: where a thread was when it ended the context.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use preempt_device::abi::Cohort;
use preempt_ptx_text::{
    CohortLayout, Functions, PANIC_WORDS, Panic, PanicSource, panic_sources, with_panic_records,
};

use super::context::Context;
use super::lock;
use super::memory::Pinned;
use crate::device::{KernelPanic, Loss};
use crate::error::Error;

/// Where the code of a record finds its launch.
const LAYOUT: CohortLayout = CohortLayout {
    grid: offset_of!(Cohort, grid),
    post: offset_of!(Cohort, post),
    ticket: offset_of!(Cohort, ticket),
};

/// `ptx` whose panics leave a record, unless it cannot have any.
pub(super) fn recording(ptx: &str) -> Option<String> {
    with_panic_records(ptx, LAYOUT)
}

/// The records of all modules, one each.
#[derive(Debug, Default)]
pub(super) struct PanicRecords {
    records: Mutex<Vec<Record>>,
}

/// Of the first thread of a module that panics.
#[derive(Debug)]
struct Record {
    memory: Pinned,
    sources: Vec<PanicSource>,
}

impl PanicRecords {
    /// Adds the record of a module with these functions; returns its address on the device. The context is entered, and
    /// nothing runs.
    pub fn add(&self, context: &Arc<Context>, functions: &Functions<'_>) -> Result<u64, Error> {
        let memory = Pinned::new(context, PANIC_WORDS * size_of::<u32>())?;
        let address = memory.start().as_ptr() as u64;
        lock(&self.records).push(Record { memory, sources: panic_sources(functions) });
        Ok(address)
    }

    /// What a written record says; the first module's, if kernels of several modules have panicked at once. The kernel that
    /// ended the context surely has its record.
    pub fn read(&self) -> Option<Loss> {
        lock(&self.records).iter().find_map(|record| {
            let panic = Panic::read(&record.words())?;
            Some(explained(panic, record.sources.get(panic.function)))
        })
    }
}

impl Record {
    fn words(&self) -> [u32; PANIC_WORDS] {
        let start = self.memory.start().cast::<AtomicU32>();
        // SAFETY: the memory has as many words, aligned, and lives as long as the record. A thread of the device may
        // write it at the same time.
        let word = |at| unsafe { &*start.as_ptr().wrapping_add(at) }.load(Ordering::Acquire);
        // The first word is read first, since it is written last: acquire, with the device's fence before it.
        std::array::from_fn(word)
    }
}

/// A panic in the user's words.
fn explained(panic: Panic, source: Option<&PanicSource>) -> Loss {
    let [x, y, z] = panic.thread;
    let task = match panic.block {
        Some([x, y, z]) => format!("block-task ({x}, {y}, {z})"),
        None => "unknown block-task".to_owned(),
    };
    let function = source.and_then(|source| source.function.as_ref());
    let function = function.map(|name| format!(" in `{name}`")).unwrap_or_default();
    let kernel = source.and_then(|source| source.kernel.as_ref());
    let kernel = kernel.map_or("a kernel".to_owned(), |name| format!("kernel `{name}`"));
    let place = format!("{task}: thread ({x}, {y}, {z}) panicked{function}");
    Loss {
        message: format!("{kernel} failed: {place}").into(),
        panic: Some(KernelPanic {
            // Without a position it may be of either form, and so of any launch of the kernel.
            entry: source
                .and_then(|source| source.preemptible.as_deref())
                .filter(|_| panic.block.is_some())
                .map(Into::into),
            cohort: panic.cohort,
            place: place.into(),
        }),
    }
}
