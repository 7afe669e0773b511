//! What applications hold: buffers, streams, handles, events, and scopes.

pub(super) mod buffer;
pub(super) mod copies;
pub(super) mod event;
pub(super) mod handle;
pub(super) mod pinned;
pub(super) mod scope;
pub(super) mod stream;
