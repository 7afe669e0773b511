//! Approximate functions of `f32`: one or two instructions of the GPU each.
//!
//! The errors are those of the PTX ISA, section *Floating Point Instructions*. The CPU device computes the precise
//! functions of [`GpuFloat`], so results differ between the devices by these errors.
//!
//! ```
//! use preempt_device::math::fast;
//! use preempt_device::prelude::*;
//!
//! /// `x[i]` becomes a sigmoid of itself.
//! #[preemptible(block = 256)]
//! pub fn sigmoid(x: SliceMut<f32>) {
//!     let i = thread::index_1d() as usize;
//!     if i < x.len() {
//!         // SAFETY: each thread has its own element.
//!         unsafe { x.write(i, fast::recip(1.0 + fast::exp(-x.read(i)))) }
//!     }
//! }
//! ```

#[cfg(not(target_arch = "nvptx64"))]
use super::GpuFloat;

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident($($arg:ident),*) = $instruction:ident, $precise:expr;)*) => {
        $($(#[$doc])*
        #[inline(always)]
        pub fn $name($($arg: f32),*) -> f32 {
            #[cfg(target_arch = "nvptx64")]
            return crate::target::$instruction($($arg),*);
            #[cfg(not(target_arch = "nvptx64"))]
            return $precise;
        })*
    };
}
functions! {
    /// 2 to the power of `x`, by `ex2.approx`: within 2 ulp.
    exp2(x) = ex2_approx, GpuFloat::exp2(x);
    /// The logarithm to base 2, by `lg2.approx`: within 2⁻²² relatively, and absolutely for `x` in 0.5 to 2.
    log2(x) = lg2_approx, GpuFloat::log2(x);
    /// The sine of `x` radians, by `sin.approx`: within 2⁻²⁰ absolutely for `x` in -2π to 2π, and worse outside.
    sin(x) = sin_approx, GpuFloat::sin(x);
    /// The cosine of `x` radians, by `cos.approx`: within 2⁻²⁰ absolutely for `x` in -2π to 2π, and worse outside.
    cos(x) = cos_approx, GpuFloat::cos(x);
    /// The hyperbolic tangent, by `tanh.approx`: within 2⁻¹⁰ relatively.
    tanh(x) = tanh_approx, GpuFloat::tanh(x);
    /// The square root, by `sqrt.approx`: within 2⁻²² relatively.
    sqrt(x) = sqrt_approx, GpuFloat::sqrt(x);
    /// `1 / sqrt(x)`, by `rsqrt.approx`: within 2⁻²² relatively.
    rsqrt(x) = rsqrt_approx, 1.0 / GpuFloat::sqrt(x);
    /// `1 / x`, by `rcp.approx`: within 1 ulp.
    recip(x) = rcp_approx, 1.0 / x;
    /// `x / y`, by `div.approx`: within 2 ulp for |`y`| in 2⁻¹²⁶ to 2¹²⁶, and 0 or NaN for larger `y`.
    div(x, y) = div_approx, x / y;
}

/// e to the power of `x`, as [`exp2`]`(x * log2(e))`: within 2 + 1.2 · |`x`| ulp.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    exp2(x * core::f32::consts::LOG2_E)
}

/// The natural logarithm, as [`log2`]`(x) * ln(2)`.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    log2(x) * core::f32::consts::LN_2
}

/// The logarithm to base 10, as [`log2`]`(x) * log10(2)`.
#[inline(always)]
pub fn log10(x: f32) -> f32 {
    log2(x) * core::f32::consts::LOG10_2
}

/// `x` to the power of `y`, as [`exp2`]`(y * log2(x))`; NaN for negative `x`.
#[inline(always)]
pub fn powf(x: f32, y: f32) -> f32 {
    exp2(y * log2(x))
}

/// The tangent of `x` radians, as [`div`]`(sin(x), cos(x))`.
#[inline(always)]
pub fn tan(x: f32) -> f32 {
    div(sin(x), cos(x))
}
