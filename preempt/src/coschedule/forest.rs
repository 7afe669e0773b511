//! Columns of the linear program as a graph, whose components have at most one cycle each (theorem 1).
//!
//! A column says how much progress its tasks make in a second: it has an entry for each of its one or two tasks.
//! Columns are independent if and only if each component of their graph has at most one cycle, and the speeds around
//! that cycle do not cancel out. Loops are cycles: tasks that run alone, and what a task could do beyond its duration.
//! So a vertex of the program is a pseudo-forest, and a system of equations over it is solved from its leaves.
//!
//! The paper says that any optimal solution is a pseudo-forest. That holds for vertices only: of four equal tasks at
//! speed 1 beside each other, all six pairs for a third of the time each are optimal. [`to_vertex`] moves such a
//! solution to a vertex with the same makespan or a shorter one.

/// Seconds in which the same tasks run, in the same way.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Column {
    /// The tasks; the same one twice if it is alone.
    pub tasks: [usize; 2],
    /// The way of sharing; 0 if the task is alone.
    pub way: usize,
    /// Progress of each task, in seconds alone for each second.
    pub speeds: [f64; 2],
}

impl Column {
    pub fn alone(task: usize) -> Column {
        Column { tasks: [task, task], way: 0, speeds: [1.0, 0.0] }
    }

    /// What a task could do beyond its duration. It takes no time.
    pub fn surplus(task: usize) -> Column {
        Column { tasks: [task, task], way: 0, speeds: [-1.0, 0.0] }
    }

    /// What its tasks do together in a second beyond a second alone.
    pub fn gain(&self) -> f64 {
        self.speeds[0] + self.speeds[1] - 1.0
    }

    /// What its tasks do in a second, at these prices of their progress.
    pub fn value(&self, prices: &[f64]) -> f64 {
        self.entries().map(|(task, speed)| speed * prices[task]).sum()
    }

    pub fn is_loop(&self) -> bool {
        self.tasks[0] == self.tasks[1]
    }

    pub fn is_surplus(&self) -> bool {
        self.speeds[0] < 0.0
    }

    /// Seconds that a second of it takes.
    pub fn cost(&self) -> f64 {
        if self.is_surplus() { 0.0 } else { 1.0 }
    }

    /// The entry of one of its tasks.
    fn speed_of(&self, task: usize) -> f64 {
        if self.tasks[0] == task { self.speeds[0] } else { self.speeds[1] }
    }

    /// The entry of the other task of a pair.
    pub fn beside(&self, task: usize) -> Option<(usize, f64)> {
        self.entries().find(|&(other, _)| other != task)
    }

    /// The entries of the column, with the tasks of their rows.
    pub fn entries(&self) -> impl Iterator<Item = (usize, f64)> + use<> {
        let Column { tasks: [i, j], speeds: [a, b], .. } = *self;
        [(i, a), (j, b)].into_iter().take(if i == j { 1 } else { 2 })
    }
}

/// Speeds around a cycle that differ by less from cancelling out are taken to do so: a unit of rounding, with room for
/// cycles of some thousand tasks.
const CANCELS: f64 = 1e-10;

/// Which tasks are connected, and the one combination of rows of each tree that is 0 in all of its columns.
struct Components {
    parent: Vec<usize>,
    /// The factor of the row, as part of the parent's.
    factor: Vec<f64>,
    /// Whether a cycle is there, so that no such combination is.
    has_cycle: Vec<bool>,
}

impl Components {
    fn new(tasks: usize) -> Components {
        let (factor, has_cycle) = (vec![1.0; tasks], vec![false; tasks]);
        Components { parent: (0..tasks).collect(), factor, has_cycle }
    }

    /// The representative, and the factor of the task's row as part of the representative's.
    fn find(&mut self, task: usize) -> (usize, f64) {
        let mut path = Vec::new();
        let mut at = task;
        while self.parent[at] != at {
            path.push(at);
            at = self.parent[at];
        }
        let mut factor = 1.0;
        for &above in path.iter().rev() {
            factor *= self.factor[above];
            (self.parent[above], self.factor[above]) = (at, factor);
        }
        (at, factor)
    }

