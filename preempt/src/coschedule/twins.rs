//! Tasks that differ in nothing but their durations, such as those of one kernel, and optimal solutions with few
//! preemptions of them.
//!
//! To the linear program only the sum of what such a class does matters. Its optimal solutions are many, and a vertex
//! can give each task places of its own. So the program is solved for classes; it is PLP again (see [`Program`]). The
//! caterpillars of that solution are the places of each class, and its tasks run in them one after the other. A class
//! in k places has at most k - 1 preemptions, and one more if it runs beside itself, however many tasks it has.

use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};

use super::forest::{self, Column};
use super::plan::{ROUNDING, cut_overruns, in_caterpillars, preemptions_of};
use super::program::{self, LEAST_GAIN, Optimum};
use super::speeds::Speeds;
use crate::error::Error;

/// Programs of classes that are solved, each with smaller classes than the one before.
const MOST_ROUNDS: usize = 4;

/// An optimal solution: with classes, or without if that has fewer preemptions.
pub(super) fn solve(durations: &[f64], speeds: &Speeds) -> Result<Optimum, Error> {
    let tasks = durations.len();
    let Some(of_classes) = with_classes(durations, speeds) else {
        return program::solve(durations, speeds);
    };
    let count = |optimum: &Optimum| -> Result<usize, Error> {
        Ok(preemptions_of(tasks, &optimum.columns)?.iter().sum())
    };
    let is_as_short_as = |seconds: f64| of_classes.makespan() <= seconds * (1.0 + ROUNDING);
    let few = count(&of_classes)?;
    if few == 0 && is_as_short_as(of_classes.bound) {
        return Ok(of_classes);
    }
    let direct = program::solve(durations, speeds)?;
    let is_better = few < count(&direct)? && is_as_short_as(direct.makespan());
    Ok(if is_better { of_classes } else { direct })
}

/// `None` if no two tasks are equal, or if the tasks of a class cannot run in its places.
fn with_classes(durations: &[f64], speeds: &Speeds) -> Option<Optimum> {
    let mut classes = classes(durations, speeds);
    for _ in 0..MOST_ROUNDS {
        if classes.iter().all(|class| class.len() == 1) {
            return None;
        }
        let program = Program::new(durations, speeds, &classes)?;
        let optimum = program::solve(&program.durations, &program.speeds).ok()?;
        let mut columns = in_caterpillars(classes.len(), &optimum.columns).ok()?;
        cut_overruns(&program.durations, &mut columns);
        match program.fill(durations, &columns) {
            Ok(columns) => {
                let vertex = forest::to_vertex(durations.len(), &columns);
                return Some(Optimum {
                    columns: program::exact(durations, &vertex, optimum.bound).ok()?,
                    bound: optimum.bound,
                    #[cfg(test)]
                    prices: program.prices_of_tasks(durations.len(), &optimum.prices),
                });
            }
            Err(class) => part(&mut classes, class, durations),
        }
    }
    None
}

/// Tasks with work to do, those that are equal together, the shortest first.
fn classes(durations: &[f64], speeds: &Speeds) -> Vec<Vec<usize>> {
    let mut tasks: Vec<usize> =
        (0..durations.len()).filter(|&task| durations[task] > 0.0).collect();
    tasks.sort_by(|&a, &b| durations[a].total_cmp(&durations[b]));
    let mut classes: Vec<Vec<usize>> = Vec::new();
    let mut with_signature = FxHashMap::<u64, Vec<usize>>::default();
    for &task in &tasks {
        let known = with_signature.entry(signature(&tasks, speeds, task)).or_default();
        let is_of = |&&class: &&usize| are_twins(&tasks, speeds, classes[class][0], task);
        if let Some(&class) = known.iter().find(is_of) {
            classes[class].push(task);
        } else {
            known.push(classes.len());
            classes.push(vec![task]);
        }
    }
    classes
}

/// The speeds of a task and of another one beside it, in each way.
fn beside(speeds: &Speeds, task: usize, other: usize) -> impl Iterator<Item = [f64; 2]> {
    let ways = 0..speeds.ways().len();
    ways.map(move |way| [speeds.speed(way, task, other), speeds.speed(way, other, task)])
}

/// A number that is the same for twins if no two ways of a pair have the same speeds.
fn signature(tasks: &[usize], speeds: &Speeds, task: usize) -> u64 {
    let hash = |speeds: [f64; 2]| {
        let mut hasher = FxHasher::default();
        // With 0 added, -0 is 0.
        speeds.map(|speed| (speed + 0.0).to_bits()).hash(&mut hasher);
        hasher.finish()
    };
    let others = tasks.iter().filter(|&&other| other != task);
    others.flat_map(|&other| beside(speeds, task, other)).map(hash).fold(0, u64::wrapping_add)
}

