//! MaxPair (Wen et al., GPGPU 2018): each task runs once, alone or beside one other, with the most time saved.

use integer_blossom::max_weight_matching;

use super::forest::Column;
use super::speeds::Speeds;

/// The largest weight, of the pair that saves most. The algorithm computes with sums of a few weights.
const LARGEST: f64 = (1u64 << 52) as f64;

/// The intervals of the matching: a pair, and then what is left of the slower task.
pub(super) fn max_pair(durations: &[f64], speeds: &Speeds) -> Vec<(Column, f64)> {
    let tasks = durations.len();
    let saved = saved(durations, speeds);
    let most = saved.iter().copied().fold(0.0, f64::max);
    let weight = |saved: &f64| if most > 0.0 { (saved / most * LARGEST).round() as i64 } else { 0 };
    let weights: Vec<i64> = saved.iter().map(weight).collect();
    let mates = max_weight_matching(&weights, tasks);

    let mut intervals = Vec::new();
    for (i, mate) in mates.into_iter().enumerate() {
        let pair = mate.filter(|&j| i < j).and_then(|j| best_pair(durations, speeds, i, j));
        match (mate, pair) {
            (_, Some((_, of_pair))) => intervals.extend(of_pair),
            (None, _) if durations[i] > 0.0 => intervals.push((Column::alone(i), durations[i])),
            _ => {}
        }
    }
    intervals
}

/// What each pair saves, as a symmetric matrix.
pub(super) fn saved(durations: &[f64], speeds: &Speeds) -> Vec<f64> {
    let tasks = durations.len();
    let mut saved = vec![0.0; tasks * tasks];
    for i in 0..tasks {
        for j in i + 1..tasks {
            let of_pair = best_pair(durations, speeds, i, j).map_or(0.0, |(saved, _)| saved);
            saved[i * tasks + j] = of_pair;
            saved[j * tasks + i] = of_pair;
        }
    }
    saved
}

/// What a pair saves in the way that saves most, and its intervals; `None` if no way saves time.
fn best_pair(
    durations: &[f64],
    speeds: &Speeds,
    i: usize,
    j: usize,
) -> Option<(f64, Vec<(Column, f64)>)> {
    let in_way = |way| {
        let column = Column {
            tasks: [i, j],
            way,
            speeds: [speeds.speed(way, i, j), speeds.speed(way, j, i)],
        };
        let [first, second] = [durations[i] / column.speeds[0], durations[j] / column.speeds[1]];
        let together = first.min(second);
        let saved = together * column.gain();
        if saved.is_nan() || saved <= 0.0 {
            return None;
        }
        let mut intervals = vec![(column, together)];
        let (slower, speed) =
            if first <= second { (j, column.speeds[1]) } else { (i, column.speeds[0]) };
        let left = durations[slower] - together * speed;
        if left > 0.0 && first != second {
            intervals.push((Column::alone(slower), left));
        }
        Some((saved, intervals))
    };
    (0..speeds.ways().len()).filter_map(in_way).max_by(|a, b| a.0.total_cmp(&b.0))
}

#[cfg(test)]
mod tests {
    use super::super::kit::Random;
    use super::*;

    /// The shortest time in which tasks run in pairs or alone, over all matchings.
    fn shortest(durations: &[f64], speeds: &Speeds, left: &[usize]) -> f64 {
        let Some((&i, rest)) = left.split_first() else { return 0.0 };
        let alone = durations[i] + shortest(durations, speeds, rest);
        let pairs =
            (0..rest.len()).flat_map(|at| (0..speeds.ways().len()).map(move |way| (at, way)));
        pairs.fold(alone, |best, (at, way)| {
            let j = rest[at];
            let (a, b) = (speeds.speed(way, i, j), speeds.speed(way, j, i));
            // One after the other if they cannot run together.
            let (first, second) = (durations[i] / a, durations[j] / b);
            let pair = if a == 0.0 || b == 0.0 {
                durations[i] + durations[j]
            } else if first <= second {
                first + durations[j] - first * b
            } else {
                second + durations[i] - second * a
            };
            let others: Vec<usize> = rest.iter().copied().filter(|&other| other != j).collect();
            best.min(pair + shortest(durations, speeds, &others))
        })
    }

    #[test]
    fn no_matching_is_shorter() {
        let mut random = Random(21);
        for round in 0..400 {
            let (mut durations, speeds) = random.instance(round);
            if durations.len() > 8 {
                continue;
            }
            if round % 7 == 0 {
                durations.iter_mut().for_each(|of| *of *= 10f64.powi(random.below(9) as i32));
            }
            let all: Vec<usize> = (0..durations.len()).collect();
            let expected = shortest(&durations, &speeds, &all);
            let makespan: f64 =
                max_pair(&durations, &speeds).iter().map(|(_, seconds)| seconds).sum();
            assert!(
                (makespan - expected).abs() <= 1e-9 * expected,
                "{makespan}, {expected}, {durations:?}"
            );
        }
    }
}
