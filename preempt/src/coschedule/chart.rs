//! Plans as a table, and as a Gantt chart.

use std::fmt::{self, Write};

use super::plan::{CoSchedule, Interval, Running};

impl fmt::Display for CoSchedule {
    /// A row for each interval, and a line with the makespan and the preemptions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |interval: &Interval| {
            let (running, way) = match interval.running {
                Running::Alone { task } => (self.jobs[task].name.clone(), "alone".to_owned()),
                Running::Pair { tasks: [i, j], sharing, .. } => {
                    let names = format!("{} + {}", self.jobs[i].name, self.jobs[j].name);
                    (names, sharing.to_string())
                }
            };
            [time(interval.start), time(interval.duration), running, way]
        };
        let head = ["start", "duration", "running", "way"].map(str::to_owned);
        let rows: Vec<[String; 4]> =
            std::iter::once(head).chain(self.intervals().iter().map(row)).collect();
        let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
        let widths = [width(0), width(1), width(2)];
        for [start, duration, running, way] in &rows {
            let [a, b, c] = widths;
            writeln!(f, "{start:>a$}  {duration:>b$}  {running:<c$}  {way}")?;
        }
        let preemptions = self.preemptions();
        let s = if preemptions == 1 { "" } else { "s" };
        write!(f, "makespan {}, {preemptions} preemption{s}", time(self.makespan()))
    }
}

/// Four digits, with a unit of time.
fn time(seconds: f64) -> String {
    let (scale, unit) = match seconds {
        0.0 => (1.0, "s"),
        _ if seconds < 1e-6 => (1e9, "ns"),
        _ if seconds < 1e-3 => (1e6, "µs"),
        _ if seconds < 1.0 => (1e3, "ms"),
        _ => (1.0, "s"),
    };
    let value = seconds * scale;
    let digits = if value < 10.0 {
        3
    } else if value < 100.0 {
        2
    } else {
        1
    };
    format!("{value:.digits$} {unit}")
}

/// Pixels of the chart.
const WIDTH: f64 = 1000.0;
const LANE: f64 = 48.0;
const MARGIN: f64 = 12.0;
const AXIS: f64 = 28.0;

/// Pixels of a letter, about.
const LETTER: f64 = 7.0;

impl CoSchedule {
    /// A Gantt chart as an SVG document: two lanes for what runs at the same time, and an axis of time. Each job has a
    /// colour; pointing at a box tells its times.
    ///
    /// ```no_run
    /// # use preempt::coschedule::{CoSchedule, Job, Sharing, Speeds};
    /// # let speeds = Speeds::new(Sharing::AllSms, vec![vec![1.0]])?;
    /// let plan = CoSchedule::plan(&[Job::new("sort", 4.0)], &speeds)?;
    /// std::fs::write("plan.svg", plan.svg()).expect("a folder that can be written to");
    /// # Ok::<(), preempt::Error>(())
    /// ```
    pub fn svg(&self) -> String {
        let height = 2.0 * MARGIN + 2.0 * LANE + AXIS;
        let scale =
            (WIDTH - 2.0 * MARGIN) / if self.makespan() > 0.0 { self.makespan() } else { 1.0 };
        let x = |seconds: f64| MARGIN + seconds * scale;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n"
        );
        for Bar { task, lane, start, end } in self.bars() {
            let name = escape(&self.jobs[task].name);
            // The golden angle keeps the hues of neighbours apart.
            let hue = (task as f64 * 137.508) % 360.0;
            let (left, width) = (x(start), (end - start) * scale);
            let top = MARGIN + LANE * lane as f64;
            let _ = writeln!(
                svg,
                "<rect x=\"{left:.2}\" y=\"{top}\" width=\"{width:.2}\" height=\"{}\" fill=\"hsl({hue:.0},60%,75%)\" \
                 stroke=\"#444\"><title>{name}: {} to {}</title></rect>",
                LANE - 4.0,
                time(start),
                time(end)
            );
            if LETTER * name.chars().count() as f64 <= width {
                let (middle, line) = (left + width / 2.0, top + LANE / 2.0 + 2.0);
                let _ = writeln!(
                    svg,
                    "<text x=\"{middle:.2}\" y=\"{line}\" text-anchor=\"middle\">{name}</text>"
                );
            }
        }
        let line = MARGIN + 2.0 * LANE;
        for tick in 0..=4 {
            let seconds = self.makespan() * f64::from(tick) / 4.0;
            let anchor = match tick {
                0 => "start",
                4 => "end",
                _ => "middle",
            };
            let _ = writeln!(
                svg,
                "<line x1=\"{0:.2}\" y1=\"{line}\" x2=\"{0:.2}\" y2=\"{1}\" stroke=\"#444\"/>\
                 <text x=\"{0:.2}\" y=\"{2}\" text-anchor=\"{anchor}\">{3}</text>",
                x(seconds),
                line + 6.0,
                line + 20.0,
                time(seconds)
            );
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// A task keeps its lane while it runs.
    fn bars(&self) -> Vec<Bar> {
        let mut bars: Vec<Bar> = Vec::new();
        // The bars of the two lanes that have not ended.
        let mut open: [Option<usize>; 2] = [None, None];
        for Interval { start, duration, running } in self.intervals() {
            let runs = |bars: &[Bar], of: Option<usize>| {
                of.is_some_and(|at| running.tasks().any(|task| task == bars[at].task))
            };
            open = open.map(|of| of.filter(|_| runs(&bars, of)));
            for task in running.tasks() {
                let end = start + duration;
                let own = open.iter().flatten().copied().find(|&at| bars[at].task == task);
                if let Some(own) = own {
                    bars[own].end = end;
                } else if let Some(lane) = open.iter().position(Option::is_none) {
                    open[lane] = Some(bars.len());
                    bars.push(Bar { task, lane, start: *start, end });
                }
            }
        }
        bars
    }
}

/// A span of time in which a task runs.
struct Bar {
    task: usize,
    lane: usize,
    start: f64,
    end: f64,
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // No control character but these is allowed in XML.
            other if other.is_control() => escaped.push(' '),
            other => escaped.push(other),
        }
    }
    escaped
}
