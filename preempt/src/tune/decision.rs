//! The choice of the amortizing factor, by the measurements.

use std::time::Duration;

use super::Tuned;

/// The largest factor that is tried. FLEP's (table 1) are up to 200.
const MOST: u32 = 1024;

/// The factors to try, in order: powers of two. A block never claims more than its share of the block-tasks,
/// `tasks_per_block`, so larger factors change nothing.
pub(super) fn factors(tasks_per_block: u32) -> impl Iterator<Item = u32> {
    let most = tasks_per_block.clamp(1, MOST);
    std::iter::successors(Some(1u32), |factor| factor.checked_mul(2))
        .take_while(move |&factor| factor <= most)
}

/// The first of `steps` whose overhead is below `limit`. If there is none, the one with the least overhead, and of
/// equal ones the first. `None` without steps. Steps after the chosen one are not asked for.
///
/// # Errors
///
/// The first error that is met on the way.
pub(super) fn choose<E>(
    steps: impl IntoIterator<Item = Result<Tuned, E>>,
    limit: f64,
) -> Result<Option<Tuned>, E> {
    let mut least: Option<Tuned> = None;
    for step in steps {
        let step = step?;
        if step.overhead < limit {
            return Ok(Some(step));
        }
        if least.is_none_or(|least| step.overhead < least.overhead) {
            least = Some(step);
        }
    }
    Ok(least)
}

/// The middle one; of an even number, the mean of the two in the middle; zero of none.
pub(super) fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    let middle = times.len() / 2;
    match times {
        [] => Duration::ZERO,
        times if times.len() % 2 == 1 => times[middle],
        times => times[middle - 1] + (times[middle] - times[middle - 1]) / 2,
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn step(amortize: u32, preemptible_us: u64) -> Result<Tuned, Infallible> {
        let (plain, preemptible) =
            (Duration::from_micros(100), Duration::from_micros(preemptible_us));
        Ok(Tuned::new(amortize, plain, preemptible))
    }

    fn chosen(preemptible_us: &[u64], limit: f64) -> u32 {
        let steps = preemptible_us.iter().enumerate().map(|(at, &us)| step(1 << at, us));
        choose(steps, limit).expect("no step fails").expect("there are steps").amortize
    }

    #[test]
    fn the_smallest_factor_below_the_limit_is_taken() {
        assert_eq!(chosen(&[130, 110, 103, 101], 0.04), 4);
        assert_eq!(chosen(&[130, 110, 103, 101], 0.02), 8);
        assert_eq!(chosen(&[130, 110, 103, 101], 0.5), 1);
        assert_eq!(chosen(&[99, 90], 0.04), 1, "a preemptible kernel may be the faster one");
    }

    #[test]
    fn the_limit_itself_is_too_much() {
        assert_eq!(chosen(&[150, 149], 0.5), 2);
    }

    #[test]
    fn where_no_factor_is_below_the_limit_the_one_with_the_least_overhead_is_taken() {
        assert_eq!(chosen(&[130, 120, 110, 125], 0.04), 4);
        assert_eq!(chosen(&[130, 110, 110, 110], 0.04), 2, "the first of equal ones");
        assert_eq!(chosen(&[130, 120], f64::NAN), 2, "nothing is below no number");
    }

    #[test]
    fn no_more_than_needed_is_measured() {
        let mut measured = 0;
        let steps = [130, 103, 101].into_iter().map(|us| {
            measured += 1;
            step(measured, us)
        });
        assert_eq!(choose(steps, 0.04).expect("no step fails"), step(2, 103).ok());
        assert_eq!(measured, 2);
    }

    #[test]
    fn a_step_that_fails_ends_it() {
        let steps = || [Ok(Tuned::new(1, Duration::from_micros(1), Duration::MAX)), Err("a fault")];
        assert_eq!(choose(steps(), 0.04), Err("a fault"));
        assert_eq!(choose([Err("never")].into_iter().skip(1), 0.04), Ok(None));
    }

    #[test]
    fn single_samples_that_are_far_off_do_not_count() {
        let us = |times: &[u64]| {
            let mut times: Vec<_> = times.iter().copied().map(Duration::from_micros).collect();
            median(&mut times).as_nanos()
        };
        assert_eq!(us(&[100, 9000, 101, 99, 100]), 100_000);
        assert_eq!(us(&[100, 1, 101, 99, 100]), 100_000);
        assert_eq!(us(&[9000, 100, 105, 1]), 102_500);
        assert_eq!((us(&[7]), us(&[])), (7000, 0));
    }

    #[test]
    fn a_time_of_zero_gives_a_number() {
        let overhead = |plain, preemptible| Tuned::new(1, plain, preemptible).overhead;
        assert_eq!(overhead(Duration::ZERO, Duration::ZERO), 0.0);
        assert!(overhead(Duration::ZERO, Duration::from_micros(1)).is_finite());
    }

    #[test]
    fn factors_are_powers_of_two_up_to_a_blocks_share() {
        let of = |tasks| factors(tasks).collect::<Vec<_>>();
        assert_eq!((of(0), of(1), of(2), of(3)), (vec![1], vec![1], vec![1, 2], vec![1, 2]));
        assert_eq!(of(4), [1, 2, 4]);
        assert_eq!(of(u32::MAX).last(), Some(&MOST));
    }
}
