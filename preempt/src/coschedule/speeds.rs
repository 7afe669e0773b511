//! Speeds of tasks beside one another, and their file.

use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use serde::{Deserialize, Serialize};

use super::sharing::Sharing;
use crate::error::{CoscheduleError, Error};
use crate::text::replace;

/// The speed matrix S: how fast each task makes progress beside each other task (section III of the paper).
///
/// Row i, column j is the speed of task i while it shares the GPU with task j, as part of its speed alone: 0 to 1.
/// The diagonal is 1. A GPU can be shared in several ways, such as by ranges of SMs or by all SMs; each way has a
/// matrix of its own.
///
/// ```
/// use preempt::coschedule::{Sharing, Speeds};
///
/// let speeds = Speeds::new(Sharing::AllSms, vec![vec![1.0, 0.8], vec![0.7, 1.0]])?;
/// let speeds = speeds.with(Sharing::split(1, 2), vec![vec![1.0, 0.5], vec![0.9, 1.0]])?;
/// assert_eq!(speeds.tasks(), 2);
/// assert_eq!(speeds.ways().collect::<Vec<_>>(), [Sharing::AllSms, Sharing::split(1, 2)]);
/// assert_eq!(speeds.speed(1, 0, 1), 0.5);
/// # Ok::<(), preempt::Error>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Speeds {
    tasks: usize,
    ways: Vec<Way>,
}

/// A way of sharing, and its matrix row by row.
#[derive(Clone, PartialEq, Debug)]
struct Way {
    sharing: Sharing,
    speeds: Vec<f64>,
}

/// The file, as JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    ways: Vec<Table>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    sharing: Sharing,
    speeds: Vec<Vec<f64>>,
}

/// Of the file.
const VERSION: u32 = 1;

impl Speeds {
    /// Speeds in one way of sharing, row by row; shape n × n. No rows are the speeds of no tasks.
    ///
    /// # Errors
    ///
    /// [`CoscheduleError::NotShared`], [`NotSquare`](CoscheduleError::NotSquare),
    /// [`NotASpeed`](CoscheduleError::NotASpeed), [`NotAloneAtFullSpeed`](CoscheduleError::NotAloneAtFullSpeed).
    pub fn new(way: Sharing, rows: Vec<Vec<f64>>) -> Result<Speeds, Error> {
        Speeds { tasks: rows.len(), ways: Vec::new() }.with(way, rows)
    }

    /// Speeds in one way of sharing, from the speed of task i beside task j for each `(i, j)` with i ≠ j. In a
    /// [split](Sharing::Split), the task with the smaller number has the first part: speeds of kernels are those of tasks if
    /// the kernels have the same order.
    ///
    /// ```
    /// use preempt::coschedule::{Sharing, Speeds};
    ///
    /// // The tasks run these kernels; two tasks can run the same kernel.
    /// let kernels = [0, 1, 1];
    /// let measured = [[0.6, 0.9], [0.8, 0.4]];
    /// let speeds = Speeds::from_fn(Sharing::AllSms, 3, |i, j| measured[kernels[i]][kernels[j]])?;
    /// assert_eq!(speeds.speed(0, 1, 2), 0.4);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CoscheduleError::NotShared`], [`NotASpeed`](CoscheduleError::NotASpeed).
    pub fn from_fn(
        way: Sharing,
        tasks: usize,
        mut speed: impl FnMut(usize, usize) -> f64,
    ) -> Result<Speeds, Error> {
        Speeds::in_ways([way], tasks, |_, i, j| speed(i, j))
    }

    /// No way of sharing.
    pub(super) fn none(tasks: usize) -> Speeds {
        Speeds { tasks, ways: Vec::new() }
    }

