//! Every mistake gives an error that says what to do, and the scheduler goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use preempt::error::{ArgumentError, DeviceError, LaunchError, MemoryError};
use preempt::{Buffer, Call, CpuLayout, Device, Error, NoGrid, Scheduler, Stream};
use preempt_device::host::{Args, BufferArg, Dim3, Idempotence, Kernel, WriteArg};
use preempt_device::prelude::*;
use preempt_test_kernels as kernels;

/// A device with one scheduler and one stream.
struct Setup {
    scheduler: Scheduler,
    stream: Stream,
    counts: Buffer<u32>,
    writes: Buffer<u32>,
}

impl Setup {
    fn new() -> Setup {
        Setup::on(Scheduler::builder())
    }

    fn on(builder: preempt::SchedulerBuilder) -> Setup {
        let device = Device::cpu_with(CpuLayout::sms(2).blocks_per_sm(2)).expect("a device");
        let scheduler = builder.device(device).build().expect("a scheduler");
        let stream = scheduler.stream(0);
        let zeroed = || scheduler.zeroed(1 << 16).expect("memory");
        let (counts, writes) = (zeroed(), zeroed());
        Setup { scheduler, stream, counts, writes }
    }

    fn zeroed(&self) -> Buffer<u32> {
        self.scheduler.zeroed(1 << 16).expect("memory")
    }

    fn count(&mut self) -> Call<'static, NoGrid> {
        kernels::count_1d(&mut self.counts, &mut self.writes)
    }

    /// The error of a launch that was refused.
    fn refusal(&self, call: Call<'static>) -> Error {
        self.stream.launch(call).expect_err("the launch is refused")
    }

    /// Nothing ran, and the next launch works.
    fn check_unharmed(mut self) {
        let call = self.count().grid(7).block(32);
        self.stream.launch(call).expect("accepted").wait().expect("runs");
        let counts = self.stream.download(&self.counts).expect("accepted").wait().expect("copied");
        assert!((0..counts.len()).all(|i| counts[i] == u32::from(i < 7)));
    }
}

/// Asserts the kind of an error, and that its message contains `hint`.
macro_rules! assert_error {
    ($error:expr, $pattern:pat, $hint:literal) => {
        let error = $error;
        assert!(matches!(error, $pattern), "{error:?}");
        assert!(error.to_string().contains($hint), "{error}");
    };
}

mod limits;
mod threads;
mod users_code;

/// A kernel by hand: its arguments can name one buffer twice, which the borrow checker does not allow in a call.
static BY_HAND: Kernel = Kernel {
    name: "by_hand",
    entry: "by_hand",
    plain: "by_hand__plain",
    module: "bad_input",
    block: Some(Dim3::new(32, 1, 1)),
    amortize: None,
    shared_bytes: 0,
    yields: false,
    idempotence: Idempotence::NotNeeded,
    reason: "",
    state_bytes: 0,
    cpu: |_| false,
};

#[test]
fn a_buffer_that_is_written_is_passed_once() {
    let mut setup = Setup::new();
    let mut read_and_written = Args::default();
    read_and_written.push_read::<u32>(&setup.counts);
    read_and_written.push_write::<u32>(&mut setup.counts);
    let mut written_twice = Args::default();
    written_twice.push_write::<u32>(&mut setup.counts);
    written_twice.push_write::<u32>(&mut setup.counts);
    for args in [read_and_written, written_twice] {
        // SAFETY: the kernel takes no arguments.
        let call = unsafe { Call::new(&BY_HAND, args) }.grid(1);
        assert_error!(
            setup.refusal(call),
            Error::Argument(ArgumentError::BufferConflict { name: "by_hand" }),
            "pass a copy"
        );
    }
    let mut read_twice = Args::default();
    read_twice.push_read::<u32>(&setup.counts);
    read_twice.push_read::<u32>(&setup.counts);
    // SAFETY: as above.
    let call = unsafe { Call::new(&BY_HAND, read_twice) }.grid(1);
    setup.stream.launch(call).expect("two readers are fine").wait().expect("it runs");
    setup.check_unharmed();
}

#[test]
fn memory_of_an_unknown_owner_is_refused() {
    struct Owned(Arc<Vec<u32>>);
    // SAFETY: it is never passed on: only the scheduler's own memory is accepted with an owner.
    unsafe impl WriteArg<'_, u32> for &mut Owned {
        fn write_arg(self) -> BufferArg {
            let (address, len) = (self.0.as_ptr() as u64, self.0.len());
            BufferArg { address, len, bytes: 4 * len, owner: Some(self.0.clone()) }
        }
    }
    let mut setup = Setup::new();
    let mut owned = Owned(Arc::new(vec![0; 32]));
    let call = kernels::count_1d(&mut owned, &mut setup.writes).grid(1).block(32);
    let error = setup.refusal(call);
    assert_error!(
        error,
        Error::Argument(ArgumentError::ForeignBuffer { name: "count_1d" }),
        "allocate it through this scheduler"
    );
    setup.check_unharmed();
}

