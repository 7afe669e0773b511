//! Kernels of other compilers: what the text of a module says of each of its entries.

use std::collections::HashMap;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use preempt_device::host::{Access, Args, Dim3, Idempotence, Kernel};
use preempt_ptx_text::{
    Droppable, EntryShape, LaunchNeed, Options, ParameterUse, PreemptibleEntry, TransformError,
    TransformedKernel, Verdict, YieldingEntry, read, transform_with,
};
use rustc_hash::FxHashMap;

use crate::error::{CodeError, ConfigurationError, Error};

/// Threads of a warp.
const WARP: u32 = 32;

/// An entry of a module of PTX.
///
/// A process has one for each text, name and entry, and frees none: calls, programs and reports name kernels by
/// reference, as they do typed ones.
#[derive(Debug)]
pub(crate) struct Foreign {
    /// Launched in either form; in the plain one alone if the entry was refused.
    pub kernel: Kernel,
    /// Launched in the plain form alone.
    pub plain: Kernel,
    pub verdict: Verdict,
    /// `None` if the entry was refused.
    pub preemptible: Option<PreemptibleEntry>,
    /// `None` if the entry was refused, or not asked.
    pub droppable: Option<Droppable>,
    pub yielding: Option<Yielding>,
    shape: EntryShape,
}

/// The form of an entry with yield points.
#[derive(Debug)]
pub(crate) struct Yielding {
    /// Launched if the arguments are as the entry needs.
    pub kernel: Kernel,
    pub entry: YieldingEntry,
}

/// Text for the driver, with entries that have to be in one module.
#[derive(Debug)]
pub(crate) struct ForeignModule {
    /// The name that the application gave it.
    pub name: &'static str,
    pub ptx: String,
    pub kernels: Vec<&'static Foreign>,
}

#[derive(Default)]
struct Known {
    by_entry: HashMap<Origin, &'static Foreign>,
    by_kernel: FxHashMap<usize, &'static Foreign>,
}

/// Where an entry is from. The whole text: kernels of one name in different texts are different kernels.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Origin {
    module: Arc<str>,
    text: Arc<str>,
    entry: String,
    options: Options,
}

static KNOWN: RwLock<Option<Known>> = RwLock::new(None);
/// Whether there is a foreign kernel at all, which other launches ask first.
static ANY: AtomicBool = AtomicBool::new(false);

/// Whether a kernel has no preemptible form.
pub(crate) fn is_plain_alone(kernel: &Kernel) -> bool {
    kernel.entry == kernel.plain
}

