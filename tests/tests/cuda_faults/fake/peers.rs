//! Copies between the fake driver's devices.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::memory::{Kind, state};
use super::parts::{context, primary};
use super::{Code, FakeStream};

/// How the devices reach each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerKind {
    Right,
    /// The driver says that they do not.
    None,
    /// Copies are accepted, and nothing is copied.
    Silent,
    /// Copies from the third device to another one are accepted, and never end.
    Hanging,
}

static KIND: Mutex<PeerKind> = Mutex::new(PeerKind::Right);

/// Whose memory may be used where: pairs of primary contexts.
static OPEN: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

static COPIES: AtomicU64 = AtomicU64::new(0);

fn kind() -> PeerKind {
    *KIND.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets how the devices reach each other, which is forgotten with it.
pub fn set_peers(kind: PeerKind) {
    *KIND.lock().unwrap_or_else(PoisonError::into_inner) = kind;
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).clear();
    COPIES.store(0, Ordering::Relaxed);
}

/// Copies between devices since then.
pub fn peer_copies() -> u64 {
    COPIES.load(Ordering::Relaxed)
}

pub(super) fn are_there() -> bool {
    kind() != PeerKind::None
}

pub(super) fn open(owner: usize, user: usize) {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).push((owner, user));
}

impl FakeStream {
    /// A copy between addresses of devices, which the stream's device has to reach.
    pub(super) fn copy_between(
        &self,
        to: (usize, Kind),
        from: (usize, Kind),
        bytes: usize,
    ) -> Code {
        let mut is_far = false;
        for (address, _) in [to, from] {
            let owner = state().context(address);
            // Parts of a device have its memory.
            let [owner, own] = [owner, Some(self.context)].map(|of| of.map(primary));
            if let (Some(owner), Some(own)) = (owner.filter(|_| owner != own), own) {
                is_far = true;
                let known = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
                if !known.contains(&(owner, own)) {
                    let what = "a copy of another device's memory without access".into();
                    state().violation(what);
                }
            }
        }
        if is_far {
            COPIES.fetch_add(1, Ordering::Relaxed);
            let owner = state().context(from.0);
            match kind() {
                PeerKind::Silent => return self.put(|| ()),
                PeerKind::Hanging if owner == Some(context(2).addr()) => {
                    return self.put(|| {
                        loop {
                            thread::park();
                        }
                    });
                }
                _ => {}
            }
        }
        self.copy("cuMemcpyDtoDAsync", to, from, bytes)
    }
}
