//! The cheapest way through a grid, from its first row to its last (Rodinia, `pathfinder`).

use preempt_device::prelude::*;

/// Threads of a block.
pub const BLOCK: usize = 256;

/// Costs are below this.
pub const COSTS: u32 = 10;

/// The columns whose results a block-task writes: each row uses up one column on each side of the tile,
/// and there are at most `pyramid` rows.
pub const fn columns_of_task(pyramid: u32) -> u32 {
    BLOCK as u32 - 2 * pyramid
}

/// Goes on by `rows` rows from the row before `first`: `to[x]` is the cost of the cheapest way to column `x`
/// of row `first + rows - 1`, where each step goes straight down or to a column beside that, and `from` is
/// the same of the row before `first`.
///
/// `wall` has the costs of all rows of `columns` cells, one after the other. `rows` is at most `pyramid`,
/// which is less than half of a block. One block-task for each [`columns_of_task`] columns.
#[preemptible(block = 256)]
pub fn dynproc(
    wall: &[u32],
    from: &[u32],
    to: SliceMut<u32>,
    columns: u32,
    first: u32,
    rows: u32,
    pyramid: u32,
) {
    // The row before and the row, which change places.
    let tile = shared_array![u32; 2 * BLOCK];
    let tx = thread::thread_idx_x() as usize;
    let (columns, first) = (columns as usize, first as usize);
    let (rows, pyramid) = (rows as usize, pyramid as usize);
    // Once, so that nothing below has to be checked.
    assert!(rows <= pyramid && pyramid < BLOCK / 2);
    assert!(columns <= from.len() && columns <= to.len() && (first + rows) * columns <= wall.len());
    let start = thread::block_idx_x() as usize * (BLOCK - 2 * pyramid);
    // Larger than any column left of the grid.
    let x = (start + tx).wrapping_sub(pyramid);
    let inside = x < columns;
    // There is no way through columns outside of the grid.
    let left = if x == 0 { tx } else { tx.saturating_sub(1) };
    let right = if x.wrapping_add(1) == columns { tx } else { (tx + 1).min(BLOCK - 1) };
    let mut at = (first * columns).wrapping_add(x);
    // SAFETY: a thread reads and writes global memory in its own column, if that is in the grid, and `wall`
    // only in rows before `first + rows`. `tx`, `left`, and `right` are below `BLOCK`. The half that is read
    // was written before the barrier, the other one is not read before the next barrier.
    unsafe {
        let mut cost = if inside && rows > 0 { *wall.get_unchecked(at) } else { 0 };
        tile.add(tx).write(if inside { *from.get_unchecked(x) } else { u32::MAX });
        let (mut before, mut after) = (0, BLOCK);
        let mut row = 0;
        while row < rows {
            thread::sync_threads();
            let (here, beside) = (tile.add(before + tx).read(), tile.add(before + left).read());
            let cheapest = here.min(beside).min(tile.add(before + right).read());
            // Near the edges of the tile, what comes from outside of it is missing. Those columns are wrong,
            // one more on each side after each row; they are not among those that are written in the end.
            tile.add(after + tx).write(cheapest.wrapping_add(cost));
            (before, after) = (after, before);
            row += 1;
            // The next row's, ahead of the barrier.
            at = at.wrapping_add(columns);
            cost = if inside && row < rows { *wall.get_unchecked(at) } else { 0 };
        }
        if inside && tx >= pyramid && tx < BLOCK - pyramid {
            // The thread's own element.
            to.as_mut_ptr().add(x).write(tile.add(before + tx).read());
        }
    }
}
