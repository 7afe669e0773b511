//! Parts of the fake driver's devices: contexts that have some of the SMs, and the numbers that code has for these.
//!
//! As in hardware, SMs keep the numbers of the whole GPU, and those of a part have gaps between them. A part has a piece of
//! host memory that counts as allocated until it is destroyed.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys;

use super::kernels::SMS;
use super::memory::{Kind, allocate, release, state};
use super::panics::FakeModule;
use super::{CURRENT, Code, DEVICES, INVALID_VALUE};

/// Addresses that contexts of one device have: the primary one's, and behind it those of parts.
const CONTEXTS: usize = 1 << 12;

/// The handle of the first part, which no context has.
const HANDLES: usize = 1 << 20;

const SM: sys::CUdevResourceType = sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;

/// The flag that every green context has (`CU_GREEN_CTX_DEFAULT_STREAM`).
const DEFAULT_STREAM: u32 = 1;

/// The parts of all devices. Numbers are never used again, so that late uses are found.
static PARTS: Mutex<Vec<FakePart>> = Mutex::new(Vec::new());

/// How often the primary context of each device is retained.
static RETAINED: [AtomicUsize; DEVICES as usize] =
    [const { AtomicUsize::new(0) }; DEVICES as usize];

#[derive(Clone)]
struct FakePart {
    device: c_int,
    sms: Vec<u32>,
    mark: usize,
    is_live: bool,
}

fn parts() -> MutexGuard<'static, Vec<FakePart>> {
    PARTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address of a device's primary context.
pub fn context(device: c_int) -> *mut c_void {
    ptr::without_provenance_mut(CONTEXTS * (1 + device as usize))
}

/// The primary context of the device that a context is on.
pub fn primary(context: usize) -> usize {
    context - context % CONTEXTS
}

/// The device that a context is on.
pub fn device(context: usize) -> usize {
    context / CONTEXTS - 1
}

/// The part whose context this is; `None` for a primary one.
fn part(context: usize) -> Option<FakePart> {
    let number = (context % CONTEXTS).checked_sub(1)?;
    parts().get(number).cloned()
}

/// Whether a context is there. It is a mistake if it was a part's that is destroyed.
pub fn check(context: usize, what: &str) -> bool {
    let is_there = part(context).is_none_or(|part| part.is_live);
    if !is_there {
        state().violation(format!("{what}: the part {context:x} was destroyed"));
    }
    is_there
}

/// The SMs that kernels in a context run on, by their numbers in hardware.
pub fn sms(context: usize) -> Vec<u32> {
    part(context).map_or_else(|| (0..SMS).collect(), |part| part.sms)
}

pub fn retain(device: c_int) {
    RETAINED[device as usize].fetch_add(1, Ordering::AcqRel);
}

pub fn release_primary(device: c_int) {
    let left = |retained: usize| retained.checked_sub(1);
    let before = RETAINED[device as usize].fetch_update(Ordering::AcqRel, Ordering::Acquire, left);
    let live = parts().iter().filter(|part| part.device == device && part.is_live).count();
    // Each part needs what it is a part of.
    if before.map_or(true, |before| before <= live) {
        state().violation(format!(
            "cuDevicePrimaryCtxRelease: {before:?} are left of the primary context, for {live} parts"
        ));
    }
}

/// A resource of these SMs, whose numbers are in the driver's own bytes of it.
fn resource(sms: &[u32]) -> sys::CUdevResource {
    // SAFETY: zeros are a resource.
    let mut resource: sys::CUdevResource = unsafe { std::mem::zeroed() };
    resource.type_ = SM;
    sms.iter().for_each(|&sm| resource._internal_padding[sm as usize] = 1);
    resource.__bindgen_anon_1.sm.smCount = sms.len() as u32;
    resource
}

fn sms_of(resource: &sys::CUdevResource) -> Vec<u32> {
    (0..SMS).filter(|&sm| resource._internal_padding[sm as usize] != 0).collect()
}

pub fn whole(kind: sys::CUdevResourceType) -> Option<sys::CUdevResource> {
    (kind == SM).then(|| resource(&(0..SMS).collect::<Vec<_>>()))
}

