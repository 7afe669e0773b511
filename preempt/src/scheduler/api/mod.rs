//! What applications hold: buffers and ranges of them, streams, room in them, suspensions, handles, events, programs,
//! scopes, and kernels of other compilers.

pub(super) mod buffer;
pub(super) mod copies;
pub(super) mod event;
pub(super) mod footprint;
pub(super) mod foreign;
pub(super) mod handle;
pub(super) mod input;
pub(super) mod pinned;
pub(super) mod program;
pub(super) mod room;
pub(super) mod scope;
pub(super) mod shape;
pub(super) mod slice;
pub(super) mod stream;
pub(super) mod suspension;
pub(super) mod verify;
