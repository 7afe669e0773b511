//! A worker, as the process that has started it sees it.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::wire::{self, Kind, LONGEST_NAME, MOST_BUFFERS, Message, Shared, Silence};
use super::{GREETING, VARIABLE};
use crate::error::{Error, WorkerError};

/// A worker that has no call, or one.
#[derive(Debug)]
pub(crate) struct Process {
    socket: Arc<OwnedFd>,
    killer: Killer,
    program: Arc<Path>,
    device: usize,
    /// The device memory that it has, in bytes, once it is ready.
    memory: Option<u64>,
    calls: u64,
}

/// Kills a worker, also while another thread waits for it.
#[derive(Clone, Debug)]
pub(crate) struct Killer {
    killed: Arc<Mutex<Killed>>,
    socket: Arc<OwnedFd>,
}

#[derive(Debug)]
struct Killed {
    child: Child,
    /// Once its end was waited for, by this or by another part of the program: another process may have its number then. A part
    /// that waits for all children takes the status.
    end: Option<Option<ExitStatus>>,
    /// Set when its call does not wait for its end.
    is_let_go: bool,
}

/// Time between two looks whether a killed process is gone, at most.
pub(super) const LOOK: Duration = Duration::from_millis(1);

/// The longest that a thread waits for the end of a process that was killed: what a driver takes to give back a full device, a
/// hundred times (81 ms, H200). A process that hangs in the driver takes longer.
const TEARDOWN: Duration = Duration::from_secs(8);

impl Killer {
    fn lock(&self) -> MutexGuard<'_, Killed> {
        self.killed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills it with all processes that it has started; it may have ended.
    pub fn kill(&self) {
        self.lock().kill();
    }

    /// The same; its call returns at once, and not when it is gone, which a driver takes its time for.
    pub fn let_go(&self) {
        let mut killed = self.lock();
        killed.is_let_go = true;
        killed.kill();
        // Its own end is closed late in its end.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// The status of a process that is to be gone, waited for unless its call is not to wait.
    fn status(&self) -> Option<ExitStatus> {
        let is_let_go = self.lock().is_let_go;
        if is_let_go { None } else { self.reap().flatten() }
    }

    /// Waits until the process is gone, which was killed, and at most for a while; its status, if it is gone and that is known.
    /// Other threads may kill it meanwhile.
    fn reap(&self) -> Option<Option<ExitStatus>> {
        let begin = Instant::now();
        loop {
            let end = self.end();
            if end.is_some() || begin.elapsed() > TEARDOWN {
                return end;
            }
            thread::sleep(LOOK.min(begin.elapsed()));
        }
    }

    fn end(&self) -> Option<Option<ExitStatus>> {
        let mut killed = self.lock();
        if killed.end.is_none() {
            killed.end = match killed.child.try_wait() {
                Ok(status) => status.map(Some),
                Err(_) => Some(None),
            };
        }
        killed.end
    }
}

impl Killed {
    fn kill(&mut self) {
        if self.end.is_none() {
            if let Some(group) = Pid::from_raw(self.child.id() as i32) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = self.child.kill();
        }
    }
}

impl Process {
    /// Starts a worker for a device, and does not wait until it is ready.
    pub fn start(program: &Arc<Path>, device: usize) -> Result<Process, Error> {
        let failed = |source: std::io::Error| {
            let (program, source) = (program.to_path_buf(), Arc::new(source));
            Error::from(WorkerError::NotStarted { program, source })
        };
        let (here, there) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|error| failed(error.into()))?;
        // Before the worker is there to look: without it, it would be the application once more.
        let hello = Message::new(Kind::Hello, device as u64);
        wire::send(here.as_fd(), &hello).map_err(|silence| match silence {
            Silence::System(source) => failed(source),
            _ => failed(std::io::ErrorKind::BrokenPipe.into()),
        })?;
        let mut command = Command::new(&**program);
        command.env(VARIABLE, "1").stdin(Stdio::from(there)).process_group(0);
        let (child, end, is_let_go) = (command.spawn().map_err(failed)?, None, false);
        let (killed, socket) = (Mutex::new(Killed { child, end, is_let_go }), Arc::new(here));
        let killer = Killer { killed: Arc::new(killed), socket: socket.clone() };
        let (program, memory, calls) = (program.clone(), None, 0);
        Ok(Process { socket, killer, program, device, memory, calls })
    }

    /// Whether it has not ended. Its end is not waited for, so that `kill` still finds what it has started.
    pub fn is_alive(&self) -> bool {
        let killed = self.killer.lock();
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let process = Pid::from_raw(killed.child.id() as i32);
        let ended = process.map(|process| waitid(WaitId::Pid(process), options));
        killed.end.is_none() && matches!(ended, Some(Ok(None)))
    }

    pub fn memory(&self) -> Option<u64> {
        self.memory
    }

