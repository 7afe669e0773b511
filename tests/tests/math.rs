//! Floating-point functions in kernels: bit by bit the trait's on a GPU, and `std`'s on the CPU device, near them.

use half::{bf16, f16};
use preempt::{CpuLayout, Scheduler, Stream};
use preempt_test_kernels::math as kernels;
use preempt_test_kit::on_gpu;

fn stream() -> (Scheduler, Stream) {
    let scheduler = preempt_test_kit::scheduler(CpuLayout::sms(2));
    let stream = scheduler.stream(0);
    (scheduler, stream)
}

/// Pairs of numbers of many sizes and both signs.
fn pairs() -> Vec<(f32, f32)> {
    let numbers: Vec<f32> =
        (0..60).map(|i| 0.37 * 1.61f32.powi(i - 20)).flat_map(|x| [x, -x]).collect();
    let extra = [0.0, -0.0, 0.5, 1.0, 2.5, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40];
    let numbers: Vec<f32> = numbers.into_iter().chain(extra).collect();
    let others = numbers.iter().cycle().skip(77);
    numbers.iter().copied().zip(others.copied()).collect()
}

/// Ulp between two results.
const BOUND: u64 = 6;

macro_rules! check {
    ($($kernel:ident $count:ident $ty:ident;)*) => {
        $(#[test]
        fn $kernel() {
            let (scheduler, stream) = stream();
            let (x, y): (Vec<$ty>, Vec<$ty>) =
                pairs().into_iter().map(|(x, y)| ($ty::from(x), $ty::from(y))).unzip();
            let (on_x, on_y) = (scheduler.buffer(&x).expect("memory"), scheduler.buffer(&y).expect("memory"));
            let mut out = scheduler.buffer(&vec![$ty::NAN; x.len() * kernels::$count]).expect("memory");
            let call = kernels::$kernel(&on_x, &on_y, &mut out).threads(x.len());
            stream.launch(call).expect("accepted").wait().expect("runs");
            let found = stream.download(&out).and_then(|copy| copy.wait()).expect("copied");
            for (i, found) in found.chunks(kernels::$count).enumerate() {
                let expected = kernels::expected::$kernel(x[i], y[i]);
                for (found, (name, expected)) in found.iter().zip(expected) {
                    let apart = found.to_bits().abs_diff(expected.to_bits());
                    let bound = match name {
                        _ if on_gpu() => 0,
                        // `std`'s own are less accurate near 1 and near -1.
                        "acosh" | "atanh" => 10_000,
                        _ => BOUND,
                    };
                    assert!(
                        u64::from(apart) <= bound || found.is_nan() && expected.is_nan(),
                        "{name}({}, {}) is {found:e} instead of {expected:e}", x[i], y[i]
                    );
                }
            }
        })*
    };
}
check! {
    rounded_f32 ROUNDED_F32 f32;
    rounded_f64 ROUNDED_F64 f64;
    powers_f32 POWERS_F32 f32;
    powers_f64 POWERS_F64 f64;
    angles_f32 ANGLES_F32 f32;
    angles_f64 ANGLES_F64 f64;
}

#[test]
fn whole_powers() {
    let (scheduler, stream) = stream();
    let x: Vec<f32> = (1..100).map(|i| 0.03 * i as f32).collect();
    let n: Vec<i32> = (0..99).map(|i| i % 9 - 4).collect();
    let (on_x, on_n) =
        (scheduler.buffer(&x).expect("memory"), scheduler.buffer(&n).expect("memory"));
    let mut out = scheduler.buffer(&[f32::NAN; 99]).expect("memory");
    let call = kernels::whole_powers(&on_x, &on_n, &mut out).threads(99);
    stream.launch(call).expect("accepted").wait().expect("runs");
    let found = stream.download(&out).and_then(|copy| copy.wait()).expect("copied");
    for i in 0..99 {
        let exact = f64::from(x[i]).powi(n[i]) + f64::from(x[i]).sin() * f64::from(x[i]).cos();
        let off = (f64::from(found[i]) - exact).abs() / exact.abs();
        assert!(off < 1e-6, "element {i} is {} instead of {exact}", found[i]);
    }
}

#[test]
fn approximations() {
    let (scheduler, stream) = stream();
    let x: Vec<f32> = (1..100).map(|i| 0.03 * i as f32).collect();
    let on_x = scheduler.buffer(&x).expect("memory");
    let mut out = scheduler.buffer(&[f32::NAN; 99 * kernels::APPROXIMATIONS]).expect("memory");
    let call = kernels::approximations(&on_x, &mut out).threads(99);
    stream.launch(call).expect("accepted").wait().expect("runs");
    let found = stream.download(&out).and_then(|copy| copy.wait()).expect("copied");
    for (&x, found) in x.iter().zip(found.chunks(kernels::APPROXIMATIONS)) {
        let x = f64::from(x);
        let exact = [
            x.exp2(),
            x.log2(),
            x.sin(),
            x.cos(),
            x.tanh(),
            x.sqrt(),
            x.sqrt().recip(),
            x.recip(),
            x / 3.0,
            x.exp(),
            x.ln(),
            x.log10(),
            x.powf(1.5),
            x.tan(),
        ];
        for (function, (&found, exact)) in found.iter().zip(exact).enumerate() {
            // Relatively for large results, and for the worst of them: `tanh`, and `tan` near its pole.
            let off = (f64::from(found) - exact).abs() / exact.abs().max(1.0);
            assert!(off < 1e-3, "function {function} of {x} is {found} instead of {exact}");
        }
    }
}

#[test]
fn halves() {
    let (scheduler, stream) = stream();
    let numbers: Vec<f32> = (0..500).map(|i| 1.13f32.powi(i - 250)).flat_map(|x| [x, -x]).collect();
    let by = kernels::Halves { factor: f16::from_f32(1.5), offset: bf16::from_f32(0.25) };
    let x: Vec<f16> = numbers.iter().map(|&x| f16::from_f32(x)).collect();
    let y: Vec<bf16> = numbers.iter().map(|&x| bf16::from_f32(x)).collect();
    for by_crate in [false, true] {
        let (mut on_x, mut on_y) =
            (scheduler.buffer(&x).expect("memory"), scheduler.buffer(&y).expect("memory"));
        let call = match by_crate {
            false => kernels::halves(by, &mut on_x, &mut on_y),
            true => kernels::halves_by_crate(by, &mut on_x, &mut on_y),
        };
        stream.launch(call.threads(x.len())).expect("accepted").wait().expect("runs");
        let found_x = stream.download(&on_x).and_then(|copy| copy.wait()).expect("copied");
        let found_y = stream.download(&on_y).and_then(|copy| copy.wait()).expect("copied");
        for i in 0..x.len() {
            assert_eq!(found_x[i], f16::from_f32(x[i].to_f32().mul_add(1.5, 0.25)), "of {}", x[i]);
            assert_eq!(found_y[i], bf16::from_f32(y[i].to_f32().mul_add(1.5, 0.25)), "of {}", y[i]);
        }
    }
}