impl Foreign {
    /// What is known of a kernel, if another compiler made it.
    pub fn of(kernel: &'static Kernel) -> Option<&'static Foreign> {
        // Relaxed: the thread that has the kernel got it behind the store.
        if !ANY.load(Ordering::Relaxed) {
            return None;
        }
        let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
        known.as_ref()?.by_kernel.get(&ptr::from_ref(kernel).addr()).copied()
    }

    /// Makes an entry of a text ready to be loaded, with those that share its variables.
    ///
    /// # Errors
    ///
    /// [`CodeError::NotTransformed`], [`CodeError::LaunchNeed`].
    pub fn prepare(
        module: &Arc<str>,
        text: &Arc<str>,
        entry: &str,
        options: Options,
    ) -> Result<ForeignModule, Error> {
        let fault = |fault: TransformError| {
            Error::Code(CodeError::NotTransformed {
                module: module.clone(),
                fault: Arc::new(fault),
            })
        };
        let whole = read(text).map_err(|error| fault(error.into()))?;
        let Some(shape) = whole.shape(entry) else {
            let entries = whole.entries().map(str::to_owned).collect();
            return Err(fault(TransformError::NoEntry { name: entry.to_owned(), entries }));
        };
        if let Some(need) = shape.needs {
            let need = match need {
                LaunchNeed::Cooperative => "a cooperative launch, for a barrier of the grid",
                LaunchNeed::ClusterSize => "a launch with a size of clusters",
                _ => "an attribute of the launch",
            };
            return Err(Error::Code(CodeError::LaunchNeed { entry: entry.into(), need }));
        }
        let entries = whole.together(entry);
        let transformed =
            transform_with(&whole.only(&entries), &entries, options).map_err(fault)?;
        let mut kernels = Vec::with_capacity(entries.len());
        for of in transformed.kernels {
            let Some(shape) = whole.shape(&of.name) else { continue };
            let (module, text) = (module.clone(), text.clone());
            let origin = Origin { module, text, entry: of.name.clone(), options };
            kernels.push(Foreign::known(origin, of, shape));
        }
        let name = kernels.first().map_or("", |first| first.kernel.module);
        Ok(ForeignModule { name, ptx: transformed.ptx, kernels })
    }

    /// The only one of its origin.
    fn known(origin: Origin, of: TransformedKernel, shape: EntryShape) -> &'static Foreign {
        let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
        let Known { by_entry, by_kernel } = known.get_or_insert_default();
        if let Some(foreign) = by_entry.get(&origin) {
            return foreign;
        }
        let leaked = |text: &str| -> &'static str { text.to_owned().leak() };
        let name = leaked(&origin.entry);
        let plain = Kernel {
            name,
            entry: name,
            plain: name,
            module: leaked(&origin.module),
            block: shape.block.map(|[x, y, z]| Dim3 { x, y, z }),
            amortize: None,
            // What is static is in the function; what is dynamic, in the call.
            shared_bytes: 0,
            yields: false,
            idempotence: Idempotence::NotNeeded,
            reason: "",
            state_bytes: 0,
            cpu: no_host_code,
        };
        let TransformedKernel { verdict, preemptible, droppable, yielding, .. } = of;
        let entry = preemptible.as_ref().map_or(name, |entry| leaked(&entry.name));
        let kernel = Kernel { entry, ..plain };
        let yielding = yielding.map(|entry| Yielding {
            kernel: Kernel {
                entry: leaked(&entry.entry.name),
                yields: true,
                idempotence: match droppable {
                    Some(Droppable::Strict) => Idempotence::Strict,
                    Some(Droppable::Relaxed) => Idempotence::Relaxed,
                    _ => Idempotence::NotNeeded,
                },
                reason: "by the analysis of its PTX",
                ..plain
            },
            entry,
        });
        let foreign = Foreign { kernel, plain, verdict, preemptible, droppable, yielding, shape };
        let foreign: &Foreign = Box::leak(Box::new(foreign));
        for kernel in foreign.forms() {
            by_kernel.insert(ptr::from_ref(kernel).addr(), foreign);
        }
        by_entry.insert(origin, foreign);
        ANY.store(true, Ordering::Relaxed);
        foreign
    }

    /// All that may be launched.
    pub fn forms(&self) -> impl Iterator<Item = &Kernel> {
        let yielding = self.yielding.as_ref().map(|of| &of.kernel);
        [&self.kernel, &self.plain].into_iter().chain(yielding)
    }

