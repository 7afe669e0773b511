//! Lanes: what is queued in which, and the signal word of each.

use std::collections::VecDeque;

use preempt_device::abi::{Signal, SmRange};

use super::OpKey;
use crate::device::LaneCount;

/// A lane of the device, by number.
pub(crate) type LaneIndex = u32;

/// How many cohorts are in a lane at most: the first one runs, and the others wait for the end of the
/// launch before them. Enough to keep the device busy while the host looks elsewhere, and few enough
/// to be gone quickly when the lane is told to leave.
pub(super) const QUEUED_AHEAD: usize = 16;

#[derive(Debug)]
pub(super) struct Lanes {
    all: Vec<Lane>,
    normal: usize,
    /// The most lanes in which anything waits, and how many there are.
    most_chains: u32,
    chains: u32,
}

#[derive(Debug, Default)]
struct Lane {
    /// Words that were ever made for this lane.
    epoch: u64,
    /// The range in the last one.
    range: SmRange,
    /// The cohorts on the device, first to run first.
    cohorts: VecDeque<(OpKey, usize)>,
}

impl Lanes {
    pub fn new(count: LaneCount) -> Lanes {
        let lane = |_| Lane::default();
        Lanes {
            all: (0..count.normal + count.urgent).map(lane).collect(),
            normal: count.normal as usize,
            most_chains: count.chains,
            chains: 0,
        }
    }

    /// How many there are.
    pub fn count(&self) -> LaneCount {
        let normal = self.normal as u32;
        LaneCount { normal, urgent: self.all.len() as u32 - normal, chains: self.most_chains }
    }

    /// A lane with nothing in it. What is not urgent leaves the urgent lanes to others.
    pub fn free(&self, urgent: bool) -> Option<LaneIndex> {
        let is_free = |&lane: &usize| self.all[lane].cohorts.is_empty();
        let normal = (0..self.normal).find(is_free);
        let lane = match urgent {
            true => (self.normal..self.all.len()).find(is_free).or(normal),
            false => normal,
        };
        lane.map(|lane| lane as LaneIndex)
    }

    /// Puts a cohort into a lane, behind what is there. The word in its parameter, which grants `range` if the lane was
    /// free.
    pub fn enter(&mut self, lane: LaneIndex, op: OpKey, slot: usize, range: SmRange) -> Signal {
        if self.is_free(lane) {
            self.signal(lane, range);
        }
        let lane = &mut self.all[lane as usize];
        lane.cohorts.push_back((op, slot));
        self.chains += u32::from(lane.cohorts.len() == 2);
        Signal::new(lane.epoch, lane.range)
    }

    /// Takes a cohort out that has left.
    pub fn leave(&mut self, lane: LaneIndex, op: OpKey, slot: usize) {
        let cohorts = &mut self.all[lane as usize].cohorts;
        let was_chain = cohorts.len() > 1;
        cohorts.retain(|&cohort| cohort != (op, slot));
        self.chains -= u32::from(was_chain && cohorts.len() <= 1);
    }

    /// Takes everything out.
    pub fn clear(&mut self) {
        self.all.iter_mut().for_each(|lane| lane.cohorts.clear());
        self.chains = 0;
    }

    /// A word that is newer than all before it.
    pub fn signal(&mut self, lane: LaneIndex, range: SmRange) -> Signal {
        let lane = &mut self.all[lane as usize];
        lane.epoch += 1;
        lane.range = range;
        Signal::new(lane.epoch, range)
    }

    /// The SMs that the lane's cohorts may use.
    pub fn range(&self, lane: LaneIndex) -> SmRange {
        self.all[lane as usize].range
    }

    /// The first cohort in each lane that has any.
    pub fn heads(&self) -> impl Iterator<Item = (LaneIndex, OpKey, usize)> {
        let head =
            |(lane, of): (LaneIndex, &Lane)| of.cohorts.front().map(|&(op, slot)| (lane, op, slot));
        (0..).zip(&self.all).filter_map(head)
    }

    /// How many cohorts are behind the first one.
    pub fn waiting(&self, lane: LaneIndex) -> usize {
        self.all[lane as usize].cohorts.len().saturating_sub(1)
    }

    pub fn is_free(&self, lane: LaneIndex) -> bool {
        self.all[lane as usize].cohorts.is_empty()
    }

    pub fn all_free(&self) -> bool {
        self.all.iter().all(|lane| lane.cohorts.is_empty())
    }

    /// The last cohort, if there is room behind it.
    pub fn tail(&self, lane: LaneIndex) -> Option<(OpKey, usize)> {
        let cohorts = &self.all[lane as usize].cohorts;
        let has_room = match cohorts.len() {
            1 => self.chains < self.most_chains,
            length => length < QUEUED_AHEAD,
        };
        cohorts.back().filter(|_| has_room).copied()
    }
}
