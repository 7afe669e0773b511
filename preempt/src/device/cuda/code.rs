//! Device code, compiled by the driver and loaded as a whole.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::CUjit_option;
use preempt_ptx_text::{PANIC_VARIABLE, SM_NUMBERS, with_sm_numbers};

use super::context::{Context, call};
use super::driver::{FunctionAttribute, RawFunction, RawModule};
use super::parts::Part;
use crate::error::{CodeError, DeviceError, Error};

/// Bytes for the messages of the driver's compiler about code that it refuses.
const LOG_BYTES: usize = 8192;

/// A loaded module.
#[derive(Debug)]
pub(super) struct Code {
    raw: RawModule,
    context: Arc<Context>,
}

// SAFETY: driver functions can be called with a module from any thread.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

/// An entry of a loaded module, valid as long as the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function(pub RawFunction);

// SAFETY: driver functions can be called with a function from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Code {
    /// Compiles and loads `ptx`; `name` is its name in errors. The context is entered, and nothing of ours runs,
    /// because loading may wait for everything.
    pub fn load(context: &Arc<Context>, name: &str, ptx: &str) -> Result<Code, Error> {
        let refused = |message: String| {
            Error::Code(CodeError::NotLoaded { module: name.into(), message: message.into() })
        };
        let numbers = context.part().and_then(Part::numbers);
        let numbered = match numbers {
            Some(_) => with_sm_numbers(ptx).map_err(|statement| {
                refused(format!(
                    "on a part of a GPU, SMs are numbered anew, and this is not known: {statement}"
                ))
            })?,
            None => None,
        };
        let text = numbered.as_deref().unwrap_or(ptx);
        let text = CString::new(text).map_err(|_| refused("it has a zero byte".into()))?;
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        // The driver takes numbers in place of pointers.
        let size = ptr::without_provenance_mut::<c_void>(LOG_BYTES);
        let mut values = [log.as_mut_ptr().cast::<c_void>(), size];
        let mut raw = ptr::null_mut();
        // SAFETY: the text ends with a zero, and the pointers are valid for what the options say.
        let result = unsafe {
            call!(
                context,
                cuModuleLoadDataEx(
                    &raw mut raw,
                    text.as_ptr().cast(),
                    options.len() as u32,
                    options.as_mut_ptr(),
                    values.as_mut_ptr(),
                )
            )
        };
        match result {
            Ok(()) => {
                let code = Code { raw, context: context.clone() };
                if let (Some(numbers), Some(_)) = (numbers, numbered) {
                    code.write(SM_NUMBERS, numbers)?;
                }
                Ok(code)
            }
            Err(Error::Device(DeviceError::Driver { message, .. })) => {
                let log = log.split(|byte| *byte == 0).next().unwrap_or_default();
                let log = String::from_utf8_lossy(log);
                Err(refused(format!("{message}; {}", log.trim()).trim_end_matches("; ").to_owned()))
            }
            Err(error) => Err(error),
        }
    }

    /// Has panics in the module's kernels written to the record at this address. The context is entered, no kernel of the
    /// module runs, and its PTX has the variable.
    pub fn record_panics(&self, record: u64) -> Result<(), Error> {
        // It starts with the address.
        self.write(PANIC_VARIABLE, &[record])
    }

    /// Writes the first elements of a variable of the module, which nothing uses yet. The context is entered.
    fn write<T: Copy>(&self, variable: &CStr, elements: &[T]) -> Result<(), Error> {
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: the pointers are valid, and the name ends with a zero.
        unsafe {
            call!(
                self.context,
                cuModuleGetGlobal_v2(&raw mut address, &raw mut bytes, self.raw, variable.as_ptr())
            )?;
        }
        let len = size_of_val(elements).min(bytes);
        // SAFETY: within the variable and the elements, and no kernel of the module runs.
        unsafe { call!(self.context, cuMemcpyHtoD_v2(address, elements.as_ptr().cast(), len)) }
    }

    /// The entry of this name, with everything that the driver would load at its first launch. Beside a kernel that
    /// stays on the device, that load would wait for ever.
    pub fn function(&self, name: &str) -> Result<Function, Error> {
        let missing = |_| {
            Error::Code(CodeError::NotLoaded { module: name.into(), message: "a bad name".into() })
        };
        let text = CString::new(name).map_err(missing)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the pointers are valid, and the name ends with a zero.
        unsafe { call!(self.context, cuModuleGetFunction(&raw mut raw, self.raw, text.as_ptr()))? };
        let function = Function(raw);
        function.load(&self.context).map(|()| function)
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        if self.context.is_freeable()
            && let Ok(_entered) = self.context.enter()
        {
            // SAFETY: loaded once, in `load`, and nothing of it runs.
            unsafe { (self.context.functions().cuModuleUnload)(self.raw) };
        }
    }
}

impl Function {
    /// Loads everything that the driver would load at the first launch.
    pub fn load(self, context: &Context) -> Result<(), Error> {
        if let Some(load) = context.driver().load_function {
            // SAFETY: the function exists.
            context.check("cuFuncLoad", unsafe { load(self.0) })?;
        }
        // Older drivers load a function when it is asked about.
        self.attribute(context, FunctionAttribute::CU_FUNC_ATTRIBUTE_NUM_REGS).map(drop)
    }

    pub fn attribute(self, context: &Context, attribute: FunctionAttribute) -> Result<u32, Error> {
        let mut value: c_int = 0;
        // SAFETY: the pointer is valid, and the function exists.
        unsafe { call!(context, cuFuncGetAttribute(&raw mut value, attribute, self.0))? };
        Ok(value.max(0).unsigned_abs())
    }

    pub fn set_attribute(
        self,
        context: &Context,
        attribute: FunctionAttribute,
        value: i32,
    ) -> Result<(), Error> {
        // SAFETY: the function exists.
        unsafe { call!(context, cuFuncSetAttribute(self.0, attribute, value)) }
    }

    /// Blocks that one SM holds, by their threads and bytes of dynamic shared memory.
    pub fn occupancy(self, context: &Context, threads: u32, shared: u32) -> Result<u32, Error> {
        let mut blocks: c_int = 0;
        // SAFETY: the pointer is valid, and the function exists.
        unsafe {
            call!(
                context,
                cuOccupancyMaxActiveBlocksPerMultiprocessor(
                    &raw mut blocks,
                    self.0,
                    threads as c_int,
                    shared as usize,
                )
            )?;
        }
        Ok(blocks.max(0).unsigned_abs())
    }
}
