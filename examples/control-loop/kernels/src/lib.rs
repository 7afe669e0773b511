//! The kernels of the example: a feedback that is due at once, and random walks that take long.
#![no_std]

use preempt_device::prelude::*;

/// Threads in a block.
pub const THREADS: usize = 64;

/// Steps of a walk from one yield point to the next.
const STRIDE: u32 = 16;

/// The angle of a pendulum that stands on its end, and how fast it changes.
#[derive(Clone, Copy, PartialEq, Debug, Default, KernelArg)]
#[repr(C)]
pub struct State {
    /// In radians from upright.
    pub angle: f32,
    /// In radians per second.
    pub speed: f32,
}

/// The acceleration that each pendulum needs: the linear feedback of its state.
#[preemptible(block = THREADS as u32)]
pub fn feedback(states: &[State], gain: State, commands: PerThread<f32>) {
    let i = thread::index_1d() as usize;
    if i < states.len()
        && let Some(command) = commands.own()
    {
        command.set(command_for(states[i], gain));
    }
}

/// What [`feedback`] computes of one state.
#[inline(always)]
pub fn command_for(state: State, gain: State) -> f32 {
    -(gain.angle * state.angle + gain.speed * state.speed)
}

/// The end of a random walk of `strides` times 16 steps for each thread: batch work with long block-tasks.
// A block-task is long: a block must not claim several between two looks at the signal.
#[preemptible(block = THREADS as u32, amortize = 1, idempotent)]
pub fn walk(seed: u32, strides: u32, ends: PerThread<u32>) {
    let mut place = thread::index_1d() ^ seed;
    for _ in 0..strides {
        yield_point!();
        place = end_of_walk(place, STRIDE);
    }
    if let Some(end) = ends.own() {
        end.set(place);
    }
}

/// Where a walk of some steps from a place ends.
#[inline(always)]
fn end_of_walk(mut place: u32, steps: u32) -> u32 {
    for _ in 0..steps {
        // Xorshift (Marsaglia 2003), off the one place that it would not leave.
        place ^= place << 13;
        place ^= place >> 17;
        place ^= place << 5;
        place = place.wrapping_add(0x9E37_79B9);
    }
    place
}

/// What [`walk`] computes for one thread.
pub fn end(seed: u32, strides: u32, thread: u32) -> u32 {
    (0..strides).fold(thread ^ seed, |place, _| end_of_walk(place, STRIDE))
}
