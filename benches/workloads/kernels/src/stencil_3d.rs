//! Seven-point stencil on a grid in three dimensions (Parboil, `stencil`).

use preempt_device::prelude::*;

/// Threads of a block in x, each of which has two columns.
const THREADS: u32 = 32;

/// Rows of a block-task's part of the grid, and threads of a block in y.
pub const ROWS: u32 = 4;

/// Columns of a block-task's part of the grid.
pub const COLUMNS: u32 = 2 * THREADS;

/// Cells of the grid in x, y and z.
#[derive(Clone, Copy, PartialEq, Eq, Debug, KernelArg)]
#[repr(C)]
pub struct Extents {
    /// Columns.
    pub x: u32,
    /// Rows.
    pub y: u32,
    /// Planes.
    pub z: u32,
}

/// Where a thread and its two columns are, and whether the cells in a plane are not at the grid's faces in y and z.
#[derive(Clone, Copy)]
struct Place {
    tx: u32,
    ty: u32,
    column: u32,
    /// Columns of the grid.
    columns: u32,
    /// Both cells in the grid.
    first_at: u32,
    second_at: u32,
    is_inner: bool,
}

impl Place {
    /// The next values of both cells, from theirs `now`, and in the planes before and after. `cell` reads the plane, and `near`
    /// the tile.
    ///
    /// The tile is read by volatile loads, because Rust 1.95 makes one load of both alternatives below, from whichever memory
    /// it is. The proof that the kernel can start again does not know such reads; the tile is written ahead of them in each
    /// round.
    #[inline(always)]
    fn next(
        self,
        cell: impl Fn(u32) -> f32,
        near: impl Fn(u32) -> f32,
        (of_neighbours, of_cell): (f32, f32),
        [first_before, second_before]: [f32; 2],
        [first, second]: [f32; 2],
        [first_after, second_after]: [f32; 2],
    ) -> [f32; 2] {
        let Place { tx, ty, column, columns, first_at, second_at, is_inner } = self;
        let last = columns - 1;
        let own = ty * COLUMNS + tx;
        let (mut first_next, mut second_next) = (first, second);
        if is_inner && column > 0 && column < last {
            let west = if tx > 0 { near(own - 1) } else { cell(first_at - 1) };
            let east = near(own + 1);
            let north = if ty > 0 { near(own - COLUMNS) } else { cell(first_at - columns) };
            let south = if ty + 1 < ROWS { near(own + COLUMNS) } else { cell(first_at + columns) };
            let sum = first_after + first_before + south + north + west + east;
            first_next = GpuFloat::mul_add(of_neighbours, sum, -(of_cell * first));
        }
        if is_inner && column + THREADS < last {
            let west = near(own + THREADS - 1);
            let east = if tx + 1 < THREADS { near(own + THREADS + 1) } else { cell(second_at + 1) };
            let north =
                if ty > 0 { near(own + THREADS - COLUMNS) } else { cell(second_at - columns) };
            let south = if ty + 1 < ROWS {
                near(own + THREADS + COLUMNS)
            } else {
                cell(second_at + columns)
            };
            let sum = second_after + second_before + south + north + west + east;
            second_next = GpuFloat::mul_add(of_neighbours, sum, -(of_cell * second));
        }
        [first_next, second_next]
    }
}

/// One iteration: each cell of `next` is `of_neighbours` times the sum of the six neighbours of the cell in `cells`,
/// less `of_cell` times that itself. Cells at the grid's faces stay as they are.
///
/// Both are plane by plane and row by row. One block-task for each [`COLUMNS`] by [`ROWS`] cells of all planes, x for
/// the columns; neither has to divide its extent.
#[preemptible(block = (32, 4), idempotent)]
pub fn stencil_7_points(
    of: Extents,
    of_neighbours: f32,
    of_cell: f32,
    cells: &[f32],
    next: SliceMut<f32>,
) {
    let tile = shared_array![f32; (COLUMNS * ROWS) as usize];
    let columns: u32 = of.x;
    let rows: u32 = of.y;
    let planes: u32 = of.z;
    let (tx, ty) = (thread::thread_idx_x(), thread::thread_idx_y());
    let column = thread::block_idx_x() * COLUMNS + tx;
    let row = thread::block_idx_y() * ROWS + ty;
    // Once, so that nothing below has to be checked. Elements have 32 bits, which takes fewer registers.
    assert!(columns > 0 && rows > 0 && planes > 1);
    assert!(thread::grid_dim_x() < u32::MAX / COLUMNS && thread::grid_dim_y() < u32::MAX / ROWS);
    let all = columns as u64 * rows as u64 * planes as u64;
    assert!(all <= cells.len() as u64 && all <= next.len() as u64 && all <= u32::MAX as u64);
    let of_plane = columns * rows;
    // Threads outside of the grid read its last cells.
    let last = columns - 1;
    let in_row = row.min(rows - 1) * columns;
    let (first_at, second_at) = (in_row + column.min(last), in_row + (column + THREADS).min(last));
    let is_inner_row = row > 0 && row + 1 < rows;
    let own = ty * COLUMNS + tx;
    // SAFETY: columns, rows and planes are below their numbers. In the tile, `tx + THREADS` is below `COLUMNS`, and
    // neighbours are read where they are in the block-task's part. Barriers lie between writes and reads by other threads.
    // Each thread writes its own elements of `next`.
    unsafe {
        let cell = |plane: u32, at: u32| *cells.get_unchecked((plane * of_plane + at) as usize);
        let (mut first_before, mut second_before) = (cell(0, first_at), cell(0, second_at));
        let (mut first, mut second) = (cell(1, first_at), cell(1, second_at));
        if row < rows && column < columns {
            next.as_mut_ptr().add(first_at as usize).write(first_before);
        }
        if row < rows && column + THREADS < columns {
            next.as_mut_ptr().add(second_at as usize).write(second_before);
        }
        let mut plane = 1;
        while plane < planes {
            tile.add(own as usize).write(first);
            tile.add((own + THREADS) as usize).write(second);
            thread::sync_threads();
            yield_point!();
            let after = (plane + 1).min(planes - 1);
            let (first_after, second_after) = (cell(after, first_at), cell(after, second_at));
            let is_inner = is_inner_row && plane + 1 < planes;
            let (first_at, second_at) = (plane * of_plane + first_at, plane * of_plane + second_at);
            let place = Place { tx, ty, column, columns, first_at, second_at, is_inner };
            let [first_next, second_next] = place.next(
                |at| *cells.get_unchecked(at as usize),
                |at| tile.add(at as usize).read_volatile(),
                (of_neighbours, of_cell),
                [first_before, second_before],
                [first, second],
                [first_after, second_after],
            );
            if row < rows && column < columns {
                next.as_mut_ptr().add(first_at as usize).write(first_next);
            }
            if row < rows && column + THREADS < columns {
                next.as_mut_ptr().add(second_at as usize).write(second_next);
            }
            thread::sync_threads();
            (first_before, second_before) = (first, second);
            (first, second) = (first_after, second_after);
            plane += 1;
        }
    }
}

