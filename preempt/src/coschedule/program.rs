//! The linear program PLP (section IV-A of the paper) by column generation: how long which tasks run together.
//!
//! PLP has a row for each task and a column for each pair in each way of sharing. Few columns are ever used, so the
//! rest are priced: a column is worth adding if its tasks do more in a second, at the prices of the rows, than a
//! second costs. The prices are the values of the dual program, `max p·y` with `S[i][j] y[i] + S[j][i] y[j] <= 1` and
//! `y <= 1`. That is the program that is solved round by round, because microlp gives values and no duals: a column of
//! PLP is a row of it. PLP itself is solved once, with the columns that were found. The last columns are found by steps
//! of the simplex method, see [`Basis`].

use std::cmp::Ordering;

use microlp::{ComparisonOp, OptimizationDirection, Problem, Variable};
use rustc_hash::FxHashSet;

use super::forest::{self, Column, Elimination};
use super::speeds::Speeds;
use crate::error::{CoscheduleError, Error};

/// An optimal solution of PLP, at a vertex.
#[derive(Clone, Default, Debug)]
pub(super) struct Optimum {
    /// Columns that are used, and their seconds. They are a pseudo-forest.
    pub columns: Vec<(Column, f64)>,
    /// Seconds that no schedule is shorter than.
    pub bound: f64,
    /// The prices that prove it: a value for each task.
    #[cfg(test)]
    pub prices: Vec<f64>,
}

impl Optimum {
    /// Seconds.
    pub fn makespan(&self) -> f64 {
        self.columns.iter().map(|(_, seconds)| seconds).sum()
    }
}

/// Columns for each task to begin with and in each round. More are fewer rounds with larger programs; with three,
/// random graphs are connected.
const PARTNERS: usize = 3;

/// Pairs whose speeds add up to less above 1 are dropped: without them a schedule is longer by that part at most.
pub(super) const LEAST_GAIN: f64 = 1e-8;

/// What a column must gain to be added, as part of a second. It is below the tolerance of the solver.
const LEAST_REDUCED_COST: f64 = 1e-9;

/// Values below this part of a task's duration are rounding.
const ROUNDING: f64 = 1e-9;

/// Less of a column in a second of another is rounding.
const LEAST_PIVOT: f64 = 1e-11;

/// How much longer than the bound a solution may be, as a part. What is above it is an error.
const GAP: f64 = 1e-6;

/// Steps of the simplex method for each task, after which the solution is taken as it is.
const MOST_PIVOTS: usize = 20;

/// Durations are finite, and 0 or more; there is one for each task of the speeds.
pub(super) fn solve(durations: &[f64], speeds: &Speeds) -> Result<Optimum, Error> {
    let longest = durations.iter().copied().fold(0.0, f64::max);
    if longest == 0.0 {
        return Ok(Optimum::default());
    }
    // Parts of the longest task.
    let scaled: Vec<f64> = durations.iter().map(|seconds| seconds / longest).collect();
    let tasks: Vec<usize> = (0..scaled.len()).filter(|&task| scaled[task] > 0.0).collect();
    let mut columns = Columns::new(&tasks, speeds);
    columns.add(Column::gain);
    // Without prices, the columns that are known are a start.
    while let Ok(prices) = prices(&tasks, &scaled, &columns.found) {
        // A program takes longer than the steps for a few columns.
        if columns.add(|column| excess(column, &prices)) < tasks.len() {
            break;
        }
    }
    // Without a solution, each task alone is a start.
    let used = primal(&tasks, &scaled, &columns.found).unwrap_or_default();
    let mut basis = Basis::new(&scaled, &forest::to_vertex(durations.len(), &used));
    columns.pivot(&mut basis);

    // Prices at which no column is worth more than it costs prove the bound.
    let mut prices: Vec<f64> = basis.prices.iter().map(|price| price.clamp(0.0, 1.0)).collect();
    let excess = columns.excess(&prices);
    prices.iter_mut().for_each(|price| *price /= 1.0 + excess);
    let bound: f64 = scaled.iter().zip(&prices).map(|(seconds, price)| seconds * price).sum();
    let used = exact(&scaled, &basis.used(), bound)?;
    Ok(Optimum {
        columns: used.into_iter().map(|(column, seconds)| (column, seconds * longest)).collect(),
        bound: bound * longest,
        #[cfg(test)]
        prices,
    })
}

