//! Programs as CUDA graphs: one node after the other, instantiated and uploaded before the first launch.
//!
//! A graph is launched into a queue's stream, so the hardware takes it for as urgent as that. Arguments are changed
//! between launches, in the executable graph; launches that the driver has taken keep theirs (CUDA driver API,
//! `cuGraphExecKernelNodeSetParams`). A program of one kernel is no graph: the driver launches that sooner by itself.
//!
//! Destroying an executable graph frees memory of the device, for which the driver may wait. So graphs that no program
//! has any more are kept until nothing runs.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::sys;
use preempt_device::host::Args;

use super::capture::{CapturedGraph, capture};
use super::code::Function;
use super::context::{Context, call};
use super::driver::{RawGraph, RawGraphExec, RawNode};
use super::events::Ends;
use super::fills::{Fill, doublings, fills};
use super::kernels::Kernels;
use super::launch::{Placed, with_parameters};
use super::memory::{Pool, Zeroing};
use super::probe::settle;
use super::streams::{Stream, TrackedStream};
use super::{CudaDevice, lock};
use crate::device::control::PlainGrid;
use crate::device::{Captured, Copy, CopyKind, KernelLaunch, Owner, ProgramLaunch, Rows, Step};
use crate::error::{DeviceError, Error};
use crate::vocabulary::Vicinity;

/// Graphs, at most, that wait for a device that is never idle. Beyond that a thread that makes a program destroys them,
/// and may wait: memory against a delay.
const MOST_UNUSED: usize = 64;

/// Bytes, at most, of a copy that is one node. The driver bounds a pitch by 2 GiB (`CU_DEVICE_ATTRIBUTE_MAX_PITCH`), and
/// a node has one even if its copy is a single row.
const PIECE: usize = 1 << 30;

/// An executable graph, and the graph that names its nodes.
#[derive(Debug)]
pub(super) struct Raw {
    pub graph: RawGraph,
    /// `None` if there is nothing to do.
    pub executable: Option<RawGraphExec>,
}

// SAFETY: threads use it one at a time: the driver's functions for graphs are not to be called for one graph at once.
unsafe impl Send for Raw {}

/// What each piece of captured work has put into its stream.
type Captures = HashMap<*const Captured, CapturedGraph>;

/// The graph of a program.
#[derive(Debug)]
pub(super) struct ProgramGraph {
    /// Locked while it is launched.
    state: Mutex<State>,
    context: Arc<Context>,
    unused: Arc<UnusedGraphs>,
}

#[derive(Debug)]
struct State {
    raw: Raw,
    /// The version of the program that the arguments are of.
    version: u64,
    /// For each call that is a launch: its node, and the version of its arguments.
    kernels: Vec<Option<(Node, u64)>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Node(RawNode);

// SAFETY: a node lives as long as its graph, and is used under the same lock.
unsafe impl Send for Node {}

/// Graphs that no program has any more.
#[derive(Debug)]
pub(super) struct UnusedGraphs {
    graphs: Mutex<Vec<Raw>>,
    /// Whether there are any.
    any: AtomicBool,
    context: Arc<Context>,
}

impl UnusedGraphs {
    pub fn new(context: &Arc<Context>) -> UnusedGraphs {
        let (graphs, any) = (Mutex::default(), AtomicBool::new(false));
        UnusedGraphs { graphs, any, context: context.clone() }
    }

    pub fn add(&self, raw: Raw) {
        let mut graphs = lock(&self.graphs);
        graphs.push(raw);
        // Relaxed: a thread that sees the flag takes the lock.
        self.any.store(true, Ordering::Relaxed);
    }

    /// Destroys them all if they are many.
    pub fn destroy_if_many(&self) {
        if lock(&self.graphs).len() >= MOST_UNUSED {
            self.destroy();
        }
    }

    /// Destroys them all. Nothing runs, or the thread may wait.
    pub fn destroy(&self) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut graphs = lock(&self.graphs);
        self.any.store(false, Ordering::Relaxed);
        let all = std::mem::take(&mut *graphs);
        drop(graphs);
        let entered = self.context.is_freeable().then(|| self.context.enter());
        if let Some(Ok(_entered)) = entered {
            // Nothing can be done about an error.
            all.into_iter().for_each(|raw| raw.destroy(&self.context));
        }
    }
}

impl Drop for UnusedGraphs {
    fn drop(&mut self) {
        self.destroy();
    }
}

impl Raw {
    /// A graph without nodes. The context is entered.
    pub fn new(context: &Context) -> Result<Raw, Error> {
        let mut graph = ptr::null_mut();
        // SAFETY: the pointer is valid.
        unsafe { call!(context, cuGraphCreate(&raw mut graph, 0))? };
        Ok(Raw { graph, executable: None })
    }

