//! Learns from each launch.

use std::time::Duration;

use super::model::{Model, Point, vector};
use super::{ByKernel, Features, Predictor, Ridge};

/// Weight of the last launch in the mean of those like it, after the first few.
const WEIGHT: f64 = 0.25;

/// Weight of the last launch if it took twice as long as the mean or longer: other work on the device makes launches
/// longer, and nothing makes them shorter.
const WEIGHT_OF_LONG: f64 = 0.0625;

/// Weight of the last launch if it took half as long as the mean or less.
const WEIGHT_OF_SHORT: f64 = 0.5;

/// Different launches of a kernel that are remembered; beyond that, the least recent one is forgotten.
const MOST: usize = 64;

/// Different launches that are enough for a regression: about twice its coefficients.
const ENOUGH: usize = 8;

/// Kernels that are remembered; beyond that, all are forgotten.
const MOST_KERNELS: usize = 4096;

/// Learns from each launch that ends; what a scheduler has unless it is given another predictor.
///
/// A launch is predicted to take the mean of the launches of the same kernel with the same features. The last one has
/// a weight of a quarter in that mean: a half if it took at most half as long as the mean, and a sixteenth if it took
/// twice as long or longer. A launch unlike all before is predicted by a regression over those of its kernel, as
/// [`Ridge`] does it, if there were eight different ones; otherwise in proportion to its block-tasks, from the
/// nearest launch. The 64 most recent different launches of each kernel are remembered. A kernel that has not run yet
/// is predicted only if a `Ridge` was given.
#[derive(Clone, Debug, Default)]
pub struct Online {
    kernels: ByKernel<Known>,
    count: usize,
    prior: Ridge,
}

/// What is known of a kernel.
#[derive(Clone, Debug, Default)]
struct Known {
    launches: Vec<Seen>,
    model: Option<Model>,
    /// New launches since the model was fitted.
    unfitted: usize,
    /// Launches, of any features.
    clock: u64,
}

/// Launches with the same features.
#[derive(Clone, Copy, Debug)]
struct Seen {
    grid: u32,
    block: u32,
    input_bytes: u64,
    shared_bytes: u32,
    /// In seconds.
    mean: f64,
    count: u32,
    /// The last of these launches, by
    last: u64,
}

impl Seen {
    fn is_like(&self, launch: &Features<'_>) -> bool {
        (self.grid, self.block, self.input_bytes, self.shared_bytes)
            == (launch.grid, launch.block, launch.input_bytes, launch.shared_bytes)
    }

    fn point(&self) -> Point {
        let Seen { grid, block, input_bytes, shared_bytes, mean, .. } = *self;
        let features = Features { module: "", kernel: "", grid, block, input_bytes, shared_bytes };
        (vector(&features), mean)
    }

    /// The distance from a launch: by how many times its features are larger or smaller.
    fn distance(&self, launch: &Features<'_>) -> f64 {
        let ratio = |a: f64, b: f64| (a.max(1.0) / b.max(1.0)).ln().abs();
        let (own, other) = (self.point().0, vector(launch));
        own.into_iter().zip(other).map(|(a, b)| ratio(a, b)).sum()
    }
}

impl Online {
    /// A predictor that knows nothing yet.
    pub fn new() -> Online {
        Online::default()
    }

    /// A predictor that begins with a trained model. Durations of launches that have run since come first.
    pub fn after(ridge: Ridge) -> Online {
        Online { prior: ridge, ..Online::default() }
    }
}

