//! The functions and modules of kernels, and how many of their blocks an SM holds.

use std::collections::{BTreeMap, HashMap};
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use cudarc::driver::sys::CUlimit;
use preempt_device::abi::Cohort;
use preempt_device::host::{Dim3, Kernel};
use rustc_hash::FxHashMap;

use super::code::{Code, Function};
use super::context::{Context, call};
use super::driver::{DeviceAttribute, FunctionAttribute};
use super::lock;
use super::panics::{self, PanicRecords};
use super::registers::Sm;
use crate::device::KernelLaunch;
use crate::error::{CodeError, ConfigurationError, DeviceError, Error};
use crate::module::{DeviceCode, LoadedModule, Module};
use preempt_ptx_text::{
    self as ptx, EARLY_CAPABILITY, Functions, blanked, block_threads, bound_registers,
    check_functions, cooperates, first_parameter_bytes, functions, shared_variables, waits,
    with_waits,
};

/// Bytes of shared memory that a block gets by default; a kernel opts into more.
const SHARED_BY_DEFAULT: u32 = 48 << 10;

/// Bytes of each block's shared memory that the system reserves.
const SHARED_PER_BLOCK: u32 = 1 << 10;

/// For [`FunctionAttribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT`].
const CARVEOUT_DEFAULT: i32 = -1;
const CARVEOUT_MAX_SHARED: i32 = 100;

/// What the preemptible entry of a kernel with a checkpoint has in the PTX (`preempt_device::target`).
const CHECKPOINT: &str = "// preempt.checkpoint";

// What to do about a kernel without device code.
const NO_MODULE: &str = "call `.kernels(include_kernels!(..))` with its crate on the scheduler's builder; kernels for a \
    GPU live in a crate of their own that a build script compiles";
const NO_PTX: &str =
    "the build found no device toolchain; the build script's warnings say what to install";
const NO_ENTRY: &str = "the PTX that `include_kernels!` embeds for this crate lacks the kernel. The build script of \
    the package with `include_kernels!` made it: build that package anew, and run `preempt-ptx` if the PTX is \
    committed. A kernel is in no PTX if it is inside of a generic function or `impl`, or if a `#[cfg]` or feature of \
    the host alone includes it";

/// The kernels that can be launched.
#[derive(Debug)]
pub(super) struct Kernels {
    context: Arc<Context>,
    sm: Sm,
    /// Whether the GPU can start a grid before the one before it is over.
    starts_early: bool,
    shared_per_block: u32,
    shared_per_sm: u32,
    /// Every module that was ever loaded, by where its text is.
    loaded: Mutex<HashMap<(usize, usize), Arc<Loaded>>>,
    /// The modules that the scheduler has.
    current: RwLock<Vec<Current>>,
    prepared: RwLock<Prepared>,
    /// Held while a kernel is prepared.
    preparing: Mutex<()>,
    panics: Arc<PanicRecords>,
}

/// By the kernel's address, and a block's threads and bytes of shared memory. There are at most as many sizes as bytes that
/// a block can have.
type Prepared = FxHashMap<(usize, BlockSize), Launchable>;

/// What a block takes of its SM, besides registers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct BlockSize {
    threads: u32,
    /// Bytes of dynamic shared memory.
    shared: u32,
}

/// A kernel with a block size, as a launch needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Launchable {
    pub function: Function,
    /// The plain entry.
    pub plain: Function,
    /// Whether no thread may start the next block-task before all threads have ended the present one.
    pub cooperates: bool,
    /// Whether the entry can start early, because it waits by itself.
    pub waits: bool,
    pub blocks_per_sm: u32,
    /// Blocks on an SM that holds the proxy.
    pub beside_proxy: u32,
    /// Bytes of shared memory of all blocks on an SM.
    pub shared_on_sm: u32,
}

/// A module that the scheduler has.
#[derive(Debug)]
struct Current {
    name: &'static str,
    /// `None` if it came without PTX.
    code: Option<Arc<Loaded>>,
}

/// A module with its preemptible entries.
#[derive(Debug)]
struct Loaded {
    entries: HashMap<String, LoadedEntry>,
    _keep: Keep,
}

/// The owner that keeps functions in place.
#[derive(Debug)]
#[expect(dead_code, reason = "it is only dropped")]
enum Keep {
    Code(Code),
    Module(OthersModule),
}

/// A module of other code, which is unloaded when its last owner drops it.
#[derive(Debug)]
struct OthersModule {
    module: ManuallyDrop<LoadedModule>,
    context: Arc<Context>,
}

