//! Modules, entries, launches.

use std::ffi::{CString, c_void};
use std::{fmt, ptr};

use cudarc::driver::sys::{self, CUfunction_attribute as Attribute};
use preempt_device::abi::Cohort;
use preempt_device::host::{Args, Call, Dim3, Kernel};

use crate::gpu::{Error, check};
use crate::stream::Stream;

/// A loaded module. It stays until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Module(sys::CUmodule);

impl Module {
    /// Loads PTX as it is.
    fn load_text(ptx: &str) -> Result<Module, Error> {
        let text = CString::new(ptx).unwrap_or_default();
        let mut module = ptr::null_mut();
        // SAFETY: the text ends with a zero.
        let loaded = unsafe { sys::cuModuleLoadData(&mut module, text.as_ptr().cast()) };
        check("cuModuleLoadData", loaded)?;
        Ok(Module(module))
    }

    /// Loads PTX with these kernels, when nothing runs. Where one of their preemptible entries would
    /// lose resident blocks to registers, it gets as many registers as the plain one, as preempt does
    /// it.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn load(ptx: &str, kernels: &[&'static Kernel]) -> Result<Module, Error> {
        let module = Module::load_text(ptx)?;
        let mut text = None;
        for kernel in kernels {
            let Some(block) = kernel.block else { continue };
            let (plain, preemptible) = (module.plain(kernel)?, module.preemptible(kernel)?);
            if preemptible.resident(block)? < plain.resident(block)? {
                let registers = plain.registers()?.next_multiple_of(REGISTER_UNIT);
                let source = text.as_deref().unwrap_or(ptx);
                text = Some(with_bound(source, kernel.name, registers));
            }
        }
        text.map_or(Ok(module), |text| Module::load_text(&text))
    }

    fn entry(self, name: &str, kernel: &'static Kernel) -> Result<Entry, Error> {
        let text = CString::new(name).unwrap_or_default();
        let mut function = ptr::null_mut();
        // SAFETY: the module is never unloaded; the text ends with a zero.
        let found = unsafe { sys::cuModuleGetFunction(&mut function, self.0, text.as_ptr()) };
        check("cuModuleGetFunction", found)?;
        let entry = Entry { function, shared: kernel.shared_bytes };
        // Where functions are loaded when they are first used, this is the first use.
        entry.registers()?;
        Ok(entry)
    }

    /// The kernel's plain entry.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn plain(self, kernel: &'static Kernel) -> Result<Entry, Error> {
        self.entry(kernel.plain, kernel)
    }

    /// The kernel's preemptible entry.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn preemptible(self, kernel: &'static Kernel) -> Result<Entry, Error> {
        self.entry(kernel.name, kernel)
    }
}

/// Registers of a thread are allocated in multiples of this.
const REGISTER_UNIT: u32 = 8;

/// The text with a register bound for the entry `name`.
fn with_bound(ptx: &str, name: &str, registers: u32) -> String {
    let head = format!(".entry {name}(");
    let body = ptx.find(&head).and_then(|at| Some(at + ptx[at..].find('{')?));
    let Some(body) = body else { return ptx.to_owned() };
    let (before, after) = ptx.split_at(body);
    format!("{before}.maxnreg {registers}\n{after}")
}

/// A function that can be launched.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    function: sys::CUfunction,
    /// Bytes of shared memory that a launch passes.
    shared: u32,
}

// SAFETY: a handle of the driver, which every thread may use; modules are never unloaded.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

impl Entry {
    /// Registers of a thread.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn registers(self) -> Result<u32, Error> {
        let mut value = 0;
        let attribute = Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS;
        // SAFETY: the function is never unloaded.
        let result = unsafe { sys::cuFuncGetAttribute(&mut value, attribute, self.function) };
        check("cuFuncGetAttribute", result)?;
        Ok(value as u32)
    }

    /// Blocks that an SM holds.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn resident(self, block: Dim3) -> Result<u32, Error> {
        let (mut blocks, threads) = (0, block.count() as i32);
        // SAFETY: the function is never unloaded.
        let result = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                self.function,
                threads,
                self.shared as usize,
            )
        };
        check("cuOccupancyMaxActiveBlocksPerMultiprocessor", result)?;
        Ok(blocks as u32)
    }
}

/// A launch with everything that the driver's call takes.
pub struct Launch {
    entry: Entry,
    grid: Dim3,
    block: Dim3,
    /// The first parameter of a preemptible entry.
    cohort: Option<Box<Cohort>>,
    /// Where each parameter is: in `cohort` and `args`.
    parameters: Vec<*mut c_void>,
    args: Args,
}

impl Launch {
    /// A launch of the plain entry of the call's kernel.
    pub fn plain(entry: Entry, call: Call) -> Launch {
        let grid = call.grid_dim();
        Launch::new(entry, call, grid, None)
    }

    /// A launch of the preemptible entry of the call's kernel.
    pub fn preemptible(entry: Entry, call: Call, cohort: Cohort) -> Launch {
        Launch::new(entry, call, Dim3::from(cohort.blocks), Some(Box::new(cohort)))
    }

    fn new(entry: Entry, call: Call, grid: Dim3, cohort: Option<Box<Cohort>>) -> Launch {
        let block = call.kernel().block.or(call.block_dim()).unwrap_or(Dim3::from(1));
        let args = call.into_args();
        let first = cohort.as_deref().map(|cohort| ptr::from_ref(cohort).cast::<u8>());
        let parameters = first.into_iter().chain(args.pointers());
        let parameters = parameters.map(|parameter| parameter.cast_mut().cast()).collect();
        Launch { entry, grid, block, cohort, parameters, args }
    }

    /// Another cohort for the next launch, of as many blocks.
    pub fn set_cohort(&mut self, next: Cohort) {
        if let Some(cohort) = &mut self.cohort {
            **cohort = next;
            self.parameters[0] = ptr::from_mut(&mut **cohort).cast();
        }
    }

    /// Launches it.
    ///
    /// # Safety
    ///
    /// The arguments are valid, and no longer used by others in ways that the kernel excludes, until
    /// the kernel has ended; so is what the cohort names.
    ///
    /// # Errors
    ///
    /// What the driver says, of earlier work too.
    #[inline]
    pub unsafe fn on(&self, stream: &Stream) -> Result<(), Error> {
        let (grid, block) = (self.grid, self.block);
        let parameters = self.parameters.as_ptr().cast_mut();
        // SAFETY: the parameters are those of the entry, as the call was made for its kernel, and
        // the driver copies them; the rest is the caller's promise.
        let result = unsafe {
            sys::cuLaunchKernel(
                self.entry.function,
                grid.x,
                grid.y,
                grid.z,
                block.x,
                block.y,
                block.z,
                self.entry.shared,
                stream.0,
                parameters,
                ptr::null_mut(),
            )
        };
        check("cuLaunchKernel", result)
    }
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch")
            .field("grid", &self.grid)
            .field("block", &self.block)
            .field("args", &self.args)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_bound_stands_before_the_body_of_its_entry() {
        let plain =
            ".visible .entry k__plain(\n)\n{ ret; }\n.visible .entry k(\n\t.param .u64 p\n)\n";
        let ptx = format!("{plain}{{ ret; }}\n");
        let expected = format!("{plain}.maxnreg 32\n{{ ret; }}\n");
        assert_eq!(with_bound(&ptx, "k", 32), expected);
        assert_eq!(with_bound(&ptx, "another", 32), ptx);
    }
}