#[test]
fn a_buffer_of_another_device_is_used_and_its_length_checked() {
    let setup = Setup::new();
    let mut other = Setup::new();
    let short = setup.stream.upload(vec![0; 7], &mut other.counts).expect_err("refused");
    assert_error!(
        short,
        Error::Argument(ArgumentError::LengthMismatch { from: 7, to: 65_536 }),
        "same length"
    );
    let upload = setup.stream.upload(vec![0; 1 << 16], &mut other.counts).expect("accepted");
    upload.wait().expect("copied");
    let download = setup.stream.download(&other.counts).expect("accepted");
    assert_eq!(download.wait().expect("copied"), vec![0; 1 << 16]);
    // While the other scheduler can still move them back.
    other.check_unharmed();
    setup.check_unharmed();
}

#[test]
fn both_sides_of_a_copy_have_one_length() {
    let mut setup = Setup::new();
    let upload = setup.stream.upload(vec![1; 7], &mut setup.counts).expect_err("refused");
    assert_error!(
        upload,
        Error::Argument(ArgumentError::LengthMismatch { from: 7, to: 65_536 }),
        "same length"
    );
    let small = setup.scheduler.zeroed::<u32>(3).expect("memory");
    let copy = setup.stream.copy_buffer(&small, &mut setup.counts).expect_err("refused");
    assert_error!(
        copy,
        Error::Argument(ArgumentError::LengthMismatch { from: 3, to: 65_536 }),
        "same length"
    );
    setup.check_unharmed();
}

#[test]
fn memory_has_an_end() {
    let setup = Setup::new();
    let error = setup.scheduler.zeroed::<u64>(usize::MAX / 16).expect_err("too much");
    assert_error!(error, Error::Memory(MemoryError::OutOfMemory { .. }), "smaller");
    let error = setup.scheduler.zeroed::<u64>(usize::MAX).expect_err("too much");
    assert_error!(error, Error::Memory(MemoryError::OutOfMemory { .. }), "smaller");
    setup.check_unharmed();
}

#[test]
fn a_device_has_sms_and_blocks() {
    for (sms, blocks) in [(0, 1), (1, 0), (1 << 14, 1), (1, 33)] {
        let error = Device::cpu_with(CpuLayout::sms(sms).blocks_per_sm(blocks))
            .expect_err("no such device");
        assert_error!(error, Error::Device(DeviceError::BadDevice { .. }), "1 to 1023 SMs");
    }
}

#[test]
fn threads_that_disagree_about_a_barrier_are_an_error() {
    let mut setup = Setup::new();
    let call = kernels::disagree(&mut setup.counts, &mut setup.writes).grid(20).block(64);
    let error = setup.failure(call);
    assert_error!(
        &error,
        Error::Launch(LaunchError::KernelFailed { kernel: "disagree", .. }),
        "disagree"
    );
    let hint = "32 wait at a barrier, 0 in a warp operation, 32 have returned";
    assert!(error.to_string().contains(hint), "{error}");
    setup.recover();
}

#[test]
fn lanes_that_disagree_about_a_shuffle_are_an_error() {
    #[preemptible(block = 32)]
    fn lonely(out: SliceMut<u32>) {
        #[inline(always)]
        fn shuffle(value: u32) -> u32 {
            // SAFETY: it is wrong on purpose; the CPU device says so.
            unsafe { warp::warp_shuffle_xor(u32::MAX, value, 1, 32).0 }
        }
        if thread::thread_idx_x() != 3 {
            // SAFETY: each thread writes its own element.
            unsafe { out.write(thread::thread_idx_x() as usize, shuffle(1)) };
        }
    }

    let mut setup = Setup::new();
    let call = lonely(&mut setup.counts).grid(1);
    let error = setup.failure(call);
    assert_error!(
        &error,
        Error::Launch(LaunchError::KernelFailed { .. }),
        "31 in a warp operation, 1 have returned"
    );
    setup.recover();
}

#[test]
fn a_kernel_that_panics_is_an_error() {
    let mut setup = Setup::new();
    let call = kernels::panics(5, &mut setup.counts).grid(20).block(32);
    let error = setup.failure(call);
    let hint = "block-task (5, 0, 0): thread (0, 0, 0) panicked: block-task 5 panics";
    assert!(error.to_string().contains(hint), "{error}");
    setup.recover();
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("this value panics when it is dropped, as a test asks");
    }
}

