//! A kernels crate's device code, embedded in the application.

use std::ffi::c_void;
use std::sync::Arc;

use crate::error::Error;

/// The PTX of one kernels crate; [`include_kernels!`](crate::include_kernels) makes one.
///
/// ```
/// let module = preempt::Module::new("kernels", None);
/// assert!(module.ptx().is_none(), "these kernels run on the CPU device alone");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Module {
    name: &'static str,
    ptx: Option<&'static str>,
}

impl Module {
    /// The kernels of the crate `name`, with underscores, compiled to `ptx`.
    pub const fn new(name: &'static str, ptx: Option<&'static str>) -> Module {
        Module { name, ptx }
    }

    /// The kernels crate's name, with underscores, as in its functions' module paths.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The PTX; `None` if the build found no device toolchain.
    pub const fn ptx(&self) -> Option<&'static str> {
        self.ptx
    }
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module")
            .field("name", &self.name)
            .field("ptx_bytes", &self.ptx.map(str::len))
            .finish()
    }
}

/// Device code for a scheduler.
#[derive(Clone, Debug)]
pub(crate) enum DeviceCode {
    /// To be loaded.
    Embedded(Module),
    /// Loaded by the application.
    #[cfg_attr(
        not(any(feature = "cust", feature = "cudarc")),
        allow(dead_code, reason = "applications on these load some")
    )]
    Loaded(LoadedModule),
}

impl DeviceCode {
    /// What it was compiled to.
    pub fn source(&self) -> Source {
        match self {
            DeviceCode::Embedded(Module { name, ptx }) => {
                Source { name, ptx: ptx.map(Ptx::Embedded) }
            }
            DeviceCode::Loaded(LoadedModule { name, ptx, .. }) => {
                Source { name, ptx: Some(Ptx::Shared(ptx.clone())) }
            }
        }
    }
}

/// The PTX of a kernels crate. Unlike [`DeviceCode`] it keeps no module loaded: modules have to be unloaded in their
/// context, and not while they run.
#[derive(Clone)]
pub(crate) struct Source {
    pub name: &'static str,
    ptx: Option<Ptx>,
}

#[derive(Clone)]
enum Ptx {
    Embedded(&'static str),
    Shared(Arc<str>),
}

impl Source {
    /// The PTX, if there is some.
    pub fn ptx(&self) -> Option<&str> {
        match self.ptx.as_ref()? {
            Ptx::Embedded(ptx) => Some(ptx),
            Ptx::Shared(ptx) => Some(ptx),
        }
    }
}

/// A module that the application has loaded.
#[derive(Clone)]
pub(crate) struct LoadedModule {
    pub name: &'static str,
    /// What it was loaded from.
    pub ptx: Arc<str>,
    /// Finds an entry by name; a handle of the driver, which is valid as long as this.
    pub find: Arc<FindFunction>,
}

type FindFunction = dyn Fn(&str) -> Result<*mut c_void, Error> + Send + Sync;

impl std::fmt::Debug for LoadedModule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadedModule").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The [`Module`](crate::Module) that the build script left for the kernels crate of this name, with underscores.
/// Without a name, that of the only kernels crate that the build script compiles. Can be used in a `const`.
///
/// ```ignore
/// const KERNELS: preempt::Module = preempt::include_kernels!();
/// const OTHERS: preempt::Module = preempt::include_kernels!("other_kernels");
/// ```
///
/// The build script calls [`preempt_build::Kernels`](https://docs.rs/preempt-build).
#[macro_export]
macro_rules! include_kernels {
    () => {{
        const ONLY: (&str, ::core::option::Option<&str>) = ::core::include!(::core::env!(
            "PREEMPT_KERNELS",
            "`include_kernels!()` needs a build script that compiles kernels, by \
             `preempt_build::Kernels::new(\"folder\").build()`"
        ));
        $crate::Module::new(ONLY.0, ONLY.1)
    }};
    ($name:literal) => {
        $crate::Module::new(
            $name,
            ::core::include!(::core::concat!(
                ::core::env!(
                    "OUT_DIR",
                    "`include_kernels!` needs a build script that compiles them"
                ),
                "/",
                $name,
                ".kernels.rs"
            )),
        )
    };
}
