//! Work that runs while a driver call fails. Each piece of it ends, with an error or with the right result.

use std::collections::BTreeSet;
use std::time::Duration;

use preempt::conformance::Kernels;
use preempt::error::{ArgumentError, DeviceError, LaunchError};
use preempt::{
    Buffer, Copy2d, Device, Error, Handle, LaunchReport, Loan, Preemption, Properties, Scheduler,
    SignalPath, Stream, faults,
};
use preempt_device::host::{BufferArg, WriteArg};
use preempt_device::prelude::*;
use preempt_test_kernels as kernels;

use crate::device_code;
use crate::fake::{self, Lent};

/// The findings of one case.
#[derive(Debug, Default)]
pub struct Found {
    pub errors: u32,
    /// The messages of the errors.
    pub messages: BTreeSet<String>,
    pub is_lost: bool,
    pub wrong: Vec<String>,
}

impl Found {
    /// Records an error.
    pub fn take<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        result
            .inspect_err(|error| {
                self.errors += 1;
                self.is_lost |= matches!(error, Error::Device(DeviceError::ContextLost { .. }));
                self.messages.insert(error.to_string());
            })
            .ok()
    }

    pub fn expect(&mut self, is_right: bool, what: impl FnOnce() -> String) {
        if !is_right && self.wrong.len() < 5 {
            self.wrong.push(what());
        }
    }
}

fn pattern(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|x| (x ^ seed.rotate_left(16)).wrapping_mul(2_654_435_761)).collect()
}

pub fn first_difference(found: &[u32], expected: &[u32]) -> Option<String> {
    let at = found.iter().zip(expected).position(|(a, b)| a != b);
    let at =
        at.or_else(|| (found.len() != expected.len()).then_some(found.len().min(expected.len())));
    at.map(|at| format!("element {at}: {:x?}, not {:x?}", found.get(at), expected.get(at)))
}

/// A scheduler at work, and memory that nothing may write any more.
pub struct Run<'a> {
    pub scheduler: Scheduler,
    pub found: &'a mut Found,
    canaries: Vec<(Buffer<u32>, Vec<u32>)>,
}

impl<'a> Run<'a> {
    pub fn new(scheduler: Scheduler, found: &'a mut Found) -> Run<'a> {
        Run { scheduler, found, canaries: Vec::new() }
    }
}

/// A kernel with yield points that fills the device.
pub struct Victim {
    pub handle: Handle<LaunchReport>,
    starts: Buffer<u32>,
    out: Buffer<u32>,
    rounds: u32,
}

/// An upload, a copy in two ranges, a launch and two downloads.
struct Piece {
    data: Vec<u32>,
    tasks: usize,
    unit: [Handle<()>; 3],
    launch: Handle<LaunchReport>,
    back: Handle<Vec<u32>>,
    counted: Handle<Vec<u32>>,
    buffers: [Buffer<u32>; 4],
}

pub const THREADS: u32 = 64;

/// A kernel that no module has.
#[preemptible]
fn without_code(_counts: SliceMut<u32>, _writes: SliceMut<u32>) {}

/// The kernels for the checks of the contract.
pub const CONTRACT: Kernels = Kernels {
    modules: &[preempt_test_kit::KERNELS],
    count: |counts, writes| kernels::count_1d(counts, writes),
    yielding: |starts, rounds, out| kernels::spin_yielding(starts, rounds, out),
    // A fault costs a GPU's context.
    faulty: None,
    without_code: Some(|counts, writes| without_code(counts, writes)),
};

/// Kernels that the driver was given.
fn launches_of_driver() -> u64 {
    let calls = faults::calls().into_iter();
    calls.filter(|(name, _)| name.starts_with("cuLaunchKernel")).map(|(_, calls)| calls).sum()
}

impl Run<'_> {
    /// A kernel that fills the device, and is on it.
    pub fn victim(&mut self, stream: &Stream, rounds: u32) -> Option<Victim> {
        let tasks = 2 * self.scheduler.device().properties().sms;
        self.victim_of(tasks, stream, rounds)
    }

    pub fn victim_of(&mut self, tasks: u32, stream: &Stream, rounds: u32) -> Option<Victim> {
        let threads = tasks * THREADS;
        let mut starts = self.found.take(self.scheduler.zeroed(tasks as usize))?;
        let mut out = self.found.take(self.scheduler.zeroed(threads as usize))?;
        let call = kernels::spin_yielding(&mut starts, rounds, &mut out).grid(tasks).block(THREADS);
        let before = launches_of_driver();
        let handle = self.found.take(stream.launch(call))?;
        // A thread without a processor may have its message still, and a later urgent one would go first.
        while launches_of_driver() == before && !handle.is_done() {
            let _ = handle.wait_timeout(Duration::from_millis(1));
        }
        Some(Victim { handle, starts, out, rounds })
    }

