//! A worker, as the process that has started it sees it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::wire::{self, Kind, LONGEST_NAME, Message, Silence};
use super::{GREETING, VARIABLE};
use crate::error::{Error, WorkerError};

/// A worker that has no call, or one.
#[derive(Debug)]
pub(crate) struct Process {
    socket: OwnedFd,
    killer: Killer,
    program: Arc<Path>,
    device: usize,
    /// The device memory that it has, in bytes, once it is ready.
    memory: Option<u64>,
}

/// Kills a worker, also while another thread waits for it.
#[derive(Clone, Debug)]
pub(crate) struct Killer(Arc<Mutex<Child>>);

impl Killer {
    pub fn kill(&self) {
        let mut child = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // It may have ended.
        let _ = child.kill();
    }

    /// Waits until the process is gone, which was killed.
    fn reap(&self) -> Option<ExitStatus> {
        let mut child = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        child.wait().ok()
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
        let mut command = Command::new(&**program);
        command.env(VARIABLE, "1").stdin(Stdio::from(there));
        let killer = Killer(Arc::new(Mutex::new(command.spawn().map_err(failed)?)));
        let process =
            Process { socket: here, killer, program: program.clone(), device, memory: None };
        // It is in the socket before the worker looks.
        let hello = Message::new(Kind::Hello, device as u64);
        match wire::send(process.socket.as_fd(), &hello) {
            Ok(()) | Err(Silence::Ended) => Ok(process),
            Err(silence) => Err(process.error("", silence)),
        }
    }

    /// Whether it has not ended.
    pub fn is_alive(&self) -> bool {
        let mut child = self.killer.0.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(child.try_wait(), Ok(None))
    }

    pub fn memory(&self) -> Option<u64> {
        self.memory
    }

    pub fn id(&self) -> u32 {
        self.killer.0.lock().unwrap_or_else(PoisonError::into_inner).id()
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
                let status = self.killer.reap();
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
        limit: Duration,
    ) -> Result<Vec<u8>, Error> {
        if function.len() > LONGEST_NAME {
            let (function, limit) = (function.into(), LONGEST_NAME);
            return Err(WorkerError::LongName { function, limit }.into());
        }
        self.ready(limit)?;
        let name = function.to_owned();
        let call = Message { name, ..Message::with(Kind::Call, input.to_vec()) };
        wire::send(self.socket.as_fd(), &call).map_err(|silence| self.error(function, silence))?;
        let answer = wire::receive(self.socket.as_fd(), Instant::now().checked_add(limit));
        match answer.map_err(|silence| self.error(function, silence))? {
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
        let status = self.killer.reap();
        match silence {
            Silence::Ended => {
                let status = status.map_or("without a status".into(), |status| status.to_string());
                WorkerError::Died { function, status: status.into() }
            }
            Silence::Late => WorkerError::Late { function },
            Silence::Nonsense(what) => WorkerError::Nonsense { function, what },
            Silence::System(source) => {
                let (program, source) = (self.program.to_path_buf(), Arc::new(source));
                WorkerError::NotStarted { program, source }
            }
        }
        .into()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.killer.kill();
        self.killer.reap();
    }
}