/// Independent columns with the seconds in which each task does its duration, if that is no longer than the bound.
pub(super) fn exact(
    durations: &[f64],
    columns: &[(Column, f64)],
    bound: f64,
) -> Result<Vec<(Column, f64)>, Error> {
    let mut used = Basis::new(durations, columns).used();
    used.retain(|(column, seconds)| {
        !column.is_surplus() && *seconds > ROUNDING * unit(column, durations)
    });
    let makespan: f64 = used.iter().map(|(_, seconds)| seconds).sum();
    let not_solved = |reason| Err(CoscheduleError::NotSolved { reason }.into());
    // Also where either is not a number.
    if !matches!(
        makespan.partial_cmp(&(bound * (1.0 + GAP))),
        Some(Ordering::Less | Ordering::Equal)
    ) {
        let longest = durations.iter().copied().fold(0.0, f64::max);
        let (makespan, bound) = (makespan / longest, bound / longest);
        return not_solved(format!(
            "{makespan} times the longest duration, and the bound is {bound}"
        ));
    }
    if !forest::is_pseudo_forest(durations.len(), used.iter().map(|(column, _)| column)) {
        return not_solved("the solution is not at a vertex".into());
    }
    Ok(used)
}

/// A vertex, as independent columns of which there are as many as tasks.
///
/// The solver's solution is right to 10⁻⁷ of the largest numbers, which is all of a short task. Its columns are
/// improved by steps of the simplex method whose equations are solved over the graph, so that each number is right to
/// a part of itself.
struct Basis<'a> {
    durations: &'a [f64],
    columns: Vec<Column>,
    /// Seconds of each column.
    values: Vec<f64>,
    /// Prices at which the columns are worth what they cost.
    prices: Vec<f64>,
}

impl<'a> Basis<'a> {
    /// Completes independent columns to a basis: tasks at the roots of trees do alone what they lack. Columns that would
    /// be used for less than no time are left out.
    fn new(durations: &'a [f64], used: &[(Column, f64)]) -> Basis<'a> {
        let mut columns: Vec<Column> = used.iter().map(|&(column, _)| column).collect();
        loop {
            let order = Elimination::new(durations.len(), &columns);
            let (values, missed) = order.solve(durations);
            let is_used =
                |(column, value): (&Column, &f64)| *value >= -ROUNDING * unit(column, durations);
            let kept: Vec<bool> = columns.iter().zip(&values).map(is_used).collect();
            if kept.iter().all(|&kept| kept) {
                let roots =
                    order.roots.iter().zip(missed).filter(|&(&task, _)| durations[task] > 0.0);
                let completed = roots.map(|(&task, missed)| {
                    if missed >= 0.0 { Column::alone(task) } else { Column::surplus(task) }
                });
                let completed: Vec<Column> = completed.collect();
                columns.extend(completed);
                let mut basis =
                    Basis { durations, columns, values: Vec::new(), prices: Vec::new() };
                basis.solve();
                return basis;
            }
            let mut kept = kept.into_iter();
            columns.retain(|_| kept.next().unwrap_or(true));
        }
    }

    fn solve(&mut self) {
        let order = Elimination::new(self.durations.len(), &self.columns);
        self.values = order.solve(self.durations).0;
        self.prices = order.prices(self.durations.len());
    }

    fn used(&self) -> Vec<(Column, f64)> {
        self.columns.iter().copied().zip(self.values.iter().copied()).collect()
    }

    /// Replaces the basis column that is used up first by `column`; returns whether a column is used up.
    fn enter(&mut self, column: Column) -> bool {
        let mut right = vec![0.0; self.durations.len()];
        column.entries().for_each(|(task, speed)| right[task] = speed);
        let (replaced, _) = Elimination::new(self.durations.len(), &self.columns).solve(&right);
        let seconds = |index: usize| self.values[index].max(0.0) / replaced[index];
        let candidates = (0..self.columns.len()).filter(|&index| replaced[index] > LEAST_PIVOT);
        // Of equal ones the largest part, which is the least uncertain.
        let first = candidates.min_by(|&a, &b| {
            seconds(a).total_cmp(&seconds(b)).then(replaced[b].total_cmp(&replaced[a]))
        });
        if let Some(first) = first {
            self.columns[first] = column;
            self.solve();
        }
        first.is_some()
    }
}

/// Columns of pairs that were found worth adding.
struct Columns<'a> {
    tasks: &'a [usize],
    speeds: &'a Speeds,
    found: Vec<Column>,
    known: FxHashSet<(usize, usize, usize)>,
}

