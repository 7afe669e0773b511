//! The CUDA driver, with nothing of preempt's scheduler in between: streams, memory and launches for
//! the rows that preempt is compared with.
//!
//! Launches take the arguments of a typed launch function ([`Call`](preempt_device::host::Call)), so
//! both sides of a comparison run the same kernels on the same values. Everything is in the
//! device's primary context, where a scheduler on the same device has its buffers, too.
//!
//! Loading a module, freeing memory, large fills and copies on the device wait for running kernels,
//! or hang beside them: allocate and load everything first, and drop it when nothing runs.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `gpu` | the device, and the driver's errors |
//! | `memory` | arrays on the device, and on the host where the device reads and writes them |
//! | `stream` | streams and events |
//! | `kernels` | modules, entries, launches |
//! | `graph` | graphs of launches |
//! | `slicing` | PTX whose plain entries run parts of their grids |
//! | `blas` | cuBLAS, whose kernels are closed |
//! | `control` | the memory that a preemptible entry needs, for one launch without a scheduler |

mod blas;
mod control;
mod gpu;
mod graph;
mod kernels;
mod memory;
mod slicing;
mod stream;

pub use blas::Blas;
pub use control::Control;
pub use gpu::{Error, Gpu};
pub use graph::Graph;
pub use kernels::{KernelEntry, Launch, Module};
pub use memory::{Array, Pinned};
pub use stream::{Event, Level, Stream};
