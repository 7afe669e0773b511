//! The benchmarks that FLEP (ASPLOS 2017, table 1), EffiSha (PPoPP 2017, table 2) and Chimera (ASPLOS 2015, table 2)
//! were measured with: the launches around the kernels of `preempt-workload-kernels`, with inputs from a seed, outputs,
//! and sequential references. One file for each benchmark; [`ALL`] and [`CHIMERA`] are the lists.
//!
//! A [`Program`] is a list of typed calls, so the caller chooses how it runs: through a scheduler, or as raw
//! launches on the same buffers.

use std::fmt;

use preempt::pool::Run;
use preempt::{Buffer, Call, Error, KernelArg, Scheduler};

mod outputs;

mod b_plus_tree;
mod back_prop;
mod bfs;
mod black_scholes;
mod cfd;
mod cp;
mod fft;
mod fwt;
mod heart_wall;
mod hot_spot;
mod kmeans;
mod leukocyte;
mod lud;
mod md;
mod md5_hash;
mod mm;
mod mummer;
mod neural_net;
mod nn;
mod nw;
mod pf;
mod pl;
mod reduction;
mod sad;
mod scan;
mod sort;
mod spmv;
mod stencil_2d;
mod stencil_3d;
mod triad;
mod va;

pub use outputs::{Output, Tolerance, Values};

/// The size of a program's input.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Size {
    /// For the CPU device, for references and for sanitizers. Each large launch has a few to a hundred block-tasks, of
    /// a fraction of a millisecond on a CPU device's SM.
    Reduced,
    /// Few block-tasks: FLEP's "trivial" input.
    Trivial,
    /// FLEP's "small" input: an urgent kernel.
    Small,
    /// The full input: about a quarter of the time in the paper's table, on an H200. For Chimera's benchmarks, see
    /// [`CHIMERA`].
    Large,
}

/// A size between two others.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Between {
    /// The smaller one.
    pub from: Size,
    /// The larger one.
    pub to: Size,
    /// The position between the two, evenly by the logarithm: 0 to 1.
    pub share: f64,
}

impl From<Size> for Between {
    fn from(size: Size) -> Between {
        Between { from: size, to: size, share: 0.0 }
    }
}

impl Between {
    /// The number between those of the two sizes.
    fn number(self, of: impl Fn(Size) -> usize) -> usize {
        let (from, to) = (of(self.from) as f64, of(self.to) as f64);
        (from * (to / from).powf(self.share)).round() as usize
    }
}

/// Where the buffers of a program come from.
#[derive(Clone, Copy, Debug)]
pub enum Memory<'a> {
    /// A scheduler: the program is launched by its streams.
    Scheduler(&'a Scheduler),
    /// A run of a pool's task, which may launch what writes its own buffers alone.
    Run(&'a Run),
}

impl<'a> From<&'a Scheduler> for Memory<'a> {
    fn from(scheduler: &'a Scheduler) -> Memory<'a> {
        Memory::Scheduler(scheduler)
    }
}

impl<'a> From<&'a Run> for Memory<'a> {
    fn from(run: &'a Run) -> Memory<'a> {
        Memory::Run(run)
    }
}

impl Memory<'_> {
    fn zeroed<T: KernelArg>(self, len: usize) -> Result<Buffer<T>, Error> {
        match self {
            Memory::Scheduler(scheduler) => scheduler.zeroed(len),
            Memory::Run(run) => run.zeroed(len),
        }
    }

    fn buffer<T: KernelArg>(self, data: &[T]) -> Result<Buffer<T>, Error> {
        match self {
            Memory::Scheduler(scheduler) => scheduler.buffer(data),
            Memory::Run(run) => run.buffer(data),
        }
    }
}

/// A benchmark that can have any size.
#[derive(Clone, Copy)]
pub struct Scalable {
    /// The papers' name.
    pub name: &'static str,
    /// Allocates and describes the program; nothing runs yet.
    pub build: fn(Memory<'_>, Between, u32) -> Result<Program, Error>,
}

impl fmt::Debug for Scalable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scalable").field("name", &self.name).finish_non_exhaustive()
    }
}

/// FLEP's benchmarks.
pub const SCALABLE: &[Scalable] = &[
    Scalable { name: "CFD", build: cfd::build_between },
    Scalable { name: "NN", build: nn::build_between },
    Scalable { name: "PF", build: pf::build_between },
    Scalable { name: "PL", build: pl::build_between },
    Scalable { name: "MD", build: md::build_between },
    Scalable { name: "SPMV", build: spmv::build_between },
    Scalable { name: "MM", build: mm::build_between },
    Scalable { name: "VA", build: va::build_between },
];

/// Chimera's `BS` of any size.
pub const BLACK_SCHOLES: Scalable = Scalable { name: "BS", build: black_scholes::build_between };

