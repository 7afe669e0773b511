//! Batches of complex Fourier transforms of 512 points (SHOC, `FFT`).
//!
//! With `w(n) = exp(-2πi / n)`, the transform of `x` is `X[k] = Σ x[n] w(512)^(nk)`. Each of the three digits
//! of `n` and `k` in base 8 is a stage: transforms of 8 points, each by one thread, and a multiplication of
//! the results. Between two stages the points go to other threads, through shared memory.

use preempt_device::prelude::*;

use crate::input::between;

/// Points of a transform.
pub const POINTS: usize = 512;

/// Threads of a block, which share a transform: 8 points for each.
pub const BLOCK: u32 = 64;

/// Factors that [`fft_forward`] reads: `w(512)^(jt)` at `64 j + t`, and after those `w(64)^(jt)` at `8 j + t`,
/// for `j` from 0 up to 8.
pub const FACTORS: usize = POINTS + 64;

/// Elements of shared memory between two of the 8 parts that a transpose goes through. Both make the 32
/// threads of a warp read and write in different banks.
const FIRST_STRIDE: usize = 68;
const SECOND_STRIDE: usize = 72;

/// A complex number.
#[derive(Clone, Copy, PartialEq, Debug, KernelArg)]
#[repr(C, align(8))]
pub struct Complex {
    /// The real part.
    pub re: f32,
    /// The imaginary part.
    pub im: f32,
}

/// Point `i` of the input `seed`.
#[inline(always)]
pub fn point(seed: u32, i: u32) -> Complex {
    Complex { re: between(seed, i, -1.0, 1.0), im: between(seed.wrapping_add(1), i, -1.0, 1.0) }
}

/// `points[i] = point(seed, i)`; the grid may be larger than `points`.
#[preemptible(block = 256)]
pub fn fft_points(seed: u32, points: SliceMut<Complex>) {
    let i = thread::index_1d();
    if (i as usize) < points.len() {
        // SAFETY: each thread writes its own element.
        unsafe { points.write(i as usize, point(seed, i)) }
    }
}

/// The [`FACTORS`] of [`fft_forward`]; the grid may be larger.
#[preemptible(block = 64)]
pub fn fft_factors(factors: SliceMut<Complex>) {
    let i = thread::index_1d() as usize;
    if i < FACTORS {
        let (exponent, root) =
            if i < POINTS { (i / 64 * (i % 64), 512.0) } else { (i % 64 / 8 * (i % 8), 64.0) };
        let angle = -core::f64::consts::TAU * exponent as f64 / root;
        let (re, im) = (GpuFloat::cos(angle) as f32, GpuFloat::sin(angle) as f32);
        // SAFETY: each thread writes its own element.
        unsafe { factors.write(i, Complex { re, im }) }
    }
}

/// Transforms each run of [`POINTS`] points of `input`, one block-task for each. `out` has the results as
/// pairs of real and imaginary part, and is aligned to pairs.
#[preemptible(block = 64)]
pub fn fft_forward(input: &[Complex], factors: &[Complex], out: SliceMut<f32>) {
    let re = shared_array![f32; 8 * SECOND_STRIDE];
    let im = shared_array![f32; 8 * SECOND_STRIDE];
    let t = thread::thread_idx_x() as usize;
    let first = thread::block_idx_x() as usize * POINTS;
    let out_pairs = out.as_mut_ptr().cast::<Complex>();
    // Once, so that nothing below has to be checked.
    assert!(first + POINTS <= input.len() && first + POINTS <= out.len() / 2);
    assert!(factors.len() >= FACTORS && out_pairs.is_aligned());
    let (high, low) = (t / 8, t % 8);
    // SAFETY: `t` is below 64, so all indices are below `POINTS`, `FACTORS`, and 8 strides. Barriers lie
    // between writes and reads of shared memory, and each thread writes its own elements of `out`.
    unsafe {
        // Over the highest digit of n; what comes out is numbered by the lowest digit of k.
        let mut points = read(input.as_ptr().add(first + t), 64);
        points = times(transform_8(points), factors.as_ptr().add(t), 64);
        scatter(points, re.add(t), im.add(t), FIRST_STRIDE);
        thread::sync_threads();
        // Thread: 8 times the lowest digit of n, and the lowest digit of k.
        points = gather(re.add(low * FIRST_STRIDE + high), im.add(low * FIRST_STRIDE + high), 8);
        points = times(transform_8(points), factors.as_ptr().add(POINTS + high), 8);
        thread::sync_threads();
        let to = high * SECOND_STRIDE + low;
        scatter(points, re.add(to), im.add(to), 8);
        thread::sync_threads();
        // Thread: the two lower digits of k.
        points = transform_8(gather(re.add(t), im.add(t), SECOND_STRIDE));
        let to = out_pairs.add(first + t);
        let mut k = 0;
        while k < 8 {
            to.add(64 * k).write(points[k]);
            k += 1;
        }
    }
}

