//! Preemptible programs that are interrupted in each of their kernels.
//!
//! Most kernels run on the CPU device alone: the host sees how far they are.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use cudarc::driver::sys;
use preempt::error::LaunchError;
use preempt::predict::{Features, Predictor};
use preempt::{
    Buffer, CpuLayout, Device, Error, Handle, LaunchReport, Opaque, Preemption, Program, RawStream,
    Scheduler, Stream,
};
use preempt_device::prelude::*;
use preempt_test_kernels as kernels;
use preempt_test_kit::{Random, carried_out};

use super::{WHILE, contents, in_time};

/// Kernels of a program, and block-tasks of each.
const CALLS: u32 = 4;
const TASKS: u32 = 3;
/// The name of a block-task that is no program's.
const OTHER: u32 = 1_000_000;
/// Kernels of a program of many.
const MANY: u32 = 50;

/// Waits before it does anything if it is the block-task that `held` names, until that is changed. Then appends its name
/// to `log`, whose element 0 is the number of entries.
///
/// Block-tasks must not wait for each other; this one waits for the host.
#[preemptible(block = 1)]
fn step(call: u32, held: *const u32, log: *mut u32) {
    let name = call + thread::block_idx_x();
    // SAFETY: `held` has two elements, which host and kernels access atomically.
    let (held, arrived) = unsafe {
        (AtomicU32::from_ptr(held.cast_mut()), AtomicU32::from_ptr(held.add(1).cast_mut()))
    };
    if held.load(SeqCst) == name {
        arrived.store(1, SeqCst);
        while held.load(SeqCst) == name {
            std::thread::yield_now();
        }
    }
    // SAFETY: all entries are appended atomically, and the test allocates enough of them.
    unsafe {
        let entry = AtomicU32::from_ptr(log).fetch_add(1, SeqCst) + 1;
        log.add(entry as usize).write(name);
    }
}

/// The name of a block-task of a program's kernel.
fn name(call: u32, task: u32) -> u32 {
    100 * (call + 1) + task
}

/// A device with one block, where a program runs one block-task at a time.
struct Held {
    scheduler: Scheduler,
    stream: Stream,
    program: Program,
    held: Buffer<u32>,
    /// Of the program, and of other launches.
    log: Buffer<u32>,
}

impl Held {
    /// A program whose first block-task of a kernel waits.
    fn in_call(call: u32) -> Held {
        Held::in_call_of(CALLS, call)
    }

    fn in_call_of(calls: u32, call: u32) -> Held {
        let builder = Scheduler::builder();
        let builder = builder.device(Device::cpu_with(CpuLayout::sms(1)).expect("a device"));
        let scheduler = builder.preemption(Preemption::Preemptible).build().expect("a scheduler");
        let stream = scheduler.stream(0);
        let held = scheduler.buffer(&[name(call, 0), 0]).expect("memory");
        let [mut log, mut copied] = [(); 2].map(|()| scheduler.zeroed(200).expect("memory"));
        let program = stream.program("held", |program| {
            program.preemption(Preemption::Preemptible);
            for call in 0..calls {
                let step = step(name(call, 0), &held, &mut log).grid(TASKS).amortize(1);
                program.launch(step)?;
                if call == 1 {
                    program.copy_buffer(&log, &mut copied)?;
                }
            }
            Ok(())
        });
        Held { scheduler, stream, program: program.expect("recorded"), held, log }
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        // SAFETY: on the CPU device the address is one of this process; access is atomic.
        unsafe { AtomicU32::from_ptr((self.held.address() as *mut u32).add(index)) }
    }

    /// Launches the program, until it waits.
    fn launch(&self) -> Handle<LaunchReport> {
        let handle = self.program.launch().expect("accepted");
        while self.word(1).load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        handle
    }

    fn go_on(&self) {
        self.word(0).store(0, SeqCst);
    }

    fn entries(&self) -> Vec<u32> {
        let log = contents(&self.scheduler.stream(5), &self.log);
        log[1..=log[0] as usize].to_vec()
    }
}

