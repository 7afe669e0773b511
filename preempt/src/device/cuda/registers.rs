//! How many blocks the registers of an SM hold, and the most registers with which a kernel loses none of them.
//!
//! Registers are given to warps, in units of 256, and each warp has to fit into one of the four parts
//! that an SM is divided into (CUDA C++ programming guide, compute capabilities; the arithmetic is
//! that of `cuda_occupancy.h`).

use super::proxy;

const THREADS_PER_WARP: u32 = 32;
/// Registers: a warp's are rounded up to a multiple of this.
const UNIT: u32 = 256;
/// Registers per thread: one unit for each warp.
const STEP: u32 = UNIT / THREADS_PER_WARP;
/// Parts of an SM, each with its share of the registers.
const PARTS: u32 = 4;
/// Warps in a block, at most.
const MAX_WARPS: u32 = 32;
/// Registers that a thread can have, and that a bound can name, at most.
const MAX_REGISTERS: u32 = 255;

/// The resources of an SM.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sm {
    pub registers: u32,
    pub warps: u32,
    pub blocks: u32,
}

impl Sm {
    /// Whether there are registers for the proxy's warp beside `warps` warps of a kernel.
    pub fn holds_beside(self, registers: u32, warps: u32) -> bool {
        let per_warp =
            |registers: u32| (registers * THREADS_PER_WARP).next_multiple_of(UNIT).max(UNIT);
        // The part with most warps of the kernel may also hold the proxy's warp.
        let used = warps.div_ceil(PARTS) * per_warp(registers);
        used + per_warp(proxy::REGISTERS) <= self.registers / PARTS
    }

    /// Blocks of `warps` warps, with `registers` per thread, that an SM holds.
    fn holds(self, registers: u32, warps: u32) -> u32 {
        let per_warp = (registers * THREADS_PER_WARP).next_multiple_of(UNIT).max(UNIT);
        let by_registers = self.registers / PARTS / per_warp * PARTS;
        self.blocks.min(self.warps.min(by_registers) / warps)
    }

    /// Whether an SM holds fewer blocks with `registers` than with `few`, of `threads` threads or of any size.
    fn loses(self, registers: u32, few: u32, threads: Option<u32>) -> bool {
        let mut sizes = match threads {
            Some(threads) => {
                let warps = threads.div_ceil(THREADS_PER_WARP).max(1);
                warps..=warps
            }
            None => 1..=MAX_WARPS,
        };
        sizes.any(|warps| self.holds(registers, warps) < self.holds(few, warps))
    }

