//! How measurements are written down: a table for people, JSON for programs that says where,
//! when and of what it was measured; and how times are told in both.

use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, SystemTime};
use std::{env, fs, thread};

use serde_json::{Value, json};

/// What was measured.
#[derive(Clone, Debug)]
pub struct Record {
    /// What all the rows belong to.
    pub suite: &'static str,
    /// The device's name.
    pub device: String,
    /// The GPU driver's version, where there is one.
    pub driver: Option<String>,
    /// One object for each row of the table.
    pub rows: Vec<Value>,
    /// The rows in a few figures: an object.
    pub summary: Value,
}

impl Record {
    /// The record with machine, commit, date and command line of this process.
    pub fn json(self) -> Value {
        let Record { suite, device, driver, rows, summary } = self;
        json!({
            "suite": suite,
            "device": device,
            "driver": driver,
            "hardware": hardware(),
            "commit": commit(),
            "date": date(),
            "command": command(),
            "rows": rows,
            "summary": summary,
        })
    }
}

/// The processor's model, and how many of them this program may use.
pub fn hardware() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim())
    });
    let processors = thread::available_parallelism().map_or(1, usize::from);
    format!("{}, {processors} processors", model.unwrap_or(env::consts::ARCH))
}

/// The commit that this program was built from, if `PREEMPT_COMMIT` said so then; or else that of the working
/// folder is at, if it is in a repository.
fn commit() -> Option<String> {
    if let Some(commit) = option_env!("PREEMPT_COMMIT") {
        return Some(commit.to_owned());
    }
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short", "HEAD"])?;
    // Results are written here, perhaps over older ones; they are not what is measured.
    let but_results = [":(top)", ":(top,exclude)benches/results"];
    let status = ["status", "--porcelain", "--untracked-files=no", "--"];
    let dirty = git(&[&status[..], &but_results].concat()).is_none_or(|files| !files.is_empty());
    Some(if dirty { commit + "-dirty" } else { commit })
}

/// Today, in UTC.
fn date() -> String {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    now.chars().take_while(|letter| *letter != 'T').collect()
}

/// The command line, without the folders of absolute paths, since results are published. Arguments need not be
/// Unicode: files are named by them.
fn command() -> String {
    let args = env::args_os().map(|arg| without_folders(&arg.to_string_lossy()));
    args.collect::<Vec<_>>().join(" ")
}

/// An argument; of an absolute path, also behind `--option=`, the last part.
fn without_folders(arg: &str) -> String {
    let path = arg.split_once('=').map_or(arg, |(_, path)| path);
    let option = &arg[..arg.len() - path.len()];
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
    if path.starts_with('/') { format!("{option}{name}") } else { arg.to_owned() }
}

/// The least time that a share of `sorted` times does not exceed (nearest rank).
pub fn percentile(sorted: &[Duration], share: f64) -> Option<Duration> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// In microseconds, as the JSON has all times.
pub fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// With about three digits that count.
pub fn digits(value: f64) -> String {
    let decimals = if value < 10.0 {
        2
    } else if value < 100.0 {
        1
    } else {
        0
    };
    format!("{value:.decimals$}")
}

/// A time in microseconds, told in the unit that suits it.
pub fn time(microseconds: f64) -> String {
    match microseconds {
        ..1e3 => format!("{} µs", digits(microseconds)),
        ..1e6 => format!("{} ms", digits(microseconds / 1e3)),
        _ => format!("{} s", digits(microseconds / 1e6)),
    }
}

/// Lines of cells in columns, the first `left` columns flush left and the others flush right.
///
/// ```
/// let lines = [["", "p50"], ["alone", "11 µs"]].map(|line| line.map(str::to_owned));
/// assert_eq!(preempt_report::table(&lines, 1), "          p50\nalone   11 µs\n");
/// ```
pub fn table<L: AsRef<[String]>>(lines: &[L], left: usize) -> String {
    let length = |cell: &String| cell.chars().count();
    let mut widths = Vec::new();
    for line in lines {
        let line = line.as_ref();
        widths.resize(widths.len().max(line.len()), 0);
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = length(cell).max(*width);
        }
    }
    let mut table = String::new();
    for line in lines {
        let mut text = String::new();
        for (column, (cell, width)) in line.as_ref().iter().zip(&widths).enumerate() {
            let gap = if column > 0 { "   " } else { "" };
            // Writing to a string cannot fail.
            let _ = match column < left {
                true => write!(text, "{gap}{cell:<width$}"),
                false => write!(text, "{gap}{cell:>width$}"),
            };
        }
        table += text.trim_end();
        table.push('\n');
    }
    table
}

#[cfg(test)]
mod tests {
    use super::{time, without_folders};

    #[test]
    fn times_are_told_in_the_unit_that_suits_them() {
        let told = [8.559, 24.24, 492.293, 5107.8, 8_797_610.0].map(time);
        assert_eq!(told, ["8.56 µs", "24.2 µs", "492 µs", "5.11 ms", "8.80 s"]);
    }

    #[test]
    fn a_command_tells_no_folders_of_the_machine() {
        let told = ["--out", "/a/b/c.json", "--out=/a/c.json", "results/c.json", "./bench", "-n=3"];
        let told = told.map(without_folders);
        assert_eq!(told, ["--out", "c.json", "--out=c.json", "results/c.json", "./bench", "-n=3"]);
    }
}