    /// What a launch of a kernel of this entry with these arguments runs: with yield points, if it may be dropped there.
    pub fn launched(&'static self, kernel: &'static Kernel, args: &Args) -> &'static Kernel {
        let is_preemptible = ptr::eq(kernel, &self.kernel);
        let yielding = self.yielding.as_ref().filter(|of| is_preemptible && of.is_met_by(args));
        yielding.map_or(kernel, |of| &of.kernel)
    }

    /// Threads of every block, if the text says how many.
    pub fn block_threads(&self) -> Option<u32> {
        self.kernel.block.map(|block| block.count().try_into().unwrap_or(u32::MAX))
    }

    /// Checks what a launch gives against what the text says.
    ///
    /// # Errors
    ///
    /// [`ConfigurationError::ArgumentCount`], [`ArgumentBytes`](ConfigurationError::ArgumentBytes),
    /// [`BlockBound`](ConfigurationError::BlockBound), [`BlockRows`](ConfigurationError::BlockRows).
    pub fn check(&self, launched: &Kernel, args: &Args, block: Dim3) -> Result<(), Error> {
        let (kernel, sizes) = (launched.name, args.sizes());
        let (given, takes) = (sizes.len(), self.shape.parameters.len());
        if given != takes {
            let wrong = ConfigurationError::ArgumentCount { kernel, given, takes };
            return Err(Error::Configuration(wrong));
        }
        for (position, ((given, is_buffer), parameter)) in
            sizes.zip(&self.shape.parameters).enumerate()
        {
            let takes = parameter.bytes.try_into().unwrap_or(usize::MAX);
            if given != takes {
                let what_to_do = match is_buffer {
                    true => "a buffer goes where the kernel takes a pointer",
                    false => "give the value the type that the kernel has there",
                };
                return Err(Error::Configuration(ConfigurationError::ArgumentBytes {
                    kernel,
                    position,
                    given,
                    takes,
                    what_to_do,
                }));
            }
        }
        let most = self.shape.most_threads.filter(|&most| block.count() > u128::from(most));
        if let Some(most) = most {
            return Err(Error::Configuration(ConfigurationError::BlockBound {
                kernel,
                block,
                most,
            }));
        }
        let needs_rows = self.preemptible.as_ref().is_some_and(|entry| entry.whole_rows);
        let has_rows = block.x.is_multiple_of(WARP) || (block.y, block.z) == (1, 1);
        if needs_rows && !has_rows && !is_plain_alone(launched) {
            return Err(Error::Configuration(ConfigurationError::BlockRows { kernel, block }));
        }
        Ok(())
    }
}

impl Yielding {
    /// Whether arguments are what the entry needs. A launch refuses buffers that overlap one that is written.
    fn is_met_by(&self, args: &Args) -> bool {
        let mut buffers = args.buffers().iter().map(|(_, access)| *access);
        let of_values: Vec<_> = args
            .sizes()
            .map(|(_, is_buffer)| is_buffer.then(|| buffers.next()).flatten())
            .collect();
        self.entry.uses.iter().all(|&(position, of)| {
            let passed = of_values.get(position);
            match of {
                ParameterUse::Read => matches!(passed, Some(Some(_))),
                ParameterUse::Written => passed == Some(&Some(Access::Write)),
                ParameterUse::Number => passed == Some(&None),
                _ => false,
            }
        })
    }
}

/// A device without code for it refuses the launch before.
unsafe fn no_host_code(_: &Args) -> bool {
    panic!("an entry of PTX has no code for the CPU device; launch it on a GPU")
}

#[cfg(test)]
mod tests {
    use preempt_device::host::{BufferArg, ReadArg, WriteArg};

    use super::*;

    const TEXT: &str = ".version 8.0
.target sm_90
.address_size 64
.global .u32 counter;
.visible .entry copy(.param .u64 from, .param .u64 to, .param .u32 n) .maxntid 64 { ret; }
.visible .entry count() { .reg .b32 %r; atom.global.add.u32 %r, [counter], 1; ret; }
.visible .entry counted(.param .u64 to) .reqntid 8, 4 { .reg .b32 %r; ld.global.u32 %r, [counter]; ret; }
.visible .entry private() { .reg .b32 %r; mov.u32 %r, %gridid; ret; }
.visible .entry rows(.param .u32 n)
{
	.reg .b32 %r<5>; .reg .pred %p<2>;
	ld.param.u32 %r1, [n]; mov.u32 %r2, %tid.x; mov.u32 %r4, %tid.y; setp.ge.u32 %p1, %r4, %r1;
	@%p1 ret;
	shfl.sync.bfly.b32 %r3, %r2, 1, 31, -1;
	ret;
}
";

    fn prepared(name: &str, entry: &str) -> ForeignModule {
        Foreign::prepare(&name.into(), &TEXT.into(), entry, Options::default())
            .expect("it is there")
    }

    #[test]
    fn an_entry_is_known_once_for_each_text_and_name() {
        let (one, other) = (prepared("a", "copy"), prepared("a", "copy"));
        assert!(ptr::eq(one.kernels[0], other.kernels[0]));
        assert!(!ptr::eq(one.kernels[0], prepared("b", "copy").kernels[0]));
        let foreign = one.kernels[0];
        for kernel in [&foreign.kernel, &foreign.plain] {
            assert!(ptr::eq(Foreign::of(kernel).expect("known"), foreign));
        }
        assert_eq!((foreign.kernel.entry, foreign.kernel.plain), ("copy__preemptible", "copy"));
        assert!(!is_plain_alone(&foreign.kernel) && is_plain_alone(&foreign.plain));
    }

