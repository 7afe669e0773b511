//! The shape of a grid: how many blocks, on which SMs they may stay, and how many begin with a task. Also, which SMs it
//! takes over from the grid before it, and what it leaves behind.
//!
//! The hardware spreads blocks over all SMs, also over those of other launches, and blocks that share an SM slow each
//! other down. A word that grants only the launch's SMs excludes the others but does not place blocks. So such a grid
//! has spare blocks, which leave at once: as many as find room beside the blocks of the other launches.

use std::time::Duration;

use preempt_device::abi::SmRange;

use super::Launch;
use super::ledger::{self, intersection};
use crate::vocabulary::Costs;

/// What a grid is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work<'a> {
    /// Block-tasks that no cohort has reported.
    pub tasks: u32,
    /// Those of them that have no block on the device yet.
    pub bare: u32,
    pub blocks_per_sm: u32,
    /// Blocks that the whole device holds.
    pub most: u32,
    pub is_plain: bool,
    /// Its duration, if it is known, and the costs that say whether it is long.
    pub predicted: Option<Duration>,
    pub costs: &'a Costs,
}

/// Grids in a row that may leave because blocks of a more urgent launch are on their SMs; the next one is not confined. Each costs
/// a launch, and gains if the next kernel of that launch has its blocks elsewhere. Other numbers were not measured.
const SPILLS: u32 = 2;

/// Where a grid goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// A queue of its own.
    Free {
        /// The SMs that it is for, and the blocks that fit there.
        sms: u32,
        room: u32,
        /// Whether the launch has other blocks on the device.
        has_blocks: bool,
        /// Whether blocks of other launches have yet to leave these SMs: spare blocks would be gone before there is room, and
        /// others than these with them.
        is_taken: bool,
        /// How often earlier grids found them there, and left.
        spills: u32,
        /// Blocks of other launches that may be there, of those that no word keeps elsewhere.
        strangers: u32,
        /// Whether a more urgent launch has other SMs. The kernel that follows it may want another division of an SM's memory,
        /// and then a block there keeps it out, until this launch is over if all of those SMs are so (H100: 60 ms for a chain
        /// of 4 ms). So no block stays there, even if too few are left on the launch's own SMs.
        is_beside: bool,
    },
    /// A queue of its own, behind a gate. The SMs are others' until it is opened, so a task that a block begins with would
    /// wait for that block, and spare blocks would be gone before there is room.
    Gated {
        /// The blocks that fit on its SMs.
        room: u32,
    },
    /// A queue behind another grid, of which nothing is known until its turn comes.
    Behind {
        /// The SMs that it will have, the blocks that fit there, and those that fit on the SMs that it can have there.
        sms: u32,
        own: u32,
        room: u32,
        /// Whether the queue grants a part of the device alone.
        is_part: bool,
        /// Blocks of other streams' launches that may be on its SMs, of those that no word keeps elsewhere.
        strangers: u32,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    pub blocks: u32,
    /// Whether its word grants the launch's own SMs alone, or behind another one in a part, those of the queue.
    pub keeps_to_own: bool,
    /// Blocks that begin with a task which was not claimed. None do if blocks may have to leave at once: such a task would
    /// not run.
    pub hands: u32,
    /// Whether blocks for the launch's own SMs may leave elsewhere, so that too few are left there.
    pub is_thin: bool,
}

