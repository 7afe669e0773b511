//! Kernels that the macro lets stop without a word of the author's. Each body runs in storms of more urgent launches, and
//! leaves the same as undisturbed, to the bit. If one does not, though the analysis says that it may be dropped, the analysis
//! is wrong.
//!
//! | module | its block-tasks |
//! | --- | --- |
//! | `strict` | may be dropped at any yield point, where each thread decides for itself |
//! | `together` | may be dropped at any yield point, where the block decides together |
//! | `relaxed` | may be dropped until a thread gets to a marker, where each thread decides for itself |
//! | `relaxed_together` | may be dropped until a thread gets to a marker, where the block decides together |
//! | `checkpoints` | go on at the checkpoint where they were left |
//!
//! A body of the last three has a *twin*: the same, declared `idempotent`, without markers and with yield points in the place
//! of the checkpoint. A twin may be dropped where the body must not, and leaves something else in the same storm. So each
//! body here needs its markers or its checkpoint, and the storm is strong enough to find that they are missing.

use std::time::Duration;

use preempt::Error;
use preempt_device::kernel::{Own, SliceMut};
use preempt_device::yields;
use preempt_test_kit::one_kernel::{Kernel, Storm};

const TASKS: u32 = 8;
const THREADS: u32 = 32;
const ELEMENTS: usize = (TASKS * THREADS) as usize;

/// Elements that the kernels write behind those of the threads.
const BINS: usize = 16;

/// Rounds of a thread, each with a yield point or a checkpoint.
const ROUNDS: u32 = 24;

/// Threads whose index is a multiple of this take their time: the first one of a block-task, the one in the middle of the next,
/// and none of the one after that. When the second of these is stopped, the threads ahead of it have passed their markers, or
/// ended, if they wait for no other.
const SLOW: usize = 48;

/// Nanoseconds of a slow thread in a round.
const PAUSE: u32 = 30_000;

/// The most between two urgent launches: most block-tasks are stopped early in the first storms, and late in the second ones.
const PAUSES: [Duration; 2] = [Duration::from_micros(800), Duration::from_micros(6000)];

/// Launches of each body in storms, at least, and until there were stops of each kind.
const LAUNCHES: usize = 6;

/// Launches without such stops, or of a twin without mistakes, that are enough to give up.
const MOST_LAUNCHES: usize = 200;

/// How block-tasks of a body may be stopped.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Form {
    Strict,
    Relaxed,
    Checkpoint,
}

struct Body {
    name: &'static str,
    kernel: Kernel,
    /// The same body where nothing forbids to drop it.
    twin: Option<Kernel>,
}

/// The bodies of a module that are functions of it.
macro_rules! table {
    ($($kernel:ident)*) => {
        pub const BODIES: &[crate::Body] =
            &[$(crate::Body { name: stringify!($kernel), kernel: |x, y| $kernel(x, y), twin: None }),*];
    };
}