/// A benchmark.
#[derive(Clone, Copy)]
pub struct Definition {
    /// The papers' name.
    pub name: &'static str,
    /// The benchmark's first publication.
    pub source: &'static str,
    /// FLEP's amortizing factor (table 1), for the rows that follow FLEP. For the other papers' benchmarks, a factor that
    /// suits their block-tasks.
    pub flep_amortize: u32,
    /// Allocates and describes the program; nothing runs yet.
    pub build: fn(Memory<'_>, Size, u32) -> Result<Program, Error>,
}

impl fmt::Debug for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Definition").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The launches of a benchmark with its buffers.
///
/// `setup` runs once. After it, `steps` can run any number of times, whatever the outputs hold before: a
/// step resets what others change.
#[derive(Debug)]
pub struct Program {
    /// Launches that make the inputs.
    pub setup: Vec<Call<'static>>,
    /// Launches of one run, in order.
    pub steps: Vec<Call<'static>>,
    /// The step that takes most of the time, by its index. Running the steps before it makes its input.
    pub dominant: usize,
    /// The program's outputs, with their expected values.
    pub outputs: Vec<Output>,
}

/// All benchmarks: FLEP's, then those of EffiSha that are not among them.
pub const ALL: &[Definition] = &[
    cfd::DEFINITION,
    nn::DEFINITION,
    pf::DEFINITION,
    pl::DEFINITION,
    md::DEFINITION,
    spmv::DEFINITION,
    mm::DEFINITION,
    va::DEFINITION,
    bfs::DEFINITION,
    fft::DEFINITION,
    md5_hash::DEFINITION,
    neural_net::DEFINITION,
    reduction::DEFINITION,
    scan::DEFINITION,
    sort::DEFINITION,
    stencil_2d::DEFINITION,
    triad::DEFINITION,
];

/// Chimera's benchmarks, by the labels of its table 2. They are no part of [`ALL`], so that the figures of the other
/// papers stay those of their programs.
///
/// Three kernels that the paper counts as not idempotent read one buffer here and write another: `cenergy`, that of `HW`,
/// and `imgvf`. Their block-tasks are long, and have yield points. Those of `LUD`, `NW`, `BP` and `FWT` work in place, as in
/// the paper, and have none.
///
/// Sizes follow one rule, from counts of operations and bytes, before anything ran. A launch is taken to last as long as
/// the longest of three: its bytes at half of an H200's 4.8 TB/s, its instructions at half of what its SMs issue, and 5 µs;
/// the first two at a tenth instead of half where accesses or branches are irregular (`BT`, `MUM`, and the transposition of
/// `KM`). [`Size::Large`] is the paper's input, with more elements until the whole program lasts 1 to 10 ms by this, in less
/// than 2 GiB of memory. [`Size::Small`] is about a tenth of it, [`Size::Trivial`] has few block-tasks, and
/// [`Size::Reduced`] as many as a sequential reference computes in a fraction of a second.
pub const CHIMERA: &[Definition] = &[
    black_scholes::DEFINITION,
    hot_spot::DEFINITION,
    kmeans::DEFINITION,
    lud::DEFINITION,
    nw::DEFINITION,
    back_prop::DEFINITION,
    fwt::DEFINITION,
    cp::DEFINITION,
    stencil_3d::DEFINITION,
    sad::DEFINITION,
    heart_wall::DEFINITION,
    leukocyte::DEFINITION,
    b_plus_tree::DEFINITION,
    mummer::DEFINITION,
];

/// Programs of [`CHIMERA`], by the same names, whose long block-tasks have checkpoints in the place of yield points, or where they
/// cannot have any.
pub const CHECKPOINTED: &[Definition] = &[
    fwt::CHECKPOINTED,
    cp::CHECKPOINTED,
    stencil_3d::CHECKPOINTED,
    sad::CHECKPOINTED,
    heart_wall::CHECKPOINTED,
    leukocyte::CHECKPOINTED,
    mummer::CHECKPOINTED,
];

/// The form with checkpoints of the program of this name, if there is one.
pub fn with_checkpoints(name: &str) -> Option<&'static Definition> {
    CHECKPOINTED.iter().find(|definition| definition.name == name)
}

/// The programs of both lists.
pub fn every() -> impl Iterator<Item = &'static Definition> {
    ALL.iter().chain(CHIMERA)
}

/// The benchmark of this name.
pub fn find(name: &str) -> Option<&'static Definition> {
    every().find(|definition| definition.name == name)
}

/// The number of blocks of `block` threads for `length` elements.
fn blocks(length: usize, block: u32) -> u32 {
    length.div_ceil(block as usize) as u32
}

/// A buffer of `length` random numbers from `low` to `high`, and the call that makes them.
fn random_f32(
    memory: Memory<'_>,
    setup: &mut Vec<Call<'static>>,
    seed: u32,
    (low, high): (f32, f32),
    length: usize,
) -> Result<Buffer<f32>, Error> {
    use preempt_workload_kernels::input::{BLOCK, fill_f32};
    let mut buffer = memory.zeroed(length)?;
    setup.push(fill_f32(seed, low, high, &mut buffer).grid(blocks(length, BLOCK)));
    Ok(buffer)
}
