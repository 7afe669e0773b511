//! Shows how far a measurement is, on a terminal only.

use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar that disappears when it is dropped.
///
/// It has no thread of its own, and is drawn between measurements, so that it disturbs none.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar for a task of `steps` steps.
    pub fn new(name: impl Into<String>, steps: u64) -> Progress {
        let template = "{prefix:<32} {bar:40} {pos}/{len} {elapsed_precise}";
        // On a mistake in the template, the default one.
        let style = ProgressStyle::with_template(template);
        let bar = ProgressBar::new(steps)
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
            .with_prefix(name.into());
        Progress(bar)
    }

    /// Sets the number of steps done.
    pub fn reach(&self, steps: u64) {
        self.0.set_position(steps);
    }

    /// Adds a step.
    pub fn step(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
