//! Driver calls that fail on purpose, and a driver supplied by a test. Only with the feature `fault-injection`, which
//! is for this project's tests.
//!
//! A call that is to fail is not made, because that is what an error of the driver means. The one exception is a call
//! that would have reported an earlier fault: the device then works on, where a real one would not.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use super::driver::Code;
use super::lock;

/// The functions that were called or are to fail, by name.
static CALLS: Mutex<BTreeMap<&'static str, Calls>> = Mutex::new(BTreeMap::new());

/// The driver that replaces the machine's.
static INSTALLED: OnceLock<Find> = OnceLock::new();

/// Control blocks that a device has from the start; 0 leaves the default.
static CONTROL_BLOCKS: AtomicUsize = AtomicUsize::new(0);

/// Whether save areas are overwritten between two launches.
static POISONS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// How often this thread has called each function.
    static HERE: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };

    /// The calls of this thread when it last put a gate, and when it last opened one.
    static PUT_GATE: Cell<Option<u64>> = const { Cell::new(None) };
    static OPENED_GATE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Finds a function of a driver by its name.
pub type Find = fn(&'static str) -> Option<*const c_void>;

#[derive(Default)]
struct Calls {
    made: u64,
    /// The call that fails, and its code.
    fails: Option<(u64, Code)>,
    failed: u64,
}

/// Makes the `nth` call of a function fail with `code`, counted from 1 since the last [`reset`].
pub fn fail(function: &'static str, nth: u64, code: u32) {
    lock(&CALLS).entry(function).or_default().fails = Some((nth, code));
}

/// Overwrites each save area when the launch that had it is over, from now on, so that a block-task which is read from a slot before
/// it was saved there is a wrong one.
pub fn poison_saved() {
    POISONS.store(true, Ordering::Relaxed);
}

pub(super) fn poisons_saved() -> bool {
    POISONS.load(Ordering::Relaxed)
}

/// How often each function was called since the last [`reset`], failures among them.
pub fn calls() -> Vec<(&'static str, u64)> {
    lock(&CALLS).iter().map(|(name, calls)| (*name, calls.made)).collect()
}

/// How often this thread has called each function.
pub fn calls_here() -> Vec<(&'static str, u64)> {
    HERE.with_borrow(|calls| calls.iter().map(|(name, made)| (*name, *made)).collect())
}

/// How many calls this thread has made.
pub fn calls_of_thread() -> u64 {
    calls_here().into_iter().map(|(_, made)| made).sum()
}

/// How many calls this thread had made when it last opened a gate. `None` where it has put one after `since` calls: then what
/// it opened may be the gate of a launch that had none when it was released.
pub fn calls_before_gate(since: u64) -> Option<u64> {
    OPENED_GATE.get().filter(|_| PUT_GATE.get().is_none_or(|put| put <= since))
}

/// Notes that this thread has put a gate.
pub(super) fn puts_gate() {
    PUT_GATE.set(Some(calls_of_thread()));
}

/// Notes that this thread opens a gate.
pub(super) fn opens_gate() {
    OPENED_GATE.set(Some(calls_of_thread()));
}

/// How many calls were made to fail since the last [`reset`].
pub fn failures() -> u64 {
    lock(&CALLS).values().map(|calls| calls.failed).sum()
}

/// Whether a call failed with `code` since the last [`reset`].
pub fn has_failed_with(code: u32) -> bool {
    let failed =
        |calls: &Calls| calls.failed > 0 && calls.fails.is_some_and(|(_, with)| with == code);
    lock(&CALLS).values().any(failed)
}

/// Forgets all counts and planned failures.
pub fn reset() {
    lock(&CALLS).clear();
}

/// Installs a driver in place of the machine's, if none is in use yet.
///
/// # Safety
///
/// What `find` gives for a name is a function with the signature that the driver's manual has for it.
pub unsafe fn install(find: Find) {
    // The first driver stays.
    let _ = INSTALLED.set(find);
}

/// Has devices that are opened from now on start with `count` control blocks.
pub fn start_with_control_blocks(count: usize) {
    // Relaxed: the test opens its device after this.
    CONTROL_BLOCKS.store(count, Ordering::Relaxed);
}

pub(super) fn installed() -> Option<Find> {
    INSTALLED.get().copied()
}

pub(super) fn control_blocks() -> Option<usize> {
    Some(CONTROL_BLOCKS.load(Ordering::Relaxed)).filter(|&count| count > 0)
}

/// Counts a call; returns the code that it fails with, if it is to fail.
pub(super) fn count(function: &'static str) -> Option<Code> {
    // A thread that ends may call the driver when its variables are gone.
    let _ = HERE.try_with(|calls| *calls.borrow_mut().entry(function).or_default() += 1);
    let mut calls = lock(&CALLS);
    let calls = calls.entry(function).or_default();
    calls.made += 1;
    let (_, code) = calls.fails.filter(|(nth, _)| *nth == calls.made)?;
    calls.failed += 1;
    Some(code)
}

/// `shim!(real, name, types of the arguments)`: a function that counts a call, and then fails or calls the `real` one.
macro_rules! shim {
    ($real:expr, $name:ident, $($argument:ty),* $(,)?) => {
        $crate::device::cuda::faults::shim!(@ $real, $name, [] [$($argument),*] a b c d e f g h i j k)
    };
    (@ $real:expr, $name:ident, [$($names:ident: $types:ty,)*] [] $($left:ident)*) => {{
        static REAL: std::sync::OnceLock<unsafe extern "C" fn($($types),*) -> Code> =
            std::sync::OnceLock::new();
        unsafe extern "C" fn shim($($names: $types),*) -> Code {
            match ($crate::device::cuda::faults::count(stringify!($name)), REAL.get()) {
                (Some(code), _) => code,
                // SAFETY: the caller keeps the promises of the real function.
                (None, Some(real)) => unsafe { real($($names),*) },
                // The real function is set before this one is given out.
                (None, None) => NOT_FOUND,
            }
        }
        // There is one driver for each process.
        let _ = REAL.set($real);
        shim as unsafe extern "C" fn($($types),*) -> Code
    }};
    (@ $real:expr, $name:ident, [$($done:tt)*] [$next:ty $(, $more:ty)*] $id:ident $($left:ident)*) => {
        $crate::device::cuda::faults::shim!(@ $real, $name, [$($done)* $id: $next,] [$($more),*] $($left)*)
    };
}
pub(super) use shim;

#[cfg(test)]
mod tests {
    use super::super::driver::{NOT_FOUND, SUCCESS};
    use super::*;

    unsafe extern "C" fn real(factor: u32, value: *mut u32) -> Code {
        // SAFETY: the test's own pointer.
        unsafe { *value *= factor };
        SUCCESS
    }

    #[test]
    fn the_nth_call_fails_and_is_not_made() {
        let shim = shim!(real, cuTest, u32, *mut u32);
        let mut value = 1;
        // SAFETY: the pointer is valid.
        let mut call = || unsafe { shim(2, &raw mut value) };
        assert_eq!(call(), SUCCESS);
        fail("cuTest", 3, 701);
        assert_eq!([call(), call(), call()], [SUCCESS, 701, SUCCESS]);
        assert_eq!(value, 8);
        assert!(calls().contains(&("cuTest", 4)), "{:?}", calls());
        assert_eq!(failures(), 1);
        assert!(has_failed_with(701) && !has_failed_with(2));
        reset();
        assert!(!has_failed_with(701));
        fail("cuTest", 1, 2);
        // SAFETY: the pointer is valid.
        assert_eq!(unsafe { shim(2, &raw mut value) }, 2);
        // The function that the shim was made for stays the real one.
        unsafe extern "C" fn other(_: u32, _: *mut u32) -> Code {
            NOT_FOUND
        }
        assert_eq!(value, 8);
        // SAFETY: it takes any pointer.
        assert_eq!(unsafe { shim!(other, cuOther, u32, *mut u32)(0, &raw mut value) }, NOT_FOUND);
    }
}