    /// Makes the graph executable, on the device. The context is entered.
    ///
    /// # Safety
    ///
    /// It stays until the line is done, or the context is lost, also after an error.
    pub unsafe fn instantiate(
        &mut self,
        context: &Context,
        line: &TrackedStream,
    ) -> Result<(), Error> {
        let mut executable = ptr::null_mut();
        let graph = self.graph;
        // SAFETY: the pointer is valid.
        unsafe { call!(context, cuGraphInstantiateWithFlags(&raw mut executable, graph, 0))? };
        self.executable = Some(executable);
        // SAFETY: the caller's promise.
        let upload = |stream| unsafe { call!(context, cuGraphUpload(executable, stream)) };
        let number = line.issue(upload)?;
        line.wait(number)
    }

    /// The context is entered, and no launch of it is under way.
    fn destroy(self, context: &Context) {
        let functions = context.functions();
        if let Some(executable) = self.executable {
            // SAFETY: instantiated once, and given up by its owner.
            unsafe { (functions.cuGraphExecDestroy)(executable) };
        }
        // SAFETY: created once, and given up by its owner.
        unsafe { (functions.cuGraphDestroy)(self.graph) };
    }
}

impl Drop for ProgramGraph {
    fn drop(&mut self) {
        let State { raw, .. } =
            self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        // After an error that lost the context nothing is freed.
        if self.context.is_freeable() {
            self.unused.add(Raw { graph: raw.graph, executable: raw.executable.take() });
        }
    }
}

impl ProgramGraph {
    /// The graph of these calls, on the device. The context is entered.
    ///
    /// # Safety
    ///
    /// The arguments of each launch are its kernel's. The source of a fill is valid now.
    unsafe fn new(
        context: &Arc<Context>,
        kernels: &Kernels,
        (line, unused): (&TrackedStream, &Arc<UnusedGraphs>),
        captures: &Captures,
        steps: &[Step],
    ) -> Result<ProgramGraph, Error> {
        let raw = Raw::new(context)?;
        let graph = raw.graph;
        let state = State { raw, version: 0, kernels: Vec::new() };
        // From here on, an error gives the graph up.
        let program = ProgramGraph {
            state: Mutex::new(state),
            context: context.clone(),
            unused: unused.clone(),
        };
        let mut state = lock(&program.state);
        let mut nodes = Nodes::of(context, graph);
        for step in steps {
            let kernel = match step {
                Step::Launch { launch, version } => {
                    let node =
                        entry_node(context, &kernels.of(launch)?.plain, launch.grid, (launch, 0));
                    // SAFETY: the caller's promise.
                    Some((unsafe { nodes.kernel(node, None, &launch.args)? }, *version))
                }
                Step::Copy(copy) => {
                    // SAFETY: the caller's promise.
                    unsafe { nodes.copy(copy.copy)? };
                    None
                }
                Step::Captured(work) => {
                    nodes.child(&captures[&Arc::as_ptr(work)])?;
                    None
                }
            };
            state.version = state.version.max(kernel.map_or(0, |(_, version)| version));
            state.kernels.push(kernel);
        }
        if nodes.last.is_some() {
            // SAFETY: an error gives the graph up, which is not destroyed before the line is done.
            unsafe { state.raw.instantiate(context, line)? };
        }
        drop(state);
        Ok(program)
    }
}

impl State {
    /// Gives the executable graph the arguments of a launch of its program. The context is entered.
    fn update(
        &mut self,
        context: &Context,
        kernels: &Kernels,
        program: &ProgramLaunch,
    ) -> Result<(), Error> {
        let Some(executable) = self.raw.executable else { return Ok(()) };
        if self.version == program.version {
            return Ok(());
        }
        // If a call fails, the versions say which nodes are up to date, and the program's version that not all are.
        self.version = u64::MAX;
        for (kernel, step) in self.kernels.iter_mut().zip(&program.steps) {
            let (Some((node, known)), Step::Launch { launch, version }) = (kernel, step) else {
                continue;
            };
            if known != version {
                let shape =
                    entry_node(context, &kernels.of(launch)?.plain, launch.grid, (launch, 0));
                // SAFETY: the node is of the graph; these are the entry's parameters.
                unsafe { node.set(context, executable, shape, None, &launch.args)? };
                *known = *version;
            }
        }
        self.version = program.version;
        Ok(())
    }
}

/// The launch that is all of a program, if there is one.
fn only_launch(steps: &[Step]) -> Option<&KernelLaunch> {
    match steps {
        [Step::Launch { launch, .. }] => Some(launch),
        _ => None,
    }
}

