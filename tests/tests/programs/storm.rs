//! Programs at random, compared with what one thread would compute.

use std::ops::Range;
use std::time::{Duration, Instant};

use preempt::error::LaunchError;
use preempt::{
    BufferSliceMut, CpuLayout, Device, Error, Handle, LaunchReport, Preemption, Program,
    ProgramBuilder, ProgramCall, Scheduler, Stream,
};
use preempt_test_kernels as kernels;
use preempt_test_kit::storm::Chaos;
use preempt_test_kit::{KERNELS, Random};

use super::{LEN, in_time, scaled};

/// Threads of a block-task of `scale`, and its block-tasks.
const BLOCK: usize = 32;
const TASKS: u32 = LEN.div_ceil(BLOCK) as u32;

/// A call, in elements of one buffer.
#[derive(Clone, Copy)]
enum Step {
    Scale { factor: u32, start: usize, end: usize },
    Fill { value: u32, start: usize, end: usize },
    Copy { from: usize, to: usize, len: usize },
}

impl Step {
    fn random(random: &mut Random, len: usize) -> Step {
        let mut below = |bound: usize| random.below(bound as u32) as usize;
        let mut bounds = [0; 3].map(|_| below(len + 1));
        bounds.sort_unstable();
        let [start, mid, end] = bounds;
        match below(3) {
            0 => Step::Scale { factor: below(100) as u32, start, end },
            1 => Step::Fill { value: below(1 << 20) as u32, start, end },
            _ => {
                let len = (mid - start).min(end - mid);
                match below(2) {
                    0 => Step::Copy { from: start, to: mid, len },
                    _ => Step::Copy { from: mid, to: start, len },
                }
            }
        }
    }

    fn apply(self, model: &mut [u32]) {
        match self {
            Step::Scale { factor, start, end } => {
                let scaled = scaled(factor, &model[start..end]);
                model[start..end].copy_from_slice(&scaled);
            }
            Step::Fill { value, start, end } => model[start..end].fill(value),
            Step::Copy { from, to, len } => model.copy_within(from..from + len, to),
        }
    }

    /// Has the program, or else the stream, do it; the place of a launch in a program.
    fn submit(
        self,
        stream: &Stream,
        program: Option<&mut ProgramBuilder<'_>>,
        buffer: &mut BufferSliceMut<'_, u32>,
    ) -> Result<Option<ProgramCall>, Error> {
        match self {
            Step::Scale { factor, start, end } => {
                let call = kernels::scale(factor, buffer.slice_mut(start..end)?).threads(LEN);
                match program {
                    Some(program) => return program.launch(call).map(Some),
                    None => stream.launch(call)?.detach(),
                }
            }
            Step::Fill { value, start, end } => {
                let mut range = buffer.slice_mut(start..end)?;
                match program {
                    Some(program) => program.fill(&mut range, value)?,
                    None => stream.fill(&mut range, value)?.detach(),
                }
            }
            Step::Copy { from, to, len } => {
                let (low, high) = buffer.slice_mut(..)?.split_at_mut(from.max(to))?;
                let (from, mut to) = match from < to {
                    true => (low.split_at_mut(from)?.1, high.split_at_mut(len)?.0),
                    false => (high, low.split_at_mut(to)?.1.split_at_mut(len)?.0),
                };
                let from = from.slice(..len)?;
                match program {
                    Some(program) => program.copy_buffer(&from, &mut to)?,
                    None => stream.copy_buffer(&from, &mut to)?.detach(),
                }
            }
        }
        Ok(None)
    }
}

/// A program, and what it does.
struct Recorded {
    program: Program,
    steps: Vec<Step>,
    places: Vec<Option<ProgramCall>>,
}

impl Recorded {
    fn random(
        random: &mut Random,
        stream: &Stream,
        buffer: &mut BufferSliceMut<'_, u32>,
    ) -> Recorded {
        let len = buffer.len();
        let steps: Vec<Step> = (0..=random.below(6)).map(|_| Step::random(random, len)).collect();
        let mut places = Vec::new();
        let form = [Preemption::Plain, Preemption::Preemptible][random.below(2) as usize];
        let program = stream.program("random", |program| {
            program.preemption(form);
            for step in &steps {
                places.push(step.submit(stream, Some(&mut *program), buffer)?);
            }
            Ok(())
        });
        Recorded { program: program.expect("recorded"), steps, places }
    }

