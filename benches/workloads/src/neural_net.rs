//! A network that learns to read digits.

use preempt::{Buffer, Call, Error};
use preempt_workload_kernels::input::{self, fill_u32};
use preempt_workload_kernels::neural_net::gradient::{INPUTS, hidden_gradient, output_gradient};
use preempt_workload_kernels::neural_net::model::{DIGITS, HIDDEN};
use preempt_workload_kernels::neural_net::{
    BLOCK, SAMPLES, feed_hidden, feed_output, hidden_error, make_images, output_error, update,
};

use crate::{Definition, Memory, Output, Program, Size, Tolerance, blocks, random_f32};

mod reference;

pub const DEFINITION: Definition =
    Definition { name: "NeuralNet", source: "SHOC, NeuralNet", flep_amortize: 2, build };

/// Mini-batches of a run.
const BATCHES: u32 = 2;

/// The distance that a mini-batch moves the parameters along the mean of its samples' gradients.
const LEARNING_RATE: f32 = 3.0;

/// Bounds of the initial parameters, which leave the neurons where their derivatives are large.
const PARAMETERS: (f32, f32) = (-0.1, 0.1);

/// Extents of a program.
#[derive(Clone, Copy)]
struct Extents {
    /// Samples of a mini-batch.
    samples: usize,
    /// Samples that one block-task adds up for a gradient.
    part: u32,
    /// Pixels of an image.
    inputs: u32,
}

/// The parameters of both layers.
struct Network {
    hidden: Buffer<f32>,
    output: Buffer<f32>,
}

/// The buffers that the kernels of a mini-batch pass to one another.
struct Scratch {
    hidden: Buffer<f32>,
    output: Buffer<f32>,
    hidden_errors: Buffer<f32>,
    output_errors: Buffer<f32>,
    hidden_partials: Buffer<f32>,
    output_partials: Buffer<f32>,
}

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    let (samples, part, inputs) = match size {
        // The upper four rows of each image, because references take long.
        Size::Reduced => (3300, 256, 112),
        Size::Trivial => (512, 128, 784),
        Size::Small => (20_000, 256, 784),
        Size::Large => (400_000, 1024, 784),
    };
    let extents = Extents { samples, part, inputs };
    let floats = |length: usize| memory.zeroed::<f32>(length);
    let hidden_length = HIDDEN * (inputs as usize + 1);
    let output_length = DIGITS * (HIDDEN + 1);
    let mut setup = Vec::new();
    let mut network = Network {
        hidden: random_f32(memory, &mut setup, seed, PARAMETERS, hidden_length)?,
        output: random_f32(memory, &mut setup, seed + 1, PARAMETERS, output_length)?,
    };
    let parts = samples.div_ceil(part as usize);
    let mut scratch = Scratch {
        hidden: floats(samples * HIDDEN)?,
        output: floats(samples * DIGITS)?,
        hidden_errors: floats(samples * HIDDEN)?,
        output_errors: floats(samples * DIGITS)?,
        hidden_partials: floats(parts * hidden_length)?,
        output_partials: floats(parts * output_length)?,
    };
    let mut steps = Vec::new();
    for batch in 0..BATCHES {
        let (label_seed, image_seed) = batch_seeds(seed, batch);
        let mut labels = memory.zeroed(samples)?;
        let mut images = floats(samples * inputs as usize)?;
        setup.extend([
            fill_u32(label_seed, DIGITS as u32, &mut labels).grid(blocks(samples, input::BLOCK)),
            make_images(image_seed, inputs, &labels, &mut images).grid(blocks(images.len(), BLOCK)),
        ]);
        // Parameters are not changed in place, so that a run can be repeated.
        let mut next = Network { hidden: floats(hidden_length)?, output: floats(output_length)? };
        steps.extend(learn(extents, &images, &labels, &network, &mut scratch, &mut next));
        network = next;
    }
    // In the kernels' order, with the same functions.
    let (hidden, output) = (network.hidden, network.output);
    let hidden_layer = move || reference::trained(seed, extents).0;
    let output_layer = move || reference::trained(seed, extents).1;
    let outputs = vec![
        Output::floats(memory, "hidden layer", hidden, Tolerance::Exact, hidden_layer)?,
        Output::floats(memory, "output layer", output, Tolerance::Exact, output_layer)?,
    ];
    Ok(Program { setup, steps, dominant: 0, outputs })
}

/// The seeds of a mini-batch's labels and images.
fn batch_seeds(seed: u32, batch: u32) -> (u32, u32) {
    (seed + 2 + 2 * batch, seed + 3 + 2 * batch)
}

/// The launches of one mini-batch, which compute `next` from `network`.
fn learn(
    Extents { samples, part, inputs }: Extents,
    images: &Buffer<f32>,
    labels: &Buffer<u32>,
    network: &Network,
    scratch: &mut Scratch,
    next: &mut Network,
) -> [Call<'static>; 8] {
    let Scratch { hidden, output, hidden_errors, output_errors, hidden_partials, output_partials } =
        scratch;
    let rate = LEARNING_RATE / samples as f32;
    let (of_hidden, of_output) = (blocks(hidden.len(), BLOCK), blocks(output.len(), BLOCK));
    let parts = blocks(samples, part);
    [
        feed_hidden(&network.hidden, images, &mut *hidden, inputs)
            .grid(blocks(samples, SAMPLES as u32)),
        feed_output(&network.output, &*hidden, &mut *output).grid(of_output),
        output_error(&*output, labels, &mut *output_errors).grid(of_output),
        hidden_error(&network.output, &*output_errors, &*hidden, &mut *hidden_errors)
            .grid(of_hidden),
        hidden_gradient(images, &*hidden_errors, &mut *hidden_partials, inputs, part)
            .grid((inputs / INPUTS as u32, parts)),
        output_gradient(&*hidden, &*output_errors, &mut *output_partials, part).grid(parts),
        update(rate, &network.hidden, &*hidden_partials, &mut next.hidden)
            .grid(blocks(network.hidden.len(), BLOCK)),
        update(rate, &network.output, &*output_partials, &mut next.output)
            .grid(blocks(network.output.len(), BLOCK)),
    ]
}
