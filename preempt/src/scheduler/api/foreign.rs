//! Kernels of other compilers: from the text of their PTX to calls that streams launch.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use preempt_device::host::{Args, Call, Extents, IntoExtents, NoGrid, ReadArg, WriteArg};
use preempt_device::kernel::{KernelArg, check};
use preempt_ptx_text::{Droppable, Options, ParameterUse, Verdict, read};

use crate::error::{CodeError, Error};
use crate::foreign::{Foreign, is_plain_alone};
use crate::scheduler::{Scheduler, SchedulerBuilder};
use crate::sync::{Mutex, lock};
#[cfg(doc)]
use crate::{Stream, ptx};
use preempt_device::host::Kernel;

/// The texts of PTX that a builder was given.
pub(in crate::scheduler) type Texts = Vec<(Arc<str>, Arc<str>, Options)>;

/// The texts of PTX that a scheduler has.
#[derive(Default)]
pub(in crate::scheduler) struct ForeignTexts(Vec<ForeignText>);

struct ForeignText {
    name: Arc<str>,
    text: Arc<str>,
    options: Options,
    /// The entries that the device has.
    loaded: Mutex<HashMap<&'static str, &'static Foreign>>,
}

impl ForeignTexts {
    /// # Errors
    ///
    /// [`CodeError::SameName`]; [`CodeError::NotTransformed`] for text that is not understood.
    pub fn new(texts: Texts) -> Result<ForeignTexts, Error> {
        let mut all: Vec<ForeignText> = Vec::with_capacity(texts.len());
        for (name, text, options) in texts {
            if all.iter().any(|known| known.name == name) {
                return Err(Error::Code(CodeError::SameName { module: name }));
            }
            if let Err(fault) = read(&text) {
                let fault = Arc::new(fault.into());
                return Err(Error::Code(CodeError::NotTransformed { module: name, fault }));
            }
            all.push(ForeignText { name, text, options, loaded: Mutex::default() });
        }
        Ok(ForeignTexts(all))
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|of| *of.name == *name).map(|of| &*of.text)
    }

    fn named(&self, name: &str) -> Result<&ForeignText, Error> {
        self.0.iter().find(|of| *of.name == *name).ok_or_else(|| {
            let names: Vec<_> = self.0.iter().map(|of| format!("`{}`", of.name)).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            Error::Code(CodeError::NoPtx { module: name.into(), known: known.into() })
        })
    }
}

impl SchedulerBuilder {
    /// Gives the scheduler the PTX of a module that another compiler made, nvcc, NVRTC or Triton, under a name of your
    /// choice: the text as the compiler wrote it, whole. [`Scheduler::foreign`] gives its kernels.
    ///
    /// `build` reads it, and fails with [`CodeError::SameName`] if two texts have one name, or with
    /// [`CodeError::NotTransformed`] if a text is not PTX as [`ptx::read`] knows it. Nothing is compiled before a kernel is
    /// asked for.
    pub fn ptx(self, name: impl Into<Arc<str>>, text: impl Into<Arc<str>>) -> SchedulerBuilder {
        self.ptx_with(name, text, Options::default())
    }

    /// Gives the scheduler the PTX of a module as [`ptx`](SchedulerBuilder::ptx) does, and says what its kernels get besides:
    /// yield points.
    ///
    /// With them an urgent launch need not wait for the ends of long block-tasks: they are dropped, and run again from their start
    /// later. A kernel has them where the text shows that this gives the same results
    /// ([`droppable`](ForeignKernel::droppable)), and a launch uses them where its arguments are as they need to be
    /// ([`parameter_uses`](ForeignKernel::parameter_uses)).
    ///
    /// They cost registers, some time of each round of a loop, and the time in which the driver compiles a third entry.
    ///
    /// ```
    /// use preempt::{Scheduler, ptx};
    ///
    /// let text = ".version 8.0 .target sm_90 .address_size 64 .visible .entry nothing() { ret; }";
    /// let options = ptx::Options::default().yields(true);
    /// let scheduler = Scheduler::builder().ptx_with("long", text, options).build()?;
    /// # Ok::<(), preempt::Error>(())
    /// ```
    pub fn ptx_with(
        mut self,
        name: impl Into<Arc<str>>,
        text: impl Into<Arc<str>>,
        options: Options,
    ) -> SchedulerBuilder {
        self.texts.push((name.into(), text.into(), options));
        self
    }
}

