//! The network's training, sequentially. Sums are in the kernels' order: sample by sample in each part of a mini-batch,
//! and then part by part.

use preempt_workload_kernels::input::{between, hash};
use preempt_workload_kernels::neural_net::model::{DIGITS, HIDDEN, derivative, pixel, sigmoid};

use super::{BATCHES, Extents, LEARNING_RATE, PARAMETERS, batch_seeds};

/// A layer: the weights of each neuron, and its bias.
#[derive(Clone)]
struct Layer(Vec<(Vec<f32>, f32)>);

impl Layer {
    /// A layer with parameters in the kernels' order.
    fn new(seed: u32, neurons: usize, inputs: usize) -> Layer {
        let parameter = |i: usize| between(seed, i as u32, PARAMETERS.0, PARAMETERS.1);
        let weights = |neuron| (0..inputs).map(|i| parameter(neuron * inputs + i)).collect();
        let neuron = |neuron| (weights(neuron), parameter(neurons * inputs + neuron));
        Layer((0..neurons).map(neuron).collect())
    }

    /// A layer of the same extents, with zeros.
    fn zeros(&self) -> Layer {
        Layer(self.0.iter().map(|(weights, _)| (vec![0.0; weights.len()], 0.0)).collect())
    }

    fn feed(&self, input: &[f32]) -> Vec<f32> {
        let activation = |(weights, bias): &(Vec<f32>, f32)| {
            let products = weights.iter().zip(input);
            sigmoid(products.fold(0.0, |sum, (weight, x)| weight.mul_add(*x, sum)) + bias)
        };
        self.0.iter().map(activation).collect()
    }

    /// Adds a sample's gradient.
    fn add_gradient(&mut self, errors: &[f32], input: &[f32]) {
        for ((weights, bias), error) in self.0.iter_mut().zip(errors) {
            for (weight, x) in weights.iter_mut().zip(input) {
                *weight = error.mul_add(*x, *weight);
            }
            *bias += error;
        }
    }

    /// Changes each parameter, given that of another layer.
    fn zip(&mut self, other: &Layer, change: impl Fn(f32, f32) -> f32) {
        for ((weights, bias), (others, other_bias)) in self.0.iter_mut().zip(&other.0) {
            for (weight, other) in weights.iter_mut().zip(others) {
                *weight = change(*weight, *other);
            }
            *bias = change(*bias, *other_bias);
        }
    }

    /// The parameters in the kernels' order.
    fn parameters(self) -> Vec<f32> {
        let (weights, biases): (Vec<Vec<f32>>, Vec<f32>) = self.0.into_iter().unzip();
        [weights.concat(), biases].concat()
    }
}

/// The parameters of the hidden and of the output layer after the last mini-batch.
pub fn trained(seed: u32, Extents { samples, part, inputs }: Extents) -> (Vec<f32>, Vec<f32>) {
    let mut hidden = Layer::new(seed, HIDDEN, inputs as usize);
    let mut output = Layer::new(seed + 1, DIGITS, HIDDEN);
    for batch in 0..BATCHES {
        let (label_seed, image_seed) = batch_seeds(seed, batch);
        let (mut hidden_sum, mut output_sum) = (hidden.zeros(), output.zeros());
        let numbers: Vec<u32> = (0..samples as u32).collect();
        for part in numbers.chunks(part as usize) {
            let (mut hidden_part, mut output_part) = (hidden.zeros(), output.zeros());
            for &sample in part {
                let label = hash(label_seed, sample) % DIGITS as u32;
                let pixels = sample * inputs..(sample + 1) * inputs;
                let image: Vec<f32> = pixels.map(|i| pixel(image_seed, label, i, inputs)).collect();
                let activations = hidden.feed(&image);
                let digits = output.feed(&activations);
                let output_errors = output_errors(&digits, label as usize);
                let hidden_errors = hidden_errors(&output, &output_errors, &activations);
                output_part.add_gradient(&output_errors, &activations);
                hidden_part.add_gradient(&hidden_errors, &image);
            }
            hidden_sum.zip(&hidden_part, |sum, part| sum + part);
            output_sum.zip(&output_part, |sum, part| sum + part);
        }
        let rate = LEARNING_RATE / samples as f32;
        hidden.zip(&hidden_sum, |parameter, sum| (-rate).mul_add(sum, parameter));
        output.zip(&output_sum, |parameter, sum| (-rate).mul_add(sum, parameter));
    }
    (hidden.parameters(), output.parameters())
}

fn output_errors(digits: &[f32], label: usize) -> Vec<f32> {
    let error = |(digit, &activation): (usize, &f32)| {
        let wanted = if digit == label { 1.0 } else { 0.0 };
        (activation - wanted) * derivative(activation)
    };
    digits.iter().enumerate().map(error).collect()
}

fn hidden_errors(output: &Layer, output_errors: &[f32], activations: &[f32]) -> Vec<f32> {
    let error = |(neuron, &activation): (usize, &f32)| {
        let digits = output.0.iter().zip(output_errors);
        let back = |sum, ((weights, _), error): (&(Vec<f32>, f32), &f32)| {
            weights[neuron].mul_add(*error, sum)
        };
        digits.fold(0.0, back) * derivative(activation)
    };
    activations.iter().enumerate().map(error).collect()
}
