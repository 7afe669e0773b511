//! The urgent kernel: a multilayer perceptron that reads one handwritten digit.

use preempt_device::prelude::*;
use preempt_device::warp::{FULL_MASK, warp_shuffle_xor};

/// Pixels of a digit.
pub const PIXELS: usize = 64;
/// Units of the hidden layer.
pub const HIDDEN: usize = 64;
/// The digits from 0 to 9.
pub const CLASSES: usize = 10;

/// Where the hidden layer's weights start in the parameters: those of one pixel after the other,
/// so that neighbouring threads read neighbouring weights.
pub const HIDDEN_WEIGHTS: usize = 0;
/// Where the hidden layer's biases start.
pub const HIDDEN_BIASES: usize = HIDDEN_WEIGHTS + PIXELS * HIDDEN;
/// Where the output layer's weights start: those of one class after the other.
pub const OUTPUT_WEIGHTS: usize = HIDDEN_BIASES + HIDDEN;
/// Where the output layer's biases start.
pub const OUTPUT_BIASES: usize = OUTPUT_WEIGHTS + CLASSES * HIDDEN;
/// All parameters of the network.
pub const PARAMETERS: usize = OUTPUT_BIASES + CLASSES;

/// The brightness of a white pixel; the network sees pixels from 0 to 1.
pub const WHITE: f32 = 16.0;

/// An image of 8 by 8 pixels, row by row, each from 0 to 16. It travels in the launch itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, KernelArg)]
#[repr(C)]
pub struct Digit {
    /// The pixels.
    pub pixels: [u8; PIXELS],
}

/// What the network says of a digit.
#[derive(Clone, Copy, PartialEq, Debug, KernelArg)]
#[repr(C)]
pub struct Answer {
    /// The request that this is the answer to.
    pub request: u32,
    /// The most probable class.
    pub class: u32,
    /// The logarithm of each class's probability, but for a constant.
    pub logits: [f32; CLASSES],
}

/// Lanes that share the sum of one output.
const SHARE: usize = 4;

/// The most lanes that can share a hidden unit: a block has at most 1024 threads.
pub const MOST_LANES: u32 = 16;

/// Classifies one digit: `answers[0]`. Launch it with a grid of 1 and blocks of `HIDDEN * lanes`
/// threads, where `lanes` is a power of two up to [`MOST_LANES`]: that number share the sum of a hidden
/// unit.
#[preemptible]
pub fn classify(
    parameters: &[f32],
    digit: Digit,
    request: u32,
    lanes: u32,
    answers: SliceMut<Answer>,
) {
    let hidden = shared_array![f32; HIDDEN];
    let logits = shared_array![f32; CLASSES];
    let thread = thread::thread_idx_x() as usize;

    let (unit, part) = (thread / lanes as usize, thread % lanes as usize);
    let mut sum = if part == 0 { parameters[HIDDEN_BIASES + unit] } else { 0.0 };
    let mut pixel = part;
    while pixel < PIXELS {
        let weight = parameters[HIDDEN_WEIGHTS + pixel * HIDDEN + unit];
        sum += f32::from(digit.pixels[pixel]) / WHITE * weight;
        pixel += lanes as usize;
    }
    let mut distance = 1;
    while distance < lanes {
        // SAFETY: every lane of every warp comes here with the same mask and width.
        sum += unsafe { warp_shuffle_xor(FULL_MASK, sum, distance, lanes).0 };
        distance *= 2;
    }
    if part == 0 {
        // SAFETY: there are HIDDEN units, and one thread writes each.
        unsafe { hidden.add(unit).write(if sum > 0.0 { sum } else { 0.0 }) };
    }
    thread::sync_threads();

    // Four neighbouring lanes share each output.
    let (class, part) = (thread / SHARE, thread % SHARE);
    let mut sum = 0.0;
    if class < CLASSES {
        let mut unit = part;
        while unit < HIDDEN {
            // SAFETY: in bounds, and written before the barrier.
            let activation = unsafe { hidden.add(unit).read() };
            sum += activation * parameters[OUTPUT_WEIGHTS + class * HIDDEN + unit];
            unit += SHARE;
        }
    }
    // SAFETY: every lane of every warp comes here with the same mask and width.
    unsafe {
        sum += warp_shuffle_xor(FULL_MASK, sum, 1, SHARE as u32).0;
        sum += warp_shuffle_xor(FULL_MASK, sum, 2, SHARE as u32).0;
    }
    if class < CLASSES && part == 0 {
        // SAFETY: in bounds, and one thread for each class.
        unsafe { logits.add(class).write(sum + parameters[OUTPUT_BIASES + class]) };
    }
    thread::sync_threads();

    if thread == 0 {
        // SAFETY: all of it was written before the barrier, and no thread writes it any more.
        let logits = unsafe { logits.cast::<[f32; CLASSES]>().read() };
        let answer = Answer { request, class: most_probable(&logits), logits };
        // SAFETY: the grid's only thread that writes.
        unsafe { answers.write(0, answer) };
    }
}

/// The class with the largest logit, the first of them if there are several.
#[inline]
pub fn most_probable(logits: &[f32; CLASSES]) -> u32 {
    let (mut best, mut largest) = (0, logits[0]);
    for (class, logit) in (0..).zip(logits) {
        if *logit > largest {
            (best, largest) = (class, *logit);
        }
    }
    best
}
