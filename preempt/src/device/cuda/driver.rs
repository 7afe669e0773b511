//! The driver library, found at run time: its functions, and what its codes mean.
//!
//! Types and signatures are `cudarc`'s; the functions are looked up here, for two reasons. A driver that lacks a
//! function is an error here, where `cudarc` panics. And codes are numbers, because a driver newer than `cudarc` may
//! return codes that an `enum` must not hold.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::mem;
use std::sync::OnceLock;

use cudarc::driver::sys;
use libloading::Library;

#[cfg(feature = "fault-injection")]
use super::faults;
use crate::error::{DeviceError, Error};

pub(super) use sys::{
    CUcontext as RawContext, CUdevResource as Resource, CUdevice_attribute as DeviceAttribute,
    CUdeviceptr as Address, CUevent as RawEvent, CUfunction as RawFunction,
    CUfunction_attribute as FunctionAttribute, CUgraph as RawGraph, CUgraphExec as RawGraphExec,
    CUgraphNode as RawNode, CUgreenCtx as RawPart, CUmemGenericAllocationHandle as RawMemory,
    CUmemoryPool as RawPool, CUmodule as RawModule, CUstream as RawStream,
};

/// What a driver function returns.
pub(super) type Code = u32;

pub(super) const SUCCESS: Code = 0;
pub(super) const INVALID_VALUE: Code = 1;
pub(super) const OUT_OF_MEMORY: Code = 2;
/// The library is the stub for linking, which CUDA toolkits have.
const STUB_LIBRARY: Code = 34;
pub(super) const NO_DEVICE: Code = 100;
pub(super) const NOT_FOUND: Code = 500;
pub(super) const NOT_READY: Code = 600;

/// The name of the driver library.
const LIBRARY: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

/// Its name for linking, by which some systems have it alone; in a toolkit, it is a stub.
const LINKED: &str = "libcuda.so";

/// Version of CUDA: the oldest driver that has all functions is of 12.0.
const OLDEST: i32 = 12_000;

