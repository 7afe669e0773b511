//! One kernel's durations as a function of its features, fitted with an L2 penalty.

use std::time::Duration;

use super::Features;

/// Features of a launch that a model looks at.
pub(super) const FEATURES: usize = 4;

pub(super) fn vector(launch: &Features<'_>) -> [f64; FEATURES] {
    let Features { grid, block, input_bytes, shared_bytes, .. } = *launch;
    [grid.into(), block.into(), input_bytes as f64, shared_bytes.into()]
}

/// A launch's features, and how many seconds it took; more than 0.
pub(super) type Point = ([f64; FEATURES], f64);

/// The penalty on slopes of features that are scaled to a variance of 1. It is large enough to choose between
/// features that grow together, such as grid and input size. It is too small to be seen beside the noise of a clock.
const PENALTY: f64 = 1e-6;

/// The form of the function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// A sum of the features, as in FLEP, fitted by relative error: work in each block-task, and work that is always
    /// there.
    Linear,
    /// A product of powers of the features, for work that grows faster than the grid, as that of a matrix product.
    Power,
}

/// A fitted function.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Model {
    pub form: Form,
    pub intercept: f64,
    pub slopes: [f64; FEATURES],
    /// The shortest duration that it was fitted to, in seconds.
    pub least: f64,
}

impl Model {
    /// Fits the form with the smaller mean error, each point predicted from the others. `None` without points.
    pub fn fit(points: &[Point]) -> Option<Model> {
        let least = points.iter().map(|&(_, took)| took).reduce(f64::min)?;
        let (linear, linear_error) = fit(Form::Linear, points, least);
        let (power, power_error) = fit(Form::Power, points, least);
        Some(if power_error < linear_error { power } else { linear })
    }

    /// How long a launch takes; `None` if that is more than a [`Duration`] holds.
    pub fn predict(&self, launch: &Features<'_>) -> Option<Duration> {
        let sum = self.sum(vector(launch));
        let seconds = match self.form {
            // Far from its points, a straight line leads anywhere.
            Form::Linear if sum <= 0.0 => self.least,
            Form::Linear => sum,
            Form::Power => sum.exp(),
        };
        Duration::try_from_secs_f64(seconds).ok()
    }

    fn sum(&self, features: [f64; FEATURES]) -> f64 {
        let terms = self.slopes.iter().zip(features.map(|x| self.form.scale(x)));
        terms.fold(self.intercept, |sum, (slope, x)| sum + slope * x)
    }
}

impl Form {
    fn scale(self, value: f64) -> f64 {
        match self {
            Form::Linear => value,
            // A launch without buffers has 0 bytes of input.
            Form::Power => value.max(1.0).ln(),
        }
    }
}

/// A model of this form, and the mean of its relative errors when each point is left out in turn.
fn fit(form: Form, points: &[Point], least: f64) -> (Model, f64) {
    // Minimises the squares of relative errors; every error of a logarithm is relative.
    let weighted = |took: f64| match form {
        Form::Linear => (took, took.powi(-2)),
        Form::Power => (took.ln(), 1.0),
    };
    let total: f64 = points.iter().map(|&(_, took)| weighted(took).1).sum();
    let mean = |of: &dyn Fn(&Point) -> f64| {
        points.iter().map(|point| of(point) * weighted(point.1).1).sum::<f64>() / total
    };
    let mean_y = mean(&|&(_, took)| weighted(took).0);
    let means: [f64; FEATURES] = std::array::from_fn(|i| mean(&|&(x, _)| form.scale(x[i])));
    let scales: [f64; FEATURES] = std::array::from_fn(|i| {
        let variance = mean(&|&(x, _)| (form.scale(x[i]) - means[i]).powi(2));
        // A constant feature says nothing, and rounding must not make it say something.
        let is_constant = variance.sqrt() <= 1e-9 * means[i].abs().max(1e-9);
        if is_constant { 0.0 } else { variance.sqrt().recip() }
    });
    let standard = |x: &[f64; FEATURES]| -> [f64; FEATURES] {
        std::array::from_fn(|i| (form.scale(x[i]) - means[i]) * scales[i])
    };

    let mut matrix = [[0.0; FEATURES]; FEATURES];
    let mut right = [0.0; FEATURES];
    for (x, took) in points {
        let (z, (y, weight)) = (standard(x), weighted(*took));
        let weight = weight / total;
        for i in 0..FEATURES {
            right[i] += weight * z[i] * (y - mean_y);
            for j in 0..FEATURES {
                matrix[i][j] += weight * z[i] * z[j];
            }
        }
    }
    (0..FEATURES).for_each(|i| matrix[i][i] += PENALTY);
    let factor = cholesky(matrix);
    let standard_slopes = solve(&factor, right);

    let slopes: [f64; FEATURES] = std::array::from_fn(|i| standard_slopes[i] * scales[i]);
    let intercept =
        slopes.iter().zip(means).fold(mean_y, |rest, (slope, mean)| rest - slope * mean);
    let model = Model { form, intercept, slopes, least };

    let error = |&(x, took): &Point| {
        let (z, (y, weight)) = (standard(&x), weighted(took));
        let solved = solve(&factor, z);
        let leverage =
            weight / total * (1.0 + (0..FEATURES).map(|i| z[i] * solved[i]).sum::<f64>());
        // The error at this point of the model without it.
        let off = (model.sum(x) - y) / (1.0 - leverage).max(1e-6);
        match form {
            Form::Linear => off.abs() / took,
            Form::Power => (off.exp() - 1.0).abs(),
        }
    };
    let errors: f64 = points.iter().map(error).sum();
    (model, errors / points.len() as f64)
}

type Matrix = [[f64; FEATURES]; FEATURES];

/// The lower triangle whose product with its transpose is the matrix, which is symmetric and, because of the penalty,
/// positive definite.
fn cholesky(matrix: Matrix) -> Matrix {
    let mut lower = [[0.0; FEATURES]; FEATURES];
    for i in 0..FEATURES {
        for j in 0..=i {
            let product: f64 = (0..j).map(|k| lower[i][k] * lower[j][k]).sum();
            let rest = matrix[i][j] - product;
            // Rounding may leave less than the penalty.
            lower[i][j] = if i == j { rest.max(PENALTY * 1e-3).sqrt() } else { rest / lower[j][j] };
        }
    }
    lower
}

/// Solves the system of a matrix with this lower triangle.
fn solve(lower: &Matrix, right: [f64; FEATURES]) -> [f64; FEATURES] {
    let mut solution = right;
    for i in 0..FEATURES {
        let known: f64 = (0..i).map(|k| lower[i][k] * solution[k]).sum();
        solution[i] = (solution[i] - known) / lower[i][i];
    }
    for i in (0..FEATURES).rev() {
        let known: f64 = (i + 1..FEATURES).map(|k| lower[k][i] * solution[k]).sum();
        solution[i] = (solution[i] - known) / lower[i][i];
    }
    solution
}