impl Drop for OthersModule {
    fn drop(&mut self) {
        // Otherwise kernels of the module may still run.
        if self.context.is_freeable() {
            let _entered = self.context.enter();
            // SAFETY: here and nowhere else.
            unsafe { ManuallyDrop::drop(&mut self.module) };
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct LoadedEntry {
    function: Function,
    plain: Function,
    cooperates: bool,
    waits: bool,
    registers: u32,
    /// The most threads in a block that its registers allow.
    threads_per_block: u32,
    /// Bytes of shared memory beside the dynamic, including the worker loop's.
    static_shared: u32,
}

impl Kernels {
    pub fn new(
        context: &Arc<Context>,
        (shared_per_block, shared_per_sm): (u32, u32),
    ) -> Result<Kernels, Error> {
        use DeviceAttribute::*;
        let threads = context.attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?;
        let warp = context.attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE)?;
        let sm = Sm {
            registers: context.attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
            warps: threads / warp.max(1),
            blocks: context.attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR)?,
        };
        let major = context.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let panics = Arc::<PanicRecords>::default();
        context.explain_by(&panics);
        Ok(Kernels {
            panics,
            context: context.clone(),
            sm,
            starts_early: 10 * major >= EARLY_CAPABILITY,
            shared_per_block,
            shared_per_sm,
            loaded: Mutex::default(),
            current: RwLock::default(),
            prepared: RwLock::default(),
            preparing: Mutex::default(),
        })
    }

    /// Loads modules that are not loaded yet, and makes their kernels, and no others, launchable. The context is
    /// entered, and nothing of ours runs. Returns whether one of the kernels has a checkpoint.
    pub fn load(&self, code: &[DeviceCode]) -> Result<bool, Error> {
        let mut loaded = lock(&self.loaded);
        let mut current = Vec::with_capacity(code.len());
        for code in code {
            current.push(match code {
                DeviceCode::Embedded(module) => {
                    let code = module.ptx().map(|ptx| self.embedded(&mut loaded, module, ptx));
                    Current { name: module.name(), code: code.transpose()? }
                }
                DeviceCode::Loaded(module) => {
                    let code = Loaded::by_others(&self.context, module)?;
                    Current { name: module.name, code: Some(Arc::new(code)) }
                }
            });
        }
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
        self.prepared.write().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(code.iter().any(|code| match code {
            DeviceCode::Embedded(module) => {
                module.ptx().is_some_and(|ptx| ptx.contains(CHECKPOINT))
            }
            DeviceCode::Loaded(module) => module.ptx.contains(CHECKPOINT),
        }))
    }

    /// A module that is or was loaded here.
    fn embedded(
        &self,
        loaded: &mut HashMap<(usize, usize), Arc<Loaded>>,
        module: &Module,
        ptx: &'static str,
    ) -> Result<Arc<Loaded>, Error> {
        // The text is never freed, so no other text has its address.
        let key = (ptx.as_ptr().addr(), ptx.len());
        if let Some(code) = loaded.get(&key) {
            return Ok(code.clone());
        }
        let with_waits = self.starts_early.then(|| with_waits(ptx)).flatten();
        let ptx = with_waits.as_deref().unwrap_or(ptx);
        let load = |ptx, panics| Loaded::new(&self.context, module.name(), ptx, self.sm, panics);
        let code = match panics::recording(ptx) {
            None => load(ptx, None)?,
            Some(recording) => match load(&recording, Some(&*self.panics)) {
                // Its kernels run without records as well, and what is wrong is said of the text as it was given.
                Err(Error::Code(CodeError::NotLoaded { .. })) => load(ptx, None)?,
                loaded => loaded?,
            },
        };
        Ok(loaded.entry(key).or_insert(Arc::new(code)).clone())
    }

    /// What a launch of `kernel` needs.
    #[inline]
    pub fn get(
        &self,
        kernel: &'static Kernel,
        block: Dim3,
        shared: u32,
    ) -> Result<Launchable, Error> {
        let threads = block.count().try_into().unwrap_or(u32::MAX);
        let key = (std::ptr::from_ref(kernel).addr(), BlockSize { threads, shared });
        let prepared =
            self.prepared.read().unwrap_or_else(PoisonError::into_inner).get(&key).copied();
        match prepared {
            Some(launchable) => Ok(launchable),
            None => self.prepare(kernel, block, key),
        }
    }

    /// What this launch needs.
    pub fn of(&self, launch: &KernelLaunch) -> Result<Launchable, Error> {
        self.get(launch.kernel, launch.block, launch.shared_bytes())
    }

    #[cold]
    fn prepare(
        &self,
        kernel: &'static Kernel,
        block: Dim3,
        key: (usize, BlockSize),
    ) -> Result<Launchable, Error> {
        let _entered = self.context.enter()?;
        let _preparing = lock(&self.preparing);
        let entry = self.find(kernel)?;
        let blocks_per_sm = self.occupancy(kernel, entry, block, key.1)?;
        let LoadedEntry { function, plain, cooperates, waits, .. } = entry;
        let beside_proxy = self.beside_proxy(entry, key.1, blocks_per_sm);
        let shared = key.1.shared.saturating_add(entry.static_shared + SHARED_PER_BLOCK);
        let shared_on_sm = blocks_per_sm.saturating_mul(shared);
        let launchable = Launchable {
            function,
            plain,
            cooperates,
            waits,
            blocks_per_sm,
            beside_proxy,
            shared_on_sm,
        };
        self.prepared.write().unwrap_or_else(PoisonError::into_inner).insert(key, launchable);
        Ok(launchable)
    }

    fn find(&self, kernel: &'static Kernel) -> Result<LoadedEntry, Error> {
        let name = kernel.module.split("::").next().unwrap_or(kernel.module);
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let modules = current.iter().filter(|current| current.name == name);
        let mut what_to_do = NO_MODULE;
        for Current { code, .. } in modules {
            what_to_do = match code {
                None => NO_PTX,
                Some(code) => match code.entries.get(kernel.entry) {
                    Some(entry) => return Ok(*entry),
                    None => NO_ENTRY,
                },
            };
        }
        Err(Error::Code(CodeError::Missing { kernel: kernel.name, module: name, what_to_do }))
    }

    /// Blocks on an SM that holds the proxy, if `blocks` fit there otherwise.
    fn beside_proxy(&self, entry: LoadedEntry, size: BlockSize, blocks: u32) -> u32 {
        let warps = blocks * size.threads.div_ceil(32);
        let shared = size.shared.saturating_add(entry.static_shared + SHARED_PER_BLOCK);
        let fits = blocks < self.sm.blocks
            && warps < self.sm.warps
            && self.sm.holds_beside(entry.registers, warps)
            && blocks.saturating_mul(shared).saturating_add(SHARED_PER_BLOCK) <= self.shared_per_sm;
        blocks - u32::from(!fits && blocks > 0)
    }

    /// Blocks per SM; 0 if there is not enough shared memory.
    fn occupancy(
        &self,
        kernel: &'static Kernel,
        entry: LoadedEntry,
        block: Dim3,
        BlockSize { threads, shared: dynamic }: BlockSize,
    ) -> Result<u32, Error> {
        use FunctionAttribute::*;
        let LoadedEntry { function, plain, registers, threads_per_block, static_shared, .. } =
            entry;
        let too_many_registers = Error::Configuration(ConfigurationError::Registers {
            kernel: kernel.name,
            registers,
            block,
            threads: threads_per_block,
        });
        if threads > threads_per_block {
            return Err(too_many_registers);
        }
        let context = &self.context;
        let shared = dynamic.saturating_add(static_shared);
        if shared > self.shared_per_block {
            return Ok(0);
        }
        if shared > SHARED_BY_DEFAULT {
            // All that a block can have, because launches of other sizes must not lower the limit of this one.
            let bytes = (self.shared_per_block - static_shared).try_into().unwrap_or(i32::MAX);
            let attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            function.set_attribute(context, attribute, bytes)?;
            plain.set_attribute(context, attribute, bytes)?;
        }
        let mut blocks = function.occupancy(context, threads, dynamic)?;
        let carveout = CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        // A launch with a larger block may need the split that it chose.
        let is_chosen = function.attribute(context, carveout)? == CARVEOUT_MAX_SHARED as u32;
        if dynamic > 0 && !is_chosen {
            // Only where the driver would give the SM's memory to its cache: changing the split takes an SM without
            // blocks.
            function.set_attribute(context, carveout, CARVEOUT_MAX_SHARED)?;
            let most = function.occupancy(context, threads, dynamic).and_then(|most| {
                if most > blocks {
                    plain.set_attribute(context, carveout, CARVEOUT_MAX_SHARED)?;
                }
                Ok(most)
            });
            // After an error, too: the next attempt would take the present split for the default.
            if !most.as_ref().is_ok_and(|most| *most > blocks) {
                function.set_attribute(context, carveout, CARVEOUT_DEFAULT)?;
            }
            blocks = blocks.max(most?);
        }
        match (blocks, dynamic) {
            (0, 0) => Err(too_many_registers),
            _ => Ok(blocks),
        }
    }
}

impl Loaded {
    /// Loads `ptx`; with `panics` if its panics leave records.
    fn new(
        context: &Arc<Context>,
        module: &'static str,
        ptx: &str,
        sm: Sm,
        panics: Option<&PanicRecords>,
    ) -> Result<Loaded, Error> {
        let text = blanked(ptx);
        let functions = functions(&text);
        let kernels = preemptible(module, &text, &functions)?;
        let mut code = Code::load(context, module, ptx)?;
        let mut touched = touch(&functions, |name| code.function(name))?;

        let registers = |name: &str| {
            let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_NUM_REGS;
            touched.get(name).map(|function| function.attribute(context, attribute)).transpose()
        };
        let bounds = register_bounds(sm, ptx, &functions, &kernels, registers)?;
        if !bounds.is_empty() {
            let bound = bound_registers(ptx, &functions, &bounds);
            match Code::load(context, module, &bound) {
                Ok(bound) => {
                    touched = touch(&functions, |name| bound.function(name))?;
                    code = bound;
                }
                Err(error @ Error::Device(DeviceError::ContextLost { .. })) => return Err(error),
                // The kernel runs without the bound, if on fewer blocks.
                Err(_) => {}
            }
        }
        let entries = entries(context, &text, &functions, &kernels, &touched)?;
        if let Some(panics) = panics {
            code.record_panics(panics.add(context, &functions)?)?;
        }
        Ok(Loaded { entries, _keep: Keep::Code(code) })
    }

