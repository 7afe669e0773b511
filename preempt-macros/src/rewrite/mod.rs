//! Changes to a body: its shared arrays get addresses, and its yield points become tests.

pub mod assertions;
pub mod checkpoints;
pub mod markers;
pub mod rust_cuda;
pub mod shared;
mod variables;
pub mod yields;