/// Whether two tasks have the same speeds beside each third task, and beside each other, each in some way.
///
/// The number of the way is no part of this. Where tasks have unequal parts of the GPU, the one with the smaller
/// number has the first part, so that two tasks of a kernel can have the same speeds in two ways.
///
/// Tasks that are equal to a third one are equal.
fn are_twins(tasks: &[usize], speeds: &Speeds, i: usize, j: usize) -> bool {
    let are_same = |[a, b]: [usize; 2], [c, d]: [usize; 2]| {
        let is_in = |[a, b]: [usize; 2], [c, d]: [usize; 2]| {
            beside(speeds, a, b).all(|of| beside(speeds, c, d).any(|other| of == other))
        };
        is_in([a, b], [c, d]) && is_in([c, d], [a, b])
    };
    let mut others = tasks.iter().filter(|&&other| other != i && other != j);
    are_same([i, j], [j, i]) && others.all(|&other| are_same([i, other], [j, other]))
}

/// Moves the longest task of a class to a class of its own, because the other tasks cannot fill the time beside it. So it
/// does each next task that is longer than all shorter tasks together.
fn part(classes: &mut Vec<Vec<usize>>, class: usize, durations: &[f64]) {
    while let Some(longest) = classes[class].pop() {
        classes.push(vec![longest]);
        let Some((&next, shorter)) = classes[class].split_last() else { return };
        let seconds: f64 = shorter.iter().map(|&task| durations[task]).sum();
        if shorter.is_empty() || durations[next] <= seconds {
            return;
        }
    }
}

/// PLP for classes.
///
/// A class alone is one of its tasks, or two of them beside each other if that is faster. Its progress is in parts of
/// what it does alone in a second, so that its speed alone is 1 again. Its other speeds are not above that, because what
/// it does alone in a second is at least 1.
struct Program<'a> {
    of_tasks: &'a Speeds,
    classes: &'a [Vec<usize>],
    /// For each class, the speeds of two of its tasks beside each other, if that is faster than one alone.
    twice: Vec<Option<[f64; 2]>>,
    durations: Vec<f64>,
    speeds: Speeds,
}

/// A place for the tasks of a class, one at a time.
struct Lane {
    seconds: f64,
    /// Of each task in it.
    speed: f64,
    /// Tasks, and the seconds for which each of them runs.
    pieces: Vec<(usize, f64)>,
}

impl Lane {
    fn new(seconds: f64, speed: f64) -> Lane {
        Lane { seconds, speed, pieces: Vec::new() }
    }
}