    /// The most registers per thread with which an SM holds as many blocks of a kernel as with `plain` registers.
    /// `None` if the kernel takes no more than that. Its blocks have `threads` threads, or any number: then no size may
    /// lose a block, and the bound is often less than one size needs.
    pub fn bound(self, registers: u32, plain: u32, threads: Option<u32>) -> Option<u32> {
        if !self.loses(registers, plain, threads) {
            return None;
        }
        let least = plain.next_multiple_of(STEP).max(STEP);
        let mut bound = registers.next_multiple_of(STEP);
        while bound > least && self.loses(bound, plain, threads) {
            bound -= STEP;
        }
        Some(bound.min(MAX_REGISTERS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An SM of compute capability 9.0.
    const HOPPER: Sm = Sm { registers: 65536, warps: 64, blocks: 32 };

    #[test]
    fn an_sm_holds_what_its_tightest_resource_allows() {
        struct Case {
            registers: u32,
            warps: u32,
            blocks: u32,
        }
        // As NVIDIA's occupancy calculator has it.
        for Case { registers, warps, blocks } in [
            Case { registers: 32, warps: 32, blocks: 2 },
            Case { registers: 33, warps: 32, blocks: 1 },
            Case { registers: 40, warps: 32, blocks: 1 },
            Case { registers: 64, warps: 32, blocks: 1 },
            Case { registers: 65, warps: 32, blocks: 0 },
            Case { registers: 32, warps: 8, blocks: 8 },
            Case { registers: 40, warps: 8, blocks: 6 },
            Case { registers: 48, warps: 8, blocks: 5 },
            Case { registers: 128, warps: 4, blocks: 4 },
            Case { registers: 255, warps: 8, blocks: 1 },
            Case { registers: 16, warps: 1, blocks: 32 },
            Case { registers: 0, warps: 1, blocks: 32 },
        ] {
            let found = HOPPER.holds(registers, warps);
            assert_eq!(found, blocks, "{registers} registers, {warps} warps");
        }
    }

    #[test]
    fn a_kernel_that_loses_blocks_is_bound() {
        // Tiled matrix multiplication: one block of 1024 threads instead of two.
        assert_eq!(HOPPER.bound(40, 32, None), Some(32));
        assert_eq!(HOPPER.bound(38, 30, None), Some(32));
        // 136 and 160 registers let 12 warps run, 128 let 16.
        assert_eq!(HOPPER.bound(160, 128, None), Some(128));
        assert_eq!(HOPPER.bound(160, 136, None), None);
        assert_eq!(HOPPER.bound(200, 136, None), Some(168));
    }

    #[test]
    fn a_kernel_that_loses_none_is_not() {
        assert_eq!(HOPPER.bound(40, 40, None), None);
        assert_eq!(HOPPER.bound(40, 33, None), None, "the same number of units");
        assert_eq!(HOPPER.bound(32, 16, None), None, "32 registers let all 64 warps run");
        assert_eq!(HOPPER.bound(24, 40, None), None);
    }

    #[test]
    fn a_kernel_with_one_block_size_is_bound_for_that_alone() {
        // 71 registers let 28 warps run, 80 let 24, 88 let 20: four blocks of 6 warps, four, and three.
        assert_eq!(HOPPER.bound(85, 71, Some(192)), Some(80));
        assert_eq!(HOPPER.bound(85, 71, None), Some(72));
        assert_eq!(HOPPER.bound(37, 22, Some(256)), Some(32));
        assert_eq!(HOPPER.bound(80, 71, Some(192)), None);
        // 32 blocks of one warp are all that an SM holds, and 64 registers let 32 warps run.
        assert_eq!(HOPPER.bound(64, 22, Some(32)), None);
        assert_eq!(HOPPER.bound(65, 22, Some(32)), Some(64));
        assert_eq!(HOPPER.bound(65, 22, Some(1)), Some(64), "a warp that is not full is one");
        assert_eq!(HOPPER.bound(65, 22, Some(33)), Some(32), "and one thread more takes another");
    }

    #[test]
    fn a_bound_is_no_more_than_a_thread_can_have() {
        assert_eq!(HOPPER.bound(300, 250, Some(256)), Some(255));
    }

    #[test]
    fn no_block_size_is_too_odd() {
        assert_eq!(HOPPER.bound(65, 22, Some(0)), Some(64));
        assert_eq!(HOPPER.bound(65, 22, Some(u32::MAX)), None, "an SM holds none of either");
    }

    #[test]
    fn a_bound_is_the_largest_that_loses_nothing() {
        let sizes = [1, 6, 8, 32].map(|warps| Some(warps * THREADS_PER_WARP));
        for (plain, threads) in (1..=MAX_REGISTERS)
            .flat_map(|plain| sizes.into_iter().chain([None]).map(move |threads| (plain, threads)))
        {
            for registers in plain..=MAX_REGISTERS {
                let Some(bound) = HOPPER.bound(registers, plain, threads) else { continue };
                let case = format!("{registers}, {plain}, {threads:?}: {bound}");
                assert!(bound % STEP == 0 && bound < registers, "{case}");
                assert!(!HOPPER.loses(bound, plain, threads), "{case}");
                assert!(HOPPER.loses(bound + STEP, plain, threads), "{case}");
            }
        }
    }
}
