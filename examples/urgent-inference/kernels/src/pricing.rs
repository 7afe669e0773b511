//! The batch kernel: the overnight valuation of a book of options.

use core::f32::consts::SQRT_2;

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
    let mut left = periods;
    for four_periods in 0..periods.div_ceil(4) {
        for normal in &normals([path[0], path[1], four_periods, 0], seed) {
            if left > 0 {
                log_return += drift + spread * normal;
                total += call.spot * GpuFloat::exp(log_return);
                left -= 1;
            }
        }
    }
    let above = total / periods as f32 - call.strike;
    if above > 0.0 { above * GpuFloat::exp(-call.rate * call.maturity) } else { 0.0 }
}

/// Four numbers with a standard normal distribution.
#[inline]
fn normals(counter: [u32; 4], seed: u64) -> [f32; 4] {
    philox(counter, [seed as u32, (seed >> 32) as u32]).map(normal)
}

/// The number that a normal distribution exceeds with a probability that `word` stands for.
#[inline]
pub fn normal(word: u32) -> f32 {
    // Odd multiples of 2⁻²³ between -1 and 1: symmetric, exact, and never one of the ends.
    let odd = (word >> 9) as i32 * 2 + 1 - (1 << 23);
    SQRT_2 * inverse_erf(odd as f32 / (1 << 23) as f32)
}

/// The inverse error function (M. Giles, "Approximating the erfinv function", GPU Computing Gems
/// 2, 2010): two polynomials, the second one for the tails.
#[inline]
fn inverse_erf(x: f32) -> f32 {
    const CENTRE: [f32; 9] = [
        2.810_226_4e-8,
        3.432_739_4e-7,
        -3.523_387_7e-6,
        -4.391_506_5e-6,
        2.185_808_7e-4,
        -1.253_725e-3,
        -4.177_681_6e-3,
        0.246_640_73,
        1.501_409_4,
    ];
    const TAILS: [f32; 9] = [
        -2.002_142_6e-4,
        1.009_505_6e-4,
        1.349_343_2e-3,
        -3.673_428_4e-3,
        5.739_507_7e-3,
        -7.622_461_3e-3,
        9.438_870_5e-3,
        1.001_674,
        2.832_976_8,
    ];
    let distance = -GpuFloat::ln((1.0 - x) * (1.0 + x));
    let share = if distance < 5.0 {
        polynomial(&CENTRE, distance - 2.5)
    } else {
        polynomial(&TAILS, GpuFloat::sqrt(distance) - 3.0)
    };
    share * x
}

#[inline]
fn polynomial(coefficients: &[f32; 9], at: f32) -> f32 {
    coefficients.iter().fold(0.0, |sum, next| sum * at + next)
}
