//! The functions of the trait against `std`'s.

use super::{GpuFloat, fast};

/// The distance of `found` to `expected` in ulp of `expected`.
macro_rules! ulp_distance {
    ($name:ident $ty:ident $int:ident) => {
        fn $name(found: $ty, expected: f64) -> f64 {
            let rounded = expected as $ty;
            if found.to_bits() == rounded.to_bits() || found.is_nan() && rounded.is_nan() {
                return 0.0;
            }
            let next = $ty::from_bits(rounded.abs().to_bits() + 1);
            let ulp = f64::from(next) - f64::from(rounded.abs());
            (f64::from(found) - expected).abs() / ulp
        }
    };
}
ulp_distance!(ulp_f32 f32 u32);
ulp_distance!(ulp_f64 f64 u64);

/// Numbers of every size and both signs, and those where functions change their ways.
fn samples() -> Vec<f64> {
    let mut numbers = vec![0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 10.0, 1e2, 1e30, f64::INFINITY];
    numbers.extend([0.499_999_97, 0.499_999_999_999_999_94, 8_388_609.0, 4_503_599_627_370_497.0]);
    numbers.extend([1e-40, f64::NAN, std::f64::consts::PI, std::f64::consts::LN_2]);
    let mut state = 1u64;
    let mut unit = || {
        // The generator of Knuth's MMIX.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    for scale in [1.0, 2.0, 10.0, 88.0, 1000.0, 1e7] {
        numbers.extend((0..3000).map(|_| scale * unit()));
    }
    numbers
        .extend((0..20_000).map(|_| f64::from(f32::from_bits((unit() * 2_139_095_040.0) as u32))));
    numbers.iter().flat_map(|&x| [x, -x]).collect()
}

/// Checks functions of one argument, each within a bound in ulp: for `f32` of the exact result, for `f64` of
/// `std`'s, or of `$reference`.
macro_rules! check {
    ($bound:literal: $name:ident = $reference:expr) => {
        let reference: fn(f64) -> f64 = $reference;
        for x in samples() {
            let single = x as f32;
            // Computed for `f64`, of which an ulp is nothing in ulp of `f32`.
            let found = ulp_f32(GpuFloat::$name(single), reference(single.into()));
            assert!(found <= $bound, "{}({single:e}f32) is off by {found} ulp", stringify!($name));
            let found = ulp_f64(GpuFloat::$name(x), reference(x));
            assert!(found <= $bound, "{}({x:e}) is off by {found} ulp", stringify!($name));
        }
    };
    ($bound:literal: $($name:ident)*) => {
        $(check!($bound: $name = f64::$name);)*
    };
}

#[test]
fn functions_without_rounding_are_those_of_std() {
    check!(0.0: floor ceil round round_ties_even trunc fract sqrt);
}

#[test]
fn other_functions_are_within_two_ulp() {
    check!(2.0: cbrt exp exp2 exp_m1 ln ln_1p log2 log10);
    check!(2.0: sin cos tan asin acos atan sinh cosh tanh asinh);
    // `std`'s own are less accurate: `acosh` near 1, and `atanh` near -1.
    check!(2.0: acosh = |x| {
        let above = x - 1.0;
        if (1.0..2.0).contains(&x) { (above + (above * (above + 2.0)).sqrt()).ln_1p() } else { x.acosh() }
    });
    check!(2.0: atanh = |x| x.abs().atanh().copysign(x));
}

#[test]
fn sine_and_cosine_at_once_are_those_apart() {
    for x in samples() {
        let (sin, cos) = GpuFloat::sin_cos(x);
        let apart = (GpuFloat::sin(x), GpuFloat::cos(x));
        assert_eq!(
            (sin.to_bits(), cos.to_bits()),
            (apart.0.to_bits(), apart.1.to_bits()),
            "of {x}"
        );
    }
}