/// The names of all block-tasks of the program, in their order.
fn all() -> impl Iterator<Item = u32> {
    all_of(CALLS)
}

fn all_of(calls: u32) -> impl Iterator<Item = u32> {
    (0..calls).flat_map(|call| (0..TASKS).map(move |task| name(call, task)))
}

#[test]
fn an_urgent_launch_overtakes_and_only_what_is_left_runs() {
    (0..CALLS).for_each(|call| is_overtaken(CALLS, call));
}

#[test]
fn a_program_of_many_kernels_is_overtaken_in_each() {
    (0..MANY).for_each(|call| is_overtaken(MANY, call));
}

/// Interrupts one of a program's calls.
fn is_overtaken(calls: u32, call: u32) {
    let of = Held::in_call_of(calls, call);
    let handle = of.launch();
    let mut seen = of.scheduler.zeroed::<u32>(100).expect("memory");
    let urgent = of.scheduler.stream(9);
    let other = step(OTHER, &of.held, &mut seen).grid(2);
    let urgent = carried_out(&of.scheduler, || urgent.launch(other).expect("accepted"));
    // The program's `log` stands still meanwhile.
    let log = of.log.address() as *mut u32;
    of.go_on();
    in_time(&urgent).expect("runs");
    // SAFETY: as in the kernel.
    let entries = unsafe { AtomicU32::from_ptr(log) }.load(SeqCst);
    let report = in_time(&handle).expect("runs");
    assert!(entries > call * TASKS, "{entries} in call {call}");
    assert_eq!((report.tasks, report.plain), (calls * TASKS, false));
    assert_eq!((report.yields, report.resumes > 0), (1, true), "in call {call}");
    assert!(of.entries().into_iter().eq(all_of(calls)), "in call {call}");
}

/// The urgent launch is over before the next block-task of the program.
#[test]
fn the_program_stands_still_while_the_urgent_launch_runs() {
    for call in 0..CALLS {
        let of = Held::in_call(call);
        let handle = of.launch();
        let held = of.scheduler.buffer(&[OTHER, 0]).expect("memory");
        let mut seen = of.scheduler.zeroed::<u32>(100).expect("memory");
        let other = step(OTHER, &held, &mut seen).grid(1);
        let urgent = of.scheduler.stream(9);
        let urgent = carried_out(&of.scheduler, || urgent.launch(other).expect("accepted"));
        of.go_on();
        let [held, log] = [held.address(), of.log.address()].map(|at| at as *mut u32);
        // SAFETY: on the CPU device an address is one of this process; access is atomic.
        let word = |at: *mut u32| unsafe { AtomicU32::from_ptr(at) };
        while word(held.wrapping_add(1)).load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert!(handle.wait_timeout(WHILE).is_none());
        assert_eq!(word(log).load(SeqCst), call * TASKS + 1, "in call {call}");
        word(held).store(0, SeqCst);
        in_time(&urgent).expect("runs");
        in_time(&handle).expect("runs");
        assert!(of.entries().into_iter().eq(all()), "in call {call}");
    }
}

#[test]
fn a_program_is_cancelled_in_each_of_its_kernels() {
    for call in 0..CALLS {
        let of = Held::in_call(call);
        let handle = of.launch();
        let behind = of.program.launch().expect("accepted");
        handle.cancel();
        assert!(handle.wait_timeout(WHILE).is_none(), "a block-task runs");
        of.go_on();
        let error = in_time(&handle).expect_err("cancelled");
        let expected = LaunchError::Cancelled { done: call * TASKS + 1, tasks: CALLS * TASKS };
        assert_eq!(error.to_string(), Error::Launch(expected).to_string());
        // What is behind it goes on with what there is.
        assert_eq!(in_time(&behind).expect("runs").tasks, CALLS * TASKS);
        let done = (call * TASKS + 1) as usize;
        assert!(of.entries().into_iter().eq(all().take(done).chain(all())), "in call {call}");
    }
}