/// A kernel node without its parameters, with bytes of shared memory beyond those of the launch.
pub(super) fn entry_node(
    context: &Context,
    entry: &Function,
    [x, y, z]: [u32; 3],
    (launch, added_shared): (&KernelLaunch, u32),
) -> sys::CUDA_KERNEL_NODE_PARAMS {
    sys::CUDA_KERNEL_NODE_PARAMS {
        func: entry.0,
        gridDimX: x,
        gridDimY: y,
        gridDimZ: z,
        blockDimX: launch.block.x,
        blockDimY: launch.block.y,
        blockDimZ: launch.block.z,
        sharedMemBytes: launch.shared_bytes() + added_shared,
        kernelParams: ptr::null_mut(),
        extra: ptr::null_mut(),
        kern: ptr::null_mut(),
        ctx: context.raw(),
    }
}

impl Node {
    /// Gives the node of an executable graph another shape and other parameters. The context is entered.
    ///
    /// # Safety
    ///
    /// The node is of the graph. These are the parameters of the entry, which is the node's.
    pub unsafe fn set(
        self,
        context: &Context,
        executable: RawGraphExec,
        node: sys::CUDA_KERNEL_NODE_PARAMS,
        cohort: Option<Placed<'_>>,
        args: &Args,
    ) -> Result<(), Error> {
        with_parameters(cohort, args, |parameters| {
            let node = sys::CUDA_KERNEL_NODE_PARAMS { kernelParams: parameters, ..node };
            let shape = &raw const node;
            // SAFETY: the caller's promise; the driver copies the parameters.
            unsafe { call!(context, cuGraphExecKernelNodeSetParams_v2(executable, self.0, shape)) }
        })
    }
}

/// A graph whose nodes follow each other.
pub(super) struct Nodes<'a> {
    context: &'a Context,
    graph: RawGraph,
    last: Option<RawNode>,
}

