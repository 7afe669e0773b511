//! Parts of a GPU: contexts that are confined to a part of its SMs (CUDA's green contexts).
//!
//! All that is launched in such a context stays on its SMs: cohorts, plain grids, graphs, and other libraries' kernels. So the
//! parts need no common ledger of SMs: each is a device of its own, with its own queues and its own engine. They share the
//! memory and the end of the primary context: what loses one is seen by all.
//!
//! Nor do they need a budget of hardware queues: with 15 parts, all of them full, and a kernel that waits in each of 24 streams of
//! each, words and launches of the others arrive within 31 µs (H200, driver 580, its usual 8 connections).
//!
//! The SMs of a part have gaps between their numbers (on an H200, the first of four parts has 0, 1, 8, 9, 16, ..). Code for
//! a part looks them up in a table of its module ([`preempt_ptx_text::with_sm_numbers`]), so that its SMs count from 0 for all
//! above the driver.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

use cudarc::driver::sys;
use preempt_ptx_text::MOST_SM_NUMBERS;

use super::context::Context;
use super::driver::{PartFunctions, RawContext, RawPart, Resource, SUCCESS};
use crate::device::Properties;
use crate::error::{DeviceError, Error};

/// The only kind of green context that there is (`CU_GREEN_CTX_DEFAULT_STREAM`).
const DEFAULT_STREAM: u32 = 1;

/// Memory of parts comes in such pieces, in bytes.
const PIECE: usize = 2 << 20;

/// A part of a GPU.
#[derive(Debug)]
pub(super) struct Part {
    raw: RawPart,
    context: RawContext,
    /// Its number, from 0, and the number of parts.
    index: (u32, u32),
    sms: u32,
    memory: usize,
    functions: &'static PartFunctions,
    /// For each number of an SM of the GPU, that of the part.
    numbers: OnceLock<Vec<u16>>,
}

/// The SMs of parts that were not made yet.
pub(super) struct Division {
    resources: Vec<Resource>,
    memory: usize,
    functions: &'static PartFunctions,
}

impl Division {
    /// Divides a GPU into this number of equal parts, each with as much of its memory; the context is entered.
    pub fn new(context: &Context, parts: u32) -> Result<Division, Error> {
        let refused = |reason: String| DeviceError::NotSplit { parts, reason: reason.into() };
        let functions = context.driver().parts.as_ref().ok_or_else(|| {
            refused(
                "its driver makes no green contexts; CUDA 12.4 (driver 550) or a later one does"
                    .into(),
            )
        })?;
        let sms = context.properties()?.sms;
        let mut all = unknown();
        let kind = sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
        // SAFETY: the pointer is valid, and the device exists.
        let code =
            unsafe { (functions.cuDeviceGetDevResource)(context.device(), &raw mut all, kind) };
        context.check("cuDeviceGetDevResource", code)?;
        // Parts come in steps of the hardware's (8 SMs on an H200), to which the driver rounds up.
        let of_so_many = |least: u32| -> Result<u32, Error> {
            let (mut count, none) = (0, ptr::null_mut());
            let split = functions.cuDevSmResourceSplitByCount;
            // SAFETY: the driver asks for no place of the parts where it only counts them.
            let code = unsafe { split(none, &raw mut count, &raw const all, none, 0, least) };
            context.check("cuDevSmResourceSplitByCount", code).map(|()| count)
        };
        let mut least = sms / parts.max(1);
        while least > 0 && of_so_many(least)? < parts {
            least -= 1;
        }
        if parts == 0 || least == 0 {
            let most = of_so_many(1)?;
            return Err(refused(format!("its {sms} SMs make 1 to {most} parts")).into());
        }
        let mut resources = vec![unknown(); parts as usize];
        let (mut count, mut rest) = (parts, unknown());
        // SAFETY: `resources` has room for `count` parts.
        let code = unsafe {
            let split = functions.cuDevSmResourceSplitByCount;
            split(resources.as_mut_ptr(), &raw mut count, &raw const all, &raw mut rest, 0, least)
        };
        context.check("cuDevSmResourceSplitByCount", code)?;
        if count < parts {
            return Err(refused(format!("the driver makes {count} parts of it")).into());
        }
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are valid.
        let code = unsafe { (context.functions().cuMemGetInfo_v2)(&raw mut free, &raw mut total) };
        context.check("cuMemGetInfo_v2", code)?;
        let memory = total / parts as usize / PIECE * PIECE;
        Ok(Division { resources, memory, functions })
    }

