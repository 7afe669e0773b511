//! Which program the workers are, and the standbys of a device.

use std::collections::VecDeque;
use std::env;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::began;
use super::process::{Killer, LOOK, Process};
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
    /// Notified when the process of a killed worker has ended.
    departs: Condvar,
}

#[derive(Debug, Default)]
struct Idle {
    /// The first one is the next to be used.
    processes: VecDeque<Process>,
    /// Workers that were killed, and may not have given back what they had.
    leaving: usize,
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
        let (processes, leaving) = (started.collect::<Result<_, _>>()?, 0);
        let idle = Mutex::new(Idle { processes, leaving, is_closed: false });
        Ok(Standbys { workers: workers.clone(), device, idle, departs: Condvar::new() })
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
    /// begin; `ends` says whether it may have been killed; `is_told` whether the task was told to leave.
    pub fn call(
        self: &Arc<Self>,
        function: &str,
        input: &[u8],
        buffers: Vec<Shared>,
        begins: impl FnOnce(Killer) -> bool,
        ends: impl FnOnce() -> bool,
        is_told: impl Fn() -> bool,
    ) -> Result<Option<Vec<u8>>, Error> {
        // What was killed is gone before another one has as much memory.
        self.await_departures(&is_told);
        if is_told() {
            return Ok(None);
        }
        let has_buffers = !buffers.is_empty();
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
        } else if was_killed && !has_buffers {
            self.see_off(process);
        } else {
            // Gone as well, and with buffers before the task has others.
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

    /// Has a thread wait until a worker that was killed is gone, and another one start then.
    fn see_off(self: &Arc<Self>, process: Process) {
        self.lock().leaving += 1;
        let leaving = Leaving { standbys: self.clone(), process: Some(process) };
        // Where there is no thread, it is waited for here.
        let _ = thread::Builder::new().name("preempt-worker".into()).spawn(move || drop(leaving));
    }

    /// Waits until all workers are gone that were killed, and no longer than until `is_told`; returns whether there were any.
    pub fn await_departures(&self, is_told: impl Fn() -> bool) -> bool {
        let mut idle = self.lock();
        let is_any = idle.leaving > 0;
        while idle.leaving > 0 && !is_told() {
            // What tells it knows nothing of this.
            let waited = self.departs.wait_timeout(idle, LOOK);
            idle = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        is_any
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

    /// Ends the workers that stand by, and lets no more of them come; waits until all that were killed are gone.
    pub fn close(&self) {
        let processes = {
            let mut idle = self.lock();
            idle.is_closed = true;
            std::mem::take(&mut idle.processes)
        };
        // All at once, before the end of the first is waited for.
        processes.iter().for_each(|process| process.killer().kill());
        drop(processes);
        self.await_departures(|| false);
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

/// A worker that was killed, until it is gone.
struct Leaving {
    standbys: Arc<Standbys>,
    process: Option<Process>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        // Waits for its end.
        drop(self.process.take());
        self.standbys.replace();
        self.standbys.lock().leaving -= 1;
        self.standbys.departs.notify_all();
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use super::*;

    fn without_standbys() -> Arc<Standbys> {
        let workers = Workers::program("/bin/true").standbys(0);
        let mut all = start_all(&workers, 0..1).expect("none is started");
        Arc::new(all.remove(0))
    }

    /// A worker of which the last is gone later.
    fn leaving(standbys: &Arc<Standbys>) -> Leaving {
        standbys.lock().leaving += 1;
        Leaving { standbys: standbys.clone(), process: None }
    }

    #[test]
    fn what_a_killed_worker_has_is_waited_for() {
        let waits: [fn(&Arc<Standbys>); 3] = [
            |standbys| _ = standbys.await_departures(|| false),
            |standbys| standbys.close(),
            |standbys| {
                // It begins nothing that was told to leave.
                let called = standbys.call("none", &[], Vec::new(), |_| false, || true, || false);
                assert!(matches!(called, Ok(None)));
            },
        ];
        for wait in waits {
            let (standbys, is_gone) = (without_standbys(), AtomicBool::new(false));
            let leaving = leaving(&standbys);
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(20));
                    // The lock that counts those that leave orders it, too.
                    is_gone.store(true, Relaxed);
                    drop(leaving);
                });
                wait(&standbys);
                assert!(is_gone.load(Relaxed));
            });
            assert!(!standbys.await_departures(|| false), "none leaves any more");
        }
    }

    #[test]
    fn a_task_that_is_told_to_leave_waits_no_longer() {
        let standbys = without_standbys();
        let leaving = leaving(&standbys);
        assert!(standbys.await_departures(|| true));
        assert_eq!(standbys.lock().leaving, 1);
        drop(leaving);
    }
}
