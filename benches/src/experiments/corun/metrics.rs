//! Turnaround, and its means over several jobs (Eyerman and Eeckhout, IEEE Micro 2008).

use std::time::Duration;

use crate::samples::{Samples, mean, ratio};

/// Times from the submission of each job to its end, and from the first submission to the last end.
#[derive(Default)]
pub struct Turnarounds {
    /// Turnarounds of each job.
    pub jobs: Vec<Samples>,
    /// Times of all jobs together.
    pub makespan: Samples,
}

impl Turnarounds {
    /// Adds the times of one run.
    pub fn push(&mut self, jobs: &[Duration], makespan: Duration) {
        self.jobs.resize_with(jobs.len(), Samples::default);
        self.jobs.iter_mut().zip(jobs).for_each(|(samples, &time)| samples.push(time));
        self.makespan.push(makespan);
    }

    /// The median of each job.
    pub fn p50(&self) -> Vec<Duration> {
        self.jobs.iter().map(Samples::p50).collect()
    }
}

/// Average normalized turnaround time (ANTT): the mean ratio of turnarounds together and alone. 1 is best.
pub fn antt(together: &[Duration], alone: &[Duration]) -> Option<f64> {
    let normalized: Vec<f64> =
        together.iter().zip(alone).map(|(&a, &b)| ratio(a, b)).collect::<Option<_>>()?;
    mean(&normalized)
}

/// System throughput (STP): the sum of the jobs' progress relative to alone. The number of jobs is best.
pub fn stp(together: &[Duration], alone: &[Duration]) -> Option<f64> {
    together.iter().zip(alone).map(|(&a, &b)| ratio(b, a)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn antt_and_stp_are_those_of_the_definition() {
        let [alone, together] = [[2, 4], [4, 16]].map(|times| times.map(Duration::from_millis));
        assert_eq!(antt(&together, &alone), Some(3.0));
        assert_eq!(stp(&together, &alone), Some(0.75));
        assert_eq!(antt(&together, &[Duration::ZERO; 2]), None);
        assert_eq!(antt(&[], &[]), None);
    }
}
