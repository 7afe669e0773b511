//! How the memory of an SM is divided into cache and shared memory where blocks of several kernels may meet on it.
//!
//! An SM without blocks is divided as the grid asks that comes to it next. To an SM with blocks come those alone that its
//! division suits. A grid that asks for an amount takes no more than that. Nor does it take less than all blocks need that its
//! kernel can have on an SM, if it asks for as much. A grid that asks for nothing gets that, or a division more, and takes
//! anything larger. (An H200 with driver 580: grids of 40 sizes beside persistent ones of each division.)
//!
//! Persistent blocks stay, and the hardware puts them wherever there is room. So a short kernel can wait on SMs that are its
//! launch's own until a long launch beside it is over. Therefore grids that may meet ask for the same division, the least that
//! suits each of them, because the rest is cache. A grid with few blocks for each of its SMs asks for less than its kernel could
//! have there. Soon after, grids that meet none ask, too: others may come while they run.
//!
//! For a grid that needs more than a third of the shared memory nothing is asked, of others neither: with all of it, a search
//! in a suffix tree takes 3.5 times as long (H200). So such a grid may wait as above.
//!
//! A grid also asks for what grids have that are there. So launches that overlap all the time keep the largest division that
//! one of them needed, until one begins beside none.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use cudarc::driver::sys::{CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue};

use super::kernels::SHARED_PER_BLOCK;

/// Grids whose kernels are expected to come again. A chain of more kernels can wait as above where one of them needs more
/// shared memory than the last of these, and a kernel that needs more and does not come again costs as many grids cache.
const LAST: usize = 16;

/// The version of CUDA whose drivers, and later ones, can be told how to divide the memory for a single launch.
const OLDEST: i32 = 12_050;

/// The kibibytes of shared memory that an SM can have, up to the most that it can (CUDA C++ programming guide, compute
/// capabilities 8.0 to 12.0).
const DIVISIONS: [u32; 9] = [8, 16, 32, 64, 100, 132, 164, 196, 228];

/// The least that is asked for: what kernels of small blocks get without asking.
const LEAST: u32 = 32 << 10;

/// More than this part of the shared memory that an SM can have, a third, is much.
const MUCH: u32 = 3;

/// What a kernel needs of an SM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Need {
    /// Bytes of shared memory of a block, beside what each takes for itself.
    pub block: u32,
    /// Blocks that it can have on an SM.
    pub most: u32,
    /// Whether it asks for all shared memory where the launch asks for nothing.
    pub prefers_all: bool,
}

impl Need {
    /// Bytes of shared memory of `blocks`.
    fn with(self, blocks: u32) -> u32 {
        blocks.min(self.most).saturating_mul(self.block.saturating_add(SHARED_PER_BLOCK))
    }
}

/// What is asked of the driver for a grid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Division {
    /// Of the shared memory that an SM can have.
    percent: u32,
    /// What the SM has then.
    pub bytes: u32,
}

/// What the last grids need that may ask for a division.
#[derive(Debug)]
pub(super) struct Divisions {
    /// Bytes of shared memory of an SM; 0 for those that need much.
    last: [AtomicU32; LAST],
    /// Grids so far, and how many there were when the last one met others.
    grids: AtomicUsize,
    met: AtomicUsize,
    /// What an SM can have.
    all: u32,
    /// Whether the driver can be told of single launches.
    can_ask: bool,
}

impl Divisions {
    /// For SMs that can have this many bytes of shared memory, with a driver of this version of CUDA.
    pub fn new(shared_per_sm: u32, driver: i32) -> Divisions {
        Divisions {
            last: Default::default(),
            grids: AtomicUsize::new(LAST),
            met: AtomicUsize::new(0),
            all: shared_per_sm,
            can_ask: driver >= OLDEST && shared_per_sm > 0,
        }
    }

    /// What is asked for a grid of a kernel, of which an SM gets `on_sm` blocks: where SMs may have this much shared memory for
    /// those that are `there`, some of which it may meet if `meets`. `None` if nothing is asked for.
    pub fn of(&self, need: Need, on_sm: u32, there: u32, meets: bool) -> Option<Division> {
        if !self.can_ask {
            return None;
        }
        let own = rounded(need.with(on_sm), self.all);
        // Relaxed: the scheduler's lock orders the calls.
        let grids = self.grids.fetch_add(1, Ordering::Relaxed);
        self.last[grids % LAST].store(if self.is_much(own) { 0 } else { own }, Ordering::Relaxed);
        if meets {
            self.met.store(grids, Ordering::Relaxed);
        }
        if self.is_much(own) || grids - self.met.load(Ordering::Relaxed) >= LAST {
            return None;
        }
        let last = self.last.iter().map(|of| of.load(Ordering::Relaxed));
        let asked = rounded(last.fold(there.max(LEAST), u32::max), self.all);
        if self.is_much(asked) && asked >= rounded(need.with(need.most), self.all) {
            // It is there already, and without being asked the driver takes it.
            return None;
        }
        let division = Division::of(asked, need.block, self.all);
        // Of blocks with a few bytes, the least that can be asked for is much.
        (division.bytes <= asked || !self.is_much(division.bytes)).then_some(division)
    }

    /// The bytes that an SM without blocks gets at most if nothing is asked for. Of most kernels the driver gives more than they
    /// need, by a division.
    pub fn without(&self, need: Need) -> u32 {
        match need.prefers_all {
            true => self.all,
            false => rounded(rounded(need.with(need.most), self.all).saturating_add(1), self.all),
        }
    }

    fn is_much(&self, bytes: u32) -> bool {
        bytes > self.all / MUCH
    }
}

