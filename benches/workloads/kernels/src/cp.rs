//! The Coulomb potential of atoms on a plane of a grid (Parboil, `cp`).

use preempt_device::prelude::*;

use crate::input::between;

/// Threads of a block in x and in y.
const COLUMNS: usize = 16;
const ROWS: usize = 8;

/// Points of a thread, [`COLUMNS`] apart, so that neighbouring threads write neighbouring elements.
const POINTS: usize = 8;

/// Columns of points that a block-task computes.
pub const WIDTH: usize = COLUMNS * POINTS;

/// Rows of points that a block-task computes.
pub const HEIGHT: usize = ROWS;

/// Atoms between two yield points; the number of atoms is a multiple of it.
pub const CHUNK: usize = 4;

/// Atoms between two checkpoints, which take 7 µs on an H200. A vote of the block costs more than a yield point without a
/// barrier, so that there are fewer. A block leaves at the second vote after a signal, at the latest.
const SAVING_CHUNK: usize = 6;

/// The least square of an atom's distance from the plane.
const NEAREST: f32 = 0.25;

/// Atom `i` of a plane of this extent: x, y, the square of its distance from the plane, and its charge. Lengths are in
/// Å, charges in those of an electron.
#[inline(always)]
pub fn atom(seed: u32, i: u32, (width, height): (f32, f32)) -> [f32; 4] {
    let number = |k: u32, low, high| between(seed, 4 * i + k, low, high);
    [number(0, 0.0, width), number(1, 0.0, height), number(2, NEAREST, 16.0), number(3, -1.0, 1.0)]
}

/// `atoms[i] = atom(seed, first + i, ..)`; the grid may be larger.
#[preemptible(block = 256)]
pub fn cp_atoms(seed: u32, first: u32, width: f32, height: f32, atoms: SliceMut<[f32; 4]>) {
    let i = thread::index_1d();
    if (i as usize) < atoms.len() {
        // SAFETY: each thread writes its own element.
        unsafe { atoms.write(i as usize, atom(seed, first + i, (width, height))) }
    }
}

/// `sums[i] = energies[i]` and the potential of all `atoms` at point `i`, each charge by its distance. Points are
/// `spacing` apart, row by row, `width` of them in each of `height` rows. One block-task for each [`WIDTH`] by
/// [`HEIGHT`] points, x for the columns; both extents are multiples.
///
/// The original adds to the grid in place; from one buffer to another, a block-task may run again.
#[preemptible(block = (16, 8))]
pub fn cenergy(
    spacing: f32,
    width: u32,
    height: u32,
    atoms: &[[f32; 4]],
    energies: &[f32],
    sums: SliceMut<f32>,
) {
    let (width, height) = (width as usize, height as usize);
    let column = thread::block_idx_x() as usize * WIDTH + thread::thread_idx_x() as usize;
    let row = thread::block_idx_y() as usize * HEIGHT + thread::thread_idx_y() as usize;
    // Once, so that nothing below has to be checked.
    assert!(column + (POINTS - 1) * COLUMNS < width && row < height);
    assert!(width * height <= energies.len() && width * height <= sums.len());
    assert!(atoms.len().is_multiple_of(CHUNK));
    let (x, y) = (spacing * column as f32, spacing * row as f32);
    let step = spacing * COLUMNS as f32;
    let mut own = [0.0f32; POINTS];
    let mut i = 0;
    while i < atoms.len() {
        yield_point!();
        let stop = i + CHUNK;
        while i < stop {
            // SAFETY: the number of atoms is a multiple of the chunk.
            let [atom_x, atom_y, atom_z_squared, charge] = unsafe { *atoms.get_unchecked(i) };
            let outside = GpuFloat::mul_add(y - atom_y, y - atom_y, atom_z_squared);
            let mut along = x - atom_x;
            let mut point = 0;
            while point < POINTS {
                let distance = GpuFloat::sqrt(GpuFloat::mul_add(along, along, outside));
                own[point] += charge / distance;
                along += step;
                point += 1;
            }
            i += 1;
        }
    }
    let mut point = 0;
    while point < POINTS {
        let at = row * width + column + point * COLUMNS;
        // SAFETY: row and column are below their numbers, and each thread writes its own elements.
        unsafe { sums.as_mut_ptr().add(at).write(*energies.get_unchecked(at) + own[point]) }
        point += 1;
    }
}

/// What [`cenergy`] computes, with a checkpoint in the place of its yield points, at fewer atoms.
#[preemptible(block = (16, 8))]
pub fn cenergy_saving(
    spacing: f32,
    width: u32,
    height: u32,
    atoms: &[[f32; 4]],
    energies: &[f32],
    sums: SliceMut<f32>,
) {
    let (width, height) = (width as usize, height as usize);
    let column = thread::block_idx_x() as usize * WIDTH + thread::thread_idx_x() as usize;
    let row = thread::block_idx_y() as usize * HEIGHT + thread::thread_idx_y() as usize;
    // Once, so that nothing below has to be checked.
    assert!(column + (POINTS - 1) * COLUMNS < width && row < height);
    assert!(width * height <= energies.len() && width * height <= sums.len());
    let (x, y) = (spacing * column as f32, spacing * row as f32);
    let step = spacing * COLUMNS as f32;
    let chunks = atoms.len().div_ceil(SAVING_CHUNK) as u32;
    checkpoint!(own: [f32; POINTS] = [0.0f32; POINTS] => for chunk in 0..chunks {
        let mut i = chunk as usize * SAVING_CHUNK;
        let stop = atoms.len().min(i + SAVING_CHUNK);
        while i < stop {
            // SAFETY: `i` is below the number of atoms.
            let [atom_x, atom_y, atom_z_squared, charge] = unsafe { *atoms.get_unchecked(i) };
            let outside = GpuFloat::mul_add(y - atom_y, y - atom_y, atom_z_squared);
            let mut along = x - atom_x;
            let mut point = 0;
            while point < POINTS {
                let distance = GpuFloat::sqrt(GpuFloat::mul_add(along, along, outside));
                own[point] += charge / distance;
                along += step;
                point += 1;
            }
            i += 1;
        }
    });
    let mut point = 0;
    while point < POINTS {
        let at = row * width + column + point * COLUMNS;
        // SAFETY: row and column are below their numbers, and each thread writes its own elements.
        unsafe { sums.as_mut_ptr().add(at).write(*energies.get_unchecked(at) + own[point]) }
        point += 1;
    }
}
