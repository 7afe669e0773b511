//! Streams that always have work, under the policies that share by weight or by quota.

use std::time::Duration;

use proptest::prelude::*;

use super::policies::{config, micros};
use super::world::{Asks, World};
use super::*;
use crate::policy::{DynamicPriority, FairShare, Ffs, Urgency};

/// Streams that always have something to run, in a model that takes its time.
struct Loops {
    world: World,
    weights: Vec<u32>,
    /// The latest launches of each stream, which it waits for before it submits more.
    latest: Vec<Vec<OpKey>>,
    outstanding: usize,
    overhead: Duration,
    seed: u64,
    /// How often SM 0 went to another stream.
    switches: u32,
    last: Option<u32>,
}

impl Loops {
    fn new(sms: u32, policy: Box<dyn Policy>, weights: &[u32], outstanding: usize) -> Loops {
        let mut world = World::with(sms, 1, policy);
        world.work_conserving = true;
        let (latest, weights) = (vec![Vec::new(); weights.len()], weights.to_vec());
        let (overhead, seed, switches, last) = (micros(20), 1, 0, None);
        Loops { world, weights, latest, outstanding, overhead, seed, switches, last }
    }

    fn random(&mut self, below: u64) -> u64 {
        // Knuth's MMIX.
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % below
    }

    /// Goes on for a time; so long after a launch ended, its stream submits another one.
    fn run(&mut self, time: Duration, pause: Duration) {
        let end = self.world.now + time;
        let mut paused = vec![None; self.weights.len()];
        while self.world.now < end {
            for (stream, paused) in paused.iter_mut().enumerate() {
                let ops = &self.world;
                self.latest[stream].retain(|&op| !ops.is_finished(op));
                if self.latest[stream].len() == self.outstanding {
                    *paused = None;
                } else if *paused.get_or_insert(self.world.now + pause) <= self.world.now {
                    let weight = self.weights[stream];
                    let asks = Asks {
                        urgency: Urgency { weight, ..Urgency::default() },
                        yield_overhead: self.overhead,
                        ..Asks::default()
                    };
                    let tasks = self.random(200) as u32 + self.world.sms;
                    let op = self.world.submit_asking(stream as u32, tasks, &[], asks);
                    self.latest[stream].push(op);
                    *paused = None;
                }
            }
            for _ in 0..2 {
                let index = self.random(1 << 20) as usize;
                if !self.world.cohorts.is_empty() {
                    self.world.step_cohort(index % self.world.cohorts.len());
                }
            }
            let pass = self.random(20) + 1;
            self.world.pass(micros(pass));
            let owner = self.world.engine.ledger.owners()[0];
            let stream = owner.map(|id| self.world.engine.ops[id.0].stream);
            if stream.is_some() && stream != self.last {
                self.switches += 1;
                self.last = stream;
            }
        }
    }

    /// How far each stream is from its share, in time on SMs.
    fn errors(&self, before: &[Duration]) -> Vec<f64> {
        let time = |stream: usize| self.world.sm_time(stream as u32) - before[stream];
        let total: Duration = (0..self.weights.len()).map(time).sum();
        let weights = f64::from(self.weights.iter().sum::<u32>());
        let error = |(stream, weight): (usize, &u32)| {
            time(stream).as_secs_f64() - total.as_secs_f64() * f64::from(*weight) / weights
        };
        self.weights.iter().enumerate().map(error).collect()
    }

    fn times(&self) -> Vec<Duration> {
        (0..self.weights.len()).map(|stream| self.world.sm_time(stream as u32)).collect()
    }
}

proptest! {
    #![proptest_config(config(20))]

    #[test]
    fn streams_that_always_have_work_have_their_shares(
        sms in 1u32..6, weights in prop::collection::vec(1u32..6, 2..5), is_ffs in any::<bool>(), outstanding in 2usize..4,
    ) {
        let policy: Box<dyn Policy> =
            if is_ffs { Box::new(Ffs::new()) } else { Box::new(FairShare::new()) };
        let mut loops = Loops::new(sms, policy, &weights, outstanding);
        let time = Duration::from_millis(300);
        loops.run(time, Duration::ZERO);
        prop_assert_eq!(loops.world.engine.refusal(), None);
        let count = weights.len() as u32;
        let turn = match is_ffs {
            true => loops.overhead * count * 10 / weights.iter().sum::<u32>(),
            false => Duration::from_millis(1),
        };
        let heaviest = weights.iter().copied().max().unwrap_or_default();
        for error in loops.errors(&vec![Duration::ZERO; weights.len()]) {
            // Two turns of the heaviest stream, since one stream's lack is another's gain, and the delay of the
            // model.
            let bound = (turn * heaviest * 2 + micros(50)) * sms;
            prop_assert!(error.abs() <= bound.as_secs_f64(), "{error} s, {bound:?}: {:?}", loops.times());
            if is_ffs {
                let share = error.abs() / (time * sms).as_secs_f64();
                prop_assert!(share < 0.01, "{share}");
            }
        }
        if is_ffs {
            let overhead = f64::from(loops.switches) * loops.overhead.as_secs_f64() / time.as_secs_f64();
            prop_assert!(overhead < 0.11, "{overhead}");
        }
    }

    #[test]
    fn a_stream_that_waits_for_each_launch_has_its_share_all_the_same(
        sms in 1u32..6, weights in prop::collection::vec(1u32..4, 2..4), pause in 0u64..50,
    ) {
        let mut loops = Loops::new(sms, Box::new(Ffs::new()), &weights, 1);
        let time = Duration::from_millis(300);
        loops.run(time, micros(pause));
        prop_assert_eq!(loops.world.engine.refusal(), None);
        for error in loops.errors(&vec![Duration::ZERO; weights.len()]) {
            let share = error.abs() / (time * sms).as_secs_f64();
            prop_assert!(share < 0.01, "{share}: {:?}", loops.times());
        }
    }
}

#[test]
fn a_new_stream_neither_waits_for_the_past_nor_makes_others_wait() {
    let mut loops = Loops::new(4, Box::new(FairShare::new()), &[1, 1], 2);
    loops.weights.pop();
    loops.run(Duration::from_millis(50), Duration::ZERO);
    loops.weights.push(1);
    let before = loops.times();
    for _ in 0..10 {
        loops.run(Duration::from_millis(5), Duration::ZERO);
        for error in loops.errors(&before) {
            assert!(error.abs() <= 0.001 * 4.0 + 0.0002, "{error}");
        }
    }
}

#[test]
fn the_next_launch_of_a_stream_goes_on_with_the_quota_while_others_are_inactive() {
    let mut world = World::new(1, 1, DynamicPriority::new());
    let long = world.submit(0, 5, 100, &[]);
    world.step_cohort(0);
    let short: Vec<OpKey> = (0..3).map(|_| world.submit(1, 0, 1, &[])).collect();
    let has = |world: &World, op: OpKey| {
        world.engine.ops[op].launch.as_ref().is_some_and(|launch| !launch.range.is_empty())
    };
    // Its quota is 3 ms, and that of the other one 0.5 ms.
    world.pass(micros(3000));
    while !world.is_finished(short[2]) {
        assert!(!has(&world, long), "it is inactive, and the other one's quota is not over");
        (0..world.cohorts.len()).rev().for_each(|index| world.step_cohort(index));
    }
    assert!(has(&world, long));
    world.run_out();
}
