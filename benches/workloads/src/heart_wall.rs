//! Tracking of points on the walls of hearts.

use std::f64::consts::TAU;

use preempt::Error;
use preempt_workload_kernels::heart_wall::{
    Extents, KEPT, heart_wall_frame, heart_wall_templates, heart_wall_track,
    heart_wall_track_saving, pixel,
};
use preempt_workload_kernels::input::BLOCK;

use crate::{Definition, Memory, Output, Program, Size, Tolerance, blocks};

pub const DEFINITION: Definition =
    Definition { name: "HW", source: "Rodinia, heartwall", flep_amortize: 1, build };

/// The same with a checkpoint.
pub const CHECKPOINTED: Definition = Definition { build: build_saving, ..DEFINITION };

/// Points on the inner wall, and on the outer one.
const INNER: u32 = 20;
const OUTER: u32 = 31;

/// The original's frames, and its extents of templates and of what it searches.
const ORIGINAL: Extents =
    Extents { width: 656, height: 744, template: 51, window: 81, points: INNER + OUTER };

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    with(memory, size, seed, false)
}

fn build_saving(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    with(memory, size, seed, true)
}

fn with(memory: Memory<'_>, size: Size, seed: u32, saving: bool) -> Result<Program, Error> {
    // Sequences, and frames after the first one.
    let (of, sequences, frames) = match size {
        Size::Reduced => {
            (Extents { width: 96, height: 80, template: 13, window: 21, ..ORIGINAL }, 1, 2)
        }
        Size::Trivial => (ORIGINAL, 1, 1),
        Size::Small => (ORIGINAL, 12, 1),
        // The paper's frames, of 24 sequences at once: each has 51 points, and there are as many block-tasks.
        Size::Large => (ORIGINAL, 24, 4),
    };
    let points = (sequences * of.points) as usize;
    let pixels = (sequences * of.width * of.height) as usize;
    let length = points * (of.template * of.template) as usize;
    let mut now = (memory.buffer(&start(of, sequences))?, memory.zeroed(length)?);
    let mut setup = Vec::new();
    let mut steps = Vec::new();
    for number in 0..=frames {
        let mut frame = memory.zeroed(pixels)?;
        setup.push(heart_wall_frame(of, seed, number, &mut frame).grid(blocks(pixels, BLOCK)));
        if number == 0 {
            let cut = heart_wall_templates(of, &frame, &now.0, &mut now.1);
            setup.push(cut.grid(blocks(length, BLOCK)));
        } else {
            // Each frame has places and templates of its own, so that a run can be repeated.
            let mut next = (memory.zeroed(2 * points)?, memory.zeroed(length)?);
            let (places, templates) = (&mut next.0, &mut next.1);
            let track = match saving {
                false => heart_wall_track(of, &frame, &now.0, &now.1, places, templates),
                true => heart_wall_track_saving(of, &frame, &now.0, &now.1, places, templates),
            };
            steps.push(track.grid(points as u32));
            now = next;
        }
    }
    let (places, templates) = now;
    let at = move || reference(seed, of, sequences, frames).0;
    let looks = move || reference(seed, of, sequences, frames).1;
    // In the kernel's order.
    let outputs = vec![
        Output::integers(memory, "places", places, at)?,
        Output::floats(memory, "templates", templates, Tolerance::Exact, looks)?,
    ];
    Ok(Program { setup, steps, dominant: 0, outputs })
}

/// Row and column of each point in the first frame, on two ellipses in the middle of it.
fn start(of: Extents, sequences: u32) -> Vec<u32> {
    let on = |radius: f64, points: u32, i: u32| {
        let (sine, cosine) = (TAU * f64::from(i) / f64::from(points)).sin_cos();
        let place = |extent: u32, turn: f64| {
            let free = f64::from(extent - of.template) / 2.0;
            (f64::from(extent / 2) + radius * free * turn) as u32
        };
        [place(of.height, sine), place(of.width, cosine)]
    };
    let of_sequence = || {
        let inner = (0..INNER).flat_map(|i| on(0.4, INNER, i));
        inner.chain((0..OUTER).flat_map(|i| on(0.8, OUTER, i)))
    };
    (0..sequences).flat_map(|_| of_sequence()).collect()
}

/// Places and templates after all frames.
fn reference(seed: u32, of: Extents, sequences: u32, frames: u32) -> (Vec<u32>, Vec<f32>) {
    let mut places = start(of, sequences);
    let mut templates = Vec::new();
    for (point, place) in (0..).zip(places.chunks_exact_mut(2)) {
        let pixel = |frame, row, column| pixel(seed, point / of.points, frame, column, row);
        // What is at a place of which this is the upper left corner, row by row.
        let part = |frame, top: u32, left: u32| -> Vec<f32> {
            let of_row = |row| (left..left + of.template).map(move |column| (row, column));
            let all = (top..top + of.template).flat_map(of_row);
            all.map(|(row, column)| pixel(frame, row, column)).collect()
        };
        let half = of.template / 2;
        let mut template = part(0, place[0] - half, place[1] - half);
        for frame in 1..=frames {
            let origin = |place: u32, extent: u32| {
                place.saturating_sub(of.window / 2).min(extent - of.window)
            };
            let (top, left) = (origin(place[0], of.height), origin(place[1], of.width));
            let mut best = (f32::NEG_INFINITY, 0, 0);
            for row in top..=top + of.window - of.template {
                for column in left..=left + of.window - of.template {
                    let score = correlation(&part(frame, row, column), &template);
                    if score > best.0 {
                        best = (score, row, column);
                    }
                }
            }
            let (_, row, column) = best;
            (place[0], place[1]) = (row + half, column + half);
            for (old, new) in template.iter_mut().zip(part(frame, row, column)) {
                *old = KEPT.mul_add(*old, (1.0 - KEPT) * new);
            }
        }
        templates.extend(template);
    }
    (places, templates)
}

/// The normalized cross-correlation of two parts of frames.
fn correlation(x: &[f32], y: &[f32]) -> f32 {
    let share = 1.0 / x.len() as f32;
    let sum = |x: &[f32]| x.iter().fold(0.0f32, |sum, x| sum + x);
    let product =
        |x: &[f32], y: &[f32]| x.iter().zip(y).fold(0.0f32, |sum, (x, y)| x.mul_add(*y, sum));
    let (of_x, of_y) = (sum(x), sum(y));
    let variances = (product(x, x) - of_x * of_x * share) * (product(y, y) - of_y * of_y * share);
    (product(x, y) - of_x * of_y * share) / variances.sqrt()
}
