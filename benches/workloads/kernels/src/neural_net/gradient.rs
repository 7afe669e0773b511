//! The gradients of both layers' parameters. Each block-task adds up a part of the mini-batch, in order, so
//! that results are the same in each run; `update` adds up the parts.

use preempt_device::prelude::*;

use super::model::{DIGITS, Four, HIDDEN};

/// Inputs of a block-task of [`hidden_gradient`].
pub const INPUTS: usize = 112;
/// Samples that its block-tasks take at a time.
const DEPTH: usize = 16;
/// Threads of its blocks: each computes the weights of four inputs for four neurons.
const THREADS: usize = 224;
const FOURS: usize = INPUTS / 4;

/// Samples that block-tasks of [`output_gradient`] take at a time.
const OUTPUT_DEPTH: usize = 32;

/// The sums over each `part` samples of the gradient of the hidden layer's parameters: in `partials`, one
/// after the other, each as the parameters are.
///
/// One block-task for each [`INPUTS`] inputs, of which `inputs` is a multiple, in x, and for each part in y.
#[preemptible(block = 224, idempotent)]
pub fn hidden_gradient(
    images: &[f32],
    errors: &[f32],
    partials: SliceMut<f32>,
    inputs: u32,
    part: u32,
) {
    // Sample by sample: of all inputs, and of all neurons.
    let images_tile = shared_array![Four; DEPTH * FOURS];
    let errors_tile = shared_array![Four; DEPTH * 8];
    let t = thread::thread_idx_x() as usize;
    let first_input = thread::block_idx_x() as usize * INPUTS;
    let inputs = inputs as usize;
    let samples = errors.len() / HIDDEN;
    let mut first = thread::block_idx_y() as usize * part as usize;
    let end = samples.min(first + part as usize);
    let to = thread::block_idx_y() as usize * HIDDEN * (inputs + 1);
    // Once, so that nothing below has to be checked.
    assert!(samples * inputs <= images.len() && to + HIDDEN * (inputs + 1) <= partials.len());
    assert!(inputs.is_multiple_of(INPUTS) && first_input < inputs);
    // Four times what the thread computes, and what it loads.
    let (of_inputs, row) = (t % FOURS, t / FOURS);
    let mut sums = [[0.0f32; 4]; 4];
    let mut bias = 0.0;
    // SAFETY: samples, inputs, and neurons are below their numbers where they are read or written, so indices are
    // below the lengths that were checked. Rows of images start at multiples of 16 bytes, since buffers do, and
    // so do parts of four inputs in them. Within the tiles, samples are below `DEPTH`, fours of inputs below
    // `FOURS`, and neurons below 32. Barriers lie between writes and reads. Each thread writes its own elements
    // of `partials`.
    unsafe {
        while first < end {
            let mut i = row;
            while i < DEPTH {
                let at = (first + i) * inputs + first_input + of_inputs * 4;
                let is_sample = first + i < end;
                let four = if is_sample {
                    images.as_ptr().add(at).cast::<Four>().read()
                } else {
                    Four([0.0; 4])
                };
                images_tile.add(i * FOURS + of_inputs).write(four);
                i += THREADS / FOURS;
            }
            let mut i = t;
            while i < DEPTH * 32 {
                let (sample, neuron) = (first + i / 32, i % 32);
                let is_error = sample < end && neuron < HIDDEN;
                let at = sample * HIDDEN + neuron;
                let error = if is_error { *errors.get_unchecked(at) } else { 0.0 };
                errors_tile.cast::<f32>().add(i).write(error);
                i += THREADS;
            }
            thread::sync_threads();
            yield_point!();
            let mut k = 0;
            while k < DEPTH {
                let pixels = images_tile.add(k * FOURS + of_inputs).read();
                errors_tile.add(k * 8 + row).read().add_products(pixels, &mut sums);
                k += 1;
            }
            // The gradients of biases are the sums of errors.
            if first_input == 0 && t < HIDDEN {
                let mut k = 0;
                while k < DEPTH {
                    bias += errors_tile.cast::<f32>().add(k * 32 + t).read();
                    k += 1;
                }
            }
            thread::sync_threads();
            first += DEPTH;
        }
        let mut i = 0;
        while i < 4 {
            let neuron = row * 4 + i;
            let mut j = 0;
            while j < 4 && neuron < HIDDEN {
                let at = to + neuron * inputs + first_input + of_inputs * 4 + j;
                partials.as_mut_ptr().add(at).write(sums[i][j]);
                j += 1;
            }
            i += 1;
        }
        if first_input == 0 && t < HIDDEN {
            partials.as_mut_ptr().add(to + HIDDEN * inputs + t).write(bias);
        }
    }
}

/// The sums over each `part` samples of the gradient of the output layer's parameters: in `partials`, one
/// after the other, each as the parameters are. One block-task for each part.
#[preemptible(block = (32, 10))]
pub fn output_gradient(hidden: &[f32], errors: &[f32], partials: SliceMut<f32>, part: u32) {
    // Sample by sample, 32 for each: the hidden layer's activations, and a 1 that the bias is multiplied with.
    let hidden_tile = shared_array![f32; OUTPUT_DEPTH * 32];
    let errors_tile = shared_array![f32; OUTPUT_DEPTH * DIGITS];
    let (input, digit) = (thread::thread_idx_x() as usize, thread::thread_idx_y() as usize);
    let samples = errors.len() / DIGITS;
    let mut first = thread::block_idx_x() as usize * part as usize;
    let end = samples.min(first + part as usize);
    let mut sum = 0.0;
    // SAFETY: the thread is below the elements of the tile of errors, samples are below `OUTPUT_DEPTH` in the
    // tiles, and barriers lie between writes and reads. Each thread writes its own element of `partials`.
    unsafe {
        while first < end {
            let mut i = digit;
            while i < OUTPUT_DEPTH {
                let is_activation = first + i < end && input < HIDDEN;
                let constant = if input == HIDDEN { 1.0 } else { 0.0 };
                let value =
                    if is_activation { hidden[(first + i) * HIDDEN + input] } else { constant };
                hidden_tile.add(i * 32 + input).write(value);
                i += DIGITS;
            }
            let t = digit * 32 + input;
            let is_error = first + t / DIGITS < end;
            errors_tile.add(t).write(if is_error { errors[first * DIGITS + t] } else { 0.0 });
            thread::sync_threads();
            let mut k = 0;
            while k < OUTPUT_DEPTH {
                let error = errors_tile.add(k * DIGITS + digit).read();
                sum = GpuFloat::mul_add(error, hidden_tile.add(k * 32 + input).read(), sum);
                k += 1;
            }
            thread::sync_threads();
            first += OUTPUT_DEPTH;
        }
        let to = thread::block_idx_x() as usize * DIGITS * (HIDDEN + 1);
        if input < HIDDEN {
            partials.write(to + digit * HIDDEN + input, sum);
        } else if input == HIDDEN {
            partials.write(to + DIGITS * HIDDEN + digit, sum);
        }
    }
}
