//! Graphs on the fake driver: their nodes follow each other.
//!
//! A graph and an executable graph each have a piece of host memory that counts as allocated until they are destroyed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys;
use preempt_device::abi::Cohort;

use super::memory::{Kind, allocate, release, state};
use super::panics::FakeFunction;
use super::{Code, Entry, FakeStream, INVALID_VALUE, NOT_FOUND};

#[derive(Clone)]
struct Node {
    id: usize,
    work: Work,
}

#[derive(Clone)]
enum Work {
    Kernel {
        function: usize,
        parameters: Arc<Vec<Vec<u8>>>,
        blocks: u32,
        threads: u32,
    },
    Copy {
        to: usize,
        from: usize,
        pitches: [usize; 2],
        width: usize,
        height: usize,
    },
    Fill {
        to: usize,
        value: u32,
        unit: usize,
        pitch: usize,
        width: usize,
        height: usize,
    },
    /// The nodes of a graph that was captured.
    Child(Arc<Vec<Work>>),
}

pub struct FakeGraph {
    mark: usize,
    nodes: Mutex<Vec<Node>>,
}

pub struct FakeExecutable {
    mark: usize,
    nodes: Mutex<Vec<Node>>,
    under_way: Arc<AtomicUsize>,
    is_live: AtomicBool,
}

/// Bytes that a parameter may take.
const PARAMETER: usize = 16;

impl Work {
    /// # Safety
    ///
    /// The description is that of a launch of its function.
    unsafe fn kernel(kernel: &sys::CUDA_KERNEL_NODE_PARAMS) -> Option<Work> {
        // SAFETY: the caller's promise. It shows whether the driver knows the kernel.
        unsafe { Entry::new(kernel.func, kernel.kernelParams)? };
        // Kernels of this driver have at most five, and their values lie in memory of whole `u128`s.
        // SAFETY: as above.
        let name = unsafe { (*kernel.func.cast::<FakeFunction>()).name.as_str() };
        let plain = name.strip_suffix("__plain");
        let is_foreign = name.starts_with("foreign_");
        let count = match plain.unwrap_or(name) {
            "panics" => 3,
            name if name.contains("count_1d") => 4,
            _ => 5,
        };
        // The first one of a preemptible entry, or the last one of that of another compiler.
        let cohort = match is_foreign {
            true => {
                (name.ends_with("__preemptible") || name.ends_with("__yielding")).then_some(count)
            }
            false => plain.is_none().then_some(0),
        };
        let parameter = |at: usize| {
            let is_cohort = cohort == Some(at);
            let mut bytes = vec![0; if is_cohort { size_of::<Cohort>() } else { PARAMETER }];
            // SAFETY: as above.
            unsafe {
                ptr::copy_nonoverlapping(
                    (*kernel.kernelParams.add(at)).cast(),
                    bytes.as_mut_ptr(),
                    bytes.len(),
                );
            }
            bytes
        };
        Some(Work::Kernel {
            function: kernel.func as usize,
            parameters: Arc::new(
                (0..usize::from(cohort.is_some()) + count).map(parameter).collect(),
            ),
            blocks: kernel.gridDimX * kernel.gridDimY * kernel.gridDimZ,
            threads: kernel.blockDimX,
        })
    }

    /// The memory that it reads and writes, apart from a kernel's.
    fn ranges(&self) -> Vec<(Range<usize>, bool)> {
        let rows = |start: usize, pitch: usize, bytes: usize, height: usize| {
            (0..height).map(move |row| start + row * pitch..start + row * pitch + bytes)
        };
        match *self {
            Work::Kernel { .. } => Vec::new(),
            Work::Child(ref works) => works.iter().flat_map(Work::ranges).collect(),
            Work::Copy { to, from, pitches: [to_pitch, from_pitch], width, height } => {
                let written = rows(to, to_pitch, width, height).map(|range| (range, true));
                written
                    .chain(rows(from, from_pitch, width, height).map(|range| (range, false)))
                    .collect()
            }
            // The whole span, because there may be many columns.
            Work::Fill { to, unit, pitch, width, height, .. } => {
                vec![(to..to + (height - 1) * pitch + width * unit, true)]
            }
        }
    }

