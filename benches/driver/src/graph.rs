//! CUDA graphs of kernels that follow each other.

use std::ptr;

use cudarc::driver::sys;

use crate::gpu::{Error, check};
use crate::kernels::Launch;
use crate::stream::Stream;

/// A graph, and what the driver has made of it to launch.
#[derive(Debug)]
pub struct Graph {
    graph: sys::CUgraph,
    nodes: Vec<sys::CUgraphNode>,
    /// Null where it is not instantiated.
    executable: sys::CUgraphExec,
}

impl Graph {
    /// A graph of these launches, one after the other, which is uploaded by `stream` and ready when that is done. It has
    /// their arguments as they are now.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn of<'a>(
        launches: impl IntoIterator<Item = &'a Launch>,
        stream: &Stream,
    ) -> Result<Graph, Error> {
        let mut graph = Graph::recorded(launches)?;
        graph.instantiate()?;
        graph.upload(stream)?;
        stream.spin()?;
        Ok(graph)
    }

    /// The same graph, which is not instantiated.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn recorded<'a>(launches: impl IntoIterator<Item = &'a Launch>) -> Result<Graph, Error> {
        let (graph, executable) = (ptr::null_mut(), ptr::null_mut());
        let mut graph = Graph { graph, nodes: Vec::new(), executable };
        // SAFETY: the place is valid.
        check("cuGraphCreate", unsafe { sys::cuGraphCreate(&mut graph.graph, 0) })?;
        for launch in launches {
            let (before, count) =
                graph.nodes.last().map_or((ptr::null(), 0), |last| (&raw const *last, 1));
            let (node, mut last) = (launch.node(), ptr::null_mut());
            // SAFETY: the places are valid; the driver copies the parameters, which are the entry's.
            let added = unsafe {
                sys::cuGraphAddKernelNode_v2(&mut last, graph.graph, before, count, &node)
            };
            check("cuGraphAddKernelNode", added)?;
            graph.nodes.push(last);
        }
        Ok(graph)
    }

    /// Makes the graph executable (`cuGraphInstantiateWithFlags`), in place of what was made of it before.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn instantiate(&mut self) -> Result<(), Error> {
        self.destroy()?;
        // SAFETY: the place is valid.
        let made = unsafe { sys::cuGraphInstantiateWithFlags(&mut self.executable, self.graph, 0) };
        check("cuGraphInstantiateWithFlags", made)
    }

    /// Uploads the executable graph in the order of the stream (`cuGraphUpload`), and is kept until the stream is done.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn upload(&self, stream: &Stream) -> Result<(), Error> {
        // SAFETY: the caller keeps the graph; the stream is alive.
        check("cuGraphUpload", unsafe { sys::cuGraphUpload(self.executable, stream.0) })
    }

    /// Gives a node of the executable graph the arguments of this launch of its kernel (`cuGraphExecKernelNodeSetParams`).
    ///
    /// # Errors
    ///
    /// Errors of the driver. A number that no node has is one.
    pub fn update(&self, index: usize, launch: &Launch) -> Result<(), Error> {
        let call = "cuGraphExecKernelNodeSetParams";
        let node = self.nodes.get(index).copied();
        let node = node.ok_or_else(|| Error::Call { call, name: "no such node".to_owned() })?;
        let shape = launch.node();
        // SAFETY: the node is of the graph; the driver copies the parameters, which are the entry's.
        check(call, unsafe {
            sys::cuGraphExecKernelNodeSetParams_v2(self.executable, node, &shape)
        })
    }

    /// Destroys the executable graph (`cuGraphExecDestroy`), if there is one. No launch or upload of it is under way.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn destroy(&mut self) -> Result<(), Error> {
        let executable = std::mem::replace(&mut self.executable, ptr::null_mut());
        if executable.is_null() {
            return Ok(());
        }
        // SAFETY: instantiated once, and nothing names it any more.
        check("cuGraphExecDestroy", unsafe { sys::cuGraphExecDestroy(executable) })
    }

    /// Launches the graph.
    ///
    /// # Safety
    ///
    /// As [`Launch::on`], for each launch. The graph stays until they have ended.
    ///
    /// # Errors
    ///
    /// Errors of the driver, of earlier work too.
    #[inline]
    pub unsafe fn on(&self, stream: &Stream) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.executable, stream.0) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // Nothing can be done about errors.
        let _ = self.destroy();
        if !self.graph.is_null() {
            // SAFETY: created once; an error of the driver leaves null, which is not destroyed.
            unsafe { sys::cuGraphDestroy(self.graph) };
        }
    }
}
