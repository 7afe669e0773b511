//! Processes of this program that request, or run a batch, and tell the process that has started them of it.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};
use std::{env, thread};

use anyhow::{Context, Result, bail, ensure};
use preempt::{Buffer, Handle, LaunchReport};
use preempt_driver::{Array, Gpu, Launch, Level, Module, Pinned, Stream};
use preempt_microkernels::{answer, mark, spin, spin_yielding};
use preempt_report::microseconds;
use preempt_test_kit::Random;
use serde_json::{Value, json};

use super::mps::Mps;
use crate::experiments::KERNELS;
use crate::experiments::cuda::Submitted;
use crate::experiments::requests::{BLOCKS, Requests};
use crate::samples::Samples;

/// The variable that makes a process one of these, and says what it does.
const VARIABLE: &str = "PREEMPT_BENCH_NEIGHBOUR";

/// The longest that a process may take for an answer before it counts as hung.
const LIMIT: Duration = Duration::from_secs(60);

/// Grids of the batch that are submitted and not over.
const DEPTH: usize = 2;

/// Blocks of the batch's grid for each SM: twice what an SM holds.
const BLOCKS_PER_SM: u32 = 4;

/// What a process does.
#[derive(Clone, Copy, Debug)]
pub enum Role {
    /// Grids that fill the GPU, one after the other, of blocks that take this long.
    Batch(Duration),
    /// So many requests each time that it is asked.
    Requests { count: u32, seed: u64 },
}

impl Role {
    fn told(self) -> String {
        match self {
            Role::Batch(block) => format!("batch {}", block.as_nanos()),
            Role::Requests { count, seed } => format!("requests {count} {seed}"),
        }
    }

    fn parse(told: &str) -> Option<Role> {
        let mut words = told.split(' ');
        let role = match words.next()? {
            "batch" => Role::Batch(Duration::from_nanos(words.next()?.parse().ok()?)),
            "requests" => {
                let (count, seed) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                Role::Requests { count, seed }
            }
            _ => return None,
        };
        words.next().is_none().then_some(role)
    }
}

/// Does what the variable says, if it is set: for the beginning of `main`.
pub fn serve_if_neighbour() -> Option<ExitCode> {
    let told = env::var(VARIABLE).ok()?;
    let served = Role::parse(&told).with_context(|| {
        format!("{VARIABLE} is `{told}`, which is no role of a process: unset it")
    });
    let served = served.and_then(|role| serve(role, &lines(BufReader::new(io::stdin()))));
    Some(match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("preempt-bench: {error:#}");
            ExitCode::FAILURE
        }
    })
}

/// Lines as they come, read by a thread.
fn lines(from: impl BufRead + Send + 'static) -> Receiver<String> {
    let (to, lines) = mpsc::channel();
    thread::spawn(move || from.lines().map_while(Result::ok).try_for_each(|line| to.send(line)));
    lines
}

fn serve(role: Role, questions: &Receiver<String>) -> Result<()> {
    let gpu = Gpu::open(0)?;
    match role {
        Role::Batch(block) => {
            let batch = RawBatch::new(gpu, block)?;
            keep_running(batch, questions, |answer| tell(&answer))
        }
        Role::Requests { count, seed } => {
            let mut random = Random(seed);
            with_raw_requests(|requests| {
                tell(&json!({}))?;
                while questions.recv().is_ok() {
                    let times = requests.some(count, &mut random)?;
                    tell(
                        &json!({ "times_us": times.iter().map(microseconds).collect::<Vec<_>>() }),
                    )?;
                }
                Ok(())
            })
        }
    }
}

fn tell(answer: &Value) -> Result<()> {
    let mut out = io::stdout();
    writeln!(out, "{answer}")?;
    Ok(out.flush()?)
}

/// Requests by the driver, on a stream of the highest priority. The first one is made here.
pub fn with_raw_requests<T>(task: impl FnOnce(&mut Requests<'_>) -> Result<T>) -> Result<T> {
    let mut done = Pinned::filled(0u32, BLOCKS as usize)?;
    let call = answer(1, &mut done).grid(BLOCKS);
    let entry = Module::load(ptx()?, &[call.kernel()])?.plain(call.kernel())?;
    let launch = Launch::plain(entry, call);
    let stream = Stream::new(Level::Highest)?;
    let mut requests = Requests::Raw { launch: &launch, stream, done: &mut done };
    requests.request()?;
    task(&mut requests)
}

fn ptx() -> Result<&'static str> {
    KERNELS.ptx().context("this build has no kernels for a GPU")
}

/// Grids one after the other.
pub trait Batch {
    /// Submits a grid if fewer than [`DEPTH`] are not over; how many have ended.
    fn top_up(&mut self) -> Result<u32>;

