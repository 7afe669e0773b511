//! Training of a network with one hidden layer by back-propagation (Rodinia, `backprop`).
//!
//! Weights are those of all hidden units from the first input, then from the second one, and so on. Input 0 is always
//! 1, so its weights are the thresholds.

use preempt_device::prelude::*;

use crate::input::unit;

/// Units of the hidden layer, and threads of a block in x and in y.
pub const HIDDEN: usize = 16;

/// Inputs of a block-task.
pub const INPUTS: usize = 16;

/// Rows of sums that a block-task of [`bpnn_sum`] adds up.
pub const RUN: usize = 256;

/// How far weights follow the gradient.
pub const RATE: f32 = 0.3;

/// How far weights follow their last change.
pub const MOMENTUM: f32 = 0.3;

/// Random inputs from 0 to 1, and 1 for the first of them. The grid may be larger.
#[preemptible(block = 256)]
pub fn bpnn_inputs(seed: u32, inputs: SliceMut<f32>) {
    let i = thread::index_1d();
    if (i as usize) < inputs.len() {
        // SAFETY: each thread writes its own element.
        unsafe { inputs.write(i as usize, if i == 0 { 1.0 } else { unit(seed, i) }) }
    }
}

/// Sums of inputs by weights, for each hidden unit, of [`INPUTS`] inputs each. One block-task for each of those; the
/// number of inputs is a multiple.
#[preemptible(block = (16, 16))]
pub fn bpnn_layerforward(inputs: &[f32], weights: &[f32], sums: SliceMut<f32>) {
    let products = shared_array![f32; INPUTS * HIDDEN];
    let (tx, ty) = (thread::thread_idx_x() as usize, thread::thread_idx_y() as usize);
    let block = thread::block_idx_x() as usize;
    let input = block * INPUTS + ty;
    // Once, so that nothing below has to be checked.
    assert!(input < inputs.len() && inputs.len() * HIDDEN <= weights.len());
    assert!((block + 1) * HIDDEN <= sums.len());
    // SAFETY: `input` is below the number of inputs; all threads of the block come here, and one writes each element.
    unsafe {
        let weight = *weights.get_unchecked(input * HIDDEN + tx);
        let sum = add_up(products, weight * *inputs.get_unchecked(input));
        if ty == 0 {
            sums.as_mut_ptr().add(block * HIDDEN + tx).write(sum);
        }
    }
}

/// Row `i` of `sums` is the sum of [`RUN`] rows of `partial` from `i * RUN` on. One block-task for each row of `sums`.
#[preemptible(block = (16, 16))]
pub fn bpnn_sum(partial: &[f32], sums: SliceMut<f32>) {
    let of_threads = shared_array![f32; INPUTS * HIDDEN];
    let (tx, ty) = (thread::thread_idx_x() as usize, thread::thread_idx_y() as usize);
    let block = thread::block_idx_x() as usize;
    let (mut row, rows) = (block * RUN + ty, partial.len() / HIDDEN);
    let mut mine = 0.0;
    while row < rows.min((block + 1) * RUN) {
        mine += partial[row * HIDDEN + tx];
        row += INPUTS;
    }
    // SAFETY: all threads of the block come here, and one writes each element.
    unsafe {
        let sum = add_up(of_threads, mine);
        if ty == 0 {
            sums.write(block * HIDDEN + tx, sum);
        }
    }
}

/// The sum of what the threads with the same index in x give, for the threads whose index in y is 0.
///
/// # Safety
///
/// All threads of a block of [`HIDDEN`] by [`INPUTS`] call this, with as many elements of shared memory that no other
/// call uses.
#[inline(always)]
unsafe fn add_up(sums: *mut f32, mine: f32) -> f32 {
    let (tx, ty) = (thread::thread_idx_x() as usize, thread::thread_idx_y() as usize);
    let own = ty * HIDDEN + tx;
    // SAFETY: `ty + distance` is below the number of inputs where it is read. Barriers lie between writes and reads.
    unsafe {
        sums.add(own).write(mine);
        thread::sync_threads();
        let mut distance = 1;
        while distance < INPUTS {
            if ty.is_multiple_of(2 * distance) {
                let other = sums.add(own + distance * HIDDEN).read();
                sums.add(own).write(sums.add(own).read() + other);
            }
            thread::sync_threads();
            distance *= 2;
        }
        sums.add(tx).read()
    }
}

/// From the sums of [`bpnn_sum`], the errors of the hidden units; and `next`, the weights of the output after `weights`,
/// for one output that should be `target`. One block.
#[preemptible(block = (16, 16))]
pub fn bpnn_errors(
    target: f32,
    partial: &[f32],
    weights: &[f32],
    errors: SliceMut<f32>,
    next: SliceMut<f32>,
) {
    let of_threads = shared_array![f32; INPUTS * HIDDEN];
    let units = shared_array![f32; HIDDEN];
    let (tx, ty) = (thread::thread_idx_x() as usize, thread::thread_idx_y() as usize);
    let (mut row, rows) = (ty, partial.len() / HIDDEN);
    let mut mine = 0.0;
    while row < rows {
        mine += partial[row * HIDDEN + tx];
        row += INPUTS;
    }
    assert!(HIDDEN <= weights.len());
    // SAFETY: all threads of the block come here. Barriers lie between writes and reads, and one thread writes each
    // element.
    unsafe {
        let sum = add_up(of_threads, mine);
        if ty == 0 {
            units.add(tx).write(squashed(sum));
        }
        thread::sync_threads();
        if ty == 0 {
            let mut sum = 0.0f32;
            let mut i = 0;
            while i < HIDDEN {
                sum = GpuFloat::mul_add(*weights.get_unchecked(i), units.add(i).read(), sum);
                i += 1;
            }
            let output = squashed(sum);
            let error = output * (1.0 - output) * (target - output);
            let (unit, weight) = (units.add(tx).read(), *weights.get_unchecked(tx));
            errors.write(tx, unit * (1.0 - unit) * error * weight);
            next.write(tx, GpuFloat::mul_add(RATE * error, unit, weight));
        }
    }
}

/// A unit's activation.
#[inline(always)]
fn squashed(x: f32) -> f32 {
    1.0 / (1.0 + GpuFloat::exp(-x))
}

/// Changes the weights of all hidden units along the gradient, and by their last changes, in place. One block-task for
/// each [`INPUTS`] inputs.
#[preemptible(block = (16, 16))]
pub fn bpnn_adjust_weights(
    errors: &[f32],
    inputs: &[f32],
    weights: SliceMut<f32>,
    changes: SliceMut<f32>,
) {
    let (tx, ty) = (thread::thread_idx_x() as usize, thread::thread_idx_y() as usize);
    let input = thread::block_idx_x() as usize * INPUTS + ty;
    let at = input * HIDDEN + tx;
    // Once, so that nothing below has to be checked.
    assert!(input < inputs.len() && HIDDEN <= errors.len());
    assert!(at < weights.len() && at < changes.len());
    // SAFETY: all are below their lengths, and each thread reads and writes its own elements.
    unsafe {
        let along = RATE * *errors.get_unchecked(tx) * *inputs.get_unchecked(input);
        let (weight, change) = (weights.as_mut_ptr().add(at), changes.as_mut_ptr().add(at));
        let next = GpuFloat::mul_add(MOMENTUM, change.read(), along);
        weight.write(weight.read() + next);
        change.write(next);
    }
}
