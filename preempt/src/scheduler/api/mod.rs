//! What applications hold: buffers and ranges of them, streams, handles, events, and scopes.

pub(super) mod buffer;
pub(super) mod event;
pub(super) mod handle;
pub(super) mod scope;
pub(super) mod slice;
pub(super) mod stream;
