//! Tasks whose work is in processes of its own: what these do wrong is an error of their task alone.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use preempt::error::{PoolError, WorkerError};
use preempt::pool::{AnyBuffer, Application, Class, Pool, Stop, Task, TaskHandle};
use preempt::worker::Workers;
use preempt::{CpuLayout, Device, Error};
use preempt_test_kernels as kernels;
use preempt_test_kit::Random;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

const WORKER: &str = env!("CARGO_BIN_EXE_preempt-test-worker");

fn device() -> Device {
    Device::cpu_with(CpuLayout::sms(1)).expect("a device")
}

fn pool(devices: usize, workers: Workers) -> Pool {
    let builder = (0..devices).fold(Pool::builder(), |builder, _| builder.device(device()));
    builder.workers(workers).build().expect("a pool")
}

fn call(function: &'static str, input: &[u8]) -> Task<Vec<u8>> {
    let input = input.to_vec();
    Task::new(function, move |run| run.call(function, &input)).opaque()
}

fn give(application: &Application, task: &Task<Vec<u8>>) -> Result<Vec<u8>, Error> {
    application.submit(task).and_then(TaskHandle::wait)
}

fn failure(application: &Application, task: &Task<Vec<u8>>) -> WorkerError {
    match give(application, task) {
        Err(Error::Worker(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn functions_are_called_in_other_processes() {
    let pool = pool(2, Workers::program(WORKER).standbys(2));
    let standbys = pool.standbys();
    let memory: Vec<_> = standbys.iter().map(|standby| (standby.device, standby.memory)).collect();
    assert_eq!(memory, [0, 0, 1, 1].map(|device| (device, Some(1000 + device as u64))));
    let nightly = pool.application(Class::Batch);
    let process = give(&nightly, &call("process", &[])).expect("its number");
    let process = u32::from_le_bytes(process.try_into().expect("four bytes"));
    assert!(standbys.iter().any(|standby| standby.process == process));
    let large = vec![3; 10_000_000];
    for (input, sum) in [(&large[..], 30_000_000u64), (&[], 0), (&[1, 2, 250], 253)] {
        let given = give(&nightly, &call("sum", input)).expect("a sum");
        assert_eq!(given, sum.to_le_bytes());
    }
    let device = Task::new("device", |run| Ok((run.device(), run.call("device", &[])?)));
    let (here, there) = nightly.submit(&device.opaque()).and_then(TaskHandle::wait).expect("both");
    assert_eq!(there, [here as u8]);
}

#[test]
fn a_task_and_its_worker_have_the_same_memory() {
    let pool = pool(1, Workers::program(WORKER));
    let nightly = pool.application(Class::Batch);
    let shares = Task::new("shares", |run| {
        let (mut x, mut y) = (run.shared::<u32>(1000)?, run.shared::<u32>(3)?);
        run.fill(&mut x, 5)?;
        // The function begins when this is done, and what is launched next finds what it has left.
        run.launch(kernels::scale(2, &mut x).threads(1000))?;
        run.call_with("scale", &[], &mut [&mut x, &mut y])?;
        run.call_with("scale", &[], &mut [&mut x, &mut y])?;
        run.launch(kernels::scale(1, &mut x).threads(1000))?;
        Ok((run.download(&x)?, run.download(&y)?))
    })
    .opaque();
    // `scale` multiplies, and adds the thread's number.
    let scaled = |x: u32, factor: u32, i: u32| x * factor + i;
    let expected: Vec<u32> =
        (0..1000).map(|i| [2, 3, 3, 1].iter().fold(5, |x, &factor| scaled(x, factor, i))).collect();
    for _ in 0..3 {
        let given = nightly.submit(&shares).and_then(TaskHandle::wait).expect("both");
        assert_eq!(given, (expected.clone(), vec![2; 3]));
    }
    let empty = Task::new("empty", |run| {
        let (mut none, mut some) = (run.shared::<u32>(0)?, run.shared::<u8>(9)?);
        run.call_with("lengths", &[], &mut [&mut none, &mut some])
    });
    assert_eq!(give(&nightly, &empty.opaque()).expect("lengths"), [0, 9]);
}

/// What a killed worker has written is in no memory that the task has when it runs again.
#[test]
fn memory_of_a_killed_worker_is_not_seen_again() {
    let builder = Pool::builder().device(device()).workers(Workers::program(WORKER));
    let pool = builder.revocations(u32::MAX).build().expect("a pool");
    let [service, nightly] = [Class::UserFacing, Class::Batch].map(|class| pool.application(class));
    let marks = Marks::new("half");
    let (folder, runs) = (marks.text(), std::sync::atomic::AtomicU32::new(0));
    let half = Task::new("half", move |run| {
        let mut x = run.shared::<u32>(100)?;
        if runs.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 {
            run.call_with("half", folder.as_bytes(), &mut [&mut x])?;
        }
        run.download(&x)
    });
    let half = nightly.submit(&half.opaque()).expect("accepted");
    marks.wait_for(1);
    service.submit(&Task::new("user", |_| Ok(()))).and_then(TaskHandle::wait).expect("its place");
    assert_eq!(half.wait().expect("zeros"), [0; 100]);
}

#[test]
fn buffers_that_no_worker_can_have_are_refused() {
    let pool = pool(1, Workers::program(WORKER));
    let nightly = pool.application(Class::Batch);
    let own = Task::new("own", |run| {
        let mut x = run.zeroed::<u32>(4)?;
        run.call_with("lengths", &[], &mut [&mut x])
    });
    assert!(matches!(failure(&nightly, &own.opaque()), WorkerError::NotShared { .. }));
    let many = Task::new("many", |run| {
        let mut all = (0..17).map(|_| run.shared::<u8>(1)).collect::<Result<Vec<_>, _>>()?;
        let mut all: Vec<_> = all.iter_mut().map(|one| one as &mut dyn AnyBuffer).collect();
        run.call_with("lengths", &[], &mut all)
    });
    assert!(matches!(
        failure(&nightly, &many.opaque()),
        WorkerError::ManyBuffers { buffers: 17, limit: 16, .. }
    ));
    let misfit = Task::new("misfit", |run| {
        let mut x = run.shared::<u32>(3)?;
        run.call_with("misfit", &[], &mut [&mut x])
    });
    assert!(matches!(failure(&nightly, &misfit.opaque()),
        WorkerError::Failed { message, .. } if message.contains("12 bytes")));
}

#[test]
fn what_a_worker_does_wrong_is_its_tasks_error() {
    let pool = pool(1, Workers::program(WORKER).time_limit(Duration::from_secs(3)));
    let nightly = pool.application(Class::Batch);
    let before = pool.standbys();
    assert!(matches!(failure(&nightly, &call("fails", &[])),
        WorkerError::Failed { message, .. } if &*message == "on purpose"));
    assert!(matches!(failure(&nightly, &call("panics", &[])),
        WorkerError::Failed { message, .. } if message.contains("on purpose")));
    assert!(matches!(failure(&nightly, &call("none", &[])),
        WorkerError::NoFunction { known, .. } if known.contains("`sum")));
    let long = "n".repeat(300).leak();
    assert!(matches!(failure(&nightly, &call(long, &[])), WorkerError::LongName { .. }));
    assert_eq!(pool.standbys(), before, "it is the same one");
    let mut seen = before;
    for (function, is_expected) in [
        ("dies", (|error| matches!(error, WorkerError::Died { .. })) as fn(&WorkerError) -> bool),
        ("leaves", |error| error.to_string().contains('3')),
        ("hangs", |error| matches!(error, WorkerError::Late { .. })),
        ("babbles", |error| matches!(error, WorkerError::Nonsense { .. })),
    ] {
        let error = failure(&nightly, &call(function, &[]));
        assert!(is_expected(&error), "{function}: {error}");
        let standbys = pool.standbys();
        assert!(standbys.len() == 1 && standbys[0].process != seen[0].process, "{function}");
        seen = standbys;
        assert_eq!(give(&nightly, &call("sum", &[7])).expect("a sum")[0], 7, "after {function}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let one = || Pool::builder().device(device());
    let build = |workers| match one().workers(workers).build() {
        Err(Error::Worker(error)) => error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(Workers::this_program(), Err(Error::Worker(WorkerError::NotServed))));
    for program in ["/nowhere/worker", "/"] {
        let error = build(Workers::program(program));
        assert!(matches!(error, WorkerError::NotStarted { .. }), "{error}");
    }
    // One that ends, and one that goes on.
    for program in ["true", "tail"] {
        let folders = ["/bin", "/usr/bin"].map(|folder| Path::new(folder).join(program));
        let Some(program) = folders.iter().find(|program| program.exists()) else { continue };
        let error = build(Workers::program(program));
        assert!(matches!(error, WorkerError::NoWorker { .. }), "{error}");
    }
    let pool = one().build().expect("a pool");
    let nightly = pool.application(Class::Batch);
    assert!(matches!(failure(&nightly, &call("sum", &[])), WorkerError::None { .. }));
    let shares = Task::new("shares", |run| run.call("sum", &[]));
    assert!(matches!(failure(&nightly, &shares), WorkerError::NotOpaque { .. }));
    let service = pool.application(Class::UserFacing);
    let error = service.submit(&call("sum", &[])).expect_err("it would share its device");
    assert!(matches!(error, Error::Pool(PoolError::Opaque { .. })), "{error}");
}

#[test]
fn a_process_is_a_worker_by_its_socket_alone() {
    for stdin in [Stdio::null(), Stdio::piped()] {
        let mut command = Command::new(WORKER);
        let child = command.env("PREEMPT_WORKER", "1").stdin(stdin).stdout(Stdio::piped()).spawn();
        let output = child.and_then(|child| child.wait_with_output()).expect("it ran");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "no worker\n");
        assert!(output.status.success());
    }
}

/// The process that has started it may end before the worker has looked: then it is no application either.
#[test]
fn a_worker_without_its_application_ends() {
    let (here, there) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("sockets");
    // The protocol's name and version, a greeting, the device, no contents, and no buffers.
    let hello = [&b"preempt\x02\x00"[..], &[0; 8], &[0; 8], &[0]].concat();
    send(&here, &hello, SendFlags::empty()).expect("sent");
    drop(here);
    let mut command = Command::new(WORKER);
    command.env("PREEMPT_WORKER", "1").stdin(Stdio::from(there)).stdout(Stdio::piped());
    let child = command.process_group(0).spawn().expect("it starts");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    assert!(!output.status.success(), "{}", output.status);
}

#[test]
fn workers_end_with_their_pool() {
    let pool = pool(1, Workers::program(WORKER).standbys(2));
    let standbys = pool.standbys();
    // It outlives the pool.
    let nightly = pool.application(Class::Batch);
    let hangs = nightly.submit(&call("hangs", &[])).expect("accepted");
    drop(pool);
    assert!(hangs.wait().is_err());
    assert!(standbys.len() == 2 && standbys.iter().all(|standby| !runs(standby.process)));
}

/// Not one of them is left to be waited for, which a pool that runs for long would run out of.
#[test]
fn revoked_workers_are_gone_with_their_pool() {
    let builder = Pool::builder().device(device()).workers(Workers::program(WORKER));
    let pool = builder.revocations(u32::MAX).build().expect("a pool");
    let [service, nightly] = [Class::UserFacing, Class::Batch].map(|class| pool.application(class));
    let marks = Marks::new("revoked");
    let folder = marks.text();
    let hangs = Task::new("hangs", move |run| run.call("hangs", folder.as_bytes())).opaque();
    let hangs = nightly.submit(&hangs).expect("accepted");
    for stopped in 1..4 {
        marks.wait_for(stopped);
        let user = Task::new("user", |_| Ok(()));
        service.submit(&user).and_then(TaskHandle::wait).expect("its place");
    }
    marks.wait_for(4);
    assert!(pool.stats().revocations >= 3);
    drop(pool);
    assert!(hangs.wait().is_err());
    let left = |file: &std::fs::DirEntry| Path::new("/proc").join(file.file_name()).exists();
    let files = std::fs::read_dir(&marks.0).expect("the folder").map(Result::unwrap);
    let left: Vec<_> = files.filter(left).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_a_worker_has_started_ends_with_it() {
    let builder = Pool::builder().device(device()).workers(Workers::program(WORKER));
    let pool = builder.revocations(u32::MAX).build().expect("a pool");
    let [service, nightly] = [Class::UserFacing, Class::Batch].map(|class| pool.application(class));
    let child = give(&nightly, &call("starts", &[])).expect("a number");
    let child = u32::from_le_bytes(child.try_into().expect("four bytes"));
    assert!(runs(child));
    let hangs = nightly.submit(&call("hangs", &[])).expect("accepted");
    let user = Task::new("user", |_| Ok(()));
    let begin = Instant::now();
    // The call may not have begun when the first of them comes.
    while runs(child) {
        assert!(begin.elapsed() < Duration::from_secs(20), "process {child} goes on");
        service.submit(&user).and_then(TaskHandle::wait).expect("its place");
        std::thread::sleep(Duration::from_millis(20));
    }
    hangs.cancel();
}

#[test]
fn all_calls_of_a_task_are_stopped() {
    let pool = pool(1, Workers::program(WORKER));
    let [service, nightly] = [Class::UserFacing, Class::Batch].map(|class| pool.application(class));
    let marks = Marks::new("calls");
    let folder = marks.text();
    let hangs = Task::new("hangs", move |run| {
        std::thread::scope(|scope| {
            let call = || run.call("hangs", folder.as_bytes());
            let calls = [(); 2].map(|()| scope.spawn(call));
            calls.into_iter().try_for_each(|call| call.join().expect("no panic").map(drop))
        })
    });
    let hangs = nightly.submit(&hangs.opaque()).expect("accepted");
    marks.wait_for(2);
    service.submit(&Task::new("user", |_| Ok(()))).and_then(TaskHandle::wait).expect("its place");
    hangs.cancel();
    assert!(matches!(hangs.wait(), Err(Error::Pool(PoolError::Cancelled { .. }))));
    assert!(pool.standbys().len() <= 1);
}

#[test]
fn workers_end_with_their_application() {
    let marks = Marks::new("application");
    let mut command = Command::new(WORKER);
    command.arg("application").arg(marks.text()).stdout(Stdio::piped());
    let mut application = command.spawn().expect("it starts");
    let mut line = String::new();
    let mut output = BufReader::new(application.stdout.take().expect("piped"));
    output.read_line(&mut line).expect("the number of its worker");
    let worker: u32 = line.trim().parse().expect("a number");
    // It is in its function.
    marks.wait_for(1);
    assert!(runs(worker));
    application.kill().and_then(|()| application.wait()).expect("killed");
    let begin = Instant::now();
    while runs(worker) {
        assert!(begin.elapsed() < Duration::from_secs(20), "worker {worker} goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A folder where functions that hang leave a file each.
struct Marks(PathBuf);

impl Marks {
    fn new(name: &str) -> Marks {
        let folder = std::env::temp_dir().join(format!("preempt-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Marks(folder)
    }

    fn text(&self) -> String {
        self.0.to_str().expect("a path that is text").to_owned()
    }

    fn wait_for(&self, files: usize) {
        while std::fs::read_dir(&self.0).expect("the folder").count() < files {
            std::thread::yield_now();
        }
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether a process of this number runs, as opposed to one that nothing has waited for yet.
fn runs(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    status.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

#[test]
fn user_facing_tasks_take_the_place_of_workers() {
    let pool = pool(1, Workers::program(WORKER));
    let [service, nightly] = [Class::UserFacing, Class::Batch].map(|class| pool.application(class));
    let hangs = nightly.submit(&call("hangs", &[])).expect("accepted");
    let doubled = Task::new("doubled", |run| {
        let mut x = run.buffer(&[1u32; 32])?;
        run.launch(kernels::scale(2, &mut x).threads(32))?;
        run.download(&x)
    });
    for _ in 0..5 {
        let given = service.submit(&doubled).and_then(TaskHandle::wait).expect("a result");
        assert_eq!(given, (0..32).map(|i| 2 + i).collect::<Vec<_>>());
    }
    hangs.cancel();
    let error = hangs.wait().expect_err("it was cancelled");
    assert!(matches!(error, Error::Pool(PoolError::Cancelled { .. })), "{error}");
    assert_eq!(give(&nightly, &call("sum", &[7])).expect("a sum")[0], 7);
    let stats = pool.stats();
    assert!(stats.revocations > 0 && stats.yields == 0, "{stats:?}");
}

/// A worker has the whole device, so there is one for all of its parts, and nothing else runs there meanwhile.
#[test]
fn a_worker_has_all_parts_of_a_device() {
    let whole = Device::cpu_with(CpuLayout::sms(4)).expect("a device");
    let parts = whole.split(4).expect("parts");
    let builder = parts.into_iter().fold(Pool::builder(), |builder, part| builder.device(part));
    let builder = builder.workers(Workers::program(WORKER)).revocations(u32::MAX);
    let pool = builder.build().expect("a pool");
    assert_eq!(pool.standbys().len(), 1);
    let [service, nightly] = [Class::UserFacing, Class::Batch].map(|class| pool.application(class));
    let marks = Marks::new("parts");
    let folder = marks.text();
    let hangs = Task::new("hangs", move |run| run.call("hangs", folder.as_bytes())).opaque();
    let hangs = nightly.submit(&hangs).expect("accepted");
    marks.wait_for(1);
    // They come while it has all parts, and it is killed for them.
    let user = Task::new("user", |run| {
        let mut x = run.zeroed::<u32>(32)?;
        run.launch(kernels::scale(1, &mut x).threads(32))?;
        run.download(&x)
    });
    let users: Vec<_> = (0..8).map(|_| service.submit(&user).expect("accepted")).collect();
    for user in users {
        assert_eq!(user.wait().expect("a result"), (0..32).collect::<Vec<u32>>());
    }
    let stats = pool.stats();
    assert!(stats.revocations > 0, "{stats:?}");
    hangs.cancel();
    assert!(matches!(hangs.wait(), Err(Error::Pool(PoolError::Cancelled { .. }))));
    assert_eq!(give(&nightly, &call("sum", &[7])).expect("a sum")[0], 7);
}

#[test]
fn each_task_is_answered_once_whatever_becomes_of_the_workers() {
    let builder = (0..2).fold(Pool::builder(), |builder, _| builder.device(device()));
    let builder = builder.workers(Workers::program(WORKER)).stop(Stop::Yield(Duration::ZERO));
    let pool = builder.revocations(u32::MAX).build().expect("a pool");
    let service = pool.application(Class::UserFacing);
    let nightly = [(); 2].map(|()| pool.application(Class::Batch));
    let (mut random, mut died) = (Random(11), 0);
    let mut batch = Vec::new();
    for round in 0..400u32 {
        let (number, dies) = (random.below(200) as u8, random.below(8) == 0);
        let task = match dies {
            true => call("dies", &[]),
            false => call("sum", &[number, 1]),
        };
        let handle = nightly[random.below(2) as usize].submit(&task).expect("accepted");
        batch.push((handle, number, dies));
        if random.below(3) == 0 {
            let user = Task::new("user", move |run| {
                let mut x = run.buffer(&[round; 8])?;
                run.launch(kernels::scale(1, &mut x).threads(8))?;
                run.download(&x)
            });
            let given = service.submit(&user).and_then(TaskHandle::wait).expect("a result");
            assert_eq!(given, (0..8).map(|i| round + i).collect::<Vec<_>>());
        }
        if batch.len() > 12 {
            let (handle, number, dies) = batch.swap_remove(random.below(12) as usize);
            died += check(handle, number, dies);
        }
    }
    for (handle, number, dies) in batch {
        died += check(handle, number, dies);
    }
    let stats = pool.stats();
    assert_eq!((stats.dropped, stats.finished + stats.dropped >= 400), (died, true), "{stats:?}");
    println!("{stats:?}");
    assert!(stats.revocations > 5 && died > 10, "{stats:?}");
}

fn check(handle: TaskHandle<Vec<u8>>, number: u8, dies: bool) -> u64 {
    match handle.wait() {
        Ok(sum) => {
            assert!(!dies);
            assert_eq!(sum, (u64::from(number) + 1).to_le_bytes());
            0
        }
        Err(Error::Worker(WorkerError::Died { .. })) if dies => 1,
        Err(error) => panic!("{error}"),
    }
}
