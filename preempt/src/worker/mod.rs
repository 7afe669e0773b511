//! Work of which nothing but its input and its output is known, in processes of its own.
//!
//! A *worker* is a process that runs functions by name: bytes in, bytes out. A task of a [pool](crate::pool) calls them with
//! [`Run::call`](crate::pool::Run::call). What runs in a worker may be of any library, and may fault: a process that dies
//! is an error of its task alone. A task that has to leave its device has its worker killed, with all processes that this has
//! started, which gives back the device, and later its memory, whatever they do. A *standby*, which has done what takes long at
//! a start, takes its place.
//!
//! The process is this program's own, if its `main` begins with [`serve_if_worker`](Functions::serve_if_worker), or one whose
//! `main` does nothing else:
//!
//! ```no_run
//! use preempt::worker::{Functions, Job};
//!
//! fn sum(job: &Job) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
//!     let sum: u64 = job.input.iter().map(|&byte| u64::from(byte)).sum();
//!     Ok(sum.to_le_bytes().to_vec())
//! }
//!
//! # fn main() -> Result<(), preempt::Error> {
//! Functions::new().add("sum", sum).serve_if_worker();
//! // The application, in the process that its user has started.
//! use preempt::pool::{Class, Pool, Task};
//! use preempt::{Device, worker::Workers};
//!
//! let pool = Pool::builder().device(Device::cpu()?).workers(Workers::this_program()?).build()?;
//! let nightly = pool.application(Class::Batch);
//! let task = Task::new("sum", |run| run.call("sum", &[1, 2, 3])).opaque();
//! assert_eq!(nightly.submit(&task)?.wait()?, 6u64.to_le_bytes());
//! # Ok(())
//! # }
//! ```
//!
//! # What holds
//!
//! - A process becomes a worker only by what it finds on its standard input: a socket, on which the process that has started it
//!   says so. An environment variable alone does not make it one.
//! - Nothing listens: the two have a pair of sockets that no other process has. Contents are in memory whose descriptors go over
//!   these, and so are [buffers](crate::pool::Run::shared) of the task's device, which both sides use where they lie
//!   ([`Run::call_with`](crate::pool::Run::call_with)).
//! - A worker ends when the process that has started it does, also in the middle of a function. It has a process group of its
//!   own: a key that interrupts the application does not interrupt its workers.
//! - Messages that are none, answers that do not come in [time](Workers::time_limit), and ends of the process are errors of the
//!   call, and another worker takes its place.
//!
//! # On a GPU
//!
//! Kernels of two processes share a GPU by time slices of milliseconds, whatever their priorities are. So an
//! [opaque](crate::pool::Task::opaque) task has its device alone, and belongs to a batch application: it is killed where a
//! user-facing task needs the device. The next task begins at the kill. (H200: its first kernel has run within 5 ms, and 20 GiB of
//! the worker's are free after 84 ms; suite `pool`.) Where it finds no memory, it waits until the process is gone. After a call
//! with [buffers](crate::pool::Run::call_with) it begins then, because kernels of the worker may write them until then. On what
//! runs beside the pool, and is not in it, nothing of this has an influence.
//!
//! Workers exist on Linux.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, fmt, thread};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::SocketType;
use rustix::process::Signal;

use crate::error::caught;

mod process;
mod wire;
mod workers;

pub(crate) use process::Killer;
pub(crate) use wire::Shared;
use wire::{Kind, Message, Silence};
pub use workers::{Standby, Workers};
pub(crate) use workers::{Standbys, start_all};

/// The variable that has a process look at its standard input.
const VARIABLE: &str = "PREEMPT_WORKER";

/// The longest that the two wait for each other's first words, which take no work.
const GREETING: Duration = Duration::from_secs(10);

/// Whether the `main` of this process has begun as that of a worker would.
static BEGAN: AtomicBool = AtomicBool::new(false);

/// What a function of a worker gives.
type Given<T> = Result<T, Box<dyn StdError>>;
type Function = dyn Fn(&Job) -> Given<Vec<u8>>;
type Warm = dyn FnOnce(usize) -> Given<u64>;

/// A buffer of the task that a call is given ([`Run::call_with`](crate::pool::Run::call_with)), as the worker sees it.
#[derive(Clone, Debug)]
// The pool's layer opens it, since it knows of devices (`pool/shared.rs`).
pub struct SharedMemory(pub(crate) Shared);

impl SharedMemory {
    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes as usize
    }
}

/// A call of a function, as the worker sees it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Job {
    /// The number of the worker's device among those of the pool.
    pub device: usize,
    /// What the task gave.
    pub input: Vec<u8>,
    /// The buffers that it gave, which are this function's until it returns.
    pub buffers: Vec<SharedMemory>,
}

/// The functions of a worker, by their names.
#[derive(Default)]
#[must_use = "a process serves nothing before `serve_if_worker`"]
pub struct Functions {
    functions: BTreeMap<String, Box<Function>>,
    warm: Option<Box<Warm>>,
}

impl Functions {
    /// No functions.
    pub fn new() -> Functions {
        Functions::default()
    }

