//! Lennard-Jones forces from a list of neighbours (SHOC, `MD`).
//!
//! Lengths are in units of the lattice that the atoms are on, forces in units that make the potential's
//! constants [`REPULSION`] and [`ATTRACTION`].

use preempt_device::prelude::*;

use crate::input::{between, hash};

/// Threads of a block.
pub const BLOCK: u32 = 256;

/// Neighbours between two yield points; the number of neighbours is a multiple of it.
pub const CHUNK: usize = 8;

/// The square of the distance from which on atoms have no effect on each other.
pub const CUTOFF_SQUARED: f32 = 16.0;

/// Of the force that falls with the 13th power of the distance.
pub const REPULSION: f32 = 1.5;

/// Of the force that falls with the 7th power of the distance.
pub const ATTRACTION: f32 = 2.0;

/// The most that an atom is away from its place in the lattice, in each direction.
const JITTER: f32 = 0.15;

/// Neighbours are at most this many places away in each direction. About a quarter is past the cutoff.
const REACH: u32 = 3;

/// Places in x, y and z of the cube around an atom where its neighbours are.
const WIDTH: u32 = 2 * REACH + 1;

/// Places in that cube: the third power of a prime, so steps that are no multiples of it visit all places.
const PLACES: u32 = WIDTH * WIDTH * WIDTH;

/// Where an atom is. The fourth number is there for the sake of aligned reads, as in the original.
#[derive(Clone, Copy, PartialEq, Debug, KernelArg)]
#[repr(C, align(16))]
pub struct Position {
    /// In x.
    pub x: f32,
    /// In y.
    pub y: f32,
    /// In z.
    pub z: f32,
    /// 0.
    pub padding: f32,
}

/// Where atom `i` is, in a cubic lattice of `side` atoms in each direction.
#[inline(always)]
pub fn position(seed: u32, side: u32, i: u32) -> Position {
    let jittered = |axis, place: u32| place as f32 + between(seed, 3 * i + axis, -JITTER, JITTER);
    Position {
        x: jittered(0, i % side),
        y: jittered(1, i / side % side),
        z: jittered(2, i / (side * side)),
        padding: 0.0,
    }
}

/// Neighbour `j`, from 0 up to 256, of atom `i`: any of the others in the cube around it, none of them
/// twice. `side` is at least 7. The lattice goes on at its other end, so some neighbours are far away.
#[inline(always)]
pub fn neighbour(seed: u32, side: u32, i: u32, j: u32) -> u32 {
    // From any place on, by steps that are no multiples of 7.
    let random = hash(seed, i);
    let (start, step) = (random % PLACES, 1 + random / PLACES % 48 * 7 + random / 65_536 % 6);
    let place = |j| (start + j * step) % PLACES;
    let own = PLACES / 2;
    // No atom is a neighbour to itself: the place after the last one stands in.
    let place = if place(j) == own { place(256) } else { place(j) };
    let moved = |at: u32, by: u32| (at + side + by - REACH) % side;
    let x = moved(i % side, place % WIDTH);
    let y = moved(i / side % side, place / WIDTH % WIDTH);
    let z = moved(i / (side * side), place / (WIDTH * WIDTH));
    (z * side + y) * side + x
}

/// `positions[i] = position(seed, side, i)`; the grid may be larger than `positions`.
#[preemptible(block = 256)]
pub fn md_positions(seed: u32, side: u32, positions: SliceMut<Position>) {
    let i = thread::index_1d();
    if (i as usize) < positions.len() {
        // SAFETY: each thread writes its own element.
        unsafe { positions.write(i as usize, position(seed, side, i)) }
    }
}

/// `list[j * atoms + i] = neighbour(seed, side, i, j)`: x of the grid is for the atoms, y for `j`. The grid
/// may be larger than `atoms` in x.
#[preemptible(block = 256)]
pub fn md_neighbours(seed: u32, side: u32, atoms: u32, list: SliceMut<u32>) {
    let (i, j) = (thread::index_1d(), thread::block_idx_y());
    if i < atoms {
        let at = j as usize * atoms as usize + i as usize;
        // SAFETY: each thread writes its own element.
        unsafe { list.write(at, neighbour(seed, side, i, j)) }
    }
}

/// The forces on all atoms, three numbers for each, from `neighbours` neighbours each: neighbour `j` of
/// atom `i` is `list[j * positions.len() + i]`. One thread for each atom; the grid may be larger.
///
/// # Safety
///
/// All elements of `list` are below `positions.len()`.
#[preemptible(block = 256, idempotent)]
pub unsafe fn md_forces(
    positions: &[Position],
    list: &[u32],
    neighbours: u32,
    forces: SliceMut<f32>,
) {
    let (i, atoms) = (thread::index_1d() as usize, positions.len());
    let neighbours = neighbours as usize;
    // Once, so that nothing below has to be checked.
    assert!(neighbours.is_multiple_of(CHUNK) && neighbours * atoms <= list.len());
    assert!(3 * atoms <= forces.len());
    if i < atoms {
        let own = positions[i];
        let mut force = [0.0; 3];
        let (mut j, mut at) = (0, i);
        while j < neighbours {
            yield_point!();
            // Ahead of the cutoff's branches, so that the memory serves all reads together; volatile, since
            // the compiler would move each of them to its use otherwise.
            let mut others = [0; CHUNK];
            let mut k = 0;
            while k < CHUNK {
                // SAFETY: `i` is below `atoms` and `j + k` below `neighbours`, and the list fits.
                others[k] = unsafe { list.as_ptr().add(at).read_volatile() };
                at += atoms;
                k += 1;
            }
            k = 0;
            while k < CHUNK {
                // SAFETY: the caller vouches for the list.
                let other = unsafe { *positions.get_unchecked(others[k] as usize) };
                force = with_force_of(own, other, force);
                k += 1;
            }
            j += CHUNK;
        }
        // SAFETY: each thread writes its own elements.
        unsafe {
            forces.write(3 * i, force[0]);
            forces.write(3 * i + 1, force[1]);
            forces.write(3 * i + 2, force[2]);
        }
    }
}

/// `force` and the force of an atom at `other` on one at `own`.
#[inline(always)]
fn with_force_of(own: Position, other: Position, force: [f32; 3]) -> [f32; 3] {
    let (x, y, z) = (own.x - other.x, own.y - other.y, own.z - other.z);
    let squared = GpuFloat::mul_add(z, z, GpuFloat::mul_add(y, y, x * x));
    if squared < CUTOFF_SQUARED {
        let inverse = 1.0 / squared;
        let sixth = inverse * inverse * inverse;
        let scale = inverse * sixth * GpuFloat::mul_add(REPULSION, sixth, -ATTRACTION);
        [
            GpuFloat::mul_add(x, scale, force[0]),
            GpuFloat::mul_add(y, scale, force[1]),
            GpuFloat::mul_add(z, scale, force[2]),
        ]
    } else {
        force
    }
}
