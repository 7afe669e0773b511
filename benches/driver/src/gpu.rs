//! The device, and the driver's errors.

use std::ffi::CStr;
use std::time::Duration;
use std::{fmt, ptr};

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};

/// The reason why a call of the driver did not succeed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// There is no driver library.
    NoDriver,
    /// There is no cuBLAS.
    NoBlas,
    /// A call failed.
    Call {
        /// The function of the driver or the library.
        call: &'static str,
        /// The error's name.
        name: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoDriver => write!(f, "there is no CUDA driver (libcuda.so.1) on this machine"),
            Error::NoBlas => {
                write!(f, "there is no cuBLAS here; name its folder in LD_LIBRARY_PATH")
            }
            Error::Call { call, name } => write!(f, "{call}: {name}"),
        }
    }
}

impl std::error::Error for Error {}

/// Turns the result of the driver's function `call` into an error that names it.
pub(crate) fn check(call: &'static str, result: CUresult) -> Result<(), Error> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut name = ptr::null();
    // SAFETY: takes any code, and a place for a pointer.
    let found = unsafe { sys::cuGetErrorName(result, &mut name) } == CUresult::CUDA_SUCCESS;
    let name = match found && !name.is_null() {
        // SAFETY: the driver gives a string that it keeps.
        true => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
        false => format!("error {}", result as u32),
    };
    Err(Error::Call { call, name })
}

/// A device with its primary context, which stays until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Gpu {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: handles of the driver, which every thread may use.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// The device with this number, whose context becomes the calling thread's.
    ///
    /// # Errors
    ///
    /// If there is no driver, or no such device.
    pub fn open(ordinal: i32) -> Result<Gpu, Error> {
        // SAFETY: loads the driver's library, which has no requirements.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::NoDriver);
        }
        let (mut device, mut context) = (0, ptr::null_mut());
        // SAFETY: the library is there; the places are valid.
        unsafe {
            check("cuInit", sys::cuInit(0))?;
            check("cuDeviceGet", sys::cuDeviceGet(&mut device, ordinal))?;
            let retained = sys::cuDevicePrimaryCtxRetain(&mut context, device);
            check("cuDevicePrimaryCtxRetain", retained)?;
        }
        let gpu = Gpu { device, context };
        gpu.make_current()?;
        Ok(gpu)
    }

    /// Makes the context the calling thread's: every thread that uses anything here needs it once.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn make_current(self) -> Result<(), Error> {
        // SAFETY: the context is never released.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    fn attribute(self, attribute: Attribute) -> Result<u32, Error> {
        let mut value = 0;
        // SAFETY: the place is valid.
        let result = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, self.device) };
        check("cuDeviceGetAttribute", result)?;
        Ok(value as u32)
    }

    /// Streaming multiprocessors.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn sms(self) -> Result<u32, Error> {
        self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
    }

    /// The SMs' clock at its highest rate.
    fn kilohertz(self) -> Result<u32, Error> {
        self.attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)
    }

    /// A time in cycles of the SMs' clock at its highest rate.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn ticks(self, time: Duration) -> Result<u64, Error> {
        Ok((time.as_nanos() * u128::from(self.kilohertz()?) / 1_000_000) as u64)
    }

    /// The duration of `ticks` cycles of the SMs' clock at its highest rate.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn time(self, ticks: u64) -> Result<Duration, Error> {
        let nanos = u128::from(ticks) * 1_000_000 / u128::from(self.kilohertz()?.max(1));
        Ok(Duration::from_nanos(nanos as u64))
    }
}
