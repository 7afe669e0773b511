//! Nine-point stencil on a grid in two dimensions (SHOC, `Stencil2D`).

use preempt_device::prelude::*;

/// Columns of a block-task's part of the grid, and threads of a block in x.
pub const COLUMNS: usize = 64;
/// Threads of a block in y.
const GROUPS: usize = 4;
/// Rows below one another that a thread computes.
const ROWS_OF_THREAD: usize = 4;
/// Rows of a block-task's part of the grid.
pub const ROWS: usize = GROUPS * ROWS_OF_THREAD;
/// Columns of the tile in shared memory: one more on each side.
const TILE_COLUMNS: usize = COLUMNS + 2;
/// Rows of the tile in shared memory: one more on each side.
const TILE_ROWS: usize = ROWS + 2;

/// What a cell and its neighbours count for in the cell's next value.
#[derive(Clone, Copy, Debug, KernelArg)]
#[repr(C)]
pub struct Weights {
    /// Of the cell itself.
    pub center: f32,
    /// Of each of the four cells that share an edge with it.
    pub cardinal: f32,
    /// Of each of the four cells that share only a corner with it.
    pub diagonal: f32,
}

impl Weights {
    /// The next value of the cell in the middle of three rows of three cells each.
    #[inline(always)]
    pub fn apply(self, above: [f32; 3], row: [f32; 3], below: [f32; 3]) -> f32 {
        let cardinal = (above[1] + below[1]) + (row[0] + row[2]);
        let diagonal = (above[0] + below[0]) + (above[2] + below[2]);
        let edges = GpuFloat::mul_add(self.cardinal, cardinal, self.center * row[1]);
        GpuFloat::mul_add(self.diagonal, diagonal, edges)
    }
}

/// One iteration: each cell of `next` is the weighted sum of the nine cells of `cells` around it.
///
/// Both are `rows` by `columns` cells, row by row; what would lie outside of them is `outside`. One
/// block-task for each [`ROWS`] by [`COLUMNS`] cells, x for the columns; neither has to divide its extent.
#[preemptible(block = (64, 4))]
pub fn stencil_9_points(
    weights: Weights,
    outside: f32,
    cells: &[f32],
    next: SliceMut<f32>,
    rows: u32,
    columns: u32,
) {
    let tile = shared_array![f32; TILE_COLUMNS * TILE_ROWS];
    let (tx, ty) = (thread::thread_idx_x() as usize, thread::thread_idx_y() as usize);
    let first_row = thread::block_idx_y() as usize * ROWS;
    let first_column = thread::block_idx_x() as usize * COLUMNS;
    let (rows, columns) = (rows as usize, columns as usize);
    // Once, so that nothing below has to be checked.
    assert!(rows * columns <= cells.len() && rows * columns <= next.len());
    // Row and column count from the tile's upper left corner, one above and left of the block-task's part.
    let load = |row: usize, column: usize| {
        let (y, x) = ((first_row + row).wrapping_sub(1), (first_column + column).wrapping_sub(1));
        // SAFETY: below `rows * columns` if the cell is in the grid. Rows are below `TILE_ROWS` and columns
        // below `TILE_COLUMNS`, and each element of the tile is written by one thread.
        unsafe {
            let inside = y < rows && x < columns;
            let cell = if inside { *cells.get_unchecked(y * columns + x) } else { outside };
            tile.add(row * TILE_COLUMNS + column).write(cell);
        }
    };
    let mut row = ty;
    while row < TILE_ROWS {
        load(row, 1 + tx);
        // The columns at the left and right edge.
        if tx < 2 {
            load(row, tx * (COLUMNS + 1));
        }
        row += GROUPS;
    }
    thread::sync_threads();
    let column = first_column + tx;
    let first = ty * ROWS_OF_THREAD;
    // SAFETY: `first + i + 2` is below `TILE_ROWS` and `tx + 2` below `TILE_COLUMNS`; the tile was written
    // before the barrier. Each thread writes its own elements of `next`, if they are in the grid.
    unsafe {
        let three = |row: usize| {
            let left = tile.add(row * TILE_COLUMNS + tx);
            [left.read(), left.add(1).read(), left.add(2).read()]
        };
        let (mut above, mut middle) = (three(first), three(first + 1));
        let mut i = 0;
        while i < ROWS_OF_THREAD {
            let below = three(first + i + 2);
            let row = first_row + first + i;
            if row < rows && column < columns {
                let cell = weights.apply(above, middle, below);
                next.as_mut_ptr().add(row * columns + column).write(cell);
            }
            (above, middle) = (middle, below);
            i += 1;
        }
    }
}