/// A column for one of its tasks: how good it is, a number that orders equal ones, and the column.
type Candidate = (f64, u64, Column);

impl<'a> Columns<'a> {
    fn new(tasks: &'a [usize], speeds: &'a Speeds) -> Columns<'a> {
        Columns { tasks, speeds, found: Vec::new(), known: FxHashSet::default() }
    }

    /// All columns of pairs that gain.
    fn pairs(&self) -> impl Iterator<Item = Column> {
        let pairs = self
            .tasks
            .iter()
            .enumerate()
            .flat_map(|(at, &i)| self.tasks[at + 1..].iter().map(move |&j| (i, j)));
        let ways = self.speeds.ways().len();
        let columns = pairs.flat_map(move |(i, j)| {
            let speeds = move |way| [self.speeds.speed(way, i, j), self.speeds.speed(way, j, i)];
            (0..ways).map(move |way| Column { tasks: [i, j], way, speeds: speeds(way) })
        });
        columns.filter(|column| column.gain() > LEAST_GAIN)
    }

    /// Adds each task's best new columns of positive worth, and returns how many.
    fn add(&mut self, worth: impl Fn(&Column) -> f64) -> usize {
        let mut candidates: Vec<Vec<Candidate>> = vec![Vec::new(); self.speeds.tasks()];
        for column in self.pairs() {
            let worth = worth(&column);
            let [i, j] = column.tasks;
            if worth > 0.0 && !self.known.contains(&(i, j, column.way)) {
                let candidate = (worth, scattered(i, j), column);
                [i, j].into_iter().for_each(|task| offer(&mut candidates[task], candidate));
            }
        }
        let before = self.found.len();
        for (.., column) in candidates.into_iter().flatten() {
            if self.known.insert((column.tasks[0], column.tasks[1], column.way)) {
                self.found.push(column);
            }
        }
        self.found.len() - before
    }

    /// The column that shortens the schedule most if its pair runs for as long as it can; `None` if no column that was
    /// found does.
    fn best(&self, basis: &Basis<'_>) -> Option<Column> {
        // Surplus never is: a price below 0 has one above 1 on the other side of a pair.
        let alone = self.tasks.iter().map(|&task| Column::alone(task));
        let worth = |column: Column| {
            let excess = excess(&column, &basis.prices);
            (excess > 0.0).then(|| (excess * unit(&column, basis.durations), column))
        };
        let mut better: Vec<(f64, Column)> =
            self.found.iter().copied().chain(alone).filter_map(worth).collect();
        better.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        // Rounding can make a column of the basis itself look worth more.
        better.into_iter().map(|(_, column)| column).find(|of| !basis.columns.contains(of))
    }

    /// Steps of the simplex method, to an optimum.
    fn pivot(&mut self, basis: &mut Basis<'_>) {
        let mut steps = MOST_PIVOTS * self.tasks.len();
        loop {
            // To look at all pairs takes longer than a step.
            while steps > 0 && self.best(basis).is_some_and(|column| basis.enter(column)) {
                steps -= 1;
            }
            if steps == 0 || self.add(|column| excess(column, &basis.prices)) == 0 {
                break;
            }
        }
    }

    /// By how much the best column is worth more than a second, at prices from 0 to 1.
    fn excess(&self, prices: &[f64]) -> f64 {
        // Pairs that are left out gain less.
        self.pairs().map(|column| column.value(prices) - 1.0).fold(LEAST_GAIN, f64::max)
    }
}

/// What a second of a column is worth more than it costs, at these prices; above 0 if it is worth adding.
fn excess(column: &Column, prices: &[f64]) -> f64 {
    column.value(prices) - column.cost() - LEAST_REDUCED_COST
}

