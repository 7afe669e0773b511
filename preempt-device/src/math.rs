//! Floating-point functions by method, as `std` has them on the host.
//!
//! In a `no_std` kernels crate, host and device code use the same implementation, so their results are equal
//! bit by bit. With `std`, its own methods of the same names take precedence on the host.

/// Functions of `f32` and `f64` that `core` lacks. `cuda_std` has a trait of the same name.
pub trait GpuFloat: Copy {
    /// `self * a + b`, rounded once. Rust does not contract `x * a + b` by itself.
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// The square root.
    fn sqrt(self) -> Self;
    /// e to the power of `self`.
    fn exp(self) -> Self;
    /// The natural logarithm.
    fn ln(self) -> Self;
    /// `self` to the power of `n`.
    fn powf(self, n: Self) -> Self;
    /// The sine of `self` radians.
    fn sin(self) -> Self;
    /// The cosine of `self` radians.
    fn cos(self) -> Self;
    /// The hyperbolic tangent.
    fn tanh(self) -> Self;
    /// The largest integer at most `self`.
    fn floor(self) -> Self;
}

macro_rules! gpu_float {
    ($ty:ty: $fma:ident $sqrt:ident $exp:ident $ln:ident $pow:ident $sin:ident $cos:ident $tanh:ident $floor:ident) => {
        impl GpuFloat for $ty {
            #[inline(always)]
            fn mul_add(self, a: Self, b: Self) -> Self {
                crate::target::$fma(self, a, b)
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                crate::target::$sqrt(self)
            }
            #[inline]
            fn exp(self) -> Self {
                libm::$exp(self)
            }
            #[inline]
            fn ln(self) -> Self {
                libm::$ln(self)
            }
            #[inline]
            fn powf(self, n: Self) -> Self {
                libm::$pow(self, n)
            }
            #[inline]
            fn sin(self) -> Self {
                libm::$sin(self)
            }
            #[inline]
            fn cos(self) -> Self {
                libm::$cos(self)
            }
            #[inline]
            fn tanh(self) -> Self {
                libm::$tanh(self)
            }
            #[inline]
            fn floor(self) -> Self {
                libm::$floor(self)
            }
        }
    };
}
gpu_float!(f32: fmaf sqrtf expf logf powf sinf cosf tanhf floorf);
gpu_float!(f64: fma sqrt exp log pow sin cos tanh floor);
