//! The primary context of one GPU, or one of a part of it: which threads have it current, and whether it still works.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

use super::driver::{
    Code, DeviceAttribute, Driver, Functions, NO_DEVICE, NOT_READY, RawContext, RawStream, SUCCESS,
    format_version, is_recoverable,
};
use super::panics::PanicRecords;
use super::parts::Part;
use crate::device::{Loss, Properties};
use crate::error::{DeviceError, Error};

/// Calls a driver function in a context: `call!(context, cuFunction(arguments))`. The caller puts
/// `unsafe` around it and says why it may.
macro_rules! call {
    ($context:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $context.check(stringify!($function), ($context.functions().$function)($($argument),*))
    };
}
pub(super) use call;

/// The primary context. Applications on the CUDA runtime, `cust` and `cudarc` use it too, so memory of each is valid
/// for all. A context of a part shares its memory, and its end.
#[derive(Debug)]
pub(super) struct Context {
    driver: &'static Driver,
    device: c_int,
    raw: RawContext,
    /// The part of the GPU that it is confined to, if it is.
    part: Option<Part>,
    /// What happened when a kernel, or the hardware, broke the context.
    lost: OnceLock<Loss>,
    /// Records of panics, which say more than the driver. They are in pinned memory, which keeps the context.
    panics: OnceLock<Weak<PanicRecords>>,
    /// Held for reading while one of our threads touches memory of an operation. Held for writing when the loss is
    /// reported, after which that memory may be freed.
    touching: RwLock<()>,
    /// Set when work of ours is still on the device although no thread waits for it any more. Then nothing may be
    /// freed.
    abandoned: AtomicBool,
}

// SAFETY: driver functions can be called with a context from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// While it lives, the context is current on this thread.
pub(super) struct Entered<'a> {
    context: &'a Context,
    /// The context to go back to, which may be another library's.
    before: RawContext,
    not_send: PhantomData<*const ()>,
}

impl Context {
    /// Retains the primary context of the `ordinal`th GPU.
    pub fn new(ordinal: u32) -> Result<Context, Error> {
        let driver = Driver::get().map_err(|error| match error {
            Error::Device(DeviceError::DriverStart { code: NO_DEVICE, message }) => {
                Error::Device(DeviceError::NoGpu { ordinal, found: message })
            }
            error => error,
        })?;
        let mut device = 0;
        let devices = driver.count()?;
        if ordinal >= devices {
            let found = format!("the driver shows {devices}, counted from 0").into();
            return Err(Error::Device(DeviceError::NoGpu { ordinal, found }));
        }
        // SAFETY: the pointer is valid.
        let code = unsafe { (driver.functions.cuDeviceGet)(&raw mut device, ordinal as c_int) };
        driver.check("cuDeviceGet", code)?;
        Context::retain(driver, device)
    }

    /// Retains the primary context of a GPU.
    fn retain(driver: &'static Driver, device: c_int) -> Result<Context, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer is valid, and the device exists.
        let code = unsafe { (driver.functions.cuDevicePrimaryCtxRetain)(&raw mut raw, device) };
        driver.check("cuDevicePrimaryCtxRetain", code)?;
        Ok(Context {
            driver,
            device,
            raw,
            part: None,
            lost: OnceLock::new(),
            panics: OnceLock::new(),
            touching: RwLock::new(()),
            abandoned: AtomicBool::new(false),
        })
    }

    /// A context of a part of this GPU.
    pub fn of_part(
        &self,
        make: impl FnOnce(&Context) -> Result<Part, Error>,
    ) -> Result<Context, Error> {
        let mut context = Context::retain(self.driver, self.device)?;
        let part = make(&context)?;
        context.raw = part.context();
        context.part = Some(part);
        Ok(context)
    }

    /// The part of the GPU that it is confined to, if it is.
    pub fn part(&self) -> Option<&Part> {
        self.part.as_ref()
    }