    pub fn check_victim(&mut self, victim: Option<Victim>, stream: &Stream) {
        let Some(Victim { handle, starts, out, rounds }) = victim else { return };
        if self.found.take(handle.wait()).is_some() {
            let copy = stream.download(&out).and_then(|copy| copy.wait());
            if let Some(values) = self.found.take(copy) {
                let expected: Vec<u32> =
                    (0..values.len() as u32).map(crate::spun(rounds)).collect();
                let difference = first_difference(&values, &expected);
                self.found.expect(difference.is_none(), || format!("the victim: {difference:?}"));
            }
        }
        drop((starts, out));
    }

    fn piece(&mut self, stream: &Stream, seed: u32, len: usize) -> Option<Piece> {
        let data = pattern(seed, len);
        let tasks = 24 + seed as usize % 40;
        let lens = [len, len, tasks, tasks * THREADS as usize];
        let mut buffers = Vec::new();
        for len in lens {
            buffers.push(self.found.take(self.scheduler.zeroed(len))?);
        }
        let [mut first, mut second, mut counts, mut writes]: [Buffer<u32>; 4] =
            buffers.try_into().ok()?;
        // Overwritten by the upload.
        drop(self.found.take(stream.fill(&mut first, seed))?);
        let upload = self.found.take(stream.upload(data.clone(), &mut first))?;
        // In two ranges, which no order is between.
        let cut = len / 3;
        let (from_low, from_high) =
            (self.found.take(first.slice(..cut))?, self.found.take(first.slice(cut..))?);
        let (mut low, mut high) = self.found.take(second.split_at_mut(cut))?;
        let low = self.found.take(stream.copy_buffer(&from_low, &mut low))?;
        let high = self.found.take(stream.copy_buffer(&from_high, &mut high))?;
        // Rows that are there already.
        let rows = Copy2d { width: len / 4, height: 2, from_pitch: len / 2, to_pitch: len / 2 };
        drop(self.found.take(stream.copy_2d(&first, &mut second, rows))?);
        let preemption =
            if seed.is_multiple_of(3) { Preemption::Plain } else { Preemption::Preemptible };
        let call = kernels::count_1d(&mut counts, &mut writes).grid(tasks as u32).block(THREADS);
        let launch = self.found.take(stream.launch(call.preemption(preemption)))?;
        let back = self.found.take(stream.download(&second))?;
        let counted = self.found.take(stream.download(&counts))?;
        let (unit, buffers) = ([upload, low, high], [first, second, counts, writes]);
        Some(Piece { data, tasks, unit, launch, back, counted, buffers })
    }

    fn check(&mut self, piece: Option<Piece>, seed: u32) {
        let Some(Piece { data, tasks, unit, launch, back, counted, buffers }) = piece else {
            return;
        };
        let [first, second, counts, writes] = buffers;
        let before = self.found.errors;
        let _ = unit.map(|handle| self.found.take(handle.wait()));
        self.compare(back, &data, seed);
        // At once: a copy still under way would be written into the next owner's memory.
        self.give_back([first, second], before);
        let before = self.found.errors;
        if let Some(report) = self.found.take(launch.wait()) {
            self.found.expect(report.tasks as usize == tasks, || format!("{report:?}"));
        }
        self.compare(counted, &vec![1; tasks], seed);
        self.give_back([counts, writes], before);
    }

