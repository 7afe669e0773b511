//! Clusters of points.

use preempt::Error;
use preempt_workload_kernels::input::between;
use preempt_workload_kernels::kmeans::{
    BLOCK, Extents, PART, invert_mapping, kmeans_centers, kmeans_point, kmeans_sums,
};

use crate::{Definition, Memory, Output, Program, Size, Tolerance, blocks, random_f32};

pub const DEFINITION: Definition =
    Definition { name: "KM", source: "Rodinia, kmeans", flep_amortize: 1, build };

const RANGE: (f32, f32) = (0.0, 1.0);

/// As in Rodinia's input of the KDD Cup, and its default.
const FEATURES: u32 = 34;
const CLUSTERS: u32 = 5;

/// Rounds of a run.
const ROUNDS: u32 = 2;

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    let points: u32 = match size {
        Size::Reduced => 9001,
        Size::Trivial => 4 << 10,
        Size::Small => 400_000,
        // Eight times the paper's: 0.6 GB, and as much in the other order.
        Size::Large => 4 << 20,
    };
    let extents = Extents { points, features: FEATURES, clusters: CLUSTERS };
    let length = (points * FEATURES) as usize;
    let all = (CLUSTERS * FEATURES) as usize;
    let mut setup = Vec::new();
    let data = random_f32(memory, &mut setup, seed, RANGE, length)?;
    let mut by_feature = memory.zeroed(length)?;
    let mut membership = memory.zeroed(points as usize)?;
    let parts = blocks(points as usize, PART);
    let mut sums = memory.zeroed(parts as usize * all)?;
    let mut counts = memory.zeroed(parts as usize * all)?;
    let grid = blocks(points as usize, BLOCK);
    let mut steps = vec![invert_mapping(extents, &data, &mut by_feature).grid(grid)];
    // The first points, as in the original.
    let mut centers = random_f32(memory, &mut setup, seed, RANGE, all)?;
    for _ in 0..ROUNDS {
        // Centers are not changed in place, so that a run can be repeated.
        let mut next = memory.zeroed(all)?;
        steps.extend([
            kmeans_point(extents, &by_feature, &centers, &mut membership).grid(grid),
            kmeans_sums(extents, &data, &membership, &mut sums, &mut counts).grid(parts),
            kmeans_centers(&sums, &counts, &centers, &mut next).grid(blocks(all, BLOCK)),
        ]);
        centers = next;
    }
    let members = move || reference(seed, extents).0;
    let means = move || reference(seed, extents).1;
    // In the kernels' order.
    let outputs = vec![
        Output::integers(memory, "membership", membership, members)?,
        Output::floats(memory, "centers", centers, Tolerance::Exact, means)?,
    ];
    Ok(Program { setup, steps, dominant: 1, outputs })
}

/// The center of each point in the last round, and the centers after it.
fn reference(seed: u32, Extents { points, features, clusters }: Extents) -> (Vec<u32>, Vec<f32>) {
    let element = |i| between(seed, i, RANGE.0, RANGE.1);
    let data: Vec<f32> = (0..points * features).map(element).collect();
    let data: Vec<&[f32]> = data.chunks(features as usize).collect();
    let mut centers: Vec<Vec<f32>> = data[..clusters as usize].iter().map(|x| x.to_vec()).collect();
    let mut membership = vec![0; points as usize];
    for _ in 0..ROUNDS {
        for (own, point) in membership.iter_mut().zip(&data) {
            let distance = |center: &Vec<f32>| {
                let pairs = point.iter().zip(center);
                pairs.fold(0.0f32, |sum, (x, y)| (x - y).mul_add(x - y, sum))
            };
            let distances: Vec<f32> = centers.iter().map(distance).collect();
            let least = distances.iter().copied().fold(f32::INFINITY, f32::min);
            *own = distances.iter().position(|&distance| distance == least).unwrap_or(0) as u32;
        }
        for (cluster, center) in (0..).zip(&mut centers) {
            let count = membership.iter().filter(|&&own| own == cluster).count();
            for (feature, mean) in center.iter_mut().enumerate().filter(|_| count > 0) {
                let parts = data.chunks(PART as usize).zip(membership.chunks(PART as usize));
                let sums = parts.map(|(points, members)| {
                    let own = points.iter().zip(members).filter(|&(_, &own)| own == cluster);
                    own.fold(0.0f32, |sum, (point, _)| sum + point[feature])
                });
                *mean = sums.fold(0.0f32, |sum, part| sum + part) / count as f32;
            }
        }
    }
    (membership, centers.concat())
}
