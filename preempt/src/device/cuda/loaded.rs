//! Modules on the GPU, and what a launch has to know of their entries.

use std::collections::{BTreeMap, HashMap};
use std::mem::ManuallyDrop;
use std::sync::Arc;

use cudarc::driver::sys::CUlimit;
use preempt_device::abi::Cohort;
use preempt_device::host::Kernel;

use super::code::{Code, Function};
use super::context::{Context, call};
use super::driver::FunctionAttribute;
use super::launch::CohortPlace;
use super::panics::PanicRecords;
use super::registers::Sm;
use crate::error::{CodeError, DeviceError, Error};
use crate::foreign::{Foreign, ForeignModule};
use crate::module::LoadedModule;
use preempt_ptx_text::{
    self as ptx, Functions, blanked, block_threads, bound_registers, check_functions, cooperates,
    first_parameter_bytes, functions, waits,
};

/// A module with its kernels' entries.
#[derive(Debug)]
pub(super) struct Loaded {
    /// By the name of the entry that cohorts run.
    pub entries: HashMap<String, LoadedEntry>,
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
pub(super) struct LoadedEntry {
    pub function: Function,
    pub plain: Function,
    pub cohort: CohortPlace,
    pub cooperates: bool,
    pub waits: bool,
    pub registers: u32,
    /// The most threads in a block that its registers allow.
    pub threads_per_block: u32,
    /// Bytes of shared memory beside the dynamic, including the worker loop's where that is static.
    pub static_shared: u32,
    /// Bytes of dynamic shared memory that a cohort gives the worker loop.
    pub added_shared: u32,
}

impl Loaded {
    /// Loads `ptx`; with `panics` if its panics leave records.
    pub fn new(
        context: &Arc<Context>,
        module: &'static str,
        ptx: &str,
        sm: Sm,
        panics: Option<&PanicRecords>,
    ) -> Result<Loaded, Error> {
        let text = blanked(ptx);
        let functions = functions(&text);
        let kernels = preemptible(module, &text, &functions)?;
        // If the PTX has a number, all blocks have that many threads, because launches with others are refused.
        let threads = |entry: &str| functions.get(entry).and_then(|of| block_threads(ptx, of));
        Self::compile(context, (module, ptx, &text), (&functions, &kernels), threads, (sm, panics))
    }

    /// Loads `ptx`, which is a module of another compiler; with `panics` if its panics leave records.
    pub fn foreign(
        context: &Arc<Context>,
        module: &ForeignModule,
        ptx: &str,
        sm: Sm,
        panics: Option<&PanicRecords>,
    ) -> Result<Loaded, Error> {
        let text = blanked(ptx);
        let functions = functions(&text);
        let kernel = |of: &'static Kernel| {
            let &Kernel { name, entry: preemptible, plain, .. } = of;
            ptx::Kernel { name, preemptible, plain }
        };
        let mut kernels: Vec<_> =
            module.kernels.iter().flat_map(|of| of.forms()).map(kernel).collect();
        // Both forms of an entry that was refused are the plain one.
        kernels.dedup();
        let threads = |entry: &str| {
            let is_form = |of: &&&Foreign| of.forms().any(|form| form.entry == entry);
            module.kernels.iter().find(is_form)?.block_threads()
        };
        let of_text = (module.name, ptx, &*text);
        let mut loaded =
            Self::compile(context, of_text, (&functions, &kernels), threads, (sm, panics))?;
        for of in &module.kernels {
            let yielding = of.yielding.as_ref().map(|of| &of.entry.entry);
            for preemptible in of.preemptible.iter().chain(yielding) {
                let Some(entry) = loaded.entries.get_mut(&*preemptible.name) else { continue };
                // As the transformation has it: the text shows it of our own entries alone.
                *entry = LoadedEntry {
                    cohort: CohortPlace::Last,
                    cooperates: preemptible.cooperates,
                    added_shared: preemptible.added_shared,
                    ..*entry
                };
            }
        }
        Ok(loaded)
    }

    /// `threads` are those of each block of an entry, where all have as many.
    fn compile(
        context: &Arc<Context>,
        (module, ptx, text): (&str, &str, &str),
        (functions, kernels): (&Functions<'_>, &[ptx::Kernel<'_>]),
        threads: impl Fn(&str) -> Option<u32>,
        (sm, panics): (Sm, Option<&PanicRecords>),
    ) -> Result<Loaded, Error> {
        let mut code = Code::load(context, module, ptx)?;
        let mut touched = touch(functions, |name| code.function(name))?;

        let registers = |name: &str| {
            let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_NUM_REGS;
            touched.get(name).map(|function| function.attribute(context, attribute)).transpose()
        };
        let bounds = register_bounds(sm, kernels, threads, registers)?;
        if !bounds.is_empty() {
            let bound = bound_registers(ptx, functions, &bounds);
            match Code::load(context, module, &bound) {
                Ok(bound) => {
                    touched = touch(functions, |name| bound.function(name))?;
                    code = bound;
                }
                Err(error @ Error::Device(DeviceError::ContextLost { .. })) => return Err(error),
                // The kernel runs without the bound, if on fewer blocks.
                Err(_) => {}
            }
        }
        let entries = entries(context, text, functions, kernels, &touched)?;
        if let Some(panics) = panics {
            code.record_panics(panics.add(context, functions)?)?;
        }
        Ok(Loaded { entries, _keep: Keep::Code(code) })
    }

    /// A module that the application has loaded.
    pub fn by_others(context: &Arc<Context>, module: &LoadedModule) -> Result<Loaded, Error> {
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
/// fewer of them than of the plain entry. `threads` are those of each of its blocks, where all have as many, and `registers`
/// those of an entry, if there is one.
fn register_bounds<'a>(
    sm: Sm,
    kernels: &[ptx::Kernel<'a>],
    threads: impl Fn(&str) -> Option<u32>,
    registers: impl Fn(&str) -> Result<Option<u32>, Error>,
) -> Result<BTreeMap<&'a str, u32>, Error> {
    let mut bounds = BTreeMap::new();
    for &ptx::Kernel { preemptible, plain, .. } in kernels {
        let (Some(taken), Some(plain)) = (registers(preemptible)?, registers(plain)?) else {
            continue;
        };
        if let Some(bound) = sm.bound(taken, plain, threads(preemptible)) {
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
    let cooperating = cooperates(text, functions, kernels.iter().map(|kernel| kernel.preemptible));
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
            cohort: CohortPlace::First,
            cooperates: cooperating.contains(name),
            waits: functions.get(name).is_some_and(waits),
            registers: of_function(CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            threads_per_block: of_function(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            static_shared: of_function(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            added_shared: 0,
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
        let threads = |entry: &str| functions.get(entry).and_then(|of| block_threads(ptx, of));
        let bounds = register_bounds(sm, &ptx::kernels(&functions), threads, registers)
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
