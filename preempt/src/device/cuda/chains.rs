//! Chains: consecutive launches of a preemptible program as one CUDA graph, whose nodes are cohorts.
//!
//! A call of the driver takes longer than many kernels do (3 to 6 µs on an H200). To set the parameters of a node takes 0.15
//! µs, and the graph is one call. The graph has all kernels of its calls, so it serves where all of
//! them are queued behind another launch. What is left of a chain after a stop is launched kernel by kernel.
//!
//! The driver runs launches of one executable graph one after the other, as a queue does anyway. Two queues have launches of one
//! graph only if the first launch was disarmed: it leaves when its gate has found room, and the next launch of its program does
//! not wait for that. Until then a chain in another queue is launched kernel by kernel, too.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use preempt_device::abi::{Cohort, Post};

use super::context::{Context, call};
use super::graphs::{Node, Nodes, Raw, UnusedGraphs, entry_node};
use super::kernels::{Kernels, Launchable};
use super::launch::{NO_COHORT, Placed};
use super::streams::TrackedStream;
use super::{CudaDevice, lock};
use crate::device::{Chains, ProgramLaunch, Step};
use crate::error::{DeviceError, Error};
use crate::vocabulary::MOST_TOGETHER;

/// The chains of a program.
#[derive(Debug)]
struct ChainGraphs {
    /// In the order of their calls.
    all: Vec<Mutex<ChainGraph>>,
    context: Arc<Context>,
    unused: Arc<UnusedGraphs>,
}

#[derive(Debug)]
struct ChainGraph {
    raw: Raw,
    nodes: Vec<Node>,
    /// Of its last launch.
    last: Option<LastPost>,
}

/// A launch's queue, and the post that shows its end.
#[derive(Debug)]
struct LastPost {
    queue: u32,
    post: *const Post,
    ticket: u32,
}

// SAFETY: posts are shared between threads through atomics only.
unsafe impl Send for LastPost {}

/// The chains among these calls. Behind what is no kernel the host launches the next one, so a chain starts with the second
/// of a row of kernels.
fn chains(is_kernel: &[bool]) -> Vec<Range<usize>> {
    let mut chains: Vec<Range<usize>> = Vec::new();
    for index in 1..is_kernel.len() {
        if !is_kernel[index] || !is_kernel[index - 1] {
            continue;
        }
        match chains.last_mut() {
            Some(last) if last.end == index && last.len() < MOST_TOGETHER => last.end = index + 1,
            _ => chains.push(index..index + 1),
        }
    }
    chains.retain(|chain| chain.len() > 1);
    chains
}

impl ChainGraph {
    /// Whether a launch in this queue waits for no launch in another queue.
    fn is_free(&self, queue: u32) -> bool {
        let Some(last) = &self.last else { return true };
        // SAFETY: the control blocks keep their posts as long as the device lives.
        last.queue == queue || unsafe { &*last.post }.has_passed(last.ticket)
    }

    /// Adds these calls, and makes the graph ready on the device. Its cohorts are of no launch yet. The context is entered.
    ///
    /// # Safety
    ///
    /// The arguments of each launch are its kernel's.
    unsafe fn fill(
        &mut self,
        context: &Context,
        (kernels, line): (&Kernels, &TrackedStream),
        steps: &[Step],
    ) -> Result<(), Error> {
        let mut nodes = Nodes::of(context, self.raw.graph);
        for step in steps {
            let Step::Launch { launch, .. } = step else { continue };
            let Launchable { function, cohort: place, added_shared, .. } = kernels.of(launch)?;
            let node = entry_node(context, &function, [1, 1, 1], (launch, added_shared));
            let cohort = Some(Placed(&NO_COHORT, place));
            // SAFETY: the caller's promise; the entry has a cohort at this place.
            self.nodes.push(unsafe { nodes.kernel(node, cohort, &launch.args)? });
        }
        // SAFETY: an error gives the graph up; it stays until the line is done, or the context is lost.
        unsafe { self.raw.instantiate(context, line) }
    }
}

impl Drop for ChainGraphs {
    fn drop(&mut self) {
        // After an error that lost the context nothing is freed.
        if self.context.is_freeable() {
            let graphs = self.all.drain(..).map(|graph| {
                graph.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).raw
            });
            graphs.for_each(|raw| self.unused.add(raw));
        }
    }
}

impl CudaDevice {
    /// # Safety
    ///
    /// As [`Backend::prepare_chains`](crate::device::Backend::prepare_chains).
    pub(super) unsafe fn chains_of(&self, steps: &[Step]) -> Result<Option<Chains>, Error> {
        let is_kernel = |step: &Step| step.has_cohorts();
        let calls = chains(&steps.iter().map(is_kernel).collect::<Vec<_>>());
        if calls.is_empty() {
            return Ok(None);
        }
        let context = &self.shared.context;
        self.graphs.clone()?;
        let _entered = context.enter()?;
        // The driver may wait for kernels that run, and would for each proxy.
        let _held = self.proxy.hold();
        self.end_proxy();
        self.unused_graphs.destroy_if_many();
        let (context, unused) = (context.clone(), self.unused_graphs.clone());
        let mut graphs = ChainGraphs { all: Vec::with_capacity(calls.len()), context, unused };
        for chain in &calls {
            let context = &graphs.context;
            let graph = ChainGraph {
                raw: Raw::new(context)?,
                nodes: Vec::with_capacity(chain.len()),
                last: None,
            };
            graphs.all.push(Mutex::new(graph));
            let Some(last) = graphs.all.last() else { continue };
            let steps = &steps[chain.clone()];
            // SAFETY: the caller's promise.
            unsafe { lock(last).fill(context, (&self.kernels, &self.uploads), steps)? };
        }
        Ok(Some(Chains { calls, prepared: Arc::new(graphs) }))
    }

