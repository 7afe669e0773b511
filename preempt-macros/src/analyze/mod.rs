//! Properties of a body that decide how it is changed. Do all threads reach each barrier, which expressions do all
//! threads of a block evaluate alike, and may a block-task run again from its start?

pub mod barriers;
pub mod idempotence;
pub mod rust_cuda;
pub mod uniform;