/// Finds a function of the driver by its name.
type Find = fn(&'static str) -> Option<*const c_void>;

macro_rules! functions {
    ($(#[$doc:meta])* $Functions:ident: $($name:ident($($argument:ty),*);)*) => {
        $(#[$doc])*
        #[derive(Debug)]
        #[allow(non_snake_case, reason = "the driver's names")]
        pub(in crate::device::cuda) struct $Functions {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> Code,)*
        }

        // The signatures are `cudarc`'s, apart from what is returned.
        $(const _: unsafe fn($($argument),*) -> sys::CUresult = sys::$name;)*

        impl $Functions {
            /// Looks up all functions; the error is the name of a missing one.
            fn find(find: Find) -> Result<$Functions, &'static str> {
                Ok($Functions { $($name: {
                    let found = find(stringify!($name)).ok_or(stringify!($name))?;
                    // SAFETY: the function of this name has this signature.
                    unsafe {
                        mem::transmute::<*const c_void, unsafe extern "C" fn($($argument),*) -> Code>(
                            found,
                        )
                    }
                },)* })
            }

            /// Puts a function around each that counts its calls and makes them fail where a test says so.
            #[cfg(feature = "fault-injection")]
            fn with_faults(self) -> $Functions {
                $Functions { $($name: faults::shim!(self.$name, $name, $($argument),*),)* }
            }
        }
    };
}

functions! {
    /// The functions in use, each as the driver's manual describes it.
    Functions:
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut sys::CUdevice, c_int);
    cuDeviceGetName(*mut c_char, c_int, sys::CUdevice);
    cuDeviceGetAttribute(*mut c_int, DeviceAttribute, sys::CUdevice);
    cuDeviceCanAccessPeer(*mut c_int, sys::CUdevice, sys::CUdevice);
    cuDevicePrimaryCtxRetain(*mut RawContext, sys::CUdevice);
    cuDevicePrimaryCtxRelease_v2(sys::CUdevice);
    cuCtxGetCurrent(*mut RawContext);
    cuCtxSetCurrent(RawContext);
    cuCtxGetDevice(*mut sys::CUdevice);
    cuCtxGetLimit(*mut usize, sys::CUlimit);
    cuCtxSetLimit(sys::CUlimit, usize);
    cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
    cuStreamCreateWithPriority(*mut RawStream, c_uint, c_int);
    cuStreamDestroy_v2(RawStream);
    cuStreamQuery(RawStream);
    cuStreamIsCapturing(RawStream, *mut sys::CUstreamCaptureStatus);
    cuLaunchHostFunc(RawStream, sys::CUhostFn, *mut c_void);
    cuStreamWriteValue64_v2(RawStream, Address, u64, c_uint);
    cuEventCreate(*mut RawEvent, c_uint);
    cuEventRecord(RawEvent, RawStream);
    cuEventQuery(RawEvent);
    cuEventDestroy_v2(RawEvent);
    cuModuleLoadDataEx(
        *mut RawModule, *const c_void, c_uint, *mut sys::CUjit_option, *mut *mut c_void
    );
    cuModuleUnload(RawModule);
    cuModuleGetFunction(*mut RawFunction, RawModule, *const c_char);
    cuModuleGetGlobal_v2(*mut Address, *mut usize, RawModule, *const c_char);
    cuFuncGetAttribute(*mut c_int, FunctionAttribute, RawFunction);
    cuFuncSetAttribute(RawFunction, FunctionAttribute, c_int);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(*mut c_int, RawFunction, c_int, usize);
    cuLaunchKernel(
        RawFunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, RawStream,
        *mut *mut c_void, *mut *mut c_void
    );
    cuLaunchKernelEx(
        *const sys::CUlaunchConfig, RawFunction, *mut *mut c_void, *mut *mut c_void
    );
    cuMemAlloc_v2(*mut Address, usize);
    cuMemFree_v2(Address);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);
    cuMemGetAddressRange_v2(*mut Address, *mut usize, Address);
    cuPointerGetAttribute(*mut c_void, sys::CUpointer_attribute, Address);
    cuMemPoolCreate(*mut RawPool, *const sys::CUmemPoolProps);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemPoolSetAttribute(RawPool, sys::CUmemPool_attribute, *mut c_void);
    cuMemPoolGetAttribute(RawPool, sys::CUmemPool_attribute, *mut c_void);
    cuMemPoolSetAccess(RawPool, *const sys::CUmemAccessDesc, usize);
    cuMemPoolTrimTo(RawPool, usize);
    cuMemPoolDestroy(RawPool);
    cuMemAllocFromPoolAsync(*mut Address, usize, RawPool, RawStream);
    cuMemFreeAsync(Address, RawStream);
    cuMemGetAllocationGranularity(
        *mut usize, *const sys::CUmemAllocationProp, sys::CUmemAllocationGranularity_flags
    );
    cuMemCreate(*mut RawMemory, usize, *const sys::CUmemAllocationProp, c_ulonglong);
    cuMemRelease(RawMemory);
    cuMemExportToShareableHandle(
        *mut c_void, RawMemory, sys::CUmemAllocationHandleType, c_ulonglong
    );
    cuMemImportFromShareableHandle(
        *mut RawMemory, *mut c_void, sys::CUmemAllocationHandleType
    );
    cuMemAddressReserve(*mut Address, usize, usize, Address, c_ulonglong);
    cuMemAddressFree(Address, usize);
    cuMemMap(Address, usize, usize, RawMemory, c_ulonglong);
    cuMemUnmap(Address, usize);
    cuMemSetAccess(Address, usize, *const sys::CUmemAccessDesc, usize);
    cuMemsetD8Async(Address, u8, usize, RawStream);
    cuMemsetD16Async(Address, u16, usize, RawStream);
    cuMemsetD32Async(Address, u32, usize, RawStream);
    cuMemcpyHtoD_v2(Address, *const c_void, usize);
    cuMemcpyHtoDAsync_v2(Address, *const c_void, usize, RawStream);
    cuMemcpyDtoHAsync_v2(*mut c_void, Address, usize, RawStream);
    cuMemcpyDtoDAsync_v2(Address, Address, usize, RawStream);
    cuMemcpy2DAsync_v2(*const sys::CUDA_MEMCPY2D, RawStream);
    cuGraphCreate(*mut RawGraph, c_uint);
    cuGraphAddKernelNode_v2(
        *mut RawNode, RawGraph, *const RawNode, usize, *const sys::CUDA_KERNEL_NODE_PARAMS
    );
    cuGraphAddMemcpyNode(
        *mut RawNode, RawGraph, *const RawNode, usize, *const sys::CUDA_MEMCPY3D, RawContext
    );
    cuGraphAddMemsetNode(
        *mut RawNode, RawGraph, *const RawNode, usize, *const sys::CUDA_MEMSET_NODE_PARAMS,
        RawContext
    );
    cuGraphAddChildGraphNode(*mut RawNode, RawGraph, *const RawNode, usize, RawGraph);
    cuGraphGetNodes(RawGraph, *mut RawNode, *mut usize);
    cuStreamBeginCapture_v2(RawStream, sys::CUstreamCaptureMode);
    cuStreamEndCapture(RawStream, *mut RawGraph);
    cuGraphInstantiateWithFlags(*mut RawGraphExec, RawGraph, c_ulonglong);
    cuGraphUpload(RawGraphExec, RawStream);
    cuGraphLaunch(RawGraphExec, RawStream);
    cuGraphExecKernelNodeSetParams_v2(
        RawGraphExec, RawNode, *const sys::CUDA_KERNEL_NODE_PARAMS
    );
    cuGraphExecDestroy(RawGraphExec);
    cuGraphDestroy(RawGraph);
}

