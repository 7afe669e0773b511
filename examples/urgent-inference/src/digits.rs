//! The data set: 1,797 handwritten digits, and which of them the network is trained with.

use anyhow::{Context, Result, ensure};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use urgent_inference_kernels::network::{CLASSES, Digit, PIXELS, WHITE};

/// See `data/README.md` for its source and licence.
const CSV: &str = include_str!("../data/digits.csv");

/// Digits in the set.
pub const COUNT: usize = 1797;

/// Digits that the network never sees in training: a quarter.
pub const HELD_OUT: usize = COUNT / 4;

/// Seed of the choice of the digits that are held out; the committed weights depend on it.
const SPLIT_SEED: u64 = 1998;

/// A handwritten digit, and its label.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// The image.
    pub digit: Digit,
    /// The digit that was meant, from 0 to 9.
    pub label: u32,
    /// Whether it is held out from training.
    pub held_out: bool,
}

/// All digits, in the order of the file.
///
/// # Errors
///
/// Mistakes in the file.
pub fn load() -> Result<Vec<Sample>> {
    let mut samples = Vec::with_capacity(COUNT);
    for (number, line) in CSV.lines().enumerate() {
        let sample = parse(line).with_context(|| format!("digits.csv, line {}", number + 1))?;
        samples.push(sample);
    }
    ensure!(samples.len() == COUNT, "digits.csv has {} lines, not {COUNT}", samples.len());
    let mut order: Vec<usize> = (0..COUNT).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(SPLIT_SEED));
    for index in &order[..HELD_OUT] {
        samples[*index].held_out = true;
    }
    Ok(samples)
}

/// 64 pixels from 0 to 16, and the label.
fn parse(line: &str) -> Result<Sample> {
    let mut values = line.split(',').map(str::parse::<u8>);
    let mut next = || values.next().context("too few values")?.context("not a number");
    let mut pixels = [0; PIXELS];
    for pixel in &mut pixels {
        *pixel = next()?;
        ensure!(f32::from(*pixel) <= WHITE, "a pixel of {pixel}");
    }
    let label = u32::from(next()?);
    ensure!((label as usize) < CLASSES, "a label of {label}");
    ensure!(values.next().is_none(), "too many values");
    Ok(Sample { digit: Digit { pixels }, label, held_out: false })
}
