//! Floating-point functions by method, as `std` has them on the host.
//!
//! A kernel writes `x.log2()`. On the GPU the method is [`GpuFloat`]'s, from the prelude. On the host it is `std`'s
//! own, which takes precedence, unless the crate is `no_std`.
//!
//! # Accuracy
//!
//! | functions | on the GPU, and by the trait's path on the host | difference to `std`'s method on the host |
//! | --- | --- | --- |
//! | `sqrt`, `mul_add` | the exact result, rounded | none |
//! | `floor`, `ceil`, `round`, `round_ties_even`, `trunc`, `fract` | exact | none |
//! | `rem_euclid`, `div_euclid` | as `std` computes them | none |
//! | `powi` | as `std` computes it on x86-64 and AArch64 | none there |
//! | `log` | a quotient of two logarithms: within 4 ulp of the exact result | at most 6 ulp |
//! | all others | those of the crate `libm`: within 3 ulp of the exact result | at most 4 ulp |
//!
//! *Ulp* is a unit in the last place of the result. The crate's tests hold these bounds on samples of the whole range.
//! `std`'s `acosh` near 1 and `atanh` near -1 are less accurate than these, and the difference is larger there.
//!
//! The trait by its path, as in `GpuFloat::log2(x)`, is one function on every target. With it the CPU device computes
//! the bits that the GPU does, and that is how a test compares them.
//!
//! The operator `%` is not among these: for the GPU, LLVM computes `x - y * trunc(x / y)`, which is wrong where the
//! quotient is large. [`rem_euclid`](GpuFloat::rem_euclid) is exact on every target.
//!
//! [`fast`] has the GPU's approximate instructions.

pub mod fast;
#[cfg(feature = "half")]
mod half;

#[cfg(feature = "half")]
pub use half::HalfFloat;

/// Functions of `f32` and `f64` that `core` lacks. `cuda_std` has a trait of the same name.
///
/// ```
/// use preempt_device::prelude::*;
///
/// /// `out[i]` is the sound level of the pressure `x[i]` Pa, in dB.
/// #[preemptible(block = 256)]
/// pub fn sound_level(x: &[f32], out: SliceMut<f32>) {
///     let i = thread::index_1d() as usize;
///     if i < out.len() {
///         // SAFETY: each thread writes its own element.
///         unsafe { out.write(i, 20.0 * (x[i] / 20e-6).log10()) }
///     }
/// }
///
/// // By its path, the function of the GPU also on the host.
/// assert_eq!(GpuFloat::log10(100.0f32), 2.0);
/// ```
pub trait GpuFloat: Copy {
    /// The largest integer at most `self`.
    fn floor(self) -> Self;
    /// The smallest integer at least `self`.
    fn ceil(self) -> Self;
    /// The nearest integer; halves are rounded away from 0.
    fn round(self) -> Self;
    /// The nearest integer; halves are rounded to the even one.
    fn round_ties_even(self) -> Self;
    /// The integer part.
    fn trunc(self) -> Self;
    /// The fractional part, with the sign of `self`.
    fn fract(self) -> Self;
    /// `self * a + b`, rounded once. Rust does not contract `x * a + b` by itself.
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// The quotient of Euclidean division: [`rem_euclid`](GpuFloat::rem_euclid) is what remains.
    fn div_euclid(self, rhs: Self) -> Self;
    /// The least remainder that is not negative, of `self` divided by `rhs`.
    fn rem_euclid(self, rhs: Self) -> Self;
    /// `self` to the power of the integer `n`.
    fn powi(self, n: i32) -> Self;
    /// `self` to the power of `n`.
    fn powf(self, n: Self) -> Self;
    /// The square root.
    fn sqrt(self) -> Self;
    /// The cube root.
    fn cbrt(self) -> Self;
    /// The square root of `self * self + other * other`, without overflow in between.
    fn hypot(self, other: Self) -> Self;
    /// e to the power of `self`.
    fn exp(self) -> Self;
    /// 2 to the power of `self`.
    fn exp2(self) -> Self;
    /// e to the power of `self`, minus 1, accurate also near 0.
    fn exp_m1(self) -> Self;
    /// The natural logarithm.
    fn ln(self) -> Self;
    /// The natural logarithm of `1 + self`, accurate also near 0.
    fn ln_1p(self) -> Self;
    /// The logarithm to `base`.
    fn log(self, base: Self) -> Self;
    /// The logarithm to base 2.
    fn log2(self) -> Self;
    /// The logarithm to base 10.
    fn log10(self) -> Self;
    /// The sine of `self` radians.
    fn sin(self) -> Self;
    /// The cosine of `self` radians.
    fn cos(self) -> Self;
    /// The tangent of `self` radians.
    fn tan(self) -> Self;
    /// Sine and cosine of `self` radians.
    fn sin_cos(self) -> (Self, Self);
    /// The arcsine in radians, -π/2 to π/2.
    fn asin(self) -> Self;
    /// The arccosine in radians, 0 to π.
    fn acos(self) -> Self;
    /// The arctangent in radians, -π/2 to π/2.
    fn atan(self) -> Self;
    /// The angle of the point (`other`, `self`) in radians, -π to π.
    fn atan2(self, other: Self) -> Self;
    /// The hyperbolic sine.
    fn sinh(self) -> Self;
    /// The hyperbolic cosine.
    fn cosh(self) -> Self;
    /// The hyperbolic tangent.
    fn tanh(self) -> Self;
    /// The inverse hyperbolic sine.
    fn asinh(self) -> Self;
    /// The inverse hyperbolic cosine.
    fn acosh(self) -> Self;
    /// The inverse hyperbolic tangent.
    fn atanh(self) -> Self;
}