impl Work<'_> {
    /// Whether there are more block-tasks than a grid of `blocks` has blocks. Its blocks pull block-tasks until none is left, so
    /// blocks that leave elsewhere are not missed. In a grid with a block for each block-task, a block ends with its first one.
    fn crowds(&self, blocks: u32) -> bool {
        !self.is_plain && self.tasks > blocks
    }

    /// Whether it crowds this room, and takes so long there that to launch spare blocks costs less than to lie among others'
    /// blocks.
    fn crowds_for_long(&self, room: u32) -> bool {
        let there = |took: Duration| took.saturating_mul(self.most) / room.max(1);
        self.crowds(room) && self.predicted.is_some_and(|took| self.costs.is_long(there(took)))
    }

    /// Whether it is long, and has a block for each task in this room.
    fn has_long_few(&self, room: u32) -> bool {
        let is_long = |took| self.costs.is_long(took);
        !self.is_plain && self.tasks <= room && self.predicted.is_some_and(is_long)
    }

    /// The shape of a grid for this work. `has_others` says whether other launches have SMs, and `outside` counts the SMs
    /// outside of those that it keeps to which are free; both take a look at all SMs. `None` if it should wait for its
    /// turn: it loses more in this place.
    pub fn shape(
        &self,
        place: Place,
        has_others: impl Fn() -> bool,
        outside: impl FnOnce() -> f64,
    ) -> Option<Shape> {
        match place {
            Place::Free { sms, room, has_blocks, is_taken, spills, strangers, is_beside } => {
                let crowds = self.crowds(room);
                let blocks = room.min(self.bare);
                // One block can keep all of another kernel out of an SM, which has divided its memory for it. Of many
                // block-tasks, those whose blocks left are for the others. Of few, they would wait until these have ended.
                let gains = match crowds {
                    true => strangers < sms,
                    false => {
                        let out = strangers.saturating_mul(self.blocks_per_sm);
                        self.has_long_few(room) && out <= room - blocks
                    }
                };
                let finds_room = !has_blocks && !is_taken && gains;
                let has_to = is_beside && crowds;
                let most_spills = if has_to { SPILLS } else { 0 };
                if spills <= most_spills && (finds_room || has_to) && has_others() {
                    // As many on each SM as on its own.
                    let each = if crowds { self.blocks_per_sm } else { blocks.div_ceil(sms) };
                    let spare = (outside() * f64::from(each)) as u32;
                    // The last SM may hold fewer. With a block for each task, those of spare blocks would be left over.
                    let most = if crowds { self.most.saturating_sub(blocks) } else { spare };
                    let spare = spare.min(most);
                    let pulls = !crowds || self.crowds(blocks + spare);
                    if (spare > 0 || has_to) && pulls {
                        let (blocks, is_thin) = (blocks + spare, !finds_room || spare == 0);
                        return Some(Shape { blocks, keeps_to_own: true, hands: 0, is_thin });
                    }
                }
                Some(Shape { blocks, keeps_to_own: false, hands: blocks, is_thin: false })
            }
            Place::Gated { room } => {
                let blocks = room.min(self.bare);
                Some(Shape { blocks, keeps_to_own: false, hands: 0, is_thin: false })
            }
            Place::Behind { sms, own, room, is_part, strangers } => {
                // Blocks that no word confines take part of its SMs. A launch that keeps to those has none of theirs.
                let gains = || self.crowds_for_long(own) && strangers < sms && has_others();
                let spare = match is_part && self.crowds(room) || gains() {
                    true => Some((outside() * f64::from(self.blocks_per_sm)) as u32),
                    false => None,
                };
                let spare = spare.filter(|&spare| self.crowds(room + spare));
                // The hardware places some of its blocks outside of a part.
                let is_lost = match is_part {
                    true => spare.is_none(),
                    false => self.has_long_few(own) && has_others(),
                };
                if is_lost {
                    return None;
                }
                let blocks = (room + spare.unwrap_or(0)).min(self.bare);
                Some(Shape { blocks, keeps_to_own: spare.is_some(), hands: 0, is_thin: false })
            }
        }
    }
}

/// Whether blocks of other launches occupy the SMs of a launch: a grid that kept to these has left with tasks
/// remaining, and without a signal, after which it would have kept to fewer.
pub(super) fn has_spilled(kept_to: SmRange, range: SmRange, remaining: u32) -> bool {
    kept_to != SmRange::ALL && kept_to == range && remaining > 0
}

/// What a launch has of the SMs of the one before it, behind which its blocks were queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Takeover {
    pub range: SmRange,
    /// Whether its blocks fit there. Otherwise those elsewhere have to leave.
    pub fits: bool,
}

impl Launch {
    /// What it takes over of the SMs that are handed over, with blocks in a queue that grants those of `keeps_to`.
    /// `is_free` says whether no launch has SMs: then it has as many as its blocks fill.
    pub fn takeover(
        &self,
        handover: SmRange,
        keeps_to: SmRange,
        is_free: bool,
        sms: u32,
    ) -> Takeover {
        let wanted = self.blocks().div_ceil(self.per_sm());
        let range = if is_free && !handover.is_empty() && keeps_to == SmRange::ALL {
            // Such a queue has no spare blocks, so it wants no more SMs than there are.
            let lo = handover.lo().min(sms - wanted);
            SmRange::new(lo, lo + wanted)
        } else {
            // Its blocks are on no other SMs.
            ledger::first(intersection(handover, keeps_to, sms), wanted, sms)
        };
        let room = self.room(ledger::count(range, sms), range.contains(sms - 1));
        Takeover { range, fits: self.blocks() <= room }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LaunchSpec, Leaving};
    use super::*;