    /// # Safety
    ///
    /// As [`Backend::launch_chain`](crate::device::Backend::launch_chain).
    pub(super) unsafe fn launch_cohorts(
        &self,
        queue: u32,
        program: &ProgramLaunch,
        (first, shown_by): (usize, &[usize]),
        cohorts: &[Cohort],
    ) -> Result<(), Error> {
        let chains = program.chains.as_ref();
        let at = chains.and_then(|of| of.calls.iter().position(|chain| chain.start == first));
        let graphs = chains.and_then(|of| of.prepared.downcast_ref::<ChainGraphs>());
        let Some(graph) = graphs.zip(at).and_then(|(graphs, at)| graphs.all.get(at)) else {
            let reason = "it did not prepare the chain that it is to launch".into();
            return Err(Error::Device(DeviceError::Unsupported { reason }));
        };
        let context = self.context();
        let _entered = context.enter()?;
        let mut graph = lock(graph);
        let Some(executable) = graph.raw.executable else { return Ok(()) };
        if !graph.is_free(queue) {
            let reason = "the last launch of the chain is in another queue".into();
            return Err(Error::Device(DeviceError::Unsupported { reason }));
        }
        let launches = program.steps.iter().skip(first).filter_map(|step| match step {
            Step::Launch { launch, .. } => Some(launch),
            Step::Copy(_) | Step::Captured(_) => None,
        });
        for ((node, launch), cohort) in graph.nodes.iter().zip(launches).zip(cohorts) {
            let Launchable { function, cohort: place, cooperates, added_shared, need, .. } =
                self.kernels.of(launch)?;
            // Graphs' nodes ask for nothing. A chain is behind others in its queue.
            self.gates.note(queue, cohort.blocks, self.divisions.without(need), true);
            let barrier = u32::from(cooperates);
            let cohort = Cohort { queue: self.queues.word(queue), barrier, ..*cohort };
            let shape =
                entry_node(context, &function, [cohort.blocks, 1, 1], (launch, added_shared));
            let cohort = Some(Placed(&cohort, place));
            // SAFETY: the node is of the graph. These are the parameters of the entry, which the driver copies; launches
            // that it has taken keep theirs.
            unsafe { node.set(context, executable, shape, cohort, &launch.args)? };
        }
        let raw = self.queues.stream(queue).raw();
        // SAFETY: the graph stays until its launches are over; the rest is the caller's promise.
        unsafe { call!(context, cuGraphLaunch(executable, raw))? };
        let shows_all = shown_by.last().and_then(|&index| cohorts.get(index));
        graph.last = shows_all.map(|&Cohort { post, ticket, .. }| LastPost { queue, post, ticket });
        drop(graph);
        for (index, (cohort, &shown_by)) in cohorts.iter().zip(shown_by).enumerate() {
            if shown_by == index {
                // SAFETY: the control blocks keep their posts as long as the device lives.
                unsafe { self.shared.watch.add(queue, cohort.post, cohort.ticket) };
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;
    use std::sync::atomic::Ordering;

    use preempt_device::abi::Posted;

    use super::*;

    #[test]
    fn a_graph_is_free_for_its_queue_and_once_its_last_launch_has_posted_for_others() {
        let post = Post::default();
        let last = LastPost { queue: 1, post: ptr::from_ref(&post), ticket: 7 };
        let raw = Raw { graph: ptr::null_mut(), executable: None };
        let mut graph = ChainGraph { raw, nodes: Vec::new(), last: None };
        assert!(graph.is_free(2), "it was never launched");
        graph.last = Some(last);
        assert!(graph.is_free(1) && !graph.is_free(2));
        post.word.store(Post::word(7, Posted::default()), Ordering::Relaxed);
        assert!(graph.is_free(2));
    }

    #[test]
    fn chains_are_kernels_behind_a_kernel() {
        let many = "k".repeat(70);
        let cases: [(&str, &[(usize, usize)]); 8] = [
            ("", &[]),
            ("k", &[]),
            ("kk", &[]),
            ("kkk", &[(1, 3)]),
            ("ckkk", &[(2, 4)]),
            ("kkckkkk", &[(4, 7)]),
            ("kkkckkk", &[(1, 3), (5, 7)]),
            (&many, &[(1, 32), (32, 63), (63, 70)]),
        ];
        for (kinds, expected) in cases {
            let is_kernel: Vec<bool> = kinds.chars().map(|kind| kind == 'k').collect();
            let found = chains(&is_kernel).into_iter().map(|chain| (chain.start, chain.end));
            assert_eq!(found.collect::<Vec<_>>(), expected, "{kinds}");
        }
    }
}