    /// Waits for all, and compares what they have written; block-tasks that are wrong.
    fn end(self) -> Result<u64>;
}

/// Runs a batch until nothing more can be asked. Once a grid has ended, and for each question, it answers with the grids that
/// have ended since the last answer, and the time; at the end, with what was wrong.
pub fn keep_running(
    mut batch: impl Batch,
    questions: &Receiver<String>,
    answer: impl Fn(Value) -> Result<()>,
) -> Result<()> {
    let (mut start, mut grids, mut is_ready) = (Instant::now(), 0, false);
    loop {
        grids += batch.top_up()?;
        let is_asked = match questions.try_recv() {
            Ok(_) => true,
            Err(TryRecvError::Empty) => !is_ready && grids > 0,
            Err(TryRecvError::Disconnected) => break,
        };
        if is_asked {
            answer(json!({ "grids": grids, "seconds": start.elapsed().as_secs_f64() }))?;
            (start, grids, is_ready) = (Instant::now(), 0, true);
        }
    }
    answer(json!({ "wrong": batch.end()? }))
}

/// Grids by the driver, on a stream of the lowest priority.
pub struct RawBatch {
    gpu: Gpu,
    stream: Stream,
    launch: Launch,
    arrays: [Array<u32>; 2],
    submitted: Submitted,
    grids: u32,
}

impl RawBatch {
    pub fn new(gpu: Gpu, block: Duration) -> Result<RawBatch> {
        gpu.make_current()?;
        let tasks = gpu.sms()? * BLOCKS_PER_SM;
        let arrays = [Array::zeroed(tasks as usize)?, Array::zeroed(tasks as usize)?];
        let [runs, marks] = &arrays;
        let call = spin(gpu.ticks(block)?, runs.target(), marks.target()).grid(tasks);
        let entry = Module::load(ptx()?, &[call.kernel()])?.plain(call.kernel())?;
        let (launch, stream) = (Launch::plain(entry, call), Stream::new(Level::Lowest)?);
        Ok(RawBatch { gpu, stream, launch, arrays, submitted: Submitted::default(), grids: 0 })
    }
}

impl Batch for RawBatch {
    fn top_up(&mut self) -> Result<u32> {
        self.gpu.make_current()?;
        let ended = self.submitted.ended()?;
        if self.submitted.len() < DEPTH {
            // SAFETY: the arrays stay until the batch has ended, and only its grids use them, in the order of the stream.
            unsafe { self.launch.on(&self.stream)? };
            self.submitted.push(&self.stream)?;
            self.grids += 1;
        }
        Ok(ended)
    }

    fn end(self) -> Result<u64> {
        self.gpu.make_current()?;
        self.stream.synchronize()?;
        let [runs, marks] = &self.arrays;
        let (runs, marks) = (runs.read()?, marks.read()?);
        let wrong = runs.iter().filter(|&&count| count != self.grids).count();
        Ok((wrong + wrong_marks(&marks)) as u64)
    }
}

fn wrong_marks(marks: &[u32]) -> usize {
    (0..).zip(marks).filter(|&(task, &found)| found != mark(task)).count()
}

/// Launches of a scheduler, with yield points.
pub struct OurBatch {
    stream: preempt::Stream,
    ticks: u64,
    tasks: u32,
    runs: Buffer<u32>,
    marks: Buffer<u32>,
    handles: VecDeque<Handle<LaunchReport>>,
}

impl OurBatch {
    pub fn new(scheduler: &preempt::Scheduler, gpu: Gpu, block: Duration) -> Result<OurBatch> {
        let tasks = gpu.sms()? * BLOCKS_PER_SM;
        let (runs, marks) = (scheduler.zeroed(tasks as usize)?, scheduler.zeroed(tasks as usize)?);
        let (stream, handles) = (scheduler.stream(0), VecDeque::new());
        Ok(OurBatch { stream, ticks: gpu.ticks(block)?, tasks, runs, marks, handles })
    }
}

impl Batch for OurBatch {
    fn top_up(&mut self) -> Result<u32> {
        let mut ended = 0;
        while let Some(report) = self.handles.front().and_then(Handle::try_wait) {
            ensure!(report?.tasks == self.tasks, "a launch has not run all its block-tasks");
            self.handles.pop_front();
            ended += 1;
        }
        if self.handles.len() < DEPTH {
            let call = spin_yielding(self.ticks, &mut self.runs, &mut self.marks);
            self.handles.push_back(self.stream.launch(call.grid(self.tasks))?);
        }
        Ok(ended)
    }

    fn end(self) -> Result<u64> {
        self.handles.into_iter().try_for_each(|handle| handle.wait().map(drop))?;
        let marks = self.stream.download(&self.marks)?.wait()?;
        Ok(wrong_marks(&marks) as u64)
    }
}

