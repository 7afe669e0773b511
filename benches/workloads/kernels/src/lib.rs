//! The kernels of the benchmarks that FLEP (ASPLOS 2017), EffiSha (PPoPP 2017) and Chimera (ASPLOS 2015) were
//! measured with, after their public definitions: Rodinia, SHOC, Parboil, and the CUDA samples. One file for each
//! benchmark.
//!
//! What launches them, with which inputs, and what the results have to be, is in `preempt-workloads`. Kernels
//! that only make inputs are here, too: inputs come from a seed, on the device.

pub mod b_plus_tree;
pub mod back_prop;
pub mod bfs;
pub mod black_scholes;
pub mod cfd;
pub mod cfd_mesh;
pub mod cp;
pub mod fft;
pub mod fwt;
pub mod heart_wall;
pub mod hot_spot;
pub mod input;
pub mod kmeans;
pub mod leukocyte;
pub mod lists;
pub mod lud;
pub mod md;
pub mod md5_hash;
pub mod mm;
pub mod mummer;
pub mod neural_net;
pub mod nn;
pub mod nw;
pub mod pf;
pub mod pl;
mod prefix;
pub mod reduction;
pub mod sad;
pub mod scan;
pub mod sort;
pub mod spmv;
pub mod stencil_2d;
pub mod stencil_3d;
pub mod triad;
pub mod va;

/// The sum of as many `values` as a power of two, for references: half of them are added to the other half, and so
/// on, as the threads of a block or the lanes of a warp do it.
pub fn sum_by_halves(values: &mut [f32]) -> f32 {
    let mut half = values.len() / 2;
    while half > 0 {
        for i in 0..half {
            values[i] += values[i + half];
        }
        half /= 2;
    }
    values[0]
}
