//! The assignment problem, for a bound of MaxPair that takes less time than a matching.

/// Whether a matching could save more than `least`, for a symmetric matrix of what pairs save.
///
/// No matching saves more than half of the best assignment of a companion to each task, whose companion need not be that
/// task: matchings are assignments that count each pair twice. The assignment is solved by shortest augmenting paths.
/// Their prices are a bound from the first path on, so they end when the bound is low enough.
pub(super) fn could_save(least: f64, tasks: usize, saved: &[f64]) -> bool {
    let row = |at: usize| &saved[at * tasks..][..tasks];
    // Prices of tasks and of companions: together at least what the pair saves.
    let mut of_task: Vec<f64> =
        (0..tasks).map(|i| row(i).iter().copied().fold(0.0, f64::max)).collect();
    let mut of_companion = vec![0.0; tasks];
    let mut bound = of_task.iter().sum::<f64>() / 2.0;
    let mut task_of: Vec<Option<usize>> = vec![None; tasks];
    let mut companion_of: Vec<Option<usize>> = vec![None; tasks];
    for start in 0..tasks {
        if bound <= least {
            return false;
        }
        // For each companion, how far it is from `start`, and the task before it on the shortest path.
        let mut distance = vec![f64::INFINITY; tasks];
        let mut before = vec![start; tasks];
        let mut left: Vec<usize> = (0..tasks).collect();
        let mut reached: Vec<usize> = Vec::new();
        let (mut task, mut length) = (start, 0.0);
        let end = loop {
            let saved = row(task);
            let mut nearest = 0;
            for (at, &companion) in left.iter().enumerate() {
                let slack = of_task[task] + of_companion[companion] - saved[companion];
                if length + slack < distance[companion] {
                    distance[companion] = length + slack;
                    before[companion] = task;
                }
                if distance[companion] < distance[left[nearest]] {
                    nearest = at;
                }
            }
            let companion = left.swap_remove(nearest);
            length = distance[companion];
            let Some(other) = task_of[companion] else { break companion };
            reached.push(companion);
            task = other;
        };
        of_task[start] -= length;
        bound -= length / 2.0;
        for &companion in &reached {
            let by = length - distance[companion];
            of_companion[companion] += by;
            if let Some(task) = task_of[companion] {
                of_task[task] -= by;
            }
        }
        // Each task on the path leaves its companion to the next one.
        let mut free = Some(end);
        while let Some(companion) = free {
            let task = before[companion];
            task_of[companion] = Some(task);
            free = companion_of[task].replace(companion);
        }
    }
    bound > least
}

#[cfg(test)]
mod tests {
    use super::super::kit::Random;
    use super::*;

    /// The best assignment, over all of them.
    fn best(tasks: usize, saved: &[f64], task: usize, is_taken: &mut [bool]) -> f64 {
        if task == tasks {
            return 0.0;
        }
        let mut most = f64::NEG_INFINITY;
        for companion in 0..tasks {
            if !is_taken[companion] {
                is_taken[companion] = true;
                let rest = best(tasks, saved, task + 1, is_taken);
                most = most.max(saved[task * tasks + companion] + rest);
                is_taken[companion] = false;
            }
        }
        most
    }

    #[test]
    fn the_bound_is_half_of_the_best_assignment() {
        let mut random = Random(91);
        for round in 0..400 {
            let tasks = random.below(8);
            let mut saved = vec![0.0; tasks * tasks];
            for i in 0..tasks {
                for j in 0..i {
                    let value = match round % 3 {
                        0 => random.unit(),
                        1 => random.below(4) as f64,
                        _ => (1.0 - 2.0 * random.unit()).max(0.0),
                    };
                    saved[i * tasks + j] = value;
                    saved[j * tasks + i] = value;
                }
            }
            let expected = best(tasks, &saved, 0, &mut vec![false; tasks]) / 2.0;
            let could_save = |least: f64| could_save(least, tasks, &saved);
            assert!(could_save(expected - 1e-9), "{expected}: {saved:?}");
            assert!(!could_save(expected + 1e-9), "{expected}: {saved:?}");
        }
    }
}