#[test]
fn a_program_is_closed_in_each_of_its_kernels() {
    for call in 0..CALLS {
        let Held { scheduler, stream, program, held, log } = Held::in_call(call);
        let device = scheduler.device().clone();
        let of = Held { scheduler: scheduler.clone(), stream, program, held, log };
        let handle = of.launch();
        let Held { scheduler: second, held, .. } = &of;
        let _ = second;
        let held = held.address() as *mut u32;
        drop(scheduler);
        let Held { scheduler, stream, program, held: _held, log } = of;
        std::thread::scope(|scope| {
            scope.spawn(|| drop(scheduler));
            assert!(handle.wait_timeout(WHILE).is_none(), "a block-task runs");
            // SAFETY: as above.
            unsafe { AtomicU32::from_ptr(held) }.store(0, SeqCst);
            let error = in_time(&handle).expect_err("closed");
            let (done, tasks) = (call * TASKS + 1, CALLS * TASKS);
            let expected = LaunchError::SchedulerDropped { done, tasks };
            assert_eq!(error.to_string(), Error::Launch(expected).to_string());
        });
        drop((stream, program));
        let next = Scheduler::builder().device(device).build().expect("a scheduler");
        let log = contents(&next.stream(0), &log);
        assert_eq!(log[0], call * TASKS + 1);
    }
}

#[test]
fn the_device_is_drained_in_each_of_its_kernels() {
    for call in 0..CALLS {
        let of = Held::in_call(call);
        let handle = of.launch();
        let seen = Arc::new(AtomicU32::new(0));
        let (sees, log) = (seen.clone(), of.log.address());
        let drains = of.scheduler.stream(9).opaque(Opaque::new("alone").exclusive(), move |_| {
            // SAFETY: as above.
            sees.store(unsafe { AtomicU32::from_ptr(log as *mut u32) }.load(SeqCst), SeqCst);
            Ok(())
        });
        let drains = drains.expect("accepted");
        assert!(drains.wait_timeout(WHILE).is_none());
        of.go_on();
        in_time(&drains).expect("runs");
        assert_eq!(seen.load(SeqCst), call * TASKS + 1);
        in_time(&handle).expect("runs");
        assert!(of.entries().into_iter().eq(all()));
    }
}

/// A program that is raised goes first, in the midst of a kernel.
#[test]
fn the_urgency_of_a_program_that_runs_is_changed() {
    // No copy is behind it, in which the other launch would have the device.
    let of = Held::in_call(2);
    let handle = of.launch();
    let held = of.scheduler.buffer(&[0, 0]).expect("memory");
    let mut log = of.scheduler.zeroed::<u32>(200).expect("memory");
    let other = step(OTHER, &held, &mut log).grid(100).amortize(1);
    let stream = of.scheduler.stream(5);
    let other = carried_out(&of.scheduler, || stream.launch(other).expect("accepted"));
    carried_out(&of.scheduler, || handle.set_priority(9));
    of.go_on();
    let [program, other] = [&handle, &other].map(|handle| in_time(handle).expect("runs"));
    assert!(program.done < other.done, "{program:?} {other:?}");
    assert!(of.entries().into_iter().eq(all()));
}

#[test]
fn auto_programs_are_plain_once_their_kernels_are_known() {
    let device = Device::cpu_with(CpuLayout::sms(2)).expect("a device");
    let builder = Scheduler::builder().device(device).preemption(Preemption::Auto);
    let builder = builder.longest_plain(super::LONG);
    let scheduler = builder.build().expect("a scheduler");
    let stream = scheduler.stream(0);
    let mut x = scheduler.zeroed::<u32>(100).expect("memory");
    let program = stream.program("auto", |program| {
        for factor in 0..3 {
            program.launch(kernels::scale(factor, &mut x).threads(100))?;
        }
        Ok(())
    });
    let program = program.expect("recorded");
    let forms: Vec<bool> = (0..20)
        .map(|_| in_time(&program.launch().expect("accepted")).expect("runs").plain)
        .collect();
    assert!(!forms[0], "nothing is known of it");
    assert!(forms[19], "it is short, and nothing preempts it: {forms:?}");
    let first = forms.iter().position(|&plain| plain).expect("one is plain");
    assert!(forms[first..].iter().all(|&plain| plain), "{forms:?}");
}

