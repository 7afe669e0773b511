//! The functions and modules of kernels, and how many of their blocks an SM holds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use preempt_device::host::{Dim3, Kernel};
use rustc_hash::FxHashMap;

use super::code::Function;
use super::context::Context;
use super::divisions::Need;
use super::driver::{DeviceAttribute, FunctionAttribute};
use super::launch::CohortPlace;
use super::loaded::{Loaded, LoadedEntry};
use super::lock;
use super::panics::{self, PanicRecords};
use super::registers::Sm;
use crate::device::{Footprint, FormFootprint, KernelLaunch};
use crate::error::{CodeError, ConfigurationError, Error};
use crate::foreign::{Foreign, ForeignModule};
use crate::module::{DeviceCode, Module};
use preempt_ptx_text::{EARLY_CAPABILITY, with_waits};

/// Bytes of shared memory that a block gets by default; a kernel opts into more.
const SHARED_BY_DEFAULT: u32 = 48 << 10;

/// Bytes of each block's shared memory that the system reserves.
pub(super) const SHARED_PER_BLOCK: u32 = 1 << 10;

/// For [`FunctionAttribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT`].
pub(super) const CARVEOUT_DEFAULT: i32 = -1;
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
const NOT_ASKED_FOR: &str = "it comes from a text of PTX; ask this scheduler for it by `Scheduler::foreign`, and give its \
    builder the text by `.ptx(..)`";

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
    foreign: RwLock<ForeignKernels>,
    prepared: RwLock<Prepared>,
    /// Held while a kernel is prepared.
    preparing: Mutex<()>,
    panics: Arc<PanicRecords>,
}

/// By the kernel's address, and a block's threads and bytes of shared memory. There are at most as many sizes as bytes that
/// a block can have.
type Prepared = FxHashMap<(usize, BlockSize), Launchable>;

/// The kernels of other compilers that the scheduler has asked for.
#[derive(Debug, Default)]
struct ForeignKernels {
    /// By the kernel's address.
    entries: FxHashMap<usize, LoadedEntry>,
    /// The modules that they are in.
    loaded: Vec<Loaded>,
}

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
    pub cohort: CohortPlace,
    /// Bytes of dynamic shared memory of a cohort beyond those of the launch.
    pub added_shared: u32,
    /// Whether no thread may start the next block-task before all threads have ended the present one.
    pub cooperates: bool,
    /// Whether the entry can start early, because it waits by itself.
    pub waits: bool,
    pub blocks_per_sm: u32,
    /// Blocks on an SM that holds the proxy.
    pub beside_proxy: u32,
    /// What cohorts need of an SM's memory, and what plain grids do.
    pub need: Need,
    pub need_of_plain: Need,
}