    /// Adds a column if it is independent of those added before.
    fn add(&mut self, column: &Column) -> bool {
        let Column { tasks: [i, j], speeds: [a, b], .. } = *column;
        let (top, factor) = self.find(i);
        let (a, b, other) = if i == j {
            (a, 0.0, top)
        } else {
            let (other, other_factor) = self.find(j);
            (factor * a, other_factor * b, other)
        };
        if top == other {
            let cancels = (a + b).abs() <= CANCELS * a.abs().max(b.abs());
            return !cancels && !std::mem::replace(&mut self.has_cycle[top], true);
        }
        if self.has_cycle[top] && self.has_cycle[other] {
            return false;
        }
        self.parent[other] = top;
        self.factor[other] = -a / b;
        self.has_cycle[top] |= self.has_cycle[other];
        true
    }
}

/// Whether each component has at most one cycle, loops and parallel columns included.
pub(super) fn is_pseudo_forest<'a>(
    tasks: usize,
    columns: impl IntoIterator<Item = &'a Column>,
) -> bool {
    let mut components = Components::new(tasks);
    columns.into_iter().all(|column| {
        let [i, j] = column.tasks;
        let (top, other) = (components.find(i).0, components.find(j).0);
        let cycles = [top, other].map(|at| components.has_cycle[at]);
        components.parent[other] = top;
        components.has_cycle[top] = cycles[0] || cycles[1] || top == other;
        // Two components with a cycle each, or a second cycle in a component.
        !(cycles[0] && cycles[1])
    })
}

/// The columns of each component.
pub(super) fn components(
    tasks: usize,
    columns: &[(Column, f64)],
) -> impl Iterator<Item = Vec<(Column, f64)>> + use<> {
    let mut components = Components::new(tasks);
    for (column, _) in columns {
        let [top, other] = column.tasks.map(|task| components.find(task).0);
        components.parent[other] = top;
    }
    let mut of_top = vec![Vec::new(); tasks];
    for &(column, seconds) in columns {
        of_top[components.find(column.tasks[0]).0].push((column, seconds));
    }
    of_top.into_iter().filter(|component| !component.is_empty())
}

/// How often the equations are solved again for what rounding left over.
const REFINEMENTS: usize = 2;

/// The order in which equations over independent columns are solved: leaves first, cycles last.
pub(super) struct Elimination<'a> {
    columns: &'a [Column],
    /// Tasks with one column that is left, each with that column; the other task of the column is looked at later.
    leaves: Vec<(usize, usize)>,
    /// Tasks without a column that is left, one for each tree.
    pub roots: Vec<usize>,
    /// Cycles: each task with the column to the next one.
    cycles: Vec<Vec<(usize, usize)>>,
}