#[test]
fn a_panic_can_carry_anything() {
    #[preemptible(block = 1)]
    fn throws(_out: SliceMut<u32>) {
        std::panic::panic_any(Bomb);
    }

    let mut setup = Setup::new();
    let call = throws(&mut setup.counts).grid(3);
    let error = setup.failure(call);
    assert_error!(error, Error::Launch(LaunchError::KernelFailed { .. }), "without a message");
    setup.recover();
}

#[test]
fn threads_that_are_given_up_run_their_destructors_as_threads() {
    /// Asks for its index when it is dropped.
    struct Guard(SliceMut<u32>);

    impl Drop for Guard {
        fn drop(&mut self) {
            let index = thread::thread_idx_x() as usize;
            // SAFETY: each thread writes its own element.
            unsafe { self.0.write(index, 1) };
        }
    }

    #[preemptible(block = 64)]
    fn guarded(out: SliceMut<u32>) {
        #[inline(always)]
        fn wait() {
            thread::sync_threads();
        }
        let _guard = Guard(out);
        if thread::thread_idx_x() < 63 {
            wait();
        }
    }

    let mut setup = Setup::new();
    let call = guarded(&mut setup.counts).grid(1);
    let error = setup.failure(call);
    assert_error!(error, Error::Launch(LaunchError::KernelFailed { .. }), "63 wait at a barrier");
    setup.recover();
}

#[test]
fn the_width_of_a_shuffle_is_a_power_of_two() {
    #[preemptible(block = 32)]
    fn wide(out: SliceMut<u32>) {
        // SAFETY: it is wrong on purpose; the CPU device says so.
        let (value, _) = unsafe { warp::warp_shuffle_idx(u32::MAX, 1u32, 40, 64) };
        // SAFETY: each thread writes its own element.
        unsafe { out.write(thread::thread_idx_x() as usize, value) };
    }

    let mut setup = Setup::new();
    let call = wide(&mut setup.counts).grid(1);
    let error = setup.failure(call);
    assert_error!(error, Error::Launch(LaunchError::KernelFailed { .. }), "1, 2, 4, 8, 16 or 32");
    setup.recover();
}

#[test]
fn a_shuffle_is_by_fewer_lanes_than_a_warp_has() {
    #[preemptible(block = 32)]
    fn far(out: SliceMut<u32>, kind: u32) {
        // SAFETY: it is wrong on purpose; the CPU device says so.
        let (value, _) = unsafe {
            match kind {
                0 => warp::warp_shuffle_down(u32::MAX, 1u32, 32, 32),
                1 => warp::warp_shuffle_up(u32::MAX, 1u32, 33, 32),
                _ => warp::warp_shuffle_xor(u32::MAX, 1u32, 64, 32),
            }
        };
        // SAFETY: each thread writes its own element.
        unsafe { out.write(thread::thread_idx_x() as usize, value) };
    }

    for kind in 0..3 {
        let mut setup = Setup::new();
        let call = far(&mut setup.counts, kind).grid(1);
        let error = setup.failure(call);
        assert_error!(error, Error::Launch(LaunchError::KernelFailed { .. }), "lowest five bits");
        setup.recover();
    }
}

impl Setup {
    /// The failure of a launch that was accepted.
    fn failure(&self, call: Call<'static>) -> Error {
        self.stream.launch(call).expect("accepted").wait().expect_err("it fails")
    }

    /// Recovers from a failure: the kernel's outputs are lost until they are uploaded anew.
    fn recover(mut self) {
        let lost = self.stream.download(&self.counts).expect("accepted").wait();
        assert_error!(
            lost.expect_err("lost"),
            Error::Launch(LaunchError::InputLost { .. }),
            "upload the buffer anew"
        );
        let call = self.count().grid(7).block(32);
        let lost = self.stream.launch(call).expect("accepted").wait();
        assert_error!(
            lost.expect_err("lost"),
            Error::Launch(LaunchError::InputLost { .. }),
            "failed earlier"
        );
        // The second kernel would have written both.
        for buffer in [&mut self.counts, &mut self.writes] {
            let upload = self.stream.upload(vec![0; 1 << 16], buffer).expect("accepted");
            upload.wait().expect("copied");
        }
        self.check_unharmed();
    }
}

#[test]
fn a_device_has_one_scheduler() {
    let device = Device::cpu_with(CpuLayout::sms(1)).expect("a device");
    let first = Scheduler::builder().device(device.clone()).build().expect("the first");
    let second = Scheduler::builder().device(device.clone()).build();
    assert_error!(
        second.expect_err("refused"),
        Error::Device(DeviceError::Taken),
        "clone that one"
    );
    let clone = first.clone();
    drop(first);
    let third = Scheduler::builder().device(device.clone()).build();
    assert_error!(
        third.expect_err("the clone is alive"),
        Error::Device(DeviceError::Taken),
        "drop it first"
    );
    drop(clone);
    Scheduler::builder().device(device).build().expect("the device is free again");
}

