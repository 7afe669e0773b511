//! Each kind of driver call fails once, at different times, while schedulers work. Each operation ends with an error or
//! the right result; nothing hangs or writes to freed memory.
//!
//! This program starts itself anew to run the cases, because some of them end the context for the whole process. They
//! run on a driver without a GPU, and on a GPU where there is one. Variables of the environment:
//!
//! | variable | |
//! | --- | --- |
//! | `PREEMPT_FAULTS_PER_FUNCTION` | cases for each function in each workload |
//! | `PREEMPT_FAULTS_SECONDS` | time in which cases begin; the rest is counted |
//! | `PREEMPT_FAULTS_TIMEOUT` | seconds after which a case hangs |
//! | `PREEMPT_FAULTS_SEED` | seed for the choice and the order of cases |
//! | `PREEMPT_FAULTS_RUNNER` | a program, with arguments, that runs this one: `compute-sanitizer ..` |
//! | `PREEMPT_FAULTS_ONLY` | one case, as the summary shows it: `storm cuStreamQuery 3 2` |

use std::collections::{BTreeMap, VecDeque};
use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use preempt::{Device, Error, conformance, faults};
use preempt_test_kit::Random;

mod armed;
mod checkpoints;
mod device_code;
mod fake;
mod foreign;
mod panics;
mod parts;
mod peers;
mod pools;
mod programs;
mod raw;
mod shared;
mod signal_paths;
mod workloads;

use preempt::error::DeviceError;
use workloads::Found;

/// Set where this program runs cases: the driver to use.
const CHILD: &str = "PREEMPT_FAULTS_CHILD";
/// The cases to run.
const CASES: &str = "PREEMPT_FAULTS_CASES";

const FAKE: &str = "fake";
const GPU: &str = "gpu";

const WORKLOADS: [&str; 7] =
    ["storm", "large", "schedulers", "programs", "armed", "checkpoints", "parts"];

/// The one with checkpoints, where save areas are overwritten between launches.
const POISONED: &str = "checkpoints-poisoned";

/// Calls of the search for the driver, which happens once in a process, with a lasting result.
const ONCE: [&str; 2] = ["cuInit", "cuDriverGetVersion"];

/// Calls on drop, which free nothing after an error.
const FREES: [&str; 11] = [
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGreenCtxDestroy",
    "cuMemAddressFree",
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuMemRelease",
    "cuMemUnmap",
    "cuModuleUnload",
];

/// Codes of errors that pass, and of one error that does not.
const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const OUT_OF_RESOURCES: u32 = 701;
const LAUNCH_FAILED: u32 = 719;

/// The result of a thread of `spin_yielding`: `x -> a x + c`, repeated.
pub fn spun(rounds: u32) -> impl Fn(u32) -> u32 {
    let (mut a, mut c) = (1u32, 0u32);
    for _ in 0..rounds {
        (a, c) = (a.wrapping_mul(1_664_525), c.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    }
    move |x| a.wrapping_mul(x).wrapping_add(c)
}

/// The `nth` call of a function fails with `code`; with 0, none does.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Case {
    workload: String,
    function: String,
    nth: u64,
    code: u32,
}

impl Case {
    fn clean(workload: &str) -> Case {
        Case { workload: workload.into(), function: "none".into(), nth: 0, code: 0 }
    }