    /// A module that the application has loaded.
    fn by_others(context: &Arc<Context>, module: &LoadedModule) -> Result<Loaded, Error> {
        let text = blanked(&module.ptx);
        let functions = functions(&text);
        let kernels = preemptible(module.name, &text, &functions)?;
        let find = |name: &str| {
            let function = Function((module.find)(name)?.cast());
            function.load(context).map(|()| function)
        };
        let touched = touch(&functions, find)?;
        let entries = entries(context, &text, &functions, &kernels, &touched)?;
        let (module, context) = (ManuallyDrop::new(module.clone()), context.clone());
        Ok(Loaded { entries, _keep: Keep::Module(OthersModule { module, context }) })
    }
}

/// Register bounds by the names of preemptible entries. An entry has one if its registers cost blocks: an SM holds
/// fewer of them than of the plain entry. `registers` are those of an entry, if there is one.
fn register_bounds<'a>(
    sm: Sm,
    ptx: &str,
    functions: &Functions<'a>,
    kernels: &[ptx::Kernel<'a>],
    registers: impl Fn(&str) -> Result<Option<u32>, Error>,
) -> Result<BTreeMap<&'a str, u32>, Error> {
    let mut bounds = BTreeMap::new();
    for &ptx::Kernel { preemptible, plain, .. } in kernels {
        let (Some(taken), Some(plain)) = (registers(preemptible)?, registers(plain)?) else {
            continue;
        };
        // If the PTX has a number, all blocks have that many threads, because launches with others are refused.
        let threads = functions.get(preemptible).and_then(|entry| block_threads(ptx, entry));
        if let Some(bound) = sm.bound(taken, plain, threads) {
            bounds.insert(preemptible, bound);
        }
    }
    Ok(bounds)
}

