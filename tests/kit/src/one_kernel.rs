//! A storm around one kernel: what it leaves while more urgent launches stop it.

use std::thread::sleep;
use std::time::Duration;

use preempt::policy::StaticPriority;
use preempt::{Buffer, Call, CpuLayout, Device, Error, LaunchReport, NoGrid, Scheduler, Stream};
use preempt_test_kernels as kernels;

use crate::Random;

/// A kernel that reads the first buffer and writes the second one, without the size of its grid.
pub type Kernel = fn(&Buffer<u32>, &mut Buffer<u32>) -> Call<'static, NoGrid>;

/// An emulated device with two SMs, and a stream whose launches take all of it from those of another one.
#[derive(Debug)]
pub struct Storm {
    /// The scheduler of all launches.
    pub scheduler: Scheduler,
    /// The stream of the kernel.
    pub stream: Stream,
    /// The stream that takes the SMs.
    pub urgent: Stream,
    random: Random,
}

impl Storm {
    /// A storm whose pauses are random numbers from this seed.
    ///
    /// # Panics
    ///
    /// If there is no device.
    pub fn new(seed: u64) -> Storm {
        let device = Device::cpu_with(CpuLayout::sms(2)).expect("a device");
        let builder = Scheduler::builder().device(device).policy(StaticPriority::whole_device());
        let scheduler = builder.build().expect("a scheduler");
        let (stream, urgent) = (scheduler.stream(0), scheduler.stream(1));
        Storm { scheduler, stream, urgent, random: Random(seed) }
    }

    /// What a kernel leaves in its second buffer, which has the values `y` before. The first one has that many [`inputs`]. With
    /// a `pause` the kernel is disturbed: until it is done, urgent launches follow each other, with pauses of up to that.
    ///
    /// # Errors
    ///
    /// That of the kernel.
    ///
    /// # Panics
    ///
    /// If anything else fails.
    pub fn left(
        &mut self,
        call: impl FnOnce(&Buffer<u32>, &mut Buffer<u32>) -> Call<'static>,
        inputs_len: usize,
        y: &[u32],
        pause: Option<Duration>,
    ) -> Result<(Vec<u32>, LaunchReport), Error> {
        let x = self.scheduler.buffer(&inputs(inputs_len)).expect("memory");
        let mut y = self.scheduler.buffer(y).expect("memory");
        let (mut ticks, mut writes) = (self.zeroed(1), self.zeroed(1));
        let launch = self.stream.launch(call(&x, &mut y)).expect("accepted");
        while let Some(pause) = pause.filter(|_| !launch.is_done()) {
            let micros = self.random.below(pause.as_micros() as u32 + 1);
            if micros > 0 {
                sleep(Duration::from_micros(micros.into()));
            }
            let call = kernels::count_1d(&mut ticks, &mut writes).grid(1).block(1);
            self.urgent.launch(call).expect("accepted").wait().expect("it runs");
        }
        let report = launch.wait()?;
        let left = self.stream.download(&y).and_then(|copy| copy.wait()).expect("copied");
        Ok((left, report))
    }

    /// A buffer of zeros.
    ///
    /// # Panics
    ///
    /// If there is no memory.
    pub fn zeroed(&self, len: usize) -> Buffer<u32> {
        self.scheduler.zeroed(len).expect("memory")
    }
}

/// Numbers up to 250, each of which comes again.
pub fn inputs(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| i.wrapping_mul(i) % 251).collect()
}
