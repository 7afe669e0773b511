//! Errors of programs.

use std::sync::Arc;

/// A program that cannot be made, changed or launched as it was asked for.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// A program without calls.
    #[error(
        "program `{program}` has no call; record at least one launch, copy or fill, or leave the program out where \
         there is nothing to do"
    )]
    Empty {
        /// The program's name.
        program: &'static str,
    },
    /// More calls than a program can have.
    #[error("program `{program}`: a program has at most {limit} calls; make two programs of it")]
    TooManyCalls {
        /// The program's name.
        program: &'static str,
        /// Calls that a program can have.
        limit: usize,
    },
    /// A value to fill memory with that is too long.
    #[error(
        "program `{program}` fills a buffer with a value of {bytes} bytes, and {limit} is the most; upload it to a buffer \
         before, and copy that"
    )]
    LongValue {
        /// The program's name.
        program: &'static str,
        /// Bytes of the value.
        bytes: usize,
        /// Bytes that a value can have.
        limit: usize,
    },
    /// A place in another program.
    #[error(
        "program `{program}` is given a place in another program; use what `ProgramBuilder::launch` returned for this one"
    )]
    OtherProgram {
        /// The name of the program that was to be changed.
        program: &'static str,
    },
    /// A call of another kernel than was recorded in its place.
    #[error(
        "program `{program}` launches kernel `{recorded}` there, not `{given}`; give it a call of `{recorded}`, or record \
         another program"
    )]
    OtherKernel {
        /// The program's name.
        program: &'static str,
        /// The kernel that was recorded.
        recorded: &'static str,
        /// The kernel of the call that was given.
        given: &'static str,
    },
    /// An input of another program.
    #[error(
        "`{name}` is given an input of another program, or of a program that has none; give it an input from its own \
         `ProgramBuilder::input`, and a buffer elsewhere"
    )]
    OtherInput {
        /// The name of the program or kernel that was to use it.
        name: &'static str,
    },
    /// Work of another library that cannot be captured.
    #[error("program `{program}`: `{name}` cannot be captured: {message}")]
    Capture {
        /// The program's name.
        program: &'static str,
        /// The name of the work.
        name: &'static str,
        /// What went wrong, and what to do.
        message: Arc<str>,
    },
    /// A program that a run of a pool's task has recorded.
    #[error(
        "program `{program}` was recorded by a run of a task; launch it with `Run::launch_program`, so that the pool sees it"
    )]
    OfRuns {
        /// The program's name.
        program: &'static str,
    },
    /// A stream of another scheduler.
    #[error(
        "program `{program}` belongs to another scheduler than the stream; launch it on a stream of its own scheduler, \
         or record it with this one"
    )]
    OtherScheduler {
        /// The program's name.
        program: &'static str,
    },
}
