//! Whether a proxy carries a word that is written as it leaves. `tests/models` plays it on loom.

#[cfg(not(all(test, loom)))]
use std::sync::atomic::{Ordering, fence};

#[cfg(all(test, loom))]
use loom::sync::atomic::{Ordering, fence};

/// Gives the proxy of this number a word, by `put`. Returns whether it carries the word; otherwise it has left, as `left`
/// says, and may have carried it.
pub(super) fn carries(put: impl FnOnce(), left: impl FnOnce() -> u32, number: u32) -> bool {
    put();
    // Sequentially consistent, like the proxy's between its notice and its last look: without them, both the notice and the
    // word could be in a store buffer while each side looks for the other's.
    fence(Ordering::SeqCst);
    left() != number
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    use loom::thread;

    /// The last look of a thread of the proxy, after the notice of the last thread. A barrier is between the two.
    #[test]
    fn no_word_is_lost_when_the_proxy_leaves() {
        loom::model(|| {
            let words = Arc::new((AtomicU64::new(0), AtomicU32::new(0)));
            let device = words.clone();
            let proxy = thread::spawn(move || {
                device.1.store(1, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                device.0.load(Ordering::Relaxed)
            });
            let put = || words.0.store(7, Ordering::Relaxed);
            let carries = super::carries(put, || words.1.load(Ordering::Relaxed), 1);
            let carried = proxy.join().expect("no panic");
            assert!(!carries || carried == 7, "the host takes the word for carried");
        });
    }
}
