//! Nearest neighbours: the distances of records to a target (Rodinia, `nn`).

use preempt_device::prelude::*;

use crate::input::between;

/// Threads of a block.
pub const BLOCK: u32 = 256;

/// Where a hurricane was, in degrees.
#[derive(Clone, Copy, PartialEq, Debug, KernelArg)]
#[repr(C, align(8))]
pub struct Record {
    /// North of the equator.
    pub latitude: f32,
    /// East of Greenwich.
    pub longitude: f32,
}

/// Record `i` of the data set `seed`, in the range of the published data.
#[inline(always)]
pub fn record(seed: u32, i: u32) -> Record {
    Record {
        latitude: between(seed, i, 7.0, 64.0),
        longitude: between(seed.wrapping_add(1), i, 0.0, 359.0),
    }
}

/// The thread's number in a grid of one or two dimensions.
#[inline(always)]
fn index() -> u32 {
    let block = thread::block_idx_y() * thread::grid_dim_x() + thread::block_idx_x();
    block * BLOCK + thread::thread_idx_x()
}

/// `records[i] = record(seed, i)`; the grid may be larger than `records`.
#[preemptible(block = 256)]
pub fn nn_records(seed: u32, records: SliceMut<Record>) {
    let i = index();
    if (i as usize) < records.len() {
        // SAFETY: each thread writes its own element.
        unsafe { records.write(i as usize, record(seed, i)) }
    }
}

/// `distances[i]` is the Euclidean distance of `records[i]` from `target`, in degrees. One thread for each
/// record, in a grid of one or two dimensions, which may be larger than `distances`.
#[preemptible(block = 256)]
pub fn nn_distances(records: &[Record], target: Record, distances: SliceMut<f32>) {
    let i = index() as usize;
    if i < distances.len() {
        let Record { latitude, longitude } = records[i];
        let (north, east) = (target.latitude - latitude, target.longitude - longitude);
        let distance = GpuFloat::sqrt(GpuFloat::mul_add(north, north, east * east));
        // SAFETY: each thread writes its own element.
        unsafe { distances.write(i, distance) }
    }
}
