//! The worker loop around a place for a body. `preempt-ptx` compiles it to the text that `preempt_ptx_text::transform` puts the
//! bodies of foreign kernels into.

use preempt_device::prelude::*;

/// The barrier is where a body goes. The compiler can neither duplicate it nor move accesses to memory past it, as it
/// could with an empty body.
#[preemptible]
pub fn worker() {
    thread::sync_threads();
}