    /// Has one of its launches do something else.
    fn change(&mut self, random: &mut Random, buffer: &mut BufferSliceMut<'_, u32>) {
        let at = random.below(self.steps.len() as u32) as usize;
        let (Some(place), Step::Scale { start, end, .. }) = (self.places[at], self.steps[at])
        else {
            return;
        };
        let (factor, end) =
            (random.below(100), end - random.below((end - start) as u32 + 1) as usize);
        let range = buffer.slice_mut(start..end).expect("in range");
        self.program.set(place, kernels::scale(factor, range).threads(LEN)).expect("the kernel");
        self.steps[at] = Step::Scale { factor, start, end };
    }

    /// Whether `done` block-tasks, each run once, make `found` of `before`. What is between two launches is done or not; what
    /// is behind a launch of which block-tasks are left is not.
    fn makes(&self, done: u32, before: &[u32], found: &[u32]) -> bool {
        let (mut model, mut left) = (before.to_vec(), done);
        for step in &self.steps {
            if left == 0 && model == found {
                return true;
            }
            let mut next = model.clone();
            step.apply(&mut next);
            if let Step::Scale { start, end, .. } = *step {
                if left < TASKS {
                    return left > 0 && is_partly(left, start..end, &model, &next, found);
                }
                left -= TASKS;
            }
            model = next;
        }
        left == 0 && model == found
    }
}

/// Whether `done` of the block-tasks that turn `before` into `after` have run, those of a range.
fn is_partly(done: u32, range: Range<usize>, before: &[u32], after: &[u32], found: &[u32]) -> bool {
    let outside = |x: &[u32]| [&x[..range.start], &x[range.end..]].concat();
    // The block-tasks that have run for certain, and those that have not.
    let (mut ran, mut not) = (0, 0);
    let is_clean = range.clone().step_by(BLOCK).all(|start| {
        let task = start..range.end.min(start + BLOCK);
        let [before, after, found] = [before, after, found].map(|x| &x[task.clone()]);
        ran += u32::from(found != before);
        not += u32::from(found != after);
        found == before || found == after
    });
    is_clean && outside(found) == outside(before) && ran <= done && not <= TASKS - done
}

/// What a storm has seen.
#[derive(Default, Debug)]
struct Seen {
    /// Launches that began armed.
    began_armed: u32,
    /// Launches that were cancelled in time, of a program that had been armed and of another.
    cancelled: [u32; 2],
    /// Those that had done some of their block-tasks.
    midway: u32,
}