functions! {
    /// Those that make parts of a GPU; drivers of CUDA 12.4 and later have them.
    PartFunctions:
    cuDeviceGetDevResource(sys::CUdevice, *mut Resource, sys::CUdevResourceType);
    cuDevSmResourceSplitByCount(
        *mut Resource, *mut c_uint, *const Resource, *mut Resource, c_uint, c_uint
    );
    cuDevResourceGenerateDesc(*mut sys::CUdevResourceDesc, *mut Resource, c_uint);
    cuGreenCtxCreate(*mut RawPart, sys::CUdevResourceDesc, sys::CUdevice, c_uint);
    cuGreenCtxDestroy(RawPart);
    cuCtxFromGreenCtx(*mut RawContext, RawPart);
}

/// The driver library.
#[derive(Debug)]
pub(super) struct Driver {
    pub functions: Functions,
    /// Loads a function that would be loaded lazily; drivers of CUDA 12.4 and later have it.
    pub load_function: Option<LoadFunction>,
    /// What makes parts of a GPU.
    pub parts: Option<PartFunctions>,
    error_name: Option<Describe>,
    error_text: Option<Describe>,
}

/// Finds the name or the text for a code.
type Describe = unsafe extern "C" fn(Code, *mut *const c_char) -> Code;

type LoadFunction = unsafe extern "C" fn(RawFunction) -> Code;

/// Finds the driver library's functions.
fn library() -> Result<Find, Error> {
    #[cfg(feature = "fault-injection")]
    if let Some(find) = faults::installed() {
        return Ok(find);
    }
    if loaded().is_none() {
        return Err(Error::Device(DeviceError::NoDriver { library: LIBRARY }));
    }
    Ok(|name| {
        // SAFETY: any function is a pointer.
        let found = unsafe { loaded()?.get::<*const c_void>(name) };
        found.ok().map(|found| *found)
    })
}

/// The driver library, if it is there. It stays loaded. Not `cudarc`'s: another crate of the program may have `cudarc` link
/// with it instead of loading it, and `cudarc` panics where it is absent.
fn loaded() -> Option<&'static Library> {
    static LOADED: OnceLock<Option<Library>> = OnceLock::new();
    // SAFETY: loading the driver runs its initialisers, as it does in every program that is linked with it.
    let load = |name| unsafe { Library::new(name) }.ok();
    LOADED.get_or_init(|| load(LIBRARY).or_else(|| load(LINKED))).as_ref()
}

impl Driver {
    /// The driver, ready to be used.
    pub fn get() -> Result<&'static Driver, Error> {
        static DRIVER: OnceLock<Result<Driver, Error>> = OnceLock::new();
        DRIVER.get_or_init(Driver::start).as_ref().map_err(Error::clone)
    }

    fn start() -> Result<Driver, Error> {
        let find = library()?;
        let functions = Functions::find(find).map_err(|missing| {
            Error::Device(DeviceError::DriverTooOld {
                found: format!("one without `{missing}`").into(),
            })
        })?;
        let describe = |name| {
            // SAFETY: the functions of these names have this signature.
            find(name).map(|found| unsafe { mem::transmute::<*const c_void, Describe>(found) })
        };
        let driver = Driver {
            functions,
            load_function: find("cuFuncLoad").map(|found| {
                // SAFETY: the function of this name has this signature.
                unsafe { mem::transmute::<*const c_void, LoadFunction>(found) }
            }),
            parts: PartFunctions::find(find).ok(),
            error_name: describe("cuGetErrorName"),
            error_text: describe("cuGetErrorString"),
        };
        #[cfg(feature = "fault-injection")]
        let driver = Driver {
            functions: driver.functions.with_faults(),
            load_function: driver
                .load_function
                .map(|load| faults::shim!(load, cuFuncLoad, RawFunction)),
            parts: driver.parts.map(PartFunctions::with_faults),
            ..driver
        };
        // The version first: it can be asked for before `cuInit`, and may explain why that fails.
        let version = driver.version().map_err(|error| match error {
            Error::Device(DeviceError::Driver { code: STUB_LIBRARY, .. }) => Error::Device(DeviceError::DriverStart {
                code: STUB_LIBRARY,
                message: format!(
                    "the `{LIBRARY}` that was found is only there to link with; take its folder out \
                     of `LD_LIBRARY_PATH`"
                )
                .into(),
            }),
            error => error,
        })?;
        if version < OLDEST {
            return Err(Error::Device(DeviceError::DriverTooOld {
                found: format_version(version).into(),
            }));
        }
        // SAFETY: takes no pointers.
        match unsafe { (driver.functions.cuInit)(0) } {
            SUCCESS => Ok(driver),
            code => Err(Error::Device(DeviceError::DriverStart {
                code,
                message: driver.describe("cuInit", code).into(),
            })),
        }
    }

    /// The newest CUDA that the driver knows, as `1000 * major + 10 * minor`.
    pub fn version(&self) -> Result<i32, Error> {
        let mut version = 0;
        // SAFETY: the pointer is valid.
        let code = unsafe { (self.functions.cuDriverGetVersion)(&raw mut version) };
        self.check("cuDriverGetVersion", code).map(|()| version)
    }

    /// The number of GPUs.
    pub fn count(&self) -> Result<u32, Error> {
        let mut devices = 0;
        // SAFETY: the pointer is valid.
        let code = unsafe { (self.functions.cuDeviceGetCount)(&raw mut devices) };
        self.check("cuDeviceGetCount", code).map(|()| devices.unsigned_abs())
    }

    /// The code as an error that says which call failed.
    pub fn check(&self, call: &'static str, code: Code) -> Result<(), Error> {
        let message = || self.describe(call, code).into();
        match code {
            SUCCESS => Ok(()),
            code if is_recoverable(code) => {
                Err(Error::Device(DeviceError::Driver { code, message: message() }))
            }
            _ => Err(Error::Device(DeviceError::ContextLost { message: message() })),
        }
    }

    /// The failed call and its error, in the driver's words.
    pub fn describe(&self, call: &str, code: Code) -> String {
        let name = ask(self.error_name, code).unwrap_or("an error without a name");
        let text = ask(self.error_text, code).unwrap_or("the driver does not say more");
        format!("{call}: {name} ({code}), {text}")
    }
}