    fn run(&self, context: usize) {
        if let Work::Kernel { function, parameters, blocks, threads } = self {
            let mut pointers: Vec<_> =
                parameters.iter().map(|bytes| bytes.as_ptr().cast_mut().cast()).collect();
            let function: *mut FakeFunction = ptr::with_exposed_provenance_mut(*function);
            // SAFETY: the function is never freed.
            unsafe { &*function }.module().check(context, "a graph");
            // SAFETY: as above, and these are its parameters.
            let entry = unsafe { Entry::new(function.cast(), pointers.as_mut_ptr()) };
            return entry.into_iter().for_each(|entry| entry.run(*blocks, *threads, context));
        }
        if let Work::Child(works) = self {
            return works.iter().for_each(|work| work.run(context));
        }
        for (range, _) in self.ranges() {
            if !state().check(&range, Some(Kind::Device), "a node of a graph") {
                return;
            }
        }
        match *self {
            Work::Kernel { .. } | Work::Child(_) => {}
            Work::Copy { to, from, pitches: [to_pitch, from_pitch], width, height } => {
                for row in 0..height {
                    let (from, to) = (from + row * from_pitch, to + row * to_pitch);
                    // SAFETY: both were looked at, and do not overlap.
                    unsafe { ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, width) };
                }
            }
            Work::Fill { to, value, unit, pitch, width, height } => {
                let bytes = &value.to_le_bytes()[..unit];
                // Mostly zeros, and tens of megabytes of them.
                let same = bytes.iter().all(|byte| *byte == bytes[0]);
                let row = if same { Vec::new() } else { bytes.repeat(width) };
                let rows = (0..height).map(|index| (to + index * pitch) as *mut u8);
                // SAFETY: each was looked at.
                unsafe {
                    // Devices are opened with millions of rows of one unit.
                    match (unit, width) {
                        (1, 1) => rows.for_each(|to| to.write(value as u8)),
                        (2, 1) => {
                            rows.for_each(|to| to.cast::<u16>().write_unaligned(value as u16))
                        }
                        (4, 1) => rows.for_each(|to| to.cast::<u32>().write_unaligned(value)),
                        _ if same => rows.for_each(|to| to.write_bytes(bytes[0], unit * width)),
                        _ => {
                            rows.for_each(|to| to.copy_from_nonoverlapping(row.as_ptr(), row.len()))
                        }
                    }
                }
            }
        }
    }
}

fn lock(nodes: &Mutex<Vec<Node>>) -> MutexGuard<'_, Vec<Node>> {
    nodes.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeGraph {
    pub fn create() -> *mut FakeGraph {
        let mark = allocate(1, Kind::Pinned);
        Box::into_raw(Box::new(FakeGraph { mark, nodes: Mutex::default() }))
    }

    /// # Safety
    ///
    /// The pointers are those of a call that adds a node.
    unsafe fn add(
        &self,
        node: *mut sys::CUgraphNode,
        (before, count): (*const sys::CUgraphNode, usize),
        work: Option<Work>,
    ) -> Code {
        let Some(work) = work else { return NOT_FOUND };
        let mut nodes = lock(&self.nodes);
        // SAFETY: the caller's promise.
        let before = if count == 0 { 0 } else { unsafe { (*before).addr() } };
        if count > 1 || nodes.last().map_or(0, |node| node.id) != before {
            state().violation("a node that does not follow the last one".into());
            return INVALID_VALUE;
        }
        static NODES: AtomicUsize = AtomicUsize::new(1);
        let id = NODES.fetch_add(1, Ordering::Relaxed);
        nodes.push(Node { id, work });
        // SAFETY: as above.
        unsafe { *node = ptr::without_provenance_mut(id) };
        0
    }

    /// # Safety
    ///
    /// The pointers are those of a call that adds a node of this kind.
    pub unsafe fn add_kernel(
        &self,
        node: *mut sys::CUgraphNode,
        before: (*const sys::CUgraphNode, usize),
        kernel: &sys::CUDA_KERNEL_NODE_PARAMS,
    ) -> Code {
        // SAFETY: the caller's promise.
        unsafe { self.add(node, before, Work::kernel(kernel)) }
    }

    /// # Safety
    ///
    /// As [`add_kernel`](FakeGraph::add_kernel).
    pub unsafe fn add_copy(
        &self,
        node: *mut sys::CUgraphNode,
        before: (*const sys::CUgraphNode, usize),
        copy: &sys::CUDA_MEMCPY3D,
    ) -> Code {
        let (to, from) = (copy.dstDevice as usize, copy.srcDevice as usize);
        let (width, height, pitches) =
            (copy.WidthInBytes, copy.Height, [copy.dstPitch, copy.srcPitch]);
        let heights = [copy.dstHeight, copy.srcHeight];
        let is_right = copy.Depth == 1
            && pitches.into_iter().all(|pitch| (width..=i32::MAX as usize).contains(&pitch))
            && heights.into_iter().all(|all| all >= height);
        if !is_right {
            return INVALID_VALUE;
        }
        let work = Work::Copy { to, from, pitches, width, height };
        // SAFETY: the caller's promise.
        unsafe { self.add(node, before, Some(work)) }
    }

    /// # Safety
    ///
    /// As [`add_kernel`](FakeGraph::add_kernel).
    pub unsafe fn add_fill(
        &self,
        node: *mut sys::CUgraphNode,
        before: (*const sys::CUgraphNode, usize),
        fill: &sys::CUDA_MEMSET_NODE_PARAMS,
    ) -> Code {
        let sys::CUDA_MEMSET_NODE_PARAMS { dst, pitch, value, elementSize, width, height } = *fill;
        let (to, unit) = (dst as usize, elementSize as usize);
        let is_right = [1, 2, 4].contains(&unit)
            && to.is_multiple_of(unit)
            && (height <= 1 || pitch.is_multiple_of(unit) && pitch >= width * unit)
            && width * height > 0;
        if !is_right {
            return INVALID_VALUE;
        }
        let work = Work::Fill { to, value, unit, pitch, width, height };
        // SAFETY: the caller's promise.
        unsafe { self.add(node, before, Some(work)) }
    }

    /// # Safety
    ///
    /// As [`add_kernel`](FakeGraph::add_kernel).
    pub unsafe fn add_child(
        &self,
        node: *mut sys::CUgraphNode,
        before: (*const sys::CUgraphNode, usize),
        child: &FakeGraph,
    ) -> Code {
        let works = lock(&child.nodes).iter().map(|node| node.work.clone()).collect();
        // SAFETY: the caller's promise.
        unsafe { self.add(node, before, Some(Work::Child(Arc::new(works)))) }
    }

    pub fn len(&self) -> usize {
        lock(&self.nodes).len()
    }

    pub fn instantiate(&self) -> *mut FakeExecutable {
        let nodes = Mutex::new(lock(&self.nodes).clone());
        let (mark, under_way) = (allocate(1, Kind::Pinned), Arc::default());
        let is_live = AtomicBool::new(true);
        Box::into_raw(Box::new(FakeExecutable { mark, nodes, under_way, is_live }))
    }

    /// It stays allocated, so that late uses are found.
    pub fn destroy(&self) {
        release(self.mark, "cuGraphDestroy");
    }
}