    /// Adds a function, in the place of one of the same name. A panic in it is an error of the call.
    pub fn add(
        mut self,
        name: impl Into<String>,
        function: impl Fn(&Job) -> Result<Vec<u8>, Box<dyn StdError>> + 'static,
    ) -> Functions {
        self.functions.insert(name.into(), Box::new(function));
        self
    }

    /// Does what takes long at a start, before the first call: opens the device of this number, loads modules, allocates. Returns
    /// the device memory that a standby has by that, in bytes, which is [told](crate::pool::Pool::standbys).
    pub fn warm(
        mut self,
        warm: impl FnOnce(usize) -> Result<u64, Box<dyn StdError>> + 'static,
    ) -> Functions {
        self.warm = Some(Box::new(warm));
        self
    }

    /// In a process that a pool has started as a worker, serves calls and does not return. In any other process, returns at once.
    ///
    /// It is the first thing that `main` does: what comes before is done in each worker.
    pub fn serve_if_worker(self) {
        // Relaxed, here and where it is read: the flag alone counts, and no other memory goes with it.
        BEGAN.store(true, Ordering::Relaxed);
        if env::var_os(VARIABLE).is_none() {
            return;
        }
        let Some((socket, device)) = greeted() else { return };
        // An end of the other side, or a message that cannot be: there is no one to tell.
        let _ = self.serve(socket, device);
        end();
    }

    fn serve(self, socket: OwnedFd, device: usize) -> Result<(), Silence> {
        let Functions { functions, warm } = self;
        end_with(socket.try_clone()?);
        let socket = socket.as_fd();
        let warmed = caught(|| warm.map_or(Ok(0), |warm| warm(device)));
        match warmed {
            Ok(Ok(memory)) => wire::send(socket, &Message::new(Kind::Ready, memory))?,
            Ok(Err(error)) => return fail(socket, error.to_string()),
            Err(message) => return fail(socket, format!("it panicked: {message}")),
        }
        loop {
            let call = wire::receive(socket, None)?;
            let Message { kind: Kind::Call, number, name, contents: input, buffers } = call else {
                return Ok(());
            };
            let answer = |kind, contents: Vec<u8>| {
                wire::send(socket, &Message { contents, ..Message::new(kind, number) })
            };
            let Some(function) = functions.get(&name) else {
                let known: Vec<_> = functions.keys().map(String::as_str).collect();
                answer(Kind::Unknown, known.join("`, `").into_bytes())?;
                continue;
            };
            let buffers = buffers.into_iter().map(SharedMemory).collect();
            let job = Job { device, input, buffers };
            match caught(|| function(&job)) {
                Ok(Ok(output)) => answer(Kind::Output, output)?,
                Ok(Err(error)) => answer(Kind::Failed, error.to_string().into_bytes())?,
                Err(message) => {
                    answer(Kind::Failed, format!("it panicked: {message}").into_bytes())?;
                }
            }
        }
    }
}

fn fail(socket: BorrowedFd<'_>, why: String) -> Result<(), Silence> {
    let contents = why.into_bytes();
    wire::send(socket, &Message { contents, ..Message::new(Kind::Failed, 0) })
}

/// The socket on the standard input, and the number of the device, if the process that has started this one says that it is a
/// worker. It has said so before it started this one.
fn greeted() -> Option<(OwnedFd, usize)> {
    let stdin = std::io::stdin();
    let kind = rustix::net::sockopt::socket_type(&stdin).ok()?;
    if kind != SocketType::SEQPACKET {
        return None;
    }
    let socket = stdin.as_fd().try_clone_to_owned().ok()?;
    let hello = wire::receive(socket.as_fd(), Some(Instant::now())).ok()?;
    if hello.kind != Kind::Hello {
        return None;
    }
    // It is a worker from here on: an error must not have it go on as the application. Code that reads the standard input finds
    // nothing there.
    let nothing = std::fs::File::open("/dev/null");
    let is_closed = nothing.is_ok_and(|nothing| rustix::stdio::dup2_stdin(&nothing).is_ok());
    if !is_closed || wire::send(socket.as_fd(), &hello).is_err() {
        end();
    }
    Some((socket, hello.number as usize))
}

/// Ends this process when the other side of the socket does, whatever it is doing.
fn end_with(socket: OwnedFd) {
    thread::spawn(move || {
        loop {
            let mut polled = [PollFd::new(&socket, PollFlags::empty())];
            match poll(&mut polled, None) {
                Err(rustix::io::Errno::INTR) => {}
                // Hung up, or an error that leaves nothing to wait for.
                _ => end(),
            }
        }
    });
}

/// Ends this process, with those that it has started, without what is usually done at an end: a driver would wait there for its
/// kernels.
fn end() -> ! {
    let (process, group) = (rustix::process::getpid(), rustix::process::getpgrp());
    if process == group {
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
    let _ = rustix::process::kill_process(process, Signal::KILL);
    std::process::abort()
}

/// Whether the `main` of this process has begun as that of a worker would.
fn began() -> bool {
    BEGAN.load(Ordering::Relaxed)
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.functions.keys()).finish()
    }
}