    /// An upload, a fill, and downloads, of a range too, and nothing else.
    fn round_trip(&mut self, stream: &Stream, len: usize) -> Option<()> {
        let before = self.found.errors;
        let data = pattern(99, len);
        let mut buffer = self.found.take(self.scheduler.zeroed(len))?;
        let upload = self.found.take(stream.upload(&data, &mut buffer))?;
        if self.found.take(upload.wait()).is_some() {
            let back = self.found.take(stream.download(&buffer))?;
            self.compare(back, &data, 99);
            let fill = self.found.take(stream.fill(&mut buffer, 0xABCD))?;
            let back = self.found.take(stream.download(&buffer))?;
            self.found.take(fill.wait());
            self.compare(back, &vec![0xABCD; len], 98);
            let upload = self.found.take(stream.upload(&data, &mut buffer))?;
            self.found.take(upload.wait());
            let rows = Copy2d { width: len / 3, height: 2, from_pitch: len / 2, to_pitch: len / 3 };
            let mut thirds = vec![0; 2 * rows.width];
            if self.found.take(stream.download_2d(&buffer, &mut thirds, rows)).is_some() {
                let expected = [&data[..len / 3], &data[len / 2..len / 2 + len / 3]].concat();
                let difference = first_difference(&thirds, &expected);
                self.found.expect(difference.is_none(), || format!("rows: {difference:?}"));
            }
            let array = self.found.take(self.scheduler.pinned(len))?;
            let array = stream.download_pinned(&buffer, array).and_then(Loan::wait);
            if let Some(array) = self.found.take(array) {
                let difference = first_difference(&array, &data);
                self.found.expect(difference.is_none(), || format!("pinned: {difference:?}"));
                let upload = stream.upload_pinned(array, &mut buffer);
                self.found.take(upload.and_then(Loan::wait));
            }
            let mut out = vec![0; len];
            if self.found.take(stream.download_into(&buffer, &mut out)).is_some() {
                let difference = first_difference(&out, &data);
                self.found.expect(difference.is_none(), || format!("a slice: {difference:?}"));
            }
            let range = self.found.take(buffer.slice(len / 3..))?;
            let back = self.found.take(stream.download(&range))?;
            self.compare(back, &data[len / 3..], 99);
        }
        drop(buffer);
        if self.found.errors > before {
            self.canary(len);
        }
        Some(())
    }

    fn compare(&mut self, handle: Handle<Vec<u32>>, expected: &[u32], seed: u32) {
        if let Some(values) = self.found.take(handle.wait()) {
            let difference = first_difference(&values, expected);
            self.found.expect(difference.is_none(), || format!("piece {seed}: {difference:?}"));
        }
    }

    /// Drops buffers; if there were more errors than `before`, allocates the freed memory.
    fn give_back(&mut self, buffers: [Buffer<u32>; 2], before: u32) {
        let lens = buffers.each_ref().map(Buffer::len);
        drop(buffers);
        if self.found.errors > before {
            lens.into_iter().for_each(|len| self.canary(len));
        }
    }

    /// Allocates memory that was just freed.
    pub fn canary(&mut self, len: usize) {
        let expected = pattern(!0, len);
        if let Some(buffer) = self.found.take(self.scheduler.buffer(&expected)) {
            self.canaries.push((buffer, expected));
        }
    }

    pub fn check_canaries(&mut self) {
        let stream = self.scheduler.stream(0);
        for (buffer, expected) in std::mem::take(&mut self.canaries) {
            let copy = stream.download(&buffer).and_then(|copy| copy.wait());
            if let Some(values) = self.found.take(copy) {
                let difference = first_difference(&values, &expected);
                self.found.expect(difference.is_none(), || format!("a canary: {difference:?}"));
            }
        }
    }
}

pub fn start<'a>(device: &Device, path: SignalPath, found: &'a mut Found) -> Option<Run<'a>> {
    let builder = Scheduler::builder().device(device.clone()).signal_path(path);
    let builder = builder.preemption(Preemption::Preemptible);
    let scheduler = found.take(builder.kernels(device_code::module()).build())?;
    Some(Run::new(scheduler, found))
}

/// Launches with small copies, urgent ones among them.
pub fn storm(device: &Device, pieces: u32, found: &mut Found) {
    if let Some(run) = start(device, SignalPath::StreamWrite, found) {
        storm_of(run, pieces);
    }
}

/// [`storm`] of a scheduler.
pub fn storm_of(mut run: Run<'_>, pieces: u32) {
    let streams = [0, 0, 1].map(|priority| run.scheduler.stream(priority));
    let victim = run.victim(&streams[0], 200_000);
    let mut under_way = Vec::new();
    for seed in 0..pieces {
        let len = 100 + 900 * seed as usize % 15_000;
        under_way.push((run.piece(&streams[seed as usize % 3], seed, len), seed));
    }
    for (piece, seed) in under_way {
        run.check(piece, seed);
    }
    run.check_victim(victim, &streams[0]);
    run.check_canaries();
}

