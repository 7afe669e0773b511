//! Product of a sparse matrix in compressed rows and a vector (SHOC, `Spmv`, its vector kernel for CSR).

use preempt_device::prelude::*;

use crate::input::{between, hash};
use crate::sum_by_halves;

/// Threads of a block.
pub const BLOCK: u32 = 128;

/// Rows of a block-task: one for each warp.
pub const ROWS: usize = BLOCK as usize / LANES;

/// Threads of a warp.
pub const LANES: usize = 32;

/// Elements of a row between two yield points: 8 for each lane, about 4 µs.
const CHUNK: u32 = 256;

/// What values are between.
const RANGE: (f32, f32) = (-1.0, 1.0);

/// `y[row] = ` the sum of `values[j] * x[columns[j]]` for `j` from `starts[row]` up to `starts[row + 1]`. One
/// block-task for each [`ROWS`] rows; there may be more.
///
/// A long row takes its warp 100 µs or more, which is why there are yield points. Block-tasks write only `y`,
/// which none reads. The order of additions is that of [`row_in_order`].
#[preemptible(block = BLOCK)]
pub fn spmv_vector(starts: &[u32], columns: &[u32], values: &[f32], x: &[f32], y: SliceMut<f32>) {
    let t = thread::thread_idx_x() as usize;
    let lane = t % LANES;
    let first = (thread::block_idx_x() as usize * ROWS).min(y.len());
    let last = (first + ROWS).min(y.len());
    // All rows of the block-task together, which are at least as long as the longest.
    let elements = starts[last] - starts[first];
    let row = first + t / LANES;
    let (start, end) = if row < last { (starts[row], starts[row + 1]) } else { (0, 0) };
    assert!(start <= end && end <= 1 << 31);
    assert!(end as usize <= columns.len() && end as usize <= values.len());
    // A column past the end counts as the last one: a check would keep values from being loaded together with
    // columns.
    assert!(!x.is_empty() && x.len() <= 1 << 31);
    let last_column = x.len() as u32 - 1;
    let mut j = start + lane as u32;
    let mut sum = 0.0f32;
    let mut chunk = 0;
    while chunk < elements {
        // Most block-tasks have two chunks at most, and no need of yield points.
        if chunk > CHUNK {
            yield_point!();
        }
        chunk += CHUNK;
        let stop = end.min(start + chunk);
        // SAFETY: `stop` is at most `end`, which is within both arrays, and no column is past the last.
        unsafe {
            let x = |column: u32| *x.get_unchecked(column.min(last_column) as usize);
            // Two at once, so that their loads are under way together.
            while j + (LANES as u32) < stop {
                let (value, column) =
                    (values.as_ptr().add(j as usize), columns.as_ptr().add(j as usize));
                let (a, b) = (column.read(), column.add(LANES).read());
                sum = GpuFloat::mul_add(value.read(), x(a), sum);
                sum = GpuFloat::mul_add(value.add(LANES).read(), x(b), sum);
                j += 2 * LANES as u32;
            }
            // At most one is left.
            if j < stop {
                let column = *columns.get_unchecked(j as usize);
                sum = GpuFloat::mul_add(*values.get_unchecked(j as usize), x(column), sum);
                j += LANES as u32;
            }
        }
    }
    let mut distance = LANES as u32 / 2;
    while distance > 0 {
        // SAFETY: all threads of the block come here.
        sum += unsafe { warp::warp_shuffle_down(warp::FULL_MASK, sum, distance, 32).0 };
        distance /= 2;
    }
    if lane == 0 && row < last {
        // SAFETY: one thread for each row.
        unsafe { y.write(row, sum) }
    }
}

/// The sum of `length` terms as [`spmv_vector`] adds them up, of which `term` gives the factors.
pub fn row_in_order(length: u32, term: impl Fn(u32) -> (f32, f32)) -> f32 {
    let mut sums = [0.0f32; LANES];
    for k in 0..length {
        let (a, b) = term(k);
        let sum = &mut sums[k as usize % LANES];
        *sum = GpuFloat::mul_add(a, b, *sum);
    }
    sum_by_halves(&mut sums)
}

/// Makes the matrix whose rows start at `starts`, from [`column()`] and [`value`]. The last of `starts` is the
/// end; one block-task for each [`ROWS`] rows.
#[preemptible(block = BLOCK)]
pub fn spmv_matrix(seed: u32, starts: &[u32], columns: SliceMut<u32>, values: SliceMut<f32>) {
    let t = thread::thread_idx_x() as usize;
    let row = thread::block_idx_x() as usize * ROWS + t / LANES;
    let rows = starts.len() - 1;
    if row < rows {
        let (start, end) = (starts[row], starts[row + 1]);
        let mut k = (t % LANES) as u32;
        while k < end - start {
            let at = (start + k) as usize;
            // SAFETY: each element is in one row, and there in one lane's part.
            unsafe {
                columns.write(at, column(seed, start, k, end - start, rows as u32));
                values.write(at, value(seed, start + k));
            }
            k += LANES as u32;
        }
    }
}

/// The column of element `k` in a row of `length` elements that starts at `start`: a random one in an equal
/// share of all columns, so that columns ascend in a row.
#[inline(always)]
pub const fn column(seed: u32, start: u32, k: u32, length: u32, columns: u32) -> u32 {
    let within = hash(seed, start + k) % columns;
    ((k as u64 * columns as u64 + within as u64) / length as u64) as u32
}

/// The value of element `i` of the matrix.
#[inline(always)]
pub fn value(seed: u32, i: u32) -> f32 {
    between(seed.wrapping_add(1), i, RANGE.0, RANGE.1)
}