/// Splits SMs into groups of so many.
///
/// # Safety
///
/// The pointers are those of a call that splits a resource.
pub unsafe fn split(
    groups: *mut sys::CUdevResource,
    count: *mut u32,
    all: *const sys::CUdevResource,
    rest: *mut sys::CUdevResource,
    size: u32,
) -> Code {
    // SAFETY: the caller's promise.
    let (sms, asked) = unsafe { (sms_of(&*all), *count) };
    let size = size.max(1) as usize;
    let most = (sms.len() / size) as u32;
    let made = if groups.is_null() { most } else { asked.min(most) };
    // Dealt in turn, which leaves gaps.
    let group = |group: u32| sms.iter().copied().skip(group as usize).step_by(made as usize);
    let of_groups: Vec<Vec<u32>> =
        (0..made).map(|number| group(number).take(size).collect()).collect();
    if !groups.is_null() {
        for (number, sms) in of_groups.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { groups.add(number).write(resource(sms)) };
        }
    }
    if !rest.is_null() {
        let left: Vec<_> = sms.into_iter().filter(|sm| !of_groups.concat().contains(sm)).collect();
        // SAFETY: as above.
        unsafe { rest.write(resource(&left)) };
    }
    // SAFETY: as above.
    unsafe { *count = made };
    0
}

/// The description of SMs: a bit for each, and one that all have.
pub fn description(resources: &[sys::CUdevResource]) -> Option<sys::CUdevResourceDesc> {
    let [only] = resources else { return None };
    let sms = sms_of(only);
    let bits = sms.iter().fold(1 << SMS, |bits, sm| bits | 1 << sm);
    (only.type_ == SM && !sms.is_empty()).then(|| ptr::without_provenance_mut(bits))
}

/// Makes a part of a device.
pub fn create(
    description: sys::CUdevResourceDesc,
    device: c_int,
    flags: u32,
) -> Result<sys::CUgreenCtx, Code> {
    let bits = description.addr();
    let sms: Vec<u32> = (0..SMS).filter(|sm| bits >> sm & 1 == 1).collect();
    if bits >> SMS != 1 || sms.is_empty() || flags != DEFAULT_STREAM {
        return Err(INVALID_VALUE);
    }
    let mark = allocate(1, Kind::Pinned);
    let mut parts = parts();
    assert!(parts.len() + 1 < CONTEXTS, "there are more parts than contexts");
    parts.push(FakePart { device, sms, mark, is_live: true });
    Ok(ptr::without_provenance_mut(HANDLES + parts.len() - 1))
}

/// The context of a part.
pub fn context_of(handle: sys::CUgreenCtx) -> Option<sys::CUcontext> {
    let number = handle.addr().checked_sub(HANDLES)?;
    let device = parts().get(number).map(|part| part.device)?;
    let context = context(device).addr() + 1 + number;
    check(context, "cuCtxFromGreenCtx").then(|| ptr::without_provenance_mut(context))
}

pub fn destroy(handle: sys::CUgreenCtx) -> Code {
    let number = handle.addr().wrapping_sub(HANDLES);
    let mut parts = parts();
    let Some(part) = parts.get_mut(number).filter(|part| part.is_live) else {
        state().violation(format!("cuGreenCtxDestroy: there is no part {number}"));
        return INVALID_VALUE;
    };
    part.is_live = false;
    let (mark, context) = (part.mark, context(part.device).addr() + 1 + number);
    drop(parts);
    // The thread's next calls would go to it.
    if CURRENT.get().addr() == context {
        state().violation("cuGreenCtxDestroy: the part is current".into());
    }
    release(mark, "cuGreenCtxDestroy");
    0
}

impl FakeModule {
    /// The numbers that its code has for the SMs of a context: those of its table, or the hardware's.
    pub fn sms(&self, context: usize) -> Vec<u32> {
        let sms = sms(context);
        let number = |&sm: &u32| match self.numbers.clone() {
            Some(table) => {
                let at = table.start + 2 * sm as usize;
                assert!(at + 2 <= table.end, "SM {sm} is beyond the table");
                // SAFETY: within the variable, which is never freed, and which the host wrote before the launch.
                u32::from(unsafe { (at as *const u16).read_volatile() })
            }
            None => sm,
        };
        let numbers: Vec<u32> = sms.iter().map(number).collect();
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        let is_right = sorted.iter().zip(0..).all(|(&number, expected)| number == expected);
        if !is_right {
            // Grants are ranges of numbers from 0. With others, blocks might leave again and again.
            state().violation(format!("SMs {sms:?} have the numbers {numbers:?} in their code"));
            return sorted.iter().zip(0..).map(|(_, number)| number).collect();
        }
        numbers
    }
}
