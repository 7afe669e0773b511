//! Trains the network: cross-entropy, by Adam (Kingma and Ba 2015), in minibatches.
//!
//! Every step is in plain `f32` in a fixed order, and the only function that is not rounded
//! exactly comes from a library of its own: the same seed gives the same weights to the bit on
//! every machine.

use preempt_device::math::GpuFloat;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use urgent_inference_kernels::network::{
    CLASSES, HIDDEN, HIDDEN_BIASES, HIDDEN_WEIGHTS, OUTPUT_BIASES, OUTPUT_WEIGHTS, PARAMETERS,
    PIXELS, WHITE,
};

use crate::digits::Sample;
use crate::network::Network;

/// The seed of the committed weights.
pub const SEED: u64 = 7;
/// Times that each digit is shown.
pub const EPOCHS: u32 = 40;

/// Digits between two changes of the weights.
const BATCH: usize = 32;
const LEARNING_RATE: f32 = 2e-3;
/// Share of the learning rate by which weights are pulled towards 0 in each step.
const WEIGHT_DECAY: f32 = 1e-2;
/// Factors by which Adam forgets earlier gradients, and their squares.
const FORGETTING: [f32; 2] = [0.9, 0.999];
const EPSILON: f32 = 1e-8;

/// A network that has seen all of `samples` in each of `epochs`.
pub fn train(samples: &[Sample], seed: u64, epochs: u32) -> Network {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut network = untrained(&mut random);
    let mut adam = Adam::new();
    let mut order: Vec<&Sample> = samples.iter().collect();
    for epoch in 0..epochs {
        // Cools down to 0, so that the last epochs settle.
        let rate = LEARNING_RATE * (1.0 - epoch as f32 / epochs as f32);
        order.shuffle(&mut random);
        for batch in order.chunks(BATCH) {
            let mut gradient = vec![0.0; PARAMETERS];
            for sample in batch {
                add_gradient(&network, sample, 1.0 / batch.len() as f32, &mut gradient);
            }
            adam.step(&mut network.parameters, &gradient, rate);
        }
    }
    network
}

/// Weights from -limit to limit (He et al. 2015), biases 0.
fn untrained(random: &mut ChaCha8Rng) -> Network {
    let mut parameters = vec![0.0; PARAMETERS];
    let layers = [(HIDDEN_WEIGHTS..HIDDEN_BIASES, PIXELS), (OUTPUT_WEIGHTS..OUTPUT_BIASES, HIDDEN)];
    for (weights, inputs) in layers {
        let limit = GpuFloat::sqrt(6.0 / inputs as f32);
        for weight in &mut parameters[weights] {
            *weight = limit * (2.0 * random.random::<f32>() - 1.0);
        }
    }
    Network { parameters }
}

/// Adds the gradient of one sample's loss, by backpropagation, times `share`.
fn add_gradient(network: &Network, sample: &Sample, share: f32, gradient: &mut [f32]) {
    let hidden = network.hidden(&sample.digit);
    let mut slopes = softmax(network.output(&hidden));
    slopes[sample.label as usize] -= 1.0;

    let mut hidden_slopes = [0.0; HIDDEN];
    for (class, slope) in slopes.into_iter().enumerate() {
        let slope = slope * share;
        gradient[OUTPUT_BIASES + class] += slope;
        let start = OUTPUT_WEIGHTS + class * HIDDEN;
        for unit in 0..HIDDEN {
            gradient[start + unit] += slope * hidden[unit];
            hidden_slopes[unit] += slope * network.parameters[start + unit];
        }
    }
    for (slope, value) in hidden_slopes.iter_mut().zip(hidden) {
        if value <= 0.0 {
            *slope = 0.0;
        }
    }
    for (sum, slope) in gradient[HIDDEN_BIASES..].iter_mut().zip(hidden_slopes) {
        *sum += slope;
    }
    let rows = gradient[HIDDEN_WEIGHTS..HIDDEN_BIASES].chunks_exact_mut(HIDDEN);
    for (row, pixel) in rows.zip(sample.digit.pixels) {
        let brightness = f32::from(pixel) / WHITE;
        for (sum, slope) in row.iter_mut().zip(hidden_slopes) {
            *sum += slope * brightness;
        }
    }
}

fn softmax(logits: [f32; CLASSES]) -> [f32; CLASSES] {
    let largest = logits.into_iter().fold(f32::NEG_INFINITY, f32::max);
    // Not the method of `f32`: the system's differs from machine to machine.
    let weights = logits.map(|logit| GpuFloat::exp(logit - largest));
    let total: f32 = weights.iter().sum();
    weights.map(|weight| weight / total)
}

struct Adam {
    mean: Vec<f32>,
    square: Vec<f32>,
    /// The remaining weight of the start, where both are 0: a power of `FORGETTING`.
    start: [f32; 2],
}

impl Adam {
    fn new() -> Adam {
        Adam { mean: vec![0.0; PARAMETERS], square: vec![0.0; PARAMETERS], start: [1.0; 2] }
    }

    fn step(&mut self, parameters: &mut [f32], gradient: &[f32], rate: f32) {
        let [keep_mean, keep_square] = FORGETTING;
        self.start = [self.start[0] * keep_mean, self.start[1] * keep_square];
        let moments = self.mean.iter_mut().zip(&mut self.square);
        for ((parameter, slope), (mean, square)) in parameters.iter_mut().zip(gradient).zip(moments)
        {
            *mean = keep_mean * *mean + (1.0 - keep_mean) * slope;
            *square = keep_square * *square + (1.0 - keep_square) * slope * slope;
            let (mean, square) = (*mean / (1.0 - self.start[0]), *square / (1.0 - self.start[1]));
            let step = mean / (square.sqrt() + EPSILON) + WEIGHT_DECAY * *parameter;
            *parameter -= rate * step;
        }
    }
}
