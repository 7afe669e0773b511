//! The particle filter, sequentially. Sums are in the kernels' order, because another rounding could make a search end
//! at another particle.

use preempt_workload_kernels::pl::model::{
    DISC_POINTS, EXTENT, Frame, Point, START, cut, disc_point, moved, pixel, weight,
};
use preempt_workload_kernels::pl::{BLOCK, SCAN, SCAN_RUN};
use preempt_workload_kernels::sum_by_halves;

/// x of all particles after the last frame, and then y of all particles.
pub fn positions(seed: u32, particles: usize, frames: u32) -> Vec<f32> {
    let pixels = (1 + frames) * EXTENT * EXTENT;
    let video: Vec<u8> = (0..pixels).map(|i| pixel(seed, i)).collect();
    let disc: Vec<Point> = (0..DISC_POINTS).map(disc_point).collect();
    let mut now = vec![(START as f32, START as f32); particles];
    for number in 1..=frames {
        let frame = Frame { seed, number };
        for (i, (x, y)) in now.iter_mut().enumerate() {
            (*x, *y) = moved(frame, i as u32, *x, *y);
        }
        let weights: Vec<f32> =
            now.iter().map(|&at| weight(&video, frame, &disc, at, particles)).collect();
        let sum = sum(&weights);
        let normalized: Vec<f32> = weights.iter().map(|weight| weight / sum).collect();
        let cumulative = cumulative_sums(&normalized);
        let next = |i: usize| {
            let cut = cut(frame, i as u32, particles as u32);
            let found = cumulative.iter().position(|&sum| sum >= cut);
            now[found.unwrap_or(particles - 1)]
        };
        now = (0..particles).map(next).collect();
    }
    let (x, y): (Vec<f32>, Vec<f32>) = now.into_iter().unzip();
    [x, y].concat()
}

/// The sum of all weights: of each block, and then of every `BLOCK`th block, and then of those.
fn sum(weights: &[f32]) -> f32 {
    let mut strided = [0.0; BLOCK];
    for (i, weights) in weights.chunks(BLOCK).enumerate() {
        let mut of_block = [0.0; BLOCK];
        of_block[..weights.len()].copy_from_slice(weights);
        strided[i % BLOCK] += sum_by_halves(&mut of_block);
    }
    sum_by_halves(&mut strided)
}

/// The inclusive prefix sums of the weights, as one block computes them.
fn cumulative_sums(weights: &[f32]) -> Vec<f32> {
    let mut cumulative = Vec::new();
    let mut before = 0.0;
    for weights in weights.chunks(SCAN) {
        let mut runs = [0.0; SCAN];
        runs[..weights.len()].copy_from_slice(weights);
        for run in runs.chunks_mut(SCAN_RUN) {
            (1..SCAN_RUN).for_each(|i| run[i] += run[i - 1]);
        }
        let ends = runs.chunks(SCAN_RUN).map(|run| run[SCAN_RUN - 1]);
        let mut lanes: Vec<f32> = ends.collect();
        lanes.chunks_mut(32).for_each(scan_warp);
        let mut warps: Vec<f32> = lanes.chunks(32).map(|warp| warp[31]).collect();
        scan_warp(&mut warps);
        let sum = |i: usize| {
            let (run, warp) = (i / SCAN_RUN, i / SCAN_RUN / 32);
            let warps_before = if warp == 0 { 0.0 } else { warps[warp - 1] };
            let lanes_before = if run % 32 == 0 { 0.0 } else { lanes[run - 1] };
            before + warps_before + lanes_before + runs[i]
        };
        cumulative.extend((0..weights.len()).map(sum));
        before += warps[31];
    }
    cumulative
}

/// The inclusive prefix sums of the values, as a warp computes them.
fn scan_warp(values: &mut [f32]) {
    let mut distance = 1;
    while distance < 32 {
        (distance..32).rev().for_each(|i| values[i] += values[i - distance]);
        distance *= 2;
    }
}
