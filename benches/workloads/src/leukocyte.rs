//! White blood cells in a video.

use std::f64::consts::TAU;

use preempt::Error;
use preempt_workload_kernels::leukocyte::{
    BLOCK, CELL, CIRCLES, COLUMNS, CUTOFF, DISC, LARGEST, POINTS, ROWS, dilate, edge, gicov,
    gradient, imgvf, imgvf_saving, leukocyte_edges, leukocyte_gradients,
};
use preempt_workload_kernels::sum_by_halves;

use crate::{Definition, Memory, Output, Program, Size, Tolerance, blocks};

pub const DEFINITION: Definition =
    Definition { name: "LC", source: "Rodinia, leukocyte", flep_amortize: 1, build };

/// The same, with a checkpoint in the longest of the three.
pub const CHECKPOINTED: Definition = Definition { build: build_saving, ..DEFINITION };

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    with(memory, size, seed, false)
}

fn build_saving(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    with(memory, size, seed, true)
}

fn with(memory: Memory<'_>, size: Size, seed: u32, saving: bool) -> Result<Program, Error> {
    // The image, cells, and rounds of a field at most: 500 in the original.
    let (width, height, cells, rounds): (u32, u32, u32, u32) = match size {
        Size::Reduced => (80, 64, 17, 6),
        Size::Trivial => (96, 96, 16, 100),
        Size::Small => (480, 320, 104, 500),
        // Four times the pixels of the paper's frame, and cells of many frames.
        Size::Large => (1280, 960, 1056, 500),
    };
    let (pixels, elements) = ((width * height) as usize, cells as usize * CELL);
    let mut gradients = memory.zeroed(pixels)?;
    let mut edges = memory.zeroed(elements)?;
    let setup = vec![
        leukocyte_gradients(seed, width, &mut gradients).grid(blocks(pixels, BLOCK as u32)),
        leukocyte_edges(seed, &mut edges).grid(blocks(elements, BLOCK as u32)),
    ];
    let offsets = memory.buffer(&offsets(width))?;
    let directions = memory.buffer(&directions())?;
    let (mut found, mut dilated) = (memory.zeroed(pixels)?, memory.zeroed(pixels)?);
    let (mut fields, mut taken) = (memory.zeroed(elements)?, memory.zeroed(cells as usize)?);
    let grid = blocks(pixels, BLOCK as u32);
    let steps = vec![
        gicov(width, height, &gradients, &offsets, &directions, &mut found).grid(grid),
        dilate(width, height, &found, &mut dilated).grid(grid),
        match saving {
            false => imgvf(rounds, &edges, &mut fields, &mut taken).grid(cells),
            true => imgvf_saving(rounds, &edges, &mut fields, &mut taken).grid(cells),
        },
    ];
    let circles = move || along_circles(seed, width, height);
    let maxima = move || dilation(&along_circles(seed, width, height), width, height);
    let flows = move || (0..cells).flat_map(|cell| field(seed, cell, rounds).0).collect();
    let counts = move || (0..cells).map(|cell| field(seed, cell, rounds).1).collect();
    // In the kernels' order.
    let outputs = vec![
        Output::floats(memory, "circles", found, Tolerance::Exact, circles)?,
        Output::floats(memory, "dilated", dilated, Tolerance::Exact, maxima)?,
        Output::floats(memory, "fields", fields, Tolerance::Exact, flows)?,
        Output::integers(memory, "rounds", taken, counts)?,
    ];
    Ok(Program { setup, steps, dominant: 2, outputs })
}

/// Cosine and sine of each point of a circle.
fn directions() -> Vec<[f32; 2]> {
    let direction = |i| {
        let (sine, cosine) = (TAU * i as f64 / POINTS as f64).sin_cos();
        [cosine as f32, sine as f32]
    };
    (0..POINTS).map(direction).collect()
}

/// The distances of all circles' points from the center, in an array of rows of `width` pixels.
fn offsets(width: u32) -> Vec<i32> {
    let of_circle = |circle: usize| {
        let radius = (LARGEST as usize + 2 - 2 * (CIRCLES - circle)) as f64;
        let offset = move |i: usize| {
            let (sine, cosine) = (TAU * i as f64 / POINTS as f64).sin_cos();
            (radius * sine).round() as i32 * width as i32 + (radius * cosine).round() as i32
        };
        (0..POINTS).map(offset)
    };
    (0..CIRCLES).flat_map(of_circle).collect()
}

