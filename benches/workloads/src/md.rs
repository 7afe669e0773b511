//! Lennard-Jones forces.

use preempt::Error;
use preempt_workload_kernels::md::{
    ATTRACTION, BLOCK, CUTOFF_SQUARED, Position, REPULSION, md_forces, md_neighbours, md_positions,
    neighbour, position,
};

use crate::{Between, Definition, Memory, Output, Program, Size, Tolerance, blocks};

pub const DEFINITION: Definition =
    Definition { name: "MD", source: "SHOC, MD", flep_amortize: 1, build };

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    build_between(memory, size.into(), seed)
}

pub fn build_between(memory: Memory<'_>, size: Between, seed: u32) -> Result<Program, Error> {
    // Atoms in x, y and z, and neighbours of each. SHOC has 128 neighbours, and 12288 to 73728 atoms.
    let atoms_and_neighbours = |size: Size| match size {
        Size::Reduced => (25, 40),
        Size::Trivial => (16, 128),
        Size::Small => (86, 128),
        Size::Large => (220, 128),
    };
    let side = size.number(|size| atoms_and_neighbours(size).0) as u32;
    let neighbours: u32 = atoms_and_neighbours(size.to).1;
    let atoms = side.pow(3);
    let mut positions = memory.zeroed(atoms as usize)?;
    let mut list = memory.zeroed(atoms as usize * neighbours as usize)?;
    let mut forces = memory.zeroed(3 * atoms as usize)?;
    let grid = blocks(atoms as usize, BLOCK);
    let setup = vec![
        md_positions(seed, side, &mut positions).grid(grid),
        md_neighbours(seed + 1, side, atoms, &mut list).grid((grid, neighbours)),
    ];
    // SAFETY: a neighbour's place is within the lattice in x, y and z, so its number is below `atoms`.
    let step = unsafe { md_forces(&positions, &list, neighbours, &mut forces) };
    let reference = move || {
        let force = |i| {
            let own = position(seed, side, i);
            let others = (0..neighbours).map(|j| neighbour(seed + 1, side, i, j));
            others.fold([0.0; 3], |sum, j| sum_with(sum, own, position(seed, side, j)))
        };
        (0..atoms).flat_map(force).collect()
    };
    // One neighbour after the other, with one rounding after the other, as in the kernel.
    let outputs = vec![Output::floats(memory, "forces", forces, Tolerance::Exact, reference)?];
    Ok(Program { setup, steps: vec![step.grid(grid)], dominant: 0, outputs })
}

/// The sum and the force between two atoms, on the first of them.
fn sum_with(sum: [f32; 3], own: Position, other: Position) -> [f32; 3] {
    let distance = [own.x - other.x, own.y - other.y, own.z - other.z];
    let [x, y, z] = distance;
    let squared = z.mul_add(z, y.mul_add(y, x * x));
    if squared >= CUTOFF_SQUARED {
        return sum;
    }
    let inverse = 1.0 / squared;
    let sixth = inverse * inverse * inverse;
    let scale = inverse * sixth * REPULSION.mul_add(sixth, -ATTRACTION);
    [0, 1, 2].map(|axis| distance[axis].mul_add(scale, sum[axis]))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn neighbours_are_others_and_the_cutoff_divides_them() {
        let (side, seed) = (16, 7);
        let atoms = side * side * side;
        let mut near = 0;
        for i in 0..atoms {
            let all: HashSet<u32> = (0..128).map(|j| neighbour(seed + 1, side, i, j)).collect();
            assert!(all.len() == 128 && !all.contains(&i) && all.iter().all(|&j| j < atoms));
            let own = position(seed, side, i);
            let is_near = |&&j: &&u32| sum_with([0.0; 3], own, position(seed, side, j)) != [0.0; 3];
            near += all.iter().filter(is_near).count();
        }
        let share = near as f32 / (128 * atoms) as f32;
        assert!((0.3..0.8).contains(&share), "{share} of the neighbours have an effect");
    }
}