/// Pairs of numbers of every size.
fn pairs() -> Vec<(f64, f64)> {
    let all = samples();
    let rotated = all.iter().cycle().skip(12_347);
    let few: Vec<_> = all.iter().copied().take(40).collect();
    let crossed = few.iter().flat_map(|&x| few.iter().map(move |&y| (x, y)));
    all.iter().copied().zip(rotated.copied()).chain(crossed).collect()
}

/// Checks functions of two arguments as [`check`] does.
macro_rules! check_pairs {
    ($bound:literal: $($name:ident)*) => {
        $(for (x, y) in pairs() {
            let (a, b) = (x as f32, y as f32);
            let found = ulp_f32(GpuFloat::$name(a, b), f64::from(a).$name(b.into()));
            assert!(found <= $bound, "{}({a:e}f32, {b:e}f32) is off by {found} ulp", stringify!($name));
            let found = ulp_f64(GpuFloat::$name(x, y), x.$name(y));
            assert!(found <= $bound, "{}({x:e}, {y:e}) is off by {found} ulp", stringify!($name));
        })*
    };
}

#[test]
fn functions_of_two_numbers_are_within_two_ulp() {
    check_pairs!(2.0: powf hypot atan2);
    check_pairs!(4.0: log);
}

#[test]
fn euclidean_division_and_whole_powers_are_those_of_std() {
    let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    for (x, y) in pairs() {
        let (a, b) = (x as f32, y as f32);
        assert!(same(GpuFloat::rem_euclid(x, y), x.rem_euclid(y)), "{x:e} {y:e}");
        assert!(same(GpuFloat::div_euclid(x, y), x.div_euclid(y)), "{x:e} {y:e}");
        assert!(same(GpuFloat::rem_euclid(a, b).into(), a.rem_euclid(b).into()), "{a:e} {b:e}");
        assert!(same(GpuFloat::div_euclid(a, b).into(), a.div_euclid(b).into()), "{a:e} {b:e}");
        for n in [0, 1, 2, 3, -1, -2, 7, -13, 64, y as i32, i32::MAX, i32::MIN] {
            // Elsewhere `std` may multiply in another order.
            if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
                assert!(same(GpuFloat::powi(x, n), x.powi(n)), "{x:e} to the power of {n}");
                assert!(
                    same(GpuFloat::powi(a, n).into(), a.powi(n).into()),
                    "{a:e} to the power of {n}"
                );
            }
        }
    }
}

#[test]
fn approximate_functions_are_the_precise_ones_on_the_host() {
    for x in samples() {
        let x = x as f32;
        let near = |found: f32, exact: f64, bound: f64| {
            let off = ulp_f32(found, exact);
            assert!(off == 0.0 || off <= bound, "off by {off} ulp for {x:e}");
        };
        near(fast::exp2(x), f64::from(x).exp2(), 2.0);
        near(fast::log2(x), f64::from(x).log2(), 2.0);
        near(fast::ln(x), f64::from(x).ln(), 4.0);
        near(fast::log10(x), f64::from(x).log10(), 4.0);
        near(fast::exp(x), f64::from(x).exp(), 4.0 + 1.5 * f64::from(x.abs()));
        near(fast::sin(x), f64::from(x).sin(), 2.0);
        near(fast::cos(x), f64::from(x).cos(), 2.0);
        near(fast::tan(x), f64::from(x).tan(), 4.0);
        near(fast::tanh(x), f64::from(x).tanh(), 2.0);
        near(fast::sqrt(x), f64::from(x).sqrt(), 2.0);
        near(fast::rsqrt(x), f64::from(x).sqrt().recip(), 2.0);
        near(fast::recip(x), f64::from(x).recip(), 2.0);
        near(fast::div(x, 3.0), f64::from(x) / 3.0, 2.0);
    }
    assert_eq!(fast::powf(2.0, 10.0), 1024.0);
    assert!(fast::powf(-2.0, 2.0).is_nan());
}
