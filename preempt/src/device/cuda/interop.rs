//! Contexts, streams and events that other libraries have made.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::context::{Context, call};
use super::driver::{Driver, NOT_READY, RawContext};
use super::lock;
use super::streams::{BlockPriority, Stream};
use crate::device::ForeignStreams;
use crate::error::{DeviceError, Error, caught};

/// Time that a thread that waits for events spins before it sleeps between two looks: longer than most of them take.
const SPIN: Duration = Duration::from_micros(50);
const SLEEP: Duration = Duration::from_micros(20);

/// The driver's code for a call that a capture does not take (`CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`).
const CAPTURE_UNSUPPORTED: u32 = 900;

/// What streams are to call, by number. A captured call runs again with each launch of its graph, so what a number stands
/// for is taken out by the first one.
static CALLS: Mutex<(u64, BTreeMap<u64, Then>)> = Mutex::new((0, BTreeMap::new()));

type Then = Box<dyn FnOnce() + Send>;

pub(super) struct Interop {
    context: Arc<Context>,
    /// Empty streams, for threads that wait for events.
    streams: Mutex<Vec<Stream>>,
}

impl Interop {
    pub fn new(context: &Arc<Context>) -> Interop {
        Interop { context: context.clone(), streams: Mutex::default() }
    }
}

/// The number, as the driver counts, of the GPU that a context is on.
///
/// # Safety
///
/// The context is not destroyed.
pub(super) unsafe fn ordinal_of(context: RawContext) -> Result<u32, Error> {
    let driver = Driver::get()?;
    let functions = &driver.functions;
    let (mut before, mut device) = (ptr::null_mut(), -1);
    // SAFETY: the pointers are valid, and so is the context.
    unsafe {
        driver.check("cuCtxGetCurrent", (functions.cuCtxGetCurrent)(&raw mut before))?;
        driver.check("cuCtxSetCurrent", (functions.cuCtxSetCurrent)(context))?;
        let code = (functions.cuCtxGetDevice)(&raw mut device);
        driver.check("cuCtxSetCurrent", (functions.cuCtxSetCurrent)(before))?;
        driver.check("cuCtxGetDevice", code)?;
    }
    for ordinal in 0..driver.count()? {
        let mut other = -1;
        // SAFETY: the pointer is valid.
        let code = unsafe { (functions.cuDeviceGet)(&raw mut other, ordinal as c_int) };
        driver.check("cuDeviceGet", code)?;
        if other == device {
            return Ok(ordinal);
        }
    }
    let found = "the context's GPU is none of those that the driver shows".into();
    Err(Error::Device(DeviceError::NoGpu { ordinal: device.unsigned_abs(), found }))
}

impl ForeignStreams for Interop {
    fn check_context(&self, context: *mut c_void) -> Result<(), Error> {
        match self.context.raw().cast::<c_void>() == context {
            true => Ok(()),
            false => {
                let ordinal = self.context.device().unsigned_abs();
                Err(Error::Device(DeviceError::OtherContext { ordinal }))
            }
        }
    }

    fn enter(&self, call: &mut dyn FnMut()) -> Result<(), Error> {
        let _entered = self.context.enter()?;
        call();
        Ok(())
    }

    unsafe fn call_after(&self, stream: *mut c_void, then: Then) -> Result<(), Error> {
        let (context, stream) = (&self.context, stream.cast());
        let _entered = context.enter()?;
        // A number, because a newer driver may know other states.
        let mut status: c_int = 0;
        // SAFETY: the pointer is valid, and so is the stream.
        unsafe { call!(context, cuStreamIsCapturing(stream, (&raw mut status).cast()))? };
        if status != 0 {
            let message = "to wait for a stream that is being captured; end the capture first";
            let (code, message) = (CAPTURE_UNSUPPORTED, message.into());
            return Err(Error::Device(DeviceError::Driver { code, message }));
        }
        let number = {
            let mut calls = lock(&CALLS);
            calls.0 += 1;
            let number = calls.0;
            calls.1.insert(number, then);
            number
        };
        let data = ptr::without_provenance_mut::<c_void>(number as usize);
        // SAFETY: the function takes any number, at any time; the stream is valid.
        let put = unsafe { call!(context, cuLaunchHostFunc(stream, Some(run), data)) };
        put.inspect_err(|_| drop(taken(number)))
    }

    unsafe fn has_happened(&self, event: *mut c_void) -> Result<bool, Error> {
        let _entered = self.context.enter()?;
        // SAFETY: the caller's promise.
        match unsafe { (self.context.functions().cuEventQuery)(event.cast()) } {
            NOT_READY => Ok(false),
            code => self.context.check("cuEventQuery", code).map(|()| true),
        }
    }

    #[cfg_attr(
        not(feature = "cudarc"),
        allow(dead_code, reason = "the trait's method is; Rust 1.88 asks for each of the two")
    )]
    fn await_events(
        &self,
        put: &mut dyn FnMut(*mut c_void) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let _entered = self.context.enter()?;
        // A stream for each thread that waits: it must not wait for another one's events.
        let idle = lock(&self.streams).pop();
        let stream = match idle {
            Some(stream) => stream,
            None => Stream::new(&self.context, BlockPriority::Greatest)?,
        };
        put(stream.raw().cast())?;
        let start = Instant::now();
        while !stream.is_idle()? {
            match start.elapsed() < SPIN {
                true => thread::yield_now(),
                // Not `cuStreamSynchronize`, which might keep other threads from launching.
                false => thread::sleep(SLEEP),
            }
        }
        lock(&self.streams).push(stream);
        Ok(())
    }
}

fn taken(number: u64) -> Option<Then> {
    lock(&CALLS).1.remove(&number)
}

/// What streams call.
unsafe extern "C" fn run(number: *mut c_void) {
    if let Some(then) = taken(number.addr() as u64) {
        // A panic must not leave a function that the driver called.
        let _ = caught(then);
    }
}
