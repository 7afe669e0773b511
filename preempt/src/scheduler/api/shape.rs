//! The shape of a launch on a device, and the checks of grid and block.

use preempt_device::abi::MAX_TASKS;
use preempt_device::host::{Call, Dim3, Extents, IntoExtents};

use crate::device::{Device, Occupancy};
use crate::error::{ConfigurationError, Error};

/// Threads, at most, in a block, and in its z extent (CUDA C++ programming guide, compute capabilities).
const MAX_BLOCK_THREADS: u128 = 1024;
const MAX_BLOCK_Z: u32 = 64;

/// Blocks, at most, of a grid in y and in z (CUDA C++ programming guide, compute capabilities).
const MAX_GRID_YZ: u32 = 65_535;

/// The shape of a launch on a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// The grid, in block-tasks.
    pub grid: Dim3,
    /// Block-tasks in the grid.
    pub tasks: u32,
    /// Threads in a block.
    pub block: Dim3,
    /// An SM holds at least one block.
    pub occupancy: Occupancy,
}

impl Shape {
    /// The shape of a call on this device.
    ///
    /// # Errors
    ///
    /// What is wrong with the grid, the block, the shared memory or the device code.
    pub fn of(call: &Call<'_>, device: &Device) -> Result<Shape, Error> {
        let kernel = call.kernel();
        let block = check_block(call)?;
        let asked = call
            .asked_grid()
            .ok_or(Error::Configuration(ConfigurationError::NoBlock { kernel: kernel.name }))?;
        let (grid, tasks) = check_grid(kernel.name, asked)?;
        if call.args().needs_one_dimension() {
            check_indices(kernel.name, grid, block)?;
        }
        let bytes = call.shared_bytes();
        if bytes == u64::MAX {
            let kernel = kernel.name;
            return Err(Error::Configuration(ConfigurationError::SharedLength { kernel }));
        }
        // More than 32 bits are more than any device has.
        let shared = bytes.try_into().unwrap_or(u32::MAX);
        let occupancy = device.inner.backend.occupancy(kernel, block, shared, tasks)?;
        if occupancy.blocks_per_sm == 0 {
            let limit = device.properties().shared_per_block;
            let kernel = kernel.name;
            return Err(Error::Configuration(ConfigurationError::SharedMemory {
                kernel,
                bytes,
                limit,
            }));
        }
        Ok(Shape { grid, tasks, block, occupancy })
    }
}

/// The grid, and the number of its block-tasks.
fn check_grid(kernel: &'static str, asked: Extents) -> Result<(Dim3, u32), Error> {
    let grid = asked.clamped();
    match grid.count() {
        0 => Err(Error::Configuration(ConfigurationError::EmptyGrid { kernel, grid: asked })),
        tasks if tasks <= u128::from(MAX_TASKS) && grid.y.max(grid.z) <= MAX_GRID_YZ => {
            Ok((grid, tasks as u32))
        }
        _ => Err(Error::Configuration(ConfigurationError::GridTooLarge { kernel, grid: asked })),
    }
}

/// Whether the index in x tells all threads apart, in 32 bits.
fn check_indices(kernel: &'static str, grid: Dim3, block: Dim3) -> Result<(), Error> {
    Err(Error::Configuration(match [grid.y, grid.z, block.y, block.z] {
        [1, 1, 1, 1] if grid.count() * block.count() <= 1 << 32 => return Ok(()),
        [1, 1, 1, 1] => ConfigurationError::TooManyThreads { kernel, grid, block },
        _ => ConfigurationError::NotOneDimensional { kernel, grid, block },
    }))
}

/// The block that a call runs with.
fn check_block(call: &Call<'_>) -> Result<Dim3, Error> {
    let kernel = call.kernel().name;
    let asked = match (call.kernel().block, call.asked_block()) {
        (Some(fixed), Some(asked)) if fixed.into_extents() != asked => {
            return Err(Error::Configuration(ConfigurationError::OtherBlock {
                kernel,
                fixed,
                asked,
            }));
        }
        (Some(fixed), _) => fixed.into_extents(),
        (None, Some(asked)) => asked,
        (None, None) => return Err(Error::Configuration(ConfigurationError::NoBlock { kernel })),
    };
    let block = asked.clamped();
    match (1..=MAX_BLOCK_THREADS).contains(&block.count()) && block.z <= MAX_BLOCK_Z {
        true => Ok(block),
        false => Err(Error::Configuration(ConfigurationError::BadBlock { kernel, block: asked })),
    }
}
