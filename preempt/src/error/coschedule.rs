use std::path::PathBuf;
use std::sync::Arc;

/// Jobs or speeds that cannot be co-scheduled as they were given.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CoscheduleError {
    /// A job's duration is negative, infinite or not a number.
    #[error(
        "the duration of job {job} `{name}` is {seconds} s; give a finite number of seconds, 0 or more"
    )]
    NotADuration {
        /// The job's place in the list, from 0 on.
        job: usize,
        /// The job's name.
        name: String,
        /// What was given.
        seconds: f64,
    },
    /// A release time or the cost of a preemption is negative, infinite or not a number.
    #[error("{what} is {seconds} s; give a finite number of seconds, 0 or more")]
    NotATime {
        /// What the time is for.
        what: String,
        /// What was given.
        seconds: f64,
    },
    /// There are more or fewer jobs than tasks in the speed matrix.
    #[error(
        "{jobs} jobs, and speeds of {tasks} tasks; give one job for each row of the speed matrix"
    )]
    OtherTasks {
        /// Jobs that were given.
        jobs: usize,
        /// Rows of the speed matrix.
        tasks: usize,
    },
    /// A stream was bound to a job that is not there.
    #[error("there is no job {job}: the plan has {jobs} jobs, numbered from 0 on")]
    NoSuchJob {
        /// The number that was given.
        job: usize,
        /// Jobs of the plan.
        jobs: usize,
    },
    /// A job that is measured had no launch.
    #[error(
        "job {job} `{name}` launched nothing; launch it on a stream that is bound to it with `Execution::bind`, of a \
         scheduler that has the execution as its policy"
    )]
    NothingRan {
        /// The job's place in the list, from 0 on.
        job: usize,
        /// The job's name.
        name: String,
    },
    /// There are more or fewer release times than jobs.
    #[error("{releases} release times for {jobs} jobs; give one for each job")]
    OtherReleases {
        /// Release times that were given.
        releases: usize,
        /// Jobs that were given.
        jobs: usize,
    },
    /// A speed matrix is not square.
    #[error(
        "the speed matrix `{way}` has {rows} rows, and row {row} has {length} entries; give {rows} entries in each row"
    )]
    NotSquare {
        /// The way of sharing.
        way: String,
        /// Rows of the matrix.
        rows: usize,
        /// A row of another length.
        row: usize,
        /// Its length.
        length: usize,
    },
    /// Two ways of sharing have speeds of different numbers of tasks.
    #[error(
        "the speed matrix `{way}` has {rows} rows, and that of the first way has {expected}; measure the same tasks in each way"
    )]
    WaysDiffer {
        /// The way of sharing.
        way: String,
        /// Rows of its matrix.
        rows: usize,
        /// Rows of the first way's matrix.
        expected: usize,
    },
    /// No way of sharing was given.
    #[error("there is no way of sharing; give one speed matrix at least")]
    NoWay,
    /// A way of sharing gives one of the jobs nothing.
    #[error(
        "`{way}` gives one of the jobs nothing; give the first job a part of the SMs, and not all of them, such as \
         `Sharing::split(1, 2)`"
    )]
    NotShared {
        /// The way of sharing.
        way: String,
    },
    /// Two speed matrices are of the same way of sharing.
    #[error("there are speeds in `{way}` twice; give one speed matrix for each way")]
    SameWay {
        /// The way of sharing.
        way: String,
    },
    /// A speed is not between 0 and 1.
    #[error(
        "the speed of task {task} beside task {beside} is {speed} in `{way}`; a speed is a finite number \
         from 0 (no progress) to 1 (as fast as alone)"
    )]
    NotASpeed {
        /// The way of sharing.
        way: String,
        /// The task that runs at that speed.
        task: usize,
        /// The task beside it.
        beside: usize,
        /// What was given.
        speed: f64,
    },
    /// An entry of the diagonal is not 1.
    #[error("the speed of task {task} alone is {speed} in `{way}`; write 1 on the diagonal")]
    NotAloneAtFullSpeed {
        /// The way of sharing.
        way: String,
        /// The task.
        task: usize,
        /// What was given.
        speed: f64,
    },
    /// Times of a co-run from which no speed follows.
    #[error(
        "a co-run took {together} s, {alone} s alone, with an overlap of {overlap} s; give finite times \
         of 0 or more, more than 0 alone, and an overlap no longer than the co-run"
    )]
    NotACoRun {
        /// Seconds that the kernel took alone.
        alone: f64,
        /// Seconds that it took beside the other.
        together: f64,
        /// Seconds that both ran.
        overlap: f64,
    },
    /// A graph that [`caterpillars`](crate::coschedule::caterpillars) does not split.
    #[error("{reason}")]
    NotAPseudoForest {
        /// What is wrong with it, and what is allowed.
        reason: String,
    },
    /// The linear program was not solved.
    #[error(
        "the durations of the intervals were not found: {reason}; plan jobs whose durations differ by more \
         than nine orders of magnitude separately, or use `CoSchedule::max_pair`"
    )]
    NotSolved {
        /// What the solver said.
        reason: String,
    },
    /// A file of speeds cannot be read.
    #[error(
        "speeds cannot be read from `{}`: {source}; give `Speeds::load` a file that `Speeds::save` of this \
         version wrote, or measure anew", path.display()
    )]
    NotRead {
        /// The file.
        path: PathBuf,
        /// What the operating system said, or what is wrong with the file.
        source: Arc<std::io::Error>,
    },
    /// A file of speeds cannot be written.
    #[error(
        "speeds cannot be kept in `{}`: {source}; give `Speeds::save` a file in a folder that is there and \
         can be written to", path.display()
    )]
    NotKept {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: Arc<std::io::Error>,
    },
}
