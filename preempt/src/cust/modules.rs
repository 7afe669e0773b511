//! Modules that the application has loaded.

use std::sync::Arc;

use super::failed;
use crate::module::{DeviceCode, LoadedModule};
use crate::scheduler::SchedulerBuilder;

impl SchedulerBuilder {
    /// The device code of a kernels crate that the application has loaded with [`cust`] (feature `cust`): its name, with
    /// underscores, the module, and the PTX that it was loaded from.
    ///
    /// [`kernels`](SchedulerBuilder::kernels) loads a crate itself, and may do better: it bounds the
    /// registers of kernels that would lose a resident block, and lets grids start early on compute
    /// capability 9.0. Everything in the module is loaded when the scheduler is built.
    ///
    /// # Safety
    ///
    /// The module was loaded from this PTX, in the context of the scheduler's device.
    pub unsafe fn cust_module(
        self,
        name: &'static str,
        module: Arc<cust::module::Module>,
        ptx: impl Into<Arc<str>>,
    ) -> SchedulerBuilder {
        let find = move |function: &str| match module.get_function(function) {
            Ok(function) => Ok(function.to_raw().cast()),
            Err(error) => Err(failed(&format!("`get_function({function:?})`"), error)),
        };
        self.add_code(DeviceCode::Loaded(LoadedModule {
            name,
            ptx: ptx.into(),
            find: Arc::new(find),
        }))
    }
}