impl<'a> Elimination<'a> {
    pub fn new(tasks: usize, columns: &'a [Column]) -> Elimination<'a> {
        let mut at = vec![Vec::new(); tasks];
        for (index, column) in columns.iter().enumerate() {
            column.entries().for_each(|(task, _)| at[task].push(index));
        }
        let mut left: Vec<usize> = at.iter().map(Vec::len).collect();
        let mut is_taken = vec![false; columns.len()];
        let mut order =
            Elimination { columns, leaves: Vec::new(), roots: Vec::new(), cycles: Vec::new() };
        let mut ends: Vec<usize> = (0..tasks).filter(|&task| left[task] <= 1).collect();
        while let Some(task) = ends.pop() {
            let Some(&index) = at[task].iter().find(|&&index| !is_taken[index]) else {
                order.roots.push(task);
                continue;
            };
            is_taken[index] = true;
            order.leaves.push((task, index));
            if let Some((other, _)) = columns[index].beside(task) {
                left[other] -= 1;
                if left[other] == 1 {
                    ends.push(other);
                }
            }
        }
        for start in 0..columns.len() {
            if is_taken[start] {
                continue;
            }
            let mut cycle = Vec::new();
            let mut task = columns[start].tasks[0];
            let mut next = Some(start);
            while let Some(index) = next {
                is_taken[index] = true;
                cycle.push((task, index));
                task = columns[index].beside(task).map_or(task, |(other, _)| other);
                next = at[task].iter().copied().find(|&index| !is_taken[index]);
            }
            order.cycles.push(cycle);
        }
        order
    }

    /// The values with which the columns add up to the right sides, and what the right sides of the roots are missed by.
    pub fn solve(&self, right: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let (mut values, mut missed) = self.solve_once(right.to_vec());
        // Around a cycle of unequal speeds rounding adds up; a cycle solved again for what is left over does not.
        for _ in 0..if self.cycles.is_empty() { 0 } else { REFINEMENTS } {
            let mut left = right.to_vec();
            for (column, value) in self.columns.iter().zip(&values) {
                column.entries().for_each(|(task, speed)| left[task] -= speed * value);
            }
            let (more, at_roots) = self.solve_once(left);
            values.iter_mut().zip(more).for_each(|(value, more)| *value += more);
            missed = at_roots;
        }
        (values, missed)
    }

    fn solve_once(&self, mut right: Vec<f64>) -> (Vec<f64>, Vec<f64>) {
        let mut values = vec![0.0; self.columns.len()];
        for &(task, index) in &self.leaves {
            let column = &self.columns[index];
            let value = right[task] / column.speed_of(task);
            values[index] = value;
            if let Some((other, speed)) = column.beside(task) {
                right[other] -= speed * value;
            }
        }
        for cycle in &self.cycles {
            // Each value is `constant + slope * first value`, by the equation of the task before it.
            let (mut constant, mut slope) = (0.0, 1.0);
            let mut lines = vec![(constant, slope)];
            for pair in cycle.windows(2) {
                let [(_, before), (task, index)] = [pair[0], pair[1]];
                let (speed, own) =
                    (self.columns[before].speed_of(task), self.columns[index].speed_of(task));
                (constant, slope) = ((right[task] - speed * constant) / own, -speed * slope / own);
                lines.push((constant, slope));
            }
            let ((first, index), (_, last)) = (cycle[0], cycle[cycle.len() - 1]);
            // The two columns of a pair with two ways both have entries for both tasks.
            let (own, speed) =
                (self.columns[index].speed_of(first), self.columns[last].speed_of(first));
            let value = (right[first] - speed * constant) / (own + speed * slope);
            for (&(_, index), (constant, slope)) in cycle.iter().zip(lines) {
                values[index] = constant + slope * value;
            }
        }
        (values, self.roots.iter().map(|&task| right[task]).collect())
    }

    /// The prices of tasks' progress at which each column is worth what it costs: a second, or nothing if it is
    /// surplus. A tree without a cycle has the price 0 at its root.
    pub fn prices(&self, tasks: usize) -> Vec<f64> {
        let costs: Vec<f64> = self.columns.iter().map(Column::cost).collect();
        let mut prices = self.prices_once(tasks, &costs);
        for _ in 0..if self.cycles.is_empty() { 0 } else { REFINEMENTS } {
            let left = self.columns.iter().map(|column| column.cost() - column.value(&prices));
            let more = self.prices_once(tasks, &left.collect::<Vec<_>>());
            prices.iter_mut().zip(more).for_each(|(price, more)| *price += more);
        }
        prices
    }

    fn prices_once(&self, tasks: usize, costs: &[f64]) -> Vec<f64> {
        let mut prices = vec![0.0; tasks];
        for cycle in &self.cycles {
            let (mut constant, mut slope) = (0.0, 1.0);
            let mut lines = vec![(constant, slope)];
            for pair in cycle.windows(2) {
                let [(task, index), (next, _)] = [pair[0], pair[1]];
                let column = &self.columns[index];
                let (speed, own) = (column.speed_of(task), column.speed_of(next));
                (constant, slope) = ((costs[index] - speed * constant) / own, -speed * slope / own);
                lines.push((constant, slope));
            }
            let ((first, _), (task, last)) = (cycle[0], cycle[cycle.len() - 1]);
            let (speed, own) =
                (self.columns[last].speed_of(task), self.columns[last].speed_of(first));
            let price = (costs[last] - speed * constant) / (own + speed * slope);
            for (&(task, _), (constant, slope)) in cycle.iter().zip(lines) {
                prices[task] = constant + slope * price;
            }
        }
        for &(task, index) in self.leaves.iter().rev() {
            let column = &self.columns[index];
            let beside = column.beside(task).map_or(0.0, |(other, speed)| speed * prices[other]);
            prices[task] = (costs[index] - beside) / column.speed_of(task);
        }
        prices
    }
}

/// Moves a solution to a vertex: as long as a column depends on others, all are changed together, so that each task
/// makes the same progress and the makespan does not grow, until one column is no longer used.
pub(super) fn to_vertex(tasks: usize, used: &[(Column, f64)]) -> Vec<(Column, f64)> {
    let mut components = Components::new(tasks);
    let mut kept: Vec<(Column, f64)> = Vec::new();
    for &(column, value) in used.iter().filter(|(_, value)| *value > 0.0) {
        if components.add(&column) {
            kept.push((column, value));
            continue;
        }
        let mut right = vec![0.0; tasks];
        column.entries().for_each(|(task, speed)| right[task] = speed);
        let columns: Vec<Column> = kept.iter().map(|&(column, _)| column).collect();
        // One second more of the new column replaces these of the others.
        let (replaced, _) = Elimination::new(tasks, &columns).solve(&right);
        let change: f64 = columns.iter().zip(&replaced).map(|(of, by)| of.cost() * by).sum();
        // More of the new column, or less of it, whichever does not take longer.
        let is_more = change >= column.cost() && replaced.iter().any(|&by| by > 0.0);
        let sign = if is_more { 1.0 } else { -1.0 };
        let mut step = if is_more { f64::INFINITY } else { value };
        let mut first = None;
        for (index, ((_, value), by)) in kept.iter().zip(&replaced).enumerate() {
            if sign * by > 0.0 && value / (sign * by) < step {
                step = value / (sign * by);
                first = Some(index);
            }
        }
        kept.iter_mut().zip(&replaced).for_each(|((_, value), by)| *value -= sign * step * by);
        if let Some(first) = first {
            kept[first] = (column, value + sign * step);
        }
        components = Components::new(tasks);
        kept.retain(|(column, value)| *value > 0.0 && components.add(column));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::super::kit::Random;
    use super::*;

    fn pair(i: usize, j: usize, a: f64, b: f64) -> Column {
        Column { tasks: [i, j], way: 0, speeds: [a, b] }
    }

    fn progress(tasks: usize, used: &[(Column, f64)]) -> Vec<f64> {
        let mut done = vec![0.0; tasks];
        for (column, seconds) in used {
            column.entries().for_each(|(task, speed)| done[task] += speed * seconds);
        }
        done
    }

    fn makespan(used: &[(Column, f64)]) -> f64 {
        used.iter().filter(|(column, _)| !column.is_surplus()).map(|(_, seconds)| seconds).sum()
    }

    /// The rank of the columns, by elimination.
    fn rank(tasks: usize, columns: &[Column]) -> usize {
        let row = |column: &Column| {
            let mut row = vec![0.0; tasks];
            column.entries().for_each(|(task, speed)| row[task] = speed);
            row
        };
        let mut rows: Vec<Vec<f64>> = columns.iter().map(row).collect();
        let mut rank = 0;
        for at in 0..tasks {
            let best =
                (rank..rows.len()).max_by(|&a, &b| rows[a][at].abs().total_cmp(&rows[b][at].abs()));
            let Some(best) = best.filter(|&best| rows[best][at].abs() > 1e-9) else { continue };
            rows.swap(rank, best);
            let pivot = rows[rank].clone();
            for row in &mut rows[rank + 1..] {
                let factor = row[at] / pivot[at];
                row.iter_mut().zip(&pivot).for_each(|(entry, of)| *entry -= factor * of);
            }
            rank += 1;
        }
        rank
    }

    /// Theorem 1 as written ("any optimal solution") does not hold: all six pairs of four equal tasks at full speed,
    /// each for a third of the time, are optimal and no pseudo-forest.
    #[test]
    fn an_optimal_solution_that_is_no_vertex_is_moved_to_one() {
        let pairs = (0..4).flat_map(|i| (i + 1..4).map(move |j| (pair(i, j, 1.0, 1.0), 1.0)));
        let used: Vec<(Column, f64)> = pairs.collect();
        assert_eq!((progress(4, &used), makespan(&used)), (vec![3.0; 4], 6.0));
        assert!(!is_pseudo_forest(4, used.iter().map(|(column, _)| column)));

        let vertex = to_vertex(4, &used);
        assert!(is_pseudo_forest(4, vertex.iter().map(|(column, _)| column)));
        let done = progress(4, &vertex);
        assert!(done.iter().all(|done| (done - 3.0).abs() < 1e-12), "{done:?}");
        assert!((makespan(&vertex) - 6.0).abs() < 1e-12);
    }

    #[test]
    fn any_solution_is_moved_to_a_vertex_that_is_not_longer() {
        let mut random = Random(41);
        for round in 0..2000 {
            let tasks = 1 + random.below(9);
            let speed = |random: &mut Random| match round % 3 {
                0 => 0.1 + 0.9 * random.unit(),
                1 => 1.0,
                _ => [0.5, 0.75, 1.0][random.below(3)],
            };
            let used: Vec<(Column, f64)> = (0..random.below(4 * tasks))
                .map(|_| {
                    let (i, j) = (random.below(tasks), random.below(tasks));
                    let column = match random.below(6) {
                        0 => Column::surplus(i),
                        _ if i == j => Column::alone(i),
                        _ => pair(i, j, speed(&mut random), speed(&mut random)),
                    };
                    (column, 0.1 + random.unit())
                })
                .collect();
            let vertex = to_vertex(tasks, &used);
            let columns: Vec<Column> = vertex.iter().map(|&(column, _)| column).collect();
            assert!(is_pseudo_forest(tasks, &columns), "{used:?}");
            assert_eq!(rank(tasks, &columns), columns.len(), "dependent columns: {columns:?}");
            assert!(vertex.iter().all(|&(_, seconds)| seconds > 0.0));
            assert!(makespan(&vertex) <= makespan(&used) + 1e-9);
            let (before, after) = (progress(tasks, &used), progress(tasks, &vertex));
            for (before, after) in before.iter().zip(&after) {
                assert!((before - after).abs() < 1e-9, "{before} and {after}: {used:?}");
            }
        }
    }

    #[test]
    fn equations_over_independent_columns_are_solved() {
        let mut random = Random(42);
        for _ in 0..2000 {
            let tasks = 1 + random.below(12);
            let mut components = Components::new(tasks);
            let mut used = Vec::new();
            for _ in 0..3 * tasks {
                let (i, j) = (random.below(tasks), random.below(tasks));
                let (a, b) = (0.2 + random.unit(), 0.2 + random.unit());
                let column = if i == j { Column::alone(i) } else { pair(i, j, a, b) };
                if components.add(&column) {
                    used.push((column, random.unit()));
                }
            }
            let columns: Vec<Column> = used.iter().map(|&(column, _)| column).collect();
            let order = Elimination::new(tasks, &columns);
            let (values, missed) = order.solve(&progress(tasks, &used));
            for ((_, value), found) in used.iter().zip(&values) {
                assert!((value - found).abs() < 1e-6, "{value} and {found}: {used:?}");
            }
            assert!(missed.iter().all(|by| by.abs() < 1e-6));
            // A tree has one equation more than columns.
            assert_eq!(missed.len(), tasks - columns.len());
            let prices = order.prices(tasks);
            for column in &columns {
                let value = column.value(&prices);
                assert!((value - 1.0).abs() < 1e-6, "{value}: {columns:?}");
            }
        }
    }

    #[test]
    fn loops_and_ways_of_one_pair_are_cycles() {
        let edge = |i, j| pair(i, j, 1.0, 0.5);
        let alone = Column::alone;
        for (columns, expected) in [
            (vec![alone(0), edge(0, 1)], true),
            (vec![alone(0), edge(0, 1), alone(1)], false),
            (vec![edge(0, 1), edge(0, 1), alone(2)], true),
            (vec![edge(0, 1), edge(0, 1), edge(1, 2), alone(2)], false),
            (vec![alone(0), alone(0)], false),
            (vec![edge(0, 1), edge(1, 2), edge(2, 0), edge(3, 4), alone(4)], true),
            (vec![edge(0, 1), edge(1, 2), edge(2, 0), edge(3, 4), alone(4), edge(4, 0)], false),
        ] {
            assert_eq!(is_pseudo_forest(5, &columns), expected, "{columns:?}");
        }
    }
}