    pub fn driver(&self) -> &'static Driver {
        self.driver
    }

    pub fn functions(&self) -> &'static Functions {
        &self.driver.functions
    }

    pub fn raw(&self) -> RawContext {
        self.raw
    }

    pub fn device(&self) -> c_int {
        self.device
    }

    /// Makes the context current on this thread, if it is not.
    ///
    /// Asks the driver each time, because other libraries change the current context without notice. That is as fast as
    /// a thread-local.
    pub fn enter(&self) -> Result<Entered<'_>, Error> {
        self.alive()?;
        let mut before = ptr::null_mut();
        // SAFETY: the pointer is valid.
        unsafe { call!(self, cuCtxGetCurrent(&raw mut before))? };
        if before != self.raw {
            // SAFETY: the context is retained.
            unsafe { call!(self, cuCtxSetCurrent(self.raw))? };
        }
        Ok(Entered { context: self, before, not_send: PhantomData })
    }

    /// An error if the context is lost.
    pub fn alive(&self) -> Result<(), Error> {
        match self.lost.get() {
            None => Ok(()),
            Some(Loss { message, .. }) => {
                Err(Error::Device(DeviceError::ContextLost { message: message.clone() }))
            }
        }
    }

    /// Why the context is lost, if it is.
    pub fn lost(&self) -> Option<&Loss> {
        self.lost.get()
    }

    /// Sets the records that are read when the context is lost.
    pub fn explain_by(&self, panics: &Arc<PanicRecords>) {
        // There is one set for each context.
        let _ = self.panics.set(Arc::downgrade(panics));
    }

    /// Marks the context as lost; from now on nothing is given to the device. A panic's record replaces the driver's
    /// `message`, which is the same for all panics.
    pub fn lose(&self, message: String) -> Error {
        // Dropped when the context is marked, so that no call of the driver follows from it.
        let panics = self.panics.get().and_then(Weak::upgrade);
        let loss = self.lost.get_or_init(|| {
            let panic = panics.as_ref().and_then(|panics| panics.read());
            panic.unwrap_or_else(|| Loss { message: message.into(), panic: None })
        });
        Error::Device(DeviceError::ContextLost { message: loss.message.clone() })
    }

    /// The result that a call's code stands for.
    #[inline]
    pub fn check(&self, call: &'static str, code: Code) -> Result<(), Error> {
        match code {
            SUCCESS => Ok(()),
            code => Err(self.failed(call, code)),
        }
    }

    #[cold]
    fn failed(&self, call: &'static str, code: Code) -> Error {
        match is_recoverable(code) {
            true => Error::Device(DeviceError::Driver {
                code,
                message: self.driver.describe(call, code).into(),
            }),
            // The first error counts, because others follow from it.
            false => self.lose(self.driver.describe(call, code)),
        }
    }

    /// For calls that the scheduler needs and whose error no operation could be told of. After a second failure the
    /// context counts as lost. A failed attempt has done nothing, or nothing that the second attempt does not repeat.
    pub fn must<R>(&self, mut attempt: impl FnMut() -> Result<R, Error>) -> Result<R, Error> {
        let result = match attempt() {
            Err(error) if !matches!(error, Error::Device(DeviceError::ContextLost { .. })) => {
                attempt()
            }
            result => result,
        };
        result.map_err(|error| self.lose(error.to_string()))
    }

    /// Whether everything in `stream` is done. Also finds out whether the context is lost.
    pub fn is_idle(&self, stream: RawStream) -> Result<bool, Error> {
        // SAFETY: streams live as long as what asks for them.
        match unsafe { (self.functions().cuStreamQuery)(stream) } {
            NOT_READY => Ok(false),
            code => self.check("cuStreamQuery", code).map(|()| true),
        }
    }

    /// Runs `touch`, which may use memory of an operation in flight, unless the context is lost.
    pub fn touching<R>(&self, touch: impl FnOnce() -> R) -> Result<R, Error> {
        let _guard = self.touching.read().unwrap_or_else(PoisonError::into_inner);
        self.alive().map(|()| touch())
    }

    /// Waits for the threads inside [`touching`](Context::touching); later callers see that the context is lost.
    pub fn wait_until_untouched(&self) {
        drop(self.touching.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Leaves everything allocated: the device may still use it.
    pub fn abandon(&self) {
        // Release, with the acquire below: a thread that sees the flag also sees everything that was found out before
        // it.
        self.abandoned.store(true, Ordering::Release);
    }

    /// Whether resources can be freed without waiting for work of ours.
    pub fn is_freeable(&self) -> bool {
        self.lost.get().is_none() && !self.abandoned.load(Ordering::Acquire)
    }

    pub fn attribute(&self, attribute: DeviceAttribute) -> Result<u32, Error> {
        let mut value = 0;
        // SAFETY: the pointer is valid, and the device exists.
        unsafe { call!(self, cuDeviceGetAttribute(&raw mut value, attribute, self.device))? };
        Ok(value.max(0).unsigned_abs())
    }

    /// The properties of the GPU, or of its part.
    pub fn properties(&self) -> Result<Properties, Error> {
        use DeviceAttribute::*;
        let properties = Properties {
            name: self.name()?,
            compute_capability: Some((
                self.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                self.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            )),
            clock_khz: self.attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?.max(1),
            sms: self.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            blocks_per_sm: self.attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR)?,
            threads_per_sm: self.attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
            shared_per_sm: self
                .attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
            shared_per_block: self
                .attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            driver: Some(self.driver_version()?),
        };
        Ok(match &self.part {
            Some(part) => part.properties(properties),
            None => properties,
        })
    }

    fn name(&self) -> Result<String, Error> {
        let mut name = [0u8; 256];
        let len = name.len() as c_int;
        // SAFETY: the pointer is valid for the length, and the device exists.
        unsafe { call!(self, cuDeviceGetName(name.as_mut_ptr().cast(), len, self.device))? };
        let text = name.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// The driver's own version, if the system tells, and the newest CUDA that it knows.
    fn driver_version(&self) -> Result<String, Error> {
        let cuda = format_version(self.driver.version()?);
        let file = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
        Ok(match own_version(&file) {
            Some(own) => format!("{own}, {cuda}"),
            None => cuda,
        })
    }
}

/// The version in the first line of the driver's file: the first word of numbers between dots.
fn own_version(file: &str) -> Option<&str> {
    let is_version =
        |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    file.lines().next()?.split_whitespace().find(is_version)
}

impl Drop for Context {
    fn drop(&mut self) {
        // A part that stays needs the GPU's context.
        if self.is_freeable() && self.part.take().is_none_or(Part::destroy) {
            // SAFETY: retained once, in `retain`; everything that was allocated in the context holds it.
            unsafe { (self.functions().cuDevicePrimaryCtxRelease_v2)(self.device) };
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // A thread that had no context may as well keep the primary one. A part's would confine other work of the application
        // to the part, and end before the thread.
        let keeps = self.before.is_null() && self.context.part.is_none();
        if self.before != self.context.raw && !keeps {
            // SAFETY: the context was current before. If it has been destroyed since, the driver returns an error and
            // does nothing else.
            let go_back = || unsafe { (self.context.functions().cuCtxSetCurrent)(self.before) };
            // Otherwise the application's next calls would go to the wrong context.
            if go_back() != SUCCESS {
                go_back();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::own_version;

    #[test]
    fn the_drivers_own_version_is_found() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder@U16)\nGCC version:  gcc version 12.2.0\n";
        assert_eq!(own_version(open), Some("580.159.04"));
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023";
        assert_eq!(own_version(closed), Some("535.54.03"));
        assert_eq!(own_version(""), None);
        assert_eq!(own_version("a. .b 1"), None);
    }
}
