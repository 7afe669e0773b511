use std::time::Duration;

/// An allocation of device memory that failed.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The device has no memory left that earlier requests do not wait for.
    #[error("the device has no room for {bytes} bytes; drop buffers or use smaller ones")]
    OutOfMemory {
        /// The bytes asked for.
        bytes: usize,
    },
    /// The host has no memory left that the device could copy from.
    #[error(
        "the host has no {bytes} bytes of memory to pin; drop host buffers, or use smaller ones"
    )]
    HostFull {
        /// The bytes asked for.
        bytes: usize,
    },
    /// No memory was freed in time.
    #[error(
        "the device still has no room for {bytes} bytes after {} ms; wait longer, drop buffers or use smaller ones",
        waited.as_millis()
    )]
    Timeout {
        /// The bytes asked for.
        bytes: usize,
        /// How long the request waited.
        waited: Duration,
    },
    /// Too many requests wait for memory.
    #[error(
        "the device has no room for {bytes} bytes, and {waiting} requests wait for memory already; let more of them \
         wait with `SchedulerBuilder::allocation_queue`, or allocate in fewer threads"
    )]
    QueueFull {
        /// The bytes asked for.
        bytes: usize,
        /// Requests that wait.
        waiting: usize,
    },
}