    fn text(&self) -> String {
        let Case { workload, function, nth, code } = self;
        format!("{workload} {function} {nth} {code}")
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Case, String> {
        let mut words = text.split_whitespace();
        let mut word = || words.next().ok_or(format!("`{text}` is no case"));
        let number = |word: &str| word.parse::<u64>().map_err(|error| format!("{word}: {error}"));
        Ok(Case {
            workload: word()?.into(),
            function: word()?.into(),
            nth: number(word()?)?,
            code: number(word()?)? as u32,
        })
    }
}

/// The end of a case.
#[derive(Debug, Default)]
struct Outcome {
    /// Mistakes; empty if there are none.
    wrong: Vec<String>,
    is_over: bool,
    failures: u64,
    errors: u64,
    is_lost: bool,
    calls: BTreeMap<String, u64>,
    /// Calls until the device was open.
    opened: BTreeMap<String, u64>,
}

impl Outcome {
    /// Whether a case in which nothing fails is right.
    fn is_right(&self) -> bool {
        self.is_over && self.errors == 0 && self.wrong.is_empty()
    }
}

// In the child.

#[test]
fn child() {
    let Ok(driver) = env::var(CHILD) else { return };
    if driver == FAKE {
        // SAFETY: each function there has the signature of the function that it replaces.
        unsafe { faults::install(fake::find) };
    } else {
        keep_context();
    }
    let cases = env::var(CASES).expect("the parent says which");
    for case in cases.split(';').map(|case| case.parse::<Case>().expect("the parent's own text")) {
        println!("CASE {}", case.text());
        let found = run(&case);
        for wrong in &found.wrong {
            println!("WRONG {wrong}");
        }
        for message in found.messages.iter().take(3) {
            println!("SAYS {message}");
        }
        println!("END {} {}", found.errors, u32::from(found.is_lost));
        // The process has no context any more, or no driver.
        if found.is_lost || ONCE.contains(&&*case.function) {
            return;
        }
    }
}

/// Keeps the driver from building the context anew for each case.
fn keep_context() {
    use cudarc::driver::sys;
    let mut context = std::ptr::null_mut();
    // SAFETY: there is a GPU, or the parent would not have started this; the pointer is valid.
    let _ = unsafe { (sys::cuInit(0), sys::cuDevicePrimaryCtxRetain(&raw mut context, 0)) };
}

fn run(case: &Case) -> Found {
    let mut found = Found::default();
    faults::reset();
    let before = fake::live();
    let is_pool = case.workload.ends_with("pools");
    if case.nth > 0 && !is_pool {
        // Kept for the life of this process, which is short.
        faults::fail(case.function.clone().leak(), case.nth, case.code);
    }
    // To zero as many as an application has takes a third of the time of a case.
    faults::start_with_control_blocks(if case.workload == "controls" { 4 } else { 4096 });
    let device = found.take(Device::cuda(0));
    if case.nth == 0 {
        tell_calls("OPENED");
    }
    if let Some(device) = device {
        match &*case.workload {
            "storm" => workloads::storm(&device, 12, &mut found),
            "large" => workloads::large(&device, &mut found),
            "schedulers" => workloads::schedulers(&device, &mut found),
            "controls" => workloads::controls(&device, &mut found),
            "programs" => programs::changed(&device, &mut found),
            "chains" => programs::chains(&device, &mut found),
            "unused-graphs" => programs::unused_graphs(&device, &mut found),
            "armed" => {
                let began_armed = armed::run(&device, &mut found);
                let is_clean = case.nth == 0;
                found.expect(began_armed || !is_clean, || "none began behind its gate".into());
            }
            "checkpoints" | POISONED => {
                if case.workload == POISONED {
                    faults::poison_saved();
                }
                let were_left = checkpoints::run(&device, &mut found);
                let is_clean = case.nth == 0;
                found.expect(were_left || !is_clean, || "no block-task was left".into());
            }
            "large-states" => checkpoints::refused(&device, &mut found),
            "signal-paths" => {
                signal_paths::starts(&device, &mut found);
                signal_paths::starts_for_limits(&device, &mut found);
            }
            "full-device" => signal_paths::beside_a_full_device(&device, &mut found),
            "proxies" => signal_paths::one_after_the_other(&device, &mut found),
            "lent" => workloads::lent(&device, &mut found),
            "contract" => conformance::check(&device, &workloads::CONTRACT),
            parts if parts.starts_with("part") => parts::run(case, &device, &mut found),
            "fills" => workloads::fills(&device, &mut found),
            "foreign" => foreign::run(&device, &mut found),
            "raw" => raw::run(&device, &mut found),
            "shared" => shared::run(&device, &mut found),
            "shared-given" => shared::give_away(&device, &mut found),
            "pinned" => workloads::pinned(&device, &mut found),
            "queries" => workloads::queries(&device, &mut found),
            _ if is_pool => pools::run(case, &device, &mut found),
            peers if peers.ends_with("peers") => peers::run(peers, &device, &mut found),
            other => assert!(panics::run(other, &device, &mut found), "no workload `{other}`"),
        }
        if faults::failures() > 0 && !found.is_lost {
            recover(&device, "the device", case.code, &mut found);
        }
    }
    println!("FAILED {}", faults::failures());
    if case.nth == 0 {
        tell_calls("CALLS");
    }
    faults::reset();
    let is_fake = env::var(CHILD).is_ok_and(|driver| driver == FAKE);
    if case.code != LAUNCH_FAILED {
        let is_kept = !found.is_lost;
        found.expect(is_kept, || "an error that passes has cost the context".into());
        let hangs = case.workload == "hanging-peers";
        if is_fake && !hangs && !FREES.contains(&&*case.function) {
            let leaked = fake::live_after(before).saturating_sub(before);
            found.expect(leaked == 0, || format!("{leaked} pieces of memory are not freed"));
        }
    }
    if !found.is_lost && !ONCE.contains(&&*case.function) {
        match Device::cuda(0) {
            Ok(device) => recover(&device, "another device", case.code, &mut found),
            Err(error) => found.wrong.push(format!("no device any more: {error}")),
        }
    }
    if is_fake {
        found.wrong.append(&mut fake::violations());
    }
    found
}

fn tell_calls(word: &str) {
    faults::calls().into_iter().for_each(|(name, calls)| println!("{word} {name} {calls}"));
}

/// Checks that everything works as before after an error that passes, or one that came with the last call.
fn recover(device: &Device, what: &str, code: u32, found: &mut Found) {
    let mut after = Found::default();
    workloads::storm(device, 3, &mut after);
    if code == LAUNCH_FAILED && after.is_lost {
        // No operation was left to tell of it.
        found.is_lost = true;
        return;
    }
    found.wrong.extend(after.messages.iter().map(|error| format!("{what} afterwards: {error}")));
    found.wrong.append(&mut after.wrong);
}

// In the parent.

fn number(name: &str, otherwise: u64) -> u64 {
    env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

/// Starts a process for `cases`; returns the ends of the cases that it reached.
fn start(driver: &str, cases: &[Case]) -> Vec<Outcome> {
    let program = env::current_exe().expect("this program");
    let runner = env::var("PREEMPT_FAULTS_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace();
    let mut command = match words.next() {
        Some(runner) => {
            let mut command = Command::new(runner);
            command.args(words).arg(program);
            command
        }
        None => Command::new(program),
    };
    let texts: Vec<_> = cases.iter().map(Case::text).collect();
    command
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, driver)
        .env(CASES, texts.join(";"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let (sender, lines) = channel();
    let streams: [Box<dyn std::io::Read + Send>; 2] = [
        Box::new(child.stdout.take().expect("piped")),
        Box::new(child.stderr.take().expect("piped")),
    ];
    for stream in streams {
        let sender = sender.clone();
        thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                // The parent may have given up.
                let _ = sender.send(line);
            }
        });
    }
    drop(sender);
    let timeout = Duration::from_secs(number("PREEMPT_FAULTS_TIMEOUT", 30));
    let mut outcomes: Vec<Outcome> = Vec::new();
    let mut rest = Vec::new();
    loop {
        match lines.recv_timeout(timeout) {
            Ok(line) => take_in(&line, &mut outcomes, &mut rest),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let last = outcomes.last_mut();
                let hung =
                    last.filter(|outcome| !outcome.is_over).map(|outcome| &mut outcome.wrong);
                match hung {
                    Some(wrong) => wrong.push(format!("HANGS; stacks:\n{}", stacks(child.id()))),
                    None => outcomes.push(Outcome {
                        wrong: vec![format!("HANGS between cases\n{}", rest.join("\n"))],
                        ..Outcome::default()
                    }),
                }
                // The process has ended, or it is this program's own.
                let _ = child.kill();
                break;
            }
        }
    }
    let status = child.wait().expect("it was started");
    let rest = rest.join("\n");
    let said_why = |outcome: &Outcome| !outcome.wrong.is_empty();
    if !status.success() && !outcomes.last().is_some_and(said_why) {
        let wrong = vec![format!("the process ended with {status}:\n{rest}")];
        match outcomes.last_mut() {
            Some(outcome) => outcome.wrong.extend(wrong),
            None => outcomes.push(Outcome { wrong, ..Outcome::default() }),
        }
    }
    outcomes
}