/// Large copies both ways, beside a kernel that fills the device.
pub fn large(device: &Device, found: &mut Found) {
    let Some(mut run) = start(device, SignalPath::StreamWrite, found) else { return };
    let streams = [0, 1, 1].map(|priority| run.scheduler.stream(priority));
    let victim = run.victim(&streams[0], 1_000_000);
    // First a round trip alone, whose buffer is dropped as soon as there is an error.
    run.round_trip(&streams[1], 1_500_000);
    let mut under_way = Vec::new();
    // Pieces of 2 MiB: six of them, slightly over one, three.
    for (seed, len) in [3_000_000, 600_000, 20_000, 1_500_000].into_iter().enumerate() {
        let stream = &streams[1 + seed % 2];
        under_way.push((run.piece(stream, seed as u32, len), seed as u32));
    }
    run.canary(1_200_000);
    for (piece, seed) in under_way {
        run.check(piece, seed);
    }
    run.check_victim(victim, &streams[0]);
    run.check_canaries();
}

/// One scheduler after another, each dropped while it has just signalled.
pub fn schedulers(device: &Device, found: &mut Found) {
    for round in 0..6 {
        let path =
            [SignalPath::StreamWrite, SignalPath::Proxy, SignalPath::Auto][round as usize % 3];
        let Some(mut run) = start(device, path, found) else { continue };
        let streams = [0, 1].map(|priority| run.scheduler.stream(priority));
        // If a word of the previous scheduler arrived here, blocks would leave although no SM is taken from them.
        let piece = run.piece(&streams[0], round, 500);
        run.check(piece, round);
        let victim = run.victim(&streams[0], 400_000);
        let piece = run.piece(&streams[1], round + 100, 700);
        run.check(piece, round + 100);
        run.check_canaries();
        // This victim may be over before the signal arrives that stops it.
        let last = run.victim(&streams[1], 1);
        drop((run, streams));
        for Victim { handle, .. } in [victim, last].into_iter().flatten() {
            match handle.wait() {
                Err(Error::Launch(LaunchError::SchedulerDropped { .. })) => {}
                result => drop(found.take(result)),
            }
        }
    }
}

/// More launches begun at the same time than there are control blocks, beside the resident proxy.
pub fn controls(device: &Device, found: &mut Found) {
    let Some(mut run) = start(device, SignalPath::Proxy, found) else { return };
    let stream = run.scheduler.stream(0);
    let victims: Vec<_> = (0..12).map(|_| run.victim(&stream, 200_000)).collect();
    for victim in victims {
        run.check_victim(victim, &stream);
    }
}

/// Copies from and to pinned memory, on the fake driver.
pub fn pinned(device: &Device, found: &mut Found) {
    let Some(run) = start(device, SignalPath::StreamWrite, found) else { return };
    let Run { scheduler, found, .. } = run;
    let stream = scheduler.stream(0);
    // Two, because the driver's memory is used again.
    for len in [1000, 1000, 1_000_000] {
        let data = pattern(len as u32, len);
        let Some(mut buffer) = found.take(scheduler.zeroed::<u32>(len)) else { return };
        let Some(mut array) = found.take(scheduler.pinned::<u32>(len)) else { return };
        found.expect(array.iter().all(|&element| element == 0), || "it is not zeroed".into());
        array.copy_from_slice(&data);
        let place = array.as_ptr().addr();
        fake::host_sides();
        let upload = stream.upload_pinned(array, &mut buffer).and_then(Loan::wait);
        let Some(mut array) = found.take(upload) else { return };
        array.fill(0);
        let download = stream.download_pinned(&buffer, array).and_then(Loan::wait);
        let Some(mut array) = found.take(download) else { return };
        let difference = first_difference(&array, &data);
        found.expect(difference.is_none(), || format!("{len}: {difference:?}"));
        // A part of it, as a slice.
        array.fill(0);
        let part = &mut array[10..len - 10];
        let rows = Copy2d { width: 5, height: 3, from_pitch: 100, to_pitch: 7 };
        found.take(stream.download_2d(&buffer, part, rows));
        found.expect(array[17..22] == data[100..105], || format!("{len}: {:?}", &array[..30]));
        let sides = fake::host_sides();
        let expected = [place, place, place + 40];
        found.expect(sides == expected, || format!("copies by way of {sides:x?}, not {place:x}"));
    }
}

