//! A solver of the Euler equations.

use preempt::{Buffer, Error};
use preempt_workload_kernels::cfd::{
    BLOCK, COURANT, FACES, FAR, FIELDS, FarField, GAMMA, SMOOTHING, STAGES, WING, cfd_compute_flux,
    cfd_compute_step_factor, cfd_copy, cfd_initialize_variables, cfd_make_mesh, cfd_time_step,
};
use preempt_workload_kernels::cfd_mesh::{Mesh, face_normal, neighbour, volume};

use crate::{Between, Definition, Memory, Output, Program, Size, Tolerance, blocks};

pub const DEFINITION: Definition =
    Definition { name: "CFD", source: "Rodinia, cfd (euler3d)", flep_amortize: 1, build };

/// The flow far away, along x: 1.2 times the speed of sound, which is 1 for this density at pressure 1.
const DENSITY: f32 = 1.4;
const SPEED: f32 = 1.2;

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    build_between(memory, size.into(), seed)
}

pub fn build_between(memory: Memory<'_>, size: Between, seed: u32) -> Result<Program, Error> {
    // Cells in x and y, and steps in time.
    let cells_and_steps = |size: Size| match size {
        Size::Reduced => (131, 73, 2),
        Size::Trivial => (48, 40, 1),
        Size::Small => (480, 400, 1),
        Size::Large => (2200, 2000, 2),
    };
    let width = size.number(|size| cells_and_steps(size).0) as u32;
    let height = size.number(|size| cells_and_steps(size).1) as u32;
    let iterations = cells_and_steps(size.from).2;
    let mesh = Mesh { seed, width, height };
    let cells = mesh.cells() as usize;
    let grid = blocks(cells, BLOCK);
    let far = far_field();
    let mut neighbours: Buffer<i32> = memory.zeroed(FACES * cells)?;
    let mut normals: Buffer<f32> = memory.zeroed(3 * FACES * cells)?;
    let mut volumes: Buffer<f32> = memory.zeroed(cells)?;
    let mut variables: Buffer<f32> = memory.zeroed(FIELDS * cells)?;
    let mut old: Buffer<f32> = memory.zeroed(FIELDS * cells)?;
    let mut fluxes: Buffer<f32> = memory.zeroed(FIELDS * cells)?;
    let mut factors: Buffer<f32> = memory.zeroed(cells)?;
    let setup = vec![cfd_make_mesh(mesh, &mut neighbours, &mut normals, &mut volumes).grid(grid)];
    let mut steps = vec![cfd_initialize_variables(far, mesh.cells(), &mut variables).grid(grid)];
    for _ in 0..iterations {
        steps.push(cfd_copy(&variables, &mut old).grid(blocks(FIELDS * cells, BLOCK)));
        steps.push(cfd_compute_step_factor(&variables, &volumes, &mut factors).grid(grid));
        for stage in 0..STAGES {
            let flux =
                cfd_compute_flux(far, mesh.cells(), &neighbours, &normals, &variables, &mut fluxes);
            steps.push(flux.grid(grid));
            steps.push(cfd_time_step(stage, &old, &factors, &fluxes, &mut variables).grid(grid));
        }
    }
    // The reference adds up in the same order, with the same fused operations.
    let reference = move || reference(mesh, iterations);
    let outputs =
        vec![Output::floats(memory, "variables", variables, Tolerance::Exact, reference)?];
    // The first flux, because all of them do the same work.
    Ok(Program { setup, steps, dominant: 3, outputs })
}

/// The flow far from the wing.
fn far_field() -> FarField {
    let energy = DENSITY * (0.5 * SPEED * SPEED) + 1.0 / (GAMMA - 1.0);
    let momentum = DENSITY * SPEED;
    FarField {
        fields: [DENSITY, momentum, 0.0, 0.0, energy],
        fluxes: [
            [momentum, 0.0, 0.0],
            [momentum * SPEED + 1.0, 0.0, 0.0],
            [0.0, 1.0, 0.0],
            [0.0, 0.0, 1.0],
            [(energy + 1.0) * SPEED, 0.0, 0.0],
        ],
    }
}

