//! The Coulomb potential of atoms.

use preempt::{Buffer, Error};
use preempt_workload_kernels::cp::{HEIGHT, WIDTH, atom, cenergy, cenergy_saving, cp_atoms};
use preempt_workload_kernels::input::{self, set_f32};

use crate::{Definition, Memory, Output, Program, Size, Tolerance, blocks};

pub const DEFINITION: Definition =
    Definition { name: "CP", source: "Parboil, cp", flep_amortize: 1, build };

/// The same with a checkpoint.
pub const CHECKPOINTED: Definition = Definition { build: build_saving, ..DEFINITION };

/// The distance between points, in Å, as in the original.
const SPACING: f32 = 0.1;

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    with(memory, size, seed, false)
}

fn build_saving(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    with(memory, size, seed, true)
}

fn with(memory: Memory<'_>, size: Size, seed: u32, saving: bool) -> Result<Program, Error> {
    // Columns and rows of points, atoms of a launch, and launches. The original has as many atoms in a launch as the
    // memory for constants holds: 4000.
    let (columns, rows, atoms, launches): (u32, u32, u32, u32) = match size {
        Size::Reduced => (256, 64, 40, 2),
        Size::Trivial => (256, 32, 500, 1),
        Size::Small => (1024, 512, 500, 2),
        // The paper's 2000 atoms, and 32 times its points.
        Size::Large => (2048, 1024, 500, 4),
    };
    let extent = (SPACING * columns as f32, SPACING * rows as f32);
    let points = (columns * rows) as usize;
    let mut start = memory.zeroed(points)?;
    let mut setup = vec![set_f32(0.0, &mut start).grid(blocks(points, input::BLOCK))];
    let grid = (columns / WIDTH as u32, rows / HEIGHT as u32);
    // Back and forth between two buffers, but the first launch reads zeros, which stay there.
    let (mut now, mut next) = (memory.zeroed(points)?, memory.zeroed(points)?);
    let mut steps = Vec::new();
    for launch in 0..launches {
        let mut own = memory.zeroed(atoms as usize)?;
        let first = launch * atoms;
        let make = cp_atoms(seed, first, extent.0, extent.1, &mut own);
        setup.push(make.grid(blocks(own.len(), input::BLOCK)));
        let add = |from: &Buffer<f32>, to: &mut Buffer<f32>| match saving {
            false => cenergy(SPACING, columns, rows, &own, from, to).grid(grid),
            true => cenergy_saving(SPACING, columns, rows, &own, from, to).grid(grid),
        };
        if launch == 0 {
            steps.push(add(&start, &mut now));
        } else {
            steps.push(add(&now, &mut next));
            std::mem::swap(&mut now, &mut next);
        }
    }
    let reference = move || {
        let all: Vec<_> = (0..launches * atoms).map(|i| atom(seed, i, extent)).collect();
        let potential = |i: u32| {
            let (x, y) = ((i % columns) as f64, (i / columns) as f64);
            let (x, y) = (x * f64::from(SPACING), y * f64::from(SPACING));
            let of_atom = |atom: &[f32; 4]| {
                let [atom_x, atom_y, z_squared, charge] = atom.map(f64::from);
                charge / (x - atom_x).hypot((y - atom_y).hypot(z_squared.sqrt()))
            };
            all.iter().map(of_atom).sum::<f64>() as f32
        };
        (0..points as u32).map(potential).collect()
    };
    // In double precision. Terms are up to 2, and places are rounded to 1e-6 Å here.
    let near = Tolerance::Within { absolute: 1e-5, relative: 1e-5 };
    let outputs = vec![Output::floats(memory, "energies", now, near, reference)?];
    Ok(Program { setup, steps, dominant: 0, outputs })
}