/// Interrupted at many times, a program does what it does alone, on a GPU as well.
#[test]
fn what_a_program_computes_does_not_depend_on_interruptions() {
    const ROUNDS: u32 = 60;
    let scheduler = super::scheduler(Preemption::Preemptible);
    let sms = scheduler.device().properties().sms;
    let (stream, urgent) = (scheduler.stream(0), scheduler.stream(9));
    let tasks = 16 * sms;
    let block = if preempt_test_kit::on_gpu() { 256 } else { 1 };
    let len = (tasks * block) as usize;
    let mut x = scheduler.buffer(&vec![1u32; len]).expect("memory");
    let mut copied = scheduler.zeroed::<u32>(len).expect("memory");
    let mut counts: Vec<Buffer<u32>> =
        (0..6).map(|_| scheduler.zeroed(tasks as usize).expect("memory")).collect();
    let mut writes = scheduler.zeroed::<u32>(len).expect("memory");
    let program = stream.program("interrupted", |program| {
        for (factor, counts) in (2..).zip(&mut counts) {
            let paced = kernels::paced_1d(15_000, &mut *counts, &mut writes);
            program.launch(paced.grid(tasks).block(block))?;
            program.launch(kernels::scale(factor, &mut x).threads(len))?;
            if factor == 4 {
                program.copy_buffer(&x, &mut copied)?;
            }
        }
        Ok(())
    });
    let program = program.expect("recorded");
    let launch = || program.launch().expect("accepted");
    let start = std::time::Instant::now();
    let alone = in_time(&launch()).expect("runs");
    let took = start.elapsed();
    let [mut ticks, mut tick_writes] =
        [sms, sms * block].map(|len| scheduler.zeroed::<u32>(len as usize).expect("memory"));
    let (mut yields, mut resumes) = (0, 0);
    for round in 0..ROUNDS {
        let handle = launch();
        let start = std::time::Instant::now();
        while start.elapsed() < took * round / ROUNDS {
            std::hint::spin_loop();
        }
        let call = kernels::count_1d(&mut ticks, &mut tick_writes).grid(sms).block(block);
        in_time(&urgent.launch(call).expect("accepted")).expect("runs");
        let report = in_time(&handle).expect("runs");
        assert_eq!(report.tasks, alone.tasks);
        (yields, resumes) = (yields + report.yields, resumes + report.resumes);
    }
    println!("{yields} yields, {resumes} resumes");
    assert!(yields > 0 && resumes > 0);
    // The same without interruptions.
    let (mut expected, mut at_copy) = (vec![1; len], Vec::new());
    for _ in 0..=ROUNDS {
        for factor in 2..8 {
            expected = super::scaled(factor, &expected);
            if factor == 4 {
                at_copy.clone_from(&expected);
            }
        }
    }
    assert!(contents(&stream, &x) == expected && contents(&stream, &copied) == at_copy);
    for counts in &counts {
        assert_eq!(contents(&stream, counts), vec![ROUNDS + 1; tasks as usize]);
    }
    assert_eq!(contents(&stream, &writes), vec![6 * (ROUNDS + 1); len]);
    assert_eq!(contents(&urgent, &ticks), vec![ROUNDS; sms as usize]);
}

/// Copies elements, on a device where no kernel runs.
fn copy(raw: RawStream, [from, to]: [u64; 2], len: usize) {
    match raw.as_raw() {
        // SAFETY: the stream is the scheduler's, and the memory is that of buffers.
        Some(stream) => unsafe {
            let bytes = len * size_of::<u32>();
            let copied = sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream.cast());
            copied.result().expect("copied");
        },
        // SAFETY: on the CPU device an address is one of this process, and no other operation uses the memory now.
        None => unsafe {
            std::ptr::copy_nonoverlapping(from as *const u32, to as *mut u32, len);
        },
    }
}

