//! Fourier transforms.

use std::f64::consts::TAU;

use preempt::Error;
use preempt_workload_kernels::fft::{
    BLOCK, FACTORS, POINTS, fft_factors, fft_forward, fft_points, point,
};
use preempt_workload_kernels::input;

use crate::{Definition, Memory, Output, Program, Size, Tolerance, blocks};

pub const DEFINITION: Definition =
    Definition { name: "FFT", source: "SHOC, FFT", flep_amortize: 20, build };

/// The results are sums of 512 points of up to 1 in both parts: about 18, and seldom more than 60. On the way
/// to one lie some 24 roundings to single precision, each by at most 2⁻²⁴ of a number of that size. If all
/// of them were the largest and added up, that would be 9e-5; they are random, and add up to a tenth of it. A
/// point at a wrong place or with a wrong factor changes results by about 1.
const TOLERANCE: Tolerance = Tolerance::Within { absolute: 1e-4, relative: 0.0 };

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    let transforms: usize = match size {
        Size::Reduced => 300,
        Size::Trivial => 16,
        Size::Small => 16 << 10,
        Size::Large => 128 << 10,
    };
    let points = transforms * POINTS;
    let mut input = memory.zeroed(points)?;
    let mut factors = memory.zeroed(FACTORS)?;
    let mut out = memory.zeroed(2 * points)?;
    let setup = vec![
        fft_points(seed, &mut input).grid(blocks(points, input::BLOCK)),
        fft_factors(&mut factors).grid(blocks(FACTORS, BLOCK)),
    ];
    let steps = vec![fft_forward(&input, &factors, &mut out).grid(transforms as u32)];
    let reference = move || {
        let roots: Vec<(f64, f64)> = (0..POINTS)
            .map(|i| (-TAU * i as f64 / POINTS as f64).sin_cos())
            .map(|(sin, cos)| (cos, sin))
            .collect();
        (0..transforms).flat_map(|transform| transformed(seed, transform, &roots)).collect()
    };
    let outputs = vec![Output::floats(memory, "spectra", out, TOLERANCE, reference)?];
    Ok(Program { setup, steps, dominant: 0, outputs })
}

/// One transform as its definition says, in double precision: pairs of real and imaginary part.
fn transformed(seed: u32, transform: usize, roots: &[(f64, f64)]) -> Vec<f32> {
    let points: Vec<(f64, f64)> = (0..POINTS)
        .map(|n| point(seed, (transform * POINTS + n) as u32))
        .map(|point| (f64::from(point.re), f64::from(point.im)))
        .collect();
    let number = |k: usize| {
        let (mut re, mut im) = (0.0, 0.0);
        for (n, x) in points.iter().enumerate() {
            let root = roots[n * k % POINTS];
            re += x.0 * root.0 - x.1 * root.1;
            im += x.0 * root.1 + x.1 * root.0;
        }
        [re as f32, im as f32]
    };
    (0..POINTS).flat_map(number).collect()
}
