//! Properties of a body that decide how it is changed. Do all threads reach each barrier, and which
//! expressions do all threads of a block evaluate alike?

pub mod barriers;
pub mod rust_cuda;
pub mod uniform;
