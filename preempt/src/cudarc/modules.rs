//! Modules that the application has loaded.

use std::sync::Arc;

use cudarc::driver::CudaModule;

use super::failed;
use crate::module::{DeviceCode, LoadedModule};
use crate::scheduler::SchedulerBuilder;

impl SchedulerBuilder {
    /// The device code of a kernels crate that the application has loaded with [`cudarc`](crate::cudarc) (feature `cudarc`): its
    /// name, with underscores, the module, and the PTX that it was loaded from. For what other compilers made, there is
    /// [`ptx`](SchedulerBuilder::ptx).
    ///
    /// [`kernels`](SchedulerBuilder::kernels) loads a crate itself, and may do better: it bounds the
    /// registers of kernels that would lose a resident block, and lets grids start early on compute
    /// capability 9.0. Everything in the module is loaded when the scheduler is built.
    ///
    /// # Safety
    ///
    /// The module was loaded from this PTX, in the context of the scheduler's device.
    pub unsafe fn cudarc_module(
        self,
        name: &'static str,
        module: Arc<CudaModule>,
        ptx: impl Into<Arc<str>>,
    ) -> SchedulerBuilder {
        let find = move |function: &str| match module.load_function(function) {
            Ok(function) => Ok(function.cu_function().cast()),
            Err(error) => Err(failed(&format!("`load_function({function:?})`"), error)),
        };
        self.add_code(DeviceCode::Loaded(LoadedModule {
            name,
            ptx: ptx.into(),
            find: Arc::new(find),
        }))
    }
}
