//! A worker for the tests, and an application that is its own worker.

use std::error::Error;
use std::io::Write;
use std::os::fd::FromRawFd;
use std::os::unix::net::UnixStream;
use std::process;
use std::time::Duration;

use preempt::pool::{Class, Pool, Task};
use preempt::worker::{Functions, Job, Workers};
use preempt::{CpuLayout, Device, Scheduler};
use preempt_test_kernels as kernels;

type Given = Result<Vec<u8>, Box<dyn Error>>;

fn main() -> Result<(), Box<dyn Error>> {
    Functions::new()
        .add("sum", sum)
        .add("scale", scale)
        .add("lengths", |job| Ok(job.buffers.iter().map(|buffer| buffer.bytes() as u8).collect()))
        .add("misfit", misfit)
        .add("half", |job| half(job))
        .add("process", |_| Ok(process::id().to_le_bytes().to_vec()))
        .add("device", |job| Ok(vec![job.device as u8]))
        .add("fails", |_| Err("on purpose".into()))
        .add("panics", |_| panic!("on purpose"))
        .add("dies", |_| process::abort())
        .add("leaves", |_| process::exit(3))
        .add("hangs", |job| mark_and_hang(job))
        .add("babbles", |_| babble())
        .add("starts", |_| start())
        .warm(|device| Ok(1000 + device as u64))
        .serve_if_worker();
    match std::env::args().nth(1).as_deref() {
        // Until it is killed.
        Some("application") => {
            let device = Device::cpu_with(CpuLayout::sms(1))?;
            let pool = Pool::builder().device(device).workers(Workers::this_program()?).build()?;
            let [standby] = pool.standbys()[..] else { return Err("one stands by".into()) };
            println!("{}", standby.process);
            let marks = std::env::args().nth(2).unwrap_or_default();
            let task = Task::new("hangs", move |run| run.call("hangs", marks.as_bytes())).opaque();
            pool.application(Class::Batch).submit(&task)?.wait()?;
        }
        _ => println!("no worker"),
    }
    Ok(())
}

fn sum(job: &Job) -> Given {
    let sum: u64 = job.input.iter().map(|&byte| u64::from(byte)).sum();
    Ok(sum.to_le_bytes().to_vec())
}

/// Has a kernel multiply the first buffer, and changes the second one by its address.
fn scale(job: &Job) -> Given {
    let [first, second] = &job.buffers[..] else { return Err("two buffers".into()) };
    let device = Device::cpu_with(CpuLayout::sms(2))?;
    let scheduler = Scheduler::builder().device(device.clone()).build()?;
    // SAFETY: the task gives words, and both buffers are dropped before this returns.
    let (mut x, y) = unsafe { (first.open::<u32>(&device)?, second.open::<u32>(&device)?) };
    let threads = x.len() as u32;
    scheduler.stream(0).launch(kernels::scale(3, &mut x).threads(threads))?.wait()?;
    // SAFETY: the memory is this function's.
    let words = unsafe { std::slice::from_raw_parts_mut(y.address() as *mut u32, y.len()) };
    words.iter_mut().for_each(|word| *word += 1);
    Ok(Vec::new())
}

fn misfit(job: &Job) -> Given {
    // SAFETY: it is refused.
    unsafe { job.buffers[0].open::<u64>(&Device::cpu()?)? };
    Ok(Vec::new())
}

/// Writes half of a buffer, and hangs.
fn half(job: &Job) -> Given {
    let device = Device::cpu()?;
    // SAFETY: the task gives words, and this never returns.
    let x = unsafe { job.buffers[0].open::<u32>(&device)? };
    // SAFETY: the memory is this function's.
    unsafe { std::slice::from_raw_parts_mut(x.address() as *mut u32, x.len() / 2) }.fill(7);
    mark_and_hang(job)
}

/// Leaves a file in the folder that the input names, if it names one, and hangs.
fn mark_and_hang(job: &Job) -> Given {
    if !job.input.is_empty() {
        let folder = std::str::from_utf8(&job.input)?;
        std::fs::File::create(std::path::Path::new(folder).join(process::id().to_string()))?;
    }
    hang()
}

fn hang() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Starts a process that outlives the call, and gives its number.
fn start() -> Given {
    let child = process::Command::new("sleep").arg("3600").spawn()?;
    Ok(child.id().to_le_bytes().to_vec())
}

/// Sends on each descriptor that may be the socket.
fn babble() -> Given {
    for descriptor in 3..64 {
        // SAFETY: whatever it is, this process ends with it.
        let mut socket = unsafe { UnixStream::from_raw_fd(descriptor) };
        let _ = socket.write_all(b"la la la");
        std::mem::forget(socket);
    }
    hang()
}