/// Eight numbers from `from` on, `stride` apart.
///
/// # Safety
///
/// They are valid for reads.
#[inline(always)]
unsafe fn read(from: *const Complex, stride: usize) -> [Complex; 8] {
    let mut points = [Complex { re: 0.0, im: 0.0 }; 8];
    let mut j = 0;
    while j < 8 {
        // SAFETY: the caller's promise.
        points[j] = unsafe { *from.add(stride * j) };
        j += 1;
    }
    points
}

/// Eight numbers from `re` and `im` on, `stride` apart.
///
/// # Safety
///
/// They are valid for reads, and no thread writes them.
#[inline(always)]
unsafe fn gather(re: *const f32, im: *const f32, stride: usize) -> [Complex; 8] {
    let mut points = [Complex { re: 0.0, im: 0.0 }; 8];
    let mut j = 0;
    while j < 8 {
        // SAFETY: the caller's promise.
        points[j] = unsafe { Complex { re: *re.add(stride * j), im: *im.add(stride * j) } };
        j += 1;
    }
    points
}

/// The opposite of [`gather`].
///
/// # Safety
///
/// The places are valid for writes, and no other thread uses them.
#[inline(always)]
unsafe fn scatter(points: [Complex; 8], re: *mut f32, im: *mut f32, stride: usize) {
    let mut j = 0;
    while j < 8 {
        // SAFETY: the caller's promise.
        unsafe {
            re.add(stride * j).write(points[j].re);
            im.add(stride * j).write(points[j].im);
        }
        j += 1;
    }
}

/// The products with the factors from `factors` on, `stride` apart, of which the first is 1.
///
/// # Safety
///
/// They are valid for reads.
#[inline(always)]
unsafe fn times(mut points: [Complex; 8], factors: *const Complex, stride: usize) -> [Complex; 8] {
    let mut j = 1;
    while j < 8 {
        // SAFETY: the caller's promise.
        points[j] = product(points[j], unsafe { *factors.add(stride * j) });
        j += 1;
    }
    points
}

/// The transform of 8 points.
#[inline(always)]
fn transform_8(x: [Complex; 8]) -> [Complex; 8] {
    const HALF: f32 = core::f32::consts::FRAC_1_SQRT_2;
    let odd = [
        difference(x[0], x[4]),
        product(difference(x[1], x[5]), Complex { re: HALF, im: -HALF }),
        turned(difference(x[2], x[6])),
        product(difference(x[3], x[7]), Complex { re: -HALF, im: -HALF }),
    ];
    let even = [sum(x[0], x[4]), sum(x[1], x[5]), sum(x[2], x[6]), sum(x[3], x[7])];
    let (even, odd) = (transform_4(even), transform_4(odd));
    [even[0], odd[0], even[1], odd[1], even[2], odd[2], even[3], odd[3]]
}

/// The transform of 4 points.
#[inline(always)]
fn transform_4(x: [Complex; 4]) -> [Complex; 4] {
    let (a, b) = (sum(x[0], x[2]), difference(x[0], x[2]));
    let (c, d) = (sum(x[1], x[3]), turned(difference(x[1], x[3])));
    [sum(a, c), sum(b, d), difference(a, c), difference(b, d)]
}

#[inline(always)]
fn sum(a: Complex, b: Complex) -> Complex {
    Complex { re: a.re + b.re, im: a.im + b.im }
}

#[inline(always)]
fn difference(a: Complex, b: Complex) -> Complex {
    Complex { re: a.re - b.re, im: a.im - b.im }
}

#[inline(always)]
fn product(a: Complex, b: Complex) -> Complex {
    Complex {
        re: GpuFloat::mul_add(a.re, b.re, -(a.im * b.im)),
        im: GpuFloat::mul_add(a.re, b.im, a.im * b.re),
    }
}

/// The product with -i.
#[inline(always)]
fn turned(a: Complex) -> Complex {
    Complex { re: a.im, im: -a.re }
}