/// What [`stencil_7_points`] computes, with a checkpoint in the place of its yield point.
#[preemptible(block = (32, 4), idempotent)]
pub fn stencil_7_points_saving(
    of: Extents,
    of_neighbours: f32,
    of_cell: f32,
    cells: &[f32],
    next: SliceMut<f32>,
) {
    let tile = shared_array![f32; (COLUMNS * ROWS) as usize];
    let columns: u32 = of.x;
    let rows: u32 = of.y;
    let planes: u32 = of.z;
    let (tx, ty) = (thread::thread_idx_x(), thread::thread_idx_y());
    let column = thread::block_idx_x() * COLUMNS + tx;
    let row = thread::block_idx_y() * ROWS + ty;
    // Once, so that nothing below has to be checked. Elements have 32 bits, which takes fewer registers.
    assert!(columns > 0 && rows > 0 && planes > 1);
    assert!(thread::grid_dim_x() < u32::MAX / COLUMNS && thread::grid_dim_y() < u32::MAX / ROWS);
    let all = columns as u64 * rows as u64 * planes as u64;
    assert!(all <= cells.len() as u64 && all <= next.len() as u64 && all <= u32::MAX as u64);
    let of_plane = columns * rows;
    // Threads outside of the grid read its last cells.
    let last = columns - 1;
    let in_row = row.min(rows - 1) * columns;
    let (first_at, second_at) = (in_row + column.min(last), in_row + (column + THREADS).min(last));
    let is_inner_row = row > 0 && row + 1 < rows;
    let own = ty * COLUMNS + tx;
    // SAFETY: columns, rows and planes are below their numbers.
    let cell =
        |plane: u32, at: u32| unsafe { *cells.get_unchecked((plane * of_plane + at) as usize) };
    let start = (cell(0, first_at), cell(0, second_at), cell(1, first_at), cell(1, second_at));
    let set = |plane: u32, [first, second]: [f32; 2]| {
        // SAFETY: as above, and each thread writes its own elements.
        unsafe {
            if row < rows && column < columns {
                next.as_mut_ptr().add((plane * of_plane + first_at) as usize).write(first);
            }
            if row < rows && column + THREADS < columns {
                next.as_mut_ptr().add((plane * of_plane + second_at) as usize).write(second);
            }
        }
    };
    set(0, [start.0, start.1]);
    // The cells in the plane before and in this one.
    checkpoint!(state: (f32, f32, f32, f32) = start => for plane in 1..of.z {
        let (first_before, second_before, first, second) = state;
        // SAFETY: in the tile, `tx + THREADS` is below `COLUMNS`, and neighbours are read where they are in the block-task's
        // part. Barriers lie between writes and reads by other threads.
        unsafe {
            tile.add(own as usize).write(first);
            tile.add((own + THREADS) as usize).write(second);
        }
        thread::sync_threads();
        let after = (plane + 1).min(planes - 1);
        let (first_after, second_after) = (cell(after, first_at), cell(after, second_at));
        let is_inner = is_inner_row && plane + 1 < planes;
        let (first_here, second_here) = (plane * of_plane + first_at, plane * of_plane + second_at);
        let place = Place { tx, ty, column, columns, first_at: first_here, second_at: second_here, is_inner };
        let values = place.next(
            // SAFETY: neighbours are in the grid.
            |at| unsafe { *cells.get_unchecked(at as usize) },
            // SAFETY: as above.
            |at| unsafe { tile.add(at as usize).read_volatile() },
            (of_neighbours, of_cell),
            [first_before, second_before],
            [first, second],
            [first_after, second_after],
        );
        set(plane, values);
        state = (first, second, first_after, second_after);
        // The next checkpoint is the same barrier.
        thread::sync_threads();
    });
}