    /// Speeds in several ways of sharing, as [`from_fn`](Speeds::from_fn): from the speed of task i beside task j in the way
    /// of this number, for each `(way, i, j)` with i ≠ j.
    ///
    /// ```
    /// use preempt::coschedule::{Sharing, Speeds};
    ///
    /// // What was measured for kernels, for two tasks of each.
    /// let kernels = Speeds::in_ways(Sharing::COMMON, 2, |way, i, _| [0.5, 0.6, 0.7, 0.8][way] - 0.1 * i as f64)?;
    /// let beside_itself = 0.4;
    /// let tasks = Speeds::in_ways(kernels.ways(), 4, |way, i, j| match (i / 2, j / 2) {
    ///     (a, b) if a == b => beside_itself,
    ///     (a, b) => kernels.speed(way, a, b),
    /// })?;
    /// assert_eq!(tasks.speed(3, 1, 2), 0.8);
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`with`](Speeds::with), and [`CoscheduleError::NoWay`].
    pub fn in_ways(
        ways: impl IntoIterator<Item = Sharing>,
        tasks: usize,
        mut speed: impl FnMut(usize, usize, usize) -> f64,
    ) -> Result<Speeds, Error> {
        let mut speeds = Speeds::none(tasks);
        for (number, way) in ways.into_iter().enumerate() {
            let mut entry = |i, j| if i == j { 1.0 } else { speed(number, i, j) };
            let rows = (0..tasks).map(|i| (0..tasks).map(|j| entry(i, j)).collect()).collect();
            speeds = speeds.with(way, rows)?;
        }
        if speeds.ways.is_empty() { Err(CoscheduleError::NoWay.into()) } else { Ok(speeds) }
    }

    /// The same tasks with one more way of sharing.
    ///
    /// # Errors
    ///
    /// Those of [`new`](Speeds::new), [`CoscheduleError::WaysDiffer`], [`SameWay`](CoscheduleError::SameWay).
    pub fn with(mut self, sharing: Sharing, rows: Vec<Vec<f64>>) -> Result<Speeds, Error> {
        let (way, tasks) = (sharing.to_string(), rows.len());
        if !sharing.is_shared() {
            return Err(CoscheduleError::NotShared { way }.into());
        }
        if self.ways().any(|other| other == sharing) {
            return Err(CoscheduleError::SameWay { way }.into());
        }
        if tasks != self.tasks {
            let expected = self.tasks;
            return Err(CoscheduleError::WaysDiffer { way, rows: tasks, expected }.into());
        }
        if let Some(row) = rows.iter().position(|row| row.len() != tasks) {
            let length = rows[row].len();
            return Err(CoscheduleError::NotSquare { way, rows: tasks, row, length }.into());
        }
        for (task, row) in rows.iter().enumerate() {
            for (beside, &speed) in row.iter().enumerate() {
                if !(0.0..=1.0).contains(&speed) {
                    return Err(CoscheduleError::NotASpeed { way, task, beside, speed }.into());
                }
            }
            if row[task] != 1.0 {
                let speed = row[task];
                return Err(CoscheduleError::NotAloneAtFullSpeed { way, task, speed }.into());
            }
        }
        self.ways.push(Way { sharing, speeds: rows.concat() });
        Ok(self)
    }

    /// Tasks, which are rows of each matrix.
    pub fn tasks(&self) -> usize {
        self.tasks
    }

    /// The ways of sharing, in the order of their numbers.
    pub fn ways(&self) -> impl ExactSizeIterator<Item = Sharing> {
        self.ways.iter().map(|way| way.sharing)
    }

    /// The speed of a task beside another in the way with this number.
    ///
    /// # Panics
    ///
    /// If there is no such way or task.
    pub fn speed(&self, way: usize, task: usize, beside: usize) -> f64 {
        assert!(task < self.tasks && beside < self.tasks, "{} tasks", self.tasks);
        self.ways[way].speeds[task * self.tasks + beside]
    }

    /// What both tasks of a pair do in a second together beyond what they do in a second alone:
    /// `S[i][j] + S[j][i] - 1`. A pair that does not gain is never worth running together (section III).
    ///
    /// # Panics
    ///
    /// If there is no such way or task.
    pub fn gain(&self, way: usize, task: usize, beside: usize) -> f64 {
        self.speed(way, task, beside) + self.speed(way, beside, task) - 1.0
    }

    /// Writes the speeds to a file, as JSON. An existing file is replaced as a whole, so a concurrent reader sees the
    /// old one or the new one.
    ///
    /// # Errors
    ///
    /// [`CoscheduleError::NotKept`]; the file is as it was then.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let rows = |way: &Way| (0..self.tasks).map(|i| way.row(i, self.tasks).to_vec()).collect();
        let table = |way: &Way| Table { sharing: way.sharing, speeds: rows(way) };
        let contents = Contents { version: VERSION, ways: self.ways.iter().map(table).collect() };
        let text = serde_json::to_string(&contents).map_err(io::Error::from);
        let path = path.as_ref();
        text.and_then(|text| replace(path, &text)).map_err(|source| {
            let (path, source) = (path.to_owned(), Arc::new(source));
            CoscheduleError::NotKept { path, source }.into()
        })
    }

    /// Reads what [`save`](Speeds::save) wrote.
    ///
    /// # Errors
    ///
    /// [`CoscheduleError::NotRead`]; also if anything in the file is no speed matrix.
    pub fn load(path: impl AsRef<Path>) -> Result<Speeds, Error> {
        let path = path.as_ref();
        fs::read_to_string(path).and_then(|text| parse(&text)).map_err(|source| {
            let (path, source) = (path.to_owned(), Arc::new(source));
            CoscheduleError::NotRead { path, source }.into()
        })
    }
}