    #[test]
    fn what_shares_variables_is_loaded_together_and_the_rest_is_left_out() {
        let names = |module: &ForeignModule| {
            module.kernels.iter().map(|of| of.kernel.name).collect::<Vec<_>>()
        };
        let module = prepared("a", "counted");
        assert_eq!(names(&module), ["count", "counted"]);
        assert!(module.ptx.contains("counted__preemptible") && !module.ptx.contains("copy"));
        let module = prepared("a", "copy");
        assert_eq!(names(&module), ["copy"]);
        assert!(!module.ptx.contains(".entry count"), "{}", module.ptx);
    }

    #[test]
    fn an_entry_that_is_refused_has_the_plain_form_alone() {
        let foreign = prepared("a", "private").kernels[0];
        assert!(matches!(foreign.verdict, Verdict::Refused(_)), "{}", foreign.verdict);
        assert!(is_plain_alone(&foreign.kernel) && foreign.preemptible.is_none());
    }

    #[test]
    fn arguments_are_those_of_the_text() {
        let foreign = prepared("a", "copy").kernels[0];
        let check = |push: fn(&mut Args)| {
            let mut args = Args::default();
            push(&mut args);
            foreign.check(&foreign.kernel, &args, 64.into())
        };
        let error = check(|args| args.push_value(0u64)).expect_err("two are missing");
        let Error::Configuration(ConfigurationError::ArgumentCount { given: 1, takes: 3, .. }) =
            error
        else {
            panic!("{error:?}")
        };
        let error = check(|args| {
            args.push_value(0u64);
            args.push_value(0u64);
            args.push_value(0u64);
        });
        let Err(Error::Configuration(ConfigurationError::ArgumentBytes {
            position: 2,
            given: 8,
            takes: 4,
            ..
        })) = error
        else {
            panic!("{error:?}")
        };
        check(|args| {
            args.push_value([0u32; 2]);
            args.push_value(0i64);
            args.push_value(1.0f32);
        })
        .expect("the sizes are right");
    }

    #[test]
    fn blocks_are_as_the_text_and_the_verdict_say() {
        let foreign = prepared("a", "copy").kernels[0];
        let mut args = Args::default();
        args.push_value(0u64);
        args.push_value(0u64);
        args.push_value(0u32);
        let error = foreign.check(&foreign.plain, &args, (33, 2).into()).expect_err("66 threads");
        assert!(error.to_string().contains(".maxntid"), "{error}");
        assert_eq!(prepared("a", "counted").kernels[1].kernel.block, Some((8, 4).into()));

        let foreign = prepared("a", "rows").kernels[0];
        let entry = foreign.preemptible.as_ref();
        assert!(entry.is_some_and(|entry| entry.whole_rows), "{}", foreign.verdict);
        let mut args = Args::default();
        args.push_value(0u32);
        for (block, is_right) in
            [((32, 2, 1), true), ((64, 1, 3), true), ((7, 1, 1), true), ((16, 2, 1), false)]
        {
            let checked = foreign.check(&foreign.kernel, &args, block.into());
            assert_eq!(checked.is_ok(), is_right, "{block:?}: {checked:?}");
            foreign.check(&foreign.plain, &args, block.into()).expect("no loop is around it");
        }
    }

