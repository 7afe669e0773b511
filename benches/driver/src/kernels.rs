//! Modules, entries, launches.

use std::ffi::{CString, c_void};
use std::{fmt, ptr};

use cudarc::driver::sys::{self, CUfunction_attribute as Attribute};
use preempt_device::abi::Cohort;
use preempt_device::host::{Args, Call, Dim3, Kernel};

use crate::gpu::{Error, check};
use crate::slicing;
use crate::stream::Stream;

/// A loaded module. It stays until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Module(sys::CUmodule);

impl Module {
    /// Loads PTX without changes.
    fn load_text(ptx: &str) -> Result<Module, Error> {
        let text = CString::new(ptx).unwrap_or_default();
        let mut module = ptr::null_mut();
        // SAFETY: the text ends with a zero.
        let loaded = unsafe { sys::cuModuleLoadData(&mut module, text.as_ptr().cast()) };
        check("cuModuleLoadData", loaded)?;
        Ok(Module(module))
    }

    /// Loads PTX as it is, when nothing runs.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn load_plain(ptx: &str) -> Result<Module, Error> {
        Module::load_text(ptx)
    }

    /// Loads PTX with these kernels, when nothing runs. Where registers would leave a preemptible entry fewer resident
    /// blocks than the plain one, its registers are bound so that it keeps them, as in preempt.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn load(ptx: &str, kernels: &[&'static Kernel]) -> Result<Module, Error> {
        let module = Module::load_text(ptx)?;
        let mut text = None;
        for kernel in kernels {
            let Some(block) = kernel.block else { continue };
            let (plain, preemptible) = (module.plain(kernel)?, module.preemptible(kernel)?);
            let blocks = plain.resident(block)?;
            if preemptible.resident(block)? < blocks {
                let warps = blocks * block.count().div_ceil(32) as u32;
                let registers = registers_for(warps).max(plain.registers()?);
                let source = text.as_deref().unwrap_or(ptx);
                text = Some(with_bound(source, kernel.name, registers));
            }
        }
        text.map_or(Ok(module), |text| Module::load_text(&text))
    }

    /// Loads PTX so that the plain entries of these kernels are [sliced](Launch::sliced), when nothing runs.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn load_sliced(ptx: &str, kernels: &[&'static Kernel]) -> Result<Module, Error> {
        let slice =
            |text: String, kernel: &&Kernel| slicing::sliced(&text, kernel.plain).unwrap_or(text);
        Module::load_text(&kernels.iter().fold(ptx.to_owned(), slice))
    }

    fn entry(self, name: &str, kernel: &'static Kernel) -> Result<KernelEntry, Error> {
        let text = CString::new(name).unwrap_or_default();
        let mut function = ptr::null_mut();
        // SAFETY: the module is never unloaded; the text ends with a zero.
        let found = unsafe { sys::cuModuleGetFunction(&mut function, self.0, text.as_ptr()) };
        check("cuModuleGetFunction", found)?;
        let entry = KernelEntry { function, shared: kernel.shared_bytes };
        // Where functions are loaded at their first use, this is the first use.
        entry.registers()?;
        Ok(entry)
    }

    /// The kernel's plain entry.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn plain(self, kernel: &'static Kernel) -> Result<KernelEntry, Error> {
        self.entry(kernel.plain, kernel)
    }

    /// The kernel's preemptible entry.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn preemptible(self, kernel: &'static Kernel) -> Result<KernelEntry, Error> {
        self.entry(kernel.name, kernel)
    }
}

/// The most registers of a thread with which an SM holds `warps` warps: each of its four parts has 16384, and gives a
/// warp a multiple of 256.
fn registers_for(warps: u32) -> u32 {
    16_384 / warps.div_ceil(4).max(1) / 256 * 8
}

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
pub struct KernelEntry {
    function: sys::CUfunction,
    /// Bytes of shared memory that a launch passes.
    shared: u32,
}

// SAFETY: a handle of the driver, which every thread may use; modules are never unloaded.
unsafe impl Send for KernelEntry {}
// SAFETY: as above.
unsafe impl Sync for KernelEntry {}

impl KernelEntry {
    /// Registers of a thread.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn registers(self) -> Result<u32, Error> {
        self.attribute(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)
    }

    fn attribute(self, attribute: Attribute) -> Result<u32, Error> {
        let mut value = 0;
        // SAFETY: the function is never unloaded.
        let result = unsafe { sys::cuFuncGetAttribute(&mut value, attribute, self.function) };
        check("cuFuncGetAttribute", result)?;
        Ok(value as u32)
    }

    /// Bytes of local memory of a thread: its stack, and registers that were spilled.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn local_bytes(self) -> Result<u32, Error> {
        self.attribute(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)
    }

    /// Lets its blocks have this much dynamic shared memory, which may be more than they get by default.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn allow_shared(self, bytes: u32) -> Result<(), Error> {
        let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is never unloaded.
        let result = unsafe { sys::cuFuncSetAttribute(self.function, attribute, bytes as i32) };
        check("cuFuncSetAttribute", result)
    }

    /// Blocks that an SM holds.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
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