impl Scheduler {
    /// A kernel that another compiler made: an entry of the PTX that the builder was given
    /// [under a name](SchedulerBuilder::ptx). Ask for kernels where the application sets up, before its launches.
    ///
    /// The first call for a kernel [transforms](ptx::transform) it, which takes milliseconds, and has the driver
    /// compile and load it, which takes tens of milliseconds. The driver may wait for all that runs, so this waits until nothing is in
    /// flight, as [`synchronize`](Scheduler::synchronize) does, and launches that are submitted meanwhile wait for it. Later calls for
    /// the kernel return at once. Transformed text is not kept on disk: the driver keeps what it has compiled, and that takes most of
    /// the time.
    ///
    /// An entry that the [verdict](ForeignKernel::verdict) refuses is a kernel as well, which runs in the plain form alone.
    ///
    /// Entries are loaded one by one. Those that use the same variables in global memory are loaded together, so that they share
    /// them, as they do in the module that the compiler made.
    ///
    /// ```no_run
    /// use preempt::{Device, Scheduler};
    ///
    /// let ptx = std::fs::read_to_string("layernorm.ptx")?;
    /// let scheduler = Scheduler::builder().device(Device::cuda(0)?).ptx("layernorm", ptx).build()?;
    /// let layernorm = scheduler.foreign("layernorm", "layernorm_f32")?;
    /// let (batch, x) = (scheduler.stream(0), scheduler.buffer(&[1.0f32; 1 << 20])?);
    /// let mut y = scheduler.zeroed::<f32>(1 << 20)?;
    /// // SAFETY: `layernorm_f32(const float *x, float *y, int columns)` writes `y` alone, a row in each block.
    /// let call = unsafe { layernorm.call() }.read(&x).write(&mut y).value(1024i32).block(1024).grid(1024);
    /// let report = batch.launch(call)?.wait()?;
    /// println!("{}: {} yields", layernorm.verdict(), report.yields);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CodeError::NoPtx`] for a name that no text has; [`CodeError::NotTransformed`] if the text has no such entry;
    /// [`CodeError::LaunchNeed`] for an entry with a barrier of the whole grid; [`CodeError::NoHostCode`] on
    /// the CPU device; [`CodeError::NotLoaded`] if the driver refuses the text, and other errors of the driver.
    pub fn foreign(&self, module: &str, entry: &str) -> Result<ForeignKernel, Error> {
        let of = self.foreign.named(module)?;
        let known = |loaded: &HashMap<&'static str, &'static Foreign>| loaded.get(entry).copied();
        if let Some(foreign) = known(&lock(&of.loaded)) {
            return Ok(ForeignKernel::of(foreign));
        }
        let ready = Foreign::prepare(&of.name, &of.text, entry, of.options)?;
        let foreign = self.shared().while_idle(|backend| {
            let mut loaded = lock(&of.loaded);
            // Unless another thread was faster.
            if known(&loaded).is_none() {
                backend.load_foreign(&ready)?;
                loaded.extend(ready.kernels.iter().map(|&of| (of.kernel.name, of)));
            }
            Ok::<_, Error>(known(&loaded))
        })?;
        let none = Error::Code(CodeError::NoPtx { module: module.into(), known: "none".into() });
        foreign.map(ForeignKernel::of).ok_or(none)
    }
}

/// A kernel that another compiler made, from [`Scheduler::foreign`]. It is launched as kernels in Rust are, on the same
/// streams, under the same policies and in programs.
///
/// It has two forms, as they have. It is preempted between its block-tasks, and an urgent launch waits for those that run; unless it
/// has [yield points](SchedulerBuilder::ptx_with), at which they are dropped.
#[derive(Clone, Copy)]
pub struct ForeignKernel {
    foreign: &'static Foreign,
    kernel: &'static Kernel,
}

impl ForeignKernel {
    fn of(foreign: &'static Foreign) -> ForeignKernel {
        ForeignKernel { foreign, kernel: &foreign.kernel }
    }

    /// The name of its entry.
    pub fn name(&self) -> &'static str {
        self.kernel.name
    }

    /// Whether it has a preemptible form, and why or why not.
    pub fn verdict(&self) -> &'static Verdict {
        &self.foreign.verdict
    }

    /// Whether its block-tasks may be dropped at yield points, and why or why not; `None` if the verdict refuses it, or the
    /// builder was not [asked](SchedulerBuilder::ptx_with) for yield points.
    pub fn droppable(&self) -> Option<&'static Droppable> {
        self.foreign.droppable.as_ref()
    }

    /// The number of its yield points; 0 if there are none.
    pub fn yield_points(&self) -> usize {
        self.foreign.yielding.as_ref().map_or(0, |of| of.entry.points)
    }

    /// What a call passes for parameters so that it is launched with yield points, by the position of the parameter. With
    /// others, such as addresses by [`value`](ForeignCall::value), it yields between its block-tasks alone. What is not
    /// listed may be anything.
    pub fn parameter_uses(&self) -> &'static [(usize, ParameterUse)] {
        self.foreign.yielding.as_ref().map_or(&[], |of| &of.entry.uses)
    }

    /// Whether it has a preemptible form: it was accepted, and is not restricted to the [plain](ForeignKernel::plain) one.
    pub fn is_preemptible(&self) -> bool {
        !is_plain_alone(self.kernel)
    }

    /// The same kernel in the plain form alone: the entry as the compiler made it. It is launched in the order of its stream, and runs
    /// to its end once it has started, in preemptible programs too.
    ///
    /// It needs none of the shared memory that the preemptible form adds, and takes any block.
    pub fn plain(&self) -> ForeignKernel {
        ForeignKernel { kernel: &self.foreign.plain, ..*self }
    }

    /// A call of the kernel, without arguments. It gets one for each parameter, in their order, and then a grid:
    ///
    /// ```no_run
    /// # fn with(scale: preempt::ForeignKernel, x: preempt::Buffer<f32>, mut y: preempt::Buffer<f32>) {
    /// // SAFETY: `scale(const float *x, float *y, float by, int n)` writes `n` elements of `y`.
    /// let call = unsafe { scale.call() }.read(&x).write(&mut y).value(2.0f32).value(1000i32);
    /// let call = call.block(256).threads(1000);
    /// # let _ = call;
    /// # }
    /// ```
    ///
    /// A launch checks their number and sizes, the block, and the shared memory against the PTX.
    ///
    /// # Safety
    ///
    /// The values are of the types that the kernel takes. For all that may be launched with them:
    ///
    /// - the kernel accesses no memory but that of its arguments and its module, none beyond their ends, and writes none that is
    ///   passed to [`read`](ForeignCall::read);
    /// - its block-tasks do not wait for each other, unless it runs in the plain form and its blocks may;
    /// - it does not rely on what earlier blocks left in shared memory or registers;
    /// - with [yield points](SchedulerBuilder::ptx_with), an address that it makes of a parameter is within the memory that is
    ///   passed there, numbers that are passed by [`value`](ForeignCall::value) are no addresses in disguise, and no memory that is
    ///   passed is a variable of the module.
    pub unsafe fn call<'a>(&self) -> ForeignCall<'a> {
        let (args, block) = (Args::default(), None);
        let (foreign, kernel) = (self.foreign, self.kernel);
        ForeignCall { foreign, kernel, args, block, borrows: std::marker::PhantomData }
    }
}