/// Keeps the best candidates, the best one first.
fn offer(kept: &mut Vec<Candidate>, candidate: Candidate) {
    let is_better = |a: &Candidate, b: &Candidate| (a.0, a.1) > (b.0, b.1);
    if kept.len() == PARTNERS && !is_better(&candidate, &kept[PARTNERS - 1]) {
        return;
    }
    let at = kept.iter().position(|other| is_better(&candidate, other)).unwrap_or(kept.len());
    kept.insert(at, candidate);
    kept.truncate(PARTNERS);
}

/// Orders equal pairs as if at random. In their own order, tasks that are all alike would all get the first tasks as
/// partners, and each round only a few of the others.
fn scattered(i: usize, j: usize) -> u64 {
    // SplitMix64 of both numbers.
    let mut bits = ((i as u64) << 32 ^ j as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ bits >> 31
}

/// The values of the dual program over these columns, for all tasks.
fn prices(tasks: &[usize], durations: &[f64], columns: &[Column]) -> Result<Vec<f64>, Error> {
    let mut program = Problem::new(OptimizationDirection::Maximize);
    let mut variables = vec![None; durations.len()];
    // A task that runs alone gains nothing: no price is above 1.
    for &task in tasks {
        variables[task] = Some(program.add_var(durations[task], (0.0, 1.0)));
    }
    for column in columns {
        let terms = column.entries().filter_map(|(task, speed)| Some((variables[task]?, speed)));
        program.add_constraint(terms.collect::<Vec<_>>(), ComparisonOp::Le, 1.0);
    }
    let values = solution(&program)?;
    Ok(variables.iter().map(|of| of.map_or(0.0, |of| values(of).clamp(0.0, 1.0))).collect())
}

/// A solution of PLP over these columns and those of tasks alone, with surplus.
///
/// Rows are in parts of the tasks' durations, and columns in parts of the time after which one of their tasks is done.
/// So all values are between 0 and 1 whatever the durations are.
fn primal(
    tasks: &[usize],
    durations: &[f64],
    columns: &[Column],
) -> Result<Vec<(Column, f64)>, Error> {
    let mut program = Problem::new(OptimizationDirection::Minimize);
    let mut rows: Vec<Vec<(Variable, f64)>> = vec![Vec::new(); durations.len()];
    let alone = tasks.iter().map(|&task| Column::alone(task));
    let columns: Vec<Column> = alone.chain(columns.iter().copied()).collect();
    let mut variables = Vec::new();
    for column in &columns {
        let unit = unit(column, durations);
        let variable = program.add_var(unit, (0.0, f64::INFINITY));
        variables.push((variable, unit));
        for (task, speed) in column.entries() {
            let part = speed * unit / durations[task];
            // Less is within the solver's tolerance; `exact` counts it.
            if part > ROUNDING {
                rows[task].push((variable, part));
            }
        }
    }
    for &task in tasks {
        program.add_constraint(&rows[task], ComparisonOp::Ge, 1.0);
    }
    let values = solution(&program)?;
    let mut used = Vec::new();
    let mut done = vec![0.0; durations.len()];
    for (column, (variable, unit)) in columns.into_iter().zip(variables) {
        let value = values(variable);
        if value > ROUNDING {
            used.push((column, value * unit));
            column.entries().for_each(|(task, speed)| done[task] += speed * value * unit);
        }
    }
    for &task in tasks {
        let surplus = done[task] - durations[task];
        if surplus > 1e-7 * durations[task] {
            used.push((Column::surplus(task), surplus));
        }
    }
    Ok(used)
}

/// Seconds after which the first of the column's tasks is done.
pub(super) fn unit(column: &Column, durations: &[f64]) -> f64 {
    let seconds = column.entries().map(|(task, speed)| durations[task] / speed.abs());
    seconds.fold(f64::INFINITY, f64::min)
}

fn solution(program: &Problem) -> Result<impl Fn(Variable) -> f64, Error> {
    let not_solved = |reason| CoscheduleError::NotSolved { reason };
    let outcome = program.solve().map_err(|error| not_solved(error.to_string()))?;
    let none = || not_solved("the solver stopped without a solution".to_owned());
    let solution = outcome.into_solution().map_err(|_| none())?;
    Ok(move |variable| solution.var_value(variable))
}

#[cfg(test)]
pub(super) mod tests;