/// The device is drained until each kernel has stood still with a part of its block-tasks done, on a GPU as well.
#[test]
fn a_program_of_many_kernels_computes_the_same_interrupted_in_each() {
    const MOST_ROUNDS: u32 = 3000;
    let scheduler = super::scheduler(Preemption::Preemptible);
    let sms = scheduler.device().properties().sms;
    let (stream, urgent) = (scheduler.stream(0), scheduler.stream(9));
    // The tests above show the same of an emulated device with all kernels. Here it takes milliseconds for each.
    // On a GPU, a kernel takes longer than the device takes to stop.
    let (many, waves, block) =
        if preempt_test_kit::on_gpu() { (MANY, 64, 256) } else { (6, 16, 1) };
    let tasks = waves * sms;
    let [mut counts, mut seen] =
        [tasks, 2 * tasks].map(|len| scheduler.zeroed::<u32>(len as usize).expect("memory"));
    let mut writes = scheduler.zeroed::<u32>((tasks * block) as usize).expect("memory");
    let program = stream.program("many", |program| {
        (0..many).try_for_each(|_| {
            let call = kernels::paced_1d(15_000, &mut counts, &mut writes);
            program.launch(call.grid(tasks).block(block)).map(drop)
        })
    });
    let program = program.expect("recorded");
    let launch = || program.launch().expect("accepted");
    in_time(&launch()).expect("runs");
    let start = std::time::Instant::now();
    in_time(&launch()).expect("runs");
    let took = start.elapsed();
    let (mut rounds, mut yields) = (2, 0);
    let (mut random, mut interrupted) = (Random(1), vec![0; many as usize]);
    while interrupted.contains(&0) {
        assert!(rounds < MOST_ROUNDS, "{interrupted:?}, {took:?} alone");
        let handle = launch();
        let start = std::time::Instant::now();
        // Later and later, for the machine may have been faster when the time was taken.
        let at = took * (1 + rounds / 200) * random.below(1000) / 1000;
        while start.elapsed() < at {
            std::hint::spin_loop();
        }
        let (from, to, len) = (counts.address(), seen.address(), tasks as usize);
        let looks = urgent.opaque(Opaque::new("looks").exclusive().writes(&mut seen), move |raw| {
            copy(raw, [from, to], len);
            std::thread::sleep(Duration::from_micros(100));
            copy(raw, [from, to + (len * size_of::<u32>()) as u64], len);
            Ok(())
        });
        in_time(&looks.expect("accepted")).expect("runs");
        let report = in_time(&handle).expect("runs");
        assert_eq!(report.tasks, many * tasks);
        let before = rounds * many * tasks;
        let seen = contents(&urgent, &seen);
        let (first, second) = seen.split_at(tasks as usize);
        assert!(first == second, "it does not stand still");
        let done = first.iter().sum::<u32>() - before;
        (rounds, yields) = (rounds + 1, yields + report.yields);
        let call = done / tasks;
        if !done.is_multiple_of(tasks) {
            interrupted[call as usize] += 1;
        }
    }
    println!("{rounds} rounds, {yields} yields: {interrupted:?}");
    let counted = [contents(&stream, &counts), contents(&stream, &writes)].concat();
    assert!(counted.iter().all(|&times| times == many * rounds), "{counted:?}");
}

/// Counts, and waits until the host lets it go on.
#[preemptible(block = 1)]
fn waits(held: *const u32) {
    // SAFETY: as above.
    let (held, arrived) = unsafe {
        (AtomicU32::from_ptr(held.cast_mut()), AtomicU32::from_ptr(held.add(1).cast_mut()))
    };
    arrived.fetch_add(1, SeqCst);
    while held.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
}

