//! Clusters of points around their means (Rodinia, `kmeans`).
//!
//! Centers are one after the other with all their features. The original adds up new centers on the host.

use preempt_device::prelude::*;

/// Threads of a block, and the most features of all centers together.
pub const BLOCK: u32 = 256;

/// Points that a block-task of [`kmeans_sums`] adds up.
pub const PART: u32 = 1024;

/// Points that a thread of [`kmeans_sums`] adds up between two yield points. It reads the members first, and then what it adds
/// up, so it waits for memory twice.
const CHUNK: usize = 4;

/// Sums that a thread of [`kmeans_centers`] adds up between two yield points. It waits for each of them.
const SUMS: usize = 8;

/// How many there are of what.
#[derive(Clone, Copy, PartialEq, Eq, Debug, KernelArg)]
#[repr(C)]
pub struct Extents {
    /// Points.
    pub points: u32,
    /// Features of a point.
    pub features: u32,
    /// Centers.
    pub clusters: u32,
}

/// `by_feature[feature * points + i] = points[i * features + feature]`, for `of` points. The grid may be larger.
#[preemptible(block = BLOCK)]
pub fn invert_mapping(of: Extents, points: &[f32], by_feature: SliceMut<f32>) {
    let number: u32 = of.points;
    let features: u32 = of.features;
    let (number, features) = (number as usize, features as usize);
    let i = thread::index_1d() as usize;
    // Once, so that nothing below has to be checked.
    assert!(number * features <= points.len() && number * features <= by_feature.len());
    if i < number {
        let mut feature = 0;
        while feature < features {
            yield_point!();
            // SAFETY: `i` and `feature` are below their numbers, and each thread writes its own elements.
            unsafe {
                let x = *points.get_unchecked(i * features + feature);
                by_feature.as_mut_ptr().add(feature * number + i).write(x);
            }
            feature += 1;
        }
    }
}

/// `membership[i]` is the center that point `i` is nearest to, the first of several. `by_feature` is what
/// [`invert_mapping`] writes. The grid may be larger.
#[preemptible(block = BLOCK)]
pub fn kmeans_point(of: Extents, by_feature: &[f32], centers: &[f32], membership: SliceMut<u32>) {
    let number: u32 = of.points;
    let features: u32 = of.features;
    let clusters: u32 = of.clusters;
    let (number, features) = (number as usize, features as usize);
    let i = thread::index_1d() as usize;
    // Once, so that nothing below has to be checked.
    assert!(number * features <= by_feature.len() && clusters as usize * features <= centers.len());
    assert!(number <= membership.len());
    if i < number {
        let (mut nearest, mut least) = (0, f32::INFINITY);
        let mut cluster = 0;
        while cluster < clusters {
            yield_point!();
            let mut distance = 0.0f32;
            let mut feature = 0;
            while feature < features {
                // SAFETY: all are below their numbers.
                let (x, center) = unsafe {
                    let center = centers.get_unchecked(cluster as usize * features + feature);
                    (*by_feature.get_unchecked(feature * number + i), *center)
                };
                distance = GpuFloat::mul_add(x - center, x - center, distance);
                feature += 1;
            }
            if distance < least {
                (nearest, least) = (cluster, distance);
            }
            cluster += 1;
        }
        // SAFETY: each thread writes its own element.
        unsafe { membership.as_mut_ptr().add(i).write(nearest) }
    }
}

/// The sums of the features of each center's points, and their numbers. A block-task for each [`PART`] points
/// adds up those, and writes its own sums, and the numbers of points after all sums, one for each sum. There are
/// at most [`BLOCK`] sums.
///
/// It reads points as they come, in which features that threads of a warp add up follow each other.
#[preemptible(block = BLOCK)]
pub fn kmeans_sums(
    of: Extents,
    points: &[f32],
    membership: &[u32],
    sums: SliceMut<f32>,
    counts: SliceMut<u32>,
) {
    let number: u32 = of.points;
    let features: u32 = of.features;
    let clusters: u32 = of.clusters;
    let (t, part) = (thread::thread_idx_x(), thread::block_idx_x());
    let all = features * clusters;
    // Once, so that nothing below has to be checked.
    assert!(all <= BLOCK && number as usize * features as usize <= points.len());
    assert!(number as usize <= membership.len());
    if t < all {
        let (cluster, feature) = (t / features, t % features);
        let (mut i, end) = ((part * PART) as usize, number.min((part + 1) * PART) as usize);
        let (mut sum, mut count) = (0.0f32, 0);
        while i < end {
            yield_point!();
            let mut is_one = [false; CHUNK];
            let mut k = 0;
            while k < CHUNK {
                // The last point again where there are fewer.
                let at = if i + k < end { i + k } else { end - 1 };
                // SAFETY: `at` is below the number of points.
                let member = unsafe { *membership.get_unchecked(at) };
                is_one[k] = member == cluster && i + k < end;
                k += 1;
            }
            let mut found = [0.0; CHUNK];
            let mut k = 0;
            while k < CHUNK {
                if is_one[k] {
                    let at = (i + k) * features as usize + feature as usize;
                    // SAFETY: there is a point, and `feature` is below the number of features.
                    found[k] = unsafe { *points.get_unchecked(at) };
                }
                k += 1;
            }
            let mut k = 0;
            while k < CHUNK {
                sum += found[k];
                count += is_one[k] as u32;
                k += 1;
            }
            i += CHUNK;
        }
        let at = part as usize * all as usize + t as usize;
        // SAFETY: each thread writes its own elements.
        unsafe {
            sums.write(at, sum);
            counts.write(at, count);
        }
    }
}

/// The mean of each center's points, from what [`kmeans_sums`] writes; a center without points stays where it
/// is. One thread for each feature of each center; the grid may be larger.
#[preemptible(block = BLOCK)]
pub fn kmeans_centers(sums: &[f32], counts: &[u32], centers: &[f32], next: SliceMut<f32>) {
    let (i, all) = (thread::index_1d() as usize, centers.len());
    if i < all {
        let (mut sum, mut count) = (0.0, 0);
        let mut at = i;
        while at < sums.len() {
            yield_point!();
            let stop = sums.len().min(at + SUMS * all);
            while at < stop {
                sum += sums[at];
                count += counts[at];
                at += all;
            }
        }
        let center = if count == 0 { centers[i] } else { sum / count as f32 };
        // SAFETY: each thread writes its own element.
        unsafe { next.write(i, center) }
    }
}