impl<'a> Program<'a> {
    /// `None` if there is no way of sharing.
    fn new(
        durations: &[f64],
        of_tasks: &'a Speeds,
        classes: &'a [Vec<usize>],
    ) -> Option<Program<'a>> {
        let twice = |class: &Vec<usize>| {
            let [i, j] = [*class.first()?, *class.get(1)?];
            let fastest =
                beside(of_tasks, i, j).max_by(|[a, b], [c, d]| (a + b).total_cmp(&(c + d)));
            fastest.filter(|[a, b]| a + b - 1.0 > LEAST_GAIN)
        };
        let twice: Vec<Option<[f64; 2]>> = classes.iter().map(twice).collect();
        let alone = |class: usize| twice[class].map_or(1.0, |[a, b]| a + b);
        let work = |class: usize| {
            classes[class].iter().map(|&task| durations[task]).sum::<f64>() / alone(class)
        };
        let speeds = Speeds::in_ways(of_tasks.ways(), classes.len(), |way, i, j| {
            of_tasks.speed(way, classes[i][0], classes[j][0]) / alone(i)
        });
        let durations = (0..classes.len()).map(work).collect();
        Some(Program { of_tasks, classes, speeds: speeds.ok()?, twice, durations })
    }

    /// The prices of tasks that prove the bound, from those of classes.
    #[cfg(test)]
    fn prices_of_tasks(&self, tasks: usize, of_classes: &[f64]) -> Vec<f64> {
        let mut prices = vec![0.0; tasks];
        for ((class, twice), price) in self.classes.iter().zip(&self.twice).zip(of_classes) {
            let alone = twice.map_or(1.0, |[a, b]| a + b);
            class.iter().for_each(|&task| prices[task] = price / alone);
        }
        prices
    }

    /// Columns of tasks for columns of classes, in the order of a schedule. An error is a class that has a task beside
    /// itself.
    fn fill(
        &self,
        durations: &[f64],
        columns: &[(Column, f64)],
    ) -> Result<Vec<(Column, f64)>, usize> {
        let mut lanes: Vec<Vec<Lane>> = columns.iter().map(|of| self.lanes(of)).collect();
        for class in 0..self.classes.len() {
            self.fill_class(class, durations, columns, &mut lanes);
        }
        let mut filled = Vec::new();
        for (lanes, (column, _)) in lanes.iter().zip(columns) {
            let mut rest: Vec<_> =
                lanes.iter().map(|lane| lane.pieces.iter().copied().peekable()).collect();
            if let [first, second] = &mut *rest {
                while let (Some((i, of_first)), Some((j, of_second))) =
                    (first.peek_mut(), second.peek_mut())
                {
                    let seconds = of_first.min(*of_second);
                    let pair = self.pair([*i, *j], [lanes[0].speed, lanes[1].speed]);
                    filled.push((pair.ok_or(column.tasks[0])?, seconds));
                    *of_first -= seconds;
                    *of_second -= seconds;
                    let are_done = [*of_first <= 0.0, *of_second <= 0.0];
                    if are_done[0] {
                        first.next();
                    }
                    if are_done[1] {
                        second.next();
                    }
                }
            }
            // Without a companion, or what rounding leaves.
            for (lane, rest) in lanes.iter().zip(rest) {
                filled.extend(rest.map(|(task, of)| (Column::alone(task), of * lane.speed)));
            }
        }
        Ok(merged(durations, filled))
    }

    fn lanes(&self, &(column, seconds): &(Column, f64)) -> Vec<Lane> {
        let [i, j] = column.tasks;
        if !column.is_loop() {
            let speeds = beside(self.of_tasks, self.classes[i][0], self.classes[j][0]);
            return speeds
                .skip(column.way)
                .take(1)
                .flatten()
                .map(|speed| Lane::new(seconds, speed))
                .collect();
        }
        let speeds: &[f64] = self.twice[i].as_ref().map_or(&[1.0], |speeds| speeds);
        speeds.iter().map(|&speed| Lane::new(seconds, speed)).collect()
    }

    /// Runs the tasks of a class in its lanes, one after the other, the longest last.
    fn fill_class(
        &self,
        class: usize,
        durations: &[f64],
        columns: &[(Column, f64)],
        lanes: &mut [Vec<Lane>],
    ) {
        // Lanes are named by their column and their number there. A span is lanes without a preemption between them.
        let mut spans: Vec<Vec<(usize, usize)>> = Vec::new();
        // The second lanes of the class beside itself, which are at the same time as the first ones.
        let mut second = Vec::new();
        for (at, (column, _)) in columns.iter().enumerate() {
            let Some(lane) = column.tasks.iter().position(|&other| other == class) else {
                continue;
            };
            match spans.last_mut() {
                Some(span) if span.last().is_some_and(|last| last.0 + 1 == at) => {
                    span.push((at, lane));
                }
                _ => spans.push(vec![(at, lane)]),
            }
            if column.is_loop() && lanes[at].len() == 2 {
                second.push((at, 1));
            }
        }
        let mut is_reversed = false;
        if let Some(&(beside_itself, _)) = second.first() {
            // A task that goes on in the next lane does so at another time if other spans are between the two lanes,
            // or else if it goes on at the other end of the span, the longer one.
            let with_both = |span: &Vec<_>| span.contains(&(beside_itself, 0));
            spans.sort_by_key(with_both);
            let span = spans.last().into_iter().flatten();
            let seconds = |is_before: bool| -> f64 {
                let part = span.clone().filter(|(at, _)| (*at < beside_itself) == is_before);
                part.map(|&(at, _)| columns[at].1).sum()
            };
            is_reversed = seconds(false) - columns[beside_itself].1 > seconds(true);
            spans.insert(0, second);
        }
        if is_reversed {
            spans.iter_mut().for_each(|span| span.reverse());
        }
        let mut tasks = self.classes[class].iter().map(|&task| (task, durations[task]));
        let mut task = tasks.next();
        for (at, lane) in spans.into_iter().flatten() {
            let lane = &mut lanes[at][lane];
            let mut room = lane.seconds;
            while let Some((number, left)) = &mut task {
                let seconds = *left / lane.speed;
                if seconds - room > ROUNDING * durations[*number] / lane.speed {
                    lane.pieces.push((*number, room));
                    *left -= room * lane.speed;
                    break;
                }
                lane.pieces.push((*number, seconds));
                room -= seconds;
                task = tasks.next();
                if room <= 0.0 {
                    break;
                }
            }
            if is_reversed {
                lane.pieces.reverse();
            }
        }
    }

    /// The column of two tasks at these speeds; `None` if they are one.
    fn pair(&self, [i, j]: [usize; 2], speeds: [f64; 2]) -> Option<Column> {
        if i == j {
            return None;
        }
        let way = beside(self.of_tasks, i, j).position(|of| of == speeds)?;
        let (tasks, speeds) =
            if i < j { ([i, j], speeds) } else { ([j, i], [speeds[1], speeds[0]]) };
        Some(Column { tasks, way, speeds })
    }
}

/// Each column once, without those that are rounding.
fn merged(durations: &[f64], columns: Vec<(Column, f64)>) -> Vec<(Column, f64)> {
    let mut merged: Vec<(Column, f64)> = Vec::new();
    let mut known = FxHashMap::<_, usize>::default();
    for (column, seconds) in columns {
        match known.entry((column.tasks, column.way)) {
            Entry::Occupied(at) => merged[*at.get()].1 += seconds,
            Entry::Vacant(at) => {
                at.insert(merged.len());
                merged.push((column, seconds));
            }
        }
    }
    merged.retain(|(column, seconds)| *seconds > ROUNDING * program::unit(column, durations));
    merged
}

#[cfg(test)]
mod tests;