/// The launchables of each kernel, by the name of its preemptible entry. Reserves the local memory that they need.
fn entries(
    context: &Context,
    text: &str,
    functions: &Functions<'_>,
    kernels: &[ptx::Kernel<'_>],
    touched: &HashMap<&str, Function>,
) -> Result<HashMap<String, LoadedEntry>, Error> {
    use FunctionAttribute::*;
    let shared = shared_variables(text);
    let mut entries = HashMap::new();
    let mut stack = 0;
    for &ptx::Kernel { preemptible: name, plain, .. } in kernels {
        let (Some(&function), Some(&plain)) = (touched.get(name), touched.get(plain)) else {
            continue;
        };
        let of_function = |attribute| function.attribute(context, attribute);
        stack = stack.max(of_function(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?);
        let entry = LoadedEntry {
            function,
            plain,
            cooperates: cooperates(name, &shared, functions),
            waits: functions.get(name).is_some_and(waits),
            registers: of_function(CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            threads_per_block: of_function(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            static_shared: of_function(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
        };
        entries.insert(name.to_owned(), entry);
    }
    reserve_stack(context, stack as usize)?;
    Ok(entries)
}

/// The preemptible kernels of a valid module.
fn preemptible<'a>(
    module: &'static str,
    text: &str,
    functions: &Functions<'a>,
) -> Result<Vec<ptx::Kernel<'a>>, Error> {
    if let Err(fault) = check_functions(text, functions) {
        return Err(Error::Code(CodeError::Refused { module, fault }));
    }
    let kernels = ptx::kernels(functions);
    let is_fresh = |kernel: &ptx::Kernel<'_>| {
        let entry = functions.get(kernel.preemptible);
        entry.and_then(first_parameter_bytes) == Some(size_of::<Cohort>())
    };
    match kernels.iter().all(is_fresh) {
        true => Ok(kernels),
        false => Err(Error::Code(CodeError::Stale { module })),
    }
}

/// Loads every entry.
fn touch<'a>(
    functions: &Functions<'a>,
    find: impl Fn(&str) -> Result<Function, Error>,
) -> Result<HashMap<&'a str, Function>, Error> {
    let entries = functions.iter().filter(|(_, function)| function.is_entry);
    entries.map(|(&name, _)| Ok((name, find(name)?))).collect()
}

