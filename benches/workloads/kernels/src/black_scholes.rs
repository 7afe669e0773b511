//! Prices of European options by the Black-Scholes formula (CUDA samples, `BlackScholes`).

use preempt_device::prelude::*;

/// Threads of a block.
pub const BLOCK: u32 = 128;

/// Options that each thread prices, one after the other.
pub const RUN: u32 = 64;

/// `calls[i]` and `puts[i]` are the prices of the options to buy and to sell a stock of price `prices[i]` for
/// `strikes[i]` in `years[i]`, at the riskless `rate` and the `volatility`, both for one year. Threads go through
/// the options in steps of the grid's threads; any grid will do.
#[preemptible(block = BLOCK)]
pub fn black_scholes(
    rate: f32,
    volatility: f32,
    prices: &[f32],
    strikes: &[f32],
    years: &[f32],
    calls: SliceMut<f32>,
    puts: SliceMut<f32>,
) {
    // The normal distribution up to `d`, by the polynomial of Abramowitz and Stegun, 26.2.17, as in the original.
    fn cumulative(d: f32) -> f32 {
        let k = 1.0 / GpuFloat::mul_add(0.231_641_9, d.abs(), 1.0);
        let mut sum = GpuFloat::mul_add(k, 1.330_274_5, -1.821_255_9);
        sum = GpuFloat::mul_add(k, sum, 1.781_477_9);
        sum = GpuFloat::mul_add(k, sum, -0.356_563_78);
        sum = k * GpuFloat::mul_add(k, sum, 0.319_381_54);
        let beyond = 0.398_942_3 * GpuFloat::exp(-0.5 * d * d) * sum;
        if d > 0.0 { 1.0 - beyond } else { beyond }
    }
    let length = prices.len();
    // Once, so that nothing below has to be checked.
    assert!(length <= strikes.len() && length <= years.len());
    assert!(length <= calls.len() && length <= puts.len());
    let step = (thread::grid_dim_x() * BLOCK) as usize;
    let mut i = thread::index_1d() as usize;
    while i < length {
        yield_point!();
        // SAFETY: `i` is below the length, which all arrays have.
        let (price, strike, time) = unsafe {
            (*prices.get_unchecked(i), *strikes.get_unchecked(i), *years.get_unchecked(i))
        };
        let spread = volatility * GpuFloat::sqrt(time);
        let drift = GpuFloat::mul_add(0.5 * volatility, volatility, rate);
        let upper = GpuFloat::mul_add(drift, time, GpuFloat::ln(price / strike)) / spread;
        let (bought, paid) = (cumulative(upper), cumulative(upper - spread));
        let discounted = strike * GpuFloat::exp(-rate * time);
        // SAFETY: each thread writes its own elements.
        unsafe {
            calls.write(i, price * bought - discounted * paid);
            puts.write(i, discounted * (1.0 - paid) - price * (1.0 - bought));
        }
        i += step;
    }
}