    /// The number of parts.
    pub fn parts(&self) -> u32 {
        self.resources.len() as u32
    }

    /// Makes the part of this number, in a GPU's context.
    pub fn make(&self, context: &Context, index: u32) -> Result<Part, Error> {
        let &Division { ref resources, memory, functions } = self;
        let mut resource = resources[index as usize];
        let mut description = ptr::null_mut();
        // SAFETY: the pointers are valid; the driver made the resource.
        let code = unsafe {
            (functions.cuDevResourceGenerateDesc)(&raw mut description, &raw mut resource, 1)
        };
        context.check("cuDevResourceGenerateDesc", code)?;
        let (mut raw, mut own) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the pointers are valid, the driver made the description, and the device exists.
        let code = unsafe {
            (functions.cuGreenCtxCreate)(
                &raw mut raw,
                description,
                context.device(),
                DEFAULT_STREAM,
            )
        };
        context.check("cuGreenCtxCreate", code)?;
        let index = (index, self.parts());
        // SAFETY: a resource of SMs, as was asked for.
        let sms = unsafe { resource.__bindgen_anon_1.sm.smCount };
        let numbers = OnceLock::new();
        let part = Part { raw, context: own, index, sms, memory, functions, numbers };
        // SAFETY: the pointers are valid.
        let code = unsafe { (functions.cuCtxFromGreenCtx)(&raw mut own, raw) };
        match context.check("cuCtxFromGreenCtx", code) {
            Ok(()) => Ok(Part { context: own, ..part }),
            Err(error) => {
                if context.is_freeable() {
                    part.destroy();
                }
                Err(error)
            }
        }
    }
}

/// A resource before the driver has written it.
fn unknown() -> Resource {
    // SAFETY: zeros are a resource of the invalid kind.
    unsafe { MaybeUninit::<Resource>::zeroed().assume_init() }
}

impl Part {
    pub fn context(&self) -> RawContext {
        self.context
    }

    /// Bytes of the GPU's memory that it may have.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// The properties of the part, by those of the GPU.
    pub fn properties(&self, whole: Properties) -> Properties {
        let (index, parts) = self.index;
        let name = format!("{}, part {} of {parts}", whole.name, index + 1);
        Properties { name, sms: self.sms, ..whole }
    }

    /// Numbers its SMs in the order of the GPU's numbers, of which these are its own. Returns whether they are all.
    pub fn number(&self, own: impl IntoIterator<Item = usize>) -> bool {
        // Of no range: a block on another SM leaves.
        let mut numbers = vec![u16::MAX; MOST_SM_NUMBERS];
        let mut count = 0;
        for sm in own {
            if let Some(number) = numbers.get_mut(sm) {
                (*number, count) = (count, count + 1);
            }
        }
        let is_whole = u32::from(count) == self.sms;
        if is_whole {
            // They are found once, before anything else runs.
            let _ = self.numbers.set(numbers);
        }
        is_whole
    }

    /// For each number of an SM of the GPU, that of the part; `None` before they are known.
    pub fn numbers(&self) -> Option<&[u16]> {
        self.numbers.get().map(Vec::as_slice)
    }

    /// Destroys the part, whose context is freeable; returns whether it is gone. A part that the driver does not destroy stays
    /// until the process ends.
    pub fn destroy(self) -> bool {
        // SAFETY: made once, in `make`. What was made in its context is gone, since all of that holds the context.
        unsafe { (self.functions.cuGreenCtxDestroy)(self.raw) == SUCCESS }
    }
}
