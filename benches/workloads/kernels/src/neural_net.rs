//! A feed-forward network with one hidden layer that learns to read digits by back-propagation (SHOC,
//! `NeuralNet`): the kernels of one mini-batch.
//!
//! The parameters of a layer are one buffer: the weights of one neuron after the other, and then the biases
//! of all neurons. Errors are derivatives of the cost with respect to what goes into a neuron.

use preempt_device::prelude::*;

pub mod gradient;
pub mod model;

use model::{DIGITS, Four, HIDDEN, derivative, pixel, sigmoid};

/// Threads of most kernels' blocks.
pub const BLOCK: u32 = 256;

/// Samples of a block-task of [`feed_hidden`].
pub const SAMPLES: usize = 64;
/// Inputs that its block-tasks take at a time; the number of inputs is a multiple of it.
const DEPTH: usize = 16;
/// Threads of its blocks: each computes four neurons of four samples.
const THREADS: usize = 128;
/// Rows of a tile that they load at a time: a constant, so that the loads of all rows are under way at once.
const ROWS: usize = THREADS / DEPTH;
/// Elements between two inputs in its tile of images, and in that of weights: more than samples and neurons,
/// so that what neighbouring threads write is in different banks.
const IMAGES_STRIDE: usize = SAMPLES + 4;
const WEIGHTS_STRIDE: usize = 32 + 4;

/// `images[i]` is a pixel of the digits in `labels`, from 0 to 1, in images of `inputs` pixels, one after the
/// other. The grid may be larger.
#[preemptible(block = 256)]
pub fn make_images(seed: u32, inputs: u32, labels: &[u32], images: SliceMut<f32>) {
    let i = thread::index_1d();
    if (i as usize) < images.len() {
        let label = labels[(i / inputs) as usize];
        // SAFETY: each thread writes its own element.
        unsafe { images.write(i as usize, pixel(seed, label, i, inputs)) }
    }
}

/// The hidden layer's activations, one sample after the other. One block-task for each [`SAMPLES`] of them,
/// as a tiled matrix product of images and weights. `inputs` is a multiple of 16.
#[preemptible(block = 128, idempotent)]
pub fn feed_hidden(layer: &[f32], images: &[f32], activations: SliceMut<f32>, inputs: u32) {
    // Input by input: of all samples, and of all neurons.
    let images_tile = shared_array![Four; DEPTH * IMAGES_STRIDE / 4];
    let weights_tile = shared_array![Four; DEPTH * WEIGHTS_STRIDE / 4];
    // Sample by sample, of all neurons.
    let sums_tile = shared_array![f32; SAMPLES * HIDDEN];
    let t = thread::thread_idx_x() as usize;
    let first_sample = thread::block_idx_x() as usize * SAMPLES;
    let inputs = inputs as usize;
    let samples = activations.len() / HIDDEN;
    // Once, so that nothing below has to be checked.
    assert!(inputs.is_multiple_of(DEPTH) && HIDDEN * (inputs + 1) <= layer.len());
    assert!(samples * inputs <= images.len());
    // What the thread loads, and four times what it computes.
    let (depth, row) = (t % DEPTH, t / DEPTH);
    let (neurons, of_samples) = (t % 8, t / 8);
    let mut sums = [[0.0f32; 4]; 4];
    let mut first = 0;
    // Samples from the thread's first one on, and the steps from one row to the next.
    let rows = samples.saturating_sub(first_sample + row);
    let stride = ROWS * inputs;
    // Where its next loads are: pointers may be behind the slices where nothing is loaded.
    let mut image = images.as_ptr().wrapping_add((first_sample + row) * inputs + depth);
    let mut weight = layer.as_ptr().wrapping_add(row * inputs + depth);
    // SAFETY: `first + depth` is below `inputs`, and samples and neurons are below their numbers where they are
    // read or written, so indices are below the lengths that were checked. Within the tiles, `depth` is below
    // `DEPTH`, samples are below `SAMPLES`, and neurons are below 32. Barriers lie between writes and reads.
    // Each thread writes its own elements of `activations`.
    unsafe {
        let to_images = images_tile.cast::<f32>().add(depth * IMAGES_STRIDE + row);
        let to_weights = weights_tile.cast::<f32>().add(depth * WEIGHTS_STRIDE + row);
        while first < inputs {
            let (mut image_at, mut weight_at) = (image, weight);
            let mut i = 0;
            while i < SAMPLES {
                to_images.add(i).write(if i < rows { image_at.read() } else { 0.0 });
                image_at = image_at.wrapping_add(stride);
                i += ROWS;
            }
            let mut i = 0;
            while i < 32 {
                to_weights.add(i).write(if row + i < HIDDEN { weight_at.read() } else { 0.0 });
                weight_at = weight_at.wrapping_add(stride);
                i += ROWS;
            }
            (image, weight) = (image.wrapping_add(DEPTH), weight.wrapping_add(DEPTH));
            thread::sync_threads();
            yield_point!();
            let mut k = 0;
            while k < DEPTH {
                let pixels = images_tile.add(k * IMAGES_STRIDE / 4 + of_samples).read();
                let weights = weights_tile.add(k * WEIGHTS_STRIDE / 4 + neurons).read();
                pixels.add_products(weights, &mut sums);
                k += 1;
            }
            thread::sync_threads();
            first += DEPTH;
        }
        let mut i = 0;
        while i < 4 {
            let mut j = 0;
            while j < 4 {
                let (sample, neuron) = (of_samples * 4 + i, neurons * 4 + j);
                if neuron < HIDDEN {
                    sums_tile.add(sample * HIDDEN + neuron).write(sums[i][j]);
                }
                j += 1;
            }
            i += 1;
        }
        thread::sync_threads();
        // Neighbouring threads write neighbouring elements.
        let to = first_sample * HIDDEN;
        let mut i = t;
        while i < SAMPLES * HIDDEN && to + i < samples * HIDDEN {
            let input =
                sums_tile.add(i).read() + *layer.get_unchecked(HIDDEN * inputs + i % HIDDEN);
            activations.as_mut_ptr().add(to + i).write(sigmoid(input));
            i += THREADS;
        }
    }
}

