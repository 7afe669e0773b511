//! Shows how far a measurement is: by a bar on a terminal, and elsewhere by a line once it is over.

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
        // A log tells by these lines which part took how long, and which one did not end.
        if self.0.is_hidden() {
            let (name, steps, time) = (self.0.prefix(), self.0.position(), self.0.elapsed());
            eprintln!("{name}: {steps} steps in {:.1} s", time.as_secs_f64());
        }
        self.0.finish_and_clear();
    }
}
