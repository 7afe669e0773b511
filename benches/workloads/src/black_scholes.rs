//! Prices of options.

use preempt::Error;
use preempt_workload_kernels::black_scholes::{BLOCK, RUN, black_scholes};
use preempt_workload_kernels::input::between;

use crate::{Between, Definition, Memory, Output, Program, Size, Tolerance, blocks, random_f32};

pub const DEFINITION: Definition =
    Definition { name: "BS", source: "CUDA samples, BlackScholes", flep_amortize: 1, build };

/// The sample's ranges: prices of stocks, prices of options' exercise, and years.
const PRICES: (f32, f32) = (5.0, 30.0);
const STRIKES: (f32, f32) = (1.0, 100.0);
const YEARS: (f32, f32) = (0.25, 10.0);

const RATE: f32 = 0.02;
const VOLATILITY: f32 = 0.3;

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    build_between(memory, size.into(), seed)
}

pub fn build_between(memory: Memory<'_>, size: Between, seed: u32) -> Result<Program, Error> {
    let options = size.number(|size| match size {
        Size::Reduced => 150_001,
        Size::Trivial => 64 << 10,
        Size::Small => 6 << 20,
        // 16 times the paper's: 1.3 GB are read and written.
        Size::Large => 64 << 20,
    });
    let mut setup = Vec::new();
    let prices = random_f32(memory, &mut setup, seed, PRICES, options)?;
    let strikes = random_f32(memory, &mut setup, seed + 1, STRIKES, options)?;
    let years = random_f32(memory, &mut setup, seed + 2, YEARS, options)?;
    let (mut calls, mut puts) = (memory.zeroed(options)?, memory.zeroed(options)?);
    let grid = blocks(options, BLOCK * RUN);
    let steps = vec![
        black_scholes(RATE, VOLATILITY, &prices, &strikes, &years, &mut calls, &mut puts)
            .grid(grid),
    ];
    let of_all = move |price: fn([f64; 3]) -> f64| {
        let option = |i: u32| {
            let ranges = [PRICES, STRIKES, YEARS].into_iter().zip(seed..);
            let mut values =
                ranges.map(|((low, high), seed)| f64::from(between(seed, i, low, high)));
            price(std::array::from_fn(|_| values.next().unwrap_or_default())) as f32
        };
        (0..options as u32).map(option).collect()
    };
    // In double precision. Prices are differences of numbers below 100 in single precision, of which the kernel
    // rounds about ten.
    let near = Tolerance::Within { absolute: 1e-4, relative: 1e-5 };
    let outputs = vec![
        Output::floats(memory, "calls", calls, near, move || of_all(call))?,
        Output::floats(memory, "puts", puts, near, move || of_all(put))?,
    ];
    Ok(Program { setup, steps, dominant: 0, outputs })
}

/// The price of an option to buy, of a stock's price, the option's, and its years.
fn call([price, strike, years]: [f64; 3]) -> f64 {
    let (rate, volatility) = (f64::from(RATE), f64::from(VOLATILITY));
    let spread = volatility * years.sqrt();
    let d = ((price / strike).ln() + (rate + volatility * volatility / 2.0) * years) / spread;
    price * normal(d) - strike * (-rate * years).exp() * normal(d - spread)
}

/// The price of an option to sell, by the parity of both.
fn put([price, strike, years]: [f64; 3]) -> f64 {
    call([price, strike, years]) - price + strike * (-f64::from(RATE) * years).exp()
}

/// The normal distribution up to `d`: the density's series around 0, or its continued fraction far from there.
fn normal(d: f64) -> f64 {
    let density = (-d * d / 2.0).exp() / std::f64::consts::TAU.sqrt();
    if d.abs() > 5.0 {
        let beyond = density / (1..60).rev().fold(d.abs(), |rest, k| d.abs() + f64::from(k) / rest);
        return if d > 0.0 { 1.0 - beyond } else { beyond };
    }
    let (mut sum, mut term, mut odd) = (d, d, 1.0);
    while term.abs() > 1e-12 {
        odd += 2.0;
        term *= d * d / odd;
        sum += term;
    }
    0.5 + density * sum
}
