//! Each floating-point function, as a method in a kernel.

use half::{bf16, f16};
use preempt_device::math::fast;
use preempt_device::prelude::*;

macro_rules! kernels {
    ($($(#[$doc:meta])* $kernel:ident, $count:ident $ty:ty, #[$inline:meta]: [$($one:ident)*] [$($two:ident)*];)*) => {
        /// The functions of each kernel, so that its two entries share those that are long.
        mod functions {
            $(pub mod $kernel {
                // On the host the methods are `std`'s.
                #[cfg(target_arch = "nvptx64")]
                use preempt_device::GpuFloat;
                $(#[$inline]
                pub fn $one(x: $ty) -> $ty {
                    x.$one()
                })*
                $(#[$inline]
                pub fn $two(x: $ty, y: $ty) -> $ty {
                    x.$two(y)
                })*
            })*
        }

        $(
            /// Results for each element.
            pub const $count: usize = [$(stringify!($one),)* $(stringify!($two),)*].len();

            $(#[$doc])*
            #[preemptible(block = 128)]
            pub fn $kernel(x: &[$ty], y: &[$ty], out: SliceMut<$ty>) {
                let i = thread::index_1d() as usize;
                if i < x.len() {
                    let (x, y) = (x[i], y[i]);
                    // Not used by each of these kernels.
                    let _ = y;
                    let results = [$(functions::$kernel::$one(x),)* $(functions::$kernel::$two(x, y),)*];
                    let mut j = 0;
                    while j < $count {
                        // SAFETY: each thread writes its own elements.
                        unsafe { out.write(i * $count + j, results[j]) };
                        j += 1;
                    }
                }
            }
        )*

        /// What the kernels leave for an element, by the trait's functions.
        #[cfg(not(target_arch = "nvptx64"))]
        pub mod expected {
            use preempt_device::GpuFloat;
            $(
                /// Names of functions, and their results.
                pub fn $kernel(x: $ty, y: $ty) -> [(&'static str, $ty); super::$count] {
                    let _ = y;
                    [
                        $((stringify!($one), GpuFloat::$one(x)),)*
                        $((stringify!($two), GpuFloat::$two(x, y)),)*
                    ]
                }
            )*
        }
    };
}
kernels! {
    /// `out[i * COUNT..]` are the rounding functions of `x[i]`, and divisions by `y[i]`.
    rounded_f32, ROUNDED_F32 f32, #[inline(always)]:
        [floor ceil round round_ties_even trunc fract sqrt] [rem_euclid div_euclid];
    /// [`rounded_f32`] for `f64`.
    rounded_f64, ROUNDED_F64 f64, #[inline(always)]:
        [floor ceil round round_ties_even trunc fract sqrt] [rem_euclid div_euclid];
    /// `out[i * COUNT..]` are powers, roots and logarithms of `x[i]`, some of them with `y[i]`.
    powers_f32, POWERS_F32 f32, #[inline(never)]:
        [cbrt exp exp2 exp_m1 ln ln_1p log2 log10 sinh cosh tanh asinh acosh atanh] [powf hypot log];
    /// [`powers_f32`] for `f64`.
    powers_f64, POWERS_F64 f64, #[inline(never)]:
        [cbrt exp exp2 exp_m1 ln ln_1p log2 log10 sinh cosh tanh asinh acosh atanh] [powf hypot log];
    /// `out[i * COUNT..]` are functions of the angle `x[i]`, and angles.
    angles_f32, ANGLES_F32 f32, #[inline(never)]: [sin cos tan asin acos atan] [atan2];
    /// [`angles_f32`] for `f64`.
    angles_f64, ANGLES_F64 f64, #[inline(never)]: [sin cos tan asin acos atan] [atan2];
}

/// `out[i]` is `x[i]` to the power of `n[i]`, plus its sine times its cosine, as one `mul_add`.
#[preemptible(block = 128)]
pub fn whole_powers(x: &[f32], n: &[i32], out: SliceMut<f32>) {
    let i = thread::index_1d() as usize;
    if i < x.len() {
        let (sin, cos) = x[i].sin_cos();
        // SAFETY: each thread writes its own element.
        unsafe { out.write(i, sin.mul_add(cos, x[i].powi(n[i]))) }
    }
}

/// Results of [`approximations`] for each element.
pub const APPROXIMATIONS: usize = 14;

/// `out[APPROXIMATIONS * i..]` are the approximate functions of `x[i]`.
#[preemptible(block = 128)]
pub fn approximations(x: &[f32], out: SliceMut<f32>) {
    let i = thread::index_1d() as usize;
    if i < x.len() {
        let x = x[i];
        let results: [f32; APPROXIMATIONS] = [
            fast::exp2(x),
            fast::log2(x),
            fast::sin(x),
            fast::cos(x),
            fast::tanh(x),
            fast::sqrt(x),
            fast::rsqrt(x),
            fast::recip(x),
            fast::div(x, 3.0),
            fast::exp(x),
            fast::ln(x),
            fast::log10(x),
            fast::powf(x, 1.5),
            fast::tan(x),
        ];
        let mut j = 0;
        while j < APPROXIMATIONS {
            // SAFETY: each thread writes its own elements.
            unsafe { out.write(i * APPROXIMATIONS + j, results[j]) };
            j += 1;
        }
    }
}

/// Halves of an argument.
#[derive(Clone, Copy, Debug, KernelArg)]
#[repr(C)]
pub struct Halves {
    /// Multiplies.
    pub factor: f16,
    /// Is added.
    pub offset: bf16,
}

/// `x[i]` becomes `x[i] * factor + offset` and `y[i]` the same of itself, computed in `f32`.
#[preemptible(block = 128)]
pub fn halves(by: Halves, x: PerThread<f16>, y: PerThread<bf16>) {
    if let (Some(x), Some(y)) = (x.own(), y.own()) {
        x.set(f16::narrow(x.get().widen().mul_add(by.factor.widen(), by.offset.widen())));
        y.set(bf16::narrow(y.get().widen().mul_add(by.factor.widen(), by.offset.widen())));
    }
}

/// [`halves`] by the conversions of the crate `half`.
#[preemptible(block = 128)]
pub fn halves_by_crate(by: Halves, x: PerThread<f16>, y: PerThread<bf16>) {
    if let (Some(x), Some(y)) = (x.own(), y.own()) {
        x.set(f16::from_f32(x.get().to_f32().mul_add(by.factor.to_f32(), by.offset.to_f32())));
        y.set(bf16::from_f32(y.get().to_f32().mul_add(by.factor.to_f32(), by.offset.to_f32())));
    }
}
