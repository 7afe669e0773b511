use preempt_device::prelude::*;

#[preemptible]
fn rows(rows: *const *const f32, columns: &[*mut f32], out: SliceMut<&[f32]>) {}

type Row = *const f32;

#[preemptible]
fn rows_by_another_name(rows: &[Row]) {}

fn main() {}
