//! The network on the host: the committed weights, and the answers expected of the kernel.

use std::array;

use anyhow::{Result, ensure};
use urgent_inference_kernels::network::{
    CLASSES, Digit, HIDDEN, HIDDEN_BIASES, HIDDEN_WEIGHTS, OUTPUT_BIASES, OUTPUT_WEIGHTS,
    PARAMETERS, PIXELS, WHITE, most_probable,
};

use crate::digits::Sample;

/// The weights that `train-digits` wrote.
const WEIGHTS: &[u8] = include_bytes!("../data/weights.bin");

/// The first bytes of a file of weights. What follows is the number of pixels, hidden units and
/// classes (`u32`) and the parameters (`f32`), all little-endian.
const MAGIC: [u8; 8] = *b"DIGITS01";

/// The shape of the network, as the file gives it.
const SHAPE: [u32; 3] = [PIXELS as u32, HIDDEN as u32, CLASSES as u32];

/// A multilayer perceptron: 64 pixels, 64 hidden units, 10 classes.
#[derive(Clone, PartialEq, Debug)]
pub struct Network {
    /// All parameters, in the order that the kernel reads.
    pub parameters: Vec<f32>,
}

/// A layer's output.
pub(crate) type Hidden = [f32; HIDDEN];

impl Network {
    /// The network with the committed weights.
    ///
    /// # Errors
    ///
    /// Mistakes in the file.
    pub fn committed() -> Result<Network> {
        Network::from_bytes(WEIGHTS)
    }

    /// Reads a file of weights.
    ///
    /// # Errors
    ///
    /// Mistakes in the file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Network> {
        let (words, rest) = bytes.as_chunks::<4>();
        ensure!(bytes.starts_with(&MAGIC) && rest.is_empty(), "not a file of weights");
        let (shape, parameters) =
            words[MAGIC.len() / 4..].split_at_checked(SHAPE.len()).unwrap_or_default();
        ensure!(
            shape.iter().map(|word| u32::from_le_bytes(*word)).eq(SHAPE),
            "the weights are those of another network"
        );
        ensure!(parameters.len() == PARAMETERS, "{} weights, not {PARAMETERS}", parameters.len());
        Ok(Network {
            parameters: parameters.iter().map(|word| f32::from_le_bytes(*word)).collect(),
        })
    }

    /// A file of weights.
    pub fn to_bytes(&self) -> Vec<u8> {
        let shape = SHAPE.into_iter().flat_map(u32::to_le_bytes);
        let parameters = self.parameters.iter().flat_map(|value| value.to_le_bytes());
        MAGIC.into_iter().chain(shape).chain(parameters).collect()
    }

    /// The output of the hidden layer for a digit.
    pub(crate) fn hidden(&self, digit: &Digit) -> Hidden {
        let mut sums: Hidden = array::from_fn(|unit| self.parameters[HIDDEN_BIASES + unit]);
        let weights = &self.parameters[HIDDEN_WEIGHTS..HIDDEN_BIASES];
        for (pixel, weights) in digit.pixels.iter().zip(weights.chunks_exact(HIDDEN)) {
            let brightness = f32::from(*pixel) / WHITE;
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum += brightness * weight;
            }
        }
        sums.map(|sum| sum.max(0.0))
    }

    /// The output of the output layer for a hidden one.
    pub(crate) fn output(&self, hidden: &Hidden) -> [f32; CLASSES] {
        array::from_fn(|class| {
            let start = OUTPUT_WEIGHTS + class * HIDDEN;
            let weights = &self.parameters[start..start + HIDDEN];
            let sum: f32 = hidden.iter().zip(weights).map(|(value, weight)| value * weight).sum();
            sum + self.parameters[OUTPUT_BIASES + class]
        })
    }

    /// The logits of a digit. Sums are in another order than in the kernel, so the last bits differ.
    pub fn logits(&self, digit: &Digit) -> [f32; CLASSES] {
        self.output(&self.hidden(digit))
    }

    /// The most probable class of a digit.
    pub fn classify(&self, digit: &Digit) -> u32 {
        most_probable(&self.logits(digit))
    }

    /// The share of digits that are classified as labelled.
    pub fn accuracy<'a>(&self, samples: impl IntoIterator<Item = &'a Sample>) -> f64 {
        let (mut right, mut all) = (0, 0);
        for Sample { digit, label, .. } in samples {
            right += u32::from(self.classify(digit) == *label);
            all += 1;
        }
        f64::from(right) / f64::from(all.max(1))
    }
}
