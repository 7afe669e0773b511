//! A particle filter.

use preempt::{Buffer, Error};
use preempt_workload_kernels::input::{self, set_f32};
use preempt_workload_kernels::pl::model::{
    DISC_POINTS, EXTENT, Frame, START, make_disc, make_video,
};
use preempt_workload_kernels::pl::{
    BLOCK, SCAN, cumulative_sums, find_index, likelihood_kernel, normalize_weights, sum_kernel,
};

use crate::{Between, Definition, Memory, Output, Program, Size, Tolerance, blocks};

mod reference;

pub const DEFINITION: Definition = Definition {
    name: "PL",
    source: "Rodinia, particlefilter (single precision)",
    flep_amortize: 100,
    build,
};

/// Frames after the first one, in which the object is known.
const FRAMES: u32 = 2;

/// The kernels of a frame, of which the last one takes most of the time.
const STEPS_OF_FRAME: usize = 5;

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    build_between(memory, size.into(), seed)
}

pub fn build_between(memory: Memory<'_>, size: Between, seed: u32) -> Result<Program, Error> {
    let particles = size.number(|size| match size {
        Size::Reduced => 7001,
        Size::Trivial => 2000,
        Size::Small => 12_000,
        Size::Large => 96_000,
    });
    let floats = |length: usize| memory.zeroed::<f32>(length);
    let mut video = memory.zeroed(((1 + FRAMES) * EXTENT * EXTENT) as usize)?;
    let mut disc = memory.zeroed(DISC_POINTS as usize)?;
    let mut start = floats(2 * particles)?;
    let setup = vec![
        make_video(seed, &mut video).grid(blocks(video.len(), input::BLOCK)),
        make_disc(&mut disc).grid(1),
        set_f32(START as f32, &mut start).grid(blocks(start.len(), input::BLOCK)),
    ];
    let tasks = blocks(particles, BLOCK as u32);
    let (mut moved, mut weights) = (floats(2 * particles)?, floats(particles)?);
    let (mut sums, mut sum) = (floats(tasks as usize)?, floats(1)?);
    let (mut normalized, mut cuts) = (floats(particles)?, floats(particles)?);
    let mut cumulative = floats(particles.next_multiple_of(SCAN))?;
    let mut steps = Vec::new();
    let mut follow = |number: u32, from: &Buffer<f32>, to: &mut Buffer<f32>| {
        let frame = Frame { seed, number };
        steps.extend([
            likelihood_kernel(frame, &video, &disc, from, &mut moved, &mut weights, &mut sums)
                .grid(tasks),
            sum_kernel(&sums, &mut sum).grid(1),
            normalize_weights(frame, &weights, &sum, &mut normalized, &mut cuts).grid(tasks),
            cumulative_sums(&normalized, &mut cumulative).grid(1),
            find_index(&cumulative, &cuts, &moved, to).grid(tasks),
        ]);
    };
    // Back and forth between two buffers, but the first frame reads the start, which stays as it is.
    let (mut now, mut next) = (floats(2 * particles)?, floats(2 * particles)?);
    follow(1, &start, &mut now);
    for number in 2..=FRAMES {
        follow(number, &now, &mut next);
        std::mem::swap(&mut now, &mut next);
    }
    // In the kernels' order, with the same functions.
    let reference = move || reference::positions(seed, particles, FRAMES);
    let outputs = vec![Output::floats(memory, "positions", now, Tolerance::Exact, reference)?];
    Ok(Program { setup, steps, dominant: STEPS_OF_FRAME - 1, outputs })
}
