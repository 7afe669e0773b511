//! Shows the progress of a row: a bar on a terminal, lines elsewhere.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// The progress of one row.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    name: &'static str,
    start: Instant,
}

impl Progress {
    /// A row with `requests` requests to answer, perhaps none.
    pub fn new(name: &'static str, requests: usize) -> Progress {
        let template = match requests {
            0 => "{spinner} {prefix:<17} {elapsed_precise}",
            _ => "{spinner} {prefix:<17} {elapsed_precise} {bar:40} {pos}/{len} requests answered",
        };
        // On a mistake in the template, the default one.
        let style = ProgressStyle::with_template(template);
        let bar = ProgressBar::new(requests as u64)
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
            .with_prefix(name);
        if stderr().is_terminal() {
            bar.enable_steady_tick(Duration::from_millis(100));
        } else {
            eprintln!("{name} ..");
        }
        Progress { bar, name, start: Instant::now() }
    }

    /// Adds an answered request.
    pub fn answered(&self) {
        self.bar.inc(1);
    }

    /// Completes the row.
    pub fn finish(self) {
        self.bar.finish_and_clear();
        eprintln!("{} .. done in {:.1} s", self.name, self.start.elapsed().as_secs_f64());
    }
}
