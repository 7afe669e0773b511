use std::path::PathBuf;
use std::sync::Arc;

/// Why a worker process cannot be started, or how its call failed.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The program's own `main` does not begin as a worker's.
    #[error(
        "this program cannot be its own worker: let its `main` begin with `Functions::serve_if_worker`, or name another \
         program with `Workers::program`"
    )]
    NotServed,
    /// The program cannot be started.
    #[error(
        "the worker `{program}` cannot be started: {source}; name a program that is there and may be run"
    )]
    NotStarted {
        /// The program.
        program: PathBuf,
        /// What the operating system said.
        source: Arc<std::io::Error>,
    },
    /// The program is no worker, or one of another version.
    #[error(
        "`{program}` is no worker: {why}; its `main` has to begin with `Functions::serve_if_worker`, of this version of \
         the library"
    )]
    NoWorker {
        /// The program.
        program: PathBuf,
        /// What it did.
        why: Arc<str>,
    },
    /// A pool without workers.
    #[error(
        "`{function}` is called in a pool without workers; name them with `PoolBuilder::workers`"
    )]
    None {
        /// The function.
        function: Arc<str>,
    },
    /// A call by a task that may share its device.
    #[error(
        "task `{task}` calls a worker, and is not opaque; say `Task::opaque`, so that it has its device alone, and submit \
         it to a batch application"
    )]
    NotOpaque {
        /// The task's name.
        task: Arc<str>,
    },
    /// A function that the worker does not have.
    #[error("the worker has no function `{function}`; it has `{known}`")]
    NoFunction {
        /// The function.
        function: Arc<str>,
        /// Those that it has.
        known: Arc<str>,
    },
    /// The name of a function that is too long.
    #[error("the name of a worker's function has at most {limit} bytes; shorten `{function}`")]
    LongName {
        /// The name.
        function: Arc<str>,
        /// Bytes that a name can have.
        limit: usize,
    },
    /// A call that is given a buffer which no other process can have.
    #[error(
        "`{function}` is given a buffer that no other process can open; make it with `Run::shared`"
    )]
    NotShared {
        /// The function.
        function: Arc<str>,
    },
    /// A call that is given too many buffers.
    #[error(
        "`{function}` is given {buffers} buffers, and takes at most {limit}; join some of them"
    )]
    ManyBuffers {
        /// The function.
        function: Arc<str>,
        /// Buffers of the call.
        buffers: usize,
        /// Buffers that a call can have.
        limit: usize,
    },
    /// Memory of a GPU that a worker opens on a CPU device, or the other way round.
    #[error(
        "the memory of the call is a {given}'s, and is opened on a {opened}; open it on the one whose number is `Job::device`"
    )]
    OtherKind {
        /// The kind of device that the task has.
        given: &'static str,
        /// The kind of the device that the worker named.
        opened: &'static str,
    },
    /// Memory that a worker opens as elements of which it has no whole number.
    #[error(
        "the memory of the call has {bytes} bytes, which are no whole number of elements of {element}; open it with the type that \
         the task has made it with"
    )]
    NotWhole {
        /// Bytes of the memory.
        bytes: usize,
        /// Bytes of an element.
        element: usize,
    },
    /// The function returned an error, or panicked.
    #[error("`{function}` failed in its worker: {message}")]
    Failed {
        /// The function.
        function: Arc<str>,
        /// What it said.
        message: Arc<str>,
    },
    /// The process ended before the function did.
    #[error("the worker died in `{function}`: {status}; another one has taken its place")]
    Died {
        /// The function.
        function: Arc<str>,
        /// How the process ended.
        status: Arc<str>,
    },
    /// The function took too long.
    #[error(
        "`{function}` was not over in time, and its worker was killed; see `Workers::time_limit`"
    )]
    Late {
        /// The function.
        function: Arc<str>,
    },
    /// The operating system refused what a call needs.
    #[error("the worker of `{function}` could not be talked to, and was killed: {source}")]
    Broken {
        /// The function.
        function: Arc<str>,
        /// What the operating system said.
        source: Arc<std::io::Error>,
    },
    /// The worker sent something that is no answer.
    #[error("the worker of `{function}` sent {what}, and was killed")]
    Nonsense {
        /// The function.
        function: Arc<str>,
        /// What it sent.
        what: &'static str,
    },
}
