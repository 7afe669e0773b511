//! What has to be known of a body before it is changed: whether threads can miss each other at a barrier, and which
//! expressions all threads of a block evaluate alike.

pub mod barriers;
pub mod rust_cuda;
pub mod uniform;