#[test]
fn handles_outlive_a_scheduler_that_is_dropped_while_kernels_run() {
    let Setup { scheduler, stream, mut counts, mut writes } = Setup::new();
    let rounds = scheduler.buffer(&vec![100_000; 1024]).expect("memory");
    let mut ends = scheduler.zeroed(32 * 1024).expect("memory");
    let call = kernels::paced_irregular(0, &mut counts, &mut writes, &rounds, &mut ends);
    let running = stream.launch(call.grid(1024).block(32)).expect("accepted");
    let call = kernels::count_1d(&mut counts, &mut writes).grid(7).block(32);
    let waiting = stream.launch(call).expect("accepted");
    let copy = stream.download(&counts).expect("accepted");
    let device = scheduler.device().clone();
    drop(scheduler);

    let error = running.wait().expect_err("stopped");
    assert_error!(
        &error,
        Error::Launch(LaunchError::SchedulerDropped { tasks: 1024, .. }),
        "`synchronize`"
    );
    let Error::Launch(LaunchError::SchedulerDropped { done, .. }) = error else { unreachable!() };
    assert!(done < 1024, "it was stopped on its way");
    let error = waiting.wait().expect_err("dropped");
    assert_error!(
        error,
        Error::Launch(LaunchError::SchedulerDropped { done: 0, tasks: 7 }),
        "dropped"
    );
    assert!(copy.wait().is_err());
    // Again, and by every other method.
    assert!(running.wait().is_err() && running.is_done());
    assert!(running.try_wait().is_some_and(|result| result.is_err()));
    assert!(running.wait_timeout(Duration::ZERO).is_some_and(|result| result.is_err()));
    running.cancel();
    let mut future = Box::pin(running);
    let poll = Future::poll(future.as_mut(), &mut Context::from_waker(Waker::noop()));
    assert!(matches!(poll, Poll::Ready(Err(Error::Launch(LaunchError::SchedulerDropped { .. })))));

    let call = kernels::count_1d(&mut counts, &mut writes).grid(7).block(32);
    let error = stream.launch(call).expect_err("too late");
    assert_error!(error, Error::Launch(LaunchError::SchedulerDropped { .. }), "keep it");
    // The device is free, and the results of the stopped kernel are there.
    let scheduler = Scheduler::builder().device(device).build().expect("the device is free");
    let counts = scheduler.stream(0).download(&counts).expect("accepted").wait().expect("copied");
    assert_eq!(counts.iter().sum::<u32>(), done);
}

#[test]
fn operations_end_without_a_waiting_thread() {
    let mut setup = Setup::new();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Keeps taking the combiner, for another reason.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                assert!(setup.scheduler.policy_error().is_none());
            }
        });
        for _ in 0..2000 {
            let call = kernels::count_1d(&mut setup.counts, &mut setup.writes).grid(1).block(1);
            let handle = setup.stream.launch(call).expect("accepted");
            while !handle.is_done() {
                std::thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn borrowed_memory_that_is_not_the_devices_is_refused() {
    struct Elsewhere(Vec<u32>);
    // SAFETY: it is never passed on: the CPU device takes no memory of others.
    unsafe impl<'a> WriteArg<'a, u32> for &'a mut Elsewhere {
        fn write_arg(self) -> BufferArg {
            let (address, len) = (self.0.as_mut_ptr() as u64, self.0.len());
            BufferArg { address, len, bytes: 4 * len, owner: None }
        }
    }
    let mut setup = Setup::new();
    let (mut counts, mut empty) = (Elsewhere(vec![0; 7]), Elsewhere(Vec::new()));
    let call = kernels::count_1d(&mut counts, &mut setup.writes).grid(7).block(32);
    let error = setup.scheduler.scope(|scope| scope.launch(&setup.stream, call).map(drop));
    let error = error.expect_err("the launch is refused");
    assert_error!(
        error,
        Error::Argument(ArgumentError::NotAllocated { name: "count_1d", bytes: 28, .. }),
        "a `Buffer` as itself"
    );
    // Memory without bytes has no address.
    let call = kernels::count_1d(&mut setup.counts, &mut empty).grid(1).block(32);
    let launched = setup.scheduler.scope(|scope| scope.launch(&setup.stream, call).map(drop));
    assert!(launched.is_ok(), "{launched:?}");
    setup.scheduler.synchronize().expect("synchronized");
}
