//! A solver of the Euler equations on an unstructured mesh (Rodinia, cfd: `euler3d`): finite volumes, with
//! four faces for each cell, and three steps of Runge-Kutta for each step in time.
//!
//! Fields are arrays of `cells` elements, one array after the other: density, momentum in x, y and z, and
//! energy. All quantities are without units: the pressure far away is 1, and so is the speed of sound there.

use preempt_device::prelude::*;

use crate::cfd_mesh::{Mesh, face_normal, neighbour, volume};

/// Threads of the blocks of all kernels here, as in Rodinia.
pub const BLOCK: u32 = 192;
/// Fields of the flow.
pub const FIELDS: usize = 5;
/// Faces of a cell.
pub const FACES: usize = 4;
/// Steps of Runge-Kutta for each step in time.
pub const STAGES: u32 = 3;
/// The neighbour across a face of the wing.
pub const WING: i32 = -1;
/// The neighbour across a face that looks far away.
pub const FAR: i32 = -2;

/// The ratio of specific heats.
pub const GAMMA: f32 = 1.4;
/// How much the flux smooths differences between cells.
pub const SMOOTHING: f32 = 0.2;
/// Of the longest time step that is stable.
pub const COURANT: f32 = 0.5;

const ENERGY: usize = 4;

/// What flows far from the wing. It travels in the launch itself.
#[derive(Clone, Copy, Debug, KernelArg)]
#[repr(C)]
pub struct FarField {
    /// Its density, momentum and energy.
    pub fields: [f32; FIELDS],
    /// What flows of each field through unit areas in x, y and z.
    pub fluxes: [[f32; 3]; FIELDS],
}

/// Neighbours, inward normals and volumes of the cells of `mesh`. `neighbours` has an array for each face, and
/// `normals` one for each face in x, then in y, then in z, as long as the face's area. The grid may be
/// larger than `volumes`.
#[preemptible(block = 192)]
pub fn cfd_make_mesh(
    mesh: Mesh,
    neighbours: SliceMut<i32>,
    normals: SliceMut<f32>,
    volumes: SliceMut<f32>,
) {
    let cell = thread::index_1d();
    let cells = mesh.cells();
    if cell < cells {
        let (at, stride) = (cell as usize, cells as usize);
        let mut face = 0;
        while face < FACES {
            let normal = face_normal(mesh, cell, face);
            // SAFETY: each thread writes its own cell.
            unsafe {
                neighbours.write(at + face * stride, neighbour(mesh, cell, face));
                normals.write(at + face * stride, normal[0]);
                normals.write(at + (FACES + face) * stride, normal[1]);
                normals.write(at + (2 * FACES + face) * stride, normal[2]);
            }
            face += 1;
        }
        // SAFETY: as above.
        unsafe { volumes.write(at, volume(mesh, cell)) };
    }
}

/// The far field everywhere, in `cells` cells; the grid may be larger.
#[preemptible(block = 192)]
pub fn cfd_initialize_variables(far: FarField, cells: u32, variables: SliceMut<f32>) {
    let cell = thread::index_1d();
    if cell < cells {
        let mut field = 0;
        while field < FIELDS {
            // SAFETY: each thread writes its own cell.
            unsafe { variables.write(cell as usize + field * cells as usize, far.fields[field]) };
            field += 1;
        }
    }
}

/// `old[i] = variables[i]`; the grid may be larger.
#[preemptible(block = 192)]
pub fn cfd_copy(variables: &[f32], old: SliceMut<f32>) {
    let i = thread::index_1d() as usize;
    if i < old.len() {
        // SAFETY: each thread writes its own element.
        unsafe { old.write(i, variables[i]) }
    }
}

/// The time step of each cell, over its volume; the grid may be larger than `factors`.
#[preemptible(block = 192)]
pub fn cfd_compute_step_factor(variables: &[f32], volumes: &[f32], factors: SliceMut<f32>) {
    let (cell, cells) = (thread::index_1d() as usize, factors.len());
    assert!(variables.len() == FIELDS * cells && volumes.len() == cells);
    if cell < cells {
        // SAFETY: one of the cells.
        let state = unsafe { State::load(variables.as_ptr(), cell, cells) };
        let length = GpuFloat::sqrt(volumes[cell]);
        let factor = COURANT / (length * (state.speed + state.speed_of_sound));
        // SAFETY: each thread writes its own element.
        unsafe { factors.write(cell, factor) };
    }
}