impl<'a> Nodes<'a> {
    /// A graph that has no nodes.
    pub fn of(context: &'a Context, graph: RawGraph) -> Nodes<'a> {
        Nodes { context, graph, last: None }
    }

    /// Adds a node behind the last one. `add` takes where the node is written, and the nodes before it.
    fn add(
        &mut self,
        add: impl FnOnce(*mut RawNode, *const RawNode, usize) -> Result<(), Error>,
    ) -> Result<RawNode, Error> {
        let mut node = ptr::null_mut();
        let before = self.last.as_ref();
        let (dependencies, count) =
            (before.map_or(ptr::null(), ptr::from_ref), usize::from(before.is_some()));
        add(&raw mut node, dependencies, count)?;
        self.last = Some(node);
        Ok(node)
    }

    /// # Safety
    ///
    /// These are the parameters of the entry.
    pub unsafe fn kernel(
        &mut self,
        node: sys::CUDA_KERNEL_NODE_PARAMS,
        cohort: Option<Placed<'_>>,
        args: &Args,
    ) -> Result<Node, Error> {
        let (context, graph) = (self.context, self.graph);
        with_parameters(cohort, args, |parameters| {
            let shape = sys::CUDA_KERNEL_NODE_PARAMS { kernelParams: parameters, ..node };
            let shape = &raw const shape;
            self.add(|node, before, count| {
                // SAFETY: the pointers are valid; these are the entry's parameters, which the driver copies.
                unsafe {
                    call!(context, cuGraphAddKernelNode_v2(node, graph, before, count, shape))
                }
            })
        })
        .map(Node)
    }

    /// # Safety
    ///
    /// The source of a fill is valid now.
    unsafe fn copy(&mut self, copy: Copy) -> Result<(), Error> {
        let Copy { kind, from, to, rows } = copy;
        if kind == CopyKind::OnDevice {
            return rows.parts(PIECE).try_for_each(|part| {
                self.transfer(from + part.from as u64, to + part.to as u64, part.rows)
            });
        }
        let mut element = vec![0u8; if rows.count == 0 { 0 } else { rows.bytes }];
        let source = ptr::with_exposed_provenance::<u8>(from as usize);
        // SAFETY: the caller's promise.
        unsafe { source.copy_to_nonoverlapping(element.as_mut_ptr(), element.len()) };
        let (fills, doubled) = fills(to, &element, rows.count);
        fills.into_iter().try_for_each(|fill| self.fill(fill))?;
        // What is there is copied behind itself until all is.
        let all = if doubled { rows.total() } else { 0 };
        doublings(rows.bytes, all, PIECE)
            .try_for_each(|(at, bytes)| self.transfer(to, to + at as u64, Rows::one(bytes)))
    }

    /// Adds a copy of a captured graph.
    fn child(&mut self, captured: &CapturedGraph) -> Result<(), Error> {
        let (context, graph, child) = (self.context, self.graph, captured.raw());
        self.add(|node, before, count| {
            // SAFETY: the pointers are valid.
            unsafe { call!(context, cuGraphAddChildGraphNode(node, graph, before, count, child)) }
        })
        .map(drop)
    }

    fn transfer(&mut self, from: u64, to: u64, rows: Rows) -> Result<(), Error> {
        use sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
        let (context, graph) = (self.context, self.graph);
        let rows = rows.joined();
        let copy = sys::CUDA_MEMCPY3D {
            srcXInBytes: 0,
            srcY: 0,
            srcZ: 0,
            srcLOD: 0,
            srcMemoryType: CU_MEMORYTYPE_DEVICE,
            srcHost: ptr::null(),
            srcDevice: from,
            srcArray: ptr::null_mut(),
            reserved0: ptr::null_mut(),
            srcPitch: rows.from_pitch,
            srcHeight: rows.count,
            dstXInBytes: 0,
            dstY: 0,
            dstZ: 0,
            dstLOD: 0,
            dstMemoryType: CU_MEMORYTYPE_DEVICE,
            dstHost: ptr::null_mut(),
            dstDevice: to,
            dstArray: ptr::null_mut(),
            reserved1: ptr::null_mut(),
            dstPitch: rows.to_pitch,
            dstHeight: rows.count,
            WidthInBytes: rows.bytes,
            Height: rows.count,
            Depth: 1,
        };
        let copy = &raw const copy;
        self.add(|node, before, count| {
            let raw = context.raw();
            // SAFETY: the pointers are valid, and the driver reads the description during the call.
            unsafe { call!(context, cuGraphAddMemcpyNode(node, graph, before, count, copy, raw)) }
        })
        .map(drop)
    }

    fn fill(&mut self, fill: Fill) -> Result<(), Error> {
        let (context, graph) = (self.context, self.graph);
        let fill = sys::CUDA_MEMSET_NODE_PARAMS {
            dst: fill.to,
            pitch: fill.pitch,
            value: fill.value,
            elementSize: fill.unit as u32,
            width: fill.width,
            height: fill.height,
        };
        let fill = &raw const fill;
        self.add(|node, before, count| {
            let raw = context.raw();
            // SAFETY: as above.
            unsafe { call!(context, cuGraphAddMemsetNode(node, graph, before, count, fill, raw)) }
        })
        .map(drop)
    }
}

/// Bytes in which nodes that warm up write.
const WARM_UP: usize = 1 << 20;

/// Uses each kind of node that may be a kernel of the driver's, and the driver's functions for graphs in each of `streams`,
/// where programs will be launched, before anything runs. The driver prepares a stream at its first graph, and may wait for
/// kernels that run. The context is entered.
pub(super) fn warm_up(
    context: &Context,
    pool: &Pool,
    line: &TrackedStream,
    streams: &[Stream],
) -> Result<(), Error> {
    let memory = pool.allocate(WARM_UP, Zeroing::ByCopies)?;
    let mut graph = ptr::null_mut();
    // SAFETY: the pointer is valid.
    let mut result = unsafe { call!(context, cuGraphCreate(&raw mut graph, 0)) };
    let is_created = result.is_ok();
    let mut raw = Raw { graph, executable: None };
    if is_created {
        result = use_nodes(context, line, streams, &mut raw, memory);
    }
    // After an error, too: a part of the work may be on its way.
    let all = streams.iter().chain([line.stream()]);
    let settled = all.map(|stream| settle(context, stream)).fold(Ok(()), Result::and);
    if is_created && settled.is_ok() {
        raw.destroy(context);
    }
    if settled.is_ok() {
        // SAFETY: allocated above, and the line is done.
        unsafe { pool.free(memory, WARM_UP) };
    }
    result.and(settled)
}

/// Runs a graph that writes within [`WARM_UP`] bytes at `memory`.
fn use_nodes(
    context: &Context,
    line: &TrackedStream,
    streams: &[Stream],
    raw: &mut Raw,
    memory: u64,
) -> Result<(), Error> {
    let mut nodes = Nodes { context, graph: raw.graph, last: None };
    let half = WARM_UP / 2;
    for unit in [1, 2, 4] {
        // One row, and columns.
        for (width, height) in [(half / unit, 1), (1, half / (2 * unit))] {
            let pitch = if height == 1 { 0 } else { 2 * unit };
            nodes.fill(Fill { to: memory, value: 0, unit, width, height, pitch })?;
        }
    }
    for (offset, bytes) in [(0, half), (1, 4099), (4, 4100)] {
        nodes.transfer(memory + offset, memory + half as u64, Rows::one(bytes))?;
    }
    let mut executable = ptr::null_mut();
    let graph = raw.graph;
    // SAFETY: the pointer is valid.
    unsafe { call!(context, cuGraphInstantiateWithFlags(&raw mut executable, graph, 0))? };
    raw.executable = Some(executable);
    // SAFETY: the graph, and the memory that it writes, stay until the line is done.
    let work = |stream| unsafe {
        call!(context, cuGraphUpload(executable, stream))?;
        call!(context, cuGraphLaunch(executable, stream))
    };
    line.issue(work)?;
    let mut before = line.stream();
    for stream in streams {
        settle(context, before)?;
        let raw = stream.raw();
        // SAFETY: the graph, and the memory that it writes, stay until all streams are done.
        unsafe { call!(context, cuGraphLaunch(executable, raw))? };
        before = stream;
    }
    Ok(())
}

impl ProgramGraph {
    /// Puts the graph into a stream, with the arguments that the program has now. The context is entered.
    ///
    /// # Safety
    ///
    /// As [`Backend::launch_program`](crate::device::Backend::launch_program).
    unsafe fn launch(
        &self,
        kernels: &Kernels,
        program: &ProgramLaunch,
        stream: &Stream,
    ) -> Result<(), Error> {
        let context = &self.context;
        let mut state = lock(&self.state);
        state.update(context, kernels, program)?;
        let Some(executable) = state.raw.executable else { return Ok(()) };
        let raw = stream.raw();
        // SAFETY: the graph stays until its launches are over; the rest is the caller's promise.
        unsafe { call!(context, cuGraphLaunch(executable, raw)) }
    }
}

impl CudaDevice {
    /// # Safety
    ///
    /// As [`Backend::prepare`](crate::device::Backend::prepare).
    pub(super) unsafe fn prepare_graphs(&self, programs: &[&[Step]]) -> Result<Vec<Owner>, Error> {
        self.graphs.clone()?;
        let context = &self.shared.context;
        let _entered = context.enter()?;
        // The driver may wait for kernels that run, and would for each proxy.
        let _held = self.proxy.hold();
        self.end_proxy();
        self.unused_graphs.destroy_if_many();
        // First, because this calls application code.
        let mut captures = Captures::new();
        for step in programs.iter().copied().flatten() {
            if let Step::Captured(work) = step
                && let Entry::Vacant(place) = captures.entry(Arc::as_ptr(work))
            {
                place.insert(capture(context, work)?);
            }
        }
        let place = (&self.uploads, &self.unused_graphs);
        let graph = |steps: &&[Step]| -> Result<Owner, Error> {
            if let Some(launch) = only_launch(steps) {
                self.kernels.of(launch)?;
                return Ok(Arc::new(()));
            }
            // SAFETY: the caller's promise.
            let graph =
                unsafe { ProgramGraph::new(context, &self.kernels, place, &captures, steps)? };
            Ok(Arc::new(graph))
        };
        programs.iter().map(graph).collect()
    }

