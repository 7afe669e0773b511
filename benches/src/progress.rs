//! Shows how far a measurement is: by a bar on a terminal, and elsewhere, if that was asked for, by a line for each part.

use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressStyle};

/// Whether each part is told as it ends, where there is no terminal.
static LOGS: AtomicBool = AtomicBool::new(false);

/// Tells each part from now on as it ends, where there is no terminal.
pub fn log_parts() {
    // Relaxed: it orders nothing else, and is set before anything is measured.
    LOGS.store(true, Ordering::Relaxed);
}

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
        if self.0.is_hidden() && LOGS.load(Ordering::Relaxed) {
            let (name, steps, time) = (self.0.prefix(), self.0.position(), self.0.elapsed());
            eprintln!("{name}: {steps} steps in {:.1} s", time.as_secs_f64());
        }
        self.0.finish_and_clear();
    }
}