/// Cancels a launch of a program, and has the model do what it has done.
fn cancel(
    recorded: &Recorded,
    handle: &Handle<LaunchReport>,
    was_armed: bool,
    (stream, buffer): (&Stream, &BufferSliceMut<'_, u32>),
    model: &mut [u32],
    random: &mut Random,
    seen: &mut Seen,
) {
    // Before it runs, while it does, or after.
    let most = 1 << random.below(8);
    let (start, after) = (Instant::now(), Duration::from_micros(random.below(most).into()));
    while start.elapsed() < after {
        std::hint::spin_loop();
    }
    handle.cancel();
    // Armed while the cancelled launch is under way.
    if random.below(2) == 0 {
        recorded.program.arm().expect("accepted");
    }
    let is_launch = |step: &&Step| matches!(step, Step::Scale { .. });
    let all = recorded.steps.iter().filter(is_launch).count() as u32 * TASKS;
    let ended = in_time(handle);
    let found = in_time(&stream.download(buffer).expect("accepted")).expect("copied");
    match ended {
        Ok(report) => {
            seen.began_armed += u32::from(report.armed);
            recorded.steps.iter().for_each(|step| step.apply(model));
            assert_eq!(found, model, "it was not cancelled");
        }
        Err(Error::Launch(LaunchError::Cancelled { done, tasks })) => {
            assert!(done <= tasks && tasks == all, "{done} of {tasks}, {all}");
            assert!(recorded.makes(done, model, &found), "{done} of {tasks}: {found:?}");
            seen.cancelled[usize::from(!was_armed)] += 1;
            seen.midway += u32::from(done > 0 && done < tasks);
            model.copy_from_slice(&found);
        }
        Err(other) => panic!("{other}"),
    }
}

/// Programs, launches, fills and copies on random ranges, compared with a vector. All are under way at the same time, but
/// what is behind a program that is cancelled: how far that one came is not known before it is over.
fn storm(
    streams: &[Stream],
    mut buffer: BufferSliceMut<'_, u32>,
    model: &mut [u32],
    turns: u32,
    random: &mut Random,
    seen: &mut Seen,
) {
    let mut programs = Vec::new();
    let (mut downloads, mut handles) = (Vec::new(), Vec::new());
    for turn in 0..turns {
        let stream = &streams[random.below(streams.len() as u32) as usize];
        match random.below(12) {
            0 => {
                // Launches of the old one may be under way.
                programs.truncate(random.below(3) as usize);
                programs.push(Recorded::random(random, stream, &mut buffer));
            }
            1 => {
                let download = stream.download(&buffer).expect("accepted");
                downloads.push((turn, download, model.to_vec()));
            }
            2 | 3 => {
                let step = Step::random(random, model.len());
                step.submit(stream, None, &mut buffer).expect("accepted");
                step.apply(model);
            }
            4 => {
                if let Some(recorded) = programs.last_mut() {
                    recorded.change(random, &mut buffer);
                }
            }
            _ if programs.is_empty() => {}
            kind => {
                let which = random.below(programs.len() as u32) as usize;
                let recorded @ Recorded { program, steps, .. } = &programs[which];
                let is_armed = kind > 7;
                let handle = match kind {
                    5 | 6 => stream.launch_program(program),
                    7 => program.launch(),
                    _ => {
                        program.arm().expect("accepted");
                        if random.below(2) == 0 {
                            continue;
                        }
                        // In time, mostly, or too late.
                        std::thread::sleep(Duration::from_micros(random.below(1500).into()));
                        program.launch()
                    }
                };
                let handle = handle.expect("accepted");
                if random.below(4) == 0 {
                    let on = (stream, &buffer);
                    cancel(recorded, &handle, is_armed, on, model, random, seen);
                    continue;
                }
                handles.push(handle);
                steps.iter().for_each(|step| step.apply(model));
            }
        }
    }
    for (turn, download, expected) in downloads {
        assert_eq!(in_time(&download).expect("copied"), expected, "turn {turn}");
    }
    for stream in streams {
        assert_eq!(in_time(&stream.download(&buffer).expect("accepted")).expect("copied"), model);
    }
    let reports = handles.iter().map(|handle| in_time(handle).expect("done"));
    seen.began_armed += reports.map(|report| u32::from(report.armed)).sum::<u32>();
}

const LAYOUT: CpuLayout = CpuLayout::sms(3).blocks_per_sm(2);

/// A scheduler whose policy takes SMs at random.
fn chaotic(seed: u64) -> Scheduler {
    chaotic_on(preempt_test_kit::device(LAYOUT), seed)
}

/// The same on an emulated device, where kernels may fail.
pub fn chaotic_emulated(seed: u64) -> Scheduler {
    chaotic_on(Device::cpu_with(LAYOUT).expect("a device"), seed)
}

fn chaotic_on(device: Device, seed: u64) -> Scheduler {
    let builder = Scheduler::builder().device(device).kernels(KERNELS);
    builder.policy(Chaos::new(seed)).build().expect("a scheduler")
}

#[test]
fn random_programs_give_what_one_thread_would_compute() {
    let mut seen = Seen::default();
    for seed in 0..25 {
        let mut random = Random(seed);
        let scheduler = chaotic(seed);
        let streams: Vec<_> = (0..4).map(|_| scheduler.stream(random.below(3) as i32)).collect();
        let mut buffer = scheduler.zeroed(LEN).expect("memory");
        println!("seed {seed}");
        let range = buffer.slice_mut(..).expect("all");
        storm(&streams, range, &mut [0; LEN], 150, &mut random, &mut seen);
    }
    println!("{seen:?}");
    let Seen { began_armed, cancelled: [armed, others], midway } = seen;
    assert!(began_armed > 0 && armed > 0 && others > 0 && midway > 0);
}

#[test]
fn threads_launch_programs_on_parts_of_one_buffer() {
    for seed in 0..4 {
        let scheduler = chaotic(seed);
        let mut buffer = scheduler.zeroed::<u32>(4 * LEN).expect("memory");
        let mut parts = Vec::new();
        let mut rest = buffer.slice_mut(..).expect("all");
        for _ in 0..4 {
            let (part, behind) = rest.split_at_mut(LEN).expect("in range");
            parts.push(part);
            rest = behind;
        }
        println!("seed {seed}");
        std::thread::scope(|scope| {
            for (number, part) in (0..).zip(parts) {
                let streams = [0, 1, 2].map(|priority| scheduler.stream(priority));
                scope.spawn(move || {
                    let mut random = Random(100 * seed + number);
                    let seen = &mut Seen::default();
                    storm(&streams, part, &mut [0; LEN], 80, &mut random, seen);
                });
            }
        });
    }
}
