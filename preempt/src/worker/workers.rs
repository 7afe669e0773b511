//! Which program the workers are, and the standbys of a device.

use std::collections::VecDeque;
use std::env;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::began;
use super::process::{Killer, Process};
use super::wire::Shared;
use crate::error::{Error, WorkerError};

/// The longest that a call takes unless an application says otherwise: a worker that hangs has its device for so long.
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// Which program the workers of a pool are, and how many stand by.
#[derive(Clone, Debug)]
#[must_use = "no worker is started before `PoolBuilder::build`"]
pub struct Workers {
    program: Arc<Path>,
    standbys: usize,
    time_limit: Duration,
}

impl Workers {
    /// Workers that are this program.
    ///
    /// # Errors
    ///
    /// [`WorkerError::NotServed`] if its `main` has not begun with
    /// [`serve_if_worker`](super::Functions::serve_if_worker): each worker would be the whole application once more.
    pub fn this_program() -> Result<Workers, Error> {
        if !began() {
            return Err(WorkerError::NotServed.into());
        }
        let program = env::current_exe().map_err(|source| {
            let (program, source) = (PathBuf::from("this program"), Arc::new(source));
            WorkerError::NotStarted { program, source }
        })?;
        Ok(Workers::program(program))
    }

    /// Workers that are another program, whose `main` is [`serve_if_worker`](super::Functions::serve_if_worker).
    pub fn program(path: impl Into<PathBuf>) -> Workers {
        let program = path.into().into();
        Workers { program, standbys: 1, time_limit: TIME_LIMIT }
    }

    /// How many workers stand by for each device; 1 unless this is called. Each has the device memory that it has when it is
    /// [warm](super::Functions::warm).
    pub fn standbys(mut self, standbys: usize) -> Workers {
        self.standbys = standbys;
        self
    }

    /// The longest that a call may take, and that a worker may take to be ready, 10 minutes each unless this is called. The worker is
    /// killed then.
    pub fn time_limit(mut self, limit: Duration) -> Workers {
        self.time_limit = limit;
        self
    }
}

/// A worker that waits for a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Standby {
    /// The number of its device among those of the pool.
    pub device: usize,
    /// The number of its process.
    pub process: u32,
    /// The device memory that it has, in bytes, as [`warm`](super::Functions::warm) says; `None` of one that has taken the place of
    /// another, until a call has found it ready.
    pub memory: Option<u64>,
}

/// The workers of a device.
#[derive(Debug)]
pub(crate) struct Standbys {
    workers: Workers,
    device: usize,
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    /// The first one is the next to be used.
    processes: VecDeque<Process>,
    /// Set for ever when no more are to stand by.
    is_closed: bool,
}

/// The workers of each of these devices; waits until they are ready.
pub(crate) fn start_all(
    workers: &Workers,
    devices: impl Iterator<Item = usize>,
) -> Result<Vec<Standbys>, Error> {
    let start = |device| {
        let started = (0..workers.standbys).map(|_| Process::start(&workers.program, device));
        let (processes, is_closed) = (started.collect::<Result<_, _>>()?, false);
        let idle = Mutex::new(Idle { processes, is_closed });
        Ok(Standbys { workers: workers.clone(), device, idle })
    };
    let all = devices.map(start).collect::<Result<Vec<_>, Error>>()?;
    // At the same time.
    for standbys in &all {
        for process in &mut standbys.lock().processes {
            process.ready(workers.time_limit)?;
        }
    }
    Ok(all)
}

impl Standbys {
    /// Calls a function of a standby, which may use these buffers. `begins` is given what kills it, and says whether it is to
    /// begin; `ends` says whether it may have been killed.
    pub fn call(
        &self,
        function: &str,
        input: &[u8],
        buffers: Vec<Shared>,
        begins: impl FnOnce(Killer) -> bool,
        ends: impl FnOnce() -> bool,
    ) -> Result<Option<Vec<u8>>, Error> {
        let mut process = self.next()?;
        if !begins(process.killer()) {
            self.stand_by(process);
            return Ok(None);
        }
        let called = process.call(function, input, buffers, self.workers.time_limit);
        let was_killed = ends();
        let is_there = match &called {
            Ok(_)
            | Err(Error::Worker(WorkerError::LongName { .. } | WorkerError::ManyBuffers { .. })) => {
                true
            }
            // Of the function, as opposed to what makes the worker ready.
            Err(Error::Worker(WorkerError::Failed { .. } | WorkerError::NoFunction { .. })) => {
                process.memory().is_some()
            }
            Err(_) => false,
        };
        if is_there && !was_killed {
            self.stand_by(process);
        } else {
            // Gone, with its memory, before another one has as much.
            drop(process);
            self.replace();
        }
        called.map(Some)
    }

    /// A standby, or a worker that starts now.
    fn next(&self) -> Result<Process, Error> {
        // One may have ended by itself, or been killed by the system for its memory.
        loop {
            let next = self.lock().processes.pop_front();
            match next {
                Some(process) if process.is_alive() => return Ok(process),
                Some(dead) => drop(dead),
                None => return Process::start(&self.workers.program, self.device),
            }
        }
    }

    /// Takes a worker back, unless enough stand by.
    fn stand_by(&self, process: Process) {
        let mut idle = self.lock();
        if !idle.is_closed && idle.processes.len() < self.workers.standbys {
            idle.processes.push_front(process);
        } else {
            // Its end is waited for without the lock.
            drop(idle);
            drop(process);
        }
    }

    /// Ends the workers that stand by, and lets no more of them come.
    pub fn close(&self) {
        let processes = {
            let mut idle = self.lock();
            idle.is_closed = true;
            std::mem::take(&mut idle.processes)
        };
        // All at once, before the end of the first is waited for.
        processes.iter().for_each(|process| process.killer().kill());
        drop(processes);
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has another worker start, as long as there are fewer than are to stand by.
    fn replace(&self) {
        let mut idle = self.lock();
        if !idle.is_closed
            && idle.processes.len() < self.workers.standbys
            // The next call tells why there is none.
            && let Ok(process) = Process::start(&self.workers.program, self.device)
        {
            idle.processes.push_back(process);
        }
    }

    pub fn list(&self) -> Vec<Standby> {
        let idle = self.lock();
        let of = |process: &Process| Standby {
            device: self.device,
            process: process.id(),
            memory: process.memory(),
        };
        idle.processes.iter().filter(|process| process.is_alive()).map(of).collect()
    }
}
