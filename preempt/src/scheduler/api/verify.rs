//! Both forms of a kernel on the same contents, compared.

use std::time::Duration;

use preempt_device::host::{Access, BufferArg, Call, HasGrid, Preemption, ReadArg};

use super::buffer::Buffer;
use super::slice::BufferSlice;
use crate::engine::LaunchReport;
use crate::error::{ArgumentError, CodeError, Error};
use crate::foreign::is_plain_alone;
use crate::policy::Priority;
use crate::scheduler::runtime::memory::Memory;
use crate::scheduler::{Scheduler, Stream};
use crate::sync::{Instant, hint, thread};

/// Preemptible runs. The launch that is to interrupt one of them comes a ninth of the plain run's time later than for the
/// one before.
const RUNS: u32 = 8;

/// Time that the thread spins rather than sleeps before it interrupts: a sleep ends some 50 µs late.
const SPIN: Duration = Duration::from_millis(1);

/// What [`Scheduler::verify`] has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Verification {
    /// Preemptible runs that were compared with a plain one. Half of them were to be interrupted by the other half.
    pub runs: u32,
    /// How often SMs were taken from them. With 0, nothing was interrupted: the kernel is too short, or the policy does not
    /// preempt it.
    pub yields: u32,
    /// The first difference between two plain runs: the results depend on the order of the blocks, as sums of atomic
    /// additions of floating-point numbers do, and tell nothing of preemption.
    pub unstable: Option<Difference>,
    /// The first difference between a plain run and a preemptible one.
    pub difference: Option<Difference>,
}

impl Verification {
    /// Whether each preemptible run has written what the plain one has, bit for bit.
    pub fn is_equal(&self) -> bool {
        self.difference.is_none()
    }
}

/// Where two runs have written different bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Difference {
    /// The buffer among those of the call, counted from 0 in the order of its arguments.
    pub buffer: usize,
    /// The byte in the range that was passed.
    pub byte: usize,
}

impl Scheduler {
    /// Runs a kernel in both forms on copies of what it writes, and compares the results bit for bit. For tests of kernels whose
    /// text is all that is known of them, in one's own application and on its data; it may take ten times as long as the kernel.
    ///
    /// The kernel runs plain twice, and then eight times in the preemptible form, each time interrupted by a more urgent launch of
    /// itself at another moment. The buffers of the call keep their contents. Each that is written needs memory three times.
    ///
    /// A kernel that accesses memory by addresses that are in its buffers is not run on copies of that memory: do not verify it.
    ///
    /// ```
    /// # use preempt_device::prelude::*;
    /// # #[preemptible(block = 32)]
    /// # fn double(x: &[u32], out: SliceMut<u32>) {
    /// #     let i = thread::index_1d() as usize;
    /// #     if i < out.len() {
    /// #         // SAFETY: each thread writes its own element.
    /// #         unsafe { out.write(i, 2 * x[i]) }
    /// #     }
    /// # }
    /// let scheduler = preempt::Scheduler::builder().build()?;
    /// let (x, mut out) = (scheduler.buffer(&[7u32; 1000])?, scheduler.zeroed::<u32>(1000)?);
    /// let found = scheduler.verify(double(&x, &mut out).threads(1000))?;
    /// assert!(found.is_equal(), "{found:?}");
    /// # Ok::<(), preempt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Stream::launch`] and [`Scheduler::zeroed`]; [`CodeError::PlainAlone`] for a kernel without a preemptible form;
    /// [`ArgumentError::ForeignBuffer`] for memory that is not a buffer's.
    pub fn verify<G: HasGrid>(&self, call: Call<'static, G>) -> Result<Verification, Error> {
        let call = call.with_its_grid();
        let kernel = call.kernel().name;
        if is_plain_alone(call.kernel()) {
            return Err(Error::Code(CodeError::PlainAlone { kernel }));
        }
        // The least that there is, so that nothing of the application waits for them.
        let batch = self.stream(Priority(i32::MIN));
        let urgent = self.stream(Priority(i32::MIN + 1));
        // For policies that go by deadlines.
        urgent.set_deadline(Some(Duration::ZERO));
        let plain = Copies::of(self, &call)?;
        let (expected, took) = plain.run(&batch, Preemption::Plain)?;
        let plain = Copies::of(self, &call)?;
        let (again, _) = plain.run(&batch, Preemption::Plain)?;
        let mut found = Verification {
            runs: 2 * RUNS,
            yields: 0,
            unstable: difference(&expected, &again),
            difference: None,
        };
        for run in 1..=RUNS {
            let (one, other) = (Copies::of(self, &call)?, Copies::of(self, &call)?);
            let launched = batch.launch(one.call(Preemption::Preemptible))?;
            wait(took.running() * run / (RUNS + 1));
            urgent.launch(other.call(Preemption::Preemptible))?.wait()?;
            found.yields = found.yields.saturating_add(launched.wait()?.yields);
            for copies in [&one, &other] {
                let written = copies.written(&batch)?;
                found.difference = found.difference.or(difference(&expected, &written));
            }
        }
        Ok(found)
    }
}

