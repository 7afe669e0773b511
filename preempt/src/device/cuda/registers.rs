//! How many blocks the registers of an SM hold, and how few a kernel may take to lose none of them.
//!
//! Registers are given to warps, in units of 256, and each warp has to fit into one of the four parts
//! that an SM is divided into (CUDA C++ programming guide, compute capabilities; the arithmetic is
//! that of `cuda_occupancy.h`).

const THREADS_PER_WARP: u32 = 32;
/// What a warp's registers are rounded up to.
const UNIT: u32 = 256;
/// Registers per thread that come to one unit.
const STEP: u32 = UNIT / THREADS_PER_WARP;
/// The parts of an SM, each with its share of the registers.
const PARTS: u32 = 4;
/// The most warps in a block.
const MAX_WARPS: u32 = 32;

/// What an SM has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sm {
    pub registers: u32,
    pub warps: u32,
    pub blocks: u32,
}

impl Sm {
    /// Blocks of `warps` warps, with so many registers per thread, that an SM holds.
    fn holds(self, registers: u32, warps: u32) -> u32 {
        let per_warp = (registers * THREADS_PER_WARP).next_multiple_of(UNIT).max(UNIT);
        let by_registers = self.registers / PARTS / per_warp * PARTS;
        self.blocks.min(self.warps.min(by_registers) / warps)
    }

    /// Whether there is a block size of which an SM holds fewer with `registers` than with `few`.
    fn loses(self, registers: u32, few: u32) -> bool {
        (1..=MAX_WARPS).any(|warps| self.holds(registers, warps) < self.holds(few, warps))
    }

    /// The registers per thread that a kernel may take at most so that an SM holds as many of its
    /// blocks, whatever their size, as of a kernel with `plain` registers; `None` if it already
    /// takes no more than that.
    pub fn bound(self, registers: u32, plain: u32) -> Option<u32> {
        if !self.loses(registers, plain) {
            return None;
        }
        let least = plain.next_multiple_of(STEP).max(STEP);
        let mut bound = registers.next_multiple_of(STEP);
        while bound > least && self.loses(bound, plain) {
            bound -= STEP;
        }
        Some(bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compute capability 9.0.
    const HOPPER: Sm = Sm { registers: 65536, warps: 64, blocks: 32 };

    #[test]
    fn an_sm_holds_what_its_tightest_resource_allows() {
        // (registers, warps, blocks), as NVIDIA's occupancy calculator has it.
        for (registers, warps, blocks) in [
            (32, 32, 2),
            (33, 32, 1),
            (40, 32, 1),
            (64, 32, 1),
            (65, 32, 0),
            (32, 8, 8),
            (40, 8, 6),
            (48, 8, 5),
            (128, 4, 4),
            (255, 8, 1),
            (16, 1, 32),
            (0, 1, 32),
        ] {
            assert_eq!(
                HOPPER.holds(registers, warps),
                blocks,
                "{registers} registers, {warps} warps"
            );
        }
    }

    #[test]
    fn a_kernel_that_loses_blocks_is_bound() {
        // Tiled matrix multiplication: one block of 1024 threads instead of two.
        assert_eq!(HOPPER.bound(40, 32), Some(32));
        assert_eq!(HOPPER.bound(38, 30), Some(32));
        // 136 and 160 registers let 12 warps run, 128 let 16.
        assert_eq!(HOPPER.bound(160, 128), Some(128));
        assert_eq!(HOPPER.bound(160, 136), None);
        assert_eq!(HOPPER.bound(200, 136), Some(168));
    }

    #[test]
    fn a_kernel_that_loses_none_is_not() {
        assert_eq!(HOPPER.bound(40, 40), None);
        assert_eq!(HOPPER.bound(40, 33), None, "the same number of units");
        assert_eq!(HOPPER.bound(32, 16), None, "32 registers let all 64 warps run");
        assert_eq!(HOPPER.bound(24, 40), None);
    }

    #[test]
    fn a_bound_is_the_largest_that_loses_nothing() {
        for plain in 1..=255 {
            for registers in plain..=255 {
                let Some(bound) = HOPPER.bound(registers, plain) else { continue };
                assert!(bound % STEP == 0 && bound < registers);
                assert!(!HOPPER.loses(bound, plain), "{registers}, {plain}: {bound}");
                assert!(HOPPER.loses(bound + STEP, plain), "{registers}, {plain}: {bound}");
            }
        }
    }
}