impl Way {
    fn row(&self, task: usize, tasks: usize) -> &[f64] {
        &self.speeds[task * tasks..][..tasks]
    }
}

fn parse(text: &str) -> io::Result<Speeds> {
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let contents: Contents = serde_json::from_str(text)?;
    if contents.version != VERSION {
        let version = contents.version;
        return Err(invalid(format!("it is of version {version}, and this reads {VERSION}")));
    }
    let tasks = contents.ways.first().map(|way| way.speeds.len());
    let none = || invalid(CoscheduleError::NoWay.to_string());
    let mut speeds = Speeds { tasks: tasks.ok_or_else(none)?, ways: Vec::new() };
    for Table { sharing, speeds: rows } in contents.ways {
        speeds = speeds.with(sharing, rows).map_err(|error| invalid(error.to_string()))?;
    }
    Ok(speeds)
}

/// One measurement of a kernel beside another (section V-A). Times in seconds.
///
/// ```
/// use preempt::coschedule::CoRun;
///
/// // Alone 10 ms; beside the other 12 ms, of which both ran for 8 ms.
/// let run = CoRun { alone: 0.010, together: 0.012, overlap: 0.008 };
/// assert!((run.speed(0.001)? - 0.75).abs() < 1e-12);
/// // Too short an overlap says nothing, and counts as speed 0.
/// assert_eq!(run.speed(0.009)?, 0.0);
/// # Ok::<(), preempt::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CoRun {
    /// Seconds that the kernel takes alone.
    pub alone: f64,
    /// Seconds that it took in this run, from its start to its end.
    pub together: f64,
    /// Seconds in which both kernels ran.
    pub overlap: f64,
}

impl CoRun {
    /// The kernel's speed beside the other: `1 - (together - alone) / overlap`, between 0 and 1. An overlap shorter than
    /// `least_overlap` seconds counts as speed 0.
    ///
    /// Outside the overlap the kernel runs as if alone, so all of its slowdown is due to the overlap. Of several runs of a
    /// pair the paper keeps each kernel's maximum. Where the hardware places blocks now in this way and now in that, these
    /// are of different runs, and the pair is never as fast: on an H200 a sort had a speed of 0.89 beside a particle filter
    /// in runs in which that had 0, and 0.32 in the one in which that had 0.56. So take both speeds from one run;
    /// [`Execution::measure`](super::Execution::measure) takes the run with the median of their sums.
    ///
    /// # Errors
    ///
    /// [`CoscheduleError::NotACoRun`]; [`CoscheduleError::NotATime`] for the least overlap.
    pub fn speed(&self, least_overlap: f64) -> Result<f64, Error> {
        if !is_time(least_overlap) {
            let (what, seconds) = ("the least overlap".into(), least_overlap);
            return Err(CoscheduleError::NotATime { what, seconds }.into());
        }
        let CoRun { alone, together, overlap } = *self;
        if ![alone, together, overlap].into_iter().all(is_time)
            || alone == 0.0
            || overlap > together
        {
            return Err(CoscheduleError::NotACoRun { alone, together, overlap }.into());
        }
        if overlap == 0.0 || overlap < least_overlap {
            return Ok(0.0);
        }
        Ok((1.0 - (together - alone) / overlap).clamp(0.0, 1.0))
    }
}

