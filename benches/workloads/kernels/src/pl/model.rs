//! The object, its video, and what is computed for one particle, the same on host and device; and the kernels
//! that make the video.

use core::f32::consts::TAU;
use core::hint::assert_unchecked;

use preempt_device::prelude::*;

use crate::input::{hash, unit};

/// Pixels of a row, and of a column, of a frame.
pub const EXTENT: u32 = 128;

/// Where the object is in frame 0, and so are all particles, both in x and in y.
pub const START: u32 = 64;

/// The object's points are nearer than this to its center.
const RADIUS: i32 = 5;

/// The points of the object's disc.
pub const DISC_POINTS: u32 = count_points();

/// The brightness of the object, and of what is behind it.
const OBJECT: u32 = 228;
const BACKGROUND: u32 = 100;

/// What is taken off the logarithm of each weight, so that the largest ones are near to 1: a disc of the
/// object's brightness has (228 - 100)² / 50 = 328.
const LARGEST: f32 = 328.0;

/// A frame of the video, and the seed of the whole program.
#[derive(Clone, Copy, Debug, KernelArg)]
#[repr(C)]
pub struct Frame {
    /// The seed of the video. What is random in a frame has others, after it.
    pub seed: u32,
    /// The frame's number, from 1 on where particles are moved to it.
    pub number: u32,
}

impl Frame {
    /// The seed of the random numbers for purpose `i`, below 5, in this frame.
    const fn seed_of(self, i: u32) -> u32 {
        self.seed.wrapping_add(5 * self.number + i)
    }
}

/// A point of the object, from its center.
#[derive(Clone, Copy, Debug, KernelArg)]
#[repr(C)]
pub struct Point {
    /// To the right.
    pub x: i32,
    /// Downward.
    pub y: i32,
}

const fn is_in_disc(x: i32, y: i32) -> bool {
    x * x + y * y < RADIUS * RADIUS
}

const fn count_points() -> u32 {
    let (mut count, mut i) = (0, 0);
    let extent = 2 * RADIUS + 1;
    while i < extent * extent {
        count += is_in_disc(i % extent - RADIUS, i / extent - RADIUS) as u32;
        i += 1;
    }
    count
}

/// Point `number` of the disc, row by row; `number` is below [`DISC_POINTS`].
pub const fn disc_point(number: u32) -> Point {
    let (mut before, mut i) = (0, 0);
    let extent = 2 * RADIUS + 1;
    loop {
        let (x, y) = (i % extent - RADIUS, i / extent - RADIUS);
        if is_in_disc(x, y) {
            if before == number {
                return Point { x, y };
            }
            before += 1;
        }
        i += 1;
    }
}

/// The brightness of pixel `i` of the video. From frame to frame, the object goes 1 to the right and 2 up.
#[inline(always)]
pub const fn pixel(seed: u32, i: u32) -> u8 {
    let (frame, y, x) = (i / (EXTENT * EXTENT), i / EXTENT % EXTENT, i % EXTENT);
    let (dx, dy) = (x.wrapping_sub(START + frame) as i32, y.wrapping_sub(START - 2 * frame) as i32);
    let bright = if is_in_disc(dx, dy) { OBJECT } else { BACKGROUND };
    // The sum of four bytes, less their mean; its standard deviation becomes 4.6.
    let random = hash(seed, i);
    let sum = (random & 0xFF) + (random >> 8 & 0xFF) + (random >> 16 & 0xFF) + (random >> 24);
    // The noise is -15 to 15, so this stays within a byte.
    (bright + sum / 32 - 16) as u8
}

/// Normally distributed random number `i` of a pair of sequences.
#[inline(always)]
fn normal(seed: u32, i: u32) -> f32 {
    // The first one is above 0.
    let (distance, turn) = (1.0 - unit(seed, i), unit(seed.wrapping_add(1), i));
    let distance = GpuFloat::sqrt(-2.0 * GpuFloat::ln(distance));
    let angle = TAU * turn;
    // SAFETY: the turn is from 0 to 1. The cosine of larger angles would need arrays.
    unsafe { assert_unchecked(angle.to_bits() <= TAU.to_bits()) };
    distance * GpuFloat::cos(angle)
}

/// Where particle `i` goes from (`x`, `y`): as the object does, and at random.
#[inline(always)]
pub fn moved(frame: Frame, i: u32, x: f32, y: f32) -> (f32, f32) {
    let x = x + 1.0 + 5.0 * normal(frame.seed_of(0), i);
    let y = y - 2.0 + 2.0 * normal(frame.seed_of(2), i);
    (x, y)
}

/// The weight of a particle at (`x`, `y`), one of `particles`, before all weights are divided by their sum.
#[inline(always)]
pub fn weight(
    video: &[u8],
    frame: Frame,
    disc: &[Point],
    (x, y): (f32, f32),
    particles: usize,
) -> f32 {
    GpuFloat::exp(likelihood(video, frame.number, disc, x, y)) / particles as f32
}

/// The logarithm of a particle's weight at (`x`, `y`): how much nearer to the object's brightness than to the
/// background's the disc around it is. `disc` are the points of [`disc_point`], and a point outside of the
/// frame counts as the frame's first pixel.
#[inline(always)]
fn likelihood(video: &[u8], frame: u32, disc: &[Point], x: f32, y: f32) -> f32 {
    let (x, y) = (GpuFloat::floor(x + 0.5) as i32, GpuFloat::floor(y + 0.5) as i32);
    let pixels = (EXTENT * EXTENT) as usize;
    let first = frame as usize * pixels;
    // Once, so that nothing below has to be checked.
    assert!(first + pixels <= video.len());
    let mut sum = 0.0;
    let mut k = 0;
    while k < disc.len() {
        let (x, y) = ((x + disc[k].x) as u32, (y + disc[k].y) as u32);
        let at = if x < EXTENT && y < EXTENT { y * EXTENT + x } else { 0 };
        // SAFETY: a pixel of the frame.
        let bright = f32::from(unsafe { *video.get_unchecked(first + at as usize) });
        let (background, object) = (bright - BACKGROUND as f32, bright - OBJECT as f32);
        sum += (background * background - object * object) / 50.0;
        k += 1;
    }
    sum / disc.len() as f32 - LARGEST
}

/// Where the new particle `i` is cut out of the cumulative sums of all weights, from 0 to 1: evenly spaced,
/// and the first one at random.
#[inline(always)]
pub fn cut(frame: Frame, i: u32, particles: u32) -> f32 {
    (i as f32 + unit(frame.seed_of(4), 0)) / particles as f32
}

/// `video[i]` is the brightness of a pixel, frame by frame, row by row. The grid may be larger.
#[preemptible(block = 256)]
pub fn make_video(seed: u32, video: SliceMut<u8>) {
    let i = thread::index_1d();
    if (i as usize) < video.len() {
        // SAFETY: each thread writes its own element.
        unsafe { video.write(i as usize, pixel(seed, i)) }
    }
}

/// The points of the object's disc around its center. One block.
#[preemptible(block = 128)]
pub fn make_disc(disc: SliceMut<Point>) {
    let i = thread::index_1d();
    if i < DISC_POINTS {
        // SAFETY: each thread writes its own element.
        unsafe { disc.write(i as usize, disc_point(i)) }
    }
}