/// Something that is asked and answers: a process, or a thread of this one.
pub trait Ask {
    /// The next answer; the first one comes without a question.
    fn answer(&mut self) -> Result<Value>;

    fn ask(&mut self) -> Result<Value>;
}

/// A process with a role.
pub struct Neighbour {
    child: Child,
    questions: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Neighbour {
    /// Starts a process, a client of this server if there is one. Its first answer says that it is ready.
    pub fn start(role: Role, server: Option<&Mps>) -> Result<Neighbour> {
        let mut command = Command::new(env::current_exe()?);
        command.env(VARIABLE, role.told());
        if let Some(server) = server {
            server.client(&mut command);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let out = child.stdout.take().context("its output is a pipe")?;
        let (questions, answers) = (child.stdin.take(), lines(BufReader::new(out)));
        let mut neighbour = Neighbour { child, questions, answers };
        neighbour.answer()?;
        Ok(neighbour)
    }

    /// The last answer, once nothing more is asked.
    pub fn end(mut self) -> Result<Value> {
        self.questions = None;
        self.answer()
    }
}

impl Ask for Neighbour {
    fn answer(&mut self) -> Result<Value> {
        match self.answers.recv_timeout(LIMIT) {
            Ok(line) => Ok(serde_json::from_str(&line)?),
            Err(error) => bail!("a process has not answered: {error}"),
        }
    }

    fn ask(&mut self) -> Result<Value> {
        let questions = self.questions.as_mut().context("it was not told to end")?;
        writeln!(questions)?;
        self.answer()
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // Where it has ended, nothing happens.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A batch on a thread of this process.
pub struct OnThread {
    pub questions: Sender<String>,
    pub answers: Receiver<Value>,
}

impl Ask for OnThread {
    fn answer(&mut self) -> Result<Value> {
        Ok(self.answers.recv_timeout(LIMIT)?)
    }

    fn ask(&mut self) -> Result<Value> {
        self.questions.send(String::new())?;
        self.answer()
    }
}

/// The times in an answer.
pub fn times(answer: &Value) -> Result<Samples> {
    let times = answer["times_us"].as_array().context("an answer without times")?;
    let mut samples = Samples::default();
    for time in times {
        let time = time.as_f64().context("a time that is no number")?;
        samples.push(Duration::from_secs_f64(time / 1e6));
    }
    Ok(samples)
}

/// Grids in a second, by an answer.
pub fn rate(answer: &Value) -> Result<f64> {
    let of = |key: &str| answer[key].as_f64().with_context(|| format!("an answer without {key}"));
    Ok(of("grids")? / of("seconds")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counted(u32);

    impl Batch for Counted {
        fn top_up(&mut self) -> Result<u32> {
            self.0 += 1;
            Ok(1)
        }

        fn end(self) -> Result<u64> {
            Ok(u64::from(self.0))
        }
    }

    #[test]
    fn a_role_is_what_was_told() {
        for role in
            [Role::Batch(Duration::from_millis(3)), Role::Requests { count: 7, seed: 1 << 40 }]
        {
            let parsed = Role::parse(&role.told()).expect("a role");
            assert_eq!(format!("{parsed:?}"), format!("{role:?}"));
        }
        for told in ["", "batch", "batch x", "batch 1 2", "requests 1", "others 1"] {
            assert!(Role::parse(told).is_none(), "{told:?}");
        }
    }

    #[test]
    fn a_batch_tells_what_it_has_done_since_it_was_asked_last() {
        let ((questions, asked), (to, answers)) = (mpsc::channel(), mpsc::channel());
        let running =
            thread::spawn(move || keep_running(Counted(0), &asked, |answer| Ok(to.send(answer)?)));
        let mut batch = OnThread { questions, answers };
        let ready = batch.answer().expect("an answer");
        let asked = [(); 2].map(|()| batch.ask().expect("an answer"));
        let OnThread { questions, answers } = batch;
        drop(questions);
        let wrong = answers.recv().expect("the last answer")["wrong"].as_u64().expect("a number");
        running.join().expect("no panic").expect("no error");
        let told = [&ready, &asked[0], &asked[1]]
            .map(|answer| answer["grids"].as_u64().expect("a number"));
        assert_eq!(told[0], 1, "it is ready when the first grid has ended");
        assert!(told.iter().sum::<u64>() <= wrong && rate(&asked[1]).expect("a rate") > 0.0);
    }

    #[test]
    fn times_are_what_was_told() {
        let told = times(&json!({ "times_us": [1.5, 20.0, 3.0] })).expect("times");
        assert_eq!((told.len(), told.p50()), (3, Duration::from_micros(3)));
        assert!(times(&json!({})).is_err() && times(&json!({ "times_us": ["x"] })).is_err());
    }
}