    /// # Safety
    ///
    /// As [`Backend::launch_program`](crate::device::Backend::launch_program).
    pub(super) unsafe fn launch_graph(
        &self,
        queue: u32,
        program: &ProgramLaunch,
        grid: PlainGrid,
    ) -> Result<(), Error> {
        if let Some(launch) = only_launch(&program.steps) {
            let grid = PlainGrid { extents: launch.grid, ..grid };
            // Of what is beside it nothing is known here.
            let vicinity =
                Vicinity { on_sm: u32::MAX, meets: 0, others: 0, is_behind: false, may_ask: false };
            // SAFETY: the caller's promise.
            return unsafe { self.launch_plain(queue, launch, grid, vicinity) };
        }
        let prepared = program.prepared.as_ref();
        let Some(graph) = prepared.and_then(|owner| owner.downcast_ref::<ProgramGraph>()) else {
            let reason = "it did not prepare the program that it is to launch".into();
            return Err(Error::Device(DeviceError::Unsupported { reason }));
        };
        let _entered = self.context().enter()?;
        let event = self.events.take()?;
        // SAFETY: the caller's promise.
        let launched = unsafe { graph.launch(&self.kernels, program, self.queues.stream(queue)) };
        if let Err(error) = launched {
            self.events.give_back(event);
            return Err(error);
        }
        // SAFETY: the caller's promise.
        unsafe { self.post_after(queue, grid, event) };
        Ok(())
    }
}
