//! Temperatures of a chip (Rodinia, `hotspot`).

use preempt_device::prelude::*;

/// Threads of a block in x and in y, and rows and columns of its tile.
const TILE: usize = 16;

/// Iterations of a launch: the original's height of the pyramid.
pub const HEIGHT: usize = 2;

/// Rows and columns of a block-task's part of the chip. Around it, the tile has one more for each iteration.
pub const EXTENT: usize = TILE - 2 * HEIGHT;

/// How heat flows; temperatures are in °C.
#[derive(Clone, Copy, Debug, KernelArg)]
#[repr(C)]
pub struct Chip {
    /// The time of an iteration by the heat capacity of a cell, in K/W.
    pub step: f32,
    /// Conductance between neighbours in x, in W/K.
    pub x: f32,
    /// Conductance between neighbours in y, in W/K.
    pub y: f32,
    /// Conductance between a cell and what is around the chip, in W/K.
    pub z: f32,
    /// The temperature around the chip.
    pub ambient: f32,
}

/// [`HEIGHT`] iterations of all cells of a chip of `rows` by `columns`: `next` from `temperatures`, where `power`
/// is the heat of each cell in W. All three are row by row. One block-task for each [`EXTENT`] by [`EXTENT`]
/// cells, x for the columns; it computes neighbours' cells as well, as long as it needs them.
#[preemptible(block = (16, 16))]
pub fn calculate_temp(
    chip: Chip,
    power: &[f32],
    temperatures: &[f32],
    next: SliceMut<f32>,
    rows: u32,
    columns: u32,
) {
    let tiles = shared_array![f32; 2 * TILE * TILE];
    let (tx, ty) = (thread::thread_idx_x() as usize, thread::thread_idx_y() as usize);
    let (rows, columns) = (rows as usize, columns as usize);
    // Cells above and left of the chip have large numbers.
    let row = (thread::block_idx_y() as usize * EXTENT + ty).wrapping_sub(HEIGHT);
    let column = (thread::block_idx_x() as usize * EXTENT + tx).wrapping_sub(HEIGHT);
    let is_inside = row < rows && column < columns;
    // Once, so that nothing below has to be checked.
    let cells = rows * columns;
    assert!(cells <= power.len() && cells <= temperatures.len() && cells <= next.len());
    let own = ty * TILE + tx;
    let mut heat = 0.0;
    // SAFETY: cells inside of the chip are below `rows * columns`. Neighbours in the tile are read where `tx` and
    // `ty` are at least 1 and at most `TILE - 2`. Barriers lie between writes and reads, since iterations take
    // turns with both halves of the tiles. Each thread writes its own element of `next`.
    unsafe {
        if is_inside {
            heat = *power.get_unchecked(row * columns + column);
            tiles.add(own).write(*temperatures.get_unchecked(row * columns + column));
        }
        thread::sync_threads();
        let mut iteration = 0;
        while iteration < HEIGHT {
            let from = tiles.add(iteration % 2 * TILE * TILE);
            let to = tiles.add((iteration + 1) % 2 * TILE * TILE);
            // The ring that has all its neighbours is smaller by one in each iteration.
            let (first, last) = (1 + iteration, TILE - 2 - iteration);
            if is_inside && tx >= first && tx <= last && ty >= first && ty <= last {
                let center = from.add(own).read();
                // Nothing flows through the edges of the chip.
                let north = from.add(if row == 0 { own } else { own - TILE }).read();
                let south = from.add(if row + 1 == rows { own } else { own + TILE }).read();
                let west = from.add(if column == 0 { own } else { own - 1 }).read();
                let east = from.add(if column + 1 == columns { own } else { own + 1 }).read();
                let vertical = (south + north - 2.0 * center) * chip.y;
                let horizontal = (east + west - 2.0 * center) * chip.x;
                let up = (chip.ambient - center) * chip.z;
                let flow = heat + vertical + horizontal + up;
                to.add(own).write(GpuFloat::mul_add(chip.step, flow, center));
            }
            thread::sync_threads();
            iteration += 1;
        }
        let own_part = HEIGHT..TILE - HEIGHT;
        let is_own = own_part.contains(&tx) && own_part.contains(&ty);
        if is_inside && is_own {
            let result = tiles.add(HEIGHT % 2 * TILE * TILE + own).read();
            next.as_mut_ptr().add(row * columns + column).write(result);
        }
    }
}
