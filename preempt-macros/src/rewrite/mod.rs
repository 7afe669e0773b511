//! Changes to a body: its shared arrays get addresses, and its yield points become tests.

pub mod assertions;
pub mod rust_cuda;
pub mod shared;
pub mod yields;