/// What flows into each cell of each field: `fluxes`. The grid may be larger than the number of `cells`,
/// of which the neighbours of each are cells, [`WING`] or [`FAR`].
#[preemptible(block = 192)]
pub fn cfd_compute_flux(
    far: FarField,
    cells: u32,
    neighbours: &[i32],
    normals: &[f32],
    variables: &[f32],
    fluxes: SliceMut<f32>,
) {
    let (cell, cells) = (thread::index_1d() as usize, cells as usize);
    // Once, so that only neighbours have to be checked below.
    assert!(neighbours.len() == FACES * cells && normals.len() == 3 * FACES * cells);
    assert!(variables.len() == FIELDS * cells && fluxes.len() == FIELDS * cells);
    if cell < cells {
        let (neighbours, normals) = (neighbours.as_ptr(), normals.as_ptr());
        let variables = variables.as_ptr();
        let mut flux = [0.0; FIELDS];
        // SAFETY: all indices are of one of the cells, in arrays whose lengths were checked, and each
        // thread writes its own cell.
        unsafe {
            let own = State::load(variables, cell, cells);
            let mut face = 0;
            while face < FACES {
                let other = neighbours.add(cell + face * cells).read();
                let normal = [
                    normals.add(cell + face * cells).read(),
                    normals.add(cell + (FACES + face) * cells).read(),
                    normals.add(cell + (2 * FACES + face) * cells).read(),
                ];
                if other >= 0 {
                    assert!((other as usize) < cells);
                    let other = State::load(variables, other as usize, cells);
                    let area = GpuFloat::sqrt(dot(normal, normal));
                    let speeds =
                        own.speed + other.speed + own.speed_of_sound + other.speed_of_sound;
                    let smoothing = -area * SMOOTHING * 0.5 * speeds;
                    let mut field = 0;
                    while field < FIELDS {
                        let difference = own.fields[field] - other.fields[field];
                        flux[field] = GpuFloat::mul_add(smoothing, difference, flux[field]);
                        let (a, b) = (own.flux(field), other.flux(field));
                        let both = [a[0] + b[0], a[1] + b[1], a[2] + b[2]];
                        flux[field] = GpuFloat::mul_add(0.5, dot(normal, both), flux[field]);
                        field += 1;
                    }
                } else if other == WING {
                    let mut axis = 0;
                    while axis < 3 {
                        let push = own.pressure;
                        flux[1 + axis] = GpuFloat::mul_add(normal[axis], push, flux[1 + axis]);
                        axis += 1;
                    }
                } else {
                    let mut field = 0;
                    while field < FIELDS {
                        let (a, b) = (own.flux(field), far.fluxes[field]);
                        let both = [a[0] + b[0], a[1] + b[1], a[2] + b[2]];
                        flux[field] = GpuFloat::mul_add(0.5, dot(normal, both), flux[field]);
                        field += 1;
                    }
                }
                face += 1;
            }
            let mut field = 0;
            while field < FIELDS {
                fluxes.as_mut_ptr().add(cell + field * cells).write(flux[field]);
                field += 1;
            }
        }
    }
}

/// One step of Runge-Kutta, `stage` from 0: `variables = old + factors / (STAGES - stage) * fluxes`. The grid
/// may be larger than `factors`.
#[preemptible(block = 192)]
pub fn cfd_time_step(
    stage: u32,
    old: &[f32],
    factors: &[f32],
    fluxes: &[f32],
    variables: SliceMut<f32>,
) {
    let (cell, cells) = (thread::index_1d() as usize, factors.len());
    if cell < cells {
        let factor = factors[cell] / (STAGES - stage) as f32;
        let mut field = 0;
        while field < FIELDS {
            let at = cell + field * cells;
            let new = GpuFloat::mul_add(factor, fluxes[at], old[at]);
            // SAFETY: each thread writes its own cell.
            unsafe { variables.write(at, new) };
            field += 1;
        }
    }
}

/// The flow in a cell.
#[derive(Clone, Copy)]
struct State {
    fields: [f32; FIELDS],
    velocity: [f32; 3],
    speed: f32,
    pressure: f32,
    speed_of_sound: f32,
}

impl State {
    /// # Safety
    ///
    /// `variables` has [`FIELDS`] arrays of `cells` elements, and `cell` is below `cells`.
    #[inline(always)]
    unsafe fn load(variables: *const f32, cell: usize, cells: usize) -> State {
        // SAFETY: the caller's promise.
        let field = |field: usize| unsafe { variables.add(cell + field * cells).read() };
        let fields = [field(0), field(1), field(2), field(3), field(4)];
        let inverse = 1.0 / fields[0];
        let velocity = [fields[1] * inverse, fields[2] * inverse, fields[3] * inverse];
        let square = dot(velocity, velocity);
        let pressure = (GAMMA - 1.0) * (fields[ENERGY] - 0.5 * fields[0] * square);
        let speed_of_sound = GpuFloat::sqrt(GAMMA * pressure * inverse);
        State { fields, velocity, speed: GpuFloat::sqrt(square), pressure, speed_of_sound }
    }

    /// What flows of a field through unit areas in x, y and z.
    #[inline(always)]
    fn flux(&self, field: usize) -> [f32; 3] {
        let v = self.velocity;
        let carried =
            if field == ENERGY { self.fields[ENERGY] + self.pressure } else { self.fields[field] };
        let mut flux = [carried * v[0], carried * v[1], carried * v[2]];
        if 0 < field && field < ENERGY {
            flux[field - 1] += self.pressure;
        }
        flux
    }
}

#[inline(always)]
fn dot(a: [f32; 3], b: [f32; 3]) -> f32 {
    GpuFloat::mul_add(a[2], b[2], GpuFloat::mul_add(a[1], b[1], a[0] * b[0]))
}