    pub fn id(&self) -> u32 {
        self.killer.lock().child.id()
    }

    pub fn killer(&self) -> Killer {
        self.killer.clone()
    }

    /// The device memory that it has, in bytes, as soon as it is ready; waits at most for `limit`.
    pub fn ready(&mut self, limit: Duration) -> Result<u64, Error> {
        if let Some(memory) = self.memory {
            return Ok(memory);
        }
        let no_worker = |why: String| {
            self.killer.kill();
            let program = self.program.to_path_buf();
            Err(WorkerError::NoWorker { program, why: why.into() }.into())
        };
        match wire::receive(self.socket.as_fd(), Instant::now().checked_add(GREETING)) {
            Ok(Message { kind: Kind::Hello, number, .. }) if number == self.device as u64 => {}
            Ok(_) => return no_worker("it answers as something else".into()),
            Err(Silence::Ended) => {
                // It may have closed its standard input and gone on.
                self.killer.kill();
                let status = self.killer.status();
                let status = status.map_or_else(String::new, |status| format!(" ({status})"));
                return no_worker(format!("it has ended{status}"));
            }
            Err(Silence::Late) => return no_worker("it says nothing".into()),
            Err(Silence::Nonsense(what)) => return no_worker(format!("it sends {what}")),
            Err(silence) => return Err(self.error("", silence)),
        }
        match wire::receive(self.socket.as_fd(), Instant::now().checked_add(limit)) {
            Ok(Message { kind: Kind::Ready, number, .. }) => Ok(*self.memory.insert(number)),
            Ok(Message { kind: Kind::Failed, contents, .. }) => {
                // It ends by itself.
                self.killer.kill();
                let message = String::from_utf8_lossy(&contents).into();
                Err(WorkerError::Failed { function: "warm".into(), message }.into())
            }
            Ok(_) => Err(self.error("warm", Silence::Nonsense("an answer to something else"))),
            Err(silence) => Err(self.error("warm", silence)),
        }
    }

    /// Calls a function, and waits for what it gives, at most for `limit`. After an error of the worker's, as opposed to one that
    /// the function returns, it is gone.
    pub fn call(
        &mut self,
        function: &str,
        input: &[u8],
        buffers: Vec<Shared>,
        limit: Duration,
    ) -> Result<Vec<u8>, Error> {
        if function.len() > LONGEST_NAME {
            let (function, limit) = (function.into(), LONGEST_NAME);
            return Err(WorkerError::LongName { function, limit }.into());
        }
        if buffers.len() > MOST_BUFFERS {
            let (function, buffers, limit) = (function.into(), buffers.len(), MOST_BUFFERS);
            return Err(WorkerError::ManyBuffers { function, buffers, limit }.into());
        }
        self.ready(limit)?;
        self.calls += 1;
        let (name, contents) = (function.to_owned(), input.to_vec());
        let call = Message { name, contents, buffers, ..Message::new(Kind::Call, self.calls) };
        wire::send(self.socket.as_fd(), &call).map_err(|silence| self.error(function, silence))?;
        let answer = wire::receive(self.socket.as_fd(), Instant::now().checked_add(limit));
        match answer.map_err(|silence| self.error(function, silence))? {
            Message { number, .. } if number != self.calls => {
                Err(self.error(function, Silence::Nonsense("an answer to something else")))
            }
            Message { kind: Kind::Output, contents, .. } => Ok(contents),
            Message { kind: Kind::Failed, contents, .. } => {
                let message = String::from_utf8_lossy(&contents).into();
                Err(WorkerError::Failed { function: function.into(), message }.into())
            }
            Message { kind: Kind::Unknown, contents, .. } => {
                let known = String::from_utf8_lossy(&contents).into();
                Err(WorkerError::NoFunction { function: function.into(), known }.into())
            }
            _ => Err(self.error(function, Silence::Nonsense("an answer to something else"))),
        }
    }

    /// The error of a worker that is to be gone.
    fn error(&self, function: &str, silence: Silence) -> Error {
        let function = function.into();
        self.killer.kill();
        let status = self.killer.status();
        match silence {
            Silence::Ended => {
                let status = status.map_or("without a status".into(), |status| status.to_string());
                WorkerError::Died { function, status: status.into() }
            }
            Silence::Late => WorkerError::Late { function },
            Silence::Nonsense(what) => WorkerError::Nonsense { function, what },
            Silence::System(source) => WorkerError::Broken { function, source: Arc::new(source) },
        }
        .into()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.killer.kill();
        if self.killer.reap().is_none() {
            // It hangs in the driver; its end is to be waited for all the same, whenever it comes.
            let killer = self.killer.clone();
            let waits = move || while killer.reap().is_none() {};
            let _ = thread::Builder::new().name("preempt-worker".into()).spawn(waits);
        }
    }
}