/// A call that writes copies of its buffers.
struct Copies {
    call: Call<'static>,
    /// Each with its place among the buffers of the call.
    copies: Vec<(usize, Buffer<u8>)>,
}

impl Copies {
    /// Copies the contents, and waits for that.
    fn of(scheduler: &Scheduler, call: &Call<'static>) -> Result<Copies, Error> {
        let name = call.kernel().name;
        let stream = scheduler.stream(Priority(i32::MIN));
        let mut copies = Vec::new();
        for (place, (argument, access)) in call.args().buffers().iter().enumerate() {
            if *access == Access::Read || argument.bytes == 0 {
                continue;
            }
            let owner = argument.owner.clone().and_then(|owner| owner.downcast::<Memory>().ok());
            let Some(memory) = owner else {
                return Err(Error::Argument(ArgumentError::ForeignBuffer { name }));
            };
            // SAFETY: it is filled next.
            let mut copy = unsafe { scheduler.uninit::<u8>(argument.bytes)? };
            stream.copy_buffer(&BufferSlice::of_argument(&memory, argument), &mut copy)?.wait()?;
            copies.push((place, copy));
        }
        let mut args = call.args().clone();
        let mut place = 0;
        args.replace_buffers(|argument, _| {
            let copy = copies.iter().find(|(of, _)| *of == place);
            place += 1;
            match copy {
                Some((_, copy)) => {
                    let BufferArg { address, owner, .. } = ReadArg::read_arg(copy);
                    BufferArg { address, owner, ..*argument }
                }
                None => argument.clone(),
            }
        });
        // SAFETY: the values are those of the call, and the buffers have the same lengths.
        let call = unsafe { call.clone().with_args(args) };
        Ok(Copies { call, copies })
    }

    fn call(&self, preemption: Preemption) -> Call<'static> {
        self.call.clone().preemption(preemption)
    }

    /// Launches it, and waits for what it has written.
    fn run(
        &self,
        stream: &Stream,
        preemption: Preemption,
    ) -> Result<(Vec<Written>, LaunchReport), Error> {
        let report = stream.launch(self.call(preemption))?.wait()?;
        Ok((self.written(stream)?, report))
    }

    fn written(&self, stream: &Stream) -> Result<Vec<Written>, Error> {
        let written = |(buffer, copy): &(usize, Buffer<u8>)| {
            let bytes = stream.download(copy)?.into_contents()?;
            Ok(Written { buffer: *buffer, bytes })
        };
        self.copies.iter().map(written).collect()
    }
}

/// What a run has left in a buffer.
struct Written {
    buffer: usize,
    bytes: Vec<u8>,
}

/// The first one.
fn difference(expected: &[Written], found: &[Written]) -> Option<Difference> {
    expected.iter().zip(found).find_map(|(expected, found)| {
        let byte = expected.bytes.iter().zip(&found.bytes).position(|(one, other)| one != other)?;
        Some(Difference { buffer: expected.buffer, byte })
    })
}

fn wait(time: Duration) {
    if time > SPIN {
        thread::sleep(time);
        return;
    }
    let start = Instant::now();
    while start.elapsed() < time {
        hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_found() {
        let written = |bytes: [&[u8]; 2]| {
            let written =
                |(at, bytes): (usize, &&[u8])| Written { buffer: 2 * at, bytes: bytes.to_vec() };
            bytes.iter().enumerate().map(written).collect::<Vec<_>>()
        };
        let one = written([&[1, 2], &[3, 4]]);
        assert_eq!(difference(&one, &written([&[1, 2], &[3, 4]])), None);
        let found = difference(&one, &written([&[1, 2], &[3, 5]]));
        assert_eq!(found, Some(Difference { buffer: 2, byte: 1 }));
        let found = difference(&one, &written([&[0, 2], &[3, 5]]));
        assert_eq!(found, Some(Difference { buffer: 0, byte: 0 }));
    }
}