/// Fills beside a kernel that runs, and alone.
pub fn fills(device: &Device, found: &mut Found) {
    let Some(mut run) = start(device, SignalPath::StreamWrite, found) else { return };
    let streams = [0, 1].map(|priority| run.scheduler.stream(priority));
    let kernels_of_driver = || {
        let calls = faults::calls();
        let named = calls.into_iter().filter(|(name, _)| name.starts_with("cuMemset"));
        named.map(|(_, calls)| calls).sum::<u64>()
    };
    let fill = |run: &mut Run<'_>, value: u32| {
        let Some(mut buffer) = run.found.take(run.scheduler.zeroed::<u32>(100_000)) else {
            return 0;
        };
        let before = kernels_of_driver();
        let filled = streams[1].fill(&mut buffer, value).and_then(|fill| fill.wait());
        let of_driver = kernels_of_driver() - before;
        if run.found.take(filled).is_some()
            && let Some(handle) = run.found.take(streams[1].download(&buffer))
        {
            run.compare(handle, &vec![value; 100_000], value);
        }
        of_driver
    };
    let mut was_beside = false;
    for _ in 0..10 {
        let victim = run.victim(&streams[0], 2_000_000);
        let of_driver = fill(&mut run, 0x0102_0304);
        // A kernel of the driver's would wait for an SM.
        if victim.as_ref().is_some_and(|victim| !victim.handle.is_done()) {
            was_beside = true;
            run.found.expect(of_driver == 0, || "a fill may wait for the kernel that runs".into());
        }
        run.check_victim(victim, &streams[0]);
        if was_beside {
            break;
        }
    }
    run.found.expect(was_beside, || "each victim is over before the fill beside it".into());
    let of_driver = fill(&mut run, 0x0102_0304);
    run.found.expect(of_driver == 1, || format!("{of_driver} kernels for a fill alone"));
}

/// Questions about the fake driver's device, which is 0.
pub fn queries(device: &Device, found: &mut Found) {
    let count = found.take(Device::count());
    found.expect(count == Some(fake::DEVICES as u32), || format!("{count:?} devices"));
    let Properties { name, compute_capability, clock_khz, driver, .. } = device.properties();
    let told = (&**name, *compute_capability, *clock_khz);
    found.expect(told == ("fake", Some((9, 0)), 1_000_000), || format!("{told:?}"));
    let is_told = driver.as_ref().is_some_and(|driver| driver.contains("CUDA 12.8"));
    found.expect(is_told, || format!("driver {driver:?}"));
    let info = found.take(device.memory());
    // Memory that the pool keeps is free as well.
    let free = Some(fake::FREE + fake::RESERVED);
    found.expect(info.map(|info| info.free) == free, || format!("{info:?}"));
}

/// A range of memory that the application has allocated.
#[derive(Clone, Copy)]
struct Words {
    address: u64,
    len: usize,
}

// SAFETY: the workload keeps the memory until its launches are over.
unsafe impl WriteArg<'_, u32> for Words {
    fn write_arg(self) -> BufferArg {
        let Words { address, len } = self;
        BufferArg { address, len, bytes: 4 * len, owner: None }
    }
}

/// Launches on ranges of one allocation of the application.
pub fn lent(device: &Device, found: &mut Found) {
    let Some(run) = start(device, SignalPath::StreamWrite, found) else { return };
    const TASKS: usize = 4;
    const ALL: usize = TASKS + TASKS * THREADS as usize;
    let memory = Lent::new(ALL);
    let words = |start: usize, len| Words { address: memory.address() + 4 * start as u64, len };
    let stream = run.scheduler.stream(0);
    let launch = |counts: Words, writes: Words| {
        let call = kernels::count_1d(counts, writes).grid(TASKS as u32).block(THREADS);
        run.scheduler.scope(|scope| scope.launch(&stream, call)?.wait())
    };
    for (counts, writes) in [(0..TASKS, TASKS..ALL), (ALL - TASKS..ALL, 0..ALL - TASKS)] {
        let result = launch(words(counts.start, counts.len()), words(writes.start, writes.len()));
        run.found.take(result);
    }
    // They share one word, or all of one of them; or reach beyond the allocation.
    for (counts, writes) in [(0..TASKS, TASKS - 1..ALL - 1), (8..8 + TASKS, TASKS..ALL)] {
        let result = launch(words(counts.start, counts.len()), words(writes.start, writes.len()));
        let is_refused =
            matches!(result, Err(Error::Argument(ArgumentError::BufferConflict { .. })));
        run.found.expect(is_refused, || format!("{counts:?} and {writes:?}: {result:?}"));
    }
    let result = launch(words(0, TASKS), words(TASKS, ALL));
    let is_refused = matches!(result, Err(Error::Argument(ArgumentError::NotAllocated { .. })));
    run.found.expect(is_refused, || format!("too long: {result:?}"));
    let is_right = memory.words().iter().all(|&word| word == 2);
    run.found.expect(is_right, || format!("{:?}", memory.words()));
}