/// A module that the scheduler has.
#[derive(Debug)]
struct Current {
    name: &'static str,
    /// `None` if it came without PTX.
    code: Option<Arc<Loaded>>,
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
            foreign: RwLock::default(),
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
        *self.foreign.write().unwrap_or_else(PoisonError::into_inner) = ForeignKernels::default();
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
        let code = self.with_records(ptx, |ptx, panics| {
            Loaded::new(&self.context, module.name(), ptx, self.sm, panics)
        })?;
        Ok(loaded.entry(key).or_insert(Arc::new(code)).clone())
    }

    /// Loads a module of another compiler, and makes its kernels launchable until the next [`load`](Kernels::load). The
    /// context is entered, and nothing of ours runs.
    pub fn load_foreign(&self, module: &ForeignModule) -> Result<(), Error> {
        let loaded = self.with_records(&module.ptx, |ptx, panics| {
            Loaded::foreign(&self.context, module, ptx, self.sm, panics)
        })?;
        let mut foreign = self.foreign.write().unwrap_or_else(PoisonError::into_inner);
        for kernel in module.kernels.iter().flat_map(|of| of.forms()) {
            if let Some(entry) = loaded.entries.get(kernel.entry) {
                foreign.entries.insert(std::ptr::from_ref(kernel).addr(), *entry);
            }
        }
        foreign.loaded.push(loaded);
        Ok(())
    }

    /// Loads a text that waits for the grid before it where it is marked to, and whose panics leave records.
    fn with_records(
        &self,
        ptx: &str,
        load: impl Fn(&str, Option<&PanicRecords>) -> Result<Loaded, Error>,
    ) -> Result<Loaded, Error> {
        let with_waits = self.starts_early.then(|| with_waits(ptx)).flatten();
        let ptx = with_waits.as_deref().unwrap_or(ptx);
        match panics::recording(ptx) {
            None => load(ptx, None),
            Some(recording) => match load(&recording, Some(&*self.panics)) {
                // Its kernels run without records as well, and what is wrong is said of the text as it was given.
                Err(Error::Code(CodeError::NotLoaded { .. })) => load(ptx, None),
                loaded => loaded,
            },
        }
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
        let LoadedEntry { function, plain, cohort, cooperates, waits, added_shared, .. } = entry;
        // That of a cohort, which needs most.
        let dynamic = key.1.shared.saturating_add(added_shared);
        let size = BlockSize { shared: dynamic, ..key.1 };
        let blocks_per_sm = self.occupancy(kernel, entry, block, size)?;
        let beside_proxy = self.beside_proxy(entry, size, blocks_per_sm);
        let carveout = FunctionAttribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        let of_plain = plain
            .attribute(&self.context, FunctionAttribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        let need = Need {
            block: dynamic.saturating_add(entry.static_shared),
            most: blocks_per_sm,
            prefers_all: function.attribute(&self.context, carveout)? == CARVEOUT_MAX_SHARED as u32,
        };
        let launchable = Launchable {
            function,
            plain,
            cohort,
            added_shared,
            cooperates,
            waits,
            blocks_per_sm,
            beside_proxy,
            need,
            need_of_plain: Need {
                block: key.1.shared.saturating_add(of_plain),
                most: plain.occupancy(&self.context, size.threads, key.1.shared)?,
                ..need
            },
        };
        self.prepared.write().unwrap_or_else(PoisonError::into_inner).insert(key, launchable);
        Ok(launchable)
    }

    /// What blocks of a kernel take of an SM, in each form.
    pub fn footprint(
        &self,
        kernel: &'static Kernel,
        block: Dim3,
        shared: u32,
    ) -> Result<Footprint, Error> {
        use FunctionAttribute::*;
        // What a function may have beyond the default it is told with the first launch.
        let launchable = self.get(kernel, block, shared)?;
        let _entered = self.context.enter()?;
        let threads = block.count().try_into().unwrap_or(u32::MAX);
        let form = |function: Function, shared| {
            let of_function = |attribute| function.attribute(&self.context, attribute);
            Ok::<_, Error>(FormFootprint {
                registers: of_function(CU_FUNC_ATTRIBUTE_NUM_REGS)?,
                local_bytes: of_function(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
                shared_bytes: of_function(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)? + shared,
                blocks_per_sm: function.occupancy(&self.context, threads, shared)?,
            })
        };
        Ok(Footprint {
            plain: form(launchable.plain, shared)?,
            preemptible: form(launchable.function, shared + launchable.added_shared)?,
        })
    }

    fn find(&self, kernel: &'static Kernel) -> Result<LoadedEntry, Error> {
        if Foreign::of(kernel).is_some() {
            let foreign = self.foreign.read().unwrap_or_else(PoisonError::into_inner);
            let entry = foreign.entries.get(&std::ptr::from_ref(kernel).addr()).copied();
            let (kernel, module) = (kernel.name, kernel.module);
            return entry.ok_or(Error::Code(CodeError::Missing {
                kernel,
                module,
                what_to_do: NOT_ASKED_FOR,
            }));
        }
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
        if shared > self.shared_per_block && Foreign::of(kernel).is_some() {
            return Err(Error::Configuration(ConfigurationError::SharedOfEntry {
                kernel: kernel.name,
                bytes: u64::from(dynamic) + u64::from(static_shared),
                added: entry.added_shared,
                limit: self.shared_per_block,
            }));
        }
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