fn ask(describe: Option<Describe>, code: Code) -> Option<&'static str> {
    let mut text = std::ptr::null();
    // SAFETY: the pointer is valid.
    if unsafe { describe?(code, &raw mut text) } != SUCCESS || text.is_null() {
        return None;
    }
    // SAFETY: the driver's own text, which ends with a zero and stays.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// Whether the context still works after a call returned `code`. For all other codes, the driver's manual says that the
/// process has to end or that the context is gone.
pub(super) fn is_recoverable(code: Code) -> bool {
    matches!(
        code,
        SUCCESS
            | INVALID_VALUE..=3
            // The profiler's, a stub library, a device that other processes hold.
            | 5..=8
            | 34
            | 46
            // Bad devices, images, contexts and modules.
            | 101..=213
            | 215..=219
            | 221..=225
            | 300..=399
            // Bad handles and names, and work that is not done.
            | 400..=699
            // A launch that asks for too much; peers; registered memory.
            | 701
            | 703..=708
            | 711..=713
            | 720
            // Operations that are not permitted or supported, and stream capture.
            | 800..=801
            | 900..=908
            | 910
            | 912..=918
    )
}

/// "CUDA 13.0" for 13000.
pub(super) fn format_version(version: i32) -> String {
    format!("CUDA {}.{}", version / 1000, version % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_context_are_not_recoverable() {
        // CUresult: deinitialized, uncorrectable ECC and NVLink errors, illegal address, timeout,
        // context destroyed, assert, hardware stack, instruction, alignment, address space, program
        // counter, launch failed, tensor memory leak, lost connections, external device, unknown.
        let gone = [4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999];
        for code in gone.into_iter().chain([802, 805, 806, 909, 911, 1000, u32::MAX]) {
            assert!(!is_recoverable(code), "{code}");
        }
        // Success, invalid value, out of memory, bad image, bad PTX, invalid handle, not found, not
        // ready, out of resources, not supported.
        for code in [0, 1, 2, 200, 218, 400, 500, 600, 701, 801] {
            assert!(is_recoverable(code), "{code}");
        }
    }

    #[test]
    fn versions_read_as_cudas() {
        assert_eq!(format_version(12_080), "CUDA 12.8");
        assert_eq!(format_version(13_000), "CUDA 13.0");
    }

    #[test]
    fn a_machine_without_a_driver_gets_an_error_that_can_be_printed() {
        match Driver::get() {
            Err(error @ Error::Device(DeviceError::NoDriver { .. })) => {
                let message = format!("{error} {error:?}");
                assert!(message.contains(LIBRARY) && message.contains("Device::cpu"), "{message}");
            }
            Err(error) => assert!(!error.to_string().is_empty()),
            Ok(driver) => {
                let message = driver.describe("cuInit", 100);
                assert!(message.contains("CUDA_ERROR_NO_DEVICE (100)"), "{message}");
                assert!(driver.describe("cuInit", 77_777).contains("77777"));
            }
        }
    }
}
