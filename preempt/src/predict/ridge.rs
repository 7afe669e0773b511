//! Trained models, and their file.
//!
//! Text. The first line is [`HEADER`]; each other line has a kernel's module and name and a [`Model`], in the order
//! of [`line`](fn@line), with tabs between them. All of it is read, or nothing.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use super::model::{Form, Model, Point, vector};
use super::{ByKernel, Features, Predictor, Run};
use crate::error::{Error, PredictionError};
use crate::text::{escape, replace, unescape};

/// The start of the file in every version.
const NAME: &str = "preempt-ridge ";

/// The first line in this version.
const HEADER: &str = "preempt-ridge 1";

/// Linear regression with an L2 penalty, for each kernel (FLEP section 4.2).
///
/// FLEP trains with 100 random inputs for each kernel. The squares of relative errors are minimised, so that short
/// launches count as much as long ones. A product of powers of the features takes the place of a sum if it predicts
/// the recorded runs better, each run by the others. In a matrix product, for example, block-tasks have more work the
/// more of them there are, which no sum says.
///
/// It does not learn from launches; see [`Online::after`](super::Online::after) for that. Durations are those of the
/// device that the runs were recorded on.
#[derive(Clone, Debug, Default)]
pub struct Ridge {
    models: ByKernel<Option<Model>>,
}

impl Ridge {
    /// Fits a model for each kernel that has runs. Runs that took no time are ignored.
    pub fn train<'a>(runs: impl IntoIterator<Item = &'a Run<'a>>) -> Ridge {
        let mut points = ByKernel::<Vec<Point>>::default();
        for Run { launch, took } in runs {
            if !took.is_zero() {
                let of = points.entry(launch.module, launch.kernel);
                of.push((vector(launch), took.as_secs_f64()));
            }
        }
        let mut ridge = Ridge::default();
        for (module, kernel, points) in points.iter() {
            *ridge.models.entry(module, kernel) = Model::fit(points);
        }
        ridge
    }

    pub(super) fn model(&self, launch: &Features<'_>) -> Option<Model> {
        *self.models.get(launch)?
    }

    /// Writes the models to a file. An existing file is replaced as a whole, so a concurrent reader sees the old one
    /// or the new one.
    ///
    /// # Errors
    ///
    /// [`PredictionError::NotKept`]; the file is as it was then.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let models = self.models.iter();
        let mut lines: Vec<String> = models
            .filter_map(|(module, kernel, model)| Some(line(module, kernel, model.as_ref()?)))
            .collect();
        // The same models give the same file.
        lines.sort_unstable();
        let text = std::iter::once(HEADER).chain(lines.iter().map(String::as_str));
        let text: String = text.flat_map(|line| [line, "\n"]).collect();
        replace(path, &text).map_err(|source| {
            let (path, source) = (path.to_owned(), Arc::new(source));
            Error::Prediction(PredictionError::NotKept { path, source })
        })
    }

    /// Reads what [`save`](Ridge::save) wrote.
    ///
    /// # Errors
    ///
    /// [`PredictionError::NotRead`]; also if anything in the file is not as it was written.
    pub fn load(path: impl AsRef<Path>) -> Result<Ridge, Error> {
        let path = path.as_ref();
        fs::read_to_string(path).and_then(|text| parse(&text)).map_err(|source| {
            let (path, source) = (path.to_owned(), Arc::new(source));
            Error::Prediction(PredictionError::NotRead { path, source })
        })
    }
}

impl Predictor for Ridge {
    fn predict(&self, launch: &Features<'_>) -> Option<Duration> {
        self.model(launch)?.predict(launch)
    }

    fn finished(&mut self, _launch: &Features<'_>, _took: Duration) {}
}

fn line(module: &str, kernel: &str, model: &Model) -> String {
    let Model { form, intercept, slopes: [grid, block, input, shared], least } = model;
    let (module, kernel) = (escape(module), escape(kernel));
    let form = name(*form);
    // The shortest digits that give the same number back.
    format!(
        "{module}\t{kernel}\t{form}\t{intercept:e}\t{grid:e}\t{block:e}\t{input:e}\t{shared:e}\t{least:e}"
    )
}

fn name(form: Form) -> &'static str {
    match form {
        Form::Linear => "linear",
        Form::Power => "power",
    }
}