    /// Work on a device of 4 SMs with 4 blocks each.
    fn work(tasks: u32) -> Work<'static> {
        let (predicted, costs) = (Some(Duration::ZERO), const { &Costs::h200() });
        Work { tasks, bare: tasks, blocks_per_sm: 4, most: 16, is_plain: false, predicted, costs }
    }

    fn long(tasks: u32) -> Work<'static> {
        Work { predicted: Some(10 * Costs::h200().gap()), ..work(tasks) }
    }

    /// A place, and whether other launches have SMs.
    type Where = (Place, bool);

    /// What a place is, beside its SMs and their room, and whether other launches have SMs.
    #[derive(Clone, Copy, Default)]
    struct Of {
        has_blocks: bool,
        is_taken: bool,
        spills: u32,
        strangers: u32,
        is_beside: bool,
        has_others: bool,
    }

    const OTHERS: Of = Of {
        has_blocks: false,
        is_taken: false,
        spills: 0,
        strangers: 0,
        is_beside: false,
        has_others: true,
    };

    fn free(sms: u32, of: Of) -> Where {
        let Of { has_blocks, is_taken, spills, strangers, is_beside, has_others } = of;
        (
            Place::Free { sms, room: 4 * sms, has_blocks, is_taken, spills, strangers, is_beside },
            has_others,
        )
    }

    fn behind(is_part: bool, has_others: bool) -> Where {
        (Place::Behind { sms: 2, own: 8, room: 8, is_part, strangers: 0 }, has_others)
    }

    fn anywhere(blocks: u32) -> Option<Shape> {
        Some(Shape { blocks, keeps_to_own: false, hands: blocks, is_thin: false })
    }

    fn apart(blocks: u32) -> Option<Shape> {
        Some(Shape { blocks, keeps_to_own: true, hands: 0, is_thin: false })
    }

    fn thin(blocks: u32) -> Option<Shape> {
        Some(Shape { blocks, keeps_to_own: true, hands: 0, is_thin: true })
    }

    fn waiting(blocks: u32) -> Option<Shape> {
        Some(Shape { blocks, keeps_to_own: false, hands: 0, is_thin: false })
    }

    /// Its name, the work, its place, the free SMs outside, and the shape.
    type Case = (&'static str, Work<'static>, Where, f64, Option<Shape>);

    fn cases() -> Vec<Case> {
        let two = free(2, OTHERS);
        let alone = free(4, Of::default());
        let among = |strangers| free(2, Of { strangers, ..OTHERS });
        let urgent = Of { is_beside: true, ..OTHERS };
        let gated = (Place::Gated { room: 8 }, true);
        let beside =
            |strangers| Place::Behind { sms: 2, own: 8, room: 8, is_part: false, strangers };
        let plain = |tasks| Work { is_plain: true, ..long(tasks) };
        // It takes `gaps` gaps on its SMs, and half of that on the device.
        let half = |gaps| Work { predicted: Some(gaps * Costs::h200().gap() / 2), ..work(100) };
        vec![
            ("alone, it fills the device", work(100), alone, 0.0, anywhere(16)),
            ("alone, with few tasks", work(3), alone, 0.0, anywhere(3)),
            ("crowded, beside others: confined", work(100), two, 2.0, apart(16)),
            ("the last SM holds fewer", Work { most: 14, ..work(100) }, two, 2.0, apart(14)),
            ("no room for spare blocks", work(100), two, 0.1, anywhere(8)),
            ("half an SM is free", work(100), two, 0.5, apart(10)),
            ("a task for each block, those outside included", work(16), two, 2.0, anywhere(8)),
            ("one more", work(17), two, 2.0, apart(16)),
            ("the same with less room outside", work(10), two, 0.25, apart(9)),
            ("a task for each block there", work(9), two, 0.25, anywhere(8)),
            ("long, with a block for each task", long(6), two, 2.0, apart(12)),
            ("long, with two tasks for some blocks", long(9), two, 2.0, anywhere(8)),
            ("short, with a block for each task", work(6), two, 2.0, anywhere(6)),
            ("crowded, alone", work(100), free(2, Of::default()), 2.0, anywhere(8)),
            (
                "crowded, with blocks elsewhere",
                work(100),
                free(2, Of { has_blocks: true, ..OTHERS }),
                2.0,
                anywhere(8),
            ),
            (
                "crowded, others have yet to leave",
                work(100),
                free(2, Of { is_taken: true, ..OTHERS }),
                2.0,
                anywhere(8),
            ),
            ("beside a more urgent one", work(100), free(2, urgent), 2.0, apart(16)),
            (
                "the same, with blocks elsewhere",
                work(100),
                free(2, Of { has_blocks: true, ..urgent }),
                2.0,
                thin(16),
            ),
            (
                "the same, a stranger on each SM",
                work(100),
                free(2, Of { strangers: 2, ..urgent }),
                1.0,
                thin(12),
            ),
            ("the same, no SM outside is free", work(100), free(2, urgent), 0.0, thin(8)),
            (
                "the same, others have yet to leave",
                work(100),
                free(2, Of { is_taken: true, ..urgent }),
                2.0,
                thin(16),
            ),
            (
                "the same, others were found there twice",
                work(100),
                free(2, Of { spills: 2, ..urgent }),
                2.0,
                apart(16),
            ),
            (
                "the same, three times",
                work(100),
                free(2, Of { spills: 3, ..urgent }),
                2.0,
                anywhere(8),
            ),
            (
                "crowded, others were found there",
                work(100),
                free(2, Of { spills: 1, ..OTHERS }),
                2.0,
                anywhere(8),
            ),
            ("the same, with few tasks", work(16), free(2, urgent), 2.0, anywhere(8)),
            ("crowded, a stranger on one SM", work(100), among(1), 2.0, apart(16)),
            ("crowded, on both", work(100), among(2), 2.0, anywhere(8)),
            ("long, room beside a stranger", long(4), among(1), 2.0, apart(8)),
            ("long, none", long(5), among(1), 2.0, anywhere(5)),
            ("some tasks have blocks", Work { bare: 2, ..work(8) }, two, 2.0, anywhere(2)),
            ("a plain grid", plain(100), two, 2.0, anywhere(8)),
            ("a small plain grid", plain(6), two, 2.0, anywhere(6)),
            ("behind a gate", work(100), gated, 2.0, waiting(8)),
            ("behind a gate, with few tasks", work(3), gated, 2.0, waiting(3)),
            ("behind a gate, long, with a block for each task", long(6), gated, 2.0, waiting(6)),
            ("behind", work(100), behind(false, true), 2.0, waiting(8)),
            ("behind, with few tasks", work(3), behind(false, true), 2.0, waiting(3)),
            ("behind in a part, crowded", work(100), behind(true, true), 2.0, apart(16)),
            ("behind in a part, a task for each block", work(16), behind(true, true), 2.0, None),
            ("behind in a part, one more", work(17), behind(true, true), 2.0, apart(16)),
            ("behind in a part, no room outside", work(9), behind(true, true), 0.0, apart(8)),
            ("the same, a task for each block", work(8), behind(true, true), 0.0, None),
            ("behind, long, with a block for each task", long(8), behind(false, true), 2.0, None),
            ("the same without others", long(8), behind(false, false), 2.0, waiting(8)),
            ("behind, long, with more tasks", long(9), behind(false, true), 2.0, waiting(8)),
            ("the same, no room outside", long(9), behind(false, true), 0.0, apart(8)),
            ("behind, long and crowded", long(100), behind(false, true), 2.0, apart(16)),
            ("the same, no SM outside is free", long(100), behind(false, true), 0.0, apart(8)),
            ("the same without others", long(100), behind(false, false), 2.0, waiting(8)),
            ("the same, a stranger on one SM", long(100), (beside(1), true), 2.0, apart(16)),
            ("the same, on both", long(100), (beside(2), true), 2.0, waiting(8)),
            ("behind, long on half of the SMs", half(10), behind(false, true), 2.0, apart(16)),
            ("behind, shorter", half(9), behind(false, true), 2.0, waiting(8)),
            ("a plain grid behind another", plain(100), behind(false, true), 2.0, waiting(8)),
        ]
    }

    #[test]
    fn each_grid_has_the_shape_of_the_table() {
        for (name, work, (place, has_others), outside, shape) in cases() {
            assert_eq!(work.shape(place, || has_others, || outside), shape, "{name}");
        }
    }

    fn sms(lo: u32, hi: u32) -> SmRange {
        SmRange::new(lo, hi)
    }

    /// A launch with blocks on a device of 4 SMs with 4 blocks each, of which the last holds 3.
    fn queued(blocks: u32) -> Launch {
        let spec = LaunchSpec {
            tasks: 100,
            predicted: None,
            yield_overhead: Duration::ZERO,
            requeued: Duration::ZERO,
            blocks_per_sm: 4,
            on_last_sm: 3,
            plain: false,
            hardware_stop: None,
            leaving: Leaving::AtEnd,
        };
        let mut launch = Launch::new(Duration::ZERO, spec);
        launch.cohort_in(0, 0, blocks, SmRange::ALL);
        launch
    }

    #[test]
    fn each_grid_takes_over_the_sms_of_the_table() {
        const FREE: bool = true;
        const OTHERS: bool = false;
        let all = SmRange::ALL;
        let none = SmRange::EMPTY;
        // Its blocks, the SMs that are handed over, those that its queue grants, and whether the device is free; the
        // SMs that it takes over, and whether its blocks fit there.
        let cases = [
            ("all of them", 8, sms(0, 2), all, OTHERS, sms(0, 2), true),
            ("as many as its blocks fill", 5, sms(0, 3), all, OTHERS, sms(0, 2), true),
            ("more blocks than fit", 9, sms(0, 2), all, OTHERS, sms(0, 2), false),
            ("fewer fit on the last SM", 8, sms(2, 4), all, OTHERS, sms(2, 4), false),
            ("as many as fit there", 7, sms(2, 4), all, OTHERS, sms(2, 4), true),
            ("around the end", 7, sms(3, 1), all, OTHERS, sms(3, 1), true),
            ("a part of these", 3, sms(3, 1), all, OTHERS, sms(3, 4), true),
            ("nothing", 4, none, all, OTHERS, none, false),
            ("a free device: more than that", 15, sms(2, 3), all, FREE, sms(0, 4), true),
            ("from the same SM on", 8, sms(1, 2), all, FREE, sms(1, 3), true),
            ("as far as the last SM", 5, sms(3, 4), all, FREE, sms(2, 4), true),
            ("the last SM alone", 4, sms(3, 4), all, FREE, sms(3, 4), false),
            ("nothing of a free device", 4, none, all, FREE, none, false),
            ("no more than the queue grants", 8, sms(0, 4), sms(1, 2), OTHERS, sms(1, 2), false),
            ("nor of a free device", 8, sms(0, 4), sms(1, 2), FREE, sms(1, 2), false),
            ("a queue that grants other SMs", 4, sms(0, 2), sms(2, 4), OTHERS, none, false),
            ("a queue that has to leave", 4, sms(0, 2), none, FREE, none, false),
            ("spare blocks elsewhere", 20, sms(0, 2), sms(0, 2), FREE, sms(0, 2), false),
        ];
        for (name, blocks, handover, keeps_to, is_free, range, fits) in cases {
            let takeover = queued(blocks).takeover(handover, keeps_to, is_free, 4);
            assert_eq!(takeover, Takeover { range, fits }, "{name}");
        }
    }

    #[test]
    fn each_grid_leaves_what_the_table_says() {
        // The SMs that it kept to, those of the launch, and the block-tasks that remain; whether it has spilled.
        let cases = [
            ("its own SMs are occupied", sms(0, 2), sms(0, 2), 1, true),
            ("it is done", sms(0, 2), sms(0, 2), 0, false),
            ("it was told to leave some", sms(0, 2), sms(0, 1), 1, false),
            ("it was told to leave all", sms(0, 2), SmRange::EMPTY, 1, false),
            ("it lay anywhere", SmRange::ALL, sms(0, 2), 1, false),
            ("on the largest device there can be", SmRange::ALL, SmRange::ALL, 1, false),
        ];
        for (name, kept_to, range, remaining, spilled) in cases {
            assert_eq!(has_spilled(kept_to, range, remaining), spilled, "{name}");
        }
    }
}