/// A driver runs launches of one graph one after the other, and so does the engine, whatever they use.
#[test]
fn launches_of_a_plain_program_are_ordered_although_they_only_read() {
    for (form, at_once) in [(Preemption::Plain, 1), (Preemption::Preemptible, 2)] {
        let scheduler = preempt_test_kit::emulated(CpuLayout::sms(2));
        let streams = [0, 1].map(|priority| scheduler.stream(priority));
        let held = scheduler.zeroed::<u32>(2).expect("memory");
        let program = streams[0].program("reads", |program| {
            program.preemption(form);
            program.launch(waits(&held).grid(1)).map(drop)
        });
        let program = program.expect("recorded");
        let handles = streams.each_ref().map(|on| on.launch_program(&program).expect("accepted"));
        // SAFETY: on the CPU device the address is one of this process; access is atomic.
        let word = |at| unsafe { AtomicU32::from_ptr((held.address() as *mut u32).add(at)) };
        while word(1).load(SeqCst) < at_once {
            std::thread::yield_now();
        }
        assert!(handles.iter().all(|handle| handle.wait_timeout(WHILE).is_none()));
        assert_eq!(word(1).load(SeqCst), at_once, "{form:?}");
        word(0).store(1, SeqCst);
        handles.iter().for_each(|handle| assert_eq!(in_time(handle).expect("runs").tasks, 1));
    }
}

/// Predicts a short or a long time for all launches.
struct Says(Arc<AtomicBool>);

impl Predictor for Says {
    fn predict(&self, _: &Features<'_>) -> Option<Duration> {
        Some(if self.0.load(SeqCst) { Duration::from_nanos(1) } else { 2 * super::LONG })
    }

    fn finished(&mut self, _: &Features<'_>, _: Duration) {}
}

/// Also with a chain between them, which uses no graph.
#[test]
fn launches_of_a_plain_program_are_ordered_behind_a_chain_of_it() {
    let is_short = Arc::new(AtomicBool::new(false));
    let device = Device::cpu_with(CpuLayout::sms(4)).expect("a device");
    let builder = Scheduler::builder().device(device).predictor(Says(is_short.clone()));
    let scheduler = builder.longest_plain(super::LONG).build().expect("a scheduler");
    let streams = [0; 3].map(|priority| scheduler.stream(priority));
    let [held, open] = [0, 1].map(|is_open| scheduler.buffer(&[is_open, 0]).expect("memory"));
    let mut place = None;
    let program = streams[0].program("reads", |program| {
        program.preemption(Preemption::Auto);
        place = Some(program.launch(waits(&open).grid(1))?);
        Ok(())
    });
    let (mut program, place) = (program.expect("recorded"), place.expect("recorded"));
    // SAFETY: on the CPU device the address is one of this process; access is atomic.
    let word = |at| unsafe { AtomicU32::from_ptr((held.address() as *mut u32).add(at)) };
    for _ in 0..20 {
        assert!(!in_time(&program.launch().expect("accepted")).expect("runs").plain);
    }
    is_short.store(true, SeqCst);
    program.set(place, waits(&held).grid(1)).expect("the kernel");
    let first = streams[0].launch_program(&program).expect("accepted");
    while word(1).load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    is_short.store(false, SeqCst);
    program.set(place, waits(&open).grid(1)).expect("the kernel");
    let chain = streams[1].launch_program(&program).expect("accepted");
    assert!(!in_time(&chain).expect("it waits for no graph").plain);
    is_short.store(true, SeqCst);
    program.set(place, waits(&held).grid(1)).expect("the kernel");
    let last = streams[2].launch_program(&program).expect("accepted");
    assert!(last.wait_timeout(WHILE).is_none());
    assert_eq!(word(1).load(SeqCst), 1, "it waits for the first one");
    word(0).store(1, SeqCst);
    for handle in [&first, &last] {
        assert!(in_time(handle).expect("runs").plain);
    }
}

/// What a thread's programs have done.
#[derive(Default)]
struct Done {
    /// Block-tasks of reports, and of errors.
    tasks: u64,
    cancelled: u32,
    failed: u32,
    yields: u32,
}

/// Programs of both forms with launches beside them, cancelled, raised and failing at random: each block-task that is
/// reported has run once, and no other.
#[test]
fn storms_of_cancels_faults_and_priorities_lose_nothing() {
    let totals = Mutex::new(Done::default());
    for seed in 0..6 {
        println!("seed {seed}");
        let scheduler = super::storm::chaotic_emulated(seed);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (scheduler, totals) = (&scheduler, &totals);
                scope.spawn(move || {
                    let done = storm(scheduler, &mut Random(10 * seed + thread));
                    let mut totals = totals.lock().expect("no panic");
                    totals.tasks += done.tasks;
                    totals.cancelled += done.cancelled;
                    totals.failed += done.failed;
                    totals.yields += done.yields;
                });
            }
        });
    }
    let Done { tasks, cancelled, failed, yields } = totals.into_inner().expect("no panic");
    println!("{tasks} block-tasks, {cancelled} cancelled, {failed} failed, {yields} yields");
    assert!(tasks > 0 && cancelled > 0 && failed > 0 && yields > 0);
}

