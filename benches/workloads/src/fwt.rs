//! Convolution by Walsh transforms.

use preempt::{Buffer, Call, Error};
use preempt_workload_kernels::fwt::{
    BLOCK, CHUNK, LOG_CHUNK, RUN, fwt_batch_1, fwt_batch_2, modulate, modulate_saving,
};
use preempt_workload_kernels::input::{self, between, copy_f32};

use crate::{Definition, Memory, Output, Program, Size, Tolerance, blocks, random_f32};

pub const DEFINITION: Definition = Definition {
    name: "FWT",
    source: "CUDA samples, fastWalshTransform",
    flep_amortize: 32,
    build,
};

/// The same, with a checkpoint in the kernel that has a loop.
pub const CHECKPOINTED: Definition = Definition { build: build_saving, ..DEFINITION };

const RANGE: (f32, f32) = (-1.0, 1.0);

/// Elements of the kernel of the convolution: the sample's.
const KERNEL: usize = 128;

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    with(memory, size, seed, false)
}

fn build_saving(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    with(memory, size, seed, true)
}

fn with(memory: Memory<'_>, size: Size, seed: u32, saving: bool) -> Result<Program, Error> {
    // The logarithm of the number of elements, which is even above that of a chunk.
    let logarithm: u32 = match size {
        Size::Reduced => 15,
        Size::Trivial => 13,
        Size::Small => 21,
        // Four times the paper's elements: in 28 launches, 7 GB are read and written.
        Size::Large => 25,
    };
    let length = 1 << logarithm;
    let mut setup = Vec::new();
    let data = random_f32(memory, &mut setup, seed, RANGE, length)?;
    let kernel = random_f32(memory, &mut setup, seed + 1, RANGE, KERNEL)?;
    let (mut result, mut other) = (memory.zeroed(length)?, memory.zeroed(length)?);
    // All is overwritten, so each run starts with copies.
    let copies = blocks(length, input::BLOCK);
    let mut steps =
        vec![copy_f32(&data, &mut result).grid(copies), copy_f32(&kernel, &mut other).grid(copies)];
    steps.extend(transform(logarithm, &mut result));
    steps.extend(transform(logarithm, &mut other));
    let scale = 1.0 / length as f32;
    let multiply = match saving {
        false => modulate(scale, &other, &mut result),
        true => modulate_saving(scale, &other, &mut result),
    };
    steps.push(multiply.grid(blocks(length, BLOCK * RUN)));
    steps.extend(transform(logarithm, &mut result));
    let reference = move || {
        let element = |seed, i| f64::from(between(seed, i, RANGE.0, RANGE.1));
        let data: Vec<f64> = (0..length as u32).map(|i| element(seed, i)).collect();
        let kernel: Vec<f64> = (0..KERNEL as u32).map(|i| element(seed + 1, i)).collect();
        let sum = |i: usize| kernel.iter().enumerate().map(|(k, x)| x * data[i ^ k]).sum::<f64>();
        (0..length).map(|i| sum(i) as f32).collect()
    };
    // By its definition, in double precision. The transforms' elements are up to a hundred times those of the result.
    let near = Tolerance::Within { absolute: 1e-4, relative: 1e-5 };
    let outputs = vec![Output::floats(memory, "convolution", result, near, reference)?];
    Ok(Program { setup, steps, dominant: 2, outputs })
}

/// The launches of a transform of as many elements as the logarithm says, in place.
fn transform(logarithm: u32, data: &mut Buffer<f32>) -> Vec<Call<'static>> {
    let quarter = blocks(data.len() / 4, BLOCK);
    let mut launches = Vec::new();
    for bits in (LOG_CHUNK + 2..=logarithm).rev().step_by(2) {
        launches.push(fwt_batch_2(1 << (bits - 2), &mut *data).grid(quarter));
    }
    launches.push(fwt_batch_1(&mut *data).grid(blocks(data.len(), CHUNK as u32)));
    launches
}