fn parse(text: &str) -> io::Result<Ridge> {
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut lines = text.lines();
    match lines.next() {
        Some(HEADER) => {}
        Some(header) if header.starts_with(NAME) => {
            return Err(invalid(format!("it is `{header}`, and this version reads `{HEADER}`")));
        }
        _ => {
            let what = format!("it has no trained models: its first line is not `{HEADER}`");
            return Err(invalid(what));
        }
    }
    if !text.ends_with('\n') {
        return Err(invalid("it ends in the middle of a line".into()));
    }
    let mut ridge = Ridge::default();
    for (at, line) in lines.enumerate() {
        let (module, kernel, model) =
            entry(line).ok_or_else(|| invalid(format!("line {} is no model", at + 2)))?;
        if ridge.models.entry(&module, &kernel).replace(model).is_some() {
            return Err(invalid(format!("line {} is a second model of `{kernel}`", at + 2)));
        }
    }
    Ok(ridge)
}

fn entry(line: &str) -> Option<(String, String, Model)> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [module, kernel, form, intercept, grid, block, input, shared, least] =
        fields.try_into().ok()?;
    let number = |text: &str| text.parse().ok().filter(|number: &f64| number.is_finite());
    let form = [Form::Linear, Form::Power].into_iter().find(|&other| name(other) == form)?;
    let slopes = [number(grid)?, number(block)?, number(input)?, number(shared)?];
    let least = number(least).filter(|&least| least > 0.0)?;
    let model = Model { form, intercept: number(intercept)?, slopes, least };
    Some((unescape(module)?, unescape(kernel)?, model))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;

    fn launch(grid: u32, input_bytes: u64) -> Features<'static> {
        let (module, kernel) = ("kernels", "saxpy");
        Features { module, kernel, grid, block: 128, input_bytes, shared_bytes: 0 }
    }

    fn runs(grids: &[u32], took: impl Fn(u32) -> f64) -> Vec<Run<'static>> {
        let run = |&grid: &u32| Run {
            launch: launch(grid, 1024 * u64::from(grid)),
            took: Duration::from_secs_f64(1e-6 * took(grid)),
        };
        grids.iter().map(run).collect()
    }

    fn error(ridge: &Ridge, run: &Run<'_>) -> f64 {
        let predicted = ridge.predict(&run.launch).expect("a known kernel").as_secs_f64();
        (predicted / run.took.as_secs_f64() - 1.0).abs()
    }

    fn mean_error(ridge: &Ridge, runs: &[Run<'_>]) -> f64 {
        runs.iter().map(|run| error(ridge, run)).sum::<f64>() / runs.len() as f64
    }

    /// A file for one test, which is removed afterwards.
    struct File(PathBuf);

    impl File {
        fn new(test: &str) -> File {
            let name = format!("preempt-ridge-{test}-{}.tsv", std::process::id());
            File(std::env::temp_dir().join(name))
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    /// Always the same numbers from 0 to 1.
    fn random(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    proptest! {
        #[test]
        fn what_grows_with_the_work_is_recovered(
            per_task in 0.01..100.0, grids in prop::collection::hash_set(1u32..1_000_000, 3..40),
        ) {
            let grids: Vec<u32> = grids.into_iter().collect();
            let all = runs(&grids, |grid| 10.0 + per_task * f64::from(grid));
            let ridge = Ridge::train(&all);
            for run in &all {
                prop_assert!(error(&ridge, run) < 0.01, "{run:?}: {:?}", ridge.predict(&run.launch));
            }
        }

        #[test]
        fn whatever_it_is_trained_with_it_answers(
            runs in prop::collection::vec((any::<u32>(), any::<u32>(), any::<u64>(), any::<u32>(), any::<u64>()), 1..20),
        ) {
            let run = |&(grid, block, input_bytes, shared_bytes, nanos): &_| Run {
                launch: Features { grid, block, input_bytes, shared_bytes, ..launch(0, 0) },
                took: Duration::from_nanos(nanos),
            };
            let runs: Vec<_> = runs.iter().map(run).collect();
            let ridge = Ridge::train(&runs);
            for run in &runs {
                let _ = ridge.predict(&run.launch);
                let model = ridge.model(&run.launch);
                prop_assert!(model.is_none_or(|model| model.intercept.is_finite()), "{model:?}");
            }
        }
    }

    #[test]
    fn noisy_kernels_are_predicted_better_than_fleps() {
        // 10 % up or down; work in each block-task; and work that grows faster than the grid.
        for power in [1.0, 1.5] {
            let (mut random, mut noise) = (random(7), random(11));
            let mut some = |count: usize| {
                // From 64 to 131072, evenly by their logarithms.
                let grids = (0..count).map(|_| 64.0 * 2048f64.powf(random()));
                let grids: Vec<u32> = grids.map(|grid| grid as u32).collect();
                let mut runs = runs(&grids, |grid| 12.0 + 0.05 * f64::from(grid).powf(power));
                for run in &mut runs {
                    run.took = run.took.mul_f64(0.9 + 0.2 * noise());
                }
                runs
            };
            let ridge = Ridge::train(&some(100));
            let error = mean_error(&ridge, &some(100));
            assert!(error < 0.069, "power {power}: {error}");
        }
    }

    #[test]
    fn kernels_have_models_of_their_own() {
        let mut all = runs(&[1, 2, 3], |grid| 10.0 * f64::from(grid));
        for (at, run) in all.iter_mut().enumerate() {
            run.launch.kernel = ["a", "b", "b"][at];
            run.launch.module = ["x", "x", "y"][at];
        }
        let ridge = Ridge::train(&all);
        for run in &all {
            assert_eq!(ridge.predict(&run.launch), Some(run.took));
        }
        assert_eq!(ridge.predict(&launch(1, 0)), None);
        assert_eq!(Ridge::train(&[]).predict(&launch(1, 0)), None);
    }

    #[test]
    fn a_line_that_leads_below_zero_ends_at_the_shortest_run() {
        let ridge = Ridge::train(&runs(&[100, 200, 300], |grid| f64::from(grid) - 50.0));
        assert_eq!(ridge.model(&launch(1, 1024)).map(|model| model.form), Some(Form::Linear));
        assert_eq!(ridge.predict(&launch(1, 1024)), Some(Duration::from_micros(50)));
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let file = File::new("round-trip");
        let mut all = runs(&[10, 20, 30, 50, 99], |grid| f64::from(grid).powf(1.5));
        all.extend(runs(&[10, 20, 30, 70], |grid| 7.0 + f64::from(grid)).into_iter().map(
            |mut run| {
                run.launch.kernel = "other\tkernel\n";
                run
            },
        ));
        let ridge = Ridge::train(&all);
        ridge.save(&file.0).expect("written");
        let loaded = Ridge::load(&file.0).expect("read");
        for run in &all {
            assert_eq!(loaded.model(&run.launch), ridge.model(&run.launch));
            assert!(loaded.model(&run.launch).is_some());
        }
        Ridge::default().save(&file.0).expect("replaced");
        let loaded = Ridge::load(&file.0).expect("read");
        assert_eq!(loaded.predict(&all[0].launch), None);
    }

    #[test]
    fn a_broken_file_is_an_error_that_says_where() {
        let file = File::new("broken");
        Ridge::train(&runs(&[1, 2, 4], |grid| 10.0 * f64::from(grid)))
            .save(&file.0)
            .expect("written");
        let good = fs::read_to_string(&file.0).expect("a file");
        let line = good.lines().nth(1).expect("a model").to_owned();
        let broken = [
            (String::new(), "first line"),
            ("my notes\n".into(), "first line"),
            (good.replace("ridge 1", "ridge 2"), "this version reads"),
            (good.trim_end().into(), "middle of a line"),
            (good[..good.len() / 2].into(), "middle of a line"),
            (good.replace("linear", "cubic"), "line 2"),
            (good.replace("saxpy", "sax\\py"), "line 2"),
            (good.replace('e', "x"), "first line"),
            (format!("{good}\n"), "line 3"),
            (format!("{good}{line}\n"), "second model"),
            (
                format!(
                    "{good}{}\n",
                    line.replace("saxpy", "b").replacen("\tlinear\t", "\tlinear\tNaN\t", 1)
                ),
                "line 3",
            ),
            (format!("{good}a\tb\tlinear\tinf\t0\t0\t0\t0\t1\n"), "line 3"),
            (format!("{good}a\tb\tlinear\t1\t0\t0\t0\t0\t0\n"), "line 3"),
        ];
        for (text, what) in broken {
            fs::write(&file.0, &text).expect("written");
            let error = Ridge::load(&file.0).expect_err(&text);
            assert!(
                matches!(error, Error::Prediction(PredictionError::NotRead { .. })),
                "{error:?}"
            );
            assert!(error.to_string().contains(what), "{error} for {text}");
        }
        fs::write(&file.0, b"preempt-ridge 1\n\xff\n").expect("written");
        Ridge::load(&file.0).expect_err("no text");
        let error =
            Ridge::load(std::env::temp_dir().join("preempt/is/not/there")).expect_err("no file");
        assert!(error.to_string().contains("preempt/is/not/there"), "{error}");
        let error = Ridge::default().save(std::env::temp_dir()).expect_err("a folder");
        assert!(matches!(error, Error::Prediction(PredictionError::NotKept { .. })), "{error:?}");
    }
}