/// Whether it is a finite number of seconds, 0 or more.
pub(super) fn is_time(seconds: f64) -> bool {
    seconds.is_finite() && seconds >= 0.0
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A file for one test, which is removed afterwards.
    struct File(PathBuf);

    impl File {
        fn new(test: &str) -> File {
            File(
                std::env::temp_dir()
                    .join(format!("preempt-speeds-{test}-{}.json", std::process::id())),
            )
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let file = File::new("saved");
        let speeds = super::super::kit::Random(51).speeds(7, 3, 0.3);
        speeds.save(&file.0).expect("saved");
        assert_eq!(Speeds::load(&file.0).expect("loaded"), speeds);
        let none = Speeds::new(Sharing::AllSms, Vec::new()).expect("speeds");
        none.save(&file.0).expect("saved");
        assert_eq!(Speeds::load(&file.0).expect("loaded"), none);
    }

    #[test]
    fn files_that_are_no_speeds_are_refused() {
        let file = File::new("bad");
        for (text, says) in [
            ("", "EOF"),
            ("{}", "version"),
            (r#"{"version":1,"ways":[]}"#, "no way of sharing"),
            (
                r#"{"version":2,"ways":[{"sharing":"all-sms","speeds":[[1.0]]}]}"#,
                "of version 2, and this reads 1",
            ),
            (r#"{"version":1,"ways":[{"sharing":"all-sms","speeds":[[0.5]]}]}"#, "alone is 0.5"),
            (
                r#"{"version":1,"ways":[{"sharing":{"split":{"first":2,"of":2}},"speeds":[]}]}"#,
                "a part of the SMs",
            ),
            (
                r#"{"version":1,"ways":[{"sharing":"all-sms","speeds":[]},{"sharing":"all-sms","speeds":[]}]}"#,
                "twice",
            ),
            (r#"{"version":1,"ways":[{"sharing":"all-sms","speeds":[[1.0,0.5]]}]}"#, "entries"),
            (
                r#"{"version":1,"ways":[{"sharing":"all-sms","speeds":[[1.0]]},{"sharing":{"split":{"first":1,"of":2}},"speeds":[]}]}"#,
                "1/2` has 0 rows",
            ),
            (r#"{"version":1,"ways":[{"sharing":"all-sms","speeds":[[1.0]]}],"more":1}"#, "more"),
        ] {
            fs::write(&file.0, text).expect("written");
            let error = Speeds::load(&file.0).expect_err(text).to_string();
            assert!(error.contains(says) && error.contains("Speeds::save"), "{error}");
        }
        let error = Speeds::load(file.0.with_extension("none")).expect_err("no file").to_string();
        assert!(error.contains("cannot be read"), "{error}");
        let speeds = Speeds::new(Sharing::AllSms, Vec::new()).expect("speeds");
        let error = speeds.save(file.0.join("below")).expect_err("no folder").to_string();
        assert!(error.contains("cannot be kept"), "{error}");
    }

    /// Section V-A.
    #[test]
    fn speeds_follow_from_co_runs() {
        let speed = |alone, together, overlap| CoRun { alone, together, overlap }.speed(0.5);
        let near = |result: Result<f64, Error>, expected: f64| {
            let speed = result.expect("a speed");
            assert!((speed - expected).abs() < 1e-12, "{speed}, {expected}");
        };
        // The overlap is the whole run: the part of the time alone in the time together.
        near(speed(3.0, 4.0, 4.0), 0.75);
        near(speed(3.0, 4.0, 2.0), 0.5);
        // A clock that varies gives speeds beyond the range.
        near(speed(3.0, 2.9, 2.0), 1.0);
        near(speed(3.0, 6.0, 2.0), 0.0);
        near(speed(3.0, 3.0, 0.4), 0.0);
        near(speed(3.0, 3.0, 0.0), 0.0);
        let run = CoRun { alone: 3.0, together: 4.0, overlap: 4.0 };
        for run in [
            CoRun { alone: 0.0, ..run },
            CoRun { alone: f64::NAN, ..run },
            CoRun { together: -1.0, ..run },
            CoRun { overlap: 5.0, ..run },
            CoRun { overlap: f64::INFINITY, ..run },
        ] {
            assert!(run.speed(0.5).is_err(), "{run:?}");
        }
        assert!(run.speed(f64::NAN).is_err());
    }
}
