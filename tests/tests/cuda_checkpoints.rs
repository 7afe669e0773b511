//! Checkpoints on a GPU: blocks leave block-tasks there when their SMs are taken, and others go on with them, with nothing
//! lost and nothing done twice. Without a GPU each test prints SKIP and why.

use std::sync::{Mutex, MutexGuard, PoisonError};

use preempt::error::{ConfigurationError, DeviceError, LaunchError};
use preempt::policy::StaticPriority;
use preempt::{Device, Error, Preemption, Scheduler, SchedulerBuilder, Stream};
use preempt_device::prelude::*;
use preempt_test_kernels as kernels;
use preempt_test_kit::storm::{Kind, Load, Tally, Victim};

/// The GPU, which one test at a time has.
struct Gpu {
    device: Device,
    _alone: MutexGuard<'static, ()>,
}

impl Gpu {
    fn new() -> Option<Gpu> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        #[cfg(feature = "fault-injection")]
        preempt::faults::poison_saved();
        match Device::cuda(0) {
            Ok(device) => Some(Gpu { device, _alone: alone }),
            Err(
                error @ (Error::Device(DeviceError::NoDriver { .. })
                | Error::Device(DeviceError::NoGpu { .. })),
            ) => {
                println!("SKIP: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn builder(&self) -> SchedulerBuilder {
        let builder = Scheduler::builder().device(self.device.clone());
        let builder = builder.policy(StaticPriority::whole_device());
        builder.kernels(preempt_test_kit::KERNELS).preemption(Preemption::Preemptible)
    }
}

/// About a millisecond a block-task, and several of them for each place on an H200; a tenth of both for programs that look at each
/// access, which set `PREEMPT_SMALL_STORM`.
fn load() -> Load {
    match is_small() {
        false => Load { tasks: 32_000, ticks: 2_000_000 },
        true => Load { tasks: 3_000, ticks: 200_000 },
    }
}

fn is_small() -> bool {
    std::env::var_os("PREEMPT_SMALL_STORM").is_some()
}

/// An urgent launch that needs the whole device for a moment.
fn tick(scheduler: &Scheduler, urgent: &Stream) {
    let [mut counts, mut writes] = [0, 1].map(|_| scheduler.zeroed::<u32>(8).expect("memory"));
    let call = kernels::count_1d(&mut counts, &mut writes).grid(8).block(1);
    urgent.launch(call).and_then(|handle| handle.wait()).expect("runs");
}

/// Runs launches of the kernel with a checkpoint, one for each stream at the same time, with urgent ones in between.
fn disturbed(scheduler: &Scheduler, launches: usize) -> Tally {
    let streams: Vec<Stream> = (0..launches).map(|_| scheduler.stream(0)).collect();
    let urgent = scheduler.stream(1);
    // The first launch of a kernel waits for the driver.
    tick(scheduler, &urgent);
    let kinds = vec![Kind::Saving; launches];
    let victims = Victim::launch_all(&kinds, scheduler, &streams, load()).expect("accepted");
    for _ in 0..if is_small() { 10 } else { 50 } {
        tick(scheduler, &urgent);
    }
    let mut tally = Tally::default();
    for (victim, stream) in victims.into_iter().zip(&streams) {
        victim.check(stream, &mut tally).expect("runs");
    }
    println!("{} yields, {} switches", tally.yields, tally.switches);
    assert_eq!((&tally.mistake, tally.lost, tally.repeated), (&None, 0, 0));
    tally
}

#[test]
fn blocks_leave_and_others_go_on() {
    let Some(gpu) = Gpu::new() else { return };
    let tally = disturbed(&gpu.builder().build().expect("a scheduler"), 1);
    assert!(tally.yields > 0, "nothing was stopped");
    // Each stop finds all SMs full of block-tasks that have a millisecond to go.
    let blocks = u64::from(gpu.device.properties().sms);
    assert!(tally.switches >= blocks, "{} switches", tally.switches);
}

#[test]
fn more_launches_than_save_areas_run_to_their_end() {
    let Some(gpu) = Gpu::new() else { return };
    let tally = disturbed(&gpu.builder().build().expect("a scheduler"), 12);
    assert!(tally.switches > 0, "nothing was left");
}

#[test]
fn slots_are_used_again_where_there_are_few() {
    let Some(gpu) = Gpu::new() else { return };
    // An eighth of a MiB: 16 KiB of words, and twelve slots.
    let tally = disturbed(&gpu.builder().checkpoint_memory(1).build().expect("a scheduler"), 1);
    assert!(tally.switches > 0, "nothing was left");
}

#[test]
fn without_memory_blocks_end_their_tasks() {
    let Some(gpu) = Gpu::new() else { return };
    let tally = disturbed(&gpu.builder().checkpoint_memory(0).build().expect("a scheduler"), 1);
    assert_eq!(tally.switches, 0);
    // The device gets memory for the next scheduler.
    let tally = disturbed(&gpu.builder().build().expect("a scheduler"), 1);
    assert!(tally.switches > 0, "nothing was left");
}

#[test]
fn a_cancelled_launch_leaves_nothing_to_the_next_one() {
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.builder().checkpoint_memory(8).build().expect("a scheduler");
    let (stream, urgent) = (scheduler.stream(0), scheduler.stream(1));
    for _ in 0..20 {
        let tasks = 4000;
        let [mut ends, mut starts] =
            [0, 1].map(|_| scheduler.zeroed::<u32>(tasks).expect("memory"));
        let [mut out, mut done] =
            [0, 1].map(|_| scheduler.zeroed::<u32>(256 * tasks).expect("memory"));
        let call = kernels::rotate_saving(&mut ends, &mut starts, 30_000, &mut out, &mut done);
        let launch = stream.launch(call.grid(tasks as u32)).expect("accepted");
        tick(&scheduler, &urgent);
        launch.cancel();
        let finished = match launch.wait() {
            Ok(report) => report.tasks,
            Err(Error::Launch(LaunchError::Cancelled { done, .. })) => done,
            Err(error) => panic!("{error}"),
        };
        let ends = stream.download(&ends).and_then(|copy| copy.wait()).expect("copied");
        assert!(ends.iter().all(|&end| end <= 1));
        assert_eq!(ends.iter().sum::<u32>(), finished);
    }
    assert!(disturbed(&scheduler, 1).switches > 0, "its slots are gone");
}

#[test]
fn a_state_in_local_memory_comes_back() {
    const ROUNDS: u32 = 20_000;
    let Some(gpu) = Gpu::new() else { return };
    let scheduler = gpu.builder().build().expect("a scheduler");
    let (stream, urgent) = (scheduler.stream(0), scheduler.stream(1));
    let threads = 256 * 20 * gpu.device.properties().sms;
    let x: Vec<u32> = (0..threads).map(|i| i * 7 % 1009).collect();
    let expected = |x: u32| {
        let mut table = [0_u32; 128];
        for round in 0..ROUNDS {
            let at = (x + round) as usize % 128;
            table[at] = table[at].wrapping_mul(31).wrapping_add(round);
        }
        table.iter().fold(0_u32, |sum, value| sum.wrapping_mul(31).wrapping_add(*value))
    };
    // There are few different ones.
    let expected: Vec<u32> = (0..1009).map(expected).collect();
    let x_there = scheduler.buffer(&x).expect("memory");
    let mut out = scheduler.zeroed::<u32>(x.len()).expect("memory");
    let call = kernels::tables_saving(ROUNDS, &x_there, &mut out).grid(threads / 256);
    tick(&scheduler, &urgent);
    let launch = stream.launch(call).expect("accepted");
    for _ in 0..20 {
        tick(&scheduler, &urgent);
    }
    let report = launch.wait().expect("runs");
    assert!(report.yields > 0, "nothing was stopped");
    let out = stream.download(&out).and_then(|copy| copy.wait()).expect("copied");
    let wrong = x.iter().zip(&out).position(|(x, out)| *out != expected[*x as usize]);
    assert_eq!(wrong, None, "a thread's table is another one");
}

/// As large as a state can be, in a kernel that is never launched.
#[preemptible(block = 1024)]
fn large_state(out: SliceMut<u32>) {
    let i = thread::index_1d() as usize;
    checkpoint!(state: [u32; 16384] = [0; 16384] => for round in 0..10_u32 {
        state[round as usize] = round;
    });
    // SAFETY: each thread has its own element.
    unsafe { out.write(i, state[3]) };
}

#[test]
fn the_description_of_a_kernel_says_how_large_its_state_is() {
    let scheduler =
        Scheduler::builder().device(Device::cpu().expect("a device")).build().expect("a scheduler");
    let mut out = scheduler.zeroed::<u32>(1024).expect("memory");
    let call = large_state(&mut out).grid(1);
    assert_eq!(call.kernel().state_bytes, 65_536 + 16);
    let error = ConfigurationError::CheckpointMemory {
        kernel: call.kernel().name,
        bytes: 1024 * (65_536 + 16),
        limit: 33_538_048,
        needed: 513,
    };
    let text = error.to_string();
    for part in ["large_state", "67125248", "33538048", ".checkpoint_memory(513)"] {
        assert!(text.contains(part), "{text}");
    }
}
