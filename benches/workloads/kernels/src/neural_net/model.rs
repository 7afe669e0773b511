//! The network's extents, its functions, and its digits; the same on host and device.

use preempt_device::prelude::*;

use crate::input::{hash, unit};

/// Neurons of the hidden layer.
pub const HIDDEN: usize = 30;
/// Neurons of the output layer: one for each digit.
pub const DIGITS: usize = 10;

/// Pixels of an image's row.
const WIDTH: u32 = 28;
/// A digit's strokes are made of squares of this number of pixels in each direction.
const SQUARE: u32 = 4;
/// The seed of the digits' shapes, which are the same for all programs. Digit 0 has this one.
const FONT: u32 = 0xD161;

/// Pixel `i` of a sequence of images of `inputs` pixels each, where the image has the digit `label`: bright
/// in the digit's strokes and dark elsewhere, with noise.
#[inline(always)]
pub const fn pixel(seed: u32, label: u32, i: u32, inputs: u32) -> f32 {
    let (row, column) = (i % inputs / WIDTH, i % inputs % WIDTH);
    let square = row / SQUARE * WIDTH.div_ceil(SQUARE) + column / SQUARE;
    let noise = 0.25 * unit(seed, i);
    if hash(FONT + label, square).is_multiple_of(3) { 1.0 - noise } else { noise }
}

/// A neuron's activation.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + GpuFloat::exp(-x))
}

/// The derivative of [`sigmoid`] where its value is `activation`.
#[inline(always)]
pub fn derivative(activation: f32) -> f32 {
    activation * (1.0 - activation)
}

/// Numbers that are read together.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub struct Four(pub [f32; 4]);

impl Four {
    /// `sums[i][j] += self[i] * other[j]`
    #[inline(always)]
    pub fn add_products(self, other: Four, sums: &mut [[f32; 4]; 4]) {
        let mut i = 0;
        while i < 4 {
            let mut j = 0;
            while j < 4 {
                sums[i][j] = GpuFloat::mul_add(self.0[i], other.0[j], sums[i][j]);
                j += 1;
            }
            i += 1;
        }
    }
}