impl FakeExecutable {
    fn check(&self, what: &str) {
        if !self.is_live.load(Ordering::Relaxed) {
            state().violation(format!("{what}: the executable graph was destroyed"));
        }
    }

    pub fn upload(&self, stream: &FakeStream) -> Code {
        self.check("cuGraphUpload");
        stream.put(|| ())
    }

    /// The nodes keep the arguments that they have now.
    pub fn launch(&self, stream: &FakeStream) -> Code {
        self.check("cuGraphLaunch");
        let (nodes, under_way) = (lock(&self.nodes).clone(), self.under_way.clone());
        under_way.fetch_add(1, Ordering::Relaxed);
        let ranges: Vec<_> = nodes.iter().flat_map(|node| node.work.ranges()).collect();
        let id = state().queue((ptr::from_ref(stream).addr(), stream.context), &ranges, "a graph");
        let context = stream.context;
        stream.launch(move || {
            nodes.iter().for_each(|node| node.work.run(context));
            state().accesses.retain(|access| access.id != id);
            under_way.fetch_sub(1, Ordering::Release);
        })
    }

    /// # Safety
    ///
    /// The description is that of a launch of its function.
    pub unsafe fn set(&self, node: usize, kernel: &sys::CUDA_KERNEL_NODE_PARAMS) -> Code {
        self.check("cuGraphExecKernelNodeSetParams");
        // SAFETY: the caller's promise.
        let Some(work) = (unsafe { Work::kernel(kernel) }) else { return NOT_FOUND };
        match lock(&self.nodes).iter_mut().find(|known| known.id == node) {
            Some(known) => known.work = work,
            None => return INVALID_VALUE,
        }
        0
    }

    /// It stays allocated, so that late uses are found.
    pub fn destroy(&self) {
        self.check("cuGraphExecDestroy");
        if self.under_way.load(Ordering::Acquire) > 0 {
            state().violation("cuGraphExecDestroy: launches of it are under way".into());
        }
        self.is_live.store(false, Ordering::Relaxed);
        release(self.mark, "cuGraphExecDestroy");
    }
}

/// What streams have captured, by stream, while they are.
static CAPTURES: Mutex<BTreeMap<usize, Vec<Work>>> = Mutex::new(BTreeMap::new());

fn captures() -> MutexGuard<'static, BTreeMap<usize, Vec<Work>>> {
    CAPTURES.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn begin_capture(stream: *const FakeStream) -> Code {
    match captures().insert(stream.addr(), Vec::new()) {
        None => 0,
        Some(_) => ILLEGAL_STATE,
    }
}

/// The graph of what a stream has captured.
pub fn end_capture(stream: *const FakeStream) -> Option<*mut FakeGraph> {
    let works = captures().remove(&stream.addr())?;
    let graph = FakeGraph::create();
    // SAFETY: it was just made.
    let mut nodes = lock(unsafe { &(*graph).nodes });
    nodes.extend(works.into_iter().map(|work| Node { id: 0, work }));
    drop(nodes);
    Some(graph)
}

/// Captures a fill, if the stream is being captured.
pub fn capture_fill(stream: *const FakeStream, to: usize, value: u32, width: usize) -> bool {
    let mut captures = captures();
    let Some(works) = captures.get_mut(&stream.addr()) else { return false };
    works.push(Work::Fill { to, value, unit: 4, pitch: 0, width, height: 1 });
    true
}

/// The driver's code for a capture that does not fit its stream.
pub const ILLEGAL_STATE: Code = 401;
