//! CUDA graphs of kernels that follow each other.

use std::ptr;

use cudarc::driver::sys;

use crate::gpu::{Error, check};
use crate::kernels::Launch;
use crate::stream::Stream;

/// An executable graph, on the device.
#[derive(Debug)]
pub struct Graph {
    graph: sys::CUgraph,
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
        let mut graph = Graph { graph: ptr::null_mut(), executable: ptr::null_mut() };
        // SAFETY: the place is valid.
        check("cuGraphCreate", unsafe { sys::cuGraphCreate(&mut graph.graph, 0) })?;
        let mut last: sys::CUgraphNode = ptr::null_mut();
        for launch in launches {
            let (before, count) = (last, usize::from(!last.is_null()));
            let node = launch.node();
            // SAFETY: the places are valid; the driver copies the parameters, which are the entry's.
            let added = unsafe {
                sys::cuGraphAddKernelNode_v2(&mut last, graph.graph, &before, count, &node)
            };
            check("cuGraphAddKernelNode", added)?;
        }
        // SAFETY: the place is valid.
        let made =
            unsafe { sys::cuGraphInstantiateWithFlags(&mut graph.executable, graph.graph, 0) };
        check("cuGraphInstantiateWithFlags", made)?;
        // SAFETY: the caller keeps the graph; the stream is alive.
        check("cuGraphUpload", unsafe { sys::cuGraphUpload(graph.executable, stream.0) })?;
        stream.spin()?;
        Ok(graph)
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
        // SAFETY: made by `of`; an error of the driver leaves null, which is not destroyed. Nothing can be done about
        // errors.
        unsafe {
            if !self.executable.is_null() {
                sys::cuGraphExecDestroy(self.executable);
            }
            if !self.graph.is_null() {
                sys::cuGraphDestroy(self.graph);
            }
        }
    }
}
