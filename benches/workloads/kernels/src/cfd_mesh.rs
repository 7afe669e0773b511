//! A mesh from a seed, for [`cfd`](crate::cfd): quadrilaterals of about unit size and unit depth, with
//! corners moved at random, and thin plates as wings. Cells have numbers in no simple order.

use preempt_device::prelude::*;

use crate::cfd::{FACES, FAR, WING};
use crate::input::between;

/// A mesh.
#[derive(Clone, Copy, Debug, KernelArg)]
#[repr(C)]
pub struct Mesh {
    /// Of the corners.
    pub seed: u32,
    /// Cells in x.
    pub width: u32,
    /// Cells in y.
    pub height: u32,
}

/// Cells whose numbers are mixed with each other: neighbours are near in memory, as in a mesh that was
/// renumbered for that, but not next to each other.
const GROUP: u32 = 128;

/// Odd numbers that are each other's inverse, modulo [`GROUP`].
const FACTOR: u32 = 53;
const INVERSE: u32 = 29;
const _: () = assert!(FACTOR * INVERSE % GROUP == 1);

/// Bits that [`fold`] shifts by: more than half of those of a number in a group.
const FOLD: u32 = 4;

/// Its own inverse.
#[inline(always)]
const fn fold(number: u32) -> u32 {
    number ^ number >> FOLD
}

impl Mesh {
    /// The number of cells.
    #[inline(always)]
    pub const fn cells(self) -> u32 {
        self.width * self.height
    }

    /// Where a cell is: its number, row by row.
    #[inline(always)]
    const fn place(self, cell: u32) -> u32 {
        self.mix(cell, FACTOR)
    }

    /// The cell at a place.
    #[inline(always)]
    const fn cell(self, place: u32) -> u32 {
        self.mix(place, INVERSE)
    }

    /// Mixes numbers in each group, but not in the last one if it is not whole.
    #[inline(always)]
    const fn mix(self, number: u32, factor: u32) -> u32 {
        let group = number / GROUP * GROUP;
        if group + GROUP > self.cells() {
            return number;
        }
        group + fold(fold(number - group) * factor % GROUP)
    }

    /// -y, x and something like a depth of a corner of the cell at this column and row, `dx` and `dy` cells
    /// away from its lower left one, from where it would be without random parts.
    #[inline(always)]
    fn corner(self, column: u32, row: u32, dx: u32, dy: u32) -> [f32; 3] {
        let i = (row + dy) * (self.width + 1) + column + dx;
        let random = |sequence: u32| between(self.seed.wrapping_add(sequence), i, -0.15, 0.15);
        [-(dy as f32 + random(0)), dx as f32 + random(1), random(2)]
    }
}

/// The corners at the ends of a face, anticlockwise around the cell: right, top, left, bottom.
const CORNERS: [[(u32, u32); 2]; FACES] =
    [[(1, 0), (1, 1)], [(1, 1), (0, 1)], [(0, 1), (0, 0)], [(0, 0), (1, 0)]];

/// The cell across a face, or [`WING`], or [`FAR`].
#[inline(always)]
pub fn neighbour(mesh: Mesh, cell: u32, face: usize) -> i32 {
    let place = mesh.place(cell);
    let (column, row) = (place % mesh.width, place / mesh.width);
    let (is_edge, across) = match face {
        0 => (column + 1 == mesh.width, place + 1),
        1 => (row + 1 == mesh.height, place + mesh.width),
        2 => (column == 0, place.wrapping_sub(1)),
        _ => (row == 0, place.wrapping_sub(mesh.width)),
    };
    // Plates lie below every 16th row, under half of its cells.
    let above = if face == 1 { row + 1 } else { row };
    let is_wing = face % 2 == 1 && above % 16 == 8 && column / 48 % 2 == 0;
    if is_edge {
        FAR
    } else if is_wing {
        WING
    } else {
        mesh.cell(across) as i32
    }
}

/// The inward normal of a face, as long as its area. Those of a cell add up to 0 but for rounding, and
/// those of the two cells at a face are the same but for the sign and rounding: a uniform flow stays one.
#[inline(always)]
pub fn face_normal(mesh: Mesh, cell: u32, face: usize) -> [f32; 3] {
    let place = mesh.place(cell);
    let (column, row) = (place % mesh.width, place / mesh.width);
    let [(ax, ay), (bx, by)] = CORNERS[face];
    let (a, b) = (mesh.corner(column, row, ax, ay), mesh.corner(column, row, bx, by));
    // (-y, x) along the face is a quarter turn to its inside; any third part will do that belongs to
    // corners.
    [b[0] - a[0], b[1] - a[1], b[2] - a[2]]
}

/// The volume of a cell: half of the cross product of its diagonals, times the depth of 1.
#[inline(always)]
pub fn volume(mesh: Mesh, cell: u32) -> f32 {
    let place = mesh.place(cell);
    let (column, row) = (place % mesh.width, place / mesh.width);
    let corner = |dx, dy| mesh.corner(column, row, dx, dy);
    let (a, b, c, d) = (corner(0, 0), corner(1, 0), corner(1, 1), corner(0, 1));
    let (rising, falling) = ([c[1] - a[1], a[0] - c[0]], [d[1] - b[1], b[0] - d[0]]);
    0.5 * (rising[0] * falling[1] - rising[1] * falling[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESH: Mesh = Mesh { seed: 5, width: 131, height: 29 };

    #[test]
    fn every_cell_is_at_one_place() {
        for cell in 0..MESH.cells() {
            let place = MESH.place(cell);
            assert!(place < MESH.cells());
            assert_eq!(MESH.cell(place), cell);
        }
    }

    #[test]
    fn neighbours_see_each_other_through_the_same_face() {
        let mut faces = [0; 3];
        for cell in 0..MESH.cells() {
            for face in 0..FACES {
                let other = neighbour(MESH, cell, face);
                faces[(-other.min(0)) as usize] += 1;
                if other >= 0 {
                    let (other, opposite) = (other as u32, (face + 2) % FACES);
                    assert_eq!(neighbour(MESH, other, opposite), cell as i32);
                    let (a, b) =
                        (face_normal(MESH, cell, face), face_normal(MESH, other, opposite));
                    assert!((0..3).all(|axis| (a[axis] + b[axis]).abs() < 1e-6), "{a:?} {b:?}");
                }
            }
        }
        let edge = 2 * (MESH.width + MESH.height);
        assert_eq!(faces[-FAR as usize], edge);
        assert!(faces[-WING as usize] > 100 && faces[0] > 10_000, "{faces:?}");
    }

    #[test]
    fn cells_are_closed() {
        for cell in 0..MESH.cells() {
            let normals: Vec<_> = (0..FACES).map(|face| face_normal(MESH, cell, face)).collect();
            for axis in 0..3 {
                assert!(normals.iter().map(|normal| normal[axis]).sum::<f32>().abs() < 1e-6);
            }
            assert!((0.3..2.0).contains(&volume(MESH, cell)));
        }
    }
}