macro_rules! gpu_float {
    (
        $ty:ty, $fmod:ident $acosh:ident $sincos:ident,
        instructions { $($own:ident($($arg:ident),*) = $target:ident;)* }
        libm { $($function:ident($($with:ident),*) = $libm:ident;)* }
    ) => {
        impl GpuFloat for $ty {
            $(#[inline(always)]
            fn $own(self, $($arg: Self),*) -> Self {
                crate::target::$target(self, $($arg),*)
            })*

            $(#[inline]
            fn $function(self, $($with: Self),*) -> Self {
                libm::$libm(self, $($with),*)
            })*

            #[inline]
            fn sin_cos(self) -> (Self, Self) {
                libm::$sincos(self)
            }

            #[inline(always)]
            fn round(self) -> Self {
                // The largest number below 0.5: with 0.5 itself, the sum would be rounded up to 1 for the largest
                // number below 0.5.
                const BELOW_HALF: $ty = 0.5 - 0.25 * <$ty>::EPSILON;
                GpuFloat::trunc(self + BELOW_HALF.copysign(self))
            }

            #[inline(always)]
            fn fract(self) -> Self {
                self - GpuFloat::trunc(self)
            }

            #[inline]
            fn div_euclid(self, rhs: Self) -> Self {
                let quotient = GpuFloat::trunc(self / rhs);
                match libm::$fmod(self, rhs) < 0.0 {
                    true if rhs > 0.0 => quotient - 1.0,
                    true => quotient + 1.0,
                    false => quotient,
                }
            }

            #[inline]
            fn rem_euclid(self, rhs: Self) -> Self {
                let rest = libm::$fmod(self, rhs);
                if rest < 0.0 { rest + rhs.abs() } else { rest }
            }

            #[inline]
            fn powi(self, n: i32) -> Self {
                // The order of `compiler-builtins`, so that the result is that of `std`.
                let (mut power, mut rest) = (self, n.unsigned_abs());
                let mut product = 1.0;
                loop {
                    if rest % 2 == 1 {
                        product *= power;
                    }
                    rest /= 2;
                    if rest == 0 {
                        break;
                    }
                    power *= power;
                }
                if n < 0 { 1.0 / product } else { product }
            }

            #[inline]
            fn log(self, base: Self) -> Self {
                GpuFloat::ln(self) / GpuFloat::ln(base)
            }

            #[inline]
            fn acosh(self) -> Self {
                // `libm`'s has a result for some numbers below 1.
                if self < 1.0 { <$ty>::NAN } else { libm::$acosh(self) }
            }
        }
    };
}
gpu_float! {
    f32, fmodf acoshf sincosf,
    instructions {
        floor() = floorf;
        ceil() = ceilf;
        trunc() = truncf;
        round_ties_even() = rintf;
        mul_add(a, b) = fmaf;
        sqrt() = sqrtf;
    }
    libm {
        powf(n) = powf;
        cbrt() = cbrtf;
        hypot(other) = hypotf;
        exp() = expf;
        exp2() = exp2f;
        exp_m1() = expm1f;
        ln() = logf;
        ln_1p() = log1pf;
        log2() = log2f;
        log10() = log10f;
        sin() = sinf;
        cos() = cosf;
        tan() = tanf;
        asin() = asinf;
        acos() = acosf;
        atan() = atanf;
        atan2(other) = atan2f;
        sinh() = sinhf;
        cosh() = coshf;
        tanh() = tanhf;
        asinh() = asinhf;
        atanh() = atanhf;
    }
}
gpu_float! {
    f64, fmod acosh sincos,
    instructions {
        floor() = floor;
        ceil() = ceil;
        trunc() = trunc;
        round_ties_even() = rint;
        mul_add(a, b) = fma;
        sqrt() = sqrt;
    }
    libm {
        powf(n) = pow;
        cbrt() = cbrt;
        hypot(other) = hypot;
        exp() = exp;
        exp2() = exp2;
        exp_m1() = expm1;
        ln() = log;
        ln_1p() = log1p;
        log2() = log2;
        log10() = log10;
        sin() = sin;
        cos() = cos;
        tan() = tan;
        asin() = asin;
        acos() = acos;
        atan() = atan;
        atan2(other) = atan2;
        sinh() = sinh;
        cosh() = cosh;
        tanh() = tanh;
        asinh() = asinh;
        atanh() = atanh;
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