/// Bodies with their twins: a module for each, with two kernels.
macro_rules! bodies {
    ($($(#[doc = $doc:literal])* #[preemptible($($options:tt)*)] fn $name:ident $params:tt { $($body:tt)* })*) => {
        $(
            $(#[doc = $doc])*
            mod $name {
                use super::*;

                #[preemptible($($options)*)]
                pub fn decided $params { $($body)* }

                twin! { ($($options)*) $params [] $($body)* }
            }
        )*
        pub const BODIES: &[crate::Body] = &[$(crate::Body {
            name: stringify!($name),
            kernel: |x, y| $name::decided(x, y),
            twin: Some(|x, y| $name::declared(x, y)),
        }),*];
    };
}

/// The twin of a body: looks for a checkpoint, token by token.
macro_rules! twin {
    (($($options:tt)*) $params:tt [$($ahead:tt)*]
        checkpoint!($state:ident: $ty:ty = $init:expr => $($looped:tt)*); $($behind:tt)*
    ) => {
        #[preemptible($($options)*, idempotent, yield_in_loops)]
        pub fn declared $params { $($ahead)* let mut $state: $ty = $init; $($looped)* $($behind)* }
    };
    ($options:tt $params:tt [$($ahead:tt)*] $next:tt $($behind:tt)*) => {
        twin! { $options $params [$($ahead)* $next] $($behind)* }
    };
    (($($options:tt)*) $params:tt [$($body:tt)*]) => {
        #[preemptible($($options)*, idempotent)]
        pub fn declared $params { $($body)* }
    };
}

/// Adds to an element in place, where the analysis does not see it.
fn add(y: SliceMut<u32>, i: usize, value: u32) {
    // SAFETY: the caller has its own element.
    unsafe { y.write(i, y.read(i) + value) }
}

/// As [`add`], of a thread's own element.
fn triple(own: Option<Own<u32>>, value: u32) {
    if let Some(own) = own {
        own.set(own.get() * 3 + value);
    }
}

/// As [`add`], through a pointer.
///
/// # Safety
///
/// The caller has this element.
unsafe fn change(element: *mut u32, value: u32) {
    // SAFETY: the caller's promise.
    unsafe { *element = (*element).wrapping_mul(3) + value }
}

mod checkpoints;
mod relaxed;
mod relaxed_together;
mod strict;
mod together;

const TABLE: [(&str, Form, &[Body]); 5] = [
    ("strict", Form::Strict, strict::BODIES),
    ("strict, together", Form::Strict, together::BODIES),
    ("relaxed", Form::Relaxed, relaxed::BODIES),
    ("relaxed, together", Form::Relaxed, relaxed_together::BODIES),
    ("checkpoint", Form::Checkpoint, checkpoints::BODIES),
];

/// Block-tasks that were stopped, and marked.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Stops {
    /// Requeued, by the blocks of this storm.
    requeued: u64,
    /// Left at checkpoints, by the blocks of this storm.
    switched: u64,
    /// Marked, and dropped in a kernel with markers, by all blocks of the process.
    marks: u64,
    drops: u64,
}

impl Stops {
    fn of(storm: &Storm) -> Stops {
        let stops = storm.scheduler.stats().stops;
        let [marks, drops] = yields::counts();
        Stops { requeued: stops.requeued, switched: stops.switched, marks, drops }
    }

    fn since(self, before: Stops) -> Stops {
        Stops {
            requeued: self.requeued - before.requeued,
            switched: self.switched - before.switched,
            marks: self.marks - before.marks,
            drops: self.drops - before.drops,
        }
    }

    /// Whether block-tasks were stopped, and whether that was as the form says.
    fn are_enough(self, form: Form) -> bool {
        let Stops { requeued, switched, marks, drops } = self;
        match form {
            Form::Strict => requeued > 0 && (switched, marks, drops) == (0, 0, 0),
            Form::Relaxed => requeued > 0 && switched == 0 && marks > 0 && drops > 0,
            Form::Checkpoint => switched > 0 && (requeued, marks, drops) == (0, 0, 0),
        }
    }
}

/// What a kernel leaves, disturbed if there is a `pause`.
fn left(storm: &mut Storm, kernel: Kernel, pause: Option<Duration>) -> Result<Vec<u32>, Error> {
    let call = |x: &_, y: &mut _| kernel(x, y).grid(TASKS).amortize(1);
    storm.left(call, ELEMENTS, &[0; ELEMENTS + BINS], pause).map(|(left, _)| left)
}

/// The pauses of the launches in storms.
fn pauses() -> impl Iterator<Item = Option<Duration>> {
    PAUSES.into_iter().cycle().map(Some).take(MOST_LAUNCHES)
}

/// The number of launches in storms until one leaves something else than an undisturbed one does.
fn until_found(storm: &mut Storm, kernel: Kernel, expected: &[u32]) -> Option<usize> {
    let is_wrong = |left: Result<_, _>| left.is_ok_and(|left: Vec<u32>| left != expected);
    pauses().position(|pause| is_wrong(left(storm, kernel, pause))).map(|before| before + 1)
}

/// What is wrong with a body.
fn check(storm: &mut Storm, form: Form, body: &Body) -> Result<(), String> {
    let failed = |error: Error| error.to_string();
    let expected = left(storm, body.kernel, None).map_err(failed)?;
    if expected.iter().all(|value| *value == 0) {
        return Err("it does nothing".to_owned());
    }
    let before = Stops::of(storm);
    let (mut launches, mut wrong) = (0, 0);
    for pause in pauses() {
        wrong += usize::from(left(storm, body.kernel, pause).map_err(failed)? != expected);
        launches += 1;
        if launches >= LAUNCHES && Stops::of(storm).since(before).are_enough(form) {
            break;
        }
    }
    let stops = Stops::of(storm).since(before);
    println!("{}: {launches} launches, {stops:?}", body.name);
    if wrong > 0 || !stops.are_enough(form) {
        return Err(format!("{wrong} of {launches} launches are wrong, {stops:?}"));
    }
    let Some(twin) = body.twin else { return Ok(()) };
    if left(storm, twin, None).map_err(failed)? != expected {
        return Err("its twin is another kernel".to_owned());
    }
    match until_found(storm, twin, &expected) {
        Some(launches) => println!("    its twin: {launches} launches"),
        None => return Err("the storm finds nothing in its twin".to_owned()),
    }
    Ok(())
}

/// One test, because markers and drops are counted for the whole process.
#[test]
fn each_body_leaves_in_storms_what_it_leaves_undisturbed() {
    let mut storm = Storm::new(7);
    let mut faults = Vec::new();
    for (part, form, bodies) in TABLE {
        for body in bodies {
            assert_eq!(body.twin.is_some(), form != Form::Strict, "{}", body.name);
            let fault = check(&mut storm, form, body).err();
            faults.extend(fault.map(|fault| format!("{} ({part}): {fault}", body.name)));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Kernels that the macro refuses without the word.
#[test]
fn the_storm_finds_what_is_wrongly_declared() {
    let mut storm = Storm::new(9);
    for body in strict::REFUSED {
        let expected = left(&mut storm, body.kernel, None).expect("it runs");
        let found = until_found(&mut storm, body.kernel, &expected);
        assert!(found.is_some(), "the storm finds nothing in {}", body.name);
    }
}

#[test]
fn the_table_has_enough_bodies_and_each_once() {
    let names: Vec<&str> =
        TABLE.iter().flat_map(|(.., bodies)| bodies.iter().map(|body| body.name)).collect();
    let mut different = names.clone();
    different.sort_unstable();
    different.dedup();
    assert!(different.len() == names.len() && names.len() >= 60, "{} bodies", names.len());
}
