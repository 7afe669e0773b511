//! The batch job: the overnight valuation of a book of options. One long kernel simulates, a short one
//! sums up.

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

/// The payoffs that one thread simulated.
#[derive(Clone, Copy, PartialEq, Debug, Default, KernelArg)]
#[repr(C)]
pub struct Sums {
    /// Their sum.
    pub payoffs: f64,
    /// The sum of their squares.
    pub squares: f64,
}

/// Simulates `paths` random paths of `periods` periods for each option of the book, one option a
/// block-task. `sums` has an element for each thread. Launch it with a grid of `book.len()`.
///
/// It waits for no other block and writes only what it does not read, so a block-task can be stopped anywhere
/// and run again.
// A block-task is long: a block must not claim several between two looks at the signal.
#[preemptible(block = THREADS as u32, amortize = 1, idempotent)]
pub fn simulate_asian_calls(
    book: &[AsianCall],
    sums: PerThread<Sums>,
    paths: u32,
    periods: u32,
    seed: u64,
) {
    let option = thread::block_idx_x();
    let call = &book[option as usize];
    let mut sum = Sums { payoffs: 0.0, squares: 0.0 };
    let mut number = thread::thread_idx_x();
    while number < paths {
        let mut path = Path::start(call, periods);
        for four_periods in 0..periods.div_ceil(4) {
            yield_point!();
            path.advance(normals([number, option, four_periods, 0], seed));
        }
        let payoff = f64::from(path.payoff(call, periods));
        sum.payoffs += payoff;
        sum.squares += payoff * payoff;
        number += THREADS as u32;
    }
    if let Some(own) = sums.own() {
        own.set(sum);
    }
}

/// Values each option into `estimates[i]`, from what the threads of its block-task simulated. Launch
/// it with a grid of `estimates.len()`.
///
/// Every sum is added up in an order that is fixed, so the results are the same to the bit
/// whatever happens to the kernels on the way.
#[preemptible(block = THREADS as u32)]
pub fn estimate_asian_calls(sums: &[Sums], estimates: SliceMut<Estimate>, paths: u32) {
    let shared = shared_array![Sums; THREADS];
    let option = thread::block_idx_x() as usize;
    let thread = thread::thread_idx_x() as usize;
    // SAFETY: there are THREADS threads, and each writes its own element.
    unsafe { shared.add(thread).write(sums[option * THREADS + thread]) };

    let mut half = THREADS / 2;
    while half > 0 {
        thread::sync_threads();
        if thread < half {
            // SAFETY: below THREADS; the upper half was written before the barrier, and no thread
            // writes it now. The lower half is this thread's own.
            unsafe {
                let (lower, upper) = (shared.add(thread).read(), shared.add(thread + half).read());
                shared.add(thread).write(Sums {
                    payoffs: lower.payoffs + upper.payoffs,
                    squares: lower.squares + upper.squares,
                });
            }
        }
        half /= 2;
    }

    if thread == 0 {
        // SAFETY: this thread wrote the first element last.
        let Sums { payoffs, squares } = unsafe { shared.read() };
        // SAFETY: the block-task's own element.
        unsafe { estimates.write(option, estimate(payoffs, squares, paths)) };
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

/// One path of the price under geometric Brownian motion, as far as it has been simulated.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    spot: f32,
    drift: f32,
    spread: f32,
    log_return: f32,
    /// Of the prices at the ends of periods.
    total: f32,
    /// Periods.
    left: u32,
}

impl Path {
    /// A path of `periods` periods, at its start.
    #[inline]
    pub fn start(call: &AsianCall, periods: u32) -> Path {
        let period = call.maturity / periods as f32;
        Path {
            spot: call.spot,
            drift: (call.rate - 0.5 * call.volatility * call.volatility) * period,
            spread: call.volatility * GpuFloat::sqrt(period),
            log_return: 0.0,
            total: 0.0,
            left: periods,
        }
    }

    /// Goes on by four periods, or as many as are left.
    #[inline]
    pub fn advance(&mut self, normals: [f32; 4]) {
        for normal in normals {
            if self.left > 0 {
                self.log_return += self.drift + self.spread * normal;
                self.total += self.spot * GpuFloat::exp(self.log_return);
                self.left -= 1;
            }
        }
    }

    /// The discounted payoff, at the end.
    #[inline]
    pub fn payoff(&self, call: &AsianCall, periods: u32) -> f32 {
        let above = self.total / periods as f32 - call.strike;
        if above > 0.0 { above * GpuFloat::exp(-call.rate * call.maturity) } else { 0.0 }
    }
}

/// Four numbers with a standard normal distribution. For a path, `counter` numbers the path, the
/// option and the group of four periods.
#[inline]
pub fn normals(counter: [u32; 4], seed: u64) -> [f32; 4] {
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
