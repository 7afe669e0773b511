//! What the tests of this module share.

use super::sharing::Sharing;
use super::speeds::Speeds;

/// A pinned generator (xorshift64*), so that a failure is found again.
pub(super) struct Random(pub u64);

/// Durations in the paper's experiments: of the kernels, which are picked uniformly or so that each has as much work,
/// or random ones.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Setting {
    ActualUniform,
    ActualWeighted,
    RandomDuration,
}

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() >> 33) as usize % end
    }

    /// From 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }

    /// Speeds of which this part is 0, and the others are uniform.
    pub fn speeds(&mut self, tasks: usize, ways: usize, zeros: f64) -> Speeds {
        let mut way = || -> Vec<Vec<f64>> {
            let mut speed = || if self.unit() < zeros { 0.0 } else { self.unit() };
            let entry = |i, j, speed: f64| if i == j { 1.0 } else { speed };
            (0..tasks).map(|i| (0..tasks).map(|j| entry(i, j, speed())).collect()).collect()
        };
        let speeds = Speeds::new(Sharing::AllSms, way()).expect("speeds");
        let split = |n| Sharing::split(n as u32, ways as u32);
        (1..ways).fold(speeds, |speeds, n| speeds.with(split(n), way()).expect("speeds"))
    }

    /// Tasks of a few kernels. In ways with unequal parts, a kernel's speed depends on which of both has the first part.
    pub fn of_kernels(&mut self, kernels: usize, of: &[usize], ways: usize) -> Speeds {
        let values = self.below(2);
        let mut speed = || match values {
            0 => self.unit(),
            _ => [0.0, 0.5, 0.75, 1.0][self.below(4)],
        };
        // The speed of a kernel with a part of the GPU, beside another one with the rest.
        let parts = 2 * ways - 1;
        let measured: Vec<Vec<Vec<f64>>> = (0..parts)
            .map(|_| (0..kernels).map(|_| (0..kernels).map(|_| speed()).collect()).collect())
            .collect();
        let rows = |way: usize| -> Vec<Vec<f64>> {
            let speed = |i: usize, j: usize| match (i == j, i < j) {
                (true, _) => 1.0,
                (_, true) => measured[way][of[i]][of[j]],
                (_, false) => measured[parts - 1 - way][of[i]][of[j]],
            };
            (0..of.len()).map(|i| (0..of.len()).map(|j| speed(i, j)).collect()).collect()
        };
        let part = |way: usize| Sharing::split(way as u32 + 1, parts as u32 + 1);
        let speeds = Speeds::new(part(0), rows(0)).expect("speeds");
        (1..parts).fold(speeds, |speeds, way| speeds.with(part(way), rows(way)).expect("speeds"))
    }

    /// An instance of the paper's experiments (section V-B), with speeds that are drawn after figure 6: half of the
    /// kernels' pairs cannot run together, and the speeds of the others are uniform.
    pub fn of_figure_7(&mut self, setting: Setting, tasks: usize) -> (Vec<f64>, Speeds) {
        const KERNELS: usize = 60;
        let kernels = self.speeds(KERNELS + 1, 1, 0.5);
        // A kernel beside itself is as one beside another.
        let kernel = |a: usize, b: usize| kernels.speed(0, a, if a == b { KERNELS } else { b });
        // Over three orders of magnitude, as those of the paper's benchmarks are not printed.
        let alone: Vec<f64> = (0..KERNELS).map(|_| 10f64.powf(3.0 * self.unit())).collect();
        let weights: Vec<f64> = alone
            .iter()
            .map(|seconds| if setting == Setting::ActualWeighted { 1.0 / seconds } else { 1.0 })
            .collect();
        let total: f64 = weights.iter().sum();
        let of: Vec<usize> = (0..tasks)
            .map(|_| {
                let mut left = total * self.unit();
                let is_it = |weight: &f64| {
                    left -= weight;
                    left < 0.0
                };
                weights.iter().position(is_it).unwrap_or(KERNELS - 1)
            })
            .collect();
        let mut seconds = |kernel: usize| match setting {
            Setting::RandomDuration => 10.0 * self.unit(),
            _ => alone[kernel],
        };
        let durations = of.iter().map(|&kernel| seconds(kernel)).collect();
        let speeds = Speeds::from_fn(Sharing::AllSms, tasks, |i, j| kernel(of[i], of[j]));
        (durations, speeds.expect("speeds"))
    }

    /// Small instances of many kinds: with few and many compatible pairs, several ways, equal tasks, full speeds, and
    /// durations that are equal, whole, uniform, or 0.
    pub fn instance(&mut self, round: usize) -> (Vec<f64>, Speeds) {
        let tasks = 1 + self.below(12);
        let speeds = match round % 5 {
            0 => self.speeds(tasks, 1, 0.5),
            1 => {
                let ways = 1 + self.below(3);
                self.speeds(tasks, ways, 0.0)
            }
            2 => {
                // Tasks of four kernels.
                let kernels = self.speeds(4, 1, 0.3);
                let of: Vec<usize> = (0..tasks).map(|_| self.below(4)).collect();
                let beside = |a, b| if a == b { 0.7 } else { kernels.speed(0, a, b) };
                Speeds::from_fn(Sharing::AllSms, tasks, |i, j| beside(of[i], of[j]))
                    .expect("speeds")
            }
            3 => {
                let values = [0.0, 0.5, 0.75, 1.0];
                Speeds::from_fn(Sharing::AllSms, tasks, |_, _| values[self.below(4)])
                    .expect("speeds")
            }
            _ => {
                let values = [0.0, 1.0];
                Speeds::from_fn(Sharing::AllSms, tasks, |_, _| values[self.below(2)])
                    .expect("speeds")
            }
        };
        let kind = self.below(4);
        let durations = (0..tasks).map(|_| match kind {
            0 => 2.0,
            1 => (1 + self.below(4)) as f64,
            2 => 10.0 * self.unit(),
            _ => self.below(3) as f64,
        });
        (durations.collect(), speeds)
    }
}