impl Predictor for Online {
    fn predict(&self, launch: &Features<'_>) -> Option<Duration> {
        let Some(known) = self.kernels.get(launch) else { return self.prior.predict(launch) };
        if let Some(seen) = known.launches.iter().find(|seen| seen.is_like(launch)) {
            return Duration::try_from_secs_f64(seen.mean).ok();
        }
        let model = known.model.or_else(|| self.prior.model(launch));
        if let Some(took) = model.and_then(|model| model.predict(launch)) {
            return Some(took);
        }
        let distance = |seen: &&Seen| seen.distance(launch);
        let nearest = known.launches.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)))?;
        let tasks = f64::from(launch.grid) / f64::from(nearest.grid.max(1));
        Duration::try_from_secs_f64(nearest.mean * tasks).ok()
    }

    fn finished(&mut self, launch: &Features<'_>, took: Duration) {
        let took = took.as_secs_f64();
        if took <= 0.0 {
            return;
        }
        if self.count >= MOST_KERNELS {
            (self.kernels, self.count) = Default::default();
        }
        let known = self.kernels.entry(launch.module, launch.kernel);
        self.count += usize::from(known.clock == 0);
        known.clock += 1;
        let last = known.clock;
        if let Some(seen) = known.launches.iter_mut().find(|seen| seen.is_like(launch)) {
            seen.count = seen.count.saturating_add(1);
            seen.last = last;
            // The first launch of a kernel may have loaded it, so it does not count if the second one was faster.
            let replaces = seen.count == 2 && took < seen.mean / 2.0;
            let weight = match took / seen.mean {
                _ if replaces => 1.0,
                ratio if ratio <= 0.5 => WEIGHT_OF_SHORT,
                ratio if ratio >= 2.0 => WEIGHT_OF_LONG,
                _ => WEIGHT.max(1.0 / f64::from(seen.count)),
            };
            seen.mean += weight * (took - seen.mean);
            return;
        }
        if known.launches.len() >= MOST {
            let oldest = (0..MOST).min_by_key(|&at| known.launches[at].last);
            oldest.map(|at| known.launches.swap_remove(at));
        }
        let Features { grid, block, input_bytes, shared_bytes, .. } = *launch;
        known.launches.push(Seen {
            grid,
            block,
            input_bytes,
            shared_bytes,
            mean: took,
            count: 1,
            last,
        });
        known.unfitted += 1;
        // A fit takes about 10 µs, so the more launches are known, the fewer fits there are.
        if known.launches.len() >= ENOUGH && 2 * known.unfitted >= known.launches.len() {
            known.unfitted = 0;
            let points: Vec<Point> = known.launches.iter().map(Seen::point).collect();
            known.model = Model::fit(&points);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::Run;

    fn launch(grid: u32) -> Features<'static> {
        let (module, kernel) = ("kernels", "saxpy");
        let input_bytes = 512 * u64::from(grid);
        Features { module, kernel, grid, block: 128, input_bytes, shared_bytes: 0 }
    }

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    fn predicted(online: &Online, launch: &Features<'_>) -> u128 {
        online.predict(launch).expect("a known kernel").as_micros()
    }

    #[test]
    fn it_learns_and_forgets() {
        let mut online = Online::new();
        assert_eq!(online.predict(&launch(8)), None);
        online.finished(&launch(8), micros(100));
        assert_eq!(predicted(&online, &launch(8)), 100);
        for _ in 0..40 {
            online.finished(&launch(8), micros(500));
        }
        assert_eq!(predicted(&online, &launch(8)), 499, "it takes longer now");
        online.finished(&launch(8), Duration::ZERO);
        assert_eq!(predicted(&online, &launch(8)), 499, "no launch takes no time");
        let other = Features { kernel: "other", ..launch(8) };
        assert_eq!(online.predict(&other), None);
        assert_eq!(online.predict(&Features { module: "other", ..launch(8) }), None);
    }

    #[test]
    fn one_launch_that_loads_the_kernel_is_no_measure() {
        let mut online = Online::new();
        online.finished(&launch(8), micros(100_000));
        online.finished(&launch(8), micros(50));
        assert_eq!(predicted(&online, &launch(8)), 50);
        online.finished(&launch(8), micros(90));
        assert_eq!(predicted(&online, &launch(8)), 63, "but a later one that is slow counts");
    }

    #[test]
    fn a_launch_that_is_much_longer_counts_less_than_one_that_is_much_shorter() {
        let mut online = Online::new();
        (0..4).for_each(|_| online.finished(&launch(8), micros(100)));
        online.finished(&launch(8), micros(1600));
        assert_eq!(predicted(&online, &launch(8)), 193);
        online.finished(&launch(8), micros(80));
        assert_eq!(predicted(&online, &launch(8)), 136);
    }

    #[test]
    fn what_is_new_is_predicted_by_the_nearest_and_then_by_all() {
        let mut online = Online::new();
        online.finished(&launch(100), micros(100));
        online.finished(&launch(1000), micros(5000));
        assert_eq!(predicted(&online, &launch(120)), 120);
        assert_eq!(predicted(&online, &launch(2000)), 10_000);

        let mut online = Online::new();
        for grid in 1..=ENOUGH as u32 {
            online.finished(&launch(100 * grid), micros(50 + 10 * u64::from(grid)));
        }
        let far = predicted(&online, &launch(3000));
        assert!((345..=355).contains(&far), "50 + 300, not in proportion: {far}");
    }

    #[test]
    fn it_begins_with_what_was_recorded_and_believes_launches_more() {
        let run = |grid| Run { launch: launch(grid), took: micros(u64::from(grid)) };
        let mut online = Online::after(Ridge::train(&[run(10), run(20), run(30), run(90)]));
        assert_eq!(predicted(&online, &launch(50)), 50);
        online.finished(&launch(50), micros(70));
        assert_eq!(predicted(&online, &launch(50)), 70);
        assert_eq!(predicted(&online, &launch(60)), 60, "one launch is not enough to know better");
    }

    #[test]
    fn no_more_than_so_much_is_remembered() {
        let mut online = Online::new();
        for grid in 1..=3 * MOST as u32 {
            online.finished(&launch(grid), micros(u64::from(grid)));
            online.finished(&launch(1), micros(7));
        }
        let known = online.kernels.get(&launch(1)).expect("a known kernel");
        assert_eq!(known.launches.len(), MOST);
        assert_eq!(predicted(&online, &launch(1)), 7, "what is used is kept");
        for kernel in 0..MOST_KERNELS + 10 {
            let name = kernel.to_string();
            online.finished(&Features { kernel: &name, ..launch(1) }, micros(1));
        }
        assert!(online.kernels.iter().count() <= MOST_KERNELS);
    }
}
