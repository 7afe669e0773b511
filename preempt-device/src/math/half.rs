//! Conversions of half-precision numbers, by the GPU's instructions.

use ::half::{bf16, f16};

/// A number of 16 bits, of the crate `half`, in which memory holds what is computed in `f32`.
///
/// The crate's own conversions give the same results on the GPU, but take some twenty instructions there. A NaN is
/// converted to a NaN, perhaps of other bits.
///
/// ```
/// use half::f16;
/// use preempt_device::prelude::*;
///
/// /// `x[i] *= factor`
/// #[preemptible(block = 256)]
/// pub fn scale(factor: f32, x: PerThread<f16>) {
///     if let Some(own) = x.own() {
///         own.set(f16::narrow(factor * own.get().widen()));
///     }
/// }
/// ```
pub trait HalfFloat: Copy {
    /// The same number as `f32`.
    fn widen(self) -> f32;
    /// The nearest number to `value`; of two, the even one.
    fn narrow(value: f32) -> Self;
}

impl HalfFloat for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        #[cfg(target_arch = "nvptx64")]
        return crate::target::f16_to_f32(self.to_bits());
        #[cfg(not(target_arch = "nvptx64"))]
        return self.to_f32();
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        #[cfg(target_arch = "nvptx64")]
        return f16::from_bits(crate::target::f32_to_f16(value));
        #[cfg(not(target_arch = "nvptx64"))]
        return f16::from_f32(value);
    }
}

impl HalfFloat for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        // It is the upper half of an `f32`.
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        #[cfg(target_arch = "nvptx64")]
        return bf16::from_bits(crate::target::f32_to_bf16(value));
        #[cfg(not(target_arch = "nvptx64"))]
        return bf16::from_f32(value);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_back() {
        for bits in 0..=u16::MAX {
            let (single, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
            assert_eq!(single.widen().to_bits(), single.to_f32().to_bits());
            assert!(single.is_nan() || f16::narrow(single.widen()).to_bits() == bits);
            assert!(brain.is_nan() || bf16::narrow(brain.widen()).to_bits() == bits);
            assert_eq!(brain.widen().is_nan(), brain.is_nan());
        }
        assert_eq!(
            f16::narrow(1.0 + 1.0 / 2048.0),
            f16::from_f32(1.0),
            "a half goes to the even one"
        );
        assert_eq!(f16::narrow(1e6), f16::INFINITY);
    }
}
