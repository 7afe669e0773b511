//! Outputs of programs, and their comparison with references.

use std::fmt;

use preempt::pool::Run;
use preempt::{Buffer, Call, Error, Stream};
use preempt_workload_kernels::input::{BLOCK, DIGESTED, digest_f32, digest_u32, set_f32, set_u32};

use crate::{Memory, blocks};

/// The contents of outputs before a run: no result is this number, nor this NaN.
const POISON: u32 = 0xFFFF_DEAD;

/// An output of a program.
pub struct Output {
    /// The output's name.
    pub name: &'static str,
    /// Overwrites the output, before a run.
    pub poison: Call<'static>,
    digest: Call<'static>,
    sum: Buffer<u64>,
    array: Array,
    tolerance: Tolerance,
    reference: Box<dyn Fn() -> Values>,
}

/// An output's buffer.
enum Array {
    U32(Buffer<u32>),
    F32(Buffer<f32>),
}

/// An output's elements.
#[derive(Clone, PartialEq, Debug)]
pub enum Values {
    /// Integers.
    U32(Vec<u32>),
    /// Floating-point numbers.
    F32(Vec<f32>),
}

/// The distance from its reference that a floating-point number may have. Integers have none.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Tolerance {
    /// No distance: the reference adds up in the same order.
    Exact,
    /// `absolute + relative * |reference|`: the reference adds up in another order, or more precisely.
    Within {
        /// For any number.
        absolute: f32,
        /// For each unit of the reference.
        relative: f32,
    },
}

impl Output {
    /// An output of integers, with its sequential reference.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler.
    pub fn integers(
        memory: Memory<'_>,
        name: &'static str,
        mut buffer: Buffer<u32>,
        reference: impl Fn() -> Vec<u32> + 'static,
    ) -> Result<Output, Error> {
        let poison = set_u32(POISON, &mut buffer).grid(blocks(buffer.len(), BLOCK));
        let mut sum = memory.zeroed(1)?;
        let digest = digest_u32(&buffer, &mut sum).grid(blocks(buffer.len(), BLOCK * DIGESTED));
        let (array, tolerance) = (Array::U32(buffer), Tolerance::Exact);
        let reference = Box::new(move || Values::U32(reference()));
        Ok(Output { name, poison, digest, sum, array, tolerance, reference })
    }

    /// An output of floating-point numbers, with its sequential reference.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler.
    pub fn floats(
        memory: Memory<'_>,
        name: &'static str,
        mut buffer: Buffer<f32>,
        tolerance: Tolerance,
        reference: impl Fn() -> Vec<f32> + 'static,
    ) -> Result<Output, Error> {
        let poison = f32::from_bits(POISON);
        let poison = set_f32(poison, &mut buffer).grid(blocks(buffer.len(), BLOCK));
        let mut sum = memory.zeroed(1)?;
        let digest = digest_f32(&buffer, &mut sum).grid(blocks(buffer.len(), BLOCK * DIGESTED));
        let reference = Box::new(move || Values::F32(reference()));
        Ok(Output { name, poison, digest, sum, array: Array::F32(buffer), tolerance, reference })
    }

    /// Copies the output from the device.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler.
    pub fn download(&self, stream: &Stream) -> Result<Values, Error> {
        Ok(match &self.array {
            Array::U32(buffer) => Values::U32(stream.download(buffer)?.wait()?),
            Array::F32(buffer) => Values::F32(stream.download(buffer)?.wait()?),
        })
    }

    /// Copies the output from the device in the run of a pool's task that has launched the program.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler, and those of a run that was told to leave.
    pub fn download_in(&self, run: &Run) -> Result<Values, Error> {
        Ok(match &self.array {
            Array::U32(buffer) => Values::U32(run.download(buffer)?),
            Array::F32(buffer) => Values::F32(run.download(buffer)?),
        })
    }

    /// A digest, which most likely differs if any bit of the output differs.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler.
    pub fn digest(&self, stream: &Stream) -> Result<u64, Error> {
        let sum = || Ok::<u64, Error>(stream.download(&self.sum)?.wait()?[0]);
        let before = sum()?;
        stream.launch(self.digest.clone())?.wait()?;
        Ok(sum()?.wrapping_sub(before))
    }

    /// The expected output, computed sequentially on the host. That takes long, unless the program is reduced.
    pub fn reference(&self) -> Values {
        (self.reference)()
    }

    /// Describes the first mistake in `found`, if there is any.
    pub fn mistake(&self, found: &Values, reference: &Values) -> Option<String> {
        let tolerance = self.tolerance;
        let (length, wrong) = match (found, reference) {
            (Values::U32(found), Values::U32(reference)) => {
                if found.len() != reference.len() {
                    return Some(format!("{}: {} elements", self.name, found.len()));
                }
                (found.len(), differences(found, reference, |a, b| a == b))
            }
            (Values::F32(found), Values::F32(reference)) => {
                if found.len() != reference.len() {
                    return Some(format!("{}: {} elements", self.name, found.len()));
                }
                (found.len(), differences(found, reference, |a, b| tolerance.allows(a, b)))
            }
            _ => return Some(format!("{}: of another type", self.name)),
        };
        wrong.map(|(count, first)| {
            format!("{}: {count} of {length} elements are wrong, the first {first}", self.name)
        })
    }
}

/// Describes how many pairs differ, and the first of them.
fn differences<T: Copy + fmt::Display>(
    found: &[T],
    reference: &[T],
    is_alike: impl Fn(T, T) -> bool,
) -> Option<(usize, String)> {
    let pairs = found.iter().zip(reference).enumerate();
    let mut wrong = pairs.filter(|&(_, (&found, &reference))| !is_alike(found, reference));
    let (at, (found, reference)) = wrong.next()?;
    Some((1 + wrong.count(), format!("{at}: {found} instead of {reference}")))
}

impl Tolerance {
    /// Whether `found` is near enough. The sign of a zero does not count, and no NaN is near anything.
    fn allows(self, found: f32, reference: f32) -> bool {
        match self {
            Tolerance::Exact => found == reference,
            Tolerance::Within { absolute, relative } => {
                (found - reference).abs() <= absolute + relative * reference.abs()
            }
        }
    }
}

impl Values {
    /// Whether every bit is the same.
    pub fn is_identical(&self, other: &Values) -> bool {
        match (self, other) {
            (Values::U32(a), Values::U32(b)) => a == b,
            (Values::F32(a), Values::F32(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
            }
            _ => false,
        }
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").field("name", &self.name).finish_non_exhaustive()
    }
}
