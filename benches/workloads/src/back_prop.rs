//! Training of a network by back-propagation.

use preempt::Error;
use preempt_workload_kernels::back_prop::{
    HIDDEN, INPUTS, MOMENTUM, RATE, RUN, bpnn_adjust_weights, bpnn_errors, bpnn_inputs,
    bpnn_layerforward, bpnn_sum,
};
use preempt_workload_kernels::input::{BLOCK, between, copy_f32, set_f32};

use crate::{Definition, Memory, Output, Program, Size, Tolerance, blocks, random_f32};

pub const DEFINITION: Definition =
    Definition { name: "BP", source: "Rodinia, backprop", flep_amortize: 64, build };

/// Weights at the start, of hidden units and of the output. Those of hidden units leave sums of a thousand inputs where
/// a unit's derivative is large.
const WEIGHTS: (f32, f32) = (-0.05, 0.05);
const OF_OUTPUT: (f32, f32) = (-1.0, 1.0);

/// What the output should be: Rodinia's.
const TARGET: f32 = 0.1;

/// Rounds of a run, so that the last change counts in the second one.
const ROUNDS: u32 = 2;

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    let units: usize = match size {
        Size::Reduced => 1600,
        Size::Trivial => 2048,
        Size::Small => 640 << 10,
        // 64 times the paper's: 7 GB are read and written.
        Size::Large => 8 << 20,
    };
    let length = units * HIDDEN;
    let mut setup = Vec::new();
    let mut inputs = memory.zeroed(units)?;
    setup.push(bpnn_inputs(seed, &mut inputs).grid(blocks(units, BLOCK)));
    let start = random_f32(memory, &mut setup, seed + 1, WEIGHTS, length)?;
    let mut of_output = random_f32(memory, &mut setup, seed + 2, OF_OUTPUT, HIDDEN)?;
    let (mut weights, mut changes) = (memory.zeroed(length)?, memory.zeroed(length)?);
    let (tasks, runs) = (blocks(units, INPUTS as u32), blocks(units, (INPUTS * RUN) as u32));
    let mut partial = memory.zeroed(tasks as usize * HIDDEN)?;
    let mut sums = memory.zeroed(runs as usize * HIDDEN)?;
    let mut errors = memory.zeroed(HIDDEN)?;
    // Weights are changed in place, so each run starts with a copy.
    let mut steps = vec![
        copy_f32(&start, &mut weights).grid(blocks(length, BLOCK)),
        set_f32(0.0, &mut changes).grid(blocks(length, BLOCK)),
    ];
    for _ in 0..ROUNDS {
        let mut next = memory.zeroed(HIDDEN)?;
        steps.extend([
            bpnn_layerforward(&inputs, &weights, &mut partial).grid(tasks),
            bpnn_sum(&partial, &mut sums).grid(runs),
            bpnn_errors(TARGET, &sums, &of_output, &mut errors, &mut next).grid(1),
            bpnn_adjust_weights(&errors, &inputs, &mut weights, &mut changes).grid(tasks),
        ]);
        of_output = next;
    }
    let hidden = move || reference(seed, units).0;
    let output = move || reference(seed, units).1;
    // In double precision: sums of 1600 terms below 0.05.
    let near = Tolerance::Within { absolute: 1e-6, relative: 1e-5 };
    let outputs = vec![
        Output::floats(memory, "weights", weights, near, hidden)?,
        Output::floats(memory, "weights of the output", of_output, near, output)?,
    ];
    Ok(Program { setup, steps, dominant: 5, outputs })
}

/// The weights of hidden units and of the output after all rounds.
fn reference(seed: u32, units: usize) -> (Vec<f32>, Vec<f32>) {
    let random = |seed, (low, high), length: usize| -> Vec<f64> {
        (0..length as u32).map(|i| f64::from(between(seed, i, low, high))).collect()
    };
    let mut inputs = random(seed, (0.0, 1.0), units);
    inputs[0] = 1.0;
    let mut weights = random(seed + 1, WEIGHTS, units * HIDDEN);
    let mut of_output = random(seed + 2, OF_OUTPUT, HIDDEN);
    let mut changes = vec![0.0; weights.len()];
    let squash = |x: f64| 1.0 / (1.0 + (-x).exp());
    let (rate, momentum) = (f64::from(RATE), f64::from(MOMENTUM));
    for _ in 0..ROUNDS {
        let sum = |unit: usize| {
            inputs.iter().enumerate().map(|(i, x)| x * weights[i * HIDDEN + unit]).sum::<f64>()
        };
        let hidden: Vec<f64> = (0..HIDDEN).map(|unit| squash(sum(unit))).collect();
        let output = squash(hidden.iter().zip(&of_output).map(|(x, weight)| x * weight).sum());
        let error = output * (1.0 - output) * (f64::from(TARGET) - output);
        for (i, (weight, change)) in weights.iter_mut().zip(&mut changes).enumerate() {
            let (input, unit) = (inputs[i / HIDDEN], i % HIDDEN);
            let of_unit = hidden[unit] * (1.0 - hidden[unit]) * error * of_output[unit];
            *change = rate * of_unit * input + momentum * *change;
            *weight += *change;
        }
        for (weight, x) in of_output.iter_mut().zip(&hidden) {
            *weight += rate * error * x;
        }
    }
    let single = |x: Vec<f64>| x.into_iter().map(|x| x as f32).collect();
    (single(weights), single(of_output))
}