/// The stacks of a process's threads, where a debugger is installed.
fn stacks(process: u32) -> String {
    if env::var_os("PREEMPT_FAULTS_STACKS").is_none() {
        return "set PREEMPT_FAULTS_STACKS to have gdb show them".into();
    }
    let process = process.to_string();
    let mut gdb = Command::new("gdb");
    let gdb = gdb.args(["-p", &process, "-batch", "-ex", "thread apply all bt 12"]);
    gdb.output().map_or_else(
        |error| error.to_string(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

fn take_in(line: &str, outcomes: &mut Vec<Outcome>, rest: &mut Vec<String>) {
    // The test harness begins its line without an end.
    let line = line.strip_prefix("test child ... ").unwrap_or(line);
    let (word, text) = line.split_once(' ').unwrap_or((line, ""));
    let mut numbers = text.split(' ').map(|word| word.parse::<u64>().unwrap_or(0));
    match (word, outcomes.last_mut()) {
        ("CASE", _) => outcomes.push(Outcome::default()),
        ("WRONG", Some(outcome)) => outcome.wrong.push(text.into()),
        ("SAYS", Some(_)) => {}
        ("FAILED", Some(outcome)) => outcome.failures = numbers.next().unwrap_or(0),
        (word @ ("CALLS" | "OPENED"), Some(outcome)) => {
            let (name, calls) = text.split_once(' ').unwrap_or((text, ""));
            let of = if word == "CALLS" { &mut outcome.calls } else { &mut outcome.opened };
            of.insert(name.into(), calls.parse().unwrap_or(0));
        }
        ("END", Some(outcome)) => {
            outcome.errors = numbers.next().unwrap_or(0);
            outcome.is_lost = numbers.next() == Some(1);
            outcome.is_over = true;
        }
        _ => rest.push(line.into()),
    }
}

/// Cases for the calls of a clean run. There are `each` for each function called after the opening of the device. The
/// opening is the same in all workloads, so its functions have two, in the first workload.
fn plan(workload: &str, clean: &Outcome, each: usize, random: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for (function, &calls) in &clean.calls {
        let passing = match function.starts_with("cuLaunch") {
            true => OUT_OF_RESOURCES,
            false => INVALID_VALUE,
        };
        let opened = clean.opened.get(function).copied().unwrap_or(0);
        let mut nths = Vec::new();
        if calls > opened {
            let later = calls - opened;
            nths.extend([
                (opened + later.div_ceil(2), passing),
                (opened + 1, OUT_OF_MEMORY),
                (opened + 1 + random.bits() % later, LAUNCH_FAILED),
                (calls, OUT_OF_MEMORY),
            ]);
            while nths.len() < each {
                let code = [OUT_OF_MEMORY, passing][nths.len() % 2];
                nths.push((opened + 1 + random.bits() % later, code));
            }
            nths.truncate(each);
        }
        if opened > 0 && workload == WORKLOADS[0] {
            nths.extend([(1, OUT_OF_MEMORY), (1 + random.bits() % opened, passing)]);
        }
        for (nth, code) in nths {
            let case = Case { workload: workload.into(), function: function.clone(), nth, code };
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
    }
    cases
}

/// The results of all cases.
#[derive(Default)]
struct Tally {
    ran: usize,
    /// Cases that ended with errors, with the context lost, with right results, and that reached no such call.
    errors: usize,
    lost: usize,
    right: usize,
    missed: usize,
    hung: usize,
    wrong: Vec<String>,
}

impl Tally {
    fn take(&mut self, driver: &str, case: &Case, outcome: &Outcome) {
        for what in &outcome.wrong {
            println!("WRONG ({driver}) {}: {what}", case.text());
            self.wrong.push(format!("{}: {what}", case.text()));
        }
        self.ran += 1;
        self.hung += usize::from(outcome.wrong.iter().any(|wrong| wrong.starts_with("HANGS")));
        *match (outcome.failures, outcome.is_lost, outcome.errors) {
            (0, ..) => &mut self.missed,
            (_, true, _) => &mut self.lost,
            (_, _, 0) => &mut self.right,
            _ => &mut self.errors,
        } += 1;
    }
}

/// The cases for a driver.
fn cases(driver: &str, each: usize, random: &mut Random) -> Vec<Case> {
    if let Ok(only) = env::var("PREEMPT_FAULTS_ONLY") {
        return only.split(';').map(|case| case.parse().expect("a case")).collect();
    }
    let mut cases = Vec::new();
    for workload in WORKLOADS {
        let outcomes = start(driver, &[Case::clean(workload)]);
        let outcome = outcomes.first().expect("there is one case");
        assert!(outcome.is_right(), "{workload}: {outcome:#?}");
        println!("{workload} ({driver}): {:?}", outcome.calls);
        cases.extend(plan(workload, outcome, each, random));
    }
    cases
}

fn drive(driver: &str, each: u64, seconds: u64, processes: u64) {
    let begin = Instant::now();
    let limit = Duration::from_secs(number("PREEMPT_FAULTS_SECONDS", seconds));
    let mut random = Random(number("PREEMPT_FAULTS_SEED", 1));
    let each = number("PREEMPT_FAULTS_PER_FUNCTION", each) as usize;
    let mut cases = cases(driver, each, &mut random);
    for last in (1..cases.len()).rev() {
        cases.swap(last, random.below(last as u32 + 1) as usize);
    }
    let all = cases.len();
    let (cases, tally) = (Mutex::new(VecDeque::from(cases)), Mutex::new(Tally::default()));
    let take_some = || {
        let mut cases = cases.lock().expect("no panic");
        // A case in which the driver fails as it starts has a process of its own.
        match cases.iter().position(|case| ONCE.contains(&&*case.function)) {
            Some(at) => cases.remove(at).into_iter().collect(),
            None => {
                let some = cases.len().min(10);
                cases.drain(..some).collect::<Vec<_>>()
            }
        }
    };
    let work = || {
        while begin.elapsed() < limit {
            let some = take_some();
            if some.is_empty() {
                return;
            }
            let outcomes = start(driver, &some);
            assert!(!outcomes.is_empty(), "{some:?}: nothing ran");
            for (case, outcome) in some.iter().zip(&outcomes) {
                tally.lock().expect("no panic").take(driver, case, outcome);
            }
            // The cases behind a call that ended the process.
            let rest = some.into_iter().skip(outcomes.len());
            cases.lock().expect("no panic").extend(rest);
        }
    };
    thread::scope(|scope| (0..processes).for_each(|_| drop(scope.spawn(work))));
    let Tally { ran, errors, lost, right, missed, hung, wrong } = tally.into_inner().expect("none");
    println!(
        "{driver}: {ran} of {all} cases in {:.0?}: {errors} ended with errors, {lost} with the context lost, {right} with \
         right results all the same, {missed} came to no such call; hangs: {hung}, wrong: {}",
        begin.elapsed(),
        wrong.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(ran, all, "the time was up; PREEMPT_FAULTS_SECONDS gives more");
}

#[test]
fn driver_calls_fail_without_a_gpu() {
    // The cases mostly wait.
    drive(FAKE, 3, 900, 4);
}

#[test]
fn driver_calls_fail_on_a_gpu() {
    match Device::cuda(0) {
        Ok(device) => drop(device),
        Err(
            error @ (Error::Device(DeviceError::NoDriver { .. })
            | Error::Device(DeviceError::NoGpu { .. })),
        ) => {
            return println!("SKIP: {error}");
        }
        Err(error) => panic!("{error}"),
    }
    // Starting takes most of the time.
    let processors = thread::available_parallelism().map_or(1, |count| count.get() as u64);
    drive(GPU, 4, 400, (processors / 2).clamp(1, 8));
}

/// A signal may still be on its way when its scheduler is over: the fake driver delays signals.
#[test]
fn no_signal_of_a_scheduler_reaches_the_next_one() {
    let cases = vec![Case::clean("schedulers"); 5];
    let outcomes = start(FAKE, &cases);
    let all_right = outcomes.iter().all(Outcome::is_right);
    assert!(outcomes.len() == cases.len() && all_right, "{outcomes:#?}");
}

/// The driver may wait for everything that runs when it pins memory, and the proxy runs as long as anything is in
/// flight.
#[test]
fn more_launches_than_control_blocks_run_beside_the_proxy() {
    let case = [Case::clean("controls")];
    let mut drivers = vec![FAKE];
    if Device::cuda(0).is_ok() {
        drivers.push(GPU);
    }
    for driver in drivers {
        let outcomes = start(driver, &case);
        let is_right =
            |outcome: &Outcome| outcome.is_over && outcome.wrong.is_empty() && outcome.errors == 0;
        assert!(outcomes.len() == 1 && outcomes.iter().all(is_right), "{driver}: {outcomes:#?}");
    }
}

/// The driver fills memory by a kernel, which would wait for SMs that running kernels hold.
#[test]
fn fills_wait_for_no_kernel() {
    let outcomes = start(FAKE, &[Case::clean("fills")]);
    assert!(outcomes.len() == 1 && outcomes.iter().all(Outcome::is_right), "{outcomes:#?}");
}

/// Their cohort is behind their own parameters, and their module is loaded when they are asked for.
#[test]
fn kernels_of_other_compilers_are_launched() {
    let outcomes = start(FAKE, &[Case::clean("foreign")]);
    assert!(outcomes.len() == 1 && outcomes.iter().all(Outcome::is_right), "{outcomes:#?}");
}

/// An application's context, streams, events and memory, by their handles.
#[test]
fn streams_and_memory_of_the_application_are_taken_by_their_handles() {
    let outcomes = start(FAKE, &[Case::clean("raw")]);
    assert!(outcomes.len() == 1 && outcomes.iter().all(Outcome::is_right), "{outcomes:#?}");
    // The first wait, the end of the work, and the look at an event; each with one error.
    let fails = |function: &str, nth| Case {
        workload: "raw".into(),
        function: function.into(),
        nth,
        code: INVALID_VALUE,
    };
    let cases = [
        fails("cuStreamIsCapturing", 1),
        fails("cuStreamIsCapturing", 2),
        fails("cuLaunchHostFunc", 1),
        fails("cuLaunchHostFunc", 2),
        fails("cuCtxGetDevice", 1),
    ];
    let outcomes = start(FAKE, &cases);
    let ends = |outcome: &Outcome| {
        outcome.is_over && outcome.wrong.is_empty() && (outcome.failures, outcome.errors) == (1, 1)
    };
    assert!(outcomes.len() == cases.len() && outcomes.iter().all(ends), "{outcomes:#?}");
}

/// Kernels of a preemptible program that are queued behind others cost one call of the driver together.
#[test]
fn kernels_in_a_row_are_few_calls_of_the_driver() {
    let outcomes = start(FAKE, &[Case::clean("chains")]);
    assert!(outcomes.len() == 1 && outcomes.iter().all(Outcome::is_right), "{outcomes:#?}");
}

/// The driver may wait for everything that runs when it destroys a graph.
#[test]
fn graphs_are_destroyed_by_threads_that_make_programs() {
    let outcomes = start(FAKE, &[Case::clean("unused-graphs")]);
    assert!(outcomes.len() == 1 && outcomes.iter().all(Outcome::is_right), "{outcomes:#?}");
}

/// An armed program does what a launch does, whether its gate is there or has left.
#[test]
fn gates_open_and_leave() {
    let case = [Case::clean("armed")];
    let mut drivers = vec![FAKE];
    if Device::cuda(0).is_ok() {
        drivers.push(GPU);
    }
    for driver in drivers {
        let outcomes = start(driver, &case);
        assert!(outcomes.len() == 1 && outcomes[0].is_right(), "{driver}: {outcomes:#?}");
    }
}

/// The proxy is started for launches that may be long and leave it a place.
#[test]
fn the_proxy_comes_where_it_is_worth_its_start() {
    let outcomes = start(FAKE, &["signal-paths", "full-device", "proxies"].map(Case::clean));
    assert!(outcomes.len() == 3 && outcomes.iter().all(Outcome::is_right), "{outcomes:#?}");
}

/// The driver copies from and to pinned memory of the application itself.
#[test]
fn pinned_memory_is_copied_where_it_lies() {
    let outcomes = start(FAKE, &[Case::clean("pinned")]);
    assert!(outcomes.len() == 1 && outcomes.iter().all(Outcome::is_right), "{outcomes:#?}");
}

/// What the fake driver says of its device.
#[test]
fn the_driver_is_asked_about_the_device() {
    let outcomes = start(FAKE, &[Case::clean("queries")]);
    assert!(outcomes.len() == 1 && outcomes.iter().all(Outcome::is_right), "{outcomes:#?}");
}

/// Memory of the application, which is known by its addresses.
#[test]
fn ranges_of_lent_memory_are_told_apart() {
    let outcomes = start(FAKE, &[Case::clean("lent")]);
    let all_right = outcomes.iter().all(Outcome::is_right);
    assert!(outcomes.len() == 1 && all_right, "{outcomes:#?}");
}

/// Block-tasks are left in the device's memory, and those that do not fit there are refused.
#[test]
fn block_tasks_are_left_where_there_is_memory() {
    let cases = [POISONED, "large-states"].map(Case::clean);
    let mut drivers = vec![FAKE];
    if Device::cuda(0).is_ok() {
        drivers.push(GPU);
    }
    for driver in drivers {
        let outcomes = start(driver, &cases);
        let all_right = outcomes.iter().all(Outcome::is_right);
        assert!(outcomes.len() == 2 && all_right, "{driver}: {outcomes:#?}");
    }
}

/// The checks that every back end has to pass.
#[test]
fn the_device_keeps_to_the_contract() {
    let case = [Case::clean("contract")];
    let mut drivers = vec![FAKE];
    if Device::cuda(0).is_ok() {
        drivers.push(GPU);
    }
    for driver in drivers {
        let outcomes = start(driver, &case);
        let is_right = outcomes.len() == 1 && outcomes.iter().all(Outcome::is_right);
        assert!(is_right, "{driver}: {outcomes:#?}");
        println!("{driver}: kept");
    }
}