fn storm(scheduler: &Scheduler, random: &mut Random) -> Done {
    let streams = [0, 1, 2].map(|priority| scheduler.stream(priority));
    let mut done = Done::default();
    for _ in 0..25 {
        let mut counts: Vec<Buffer<u32>> =
            (0..3).map(|_| scheduler.zeroed(64).expect("memory")).collect();
        let mut writes = scheduler.zeroed::<u32>(64).expect("memory");
        let mut copied = scheduler.zeroed::<u32>(64).expect("memory");
        let mut faulty = scheduler.zeroed::<u32>(64).expect("memory");
        let stream = &streams[random.below(3) as usize];
        let fails = random.below(4) == 0;
        let form = [Preemption::Plain, Preemption::Preemptible, Preemption::Preemptible]
            [random.below(3) as usize];
        let program = stream.program("storm", |program| {
            program.preemption(form);
            for (index, counts) in counts.iter_mut().enumerate() {
                let grid = 1 + random.below(40);
                program.launch(kernels::count_1d(&mut *counts, &mut writes).grid(grid).block(1))?;
                if random.below(2) == 0 {
                    program.copy_buffer(counts, &mut copied)?;
                }
                if index == 1 && fails {
                    program.launch(kernels::panics(3, &mut faulty).grid(5).block(1))?;
                }
            }
            Ok(())
        });
        let program = program.expect("recorded");
        let launches = 1 + random.below(3);
        let handles: Vec<_> = (0..launches)
            .map(|_| {
                let on = &streams[random.below(3) as usize];
                on.launch_program(&program).expect("accepted")
            })
            .collect();
        let mut beside = scheduler.zeroed::<u32>(64).expect("memory");
        let mut beside_writes = scheduler.zeroed::<u32>(64).expect("memory");
        let call = kernels::count_1d(&mut beside, &mut beside_writes).grid(50).block(1);
        let urgent = streams[2].launch(call).expect("accepted");
        for handle in &handles {
            match random.below(4) {
                0 => handle.cancel(),
                1 => handle.set_priority(random.below(5) as i32),
                _ => {}
            }
        }
        assert_eq!(in_time(&urgent).expect("runs").tasks, 50);
        let mut tasks = 0;
        let mut is_lost = false;
        for handle in handles {
            match in_time(&handle) {
                Ok(report) => {
                    assert!(!fails);
                    (tasks, done.yields) = (tasks + report.tasks, done.yields + report.yields);
                }
                Err(Error::Launch(LaunchError::Cancelled { done: some, tasks: all })) => {
                    // A copy behind them may not have run.
                    assert!(some <= all);
                    (tasks, done.cancelled) = (tasks + some, done.cancelled + 1);
                }
                Err(Error::Launch(LaunchError::KernelFailed { kernel: "storm", message })) => {
                    assert!(
                        message.contains(", kernel `panics`: block-task (3, 0, 0)"),
                        "{message}"
                    );
                    (is_lost, done.failed) = (true, done.failed + 1);
                }
                Err(Error::Launch(LaunchError::InputLost { kernel: "storm" })) => {
                    assert!(is_lost && fails);
                }
                Err(other) => panic!("{other}"),
            }
        }
        if !is_lost {
            let counted = |counts: &Buffer<u32>| contents(stream, counts).iter().sum::<u32>();
            assert_eq!(
                counts.iter().map(counted).sum::<u32>() + counted(&faulty),
                tasks,
                "{form:?}, {launches} launches"
            );
        }
        done.tasks += u64::from(tasks);
    }
    done
}
