//! The batch kernel: the overnight valuation of a book of options.

use core::f32::consts::TAU;

use preempt_device::prelude::*;

use crate::philox::philox;

/// Threads in a block; they share an option's paths.
pub const THREADS: usize = 128;

/// A call on the average of the prices at the ends of equal periods (an Asian call). There is no
/// closed formula for it, which is why it is simulated.
#[derive(Clone, Copy, PartialEq, Debug, KernelArg)]
#[repr(C)]
pub struct AsianCall {
    /// Today's price of the share.
    pub spot: f32,
    /// What the average must exceed for a payoff.
    pub strike: f32,
    /// Riskless interest, per year.
    pub rate: f32,
    /// Standard deviation of the share's return, per square root of a year.
    pub volatility: f32,
    /// Years until the payoff.
    pub maturity: f32,
}

/// What a simulation says of an option's value.
#[derive(Clone, Copy, PartialEq, Debug, KernelArg)]
#[repr(C)]
pub struct Estimate {
    /// The mean of the discounted payoffs.
    pub value: f32,
    /// The standard error of that mean.
    pub error: f32,
}

/// Values `book[i]` into `estimates[i]`, one option a block-task, over `paths` random paths of
/// `periods` periods each. Launch it with a grid of `book.len()`.
///
/// Every sum is added up in an order that is fixed, so the results are the same to the bit
/// whatever happens to the kernel on the way.
// A block-task is long: a block must not claim several between two looks at the signal.
#[preemptible(block = THREADS as u32, amortize = 1)]
pub fn price_asian_calls(
    book: &[AsianCall],
    estimates: SliceMut<Estimate>,
    paths: u32,
    periods: u32,
    seed: u64,
) {
    let sums = shared_array![f64; THREADS];
    let squares = shared_array![f64; THREADS];
    let option = thread::block_idx_x();
    let thread = thread::thread_idx_x() as usize;

    let (mut sum, mut square) = (0.0, 0.0);
    let mut path = thread as u32;
    while path < paths {
        let payoff = f64::from(payoff(&book[option as usize], [path, option], periods, seed));
        sum += payoff;
        square += payoff * payoff;
        path += THREADS as u32;
    }
    // SAFETY: there are THREADS threads, and each writes its own element.
    unsafe {
        sums.add(thread).write(sum);
        squares.add(thread).write(square);
    }

    let mut half = THREADS / 2;
    while half > 0 {
        thread::sync_threads();
        if thread < half {
            // SAFETY: below THREADS; the upper half was written before the barrier, and nobody
            // writes it now. The lower half is this thread's own.
            unsafe {
                sums.add(thread).write(sums.add(thread).read() + sums.add(thread + half).read());
                squares
                    .add(thread)
                    .write(squares.add(thread).read() + squares.add(thread + half).read());
            }
        }
        half /= 2;
    }

    if thread == 0 {
        // SAFETY: this thread wrote the first elements last.
        let estimate = estimate(unsafe { sums.read() }, unsafe { squares.read() }, paths);
        // SAFETY: the block-task's own element.
        unsafe { estimates.write(option as usize, estimate) };
    }
}

/// From the sums of the payoffs and of their squares.
#[inline]
pub fn estimate(sum: f64, square: f64, paths: u32) -> Estimate {
    let paths = f64::from(paths);
    let mean = sum / paths;
    // Rounding can make the difference negative where all payoffs are equal.
    let variance = square / paths - mean * mean;
    let error = if variance > 0.0 { (variance / paths).sqrt() } else { 0.0 };
    Estimate { value: mean as f32, error: error as f32 }
}

/// The discounted payoff of one path under geometric Brownian motion. `path` numbers the path
/// and the option.
#[inline]
pub fn payoff(call: &AsianCall, path: [u32; 2], periods: u32, seed: u64) -> f32 {
    let period = call.maturity / periods as f32;
    let drift = (call.rate - 0.5 * call.volatility * call.volatility) * period;
    let spread = call.volatility * period.sqrt();
    let mut log_return = 0.0;
    let mut total = 0.0;
    for four_periods in 0..periods.div_ceil(4) {
        let normals = normals([path[0], path[1], four_periods, 0], seed);
        for (number, normal) in (four_periods * 4..).zip(normals) {
            if number < periods {
                log_return += drift + spread * normal;
                total += call.spot * GpuFloat::exp(log_return);
            }
        }
    }
    let above = total / periods as f32 - call.strike;
    if above > 0.0 { above * GpuFloat::exp(-call.rate * call.maturity) } else { 0.0 }
}

/// Four numbers with a standard normal distribution (Box and Muller 1958).
#[inline]
fn normals(counter: [u32; 4], seed: u64) -> [f32; 4] {
    let [a, b, c, d] = philox(counter, [seed as u32, (seed >> 32) as u32]);
    let [first, second] = box_muller(a, b);
    let [third, fourth] = box_muller(c, d);
    [first, second, third, fourth]
}

#[inline]
fn box_muller(radius: u32, angle: u32) -> [f32; 2] {
    // 2⁻²⁴: as many bits as an `f32` holds. The radius' uniform number is never 0.
    const STEP: f32 = 1.0 / 16_777_216.0;
    let uniform = ((radius >> 8) + 1) as f32 * STEP;
    let length = GpuFloat::sqrt(-2.0 * GpuFloat::ln(uniform));
    let angle = (angle >> 8) as f32 * STEP * TAU;
    [length * GpuFloat::cos(angle), length * GpuFloat::sin(angle)]
}
