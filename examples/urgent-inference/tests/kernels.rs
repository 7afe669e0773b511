//! The kernels against references on the host: every digit, and options one path after the other.

use preempt::{CpuLayout, Device, Scheduler};
use urgent_inference::digits;
use urgent_inference::network::Network;
use urgent_inference_kernels::network::{Answer, CLASSES, HIDDEN, MOST_LANES, classify};
use urgent_inference_kernels::philox::philox;
use urgent_inference_kernels::pricing::{
    AsianCall, Estimate, Path, Sums, THREADS, estimate, estimate_asian_calls, normal, normals,
    simulate_asian_calls,
};

const SEED: u64 = 0x5EED_0000_0001;

const CALL: AsianCall =
    AsianCall { spot: 100.0, strike: 105.0, rate: 0.03, volatility: 0.25, maturity: 1.5 };

fn scheduler() -> Scheduler {
    Scheduler::builder().device(Device::cpu_with(CpuLayout::sms(2)).unwrap()).build().unwrap()
}

/// The kernel's estimates for a book.
fn on_device(book: &[AsianCall], paths: u32, periods: u32) -> Vec<Estimate> {
    let scheduler = scheduler();
    let stream = scheduler.stream(0);
    let device_book = scheduler.buffer(book).unwrap();
    let mut sums = scheduler.zeroed::<Sums>(book.len() * THREADS).unwrap();
    let nothing = Estimate { value: f32::NAN, error: f32::NAN };
    let mut estimates = scheduler.buffer(&vec![nothing; book.len()]).unwrap();
    let options = book.len() as u32;
    let call = simulate_asian_calls(&device_book, &mut sums, paths, periods, SEED).grid(options);
    stream.launch(call).unwrap().wait().unwrap();
    let call = estimate_asian_calls(&sums, &mut estimates, paths).grid(options);
    stream.launch(call).unwrap().wait().unwrap();
    stream.download(&estimates).unwrap().wait().unwrap()
}

/// The same sums in the same order, without blocks, threads and barriers.
fn on_host(option: u32, call: &AsianCall, paths: u32, periods: u32) -> Estimate {
    let mut sums = [[0.0; 2]; THREADS];
    for path in 0..paths {
        let mut simulated = Path::start(call, periods);
        for four_periods in 0..periods.div_ceil(4) {
            simulated.advance(normals([path, option, four_periods, 0], SEED));
        }
        let payoff = f64::from(simulated.payoff(call, periods));
        let [sum, square] = &mut sums[path as usize % THREADS];
        *sum += payoff;
        *square += payoff * payoff;
    }
    let mut half = THREADS / 2;
    while half > 0 {
        let (lower, upper) = sums.split_at_mut(half);
        for (lower, upper) in lower.iter_mut().zip(upper) {
            lower[0] += upper[0];
            lower[1] += upper[1];
        }
        half /= 2;
    }
    estimate(sums[0][0], sums[0][1], paths)
}

#[test]
fn the_network_reads_every_digit_as_on_the_host() {
    let scheduler = scheduler();
    let stream = scheduler.stream(0);
    let network = Network::committed().unwrap();
    let parameters = scheduler.buffer(&network.parameters).unwrap();
    let nothing = Answer { request: u32::MAX, class: u32::MAX, logits: [f32::NAN; CLASSES] };
    for (sample, number) in digits::load().unwrap().iter().zip(0..) {
        // Most of them as on the CPU device; some with the threads of a GPU.
        let lanes = if number % 16 == 0 { MOST_LANES } else { 1 };
        let mut answers = scheduler.buffer(&[nothing]).unwrap();
        let call = classify(&parameters, sample.digit, number, lanes, &mut answers);
        stream.launch(call.grid(1).block(HIDDEN as u32 * lanes)).unwrap().wait().unwrap();
        let answer = stream.download(&answers).unwrap().wait().unwrap()[0];
        assert_eq!(answer.request, number);
        assert_eq!(answer.class, network.classify(&sample.digit), "digit {number}");
        for (device, host) in answer.logits.into_iter().zip(network.logits(&sample.digit)) {
            assert!((device - host).abs() < 1e-4, "digit {number}: {device} and {host}");
        }
    }
}

#[test]
fn prices_are_those_of_one_path_after_the_other() {
    // Odd numbers, so that threads have different shares and the last normals are left over.
    let book: Vec<AsianCall> =
        (0..9).map(|step| AsianCall { strike: 80.0 + 5.0 * step as f32, ..CALL }).collect();
    let estimates = on_device(&book, 777, 13);
    for ((call, estimate), option) in book.iter().zip(estimates).zip(0..) {
        assert_eq!(estimate, on_host(option, call, 777, 13), "option {option}");
    }
}

/// An average over one period is the price itself, for which Black and Scholes have a formula.
#[test]
fn one_period_agrees_with_black_and_scholes() {
    let AsianCall { spot, strike, rate, volatility, maturity } = CALL;
    let spread = volatility * maturity.sqrt();
    let d1 = ((spot / strike).ln() + rate * maturity) / spread + 0.5 * spread;
    let discounted = strike * (-rate * maturity).exp();
    let exact = spot * cumulative(d1) - discounted * cumulative(d1 - spread);
    let Estimate { value, error } = on_device(&[CALL], 100_000, 1)[0];
    assert!(error > 0.0 && error < 0.01 * exact, "error {error}");
    assert!((value - exact).abs() < 4.0 * error, "{value} ± {error}, not {exact}");
}

/// The normal distribution function, by the midpoint rule.
fn cumulative(x: f32) -> f32 {
    const STEPS: i32 = 10_000;
    let step = f64::from(x) / f64::from(STEPS);
    let density = |at: f64| (-0.5 * at * at).exp() / std::f64::consts::TAU.sqrt();
    let sum: f64 = (0..STEPS).map(|number| density((f64::from(number) + 0.5) * step)).sum();
    (0.5 + sum * step) as f32
}

#[test]
fn normals_have_the_quantiles_of_the_normal_distribution() {
    let quantile = |probability: f64| normal((probability * 2f64.powi(32)) as u32);
    for (probability, expected) in [
        (0.5, 0.0),
        (0.841_344_75, 1.0),
        (0.975, 1.959_964),
        (0.999, 3.090_232),
        (0.9999, 3.719_016),
    ] {
        assert!((quantile(probability) - expected).abs() < 1e-3, "{probability}");
        assert!((quantile(1.0 - probability) + expected).abs() < 1e-3, "1 - {probability}");
    }
    assert!(normal(0).is_finite() && normal(u32::MAX) == -normal(0));
}

/// Known answers of the generator's authors (Random123, `kat_vectors`).
#[test]
fn philox_gives_the_known_answers() {
    assert_eq!(philox([0; 4], [0; 2]), [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]);
    assert_eq!(
        philox([u32::MAX; 4], [u32::MAX; 2]),
        [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]
    );
}