/// The output layer's activations, one sample after the other. The grid may be larger.
#[preemptible(block = 256)]
pub fn feed_output(layer: &[f32], hidden: &[f32], activations: SliceMut<f32>) {
    let i = thread::index_1d() as usize;
    if i < activations.len() {
        let (sample, digit) = (i / DIGITS, i % DIGITS);
        // Once, so that the loop does not have to.
        assert!(DIGITS * (HIDDEN + 1) <= layer.len() && (sample + 1) * HIDDEN <= hidden.len());
        let mut sum = 0.0;
        let mut j = 0;
        while j < HIDDEN {
            // SAFETY: neurons are below their numbers, and the sample has been checked.
            let (weight, x) = unsafe {
                let weight = layer.get_unchecked(digit * HIDDEN + j);
                (*weight, *hidden.get_unchecked(sample * HIDDEN + j))
            };
            sum = GpuFloat::mul_add(weight, x, sum);
            j += 1;
        }
        let activation = sigmoid(sum + layer[DIGITS * HIDDEN + digit]);
        // SAFETY: each thread writes its own element.
        unsafe { activations.write(i, activation) }
    }
}

/// The output layer's errors, with half of the squared distance to 1 for the right digit and 0 for others as
/// the cost. The grid may be larger.
#[preemptible(block = 256)]
pub fn output_error(activations: &[f32], labels: &[u32], errors: SliceMut<f32>) {
    let i = thread::index_1d() as usize;
    if i < errors.len() {
        let wanted = if labels[i / DIGITS] as usize == i % DIGITS { 1.0 } else { 0.0 };
        let error = (activations[i] - wanted) * derivative(activations[i]);
        // SAFETY: each thread writes its own element.
        unsafe { errors.write(i, error) }
    }
}

/// The hidden layer's errors, from those of the output layer, of which `layer` are the parameters. The grid
/// may be larger.
#[preemptible(block = 256)]
pub fn hidden_error(
    layer: &[f32],
    output_errors: &[f32],
    activations: &[f32],
    errors: SliceMut<f32>,
) {
    let i = thread::index_1d() as usize;
    if i < errors.len() {
        let (sample, neuron) = (i / HIDDEN, i % HIDDEN);
        // Once, so that the loop does not have to.
        assert!(DIGITS * HIDDEN <= layer.len() && (sample + 1) * DIGITS <= output_errors.len());
        let mut sum = 0.0;
        let mut digit = 0;
        while digit < DIGITS {
            // SAFETY: neurons are below their numbers, and the sample has been checked.
            let (weight, error) = unsafe {
                let weight = layer.get_unchecked(digit * HIDDEN + neuron);
                (*weight, *output_errors.get_unchecked(sample * DIGITS + digit))
            };
            sum = GpuFloat::mul_add(weight, error, sum);
            digit += 1;
        }
        // SAFETY: each thread writes its own element.
        unsafe { errors.write(i, sum * derivative(activations[i])) }
    }
}

/// The layer's parameters after the mini-batch: `next = layer - rate * gradient`, where the gradient is the
/// sum of `partials`, each as long as the layer. The grid may be larger.
#[preemptible(block = 256)]
pub fn update(rate: f32, layer: &[f32], partials: &[f32], next: SliceMut<f32>) {
    let i = thread::index_1d() as usize;
    let length = layer.len();
    if i < length {
        let mut sum = 0.0;
        let mut at = i;
        // Four loads at a time, for they take long; the additions stay in order.
        while at + 3 * length < partials.len() {
            let (a, b) = (partials[at], partials[at + length]);
            let (c, d) = (partials[at + 2 * length], partials[at + 3 * length]);
            sum = sum + a + b + c + d;
            at += 4 * length;
        }
        while at < partials.len() {
            sum += partials[at];
            at += length;
        }
        // SAFETY: each thread writes its own element.
        unsafe { next.write(i, GpuFloat::mul_add(-rate, sum, layer[i])) }
    }
}