/// Reserves `bytes` of local memory for each thread now, because a launch that needs more than is reserved waits until
/// the device is empty.
fn reserve_stack(context: &Context, bytes: usize) -> Result<(), Error> {
    let limit = CUlimit::CU_LIMIT_STACK_SIZE;
    let mut reserved = 0;
    // SAFETY: the pointer is valid.
    unsafe { call!(context, cuCtxGetLimit(&raw mut reserved, limit))? };
    if reserved < bytes {
        // SAFETY: takes no pointers.
        unsafe { call!(context, cuCtxSetLimit(limit, bytes))? };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ptx(parameter: &str) -> String {
        format!(
            ".target sm_80
             .visible .entry k({parameter}) {{ ret; }}
             .visible .entry k__plain(.param .u64 p) {{ ret; }}
             .visible .entry plain(.param .u64 p) {{ ret; }}
             .func f() {{ ret; }} .func f__plain() {{ ret; }}"
        )
    }

    #[test]
    fn a_kernel_with_both_entries_is_preemptible() {
        let bytes = size_of::<Cohort>();
        let text = blanked(&ptx(&format!(".param .align 8 .b8 k_param_0[{bytes}]")));
        let kernels = preemptible("kernels", &text, &functions(&text)).expect("it is up to date");
        let kernel = ptx::Kernel { name: "k", preemptible: "k", plain: "k__plain" };
        assert_eq!(kernels, [kernel]);
    }

    #[test]
    fn a_kernel_is_bound_for_the_block_that_it_names() {
        let ptx = "
            .visible .entry any() { ret; }
            .visible .entry any__plain() { ret; }
            .visible .entry fixed() {
                // preempt.block 192
                ret;
            }
            .visible .entry fixed__plain() { ret; }
            .visible .entry light() { ret; }
            .visible .entry light__plain() { ret; }
            .visible .entry lost() { ret; }
            .visible .entry lost__plain() { ret; }";
        let text = blanked(ptx);
        let functions = functions(&text);
        let registers = |name: &str| {
            Ok(match name {
                "any" | "fixed" | "lost" => Some(85),
                "lost__plain" => None,
                _ => Some(71),
            })
        };
        // Compute capability 9.0.
        let sm = Sm { registers: 65536, warps: 64, blocks: 32 };
        let bounds = register_bounds(sm, ptx, &functions, &ptx::kernels(&functions), registers)
            .expect("all registers are known");
        assert_eq!(bounds, BTreeMap::from([("any", 72), ("fixed", 80)]));
    }

    #[test]
    fn a_kernel_with_another_first_parameter_is_of_another_version() {
        for parameter in ["", ".param .u64 p", ".param .align 8 .b8 k_param_0[64]"] {
            let text = blanked(&ptx(parameter));
            let error = preemptible("kernels", &text, &functions(&text)).expect_err("it is not");
            assert!(
                matches!(error, Error::Code(CodeError::Stale { module: "kernels" })),
                "{error}"
            );
        }
    }
}