impl fmt::Debug for ForeignKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForeignKernel")
            .field("name", &self.name())
            .field("verdict", &self.foreign.verdict)
            .field("is_preemptible", &self.is_preemptible())
            .field("yield_points", &self.yield_points())
            .finish()
    }
}

/// A call of a [`ForeignKernel`] that gets its arguments. With a [grid](ForeignCall::grid) it is a [`Call`], which
/// [`Stream::launch`] takes.
///
/// The arguments may point to memory that is borrowed for `'a`.
#[derive(Clone)]
#[must_use = "a call does nothing until a stream launches it"]
pub struct ForeignCall<'a> {
    foreign: &'static Foreign,
    kernel: &'static Kernel,
    args: Args,
    block: Option<Extents>,
    borrows: std::marker::PhantomData<&'a ()>,
}

impl<'a> ForeignCall<'a> {
    /// The next argument is the address of a buffer, or of a range of one, that the kernel reads. Without elements it is null.
    pub fn read<T>(mut self, buffer: impl ReadArg<'a, T>) -> ForeignCall<'a> {
        self.args.push_read_pointer(buffer);
        self
    }

    /// The next argument is the address of a buffer, or of a range of one, that the kernel writes, and may read. Without elements it
    /// is null.
    ///
    /// Memory that is written is passed once: a launch refuses it otherwise.
    pub fn write<T>(mut self, buffer: impl WriteArg<'a, T>) -> ForeignCall<'a> {
        self.args.push_write_pointer(buffer);
        self
    }

    /// The next argument is a value, of as many bytes as the parameter has: a number, a `repr(C)` struct with
    /// `#[derive(KernelArg)]`, or an array of bytes for what has another name in the kernel's language. `0u64` is a null pointer.
    pub fn value<T: KernelArg>(mut self, value: T) -> ForeignCall<'a> {
        const { check::value::<T>() };
        self.args.push_value(value);
        self
    }

    /// Sets the bytes of dynamic shared memory of each block; 0 otherwise. What the kernel declares with a size, and what preemption
    /// adds, comes on top.
    pub fn dynamic_shared(mut self, bytes: u32) -> ForeignCall<'a> {
        self.args.set_shared_bytes(bytes.into());
        self
    }

    /// Sets the block, in threads. A kernel whose PTX fixes it (`.reqntid`) accepts no other.
    pub fn block(mut self, block: impl IntoExtents) -> ForeignCall<'a> {
        self.block = Some(block.into_extents());
        self
    }

    /// Sets the grid, in block-tasks.
    pub fn grid(self, grid: impl IntoExtents) -> Call<'a> {
        self.without_grid().grid(grid)
    }

    /// Sets the grid to the block-tasks that cover `threads`, in x or in each dimension that is given.
    pub fn threads(self, threads: impl IntoExtents) -> Call<'a> {
        self.without_grid().threads(threads)
    }

    fn without_grid(self) -> Call<'a, NoGrid> {
        let ForeignCall { foreign, kernel, args, block, .. } = self;
        let kernel = foreign.launched(kernel, &args);
        // SAFETY: a launch checks the values against the entry's parameters; the rest is the promise of `call`.
        let call = unsafe { Call::new(kernel, args) };
        match block {
            Some(block) => call.block(block),
            None => call,
        }
    }
}

impl fmt::Debug for ForeignCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForeignCall")
            .field("kernel", &self.kernel.name)
            .field("args", &self.args)
            .field("block", &self.block)
            .finish()
    }
}