/// The largest inverse coefficient of variation of the gradient along circles around each pixel.
fn along_circles(seed: u32, width: u32, height: u32) -> Vec<f32> {
    let (offsets, directions) = (offsets(width), directions());
    let gradients: Vec<[f32; 2]> = (0..width * height).map(|i| gradient(seed, width, i)).collect();
    let margin = LARGEST + 2;
    let of_pixel = |i: u32| {
        let (x, y) = (i % width, i / width);
        let inner = margin..width.saturating_sub(margin);
        if !inner.contains(&x) || !(margin..height.saturating_sub(margin)).contains(&y) {
            return 0.0;
        }
        let (mut most, mut largest) = (0.0, 0.0);
        for circle in offsets.chunks(POINTS) {
            let slopes = circle.iter().zip(&directions).map(|(offset, [cosine, sine])| {
                let [in_x, in_y] = gradients[(i as i32 + offset) as usize];
                in_y.mul_add(*sine, in_x * cosine)
            });
            let (mut sum, mut running, mut squares) = (0.0f32, 0.0f32, 0.0f32);
            for (slope, count) in slopes.zip(1..) {
                sum += slope;
                let distance = slope - running;
                running += distance / count as f32;
                squares = distance.mul_add(slope - running, squares);
            }
            let mean = sum / POINTS as f32;
            let variance = squares / (POINTS as f32 - 1.0);
            if mean * mean / variance > most {
                most = mean * mean / variance;
                largest = mean / variance.sqrt();
            }
        }
        largest
    };
    (0..width * height).map(of_pixel).collect()
}

/// The largest element in the disc around each pixel, or 0.
fn dilation(found: &[f32], width: u32, height: u32) -> Vec<f32> {
    let of_pixel = |i: i32| {
        let (x, y) = (i % width as i32, i / width as i32);
        let mut most = 0.0f32;
        for row in (y - DISC).max(0)..=(y + DISC).min(height as i32 - 1) {
            for column in (x - DISC).max(0)..=(x + DISC).min(width as i32 - 1) {
                if (row - y).pow(2) + (column - x).pow(2) <= DISC * DISC {
                    most = most.max(found[(row * width as i32 + column) as usize]);
                }
            }
        }
        most
    };
    (0..(width * height) as i32).map(of_pixel).collect()
}

/// The field of a cell, and the rounds that it took.
fn field(seed: u32, cell: u32, most: u32) -> (Vec<f32>, u32) {
    // Neighbours by rows and columns, and how far each is against the direction of motion.
    const NEIGHBOURS: [(isize, isize, f32); 8] = [
        (-1, -1, 0.0),
        (-1, 0, -1.0),
        (-1, 1, -2.0),
        (0, -1, 1.0),
        (0, 1, -1.0),
        (1, -1, 2.0),
        (1, 0, 1.0),
        (1, 1, 0.0),
    ];
    let edges: Vec<f32> = (0..CELL as u32).map(|i| edge(seed, cell, i)).collect();
    let mut field = edges.clone();
    for round in 1.. {
        let next = |i: usize| {
            let (own, steep) = (field[i], edges[i]);
            let flow = NEIGHBOURS.iter().map(|&(down, right, direction)| {
                let within = |at: usize, by: isize, extent: usize| {
                    at.saturating_add_signed(by).min(extent - 1)
                };
                let (row, column) =
                    (within(i / COLUMNS, down, ROWS), within(i % COLUMNS, right, COLUMNS));
                let difference = field[row * COLUMNS + column] - own;
                match difference * direction {
                    along if along > 0.0001 => difference,
                    along if along > -0.0001 => 0.5 * difference,
                    _ => 0.0,
                }
            });
            let flow = flow.reduce(|sum, flow| sum + flow).unwrap_or_default();
            let smooth = (0.5f32 / 5.0).mul_add(flow, own);
            (-steep / 5.0).mul_add(smooth - steep, smooth)
        };
        let next: Vec<f32> = (0..CELL).map(next).collect();
        // As the threads of a block add up.
        let mut changes = [0.0; BLOCK];
        for (i, (next, old)) in next.iter().zip(&field).enumerate() {
            changes[i % BLOCK] += (next - old).abs();
        }
        field = next;
        let is_moving = sum_by_halves(&mut changes) >= CUTOFF * CELL as f32;
        if !is_moving || round == most {
            return (field, round);
        }
    }
    unreachable!("there is a last round");
}