/// A cell's density, momentum and energy.
type Cell = [f32; FIELDS];

/// The fields, one after the other, after `iterations` steps in time.
fn reference(mesh: Mesh, iterations: u32) -> Vec<f32> {
    let mut cells = vec![far_field().fields; mesh.cells() as usize];
    for _ in 0..iterations {
        let old = cells.clone();
        for stage in 0..STAGES {
            let step = |number: u32| {
                let cell = old[number as usize];
                let (_, speed, _, speed_of_sound) = flow(&cell);
                let factor = COURANT / (volume(mesh, number).sqrt() * (speed + speed_of_sound));
                let factor = factor / (STAGES - stage) as f32;
                let flux = flux_into(mesh, &cells, number);
                std::array::from_fn(|field| factor.mul_add(flux[field], cell[field]))
            };
            cells = (0..mesh.cells()).map(step).collect();
        }
    }
    (0..FIELDS).flat_map(|field| cells.iter().map(move |cell| cell[field])).collect()
}

/// The flow into a cell.
fn flux_into(mesh: Mesh, cells: &[Cell], number: u32) -> Cell {
    let cell = cells[number as usize];
    let (_, speed, pressure, speed_of_sound) = flow(&cell);
    let fluxes = fluxes(&cell);
    let mut sum = [0.0f32; FIELDS];
    for face in 0..FACES {
        let normal = face_normal(mesh, number, face);
        // Half of the flow through the face as seen by this cell, and half as seen by `other`.
        let exchange = |sum: &mut Cell, field: usize, other: &[[f32; 3]; FIELDS]| {
            let both = std::array::from_fn(|axis| fluxes[field][axis] + other[field][axis]);
            sum[field] = 0.5f32.mul_add(product(normal, both), sum[field]);
        };
        match neighbour(mesh, number, face) {
            WING => {
                for axis in 0..3 {
                    sum[1 + axis] = normal[axis].mul_add(pressure, sum[1 + axis]);
                }
            }
            FAR => (0..FIELDS).for_each(|field| exchange(&mut sum, field, &far_field().fluxes)),
            other => {
                let other = cells[other as usize];
                let (_, other_speed, _, other_speed_of_sound) = flow(&other);
                let speeds = speed + other_speed + speed_of_sound + other_speed_of_sound;
                let smoothing = -product(normal, normal).sqrt() * SMOOTHING * 0.5 * speeds;
                for field in 0..FIELDS {
                    sum[field] = smoothing.mul_add(cell[field] - other[field], sum[field]);
                    exchange(&mut sum, field, &self::fluxes(&other));
                }
            }
        }
    }
    sum
}

/// Velocity, speed, pressure and speed of sound.
fn flow(cell: &Cell) -> ([f32; 3], f32, f32, f32) {
    let [density, x, y, z, energy] = *cell;
    let volume = 1.0 / density;
    let velocity = [x * volume, y * volume, z * volume];
    let square = product(velocity, velocity);
    let pressure = (GAMMA - 1.0) * (energy - 0.5 * density * square);
    (velocity, square.sqrt(), pressure, (GAMMA * pressure * volume).sqrt())
}

/// The flow of each field through unit areas in x, y and z.
fn fluxes(cell: &Cell) -> [[f32; 3]; FIELDS] {
    let (velocity, _, pressure, _) = flow(cell);
    let carried = |amount: f32| velocity.map(|v| amount * v);
    let [density, x, y, z, energy] = *cell;
    let mut fluxes =
        [carried(density), carried(x), carried(y), carried(z), carried(energy + pressure)];
    for axis in 0..3 {
        fluxes[1 + axis][axis] += pressure;
    }
    fluxes
}

fn product(a: [f32; 3], b: [f32; 3]) -> f32 {
    a[2].mul_add(b[2], a[1].mul_add(b[1], a[0] * b[0]))
}