impl Division {
    /// The least with these bytes that can be asked for. Percents are of what blocks use: the driver takes as many blocks as
    /// use that much, and the next division that holds them with what each block takes for itself. So of a kernel of small
    /// blocks a single percent is many.
    fn of(bytes: u32, block: u32, all: u32) -> Division {
        let with = |percent: u32| {
            let used = (u64::from(all) * u64::from(percent) / 100) as u32;
            let blocks = used.checked_div(block).map(|blocks| blocks.max(1));
            let with_own =
                |blocks: u32| blocks.saturating_mul(block.saturating_add(SHARED_PER_BLOCK));
            Division { percent, bytes: rounded(blocks.map_or(used, with_own), all) }
        };
        let suits = |division: &Division| division.bytes >= bytes;
        // With none, blocks come to no SM that has others.
        (1..100).map(with).find(suits).unwrap_or(Division { percent: 100, bytes: all })
    }

    /// The attribute of a launch by which the driver has an SM divided so; of none it is not to be told.
    pub fn attribute(division: Option<Division>) -> CUlaunchAttribute {
        let percent = division.map_or(100, |division| division.percent);
        CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
            pad: [0; 4],
            value: CUlaunchAttributeValue { sharedMemCarveout: percent },
        }
    }
}

/// The division that an SM has if it is to have `bytes`.
fn rounded(bytes: u32, all: u32) -> u32 {
    let divisions = DIVISIONS.iter().map(|division| division << 10);
    divisions.take_while(|&of| of < all).find(|&of| of >= bytes).unwrap_or(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u32 = 1 << 10;
    /// Of an H200.
    const ALL: u32 = 228 * KIB;

    /// A kernel with `most` blocks of 2 KiB on an SM.
    fn need(most: u32) -> Need {
        Need { block: 2 * KIB, most, prefers_all: false }
    }

    /// A kernel that needs little.
    const FEW: Need = Need { block: 0, most: 2, prefers_all: false };

    fn bytes(division: Option<Division>) -> Option<u32> {
        division.map(|division| division.bytes / KIB)
    }

    #[test]
    fn grids_that_may_meet_have_what_the_one_needs_that_needs_most() {
        let divisions = Divisions::new(ALL, OLDEST);
        // 16 blocks are 48 KiB.
        assert_eq!(divisions.of(need(16), 16, 0, false), None, "it meets no other one");
        assert_eq!(bytes(divisions.of(FEW, 2, 0, true)), Some(64), "that may come again");
        assert_eq!(bytes(divisions.of(need(16), 99, 0, true)), Some(64), "its own");
        assert_eq!(bytes(divisions.of(need(32), 2, 0, true)), Some(64), "as few as it has there");
        for _ in 1..LAST {
            assert!(divisions.of(FEW, 2, 0, false).is_some(), "others may come");
        }
        assert_eq!(divisions.of(FEW, 2, 64 * KIB, false), None, "they are long ago");
        assert_eq!(bytes(divisions.of(FEW, 2, 0, true)), Some(32), "so is what they needed");
        assert_eq!(bytes(divisions.of(FEW, 2, 64 * KIB, true)), Some(64), "that is there");
        assert_eq!(bytes(divisions.of(FEW, 2, 64 * KIB, false)), Some(64), "it may come closer");
    }

    #[test]
    fn what_needs_much_costs_no_other_kernel_cache() {
        let divisions = Divisions::new(ALL, OLDEST);
        assert_eq!(divisions.of(need(32), 32, 0, true), None);
        assert_eq!(bytes(divisions.of(FEW, 2, 0, true)), Some(32));
        assert_eq!(divisions.of(FEW, 2, 96 * KIB, true), None, "any larger one suits it");
        assert_eq!(bytes(divisions.of(need(70), 1, 96 * KIB, true)), Some(100), "not this one");
        // Sixteen bytes in a block: one percent is 145 blocks.
        let small = Need { block: 16, ..FEW };
        assert_eq!(divisions.of(small, 2, 0, true), None);
        assert_eq!(bytes(divisions.of(Need { block: 64, ..FEW }, 2, 0, true)), Some(64));
    }

    /// What an H200 does with grids that ask for nothing.
    #[test]
    fn the_driver_gives_kernels_a_division_more_than_they_need() {
        let divisions = Divisions::new(ALL, OLDEST);
        let without = |need: Need| divisions.without(need) / KIB;
        assert_eq!([need(1), need(8), need(16), need(70)].map(without), [16, 64, 100, 228]);
        assert_eq!(without(Need { prefers_all: true, ..need(1) }), 228);
    }

    /// What an H200 does with 2 KiB in a block, 112 bytes, much, and none, by which grids wait for each other.
    #[test]
    fn percents_are_of_what_blocks_use() {
        let of = |bytes: u32, block| {
            let Division { percent, bytes } = Division::of(bytes * KIB, block, ALL);
            (percent, bytes / KIB)
        };
        let found = [of(32, 0), of(33, 0), of(64, 0), of(100, 0)];
        assert_eq!(found, [(8, 32), (15, 64), (15, 64), (29, 100)]);
        assert_eq!([of(32, 2048), of(64, 2048)], [(6, 32), (10, 64)]);
        assert_eq!([of(8, 112), of(32, 112), of(64, 112)], [(1, 32), (1, 32), (2, 64)]);
        assert_eq!([of(64, 39_700), of(300, 0)], [(1, 64), (100, 228)]);
    }

    #[test]
    fn older_drivers_are_not_told() {
        let divisions = Divisions::new(ALL, OLDEST - 10);
        assert_eq!(divisions.of(need(8), 8, 64 * KIB, true), None);
    }
}