/// A launch with all arguments of the driver's call.
pub struct Launch {
    entry: KernelEntry,
    grid: Dim3,
    block: Dim3,
    /// The first parameter of a preemptible entry.
    cohort: Option<Box<Cohort>>,
    /// The last parameters of a sliced entry.
    slice: Option<Box<[u32; slicing::PARAMETERS]>>,
    /// The address of each parameter: in `cohort`, `args` and `slice`.
    parameters: Vec<*mut c_void>,
    args: Args,
}

impl Launch {
    /// A launch of the plain entry of the call's kernel.
    pub fn plain(entry: KernelEntry, call: Call<'static>) -> Launch {
        let grid = call.grid_dim();
        Launch::new(entry, call, grid, None, None)
    }

    /// Launches of parts of the call's grid, each of which is chosen by [`set_slice`](Launch::set_slice). The
    /// entry is a plain one of a module that was loaded sliced.
    pub fn sliced(entry: KernelEntry, call: Call<'static>) -> Launch {
        let Dim3 { x, y, z } = call.grid_dim();
        Launch::new(entry, call, Dim3::from(1), None, Some(Box::new([0, x, y, z])))
    }

    /// A launch of the preemptible entry of the call's kernel.
    pub fn preemptible(entry: KernelEntry, call: Call<'static>, cohort: Cohort) -> Launch {
        Launch::new(entry, call, Dim3::from(cohort.blocks), Some(Box::new(cohort)), None)
    }

    fn new(
        entry: KernelEntry,
        call: Call<'static>,
        grid: Dim3,
        cohort: Option<Box<Cohort>>,
        slice: Option<Box<[u32; slicing::PARAMETERS]>>,
    ) -> Launch {
        let block = call.kernel().block.or(call.block_dim()).unwrap_or(Dim3::from(1));
        // More than the driver accepts, if it is more than 32 bits can say.
        let shared = call.shared_bytes().try_into().unwrap_or(u32::MAX);
        let entry = KernelEntry { shared, ..entry };
        let args = call.into_args();
        let first = cohort.as_deref().map(|cohort| ptr::from_ref(cohort).cast::<u8>());
        let last = slice.as_deref().into_iter().flatten().map(|word| ptr::from_ref(word).cast());
        let parameters = first.into_iter().chain(args.pointers()).chain(last);
        let parameters = parameters.map(|parameter| parameter.cast_mut().cast()).collect();
        Launch { entry, grid, block, cohort, slice, parameters, args }
    }

    /// Sets the cohort of the next launch.
    pub fn set_cohort(&mut self, next: Cohort) {
        if let Some(cohort) = &mut self.cohort {
            **cohort = next;
            self.grid = Dim3::from(next.blocks);
            self.parameters[0] = ptr::from_mut(&mut **cohort).cast();
        }
    }

    /// Sets the next launch to `blocks` blocks from `first` on.
    pub fn set_slice(&mut self, first: u32, blocks: u32) {
        if let Some(slice) = &mut self.slice {
            slice[0] = first;
            let at = self.parameters.len() - slicing::PARAMETERS;
            for (place, word) in self.parameters[at..].iter_mut().zip(slice.iter()) {
                *place = ptr::from_ref(word).cast_mut().cast();
            }
            self.grid = Dim3::from(blocks);
        }
    }

    /// The launch as a node of a graph.
    pub(crate) fn node(&self) -> sys::CUDA_KERNEL_NODE_PARAMS {
        sys::CUDA_KERNEL_NODE_PARAMS {
            func: self.entry.function,
            gridDimX: self.grid.x,
            gridDimY: self.grid.y,
            gridDimZ: self.grid.z,
            blockDimX: self.block.x,
            blockDimY: self.block.y,
            blockDimZ: self.block.z,
            sharedMemBytes: self.entry.shared,
            kernelParams: self.parameters.as_ptr().cast_mut(),
            extra: ptr::null_mut(),
            kern: ptr::null_mut(),
            ctx: ptr::null_mut(),
        }
    }

    /// Launches the kernel.
    ///
    /// # Safety
    ///
    /// The arguments, and the memory that the cohort names, are valid until the kernel has ended. Meanwhile no other
    /// work uses them in ways that the kernel excludes.
    ///
    /// # Errors
    ///
    /// Errors of the driver, of earlier work too.
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
    fn registers_are_shared_by_warps() {
        let registers = [64, 63, 48, 24, 28, 8, 1].map(registers_for);
        assert_eq!(registers, [32, 32, 40, 80, 72, 256, 512]);
    }

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