    const LOOPS: &str = ".version 8.0
.target sm_90
.address_size 64
.visible .entry sum(.param .u64 from, .param .u64 to, .param .u64 stride)
{
	.reg .b32 %r<5>; .reg .b64 %a<8>; .reg .pred %p<2>;
	ld.param.u64 %a1, [from]; ld.param.u64 %a2, [to]; ld.param.u64 %a3, [stride];
	mov.u32 %r1, 0; mov.u32 %r2, 0; shl.b64 %a4, %a3, 2; add.s64 %a2, %a2, %a4;
AGAIN:
	add.s64 %a1, %a1, %a4; ld.global.u32 %r3, [%a1]; add.u32 %r2, %r2, %r3;
	add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 1000;
	@%p1 bra AGAIN;
	st.global.u32 [%a2], %r2;
	ret;
}
.visible .entry add(.param .u64 to)
{
	.reg .b32 %r<5>; .reg .b64 %a<8>; .reg .pred %p<2>;
	ld.param.u64 %a1, [to]; mov.u32 %r1, 0;
AGAIN:
	red.global.add.u32 [%a1], 1;
	add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 1000;
	@%p1 bra AGAIN;
	ret;
}
";

    /// Memory that nothing accesses.
    struct Nothing;

    fn nothing() -> BufferArg {
        BufferArg { address: 64, len: 1, bytes: 4, owner: None }
    }

    // SAFETY: no kernel runs.
    unsafe impl ReadArg<'_, u32> for Nothing {
        fn read_arg(self) -> BufferArg {
            nothing()
        }
    }

    // SAFETY: as above.
    unsafe impl WriteArg<'_, u32> for Nothing {
        fn write_arg(self) -> BufferArg {
            nothing()
        }
    }

    fn loops(entry: &str, options: Options) -> &'static Foreign {
        let module = Foreign::prepare(&"loops".into(), &LOOPS.into(), entry, options);
        module.expect("it is there").kernels[0]
    }

    #[test]
    fn a_launch_has_yield_points_if_its_arguments_are_as_they_need_to_be() {
        let foreign = loops("sum", Options::default().yields(true));
        assert_eq!(foreign.droppable, Some(Droppable::Strict));
        let told = foreign.yielding.as_ref().map(|yielding| yielding.kernel.idempotence);
        assert_eq!(
            (foreign.kernel.idempotence, told),
            (Idempotence::NotNeeded, Some(Idempotence::Strict))
        );
        let yields = |kernel: &'static Kernel, push: fn(&mut Args)| {
            let mut args = Args::default();
            push(&mut args);
            foreign.check(kernel, &args, 32.into()).expect("the sizes are right");
            let launched = foreign.launched(kernel, &args);
            assert_eq!((launched.name, launched.plain), ("sum", "sum"));
            assert_eq!(launched.yields, launched.entry == "sum__yielding");
            assert!(ptr::eq(Foreign::of(launched).expect("known"), foreign));
            launched.yields
        };
        let right = |args: &mut Args| {
            args.push_read_pointer(Nothing);
            args.push_write_pointer(Nothing);
            args.push_value(7u64);
        };
        assert!(yields(&foreign.kernel, right));
        assert!(!yields(&foreign.plain, right), "it is asked to run plain");
        let wrong: [fn(&mut Args); 4] = [
            // An address that may be that of the other argument.
            |args| {
                args.push_value(64u64);
                args.push_write_pointer(Nothing);
                args.push_value(7u64);
            },
            |args| {
                args.push_read_pointer(Nothing);
                args.push_value(64u64);
                args.push_value(7u64);
            },
            // It writes what it should only read.
            |args| {
                args.push_read_pointer(Nothing);
                args.push_read_pointer(Nothing);
                args.push_value(7u64);
            },
            // Both addresses may be of it.
            |args| {
                args.push_read_pointer(Nothing);
                args.push_write_pointer(Nothing);
                args.push_read_pointer(Nothing);
            },
        ];
        for push in wrong {
            assert!(!yields(&foreign.kernel, push));
        }
    }

    #[test]
    fn yield_points_are_there_if_they_are_asked_for_and_may_be() {
        let plain = loops("sum", Options::default());
        assert!(plain.droppable.is_none() && plain.yielding.is_none());
        assert!(!ptr::eq(plain, loops("sum", Options::default().yields(true))));
        let never = loops("add", Options::default().yields(true));
        assert!(matches!(never.droppable, Some(Droppable::Never(_))) && never.yielding.is_none());
        assert_eq!(never.forms().count(), 2);
    }
}
