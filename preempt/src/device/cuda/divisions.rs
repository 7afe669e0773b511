//! How the memory of an SM is divided into cache and shared memory where blocks of several kernels may meet on it.
//!
//! An SM without blocks is divided as the kernel asks for that comes to it next. To an SM with blocks come those alone that its
//! division suits. Persistent blocks stay, and the hardware puts them wherever there is room. So a short kernel can wait on SMs
//! that are its launch's own until a long launch beside it is over. Therefore grids that may meet ask for the same division:
//! the least that suits each of them, because the rest is cache. With as much shared memory as there can be, a search in a
//! suffix tree took 3.5 times as long (H200).
//!
//! A grid also asks for what those have asked for that it meets, because their blocks may be there already. So launches that
//! overlap all the time keep the largest division that one of them needed, until one begins beside none.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use cudarc::driver::sys::{CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue};

/// Grids whose kernels are expected to come again. A chain of more kernels can wait as above where one of them needs more
/// shared memory than the last of these, and a kernel that needs much and does not come again costs as many grids cache.
const LAST: usize = 16;

/// The version of CUDA whose drivers, and later ones, can be told how to divide the memory for a single launch.
const OLDEST: i32 = 12_050;

/// What the last grids need.
#[derive(Debug)]
pub(super) struct Divisions {
    /// Bytes of shared memory of an SM, by the last grids, those that meet no others among them.
    last: [AtomicU32; LAST],
    next: AtomicUsize,
    /// What an SM can have; `None` if the driver cannot be told of single launches.
    shared_per_sm: Option<u32>,
}

impl Divisions {
    /// For SMs that can have this many bytes of shared memory, with a driver of this version of CUDA.
    pub fn new(shared_per_sm: u32, driver: i32) -> Divisions {
        let shared_per_sm = (driver >= OLDEST && shared_per_sm > 0).then_some(shared_per_sm);
        Divisions { last: Default::default(), next: AtomicUsize::new(0), shared_per_sm }
    }

    /// The bytes of shared memory that an SM is to have for a grid that needs `own`, and meets others if there are `others`,
    /// the most of what they asked for. `None` for what its kernel asks for.
    pub fn of(&self, own: u32, others: Option<u32>) -> Option<u32> {
        // Relaxed: the scheduler's lock orders the calls.
        let at = self.next.fetch_add(1, Ordering::Relaxed) % LAST;
        self.last[at].store(own, Ordering::Relaxed);
        let most = self.shared_per_sm?;
        let last = self.last.iter().map(|of| of.load(Ordering::Relaxed));
        Some(last.fold(own.max(others?), u32::max).min(most))
    }

    /// The attribute of a launch by which the driver has an SM divided so that it has these bytes.
    pub fn attribute(&self, bytes: u32) -> CUlaunchAttribute {
        CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
            pad: [0; 4],
            value: CUlaunchAttributeValue { sharedMemCarveout: self.percent(bytes) },
        }
    }

    /// In percent, rounded up: the driver takes the next larger division that there is, and a smaller one would hold fewer
    /// blocks.
    fn percent(&self, bytes: u32) -> u32 {
        let most = u64::from(self.shared_per_sm.unwrap_or(u32::MAX));
        (100 * u64::from(bytes)).div_ceil(most).min(100) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_that_may_meet_have_what_the_one_needs_that_needs_most() {
        let divisions = Divisions::new(1000, OLDEST);
        assert_eq!(divisions.of(300, None), None, "it meets no other one");
        assert_eq!(divisions.of(100, Some(0)), Some(300), "that may come again");
        assert_eq!(divisions.of(100, Some(500)), Some(500), "that is there");
        assert_eq!(divisions.of(700, Some(500)), Some(700), "its own");
        assert_eq!(divisions.of(100, Some(2000)), Some(1000), "all that there is");
        (1..LAST).for_each(|_| assert_eq!(divisions.of(0, None), None));
        assert_eq!(divisions.of(50, Some(0)), Some(50), "the others are long ago");
    }

    #[test]
    fn a_preference_is_never_less_than_what_is_needed() {
        let divisions = Divisions::new(1000, OLDEST);
        let percent = |bytes| divisions.percent(bytes);
        assert_eq!([0, 1, 10, 11, 999, 1000, 5000].map(percent), [0, 1, 1, 2, 100, 100, 100]);
    }

    #[test]
    fn older_drivers_are_not_told() {
        let divisions = Divisions::new(1000, OLDEST - 10);
        assert_eq!(divisions.of(300, Some(500)), None);
    }
}
